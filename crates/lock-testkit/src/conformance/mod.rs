//! The behaviours every locker owes its users, as named trials `locker::case`.
//!
//! A backend brings a [`Subject`]; [`trials`] makes one libtest-mimic trial of each pair of subject and case. Each trial has its
//! own runtime, its own key and a deadline, so that a hang is a failure. Cases that a locker's capabilities exclude show as
//! ignored with the reason, and so does a subject whose backend is missing, unless `LOCK_TEST_REQUIRE=1`.
//!
//! Everything is observed through public calls of the contract: two lockers of one [`Store`] stand for two processes.

use std::sync::Arc;

use libtest_mimic::{Completion, Failed, Trial};

pub(crate) mod bench;
pub(crate) mod case;
mod closing;
mod exclusion;
mod facts;
mod fencing;
mod hold;
mod loss;
mod order;
mod release;
mod renewal;
mod runs;
pub(crate) mod scoped;
mod subject;
mod trial;
mod ttl;
mod waiting;

pub use case::{Case, Suite};
pub use subject::{Missing, Store, Subject, Time};
pub use trial::{Limits, Verdict, run};
pub(crate) use trial::{block_on, judged, report};

/// Every case of the suite for session lockers, then of the one for scoped lockers.
#[must_use]
pub fn cases() -> Vec<&'static Case> {
    [
        exclusion::CASES,
        ttl::CASES,
        renewal::CASES,
        release::CASES,
        waiting::CASES,
        order::CASES,
        loss::CASES,
        fencing::CASES,
        closing::CASES,
        runs::CASES,
        hold::CASES,
        facts::CASES,
        scoped::body::CASES,
        scoped::ending::CASES,
        scoped::excluding::CASES,
        scoped::waiting::CASES,
        scoped::closing::CASES,
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// One trial for each subject and each case of the suites it asks for, named `locker::case`.
#[must_use]
pub fn trials(subjects: impl IntoIterator<Item = Arc<dyn Subject>>) -> Vec<Trial> {
    let mut trials = Vec::new();
    for subject in subjects {
        for case in cases().into_iter().filter(|case| subject.suites().contains(&case.suite())) {
            let name = format!("{}::{}", subject.name(), case.name());
            let subject = Arc::clone(&subject);
            trials.push(Trial::ignorable_test(name, move || judge(&subject, case)));
        }
    }
    trials
}

fn judge(subject: &Arc<dyn Subject>, case: &'static Case) -> Result<Completion, Failed> {
    if let Some(reason) = subject.deviation(case.name()) {
        return Ok(Completion::ignored_with(reason));
    }
    report(run(subject, case, Limits::default()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_case_has_a_name_of_its_own_and_there_are_many() {
        let names: BTreeSet<_> = cases().into_iter().map(Case::name).collect();
        assert_eq!(names.len(), cases().len());
        assert!(names.len() >= 40);
    }
}
