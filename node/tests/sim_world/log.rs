//! What the node logs, on standard error with the simulated time, when `SIM_LOG` is set: for looking at one seed.

use std::fmt::{Debug, Write};

use engine::rt;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

pub fn show_if_wanted() {
    if std::env::var_os("SIM_LOG").is_some() {
        // Another test of this process may have done it.
        let _ = tracing::subscriber::set_global_default(Shown);
    }
}

struct Shown;

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl Subscriber for Shown {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        let ms = rt::now().0 / 1_000_000;
        eprintln!(
            "{ms} {} {}{}",
            event.metadata().level(),
            event.metadata().target(),
            line.0
        );
    }

    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
