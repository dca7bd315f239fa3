//! Whether what the example `observability` printed shows what it is to show. Looks at the text alone, as a reader does.

use distributed_lock::telemetry::{Metric, MetricKind};

/// The first line when the locks are in memory.
pub const IN_MEMORY: &str = "the locks are in memory";

/// Above the gauges that were read while one service held and the other waited.
pub const MEANWHILE: &str = "== gauges while one holds and the other waits";

/// Above the page that Prometheus would fetch.
pub const PAGE: &str = "== the page for Prometheus";

/// Above the spans.
pub const SPANS: &str = "== spans";

/// Those that tell of connections and of what is under way to a server. In memory there is neither; on PostgreSQL all are told.
pub const OF_CONNECTIONS: [Metric; 8] = [
    Metric::Saturations,
    Metric::Ghosts,
    Metric::Connections,
    Metric::ConnectionRequests,
    Metric::ConnectionWait,
    Metric::ConnectionCreate,
    Metric::ConnectionTimeouts,
    Metric::Lanes,
];

/// What is over when the program ends, so that anything but zero is a leak.
const AT_REST: [Metric; 3] = [Metric::Held, Metric::Waiting, Metric::Leading];

/// What is missing or wrong, one line each.
#[must_use]
pub fn faults(printed: &str) -> Vec<String> {
    let in_memory = printed.lines().next() == Some(IN_MEMORY);
    let [meanwhile, page, spans] = [MEANWHILE, PAGE, SPANS].map(|heading| section(printed, heading));
    let mut faults = Vec::new();
    let mut rule = |holds: bool, fault: String| {
        if !holds {
            faults.push(fault);
        }
    };

    for metric in Metric::ALL.iter().filter(|metric| !(in_memory && OF_CONNECTIONS.contains(metric))) {
        let row = metric.row();
        let told = match row.kind {
            MetricKind::Histogram => sum(page, &format!("{}_count", row.facade)).is_some_and(|count| count > 0.0),
            MetricKind::Counter => sum(page, row.facade).is_some_and(|count| count > 0.0),
            _ => sum(page, row.facade).is_some(),
        };
        rule(told, format!("the page has no {}: {}", row.facade, row.help));
    }
    for metric in AT_REST {
        let name = metric.row().facade;
        let left = sum(page, name).unwrap_or_default();
        rule(left == 0.0, format!("{name} is {left} after the end"));
    }
    for metric in [Metric::Held, Metric::Waiting] {
        let name = metric.row().facade;
        let then = sum(meanwhile, name).unwrap_or_default();
        rule(then >= 1.0, format!("{name} was {then} while one held and the other waited"));
    }

    let names_holder = |line: &str| line.contains("waiting for ") && line.contains(r#": "billing" "#);
    // A look that took long may be explained too; the wait came after it.
    match spans.lines().rfind(|line| names_holder(line)) {
        None => rule(false, "no line says that a waiter waits for \"billing\"".to_owned()),
        Some(line) => {
            // PostgreSQL knows its own process of the holder and where the holder is; in memory both are this process.
            let who = if in_memory { &["holder.process="][..] } else { &["holder.session=", "holder.host="] };
            let fields = ["holder.application_name=", "holder.held_for=", "queue="];
            for field in fields.iter().chain(who) {
                rule(line.contains(field), format!("what the waiter is told has no {field}"));
            }
            rule(!line.contains("queue=0"), "the waiter does not see itself in the queue".to_owned());
        }
    }
    for name in ["lock.acquire", "lock.hold", "lock.release", "lease.term"] {
        let shown = |line: &str| line.trim_start().split(' ').next() == Some(name) && line.ends_with("s)");
        rule(spans.lines().any(shown), format!("no span {name} with its duration"));
    }
    faults
}

/// What stands under the heading, up to the next one.
fn section<'a>(printed: &'a str, heading: &str) -> &'a str {
    let start = printed.find(&format!("{heading}\n")).map_or(printed.len(), |at| at + heading.len() + 1);
    let rest = &printed[start..];
    &rest[..rest.find("\n== ").unwrap_or(rest.len())]
}

/// Over all series of that name; `None` if there is none.
fn sum(page: &str, name: &str) -> Option<f64> {
    let value = |line: &str| -> Option<f64> {
        let rest = line.strip_prefix(name)?;
        let labels_or_value = rest.starts_with('{') || rest.starts_with(' ');
        labels_or_value.then(|| line.rsplit_once(' ')?.1.parse().ok())?
    };
    page.lines().filter_map(value).fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_one_name_are_added_and_those_of_longer_names_are_not() {
        let page = "# TYPE a counter\na{x=\"y z\"} 2\na{x=\"z\"} 3\na_total 7\n";
        assert_eq!((sum(page, "a"), sum(page, "a_total"), sum(page, "b")), (Some(5.0), Some(7.0), None));
    }

    #[test]
    fn section_ends_where_the_next_one_begins() {
        let printed = "store\n\n== one\na\nb\n\n== two\nc\n";
        assert_eq!((section(printed, "== one"), section(printed, "== two")), ("a\nb\n", "c\n"));
        assert_eq!(section(printed, "== three"), "");
    }
}
