//! Every function and catalogue that the PostgreSQL backend names in SQL is written with its schema. A bare name is looked
//! up along the session's `search_path`, so whoever may create objects in a schema of that path could put his own
//! `pg_advisory_lock` before the server's.

#![expect(clippy::unwrap_used, reason = "a test that cannot read its input has failed")]

use std::path::Path;

/// Names that must never stand bare in any string, whatever the string is for.
const CATALOGUE: [&str; 12] = [
    "current_setting",
    "pg_advisory_",
    "pg_backend_pid",
    "pg_blocking_pids",
    "pg_cancel_backend",
    "pg_is_in_recovery",
    "pg_locks",
    "pg_notify",
    "pg_stat_activity",
    "pg_terminate_backend",
    "pg_try_advisory_",
    "set_config",
];

/// What may stand right before a parenthesis in a statement and is grammar, not a function.
const GRAMMAR: [&str; 27] = [
    "all", "and", "any", "array", "as", "by", "case", "cast", "coalesce", "conflict", "do", "else", "exists", "filter",
    "greatest", "in", "join", "least", "not", "nullif", "on", "operator", "or", "over", "select", "using", "values",
];

/// Types that the grammar itself maps to the server's own.
const TYPES: [&str; 10] =
    ["bigint", "bit", "boolean", "char", "integer", "interval", "numeric", "real", "smallint", "varchar"];

/// A statement starts with one of these.
const STATEMENT: [&str; 8] = ["call", "delete", "insert", "select", "truncate", "update", "values", "with"];

/// The contents of the string literals of Rust source, each with the number of the line it starts on.
fn literals(source: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let (mut rest, mut line) = (source, 1);
    while let Some(first) = rest.chars().next() {
        let here = line;
        let taken = match first {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            // A quoted character, as opposed to a lifetime, closes after one character or after an escape.
            '\'' if rest.starts_with("'\\") => rest[3..].find('\'').map_or(rest.len(), |end| end + 4),
            '\'' if rest.chars().nth(2) == Some('\'') => rest.char_indices().nth(3).map_or(rest.len(), |(end, _)| end),
            '"' => {
                let (text, length) = quoted(&rest[1..]);
                found.push((here, text));
                1 + length
            }
            'r' if rest[1..].trim_start_matches('#').starts_with('"') => {
                let hashes = rest[1..].len() - rest[1..].trim_start_matches('#').len();
                let body = &rest[hashes + 2..];
                let close = format!("\"{}", "#".repeat(hashes));
                let end = body.find(&close).unwrap_or(body.len());
                found.push((here, body[..end].to_owned()));
                (hashes + 2 + end + close.len()).min(rest.len())
            }
            // The rest of a word, so that the `r` of `for"…"` does not open a raw string.
            _ if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        line += rest[..taken].matches('\n').count();
        rest = &rest[taken..];
    }
    found
}

/// The text up to the closing quote, its line continuations joined, and how much of `body` it and the quote take.
fn quoted(body: &str) -> (String, usize) {
    let mut text = String::new();
    let mut chars = body.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (text, at + 1),
            '\\' => match chars.next() {
                Some((_, '\n')) => while chars.next_if(|(_, c)| c.is_whitespace()).is_some() {},
                Some((_, 'n' | 't' | 'r')) => text.push(' '),
                Some((_, other)) => text.push(other),
                None => {}
            },
            _ => text.push(c),
        }
    }
    (text, body.len())
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The names in `text` that want a schema and have none.
fn bare_names(text: &str) -> Vec<&str> {
    let is_statement = text.split(|c| !is_word(c)).find(|word| !word.is_empty()).is_some_and(|word| {
        STATEMENT.contains(&word.to_ascii_lowercase().as_str()) && text.contains(char::is_whitespace)
    });
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = text[at..].find(is_word).map(|offset| at + offset) {
        let end = text[start..].find(|c| !is_word(c)).map_or(text.len(), |offset| start + offset);
        let (word, called) = (&text[start..end], text[end..].starts_with('('));
        let lower = word.to_ascii_lowercase();
        let known = CATALOGUE.iter().any(|name| lower.starts_with(name));
        let function = is_statement && called && !GRAMMAR.contains(&lower.as_str());
        let before = &text[..start];
        let cast = is_statement && before.ends_with("::") && !TYPES.contains(&lower.as_str());
        // `x.f(` names a schema; `$1` and a type with a length are no functions.
        let plain = !before.ends_with(['.', '$', ':']);
        if ((known || function) && plain) || (cast && !text[end..].starts_with('.')) {
            found.push(word);
        }
        at = end;
    }
    found
}

/// The breaches in one source file, as `line: name in "literal"`.
fn breaches(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (line, text) in literals(source) {
        found.extend(bare_names(&text).into_iter().map(|name| format!("{line}: {name} in \"{text}\"")));
    }
    found
}

fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push((path.display().to_string(), std::fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn sql_of_the_backend_names_a_schema_everywhere() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/lock-postgres/src"), &mut files);
    let statements = files.iter().flat_map(|(_, source)| literals(source));
    assert!(statements.filter(|(_, text)| text.contains("pg_catalog.")).count() > 0, "no SQL was read at all");
    for (path, source) in files {
        assert_eq!(breaches(&source), [""; 0], "{path}");
    }
}

#[test]
fn planted_bare_names_are_found_with_their_line() {
    let bare = [
        (r#"query("SELECT pg_advisory_lock($1::bigint)")"#, "pg_advisory_lock"),
        (r#"query("SELECT pg_catalog.now(), pg_try_advisory_xact_lock(1)")"#, "pg_try_advisory_xact_lock"),
        (r##"query(r#"SELECT 1 FROM pg_locks WHERE granted"#)"##, "pg_locks"),
        (r#"query("select pid from PG_STAT_ACTIVITY")"#, "PG_STAT_ACTIVITY"),
        (r#"query("SELECT hashtext($1)")"#, "hashtext"),
        (r#"query("SELECT $1::text")"#, "text"),
        (r#"query("WITH t AS (SELECT now()) SELECT 1 FROM t")"#, "now"),
        (r#"format!("{}; SELECT set_config('a', 'b', true)", x)"#, "set_config"),
        ("query(\"SELECT \\\n    pg_notify('a', '')\")", "pg_notify"),
    ];
    for (source, name) in bare {
        let found = breaches(&format!("// the second line\n{source};"));
        assert_eq!(found.len(), 1, "{source}: {found:?}");
        assert!(found[0].starts_with(&format!("2: {name} in ")), "{source}: {found:?}");
    }
}

#[test]
fn qualified_names_grammar_prose_and_comments_pass() {
    let fine = [
        r#"query("SELECT pg_catalog.pg_advisory_lock($1::bigint)")"#,
        r#"query("SELECT 1 FROM pg_catalog.pg_locks WHERE pid IN (1, 2) AND (granted OR pid = ANY ($1))")"#,
        r#"query("SELECT a.b::pg_catalog.text OPERATOR(pg_catalog.=) $1::pg_catalog.text FROM s.a AS a")"#,
        r#"query("INSERT INTO s.t (a) VALUES ($1::varchar(8)) ON CONFLICT (a) DO NOTHING")"#,
        r#"Error::new("select a mode (require or disable)")"#,
        r#"let a: &'static str = "x"; let quote = '"'; // pg_locks "pg_locks""#,
        "/* \"SELECT pg_locks\" */ let s = ['\\'', '\"', '\\\\']; /// \"pg_locks\"",
        r#"Error::new("with several hosts, give one port (or one for each host)")"#,
    ];
    for source in fine {
        assert_eq!(breaches(source), [""; 0], "{source}");
    }
}
