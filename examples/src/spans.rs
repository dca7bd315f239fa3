use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

/// Keeps every span and event, and prints them as a tree: a layer for the registry of `tracing-subscriber`. What a backend for traces
/// does, without the backend. Clones are one and the same.
#[derive(Clone, Debug, Default)]
pub struct Spans(Arc<Mutex<Vec<Node>>>);

/// A span or an event.
#[derive(Debug)]
struct Node {
    parent: Option<usize>,
    text: String,
    time: Time,
}

#[derive(Clone, Copy, Debug)]
enum Time {
    Since(Instant),
    Took(Duration),
    Event,
}

/// Where the node of a span is.
#[derive(Clone, Copy, Debug)]
struct Place(usize);

impl Spans {
    fn nodes(&self) -> MutexGuard<'_, Vec<Node>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, parent: Option<Place>, text: String, time: Time) -> Place {
        let mut nodes = self.nodes();
        nodes.push(Node { parent: parent.map(|place| place.0), text, time });
        Place(nodes.len() - 1)
    }
}

/// In the order in which they began, each below its parent.
impl fmt::Display for Spans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = self.nodes();
        let mut open: Vec<_> = (0..nodes.len()).rev().filter(|n| nodes[*n].parent.is_none()).map(|n| (n, 0)).collect();
        while let Some((n, depth)) = open.pop() {
            let Node { text, time, .. } = &nodes[n];
            let indent = "  ".repeat(depth);
            match time {
                Time::Event => writeln!(f, "{indent}* {text}")?,
                Time::Since(_) => writeln!(f, "{indent}{text} (still open)")?,
                Time::Took(took) => writeln!(f, "{indent}{text} ({took:.1?})")?,
            }
            open.extend((n + 1..nodes.len()).rev().filter(|m| nodes[*m].parent == Some(n)).map(|m| (m, depth + 1)));
        }
        Ok(())
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let parent = span.parent().and_then(|parent| parent.extensions().get::<Place>().copied());
        let mut text = Text(span.name().to_owned());
        attributes.record(&mut text);
        let place = self.add(parent, text.0, Time::Since(Instant::now()));
        span.extensions_mut().insert(place);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let mut text = Text::default();
        values.record(&mut text);
        let Some(span) = context.span(id) else { return };
        if let Some(place) = span.extensions().get::<Place>() {
            self.nodes()[place.0].text.push_str(&text.0);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        let parent = context.event_span(event).and_then(|span| span.extensions().get::<Place>().copied());
        self.add(parent, text.0, Time::Event);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        if let Some(place) = span.extensions().get::<Place>() {
            let time = &mut self.nodes()[place.0].time;
            if let Time::Since(start) = *time {
                *time = Time::Took(start.elapsed());
            }
        }
    }
}

/// Fields, each after a space.
#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _written = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::{info, info_span};
    use tracing_subscriber::layer::SubscriberExt;

    #[tokio::test(start_paused = true)]
    async fn spans_stand_below_their_parents_with_fields_and_durations() {
        let spans = Spans::default();
        let _local = tracing::subscriber::set_default(tracing_subscriber::registry().with(spans.clone()));
        let call = info_span!("call", key = "a", outcome = tracing::field::Empty);
        let other = info_span!("other");
        let below = info_span!(parent: &call, "below");
        below.in_scope(|| info!(queue = 2, "waiting"));
        tokio::time::advance(Duration::from_millis(20)).await;
        drop(below);
        call.record("outcome", "acquired");
        tokio::time::advance(Duration::from_millis(10)).await;
        drop(call);
        let expected = "call key=\"a\" outcome=\"acquired\" (30.0ms)\n  below (20.0ms)\n    * INFO waiting queue=2\nother (still open)\n";
        assert_eq!(spans.to_string(), expected);
        drop(other);
    }
}
