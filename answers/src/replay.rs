//! `bulkhead replay`: judges every packet of captures with a node's tables, at the captured times.
//!
//! Memory is bounded: packets are judged in bursts, the flow table has a maximum number of rows, and the vswitch's tables have a capacity.
//! Flow logs (`--flows`) contain sessions instead of packets, which the vswitches of all nodes judge.

mod flows;
pub mod logged;
mod totals;
mod translated;

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow, bail};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::source;
use bulkhead_dataplane::io::{CaptureError, CaptureReader, CaptureWriter, CapturedPacket, Translation};
use bulkhead_dataplane::{
    Learned, Outcome, PortId, SessionConfig, SessionState, Snapshot, Verdict, Worker, WorkerConfig,
};
use encoding_rs_io::DecodeReaderBytes;
use flate2::read::MultiGzDecoder;
use serde::Serialize;
use serde_json::json;

use self::flows::Flows;
use self::totals::{rate, summary, write_totals};
use self::translated::{Names, Translated};
use crate::args::{Format, Replay};
use crate::destination::{self, DestinationNames};
use crate::output;
use crate::progress::{self, Reading, Unit};
use crate::run::{self, Attribution, Input};

/// Size of the file buffer in bytes: a few system calls per megabyte.
const FILE_BUFFER: usize = 1 << 18;

/// Judges the packets of captures and the sessions of flow logs.
///
/// # Errors
/// If the state or a capture cannot be read, or the state lacks the node.
pub fn run(args: &Replay) -> anyhow::Result<ExitCode> {
    if let Some(node) = args.node.as_deref().filter(|_| !args.captures.is_empty()) {
        captures(args, node)?;
    }
    if !args.flows.is_empty() {
        logged::run(args)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn captures(args: &Replay, node: &str) -> anyhow::Result<()> {
    let input = Input::open(&args.state)?;
    let settings = input.service_settings(args.settings.as_deref())?;
    let (pipeline, services) = run::load_node(&input, node, true)?;
    let name_settings = args.dns.settings(args.verify_server_name);
    let (snapshot, adapter) = run::node_snapshot(&pipeline, &services, &settings, node, &name_settings)?;
    let names = Names::new(adapter);
    let sessions = SessionConfig { tcp_pickup: args.tcp_pickup, ..SessionConfig::default() };
    let mut worker = Worker::new(WorkerConfig { sessions, ..WorkerConfig::default() });
    refuse_to_overwrite_input(args)?;
    let learned = Arc::clone(worker.learned());
    let mut sink = Sink::new(args, &pipeline, &snapshot, (&names, &learned))?;

    let started = Instant::now();
    let mut outcome = Ok(());
    for capture in &args.captures {
        outcome = judge(capture, &snapshot, &mut worker, &mut sink);
        if outcome.is_err() {
            break;
        }
    }
    // Print the results of packets before a damaged place, then the error.
    sink.finish(&worker)?;
    // On standard error, so that standard output is reproducible.
    output::note(&rate(worker.counters().received(), started.elapsed()));
    outcome
}

/// Returns an identification of a file: device and inode, which are equal for all its names. `None` if it does not exist.
#[cfg(unix)]
fn identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// Returns an identification of a file: its path, for systems without inodes. `None` if it does not exist.
#[cfg(not(unix))]
fn identity(path: &Path) -> Option<PathBuf> {
    path.exists().then(|| path.to_owned())
}

/// Refuses to overwrite an input file: creating the output truncates it.
fn refuse_to_overwrite_input(args: &Replay) -> anyhow::Result<()> {
    let Some(output) = args.write.as_ref().and_then(|path| Some((path, identity(path)?))) else { return Ok(()) };
    if let Some(input) = args.captures.iter().find(|input| identity(input).as_ref() == Some(&output.1)) {
        bail!(
            "--write {} would overwrite the capture {}\n  help: choose another output file",
            output.0.display(),
            input.display()
        );
    }
    Ok(())
}

fn judge(path: &Path, snapshot: &Snapshot, worker: &mut Worker, sink: &mut Sink<'_>) -> anyhow::Result<()> {
    let name = path.display().to_string();
    let mut reader = CaptureReader::new(&name, open(path, "capture")?)?;
    let judged =
        bulkhead_dataplane::replay(&mut reader, snapshot, worker, |packet, outcome| sink.take(packet, outcome));
    match judged {
        Ok(_) => Ok(()),
        Err(Stop::Capture(error)) => Err(error.into()),
        Err(Stop::Output(error)) => Err(error),
        Err(Stop::NoReader) => Ok(()),
    }
}

/// Opens a capture or flow log, also one that is compressed by gzip, and a log in UTF-16 with a byte order mark. Begins a progress step that ends with the
/// file. `-` is standard input.
///
/// # Errors
/// If the file is a device or cannot be opened. `what` names it in the message.
pub(crate) fn open(path: &Path, what: &str) -> anyhow::Result<BufReader<Box<dyn Read>>> {
    let name = path.display().to_string();
    let source: Box<dyn Read> = if name == "-" {
        progress::step("reading standard input");
        Box::new(io::stdin().lock())
    } else {
        let file = source::open(path)
            .map_err(|(problem, help)| anyhow!("cannot open the {what} {name}: {problem}\n  help: {help}"))?;
        match file.metadata() {
            Ok(about) if about.is_file() => progress::step_of(&name, about.len(), Unit::Bytes),
            _ => progress::step(format!("reading {name}")),
        }
        Box::new(file)
    };
    let mut reader = BufReader::with_capacity(FILE_BUFFER, Reading(source));
    let start = reader.fill_buf().with_context(|| format!("cannot read the {what} {name}"))?;
    let unpacked: Box<dyn Read> = match start {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(reader)),
        // UTF-16, as PowerShell writes a program's output.
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Box::new(DecodeReaderBytes::new(reader)),
        _ => Box::new(reader),
    };
    Ok(BufReader::with_capacity(FILE_BUFFER, unpacked))
}

/// Why judging a capture stopped.
enum Stop {
    Capture(CaptureError),
    Output(anyhow::Error),
    /// The reader of standard output has exited, and no capture is written.
    NoReader,
}

impl From<CaptureError> for Stop {
    fn from(error: CaptureError) -> Self {
        Self::Capture(error)
    }
}

/// Writes the outcomes of packets as a table or as lines of JSON, and an annotated capture if requested.
struct Sink<'a> {
    pipeline: &'a Pipeline,
    snapshot: &'a Snapshot,
    names: &'a Names,
    learned: &'a Learned,
    form: Form,
    annotated: Option<CaptureWriter<BufWriter<File>>>,
    attributions: Attributions,
    packets: u64,
}

enum Form {
    Text(Flows),
    Json(BufWriter<output::Stdout>),
}

#[derive(Serialize)]
struct Line<'a> {
    packet: u64,
    time: &'a str,
    verdict: &'static str,
    reason: Option<&'static str>,
    #[serde(rename = "in")]
    in_port: Option<&'a str>,
    out: Option<&'a str>,
    #[serde(flatten)]
    attribution: &'a Attribution,
    session: Option<&'static str>,
    /// The audited rule that would deny this new connection. `None` without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    audited_by: Option<String>,
    /// The destination's domain names. `None` if they do not matter for the verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    names: Option<DestinationNames>,
    #[serde(skip_serializing_if = "Option::is_none")]
    translated: Option<Translated>,
}

impl<'a> Sink<'a> {
    fn new(
        args: &Replay,
        pipeline: &'a Pipeline,
        snapshot: &'a Snapshot,
        (names, learned): (&'a Names, &'a Learned),
    ) -> anyhow::Result<Self> {
        let form = match args.output {
            Format::Text => Form::Text(Flows::default()),
            Format::Json => Form::Json(BufWriter::with_capacity(FILE_BUFFER, output::stdout())),
        };
        let open = |path: &PathBuf| {
            let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
            anyhow::Ok(CaptureWriter::new(BufWriter::with_capacity(FILE_BUFFER, file), snapshot.ports())?)
        };
        let annotated = args.write.as_ref().map(open).transpose()?;
        let attributions = Attributions::default();
        Ok(Self { pipeline, snapshot, names, learned, form, annotated, attributions, packets: 0 })
    }

    fn take(&mut self, packet: &CapturedPacket<'_>, outcome: &Outcome) -> Result<(), Stop> {
        self.show(packet, outcome).map_err(Stop::Output)?;
        if self.annotated.is_none() && !output::has_reader() { Err(Stop::NoReader) } else { Ok(()) }
    }

    fn show(&mut self, packet: &CapturedPacket<'_>, outcome: &Outcome) -> anyhow::Result<()> {
        let (attribution, words) = self.attributions.of(self.pipeline, outcome);
        let audited_by = run::origin(self.pipeline, outcome.audited).map(|origin| origin.to_string());
        let names = DestinationNames::of(outcome, self.snapshot, self.learned, packet.time);
        let told = names.as_ref().zip(destination::judged(outcome));
        let told = told.map(|(names, destination)| names.words(destination, packet.time));
        if let Some(writer) = &mut self.annotated {
            let mut comment = comment(outcome, words);
            if let Some(origin) = &audited_by {
                let _ = write!(comment, ", audited: would be denied by {origin}");
            }
            if let Some(names) = &told {
                let _ = write!(comment, ", {names}");
            }
            writer.write(packet, outcome.in_port, outcome.verdict, &comment)?;
        }
        match &mut self.form {
            Form::Text(flows) => flows.count(outcome, self.names.of(outcome), told),
            Form::Json(out) => {
                let time = rfc3339(packet.time);
                let line = Line {
                    packet: self.packets,
                    time: &time,
                    verdict: verdict_name(outcome.verdict),
                    reason: outcome.verdict.drop_reason().map(|reason| reason.name()),
                    in_port: port_name(self.snapshot, outcome.in_port),
                    out: out_port(self.snapshot, outcome).and_then(|port| port_name(self.snapshot, port)),
                    attribution,
                    session: outcome.session.map(session_name),
                    audited_by,
                    names,
                    translated: self.names.of(outcome),
                };
                serde_json::to_writer(&mut *out, &line)?;
                out.write_all(b"\n")?;
            }
        }
        self.packets += 1;
        Ok(())
    }

    fn finish(self, worker: &Worker) -> anyhow::Result<()> {
        if let Some(writer) = self.annotated {
            writer.finish()?.flush()?;
        }
        match self.form {
            Form::Json(mut out) => {
                serde_json::to_writer(&mut out, &json!({ "summary": summary(worker.counters()) }))?;
                out.write_all(b"\n")?;
                out.flush()?;
            }
            Form::Text(flows) => {
                let mut out = BufWriter::new(output::stdout());
                flows.write(self.pipeline, self.snapshot, &mut out)?;
                write_totals(worker.counters(), &mut out)?;
                out.flush()?;
            }
        }
        Ok(())
    }
}

/// Caches the attribution and the text of each origin, by its number.
#[derive(Default)]
struct Attributions {
    none: Attribution,
    by_origin: std::collections::HashMap<u32, (Attribution, String)>,
}

impl Attributions {
    fn of(&mut self, pipeline: &Pipeline, outcome: &Outcome) -> (&Attribution, &str) {
        let Some(id) = outcome.decision.and_then(|decision| decision.origin) else { return (&self.none, "") };
        let (attribution, words) = self.by_origin.entry(id.0).or_insert_with(|| {
            let origin = pipeline.origins().get(id);
            let words = origin.as_ref().map(ToString::to_string).unwrap_or_default();
            (run::attribution(origin), words)
        });
        (attribution, words)
    }
}

/// Returns a one-line packet comment for Wireshark: `drop policy_denied: ingress isolated by default/db`.
pub fn comment(outcome: &Outcome, words: &str) -> String {
    let mut text = verdict_name(outcome.verdict).to_owned();
    if let Some(reason) = outcome.verdict.drop_reason() {
        text.push(' ');
        text.push_str(reason.name());
    }
    if !words.is_empty() {
        text.push_str(": ");
        text.push_str(words);
    }
    if let Some(session) = outcome.session {
        text.push_str(", session ");
        text.push_str(session_name(session));
    }
    if let Some(Translation { src, dst, sport, dport }) = outcome.translation {
        let (from, to) = (SocketAddr::new(src, sport), SocketAddr::new(dst, dport));
        let _ = write!(text, ", translated to {from} > {to}");
    }
    text
}

fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Forward(_) => "forward",
        Verdict::Drop(_) => "drop",
    }
}

fn session_name(session: SessionState) -> &'static str {
    match session {
        SessionState::New => "new",
        SessionState::Hit => "hit",
    }
}

fn port_name(snapshot: &Snapshot, port: PortId) -> Option<&str> {
    snapshot.port(port).map(|port| &*port.name)
}

/// Returns the egress port; for a dropped packet, the port to which its destination is routed. `None` without a route.
fn out_port(snapshot: &Snapshot, outcome: &Outcome) -> Option<PortId> {
    let bound_for = || outcome.flow.and_then(|flow| snapshot.routes().lookup(flow.dst));
    outcome.verdict.out_port().or_else(bound_for)
}

/// Formats nanoseconds since 1970 as RFC 3339. The reader rejects times beyond the year 9999.
pub fn rfc3339(nanoseconds: u64) -> String {
    let time: SystemTime = UNIX_EPOCH + Duration::from_nanos(nanoseconds);
    humantime::format_rfc3339_nanos(time).to_string()
}
