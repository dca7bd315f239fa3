//! The unprivileged user that a server runs as when the tests run as root.

use std::{fs, io};

/// Ids of a user of this machine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl User {
    /// `None` when this process is not root and the server can run as the same user.
    pub(crate) fn unprivileged() -> io::Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let users = fs::read_to_string("/etc/passwd")?;
        ["postgres", "nobody"].into_iter().find_map(|name| Self::named(name, &users)).map(Some).ok_or_else(|| {
            io::Error::other("servers must not run as root, and there is no user `postgres` or `nobody`")
        })
    }

    fn named(name: &str, users: &str) -> Option<Self> {
        users.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next()? == name).then_some(())?;
            let uid = fields.nth(1)?.parse().ok()?;
            let gid = fields.next()?.parse().ok()?;
            (uid != 0).then_some(Self { uid, gid })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::User;

    #[test]
    fn a_user_is_found_by_its_whole_name_and_never_is_root() {
        let users = "root:x:0:0::/root:/bin/sh\npostgres2:x:7:8::/:/bin/sh\npostgres:x:101:104:,,,:/var:/bin/sh\n";
        assert_eq!(User::named("postgres", users), Some(User { uid: 101, gid: 104 }));
        assert_eq!(User::named("nobody", users), None);
        assert_eq!(User::named("root", users), None);
    }
}
