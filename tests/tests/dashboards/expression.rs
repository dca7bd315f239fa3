//! Which series and labels an expression of Prometheus names. Reads as much of the language as our files use, and refuses the rest.

use std::collections::BTreeSet;

/// Functions, operators by words, and what may stand before a list of labels.
const FUNCTIONS: [&str; 9] =
    ["histogram_quantile", "increase", "max", "max_over_time", "min_over_time", "rate", "sum", "avg", "count"];
const OPERATORS: [&str; 4] = ["and", "offset", "or", "unless"];
const GROUPING: [&str; 2] = ["by", "without"];

#[derive(Debug, Default, Eq, PartialEq)]
pub(crate) struct Expression {
    /// Each series that is selected, with the labels that are matched.
    pub(crate) selected: Vec<(String, BTreeSet<String>)>,
    /// What results are grouped by.
    pub(crate) grouped: BTreeSet<String>,
}

impl Expression {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let tokens = tokens(text)?;
        let mut this = Self::default();
        let mut at = 0;
        let mut open = Vec::new();
        while let Some(token) = tokens.get(at) {
            at += 1;
            match token.as_str() {
                "(" => open.push(at),
                ")" => drop(open.pop().ok_or("a parenthesis too many")?),
                "{" | "}" | "," if open.is_empty() => return Err(format!("{token} where it means nothing")),
                word if !is_word(word) => {}
                word if FUNCTIONS.contains(&word) || OPERATORS.contains(&word) => {}
                word if GROUPING.contains(&word) => {
                    let (list, after) = list(&tokens, at, "(", ")")?;
                    this.grouped.extend(list);
                    at = after;
                }
                series => {
                    let mut matched = BTreeSet::new();
                    if tokens.get(at).is_some_and(|next| next == "{") {
                        let (list, after) = list(&tokens, at, "{", "}")?;
                        matched.extend(list);
                        at = after;
                    }
                    this.selected.push((series.to_owned(), matched));
                }
            }
        }
        let ends_well = tokens.last().is_some_and(|last| last == ")" || last == "}" || !is_sign(last));
        match open.is_empty() && ends_well && !this.selected.is_empty() {
            true => Ok(this),
            false => Err("not an expression".into()),
        }
    }

    pub(crate) fn series(&self) -> Vec<String> {
        self.selected.iter().map(|(series, _)| series.clone()).collect()
    }
}

/// The words of a list from its opening sign to its closing one, and where it goes on.
fn list(tokens: &[String], at: usize, open: &str, close: &str) -> Result<(Vec<String>, usize), String> {
    let length = tokens[at..].iter().position(|token| token == close).ok_or("a list does not end")?;
    if tokens.get(at).is_none_or(|token| token != open) {
        return Err(format!("no {open} where a list begins"));
    }
    let words = tokens[at + 1..at + length].iter().filter(|token| is_word(token)).cloned().collect();
    Ok((words, at + length + 1))
}

/// Words, numbers, texts and single signs; ranges as `[5m]` are left out.
fn tokens(text: &str) -> Result<Vec<String>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => 2 + rest[1..].find('"').ok_or("a text does not end")?,
            '[' => 1 + rest.find(']').ok_or("a range does not end")?,
            _ if is_in_word(first) => rest.find(|c| !is_in_word(c) && c != '.').unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        if first != '[' {
            tokens.push(rest[..length].to_owned());
        }
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

fn is_in_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

fn is_sign(token: &str) -> bool {
    !token.starts_with(|c: char| is_in_word(c) || c == '"')
}

#[test]
fn series_matched_and_grouped_labels_are_read() {
    let text = r#"histogram_quantile(0.99, sum by (le, a) (rate(x_bucket{b=~"$b", c!="d, e{f}"}[$__rate_interval]))) > 0.5 or y offset 15m"#;
    let set = |labels: &[&str]| labels.iter().map(|label| (*label).to_owned()).collect::<BTreeSet<_>>();
    let selected = vec![("x_bucket".to_owned(), set(&["b", "c"])), ("y".to_owned(), set(&[]))];
    assert_eq!(Expression::parse(text), Ok(Expression { selected, grouped: set(&["a", "le"]) }));
}

#[test]
fn what_is_no_expression_is_refused() {
    for text in ["", "1", "sum(x", "sum(x))", "x{a=\"b", "x{a=\"b\"", "x[5m", "x >", "sum by x", "sum by (x", "x }"] {
        assert!(Expression::parse(text).is_err(), "{text}");
    }
    // A function that is not known is taken for a series, which then does not exist.
    assert_eq!(Expression::parse("topk(1, x)").unwrap().series(), ["topk", "x"]);
}
