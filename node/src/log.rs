//! The log of a running vswitch: one event per line on standard error, as text or JSON.
//!
//! ```text
//!   info, warn, error, tracing's macros --event--> Sink --a line--> outlet --> standard error
//!                                                    '--an error: remembered for `bulkhead status`
//! ```
//!
//! Events are [`tracing`] events; some carry fields for programs, such as `port` and `generation`. A text event has a time, a level and
//! a message. A JSON event is an object with the remedy in `help`. Only the control threads log; the packet path never does.
//! Events of other crates are dropped: `SourceHealth` reports connection errors of client libraries.
//!
//! This module also prints the summaries to standard output. Neither stream may block the threads that enforce policy ([`outlet`]).
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

/// Capacity of the queue of events for a slow reader: enough for one incident, about 100 KB.
const WAITING_EVENTS: usize = 1024;

/// Capacity of the queue of summaries for a slow reader. A large node's summary has megabytes.
const WAITING_SUMMARIES: usize = 8;

/// Prefix of the targets of this workspace's events.
const OWN: &str = "bulkhead";

/// The least severe level that is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verbosity {
    /// Only failures to do what the configuration or the state asks for.
    Error,
    /// Also events that an operator should look at.
    Warning,
    /// Also expected events.
    #[default]
    Info,
}

/// Format and level of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogConfig {
    pub format: LogFormat,
    pub level: Verbosity,
}

/// Starts logging with this configuration. Only the first call in a process counts; before it, nothing is logged.
pub(crate) fn start(config: LogConfig) {
    // An error means that logging had started already; the first configuration stays.
    let _ = CONFIG.set(config);
    let _ = tracing::subscriber::set_global_default(Sink);
}

static CONFIG: OnceLock<LogConfig> = OnceLock::new();

fn config() -> LogConfig {
    CONFIG.get().copied().unwrap_or_default()
}

/// Logs an expected event.
pub(crate) fn info(text: &(impl Display + ?Sized)) {
    tracing::info!("{text}");
}

/// Logs an event that an operator should look at.
pub(crate) fn warn(text: &(impl Display + ?Sized)) {
    tracing::warn!("{text}");
}

/// Logs a failure to do what the configuration or the state asks for.
pub(crate) fn error(text: &(impl Display + ?Sized)) {
    tracing::error!("{text}");
}

/// Returns the time (RFC 3339) and the message of the last logged error. `None` if no error was logged.
pub(super) fn last_error() -> Option<(String, String)> {
    last_told().clone()
}

fn last_told() -> MutexGuard<'static, Option<(String, String)>> {
    static LAST: Mutex<Option<(String, String)>> = Mutex::new(None);
    LAST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Logs the error that ends the process. Text output has the same form as errors of other subcommands.
pub(crate) fn last(error: &anyhow::Error) {
    let text = bulkhead_answers::output::told(error);
    match config().format {
        LogFormat::Text => errors().put(format!("error: {text}\n")),
        LogFormat::Json => errors().put(stamped(Verbosity::Error, &text, Map::new())),
    }
}

/// Enqueues a summary for standard output.
pub(crate) fn print(summary: String) {
    output().put(summary);
}

/// Waits until both streams are written, at most [`LAST_WAIT`] for each.
pub(crate) fn finish() {
    if !output().finish(LAST_WAIT) {
        warn("standard output is not read: the summary was not printed");
    }
    errors().finish(LAST_WAIT);
}

/// Subscriber that writes events to standard error. It ignores spans, because this workspace has none.
struct Sink;

impl Subscriber for Sink {
    /// Returns true for events of this workspace. `tracing` caches the answer per call site.
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

/// Message and fields of one event.
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
        // A failure of standard error itself cannot be logged.
        let faults = Faults { missed, failed: |_| {} };
        Outlet::start("stderr", io::stderr().as_fd().try_clone_to_owned(), WAITING_EVENTS, faults)
    })
}

fn output() -> &'static Outlet {
    static OUTLET: OnceLock<Outlet> = OnceLock::new();
    OUTLET.get_or_init(|| {
        let missed = |count| {
            // Logged instead of printed, because programs read the summaries.
            warn(&format!("standard output was not read in time: {count} summaries were not printed"));
            String::new()
        };
        // Forwarding continues if the reader has closed standard output.
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

/// Formats an event as text, without its fields. Lines after the first are indented, so that a message cannot forge an event.
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

/// Formats an event as one line of JSON: `time`, `level`, `message`, the event's fields, and `help` if the message has remedies.
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
