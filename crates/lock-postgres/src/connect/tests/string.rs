//! Golden tables: what each string means, and why the others are refused.

use super::super::{ConnectionString, Target, string::Host};

const CANARY: &str = "canary-7f3a";

fn parse(text: &str) -> ConnectionString {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refusal(text: &str) -> String {
    match text.parse::<ConnectionString>() {
        Ok(parsed) => panic!("{text} was read as {parsed:?}"),
        Err(error) => error.to_string(),
    }
}

/// One line with all that was read, the password too.
fn meaning(text: &str) -> String {
    let parsed = parse(text);
    let hosts: Vec<String> = parsed.targets.iter().map(Target::to_string).collect();
    let mut line = format!("{}@{}", parsed.user, hosts.join(","));
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            line += &format!(" {name}={value}");
        }
    };
    add("password", parsed.password);
    add("dbname", parsed.dbname);
    add("timeout", parsed.connect_timeout.map(|timeout| timeout.as_secs().to_string()));
    add("app", parsed.application_name);
    add("options", parsed.options);
    add("binding", Some(format!("{:?}", parsed.channel_binding)));
    add("tls", Some(parsed.tls.mode.to_string()));
    add("roots", parsed.tls.roots.map(|roots| format!("{roots:?}")));
    add("identity", parsed.tls.identity.map(|identity| format!("{identity:?}")));
    line
}

#[test]
fn urls_and_pairs_mean_what_libpq_says() {
    let rest = "binding=Prefer tls=prefer";
    for (text, expected) in [
        ("postgres://u@", format!("u@localhost:5432 {rest}")),
        ("postgresql://u@h", format!("u@h:5432 {rest}")),
        ("postgres://u@h/", format!("u@h:5432 {rest}")),
        ("postgres://u@h?", format!("u@h:5432 {rest}")),
        ("postgres://u:@h:/d", format!("u@h:5432 dbname=d {rest}")),
        ("postgres://u:p@h:1/d", format!("u@h:1 password=p dbname=d {rest}")),
        ("postgres://u:a:b#c@h/d", format!("u@h:5432 password=a:b#c dbname=d {rest}")),
        ("postgres://u:%40%2f%3F%25%20%C3%BC+@h", format!("u@h:5432 password=@/?% ü+ {rest}")),
        ("postgres://a%40b@h/d%2Fe", format!("a@b@h:5432 dbname=d/e {rest}")),
        ("postgres://u@h/d/e", format!("u@h:5432 dbname=d/e {rest}")),
        ("postgres://u@a,b:2,[::1]:3/d", format!("u@a:5432,b:2,[::1]:3 dbname=d {rest}")),
        ("postgres://u@[2001:db8::7]", format!("u@[2001:db8::7]:5432 {rest}")),
        ("postgres://u@:6543", format!("u@localhost:6543 {rest}")),
        ("postgres://u@%2Frun%2Fpg:1/d", format!("u@/run/pg/.s.PGSQL.1 dbname=d {rest}")),
        ("postgres:///d?user=u&host=/run/pg&port=7", format!("u@/run/pg/.s.PGSQL.7 dbname=d {rest}")),
        ("postgres://u@h:7/d?host=/run/pg", format!("u@/run/pg/.s.PGSQL.7 dbname=d {rest}")),
        ("postgres://h/d?user=u&password=a%26b", format!("u@h:5432 password=a&b dbname=d {rest}")),
        ("postgres://u@h?user=v&dbname=e", format!("v@h:5432 dbname=e {rest}")),
        ("postgres://u@h?application_name=a@b", format!("u@h:5432 app=a@b {rest}")),
        ("postgres://u@h?options=-c%20geqo%3Doff", format!("u@h:5432 options=-c geqo=off {rest}")),
        ("postgres://u@h?options=-c geqo=off", format!("u@h:5432 options=-c geqo=off {rest}")),
        ("postgres://u@h?connect_timeout=7", format!("u@h:5432 timeout=7 {rest}")),
        ("postgres://u@h?target_session_attrs=read-write", format!("u@h:5432 {rest}")),
        ("postgres://u@h?sslmode=disable", "u@h:5432 binding=Prefer tls=disable".to_owned()),
        ("postgres://u@h?sslmode=require&channel_binding=require", "u@h:5432 binding=Require tls=require".to_owned()),
        (
            "postgres://u@h?sslmode=verify-ca&channel_binding=disable",
            "u@h:5432 binding=Disable tls=verify-ca".to_owned(),
        ),
        (
            "postgres://u@h?sslmode=verify-full&sslrootcert=/ca.pem&sslcert=c&sslkey=k",
            "u@h:5432 binding=Prefer tls=verify-full roots=File(\"/ca.pem\") identity=(\"c\", \"k\")".to_owned(),
        ),
        ("postgres://u@h?sslrootcert=system", "u@h:5432 binding=Prefer tls=verify-full roots=System".to_owned()),
        ("user=u", format!("u@localhost:5432 {rest}")),
        (" user = u  host=h\tport=1\n", format!("u@h:1 {rest}")),
        ("user=u host='' port='' password='' dbname=", format!("u@localhost:5432 {rest}")),
        ("user=u password='a b\\'c\\\\d'", format!("u@localhost:5432 password=a b'c\\d {rest}")),
        ("user=u password=a\\ b\\'c=d", format!("u@localhost:5432 password=a b'c=d {rest}")),
        ("user=u password=a'b", format!("u@localhost:5432 password=a'b {rest}")),
        ("user=u password='x://y=z' host=h", format!("u@h:5432 password=x://y=z {rest}")),
        ("user=u password=%41", format!("u@localhost:5432 password=%41 {rest}")),
        ("user=u host=a,b port=1,2", format!("u@a:1,b:2 {rest}")),
        ("user=u host=a,,/run/pg port=1", format!("u@a:1,localhost:1,/run/pg/.s.PGSQL.1 {rest}")),
        ("user=u host=a,b port=,2", format!("u@a:5432,b:2 {rest}")),
        ("user=u host=::1", format!("u@[::1]:5432 {rest}")),
        ("user=u sslmode=verify-full", "u@localhost:5432 binding=Prefer tls=verify-full".to_owned()),
    ] {
        assert_eq!(meaning(text), expected, "{text}");
    }
}

#[test]
fn bad_strings_are_refused_naming_parameter_value_and_rule() {
    for (text, parts) in [
        ("", ["user", "missing", "must be given"]),
        ("postgres://h/d", ["user", "missing", "must be given"]),
        ("postgres://:p@h/d", ["user", "missing", "must be given"]),
        ("mysql://u@h", ["scheme", "mysql", "postgres://"]),
        ("Postgres://u@h", ["string", "not shown", "postgres://"]),
        ("postgres//u@h", ["string", "not shown", "name=value"]),
        ("user=u sslmode=on", ["sslmode", "(on)", "verify-full"]),
        ("user=u sslmode=", ["sslmode", "()", "verify-full"]),
        ("user=u sslmode=Require", ["sslmode", "(Require)", "verify-full"]),
        ("user=u sslmode=allow", ["sslmode", "(allow)", "use prefer"]),
        ("user=u sslmode=require sslrootcert=system", ["sslmode", "(require)", "verify-full"]),
        ("user=u sslrootcert=", ["sslrootcert", "empty", "PEM"]),
        ("user=u sslcert=c", ["sslkey", "missing", "sslcert"]),
        ("user=u sslkey=k", ["sslcert", "missing", "sslkey"]),
        ("user=u sslcert=c sslkey=", ["sslkey", "empty", "PEM"]),
        ("user=u sslpassword=x", ["sslpassword", "not shown", "decrypt"]),
        ("user=u sslmod=require", ["parameter", "(sslmod)", "known are"]),
        ("postgres://u@h?sslmod=require", ["parameter", "(sslmod)", "known are"]),
        ("postgres://u@h?SSLMODE=require", ["parameter", "not shown", "known are"]),
        ("postgres://u@h?sslmode", ["string", "not shown", "name=value"]),
        ("postgres://u@h?port=1&port=2", ["parameter", "(port)", "twice"]),
        ("user=u user=v", ["parameter", "(user)", "twice"]),
        ("user=u port=0", ["port", "(0)", "65535"]),
        ("user=u port=65536", ["port", "(65536)", "65535"]),
        ("user=u port=+1", ["port", "(+1)", "65535"]),
        ("postgres://u@h:x/d", ["port", "(x)", "65535"]),
        ("postgres://u@h:-1/d", ["port", "(-1)", "65535"]),
        ("user=u host=a,b port=1,2,3", ["port", "3 for 2 hosts", "one for each"]),
        ("user=u host='a b'", ["host", "(a b)", "must be a name"]),
        ("user=u host=[::1]", ["host", "([::1])", "without brackets"]),
        ("user=u host=@s", ["host", "(@s)", "abstract"]),
        ("postgres://u@a%1B[31m", ["host", "not shown in a terminal's words", "control"]),
        ("postgres://u@::1/d", ["string", "not shown", "brackets"]),
        ("postgres://u@[::1/d", ["string", "not shown", "closed"]),
        ("postgres://u@[x]/d", ["string", "not shown", "IPv6"]),
        ("postgres://u@[::1]5/d", ["string", "not shown", ":port"]),
        ("postgres://u:%zz@h", ["string", "not shown", "hexadecimal"]),
        ("postgres://u:%4@h", ["string", "not shown", "hexadecimal"]),
        ("postgres://u:%@h", ["string", "not shown", "hexadecimal"]),
        ("postgres://u:%+1@h", ["string", "not shown", "hexadecimal"]),
        ("postgres://u:%00@h", ["string", "not shown", "NUL"]),
        ("postgres://u:%ff@h", ["string", "not shown", "UTF-8"]),
        ("user=u password=a\0b", ["string", "not shown", "NUL"]),
        ("user=u connect_timeout=0", ["connect_timeout", "(0)", "from 1"]),
        ("user=u connect_timeout=-1", ["connect_timeout", "(-1)", "from 1"]),
        ("user=u connect_timeout=5s", ["connect_timeout", "(5s)", "whole seconds"]),
        ("user=u target_session_attrs=any", ["target_session_attrs", "(any)", "standby"]),
        ("user=u target_session_attrs=read-only", ["target_session_attrs", "(read-only)", "standby"]),
        ("user=u channel_binding=yes", ["channel_binding", "(yes)", "prefer"]),
        ("user=u channel_binding=require sslmode=disable", ["channel_binding", "(require)", "TLS"]),
        ("user=u host", ["string", "not shown", "name=value"]),
        ("user=u 'x'=y", ["parameter", "not shown", "known are"]),
        ("user='u", ["string", "not shown", "single quote"]),
        ("user='u'host=h", ["string", "not shown", "space"]),
        ("user=u\\", ["string", "not shown", "backslash"]),
    ] {
        let refused = refusal(text);
        // Escaped, the control character of the one row with its own words cannot reach a terminal.
        let parts = parts.map(|part| if part.starts_with("not shown in") { "(a\\u{1b}[31m)" } else { part });
        for part in parts {
            assert!(refused.contains(part), "{text:?}: {refused:?} lacks {part:?}");
        }
    }
}

#[test]
fn too_long_socket_path_is_refused() {
    let long = format!("user=u host=/{}", "d".repeat(93));
    assert!(refusal(&long).contains("107 bytes"));
    parse(&format!("user=u host=/{}", "d".repeat(92)));
}

#[test]
fn long_value_is_cut_in_the_error() {
    let refused = refusal(&format!("user=u sslmode={}", "x".repeat(1_000)));
    assert!(refused.contains("xxx...") && refused.len() < 250, "{refused}");
}

/// Also those that a hasty hand did not encode or quote.
#[test]
fn password_shows_in_no_error() {
    let mut tried = 0;
    for form in [
        "postgres://u:CANARY@h:x/d",
        "postgres://u:CANARY",
        "postgres://u:CANARY/d",
        "postgres://u:1@CANARY@h/d",
        "postgres://u:a@CANARY:9@h/d",
        "postgres://u:a/CANARY@h/d",
        "postgres://u:a@b/CANARY@h/d",
        "postgres://u:a?CANARY@h/d",
        "postgres://u:a?b=CANARY@h/d",
        "postgres://u:a?CANARY=b@h/d",
        "postgres://u:CANARY%@h/d",
        "postgres://u:CANARY%ff@h/d",
        "postgres://u:CANARY@h?sslmode=on",
        "postgres://u@h?password=a&CANARY=b",
        "postgres://u@h?password=a&CANARY",
        "postgres:/u:CANARY@h/d",
        "http-CANARY://u:p@h/d",
        "user=u password=CANARY sslmode=on",
        "user=u password=a CANARY",
        "user=u password=a CANARY=b",
        "user=u password='a' 'CANARY'",
        "user=u password='CANARY",
        "user=u password='a'CANARY",
        "user=u password=CANARY\\",
        "user=u password=CANARY port=x",
        "user=u sslpassword=CANARY",
        "password=CANARY",
    ] {
        // A word of letters, too, which could be the name of a parameter.
        for secret in [CANARY, "canary"] {
            let refused = refusal(&form.replace("CANARY", secret));
            assert!(!refused.contains("canary"), "{form}: {refused}");
            tried += 1;
        }
    }
    assert_eq!(tried, 54);
}

#[test]
fn debug_and_display_do_not_show_the_password() {
    let parsed = parse(&format!("postgres://u:{CANARY}@h:1,[::1]/d?options=-c%20x.y%3D{CANARY}"));
    assert_eq!(parsed.password.as_deref(), Some(CANARY));
    let shown = format!("{parsed:?} {parsed:#?} {parsed}");
    assert!(!shown.contains(CANARY), "{shown}");
    assert_eq!(parsed.to_string(), "user u, database d, at h:1 or [::1]:5432");
    assert!(shown.contains("password: Some(\"set\")"));
}

#[test]
fn socket_file_follows_the_servers_rule() {
    let parsed = parse("user=u host=/run/pg port=7");
    assert_eq!(parsed.targets[0].host, Host::Unix("/run/pg".into()));
    assert_eq!(parsed.targets[0].socket_path(), Some("/run/pg/.s.PGSQL.7".into()));
    assert_eq!(parse("user=u host=h").targets[0].socket_path(), None);
}
