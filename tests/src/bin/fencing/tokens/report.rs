//! What was measured, and the verdict.

use std::{collections::BTreeMap, process::ExitCode};

use super::{
    Plan,
    faults::Counts,
    judge::{Regression, Verdict},
    variants::Caught,
    way::Way,
    witness::Hold,
};

/// How many of a kind are told in full.
const TOLD: usize = 10;

pub(crate) struct Report {
    pub(super) plan: Plan,
    pub(super) faults: Counts,
    pub(super) by_way: BTreeMap<Way, usize>,
    pub(super) verdict: Verdict,
    pub(super) caught: Caught,
    pub(super) server: u32,
}

impl Report {
    pub(crate) fn print(self) -> ExitCode {
        let Self { plan, faults, by_way, verdict, caught, server } = self;
        for Regression { older, newer } in verdict.regressions.iter().take(TOLD) {
            eprintln!("fencing: {} came after {}", told(newer), told(older));
        }
        for (one, other) in verdict.two_holders.iter().take(TOLD) {
            eprintln!("fencing: {} was in beside {}", told(other), told(one));
        }
        for missed in &caught.missed {
            eprintln!("fencing: variant {missed}");
        }
        let unseen: Vec<_> =
            Way::MEASURED.iter().filter(|way| !by_way.contains_key(way)).map(|way| way.name()).collect();
        if !unseen.is_empty() {
            eprintln!("fencing: never granted: {}", unseen.join(", "));
        }
        println!(
            r#"{{"mode":"tokens","grants":{},"released":{},"by":{},"faults":{},"regressions":{},"two_holders":{},"variants_caught":"{}/{}","postgres":{server},"seed":{}}}"#,
            verdict.grants,
            verdict.released,
            object(by_way.iter().map(|(way, count)| (way.name(), *count))),
            object(faults.iter().map(|(fault, count)| (fault.name(), *count))),
            verdict.regressions.len(),
            verdict.two_holders.len(),
            caught.all - caught.missed.len(),
            caught.all,
            plan.seed,
        );
        let holds = verdict.regressions.is_empty() && verdict.two_holders.is_empty() && caught.missed.is_empty();
        match (holds, unseen.is_empty()) {
            (false, _) => ExitCode::FAILURE,
            (true, false) => ExitCode::from(3),
            (true, true) => ExitCode::SUCCESS,
        }
    }
}

fn object(counts: impl Iterator<Item = (&'static str, usize)>) -> String {
    let counts: Vec<_> = counts.map(|(name, count)| format!("\"{name}\":{count}")).collect();
    format!("{{{}}}", counts.join(","))
}

fn told(hold: &Hold) -> String {
    let Hold { id, way, asked, token } = hold;
    format!("token {token:032x} ({}, process {}, hold {}, asked at {asked})", way.name(), id >> 32, id & 0xffff_ffff)
}
