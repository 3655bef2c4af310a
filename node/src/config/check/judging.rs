//! Checks which component judges packets: either `renderers` names it, or `dataplane`, `enforce` and `engine` do.

use bulkhead_control::object::Enforcement;
use bulkhead_control::renderer::acl::EnforcedAt;

use super::super::faults::{Faults, line};
use super::super::file::{Enforce, File};
use super::super::{Dataplane, EngineName};

/// The component that enforces policy, and the place: dataplane, source or destination, and engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Judging {
    pub(super) dataplane: Dataplane,
    pub(super) enforce: EnforcedAt,
    pub(super) engine: EngineName,
}

/// Returns the setting with which nothing can be audited, `None` if auditing is possible. Auditing needs two tables per port, which only the vswitch has, and only at the destination.
pub(super) const fn without_audit((dataplane, enforce): (Dataplane, EnforcedAt)) -> Option<&'static str> {
    match (dataplane, enforce) {
        (Dataplane::Vswitch, EnforcedAt::Destination) => None,
        (Dataplane::Vswitch, EnforcedAt::Source) => Some("enforce: source"),
        (Dataplane::Nftables, _) => Some("dataplane: nftables"),
    }
}

/// Whether policies are enforced by default.
pub(super) fn enforcement(written: &File, place: (Dataplane, EnforcedAt), faults: &mut Faults<'_>) -> Enforcement {
    let Some(named) = &written.enforcement else { return Enforcement::Enforce };
    let said = Enforcement::from(named.value);
    if let (Enforcement::Audit, Some(instead)) = (said, without_audit(place)) {
        let problem = format!("`audit` cannot be combined with `{instead}`: policy would be enforced and not audited");
        faults.add(line(named), "enforcement", problem, "remove one of the two (docs/audit.md)");
    }
    said
}

/// The component that enforces each renderer's output, by the renderer's name in `bulkhead compile --renderer`.
const ENFORCING: [(&str, Judging); 4] = [
    ("acl", in_the_vswitch(EnforcedAt::Destination, EngineName::Acl)),
    ("identity", in_the_vswitch(EnforcedAt::Destination, EngineName::Identity)),
    ("session-rules", in_the_vswitch(EnforcedAt::Source, EngineName::Acl)),
    ("nftables", Judging { dataplane: Dataplane::Nftables, enforce: EnforcedAt::Destination, engine: EngineName::Acl }),
];

const fn in_the_vswitch(enforce: EnforcedAt, engine: EngineName) -> Judging {
    Judging { dataplane: Dataplane::Vswitch, enforce, engine }
}

/// Checks the fields, and that the dataplane supports their combination.
pub(super) fn check(written: &File, faults: &mut Faults<'_>) -> Judging {
    let one_by_one = one_by_one(written);
    match renderer(written, faults) {
        Some((name, named)) => {
            contradictions(written, one_by_one, (name, named), faults);
            named
        }
        None => {
            combination(written, one_by_one, faults);
            one_by_one
        }
    }
}

fn one_by_one(written: &File) -> Judging {
    let File { enforce, engine, dataplane, .. } = written;
    let is_at_source = enforce.as_ref().is_some_and(|enforce| enforce.value == Enforce::Source);
    Judging {
        dataplane: dataplane.as_ref().map_or(Dataplane::default(), |dataplane| dataplane.value),
        enforce: if is_at_source { EnforcedAt::Source } else { EnforcedAt::Destination },
        engine: engine.as_ref().map_or(EngineName::default(), |engine| engine.value),
    }
}

/// Returns the renderer that the file names. `None` if it names none.
fn renderer(written: &File, faults: &mut Faults<'_>) -> Option<(&'static str, Judging)> {
    let list = written.renderers.as_ref()?;
    let [name] = &*list.value else {
        let help = "name one: acl, identity, session-rules or nftables; `bulkhead compile --renderer` prints the output of the others";
        faults.add(
            line(list),
            "renderers",
            "must have exactly one entry: one renderer enforces policy on a node",
            help,
        );
        return None;
    };
    let found = ENFORCING.iter().find(|(known, _)| *known == name.value);
    if found.is_none() {
        let help = match &*name.value {
            "neutron" => "`bulkhead sync neutron` applies it, for the whole cluster",
            "contiv" => "`bulkhead compile --renderer contiv` prints it; nothing enforces it",
            _ => "name one of acl, identity, session-rules and nftables",
        };
        faults.add(line(name), "renderers[0]", format!("nothing on a node enforces `{}`", name.value), help);
    }
    found.copied()
}

/// Reports fields that contradict the renderer.
fn contradictions(written: &File, said: Judging, (name, named): (&str, Judging), faults: &mut Faults<'_>) {
    let File { enforce, engine, dataplane, .. } = written;
    let fields = [
        ("dataplane", dataplane.as_ref().and_then(line), said.dataplane == named.dataplane),
        ("enforce", enforce.as_ref().and_then(line), said.enforce == named.enforce),
        ("engine", engine.as_ref().and_then(line), said.engine == named.engine),
    ];
    for (field, line, is_same) in fields {
        if let (Some(line), false) = (line, is_same) {
            let problem = format!("contradicts `renderers: [{name}]`");
            faults.add(Some(line), field, problem, "remove one of the two");
        }
    }
}

/// Reports fields that cannot be combined.
fn combination(written: &File, said: Judging, faults: &mut Faults<'_>) {
    let File { enforce, engine, big_tcp, .. } = written;
    let is_at_source = said.enforce == EnforcedAt::Source;
    let is_other_engine = said.engine != EngineName::Acl;
    if let (Some(engine), true) = (engine, is_at_source && is_other_engine) {
        let help = "remove one of the two: enforce: source always uses session rules";
        let problem = format!("`{}` cannot be combined with `enforce: source`", said.engine.name());
        faults.add(line(engine), "engine", problem, help);
    }
    if said.dataplane == Dataplane::Nftables {
        let problem = "applies to the vswitch, which `dataplane: nftables` does not run";
        let help = "remove this field, or remove `dataplane: nftables`";
        if let (Some(enforce), true) = (enforce, is_at_source) {
            faults.add(line(enforce), "enforce", problem, help);
        }
        if let (Some(engine), true) = (engine, is_other_engine) {
            faults.add(line(engine), "engine", problem, help);
        }
        if let Some(big_tcp) = big_tcp {
            faults.add(line(big_tcp), "big_tcp", problem, help);
        }
    }
}
