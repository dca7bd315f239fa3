//! What was measured, and the verdict.

use std::process::ExitCode;

use tests::lease::clock::millis;

use crate::rounds::Plan;

pub(crate) struct Figures {
    plan: Plan,
    rounds: usize,
    stalled: usize,
    /// Of the rounds without a stall, in ns.
    latencies: Vec<i64>,
    overlap_max: i64,
    early_grants: usize,
    false_losses: usize,
}

/// One round.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) latency: i64,
    /// For how long the former holder still worked when the next one led; negative if it did not.
    pub(crate) overlap: i64,
    /// The next one led before the former holder's deadline, which it could rely on.
    pub(crate) early: bool,
    pub(crate) stalled: bool,
}

impl Figures {
    pub(crate) fn new(plan: Plan) -> Self {
        Self { plan, rounds: 0, stalled: 0, latencies: Vec::new(), overlap_max: 0, early_grants: 0, false_losses: 0 }
    }

    pub(crate) fn add(&mut self, round: &Round) {
        self.rounds += 1;
        self.overlap_max = self.overlap_max.max(round.overlap);
        self.early_grants += usize::from(round.early);
        if round.stalled {
            self.stalled += 1;
        } else {
            self.latencies.push(round.latency);
        }
    }

    /// A loss that nothing was done to bring about.
    pub(crate) fn add_false_loss(&mut self) {
        self.false_losses += 1;
    }

    pub(crate) fn report(mut self) -> ExitCode {
        self.latencies.sort_unstable();
        let [p50, p90, max] = [50, 90, 100].map(|percent| percentile(&self.latencies, percent));
        let bound = self.plan.bound();
        let Self { rounds, stalled, overlap_max, early_grants, false_losses, .. } = self;
        let overlap_ms_max = millis(overlap_max);
        println!(
            r#"{{"mode":"{}","locker":"{}","rounds":{rounds},"stalled":{stalled},"p50_ms":{p50:.1},"p90_ms":{p90:.1},"max_ms":{max:.1},"bound_ms":{bound:.1},"overlap_ms_max":{overlap_ms_max:.1},"early_grants":{early_grants},"false_losses":{false_losses}}}"#,
            self.plan.mode.name(),
            self.plan.locker,
        );
        if overlap_max > 0 || early_grants > 0 || false_losses > 0 {
            eprintln!("lease: two worked at a time, or a lease was lost for nothing");
            return ExitCode::FAILURE;
        }
        if stalled * 10 > rounds {
            eprintln!("lease: the machine stalled in {stalled} of {rounds} rounds: no verdict");
            return ExitCode::from(3);
        }
        let (percent, measured) = if self.plan.mode.is_judged_by_median() { (50, p50) } else { (90, p90) };
        if measured > bound {
            eprintln!("lease: {percent} % must be within {bound:.1} ms");
            return ExitCode::FAILURE;
        }
        ExitCode::SUCCESS
    }
}

/// In ms; the smallest that so many are not above.
fn percentile(sorted: &[i64], percent: usize) -> f64 {
    let index = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(index).map_or(f64::NAN, |nanos| millis(*nanos))
}
