//! `bulkhead why`: explains a past connection, and what has changed since.
//!
//! ```text
//!   journal --state at T--> pipeline --> explain's engine --> verdict then
//!           --changes after T that may matter--> the same pipeline, step by step --> which of them decide otherwise, verdict now
//!           --verdicts around T--> those of these ends
//! ```
//! The answer for T equals that of `explain` at T: same objects, same engine, same text. Decisive changes are found by asking again after
//! each relevant change, instead of interpreting policies. So the answer also names changed labels of a pod or namespace, and changed
//! EndpointSlices of a Service.
//!
//! The journal of a running vswitch is read from its file instead of the admin socket. The file has 64 MB and each record is verified, so a
//! copy made during a write is as good as one left by a crash.

mod changes;
mod seen;
mod time;

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use bulkhead_control::cache::Event;
use bulkhead_control::object::Object;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::source::Strictness;
use serde::Serialize;

use crate::admin::{KeptFiles, Request, ask};
use crate::args::Why;
use crate::journal::{Gap, History, HistoryError, StateAt};
use bulkhead_answers::args::Asked;
use bulkhead_answers::bundle;
use bulkhead_answers::explain::{Answer, Engine};
use bulkhead_answers::output::{self, printable};
use bulkhead_answers::progress;
use bulkhead_answers::run::{self, KnownNames};
use bulkhead_answers::translate::Services;
use changes::Changes;
use seen::Seen;
use time::{clock, rfc3339};

/// Maximum size of a journal in bytes.
const MOST_BYTES: u64 = (1 << 30) + (1 << 20);

/// Prints what happened to a connection at a past time.
///
/// # Errors
/// If the journal cannot be read, or does not cover the time.
pub fn run(args: &Why) -> anyhow::Result<ExitCode> {
    let (file, name, now) = match (&args.journal, &args.bundle) {
        (Some(path), _) => (open(path)?, path.display().to_string(), None),
        (None, Some(path)) => (bundle::open_journal(path)?, path.display().to_string(), None),
        (None, None) => live(args)?,
    };
    let history = History::open(&file).with_context(|| format!("cannot use the journal {name}"))?;
    if history.damage().is_loss() {
        output::warn(&format!("{name} is damaged: {}", history.damage()));
    }
    if history.passed_over() > 0 {
        output::warn(&format!(
            "{name} holds more changes than are read: the {} oldest are passed over\n  \
             help: nothing is known of the time before the others; a smaller journal.megabytes holds no more than are read",
            history.passed_over()
        ));
    }
    let at = time::parse(&args.at, now.unwrap_or_else(|| history.ends()))?;
    let told = told(&history, args, (at, now), &name);
    if let Some(fault) = history.fault() {
        bail!("cannot read the journal {name}: {fault}");
    }
    let told = told?;
    output::answer(args.output, &told, |out| told.write(out))?;
    Ok(ExitCode::from(u8::from(!told.then.answer.is_allowed())))
}

/// Returns the running vswitch's journal, its path, and the current time.
fn live(args: &Why) -> anyhow::Result<(File, String, Option<u64>)> {
    let kept: KeptFiles = ask(&args.socket, &Request::KeptFiles)?;
    let path = kept.journal.context(
        "the vswitch keeps no journal\n  help: set journal.folder in its configuration; dataplane: nftables does not support a journal",
    )?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok((open(&path)?, path.display().to_string(), Some(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))))
}

/// Opens a journal file.
///
/// # Errors
/// If the file cannot be opened, is no regular file, or is too large.
pub fn open(path: &Path) -> anyhow::Result<File> {
    let name = path.display();
    let file = File::open(path).with_context(|| {
        format!(
            "cannot open the journal {name}\n  help: if the vswitch runs in a container, copy the file out and pass it with --journal"
        )
    })?;
    progress::step(format!("reading {name}"));
    let about = file.metadata().with_context(|| format!("cannot read the journal {name}"))?;
    let help = "pass the file journal-NODE of journal.folder, or a copy of it";
    if !about.is_file() {
        bail!("{name} is not a regular file, and a journal is read several times\n  help: {help}");
    }
    if about.len() > MOST_BYTES {
        bail!("{name} is not a journal: it exceeds {MOST_BYTES} bytes\n  help: {help}");
    }
    Ok(file)
}

/// Returns the verdict on the connection in a state.
fn answer(engine: &Engine, state: &StateAt, asked: &Asked) -> anyhow::Result<Answer> {
    engine.answer(&mut services(&engine.pipeline, state), asked)
}

/// Compiles a state without its Services. `known` has the addresses of domain names in its policies.
fn pipeline(state: &StateAt, known: &KnownNames) -> anyhow::Result<Pipeline> {
    let empty = Pipeline::without_tables(state.settings.isolation);
    let mut pipeline = empty.auditing(state.settings.enforcement);
    let needs_services = has_foreign(state);
    let objects = state.objects.objects().filter(|object| needs_services || !is_of_services(object)).cloned();
    pipeline.resync(objects.map(|object| known.resolve(object)))?;
    pipeline.attach(state.attached.clone())?;
    Ok(pipeline)
}

fn services(pipeline: &Pipeline, state: &StateAt) -> Services {
    let objects = match &state.settings.services {
        Some(_) => state.objects.objects().filter(|object| is_of_services(object)).cloned().collect(),
        None => Vec::new(),
    };
    Services::new(pipeline, objects, state.settings.services.clone().unwrap_or_default())
}

const fn is_of_services(object: &Object) -> bool {
    matches!(object, Object::Service(_) | Object::EndpointSlice(_))
}

/// Whether the state has policies of other products, which may name Services.
fn has_foreign(state: &StateAt) -> bool {
    state.objects.objects().any(|object| matches!(object, Object::Foreign(_)))
}

/// Whether the event's object is a Service or an endpoint slice. Only policies of other products depend on these.
const fn is_event_of_services(event: &Event) -> bool {
    match event {
        Event::Apply(object) => is_of_services(object),
        Event::DeleteService(_) | Event::DeleteEndpointSlice(_) => true,
        _ => false,
    }
}

/// The answer of `why`: the verdict then, the observed traffic, and the changes since.
#[derive(Serialize)]
struct Told {
    node: String,
    /// The requested time, RFC 3339.
    at: String,
    #[serde(skip)]
    time: u64,
    then: Then,
    seen: Seen,
    changes: Changes,
    /// Remarks on the requested time, such as: no vswitch ran then.
    remarks: Vec<String>,
}

/// The verdict at the requested time.
#[derive(Serialize)]
struct Then {
    /// When the state of that time took effect, RFC 3339.
    since: String,
    generation: u64,
    /// Whether there was no valid state, so that everything was denied.
    denying: bool,
    #[serde(flatten)]
    answer: Answer,
    #[serde(skip)]
    text: String,
}

fn told(history: &History<'_>, args: &Why, (at, now): (u64, Option<u64>), name: &str) -> anyhow::Result<Told> {
    let end = now.unwrap_or_else(|| history.ends());
    if at > end {
        bail!("{} is in the future: the journal ends at {}", rfc3339(at), rfc3339(end));
    }
    let mut state = history.state_at(at).map_err(|error| refused(error, at, name))?;
    let asked = &args.asked;
    let judge = |known: &KnownNames| {
        let engine = Engine { pipeline: pipeline(&state, known)?, strictness: Strictness::Lenient };
        let then = answer(&engine, &state, asked).with_context(|| format!("by the state of {}", rfc3339(at)))?;
        anyhow::Ok((engine, then))
    };
    let (mut engine, mut then) = judge(&KnownNames::default())?;
    let (seen, known) = seen::find(history, args, &then, at);
    let mut remarks = remarks(history, at, state.is_denying);
    if !known.is_empty() || run::unknown_names(&engine.pipeline).is_some() {
        remarks.push(remark_on_names(&known).to_owned());
    }
    if !known.is_empty() {
        (engine, then) = judge(&known)?;
    }
    let mut text = Vec::new();
    then.write(&engine.pipeline, &mut text)?;
    if state.is_denying {
        then.deny();
    }
    let (since, generation, denying) = (rfc3339(state.since), state.generation, state.is_denying);
    progress::step("looking for changes since then");
    let changes = changes::find(history, (&mut state, engine, &known), &then, asked, end)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let then = Then { since, generation, denying, answer: then, text };
    Ok(Told { node: history.node().to_owned(), at: rfc3339(at), time: at, then, seen, changes, remarks })
}

/// Returns an error for the user that says why the state at `at` is unknown. `name` is the journal's path.
fn refused(error: HistoryError, at: u64, name: &str) -> anyhow::Error {
    let at = rfc3339(at);
    match error {
        HistoryError::Empty => anyhow::anyhow!("the journal contains no state yet\n  help: see `bulkhead status`"),
        HistoryError::Before { begins } => {
            let begins = rfc3339(begins);
            anyhow::anyhow!(
                "the state at {at} is unknown: the journal begins at {begins}\n  \
                 help: ask about a later time; a larger journal.megabytes keeps more history from now on"
            )
        }
        HistoryError::TooLarge => anyhow::anyhow!(
            "{name}: the state at {at} exceeds the size limit and was not read\n  \
             help: the file is damaged or not from a vswitch; try a bundle or journal copy of another time"
        ),
        HistoryError::Gap(Gap { from, until }) => {
            let until = until.map_or_else(|| "to its end".to_owned(), |until| format!("until {}", rfc3339(until)));
            anyhow::anyhow!(
                "the state at {at} is unknown: the journal is damaged or lacks changes from {} {until}",
                rfc3339(from)
            )
        }
    }
}

fn remarks(history: &History<'_>, at: u64, is_denying: bool) -> Vec<String> {
    let mut remarks = Vec::new();
    if let Some((from, until)) = history.pause_at(at) {
        let until = until.map(|until| format!(", until {}", clock(until, at))).unwrap_or_default();
        remarks.push(format!(
            "no vswitch was running at that time, since {}{until}; flows cached in the kernel continued until their lease expired",
            clock(from, at)
        ));
    }
    if is_denying {
        remarks.push(
            "DENY: the vswitch had no valid state, so only the node's own traffic passed; the last valid state follows"
                .into(),
        );
    }
    remarks
}

/// Returns a remark on domain names in policies. `known` has those that the verdict then counts.
fn remark_on_names(known: &KnownNames) -> &'static str {
    if known.is_empty() {
        "a state has no DNS answers, and the verdicts below show no open name of the destination: rules with domain names match no \
         address here"
    } else {
        "a state has no DNS answers: rules with domain names match the destination by the names in the verdicts below"
    }
}

impl Told {
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { node, at, time, then, .. } = self;
        writeln!(
            out,
            "At {at}, by the state in force on node {} since {} (generation {}):",
            printable(node),
            then.since,
            then.generation
        )?;
        self.remarks.iter().try_for_each(|remark| writeln!(out, "{remark}"))?;
        writeln!(out, "\n{}", then.text.trim_end())?;
        self.seen.write(*time, out)?;
        self.changes.write(*time, out)
    }
}

#[cfg(test)]
mod tests;
