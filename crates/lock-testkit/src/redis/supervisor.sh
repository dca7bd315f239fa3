# Owns one throw-away Redis server and its folder. End of input means that the process which started it is gone or done: stop the
# server, remove the folder. Only that process holds the other end of the pipe, so this also works after it was killed with SIGKILL.
umask 077
trap '' HUP INT TERM PIPE
root=$LOCK_TESTKIT_ROOT bin=$LOCK_TESTKIT_BIN

if ! mkdir "$root" 2>/dev/null; then
    if [ -e "$root" ]; then echo taken; else echo "cannot make $root"; fi
    exit
fi
echo ready
cd "$root" || exit
# Nothing is written to disk, and nobody but this machine's users who may enter the folder reaches it: there is no port.
"$bin/redis-server" --port 0 --unixsocket "$root/socket" --dir "$root" --save '' --appendonly no >"$root/log" 2>&1 </dev/null &
server=$!
cd / || exit
echo "$server"
while IFS= read -r order; do :; done
# An id can be reused once the shell has collected its child, so it is looked at first. A frozen server is woken.
if [ ! -e "/proc/$server/cwd" ] || [ "/proc/$server/cwd" -ef "$root" ]; then
    kill -KILL "$server"
fi 2>/dev/null
wait "$server" 2>/dev/null
rm -rf "$root"
