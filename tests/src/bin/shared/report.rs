//! What was measured, and the verdict.

use std::process::ExitCode;

use serde_json::Value;

/// The line at the end, and what speaks against it.
#[derive(Default)]
pub(crate) struct Report {
    /// In the order in which they were said.
    figures: Vec<String>,
    /// Bounds of figures that were broken: no verdict on a machine that stalled.
    missed: Vec<String>,
    /// What no stall excuses.
    dangers: Vec<String>,
    samples: usize,
    stalled: usize,
}

impl Report {
    pub(crate) fn new(mode: &str, rounds: usize) -> Self {
        let mut report = Self::default();
        report.say("mode", mode);
        report.say("rounds", rounds);
        report
    }

    pub(crate) fn say(&mut self, name: &str, value: impl Into<Value>) {
        self.figures.push(format!("{}:{}", Value::from(name), value.into()));
    }

    /// To so many digits behind the point.
    pub(crate) fn figure(&mut self, name: &str, value: f64, digits: i32) {
        self.say(name, rounded(value, digits));
    }

    /// One more sample, and whether the machine stalled beside it.
    pub(crate) fn count(&mut self, stalled: bool) {
        self.samples += 1;
        self.stalled += usize::from(stalled);
    }

    /// A figure and the bound that it is to keep. One that was not measured keeps none.
    pub(crate) fn at_most(&mut self, name: &str, value: f64, bound: f64) {
        self.figure(name, value, 3);
        let kept = value <= bound;
        if !kept {
            self.missed.push(format!("{name} is {value:.3}, must be at most {bound}"));
        }
    }

    pub(crate) fn at_least(&mut self, name: &str, value: f64, bound: f64) {
        self.figure(name, value, 2);
        let kept = value >= bound;
        if !kept {
            self.missed.push(format!("{name} is {value:.2}, must be at least {bound}"));
        }
    }

    pub(crate) fn must(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.dangers.push(what());
        }
    }

    pub(crate) fn print(mut self) -> ExitCode {
        self.say("samples", self.samples);
        self.say("stalled", self.stalled);
        for breach in self.dangers.iter().chain(&self.missed) {
            eprintln!("shared: {breach}");
        }
        let void = self.stalled * 10 > self.samples;
        if void {
            eprintln!("shared: the machine stalled in {} of {} samples", self.stalled, self.samples);
        }
        println!("{{{}}}", self.figures.join(","));
        match (self.dangers.is_empty(), void, self.missed.is_empty()) {
            (false, ..) => ExitCode::FAILURE,
            (true, true, _) => ExitCode::from(3),
            (true, false, false) => ExitCode::FAILURE,
            (true, false, true) => ExitCode::SUCCESS,
        }
    }
}

fn rounded(value: f64, digits: i32) -> Value {
    let scale = 10_f64.powi(digits);
    ((value * scale).round() / scale).into()
}

/// The smallest that so many percent are not above; not a number of none.
pub(crate) fn percentile(samples: &mut [f64], percent: usize) -> f64 {
    samples.sort_unstable_by(f64::total_cmp);
    let index = (samples.len() * percent).div_ceil(100).saturating_sub(1);
    samples.get(index).copied().unwrap_or(f64::NAN)
}

/// Of an even number the lower one of the middle.
pub(crate) fn median(samples: &mut [f64]) -> f64 {
    percentile(samples, 50)
}
