//! Whether tokens rose from grant to grant, and whether two held the key at a time.
//!
//! The order of the grants is known without a look at the tokens. A hold that was released had the key from its grant until it was given
//! back, so every grant that was noted before this one was noted is an older one: also that of a holder who was killed or had lost
//! the key. What a hold without a release noted may be late, when the next holder was already in. Its grant is only known to be newer than
//! what was noted before it asked. A holder that was killed before it could note its grant had a token that nobody saw.

use std::collections::BTreeMap;

use super::witness::{Hold, Mark, Record};

/// A token that is not above one of an older grant.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Regression {
    pub(super) older: Hold,
    pub(super) newer: Hold,
}

#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// All that were noted.
    pub(super) grants: usize,
    /// Those of holds that were released.
    pub(super) released: usize,
    pub(super) regressions: Vec<Regression>,
    /// Pairs that both had the key.
    pub(super) two_holders: Vec<(Hold, Hold)>,
}

/// When a hold was noted, by position.
struct Span {
    hold: Hold,
    granted: usize,
    ending: Option<usize>,
    released: bool,
}

impl Span {
    /// From when until when it surely had the key.
    fn sure(&self) -> Option<(usize, usize)> {
        self.ending.filter(|_| self.released).map(|ending| (self.granted, ending))
    }
}

pub(super) fn judge(records: &[Record]) -> Verdict {
    let spans = spans(records);
    let mut verdict = Verdict { grants: spans.len(), ..Verdict::default() };
    verdict.released = spans.iter().filter(|span| span.released).count();
    verdict.regressions = regressions(records, &spans);
    verdict.two_holders = two_holders(&spans);
    verdict
}

/// In the order in which the grants were noted.
fn spans(records: &[Record]) -> Vec<Span> {
    let mut spans = Vec::new();
    let mut index = BTreeMap::new();
    for (at, Record { mark, hold }) in records.iter().enumerate() {
        if *mark == Mark::Granted {
            index.insert(hold.id, spans.len());
            spans.push(Span { hold: *hold, granted: at, ending: None, released: false });
        } else if let Some(span) = index.get(&hold.id).and_then(|nth| spans.get_mut(*nth)) {
            match mark {
                Mark::Ending => span.ending = Some(at),
                _ => span.released = true,
            }
        }
    }
    spans
}

fn regressions(records: &[Record], spans: &[Span]) -> Vec<Regression> {
    // The grant with the highest token before each position.
    let mut highest: Vec<Option<Hold>> = vec![None];
    for Record { mark, hold } in records {
        let before = highest.last().copied().flatten();
        let above = *mark == Mark::Granted && before.is_none_or(|before| before.token < hold.token);
        highest.push(if above { Some(*hold) } else { before });
    }
    let older = |span: &Span| {
        let until = if span.sure().is_some() { span.granted } else { span.hold.asked.min(span.granted) };
        highest[until].filter(|older| older.token >= span.hold.token)
    };
    spans.iter().filter_map(|span| Some(Regression { older: older(span)?, newer: span.hold })).collect()
}

fn two_holders(spans: &[Span]) -> Vec<(Hold, Hold)> {
    let mut pairs = Vec::new();
    // Of those before, the one that had it longest.
    let mut last: Option<(usize, Hold)> = None;
    let mut sure = Vec::new();
    for span in spans {
        let Some((granted, ending)) = span.sure() else { continue };
        if let Some((_, other)) = last.filter(|(until, _)| granted < *until) {
            pairs.push((other, span.hold));
        }
        if last.is_none_or(|(until, _)| until < ending) {
            last = Some((ending, span.hold));
        }
        sure.push((granted, ending, span.hold));
    }
    // A grant without a release, asked for and noted while another surely had the key.
    for span in spans.iter().filter(|span| span.sure().is_none()) {
        let after = sure.partition_point(|(granted, _, _)| *granted < span.hold.asked);
        if let Some((_, _, other)) = sure[..after].last().filter(|(_, ending, _)| span.granted < *ending) {
            pairs.push((*other, span.hold));
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::{super::way::Way, *};

    fn hold(id: u64, asked: usize, token: u128) -> Hold {
        Hold { id, way: Way::Sql, asked, token }
    }

    fn records(steps: &[(Mark, Hold)]) -> Vec<Record> {
        steps.iter().map(|(mark, hold)| Record { mark: *mark, hold: *hold }).collect()
    }

    /// Pairs of older and newer, by id.
    fn regressions(steps: &[(Mark, Hold)]) -> Vec<(u64, u64)> {
        let verdict = judge(&records(steps));
        assert!(verdict.two_holders.is_empty(), "{verdict:?}");
        verdict.regressions.iter().map(|found| (found.older.id, found.newer.id)).collect()
    }

    fn pairs(steps: &[(Mark, Hold)]) -> Vec<(u64, u64)> {
        judge(&records(steps)).two_holders.iter().map(|(one, other)| (one.id, other.id)).collect()
    }

    use Mark::{Ending, Granted, Released};

    #[test]
    fn tokens_that_rise_are_no_regression() {
        let [a, b] = [hold(1, 0, 5), hold(2, 0, 6)];
        let steps = [(Granted, a), (Ending, a), (Granted, b), (Released, a), (Ending, b), (Released, b)];
        assert_eq!(regressions(&steps), []);
        let verdict = judge(&records(&steps));
        assert_eq!((verdict.grants, verdict.released), (2, 2));
    }

    #[test]
    fn a_token_that_is_lower_or_the_same_is_a_regression() {
        for token in [4, 5] {
            let [a, b] = [hold(1, 0, 5), hold(2, 0, token)];
            let steps = [(Granted, a), (Ending, a), (Released, a), (Granted, b), (Ending, b), (Released, b)];
            assert_eq!(regressions(&steps), [(1, 2)], "{token}");
        }
    }

    #[test]
    fn a_token_is_compared_with_all_before_it_not_with_the_last_alone() {
        let [a, b, c] = [hold(1, 0, 9), hold(2, 0, 4), hold(3, 0, 5)];
        let each = |hold| [(Granted, hold), (Ending, hold), (Released, hold)];
        assert_eq!(regressions(&[each(a), each(b), each(c)].concat()), [(1, 2), (1, 3)]);
    }

    #[test]
    fn one_that_was_killed_after_its_note_counts_as_older() {
        let [killed, next] = [hold(1, 0, 5), hold(2, 0, 5)];
        let steps = [(Granted, killed), (Granted, next), (Ending, next), (Released, next)];
        assert_eq!(regressions(&steps), [(1, 2)]);
    }

    #[test]
    fn late_note_of_one_that_had_lost_the_key_is_no_regression() {
        let [late, next] = [hold(1, 0, 5), hold(2, 0, 6)];
        let steps = [(Granted, next), (Granted, late), (Ending, late), (Ending, next), (Released, next)];
        assert_eq!(regressions(&steps), []);
    }

    #[test]
    fn one_without_a_release_is_newer_than_what_was_noted_before_it_asked() {
        let [first, lost] = [hold(1, 0, 6), hold(2, 1, 5)];
        let steps = [(Granted, first), (Ending, first), (Released, first), (Granted, lost)];
        assert_eq!(regressions(&steps), [(1, 2)]);
    }

    #[test]
    fn two_that_were_both_released_do_not_overlap() {
        let [a, b] = [hold(1, 0, 5), hold(2, 0, 6)];
        let apart = [(Granted, a), (Ending, a), (Granted, b), (Ending, b), (Released, b), (Released, a)];
        assert_eq!(pairs(&apart), []);
        let overlap = [(Granted, a), (Granted, b), (Ending, a), (Ending, b), (Released, a), (Released, b)];
        assert_eq!(pairs(&overlap), [(1, 2)]);
    }

    #[test]
    fn one_within_a_long_hold_is_found_though_another_was_between() {
        let [long, a, b] = [hold(1, 0, 5), hold(2, 0, 6), hold(3, 0, 7)];
        let each = |hold| vec![(Granted, hold), (Ending, hold), (Released, hold)];
        let steps = [vec![(Granted, long)], each(a), each(b), vec![(Ending, long), (Released, long)]].concat();
        assert_eq!(pairs(&steps), [(1, 2), (1, 3)]);
    }

    #[test]
    fn one_without_a_release_is_a_second_holder_only_if_it_asked_during_the_hold() {
        let first = hold(1, 0, 5);
        for (asked, expected) in [(0, vec![]), (1, vec![(1, 2)])] {
            let lost = hold(2, asked, 6);
            let steps = [(Granted, first), (Granted, lost), (Ending, first), (Released, first)];
            assert_eq!(pairs(&steps), expected, "{asked}");
        }
    }
}
