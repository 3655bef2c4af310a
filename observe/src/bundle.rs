//! `bulkhead bundle`: packs state, tables, counters and journal of a running vswitch into one file.

mod config;

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Context;
use bulkhead_answers::bundle::{Contents, JOURNAL, STATE, Settings};
use bulkhead_answers::output;
use bulkhead_control::attachments::Attachment;
use bulkhead_control::object::PodName;
use serde_json::Value;

use crate::admin::{KeptFiles, Request, TableRow, ask};
use crate::args::Bundle;
use crate::journal::History;
use crate::why;

/// Queries the vswitch and writes the bundle.
///
/// # Errors
/// If no vswitch answers, or the file cannot be written.
pub fn write(args: &Bundle) -> anyhow::Result<ExitCode> {
    let kept: KeptFiles = ask(&args.socket, &Request::KeptFiles)?;
    let mut members: BTreeMap<&'static str, Vec<u8>> = BTreeMap::new();
    for (name, request) in
        [("status.json", Request::Status), ("ports.json", Request::Ports), ("policies.json", Request::Policies)]
    {
        let answer: Value = ask(&args.socket, &request)?;
        members.insert(name, serde_json::to_vec_pretty(&answer)?);
    }
    // A vswitch whose uplink leads to other nodes, or an older one, has no answer.
    if let Ok(ways) = ask::<Value>(&args.socket, &Request::Nodes) {
        members.insert("nodes.json", serde_json::to_vec_pretty(&ways)?);
    }
    members.insert("tables.json", serde_json::to_vec_pretty(&tables(args)?)?);
    let text = std::fs::read_to_string(&kept.configuration)
        .with_context(|| format!("cannot read the configuration {}", kept.configuration.display()))?;
    // The file may have become invalid while the vswitch still uses the old contents.
    let config = config::redacted(&text).unwrap_or_else(|error| Value::String(format!("not valid YAML: {error}")));
    members.insert("config.json", serde_json::to_vec_pretty(&config)?);
    let (mut settings, mut attached) = (None, Vec::new());
    match &kept.journal {
        None => output::warn(
            "the journal is disabled: the bundle contains neither a journal nor a state\n  help: set journal.folder in the vswitch's configuration",
        ),
        Some(path) => {
            // A copy, because the vswitch goes on to write.
            let mut journal = Vec::new();
            why::open(path)?
                .read_to_end(&mut journal)
                .with_context(|| format!("cannot read the journal {}", path.display()))?;
            if let Some(state) = state(&journal)? {
                (settings, attached) = (Some(state.settings), state.attached);
                members.insert(STATE, state.lines);
            }
            members.insert(JOURNAL, journal);
        }
    }
    let made = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let contents = Contents { node: kept.node.clone(), made, settings, attached, members };
    let path = args.output.clone().unwrap_or_else(|| named(&contents));
    if path.as_os_str() == "-" {
        // Not `output::stdout`: a truncated bundle is useless, so a broken pipe is an error here.
        contents.pack(io::stdout().lock())?;
        return Ok(ExitCode::SUCCESS);
    }
    // Names and addresses of the cluster are confidential.
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
    let file = file.with_context(|| format!("cannot write the bundle {}", path.display()))?;
    if let Err(error) = contents.pack(&file) {
        // A partial bundle is useless and may fill the disk.
        if file.metadata().is_ok_and(|about| about.is_file()) {
            let _ = std::fs::remove_file(&path);
        }
        return Err(error.context(format!("cannot write the bundle {}", path.display())));
    }
    output::note(&format!("wrote {} from node {}", path.display(), output::printable(&kept.node)));
    Ok(ExitCode::SUCCESS)
}

/// Returns the default name of the file: `bulkhead-node-1-20261124T143207Z.tgz`.
fn named(contents: &Contents) -> PathBuf {
    let node = output::file_name(&contents.node);
    let time: String = contents.made.chars().filter(|letter| !"-:".contains(*letter)).collect();
    PathBuf::from(format!("bulkhead-{node}-{time}.tgz"))
}

/// Returns the tables in force with their rules.
fn tables(args: &Bundle) -> anyhow::Result<Vec<TableRow>> {
    let known: Vec<TableRow> = ask(&args.socket, &Request::Tables { port: None })?;
    // A port and its tables may have been removed meanwhile.
    let rules = |row: TableRow| ask::<Vec<TableRow>>(&args.socket, &Request::Tables { port: Some(row.port) });
    Ok(known.into_iter().flat_map(|row| rules(row).unwrap_or_default()).collect())
}

/// The last state of a journal.
struct State {
    /// The Kubernetes objects of the state, one per line.
    lines: Vec<u8>,
    settings: Settings,
    attached: Vec<(PodName, Attachment)>,
}

fn state(journal: &[u8]) -> anyhow::Result<Option<State>> {
    let history = History::open(journal).context("cannot read the journal")?;
    let state = match history.last_state() {
        Ok(state) => state,
        Err(error) => {
            output::warn(&format!("the bundle has no state: {error}"));
            return Ok(None);
        }
    };
    let mut lines = Vec::new();
    for object in state.objects.objects() {
        serde_json::to_writer(&mut lines, object)?;
        lines.push(b'\n');
    }
    Ok(Some(State { lines, settings: state.settings, attached: state.attached.into_iter().collect() }))
}
