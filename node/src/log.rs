//! What a running vswitch says: one event per line on standard error, as text or JSON.
//!
//! ```text
//!   info, warn, error, tracing's macros --event--> Sink --a line--> outlet --> standard error
//!                                                    '--an error: remembered for `bulkhead status`
//! ```
//!
//! Events are [`tracing`]'s, with fields where a program may want to know more than a person: `port`, `generation`. As text an event
//! is a time, a level and its message, for people; as JSON it is an object, with what an operator should do in `help`. Only the control
//! threads log; the packet path does not, and the dataplane's crate does not know of this. Events of other crates are left out: a client
//! library's words about its connections are told by `SourceHealth` in ours.
//!
//! The summaries go to standard output from here as well: neither stream may keep the threads that enforce waiting ([`outlet`]).
//!
//! [`outlet`]: super::outlet

use std::fmt::{Debug, Display};
use std::io;
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::SystemTime;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::outlet::{Faults, LAST_WAIT, Outlet};
use crate::args::LogFormat;

/// Events that wait for a slow reader: an incident's worth, 100 KB or so.
const WAITING_EVENTS: usize = 1024;

/// Summaries that wait for a slow reader. Those of a large node have megabytes.
const WAITING_SUMMARIES: usize = 8;

/// What an event's target begins with when it is ours.
const OWN: &str = "bulkhead";

/// How much is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verbosity {
    /// What keeps the vswitch from doing what it was told.
    Error,
    /// And what to look at.
    Warning,
    /// And what was meant to happen.
    #[default]
    Info,
}

/// How events are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogConfig {
    /// For people or for programs.
    pub format: LogFormat,
    /// How much is said.
    pub level: Verbosity,
}

/// Has events written like this from now on. Once in a process; before it, and in tests, nothing is written.
pub(crate) fn start(config: LogConfig) {
    // An error means that it was started before, which stays.
    let _ = CONFIG.set(config);
    let _ = tracing::subscriber::set_global_default(Sink);
}

static CONFIG: OnceLock<LogConfig> = OnceLock::new();

fn config() -> LogConfig {
    CONFIG.get().copied().unwrap_or_default()
}

/// Something that was meant to happen.
pub(crate) fn info(text: &(impl Display + ?Sized)) {
    tracing::info!("{text}");
}

/// Something to look at; the vswitch goes on.
pub(crate) fn warn(text: &(impl Display + ?Sized)) {
    tracing::warn!("{text}");
}

/// Something that keeps the vswitch from doing what it was told.
pub(crate) fn error(text: &(impl Display + ?Sized)) {
    tracing::error!("{text}");
}

/// The last error that was said: when, as RFC 3339, and what.
pub(super) fn last_error() -> Option<(String, String)> {
    last_told().clone()
}

fn last_told() -> MutexGuard<'static, Option<(String, String)>> {
    static LAST: Mutex<Option<(String, String)>> = Mutex::new(None);
    LAST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The error that ends the process: as text in the form that every subcommand has.
pub(crate) fn last(error: &anyhow::Error) {
    let text = bulkhead_answers::output::told(error);
    match config().format {
        LogFormat::Text => errors().put(format!("error: {text}\n")),
        LogFormat::Json => errors().put(stamped(Verbosity::Error, &text, Map::new())),
    }
}

/// Has a summary printed.
pub(crate) fn print(summary: String) {
    output().put(summary);
}

/// Waits until everything is printed, but not for a reader that reads nothing.
pub(crate) fn finish() {
    // What cannot be printed is an event.
    if !output().finish(LAST_WAIT) {
        warn("standard output is not read: the summary was not printed");
    }
    errors().finish(LAST_WAIT);
}

/// Where events go. Spans are ignored: no event of ours is in one.
struct Sink;

impl Subscriber for Sink {
    /// Whether it is an event of ours. All that a place in the code decides is in its metadata, so the answer is remembered for each place.
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::INFO && metadata.target().starts_with(OWN)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }

    /// Not called, because no span is enabled.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let config = config();
        let level = match *event.metadata().level() {
            Level::ERROR => Verbosity::Error,
            Level::WARN => Verbosity::Warning,
            _ => Verbosity::Info,
        };
        let mut parts = Parts::default();
        event.record(&mut parts);
        if level == Verbosity::Error {
            let now = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
            *last_told() = Some((now, parts.message.clone()));
        }
        if level <= config.level {
            errors().put(stamped(level, &parts.message, parts.fields));
        }
    }
}

/// What an event says.
#[derive(Default)]
struct Parts {
    message: String,
    fields: Map<String, Value>,
}

impl Parts {
    fn add(&mut self, field: &Field, value: impl Into<Value>) {
        self.fields.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Parts {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            _ => self.add(field, format!("{value:?}")),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value);
    }
}

fn errors() -> &'static Outlet {
    static OUTLET: OnceLock<Outlet> = OnceLock::new();
    OUTLET.get_or_init(|| {
        let missed = |count| {
            let text = format!("{count} events were lost: standard error was not read in time");
            stamped(Verbosity::Warning, &text, Map::new())
        };
        // When standard error is gone there is nobody to tell.
        let faults = Faults { missed, failed: |_| {} };
        Outlet::start("stderr", io::stderr().as_fd().try_clone_to_owned(), WAITING_EVENTS, faults)
    })
}

fn output() -> &'static Outlet {
    static OUTLET: OnceLock<Outlet> = OnceLock::new();
    OUTLET.get_or_init(|| {
        let missed = |count| {
            // Not among the summaries, which are a program's input.
            warn(&format!("standard output was not read in time: {count} summaries were not printed"));
            String::new()
        };
        // Whoever reads the output may be gone; that is no reason to stop forwarding.
        let faults = Faults { missed, failed: |fault| error(&format!("cannot print the summary: {fault}")) };
        Outlet::start("stdout", io::stdout().as_fd().try_clone_to_owned(), WAITING_SUMMARIES, faults)
    })
}

fn stamped(level: Verbosity, text: &str, fields: Map<String, Value>) -> String {
    let now = humantime::format_rfc3339_millis(SystemTime::now());
    match config().format {
        LogFormat::Text => as_text(&now, level, text),
        LogFormat::Json => as_json(&now, level, text, fields),
    }
}

const fn name(level: Verbosity) -> &'static str {
    match level {
        Verbosity::Error => "error",
        Verbosity::Warning => "warning",
        Verbosity::Info => "info",
    }
}

/// An event may have several lines: those after the first are indented, so that each event starts with a time. The fields are in
/// the message, in words.
fn as_text(time: &impl Display, level: Verbosity, text: &str) -> String {
    let mut lines = text.lines().map(bulkhead_answers::output::printable);
    let mut out = format!("{time} {}: {}\n", name(level), lines.next().unwrap_or_default());
    for more in lines {
        out.push_str("  ");
        out.push_str(&more);
        out.push('\n');
    }
    out
}

/// One line: `time`, `level`, `message`, then the event's fields, then `help` where the message has some.
fn as_json(time: &impl Display, level: Verbosity, text: &str, fields: Map<String, Value>) -> String {
    let (help, message): (Vec<&str>, Vec<&str>) =
        text.lines().partition(|line| line.trim_start().starts_with("help: "));
    let mut event = Map::new();
    event.insert("time".into(), time.to_string().into());
    event.insert("level".into(), name(level).into());
    event.insert("message".into(), message.join("\n").into());
    event.extend(fields);
    if !help.is_empty() {
        let help: Vec<&str> = help.into_iter().filter_map(|line| line.trim_start().strip_prefix("help: ")).collect();
        event.insert("help".into(), help.join("\n").into());
    }
    format!("{}\n", Value::Object(event))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_starts_with_its_time_and_cannot_forge_another_one() {
        assert_eq!(as_text(&"T", Verbosity::Info, "ready"), "T info: ready\n");
        let text = "a\nT info: b\u{1b}[2J";
        assert_eq!(as_text(&"T", Verbosity::Error, text), "T error: a\n  T info: b\\u{1b}[2J\n");
        let json = as_json(&"T", Verbosity::Error, text, Map::new());
        assert_eq!(json.lines().count(), 1, "{json}");
        let event: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(event["message"], text);
    }

    #[test]
    fn an_event_for_programs_has_its_fields_and_what_to_do_apart() {
        let fields = Map::from_iter([("port".to_owned(), "x/a".into()), ("generation".to_owned(), 7.into())]);
        let json = as_json(&"T", Verbosity::Warning, "it failed: why\nmore\nhelp: do this\n  help: or that", fields);
        let expected = r#"{"time":"T","level":"warning","message":"it failed: why\nmore","port":"x/a","generation":7,"help":"do this\nor that"}"#;
        assert_eq!(json.trim_end(), expected);
    }
}
