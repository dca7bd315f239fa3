# Owns one throw-away PostgreSQL server and its folder. It takes orders, one a line, on standard input and answers each
# with one line. End of input means that the process which ordered is gone or done: stop the server, remove the folder.
# Only the ordering process holds the other end of that pipe, so this also works after it was killed with SIGKILL.
umask 077
trap '' HUP INT TERM PIPE
root=$LOCK_TESTKIT_ROOT bin=$LOCK_TESTKIT_BIN data=$LOCK_TESTKIT_ROOT/data log=$LOCK_TESTKIT_ROOT/log server=

# Whether a process id still belongs to the server: an id can be reused once the shell has collected its child.
is_server() {
    [ ! -e "/proc/$server/cwd" ] || [ "/proc/$server/cwd" -ef "$data" ]
}

# Sends $1, wakes the server in case a test froze it, and waits for its end. Then it ends backends that outlived a killed
# postmaster and frees the System V segment that only a killed one leaves.
stop_server() {
    [ -n "$server" ] || return 0
    if is_server; then
        kill -"$1" "$server"
        kill -CONT "$server"
    fi
    wait "$server"
    server=
    for process in /proc/[0-9]*; do
        [ "$process/cwd" -ef "$data" ] && kill -KILL "${process#/proc/}"
    done
    if [ -e "$data/postmaster.pid" ]; then
        segment=$(sed -n '7s/.* //p' "$data/postmaster.pid")
        [ -z "$segment" ] || ipcrm -m "$segment"
    fi
} 2>/dev/null

if ! mkdir "$root" 2>/dev/null; then
    if [ -e "$root" ]; then echo taken; else echo "cannot make $root"; fi
    exit
fi
echo ready
while IFS= read -r order; do
    case $order in
    'init '*)
        set -- -A "${order#init }"
        [ ! -e "$root/password" ] || set -- "$@" --pwfile "$root/password"
        "$bin/initdb" -N -D "$data" -U postgres -E UTF8 --locale=C "$@" >>"$log" 2>&1 </dev/null
        echo $? ;;
    'clone '*)
        "$bin/pg_basebackup" -D "$data" -R -X stream -c fast -N -d "${order#clone }" >>"$log" 2>&1 </dev/null
        echo $? ;;
    'start '*)
        # The server is in its folder from its first moment, so that is_server never takes it for a stranger.
        cd "$data" || break
        "$bin/postgres" -D "$data" -p "${order#start }" >>"$log" 2>&1 </dev/null &
        server=$!
        cd / || break
        echo "$server" ;;
    'stop '*)
        stop_server "${order#stop }"
        echo stopped ;;
    esac
done
stop_server QUIT
# A process that was killed a moment ago can still finish a write, and rm then finds a folder that is not empty.
for attempt in 1 2 3 4 5; do
    rm -rf "$root" 2>/dev/null && break
    sleep 1
done
