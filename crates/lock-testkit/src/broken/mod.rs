//! Lockers that are broken on purpose: each breaks one behaviour, and the conformance suite must find it.
//!
//! A case that finds nothing wrong with its broken locker is a case that cannot fail.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use libtest_mimic::{Failed, Trial};

use crate::{
    cancel::{Operation, operations, sweep},
    conformance::{self, Case, Limits, Verdict, cases},
};

mod defect;
mod handle;
mod locker;
mod record;
mod scoped;
mod subject;

pub use defect::Defect;
pub use subject::subject;

/// What each case and each sweep found, to be printed after the run.
#[derive(Clone, Debug, Default)]
pub struct Findings(Arc<Mutex<Vec<Found>>>);

#[derive(Clone, Debug)]
struct Found {
    by: &'static str,
    defect: Defect,
    verdict: Verdict,
}

/// What looks for a behaviour.
#[derive(Clone, Copy)]
enum Seeker {
    Case(&'static Case),
    Sweep(&'static Operation),
}

/// One trial for each case and each operation of the cancel sweep, named `broken_locker::case`, which passes if the case finds
/// the defect. A case without a broken locker fails.
#[must_use]
pub fn trials(findings: &Findings) -> Vec<Trial> {
    let mut trials: Vec<_> = seekers().map(|seeker| trial(seeker, findings)).collect();
    trials.push(Trial::test("without_a_defect::everything_passes", everything_passes_without_a_defect));
    trials.push(Trial::test("without_a_case::no_defect_is_left", no_defect_is_left_without_a_case));
    trials
}

fn seekers() -> impl Iterator<Item = Seeker> {
    cases().into_iter().map(Seeker::Case).chain(operations().iter().map(Seeker::Sweep))
}

fn trial(seeker: Seeker, findings: &Findings) -> Trial {
    let name = seeker.name();
    let Some(defect) = Defect::caught_by(name) else {
        return Trial::test(format!("nothing::{name}"), || Err("no broken locker shows that it can fail".into()));
    };
    let findings = findings.clone();
    Trial::test(format!("{}::{name}", defect.name()), move || {
        let verdict = seeker.judge(defect);
        let found = matches!(verdict, Verdict::Broken(_) | Verdict::Hung(_));
        findings.push(Found { by: name, defect, verdict: verdict.clone() });
        // A failure elsewhere would say nothing about the case.
        if found { Ok(()) } else { Err(format!("not found: {verdict}").into()) }
    })
}

impl Seeker {
    fn name(self) -> &'static str {
        match self {
            Self::Case(case) => case.name(),
            Self::Sweep(operation) => operation.name(),
        }
    }

    fn judge(self, defect: Defect) -> Verdict {
        let limits = Limits { stuck: Duration::from_secs(20), ..Limits::default() };
        match self {
            Self::Case(case) => conformance::run(&subject(defect), case, limits),
            Self::Sweep(operation) => sweep(&subject(defect), operation).0,
        }
    }
}

/// Or the wrapper, and not the defect, could be what is found.
fn everything_passes_without_a_defect() -> Result<(), Failed> {
    for seeker in seekers() {
        match seeker.judge(Defect::Nothing) {
            Verdict::Passed => {}
            other => return Err(format!("{}: {other}", seeker.name()).into()),
        }
    }
    // Its records follow what happens a moment late, which a sweep would find.
    for case in cases() {
        match Seeker::Case(case).judge(Defect::NothingButARecordOfItsOwn) {
            Verdict::Passed => {}
            other => return Err(format!("{} with a record of its own: {other}", case.name()).into()),
        }
    }
    Ok(())
}

fn no_defect_is_left_without_a_case() -> Result<(), Failed> {
    let caught: Vec<_> = seekers().filter_map(|seeker| Defect::caught_by(seeker.name())).collect();
    match Defect::all().iter().find(|defect| !caught.contains(defect)) {
        None => Ok(()),
        Some(idle) => Err(format!("{} is caught by no case", idle.name()).into()),
    }
}

impl Findings {
    fn push(&self, found: Found) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(found);
    }
}

/// One line for each case and each operation that ran.
impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for seeker in seekers() {
            for Found { by, defect, verdict } in all.iter().filter(|found| found.by == seeker.name()) {
                writeln!(f, "{by} catches {}: {verdict}", defect.name())?;
            }
        }
        let missing = seekers().filter(|seeker| Defect::caught_by(seeker.name()).is_none()).count();
        writeln!(f, "{} cases and operations with the broken locker they catch, {missing} without one", all.len())
    }
}
