//! Finds the rules that decided something, from a running vswitch's counters or from sessions in captures and flow logs.

use std::collections::BTreeSet;
use std::io::{BufRead, Read};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use bulkhead_control::object::Object;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::reachability::Reachability;
use bulkhead_control::service::Settings;
use serde::Serialize;

use bulkhead_control::source::Strictness;

use crate::args::{Lint, without_captures};
use crate::dumps::PolicyRow;
use crate::flows::find::Resolved;
use crate::flows::verdict::Judge;
use crate::flows::{self, Observations};
use crate::replay::{self, logged, rfc3339};
use crate::translate::Leg;

/// Maximum size of a policy list in bytes. A node with ten thousand rules has a few megabytes.
const MAX_LIST: u64 = 1 << 28;

/// The period and the sessions that a source of hits covers.
#[derive(Debug, Serialize)]
pub(super) struct Window {
    pub(super) source: String,
    /// Start of the period, RFC 3339; `last` is its end. `None` if the source has no times.
    pub(super) first: Option<String>,
    pub(super) last: Option<String>,
    /// Duration in seconds. `None` if unknown.
    pub(super) seconds: Option<u64>,
    /// Judged sessions of captures and logs. `None` for a vswitch, which counts packets.
    pub(super) sessions: Option<u64>,
    /// Sessions whose deciding rule is unknown. `None` for a vswitch.
    pub(super) unknown: Option<u64>,
}

impl Window {
    /// Returns the source as text: `monday.pcapng (2 h, 2026-11-23T08:00:00Z to .., 120 sessions)`.
    pub(super) fn told(&self) -> String {
        let mut parts = Vec::new();
        parts.extend(self.seconds.map(|seconds| humantime::format_duration(Duration::from_secs(seconds)).to_string()));
        match (&self.first, &self.last) {
            (Some(first), Some(last)) => parts.push(format!("{first} to {last}")),
            (None, Some(last)) => parts.push(format!("until {last}, start unknown")),
            _ => {}
        }
        parts.extend(self.sessions.map(|sessions| format!("{sessions} sessions")));
        parts.extend(self.unknown.filter(|&unknown| unknown > 0).map(|unknown| format!("{unknown} of them unknown")));
        if self.first.is_none() && self.last.is_none() {
            parts.push("period unknown".to_owned());
        }
        format!("{} ({})", self.source, parts.join(", "))
    }
}

/// Counters of a running vswitch.
#[derive(Debug)]
pub struct Running {
    /// Name of the node.
    pub node: String,
    /// Seconds since the vswitch, and thus its counters, started.
    pub uptime_seconds: u64,
    /// Packets allowed and denied by each policy and rule.
    pub policies: Vec<PolicyRow>,
}

/// Reads the counters of the vswitch at this admin socket. A parameter, because this crate opens no sockets.
pub type ReadCounters<'a> = &'a dyn Fn(&Path) -> anyhow::Result<Running>;

/// Origins that decided something, and the periods covered.
#[derive(Default)]
pub(super) struct Hits {
    pub(super) origins: BTreeSet<String>,
    pub(super) windows: Vec<Window>,
}

/// Whether a source has sessions to judge. Sockets have counters instead.
pub(super) fn has_sessions(args: &Lint) -> bool {
    args.hits.iter().any(|path| !is_socket(path))
}

#[cfg(unix)]
fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;

    std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
}

/// Returns false: other systems have no socket files.
#[cfg(not(unix))]
fn is_socket(_path: &Path) -> bool {
    false
}

/// The inputs for judging sessions.
pub(super) struct Judges<'a> {
    /// The state without rules that never decide. `None` if no source has sessions.
    pub(super) deciding: Option<&'a Pipeline>,
    pub(super) strictness: Strictness,
    pub(super) whole: &'a Pipeline,
    pub(super) state: &'a Reachability,
    pub(super) services: &'a [Object],
    pub(super) settings: &'a Settings,
}

/// Reads all sources of hits that the arguments name.
pub(super) fn read(args: &Lint, judges: &Judges<'_>, counters: ReadCounters<'_>) -> anyhow::Result<Hits> {
    let mut hits = Hits::default();
    let (_, captures) = without_captures(&args.hits);
    for path in &args.hits {
        if is_socket(path) {
            hits.live(path, counters(path)?);
            continue;
        }
        let mut seen = Observations::new(args.state.lenient);
        if captures.contains(path) {
            logged::read_capture(path, (args.tcp_pickup, None), &mut seen)?;
        } else {
            let name = path.display().to_string();
            let mut reader = replay::open(path, "source of hits").context(
                "--hits takes an admin socket, the output of `bulkhead policies -o json`, a capture or a flow log",
            )?;
            if is_list(&mut reader).with_context(|| format!("cannot read {name}"))? {
                hits.listed(path, &name, reader)?;
                continue;
            }
            flows::read(&name, reader, &mut seen)?;
        }
        hits.seen(path, seen, judges)?;
    }
    Ok(hits)
}

/// Whether the input is a JSON array. Lines of flow logs are objects or words.
fn is_list(reader: &mut impl BufRead) -> std::io::Result<bool> {
    loop {
        let text = reader.fill_buf()?;
        let blank = text.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        if blank < text.len() || text.is_empty() {
            return Ok(text.get(blank) == Some(&b'['));
        }
        reader.consume(blank);
    }
}

impl Hits {
    fn live(&mut self, socket: &Path, running: Running) {
        self.rows(running.policies);
        let now = SystemTime::now();
        let begin = now.checked_sub(Duration::from_secs(running.uptime_seconds));
        self.windows.push(Window {
            source: format!("node {} at {}", running.node, socket.display()),
            first: begin.map(|begin| humantime::format_rfc3339_seconds(begin).to_string()),
            last: Some(humantime::format_rfc3339_seconds(now).to_string()),
            seconds: Some(running.uptime_seconds),
            sessions: None,
            unknown: None,
        });
    }

    fn rows(&mut self, rows: Vec<PolicyRow>) {
        let counted = rows.into_iter().filter(|row| row.allowed > 0 || row.denied > 0);
        self.origins.extend(counted.map(|row| row.origin));
    }

    /// Reads output of `bulkhead policies -o json`. The period ends at the file's modification time.
    fn listed(&mut self, path: &Path, name: &str, reader: impl Read) -> anyhow::Result<()> {
        let rows: Vec<PolicyRow> = serde_json::from_reader(reader.take(MAX_LIST)).map_err(|error| {
            anyhow::anyhow!(
                "{name}:{}: not the output of `bulkhead policies -o json`: {error}\n  help: create the file again, or pass the vswitch's admin socket",
                error.line()
            )
        })?;
        self.rows(rows);
        let written = std::fs::metadata(path).and_then(|meta| meta.modified()).ok();
        self.windows.push(Window {
            source: name.to_owned(),
            first: None,
            last: written.map(|time| humantime::format_rfc3339_seconds(time).to_string()),
            seconds: None,
            sessions: None,
            unknown: None,
        });
        Ok(())
    }

    /// Judges each session with the rules at both ends.
    fn seen(&mut self, path: &Path, mut seen: Observations, judges: &Judges<'_>) -> anyhow::Result<()> {
        let flows = logged::flows_of(&mut seen)?;
        let state = judges.deciding.context("a state for sessions was read")?;
        let mut judge = Judge::new(state, judges.services.to_vec(), judges.settings.clone(), judges.strictness);
        let (mut first, mut last, mut sessions, mut unknown) = (None::<u64>, None::<u64>, 0, 0);
        for flow in flows {
            let tally = &flow.tally;
            first = first.into_iter().chain(tally.first).min();
            last = last.into_iter().chain(tally.last).max();
            sessions += tally.sessions;
            let legs = match judge.resolve(&flow.conversation)? {
                Resolved::Unknown(_) => {
                    unknown += tally.sessions;
                    continue;
                }
                Resolved::Direct(connection) => vec![Leg::whole(&connection.from, &connection.to, connection.port)],
                Resolved::Translated(_, translation) => {
                    let routes = translation.routes.into_iter().flat_map(|route| route.legs);
                    translation.before.into_iter().chain(routes).collect()
                }
            };
            for leg in &legs {
                self.leg(leg, judges);
            }
        }
        self.windows.push(Window {
            source: path.display().to_string(),
            first: first.map(rfc3339),
            last: last.map(rfc3339),
            seconds: first.zip(last).map(|(first, last)| (last - first) / 1_000_000_000),
            sessions: Some(sessions),
            unknown: Some(unknown),
        });
        Ok(())
    }

    fn leg(&mut self, leg: &Leg, judges: &Judges<'_>) {
        let Some(verdicts) = judges.state.between(leg.from.address(), leg.to.address()) else { return };
        let verdict = verdicts.at(leg.port.protocol, leg.port.port);
        // The destination's rules decide only if the source's allow, and never if the connection is rewritten on its path.
        let asks_both = verdict.egress.allowed && !leg.is_departure;
        let decisions = std::iter::once(verdict.egress).chain(asks_both.then_some(verdict.ingress));
        let origins = decisions.filter_map(|decision| decision.origin);
        self.origins.extend(origins.filter_map(|origin| judges.whole.origins().get(origin)).map(ToString::to_string));
    }
}
