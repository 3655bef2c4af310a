//! `bulkhead diff`: lists exactly the connections whose verdict differs between two states, and the responsible rules.
//!
//! ```text
//!  old state --compile--> Reachability --.
//!                                        Difference (sets) --> units: every pair | groups: namespaces --> text, JSON, Markdown, SARIF
//!  new state --compile--> Reachability --'                          `- because: policies, files, lines
//! ```

mod because;
mod flows;
mod forms;
mod groups;
mod names;
mod ranges;
#[cfg(test)]
mod tests;
mod units;

use std::borrow::Cow;
use std::collections::HashSet;
use std::io::{self, BufWriter, Write};
use std::mem::ManuallyDrop;
use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::Context;
use bulkhead_control::object::PodName;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::reachability::difference::Difference;
use bulkhead_control::reachability::{Protocol, Reachability};
use serde::Serialize;

use self::because::{Because, Reasons, Tellings};
use self::forms::Form;
use crate::args::{Diff, DiffFormat, State};
use crate::flows::find::Finder;
use crate::output;
use crate::progress;
use crate::run::{self, Input, Placeholders};

/// Maximum number of pods of one state only that are named in text output.
const NAMED: usize = 20;

/// Connections with different verdicts. The field names are part of the JSON format.
#[derive(Clone, Debug, Serialize)]
struct Change<'a> {
    from: &'a str,
    to: &'a str,
    family: &'static str,
    #[serde(skip)]
    kind: Protocol,
    protocol: Cow<'static, str>,
    /// For `other`: the protocols that rules name and that do not change in this way.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    except_protocols: &'a [String],
    ports: &'a [(u16, u16)],
    before: &'static str,
    after: &'static str,
    /// A note that the entry excludes connections between a pod and its own node. `None` if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    except: Option<&'static str>,
    because: &'a Because,
    /// `from` and `to` as printed in text, possibly shortened.
    #[serde(skip)]
    told: [&'a [String]; 2],
}

impl Change<'_> {
    fn is_allowed(&self) -> bool {
        self.after == ALLOW
    }
}

const ALLOW: &str = "allow";
const DENY: &str = "deny";

/// Receives changes one at a time, because those of a large cluster may not fit in memory.
type Take<'a> = dyn FnMut(&Change<'_>) -> io::Result<()> + 'a;

/// Pods that exist in one state only.
#[derive(Debug, Default, Serialize)]
struct OnlyIn {
    /// Pods that only the old state has.
    only_before: Vec<String>,
    /// Pods that only the new state has.
    only_after: Vec<String>,
}

/// Prints the connections whose verdict differs. Returns exit code 1 if there are any.
///
/// # Errors
/// If a state or a source of flows cannot be read.
pub fn run(args: &Diff) -> anyhow::Result<ExitCode> {
    let (against, captures) = flows::split(args);
    let seen = flows::read(args, &captures)?;
    let input = Input::open(&args.state)?;
    let settings = input.service_settings(args.settings.as_deref())?;
    let old = "the old state (--state)";
    // Services matter only for flows.
    let (mut before, services) = match &seen {
        Some(_) => run::load_with_services(&input, Some(&args.planned), false).context(old)?,
        None => (run::load(&input, Some(&args.planned)).context(old)?, Vec::new()),
    };
    let against = State { paths: against, ..args.state.clone() };
    let new = "the new state (--against)";
    let mut after = run::load(&Input::open(&against).context(new)?, Some(&args.planned)).context(new)?;
    if let (Some(_), Some(warning)) = (&seen, run::unknown_names(&before).or_else(|| run::unknown_names(&after))) {
        output::warn(&warning);
    }
    let placeholders = Placeholders::add_to([&mut before, &mut after])?;
    // The process ends with the answer. Freeing large states object by object would only delay that.
    let (before, after) = (ManuallyDrop::new(before), ManuallyDrop::new(after));
    progress::step("comparing the states");
    let states = ManuallyDrop::new([reachability(&before)?, reachability(&after)?]);
    let difference = Difference::of(&states[0], &states[1]);
    let only = only_in(&difference);
    for (names, state) in [(&only.only_before, "old"), (&only.only_after, "new")] {
        if !names.is_empty() {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            output::note(&format!("in the {state} state only, not compared: {}", output::some_of(&names, NAMED)));
        }
    }
    let mut reasons = [Reasons::of(&before), Reasons::of(&after)];
    let tellings = Tellings::of(&difference, &mut reasons);
    let finder = &mut Finder::new(&before, services, settings);
    let flows = seen.map(|seen| flows::compare(&seen, finder, [&states[0], &states[1]], &mut reasons)).transpose()?;
    let mut out = BufWriter::new(output::stdout());
    let mut form = Form::new(args.output, &mut out);
    form.begin()?;
    let mut count = Count::default();
    let mut take = |change: &Change<'_>| {
        count.add(change);
        form.change(change)
    };
    match args.ungrouped {
        true => units::each(&difference, &placeholders, &tellings, &mut take)?,
        false => groups::each(&difference, &placeholders, &tellings, [&before, &after], &mut take)?,
    }
    form.end(&count, &only, flows.as_ref())?;
    out.flush()?;
    let fails = if args.no_new_access { count.allowed } else { count.allowed + count.denied };
    Ok(if fails > 0 { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// The differences between two states, for people.
#[derive(Debug)]
pub struct Told {
    /// The connections whose verdict differs, with the responsible rules, as `bulkhead diff` prints them.
    pub text: String,
    /// Number of entries in the text, before they were joined to rows. 0 if only port 0 differs.
    pub changes: u64,
    /// Whether verdicts differ at port 0 of TCP, UDP or SCTP, which is reserved, and nowhere else.
    pub port_zero: bool,
}

/// Compares two compiled states. Domain names in their rules are replaced by addresses that represent them.
///
/// # Errors
/// If a state does not compile, or keeps no rules to be asked about.
pub fn tell(before: &mut Pipeline, after: &mut Pipeline) -> anyhow::Result<Told> {
    let placeholders = Placeholders::add_to([before, after])?;
    let (before, after) = (&*before, &*after);
    let states = [reachability(before)?, reachability(after)?];
    let difference = Difference::of(&states[0], &states[1]);
    let mut deltas = difference.deltas().iter().flatten().peekable();
    let has_ports = |protocol| matches!(protocol, Protocol::Tcp | Protocol::Udp | Protocol::Sctp);
    if deltas.peek().is_some() && deltas.all(|delta| has_ports(delta.protocol) && delta.ports == [(0, 0)]) {
        return Ok(Told { text: String::new(), changes: 0, port_zero: true });
    }
    let mut reasons = [Reasons::of(before), Reasons::of(after)];
    let tellings = Tellings::of(&difference, &mut reasons);
    let mut out = Vec::new();
    let mut form = Form::new(DiffFormat::Text, &mut out);
    form.begin()?;
    let mut count = Count::default();
    let mut take = |change: &Change<'_>| {
        count.add(change);
        form.change(change)
    };
    groups::each(&difference, &placeholders, &tellings, [before, after], &mut take)?;
    form.end(&count, &only_in(&difference), None)?;
    let text = String::from_utf8_lossy(&out).into_owned();
    Ok(Told { text, changes: count.allowed + count.denied, port_zero: false })
}

fn reachability(pipeline: &Pipeline) -> anyhow::Result<Reachability> {
    let mirror = pipeline.mirror().context("the pipeline keeps no rules to be asked about")?;
    Ok(Reachability::of(pipeline, mirror))
}

/// Returns the pods that exist in one state only. A pod without an address of some family counts as missing in that family.
fn only_in(difference: &Difference) -> OnlyIn {
    let units = difference.joints().iter().flat_map(|joint| &joint.units);
    let compared: HashSet<(&PodName, bool)> = units.map(|unit| (&unit.pod, unit.before.is_ipv6())).collect();
    let names = |all: &[(PodName, IpAddr)]| -> Vec<String> {
        let mut names: Vec<String> = all
            .iter()
            .map(|(name, address)| match compared.contains(&(name, !address.is_ipv6())) {
                true => format!("{name} ({})", family(address.is_ipv6())),
                false => name.to_string(),
            })
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    };
    OnlyIn { only_before: names(difference.only_before()), only_after: names(difference.only_after()) }
}

fn family(is_v6: bool) -> &'static str {
    if is_v6 { "IPv6" } else { "IPv4" }
}

/// Numbers of entries: newly allowed and newly denied.
#[derive(Debug, Default)]
struct Count {
    allowed: u64,
    denied: u64,
}

impl Count {
    fn add(&mut self, change: &Change<'_>) {
        match change.is_allowed() {
            true => self.allowed += 1,
            false => self.denied += 1,
        }
    }
}
