//! The labels that all measurements of a telemetry share: which locker, and which class of locks.

use std::sync::{Arc, PoisonError, RwLock};

use super::Telemetry;
use crate::InvalidInput;

/// Of a class that a configuration gives, in characters.
const LONGEST_CLASS: usize = 40;

/// What of the labels stays the same, and what was made for them.
#[derive(Debug, Default)]
pub(super) struct Series {
    pub(super) backend: Option<Arc<str>>,
    pub(super) class: Option<Arc<str>>,
    /// Nothing goes to the facade `metrics`.
    pub(super) off_facade: bool,
    /// The same of each class that was asked for. There are only a few.
    classes: RwLock<Vec<(&'static str, Telemetry)>>,
    #[cfg(feature = "metrics")]
    pub(super) keys: super::facade::Keys,
    #[cfg(feature = "otel")]
    pub(super) meter: Option<Arc<super::otel::Instruments>>,
}

impl Series {
    /// Labels for spans.
    pub(super) fn quiet() -> Self {
        Self { off_facade: true, ..Self::default() }
    }

    pub(super) fn like(&self, backend: Option<Arc<str>>, class: Option<Arc<str>>) -> Arc<Self> {
        Arc::new(Self {
            backend,
            class,
            off_facade: self.off_facade,
            #[cfg(feature = "otel")]
            meter: self.meter.clone(),
            ..Self::default()
        })
    }

    #[cfg(feature = "otel")]
    pub(super) fn with_meter(&self, meter: &opentelemetry::metrics::Meter) -> Arc<Self> {
        let meter = Some(Arc::new(super::otel::Instruments::new(meter)));
        let (backend, class) = (self.backend.clone(), self.class.clone());
        Arc::new(Self { backend, class, off_facade: self.off_facade, meter, ..Self::default() })
    }

    /// Whether there is something that measurements go to.
    pub(super) fn is_measured(&self) -> bool {
        #[cfg(feature = "otel")]
        let has_meter = self.meter.is_some();
        #[cfg(not(feature = "otel"))]
        let has_meter = false;
        has_meter || (cfg!(feature = "metrics") && !self.off_facade)
    }

    pub(super) fn of_class(&self, class: &'static str) -> Telemetry {
        let known =
            |classes: &[(&str, Telemetry)]| classes.iter().find(|(name, _)| *name == class).map(|(_, of)| of.clone());
        if let Some(of) = known(&self.classes.read().unwrap_or_else(PoisonError::into_inner)) {
            return of;
        }
        let mut classes = self.classes.write().unwrap_or_else(PoisonError::into_inner);
        // Somebody else may have been quicker.
        known(&classes).unwrap_or_else(|| {
            let of = Telemetry::of(self.like(self.backend.clone(), Some(class.into())));
            classes.push((class, of.clone()));
            of
        })
    }
}

/// A class that is given when the program runs.
///
/// # Errors
/// For text that is none, with the text, if it is not too long to show, and the rule.
pub(super) fn class(text: &str) -> Result<Arc<str>, InvalidInput> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    let length = text.chars().count();
    if is_plain && (1..=LONGEST_CLASS).contains(&length) {
        return Ok(text.into());
    }
    let rule = format!("must be 1 to {LONGEST_CLASS} characters of a-z, A-Z, 0-9, \".\", \"_\" and \"-\"");
    Err(match length <= LONGEST_CLASS {
        true => InvalidInput::new("class", format_args!("{text:?}"), &rule),
        false => InvalidInput::new("class", format_args!("{length} characters"), &rule),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_is_short_plain_text_and_anything_else_is_refused_with_the_value_and_the_rule() {
        for text in ["a", "billing", "Order-2.archive_x", &"x".repeat(LONGEST_CLASS)] {
            assert_eq!(&*class(text).unwrap(), text);
        }
        let rule = "must be 1 to 40 characters of a-z, A-Z, 0-9, \".\", \"_\" and \"-\"";
        for (text, shown) in [
            ("", "\"\""),
            (" ", "\" \""),
            ("order/4711", "\"order/4711\""),
            ("a\nb", "\"a\\nb\""),
            ("café", "\"café\""),
            ("x{le=\"1\"}", "\"x{le=\\\"1\\\"}\""),
            (&"x".repeat(LONGEST_CLASS + 1), "41 characters"),
            (&"é".repeat(1_000_000), "1000000 characters"),
        ] {
            assert_eq!(class(text).unwrap_err().to_string(), format!("invalid class ({shown}): {rule}"));
        }
    }
}
