//! Collects decoded entries into the result, reports their faults, and detects objects that are given twice.

mod idle;
mod needed;
mod paths;
mod repeated;

use std::collections::HashMap;
use std::sync::Arc;

use ahash::RandomState;

use self::needed::Held;
use super::cluster;
use super::cluster_policy::{self, Unknown};
use super::decode::Decoded;
use super::error::{Findings, Problem, SourceError, SourceErrors, printable};
use super::fallback::exclude_namespaces;
use super::locate::{Wanted, lines};
use super::outcome::{ObjectKey, Outcome, Read};
use super::parse::{Syntax, SyntaxError};
use super::path::FieldPath;
use super::pieces::parse;
use super::planned::{self, Placed};
use super::template::WorkloadRead;
use super::tree::Entry;
use super::{
    ForeignKinds, Loaded, Options, Semantics, ServiceKinds, Strictness, Templates, Unenforced, foreign,
    foreign_policies, service,
};
use crate::object::{IngressIsolation, Object, Policy, Position};

/// Collects objects and faults of all inputs.
pub(super) struct Loader {
    options: Options,
    /// Objects in the order of the inputs. Objects that do not count leave an empty slot.
    slots: Vec<Slot>,
    seen: HashMap<ObjectKey, usize, RandomState>,
    /// Workloads' templates. `None` for a workload that is given twice.
    templates: Vec<Option<Placed>>,
    seen_templates: HashMap<ObjectKey, usize, RandomState>,
    /// The objects that could not be read completely, so that their labels, addresses or ports are unknown.
    unknown: Unknown,
    held: Held,
    /// The result of loading so far. Its `objects` are filled in at the end, from `slots`.
    loaded: Loaded,
    errors: SourceErrors,
}

struct Slot {
    object: Option<Object>,
    file: Arc<str>,
    line: usize,
}

/// The list to which a message is added.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Severity {
    Error,
    Warning,
    /// See [`Loaded::unenforced`].
    Unenforced,
    /// See [`Loaded::idle_rules`].
    IdleRules,
    /// See [`Loaded::empty_lists`].
    EmptyList,
}

/// The place of an entry, and the messages about its text whose lines are still unknown.
struct Context<'a> {
    file: &'a Arc<str>,
    document: usize,
    line: usize,
    path: &'a FieldPath,
    unlocated: &'a mut Vec<(Severity, usize, Wanted)>,
}

impl Context<'_> {
    fn position(&self) -> Position {
        Position {
            file: Arc::clone(self.file),
            document: self.document,
            line: self.line,
            path: self.path.to_string().into(),
        }
    }
}

impl Loader {
    pub(super) fn new(options: Options) -> Self {
        Self {
            options,
            slots: Vec::new(),
            seen: HashMap::default(),
            templates: Vec::new(),
            seen_templates: HashMap::default(),
            unknown: Unknown::default(),
            held: Held::default(),
            loaded: Loaded::default(),
            errors: SourceErrors::default(),
        }
    }

    /// Returns the objects and warnings, or the errors if any input had one.
    pub(super) fn finish(mut self) -> Result<Loaded, SourceErrors> {
        self.complete();
        if self.errors.is_empty() {
            let error = match self.resolved() {
                Some(objects) => cluster_policy::needs_labels(objects.iter(), &self.unknown),
                None => {
                    let objects = self.slots.iter().filter_map(|slot| slot.object.as_ref());
                    cluster_policy::needs_labels(objects, &self.unknown)
                }
            };
            self.errors.extend(error);
        }
        if !self.errors.is_empty() {
            return Err(self.errors);
        }
        self.warn_of_idle();
        let mut objects: Vec<_> = self.slots.into_iter().filter_map(|slot| slot.object).collect();
        for object in &mut objects {
            if let Object::Policy(policy) = object {
                exclude_namespaces(Arc::make_mut(policy), &self.unknown.namespaces);
            }
        }
        if let Templates::Read(blocks) = &self.options.templates {
            let templates = self.templates.into_iter().flatten().collect();
            planned::add(&mut objects, templates, blocks, &mut self.loaded.warnings);
        }
        Ok(Loaded { objects, ..self.loaded })
    }

    /// Adds an error about a whole file.
    pub(super) fn refuse(&mut self, file: &Arc<str>, line: Option<usize>, problem: String, help: String) {
        let (file, object, path) = (Arc::clone(file), None, String::new());
        self.errors.push(SourceError { file, document: 0, line, object, path, problem, help });
    }

    pub(super) fn read_text(&mut self, file: &Arc<str>, text: &str) {
        self.take(file, text, parse(file, text));
    }

    fn take(&mut self, file: &Arc<str>, text: &str, parsed: Result<(Vec<Entry>, Syntax), SyntaxError>) {
        self.loaded.files += 1;
        let (entries, syntax) = match parsed {
            Ok(parsed) => parsed,
            Err(error) => return self.refuse(file, error.line, error.text, error.help),
        };
        if entries.is_empty() {
            let problem = "the file contains no object".to_owned();
            let help = "it enforces nothing; check that it is complete and the right file".to_owned();
            let (file, object, path) = (Arc::clone(file), None, String::new());
            self.loaded.warnings.push(SourceError { file, document: 0, line: None, object, path, problem, help });
        }
        let mut unlocated = Vec::new();
        for Entry { document, line, path, decoded } in entries {
            let mut context = Context { file, document, line, path: &path, unlocated: &mut unlocated };
            self.settle(decoded, &mut context);
        }
        if unlocated.is_empty() {
            return;
        }
        let wanted: Vec<_> = unlocated.iter().map(|(_, _, wanted)| wanted.clone()).collect();
        for ((severity, at, _), line) in unlocated.iter().zip(lines(text, syntax, &wanted)) {
            if let Some(line) = line {
                self.reports(*severity).set_line(*at, line);
            }
        }
    }

    fn reports(&mut self, severity: Severity) -> &mut SourceErrors {
        match severity {
            Severity::Error => &mut self.errors,
            Severity::Warning => &mut self.loaded.warnings,
            Severity::Unenforced => &mut self.loaded.unenforced,
            Severity::IdleRules => &mut self.loaded.idle_rules,
            Severity::EmptyList => &mut self.loaded.empty_lists,
        }
    }

    fn report(&mut self, severity: Severity, context: &mut Context<'_>, object: Option<&str>, problem: Problem) {
        let reports = self.reports(severity);
        if !reports.has_room() {
            return reports.count();
        }
        let at = reports.push(SourceError {
            file: Arc::clone(context.file),
            document: context.document,
            line: Some(context.line),
            object: object.map(str::to_owned),
            path: problem.path.to_string(),
            problem: problem.text,
            help: problem.help,
        });
        let wanted = Wanted { document: context.document, path: context.path.join(&problem.path) };
        context.unlocated.extend(at.map(|at| (severity, at, wanted)));
    }

    /// Reports what was found in an object. Problems have this severity, and the consequence at the end of their help. Keeps the declared
    /// ports if [`Templates::Read`] is set.
    fn take_findings(
        &mut self,
        findings: Findings,
        (severity, consequence): (Severity, &str),
        object: Option<&str>,
        context: &mut Context<'_>,
    ) {
        let Findings { mut problems, warnings, idle_rules, empty_lists, declared_ports } = findings;
        self.loaded.faulty += usize::from(!problems.is_empty());
        if matches!(self.options.templates, Templates::Read(_)) {
            self.loaded.declared_ports.extend(declared_ports);
        }
        for problem in &mut problems {
            problem.tell_of_placeholder();
            problem.help.push_str(consequence);
        }
        let lists = [
            (severity, problems),
            (Severity::Warning, warnings),
            (Severity::IdleRules, idle_rules),
            (Severity::EmptyList, empty_lists),
        ];
        for (severity, list) in lists {
            list.into_iter().for_each(|problem| self.report(severity, context, object, problem));
        }
    }

    fn settle(&mut self, decoded: Decoded, context: &mut Context<'_>) {
        let read = match decoded {
            Decoded::Skipped { kind, pods } => {
                if let (Some(pods), Templates::Read(_)) = (pods, &self.options.templates) {
                    self.loaded.custom.push(pods.at(context.position()));
                }
                let (api_version, kind) = kind.parts();
                return self.skip(api_version, kind, context);
            }
            Decoded::Unreadable(problem) | Decoded::NoObject(problem) => {
                return self.report(Severity::Error, context, None, *problem);
            }
            Decoded::OtherProduct { kind, read } => {
                let (api_version, kind) = kind.parts();
                if self.options.foreign == ForeignKinds::Skip || self.options.ignores(api_version, kind) {
                    return self.skip_foreign(api_version, kind, context);
                }
                foreign_policies::prepared(*read, self.options.foreign)
            }
            Decoded::Foreign(problem) => Read::nameless(*problem),
            Decoded::Workload(read) => return self.settle_workload(*read, context),
            Decoded::Read(read) => *read,
            Decoded::BySemantics { v1, v1beta1 } => match self.options.semantics {
                Semantics::V1 => *v1,
                Semantics::V1beta1 { .. } => *v1beta1,
            },
        };
        if self.options.services == ServiceKinds::Skip {
            let kind = match read.label.split(' ').next() {
                Some(service::SERVICE_KIND) => Some(("v1", service::SERVICE_KIND)),
                Some(service::SLICE_KIND) => Some((service::SLICE_API, service::SLICE_KIND)),
                _ => None,
            };
            if let Some((api_version, kind)) = kind {
                if self.options.foreign != ForeignKinds::Skip {
                    self.held.keep(read, || context.position());
                }
                return self.skip(api_version, kind, context);
            }
        }
        let survives = self.options.strictness == Strictness::Lenient && !matches!(read.outcome, Outcome::Unreadable);
        if !matches!(read.outcome, Outcome::Object(_)) {
            match read.label.split(' ').next() {
                Some(cluster::NODE_KIND) => self.unknown.is_node = true,
                Some(cluster::POD_KIND) => self.unknown.is_pod = true,
                _ => {}
            }
        }
        let severity = if survives { Severity::Warning } else { Severity::Error };
        let consequence = if survives { consequence(&read.outcome) } else { "" };
        let label = Some(read.label.as_str()).filter(|label| !label.is_empty());
        self.take_findings(read.findings, (severity, consequence), label, context);
        let mut object = match read.outcome {
            Outcome::Object(object) => Some(object),
            Outcome::Closed(object) if survives => {
                self.unknown.namespaces.extend(namespace_name(&object).cloned());
                Some(object)
            }
            Outcome::Closed(_) | Outcome::Nothing | Outcome::Unreadable => None,
        };
        match &mut object {
            Some(Object::Policy(policy)) => Arc::make_mut(policy).position = Some(context.position()),
            Some(Object::ClusterPolicy(policy)) => Arc::make_mut(policy).position = Some(context.position()),
            Some(Object::Foreign(object)) => Arc::make_mut(object).set_position(context.position()),
            _ => {}
        }
        let key = match (read.key, &mut object) {
            (Some(key), _) => key,
            (None, Some(Object::Policy(policy))) => self.name_by_place(Arc::make_mut(policy)),
            (None, Some(Object::Namespace(namespace))) => {
                ObjectKey { kind: "Namespace", namespace: "".into(), name: Arc::clone(&namespace.name) }
            }
            (None, _) => return,
        };
        match self.seen.get(&key) {
            Some(&first) => self.repeat(first, object, &read.label, context),
            None => {
                self.seen.insert(key, self.slots.len());
                self.slots.push(Slot { object, file: Arc::clone(context.file), line: context.line });
            }
        }
    }

    /// Keeps a workload's template if [`Templates::Read`] is set. In lenient mode, a workload that is faulty or given twice adds no pods.
    fn settle_workload(&mut self, read: WorkloadRead, context: &mut Context<'_>) {
        if self.options.templates == Templates::Skip {
            return self.skip(&read.api_version, read.kind, context);
        }
        let (severity, consequence) = match self.options.strictness {
            Strictness::Strict => (Severity::Error, ""),
            Strictness::Lenient => (Severity::Warning, consequence(&Outcome::Nothing)),
        };
        self.take_findings(read.findings, (severity, consequence), Some(&read.label), context);
        let (Some(template), Some(key)) = (read.template, read.key) else { return };
        if let Some(&first) = self.seen_templates.get(&key) {
            let place = self.templates[first].as_ref().map(|first| format!(", first at {}", first.position));
            self.templates[first] = None;
            self.loaded.faulty += 1;
            let text = format!("the object is given twice{}", place.unwrap_or_default());
            let problem = Problem::new(&FieldPath::default(), text, format!("remove one of the two{consequence}"));
            return self.report(severity, context, Some(&read.label), problem);
        }
        self.seen_templates.insert(key, self.templates.len());
        self.templates.push(Some(Placed { template, position: context.position() }));
    }

    /// Names a policy without a readable name after its position. The name is unique.
    fn name_by_place(&self, policy: &mut Policy) -> ObjectKey {
        let place = policy.position.as_ref().map(ToString::to_string).unwrap_or_default();
        let mut name = format!("unnamed at {}", printable(&place));
        let key = |name: &str| ObjectKey {
            kind: "NetworkPolicy",
            namespace: Arc::clone(&policy.name.namespace),
            name: name.into(),
        };
        while self.seen.contains_key(&key(&name)) {
            // Several unnamed objects can be on one line.
            name.push('\'');
        }
        let key = key(&name);
        policy.name.name = Arc::clone(&key.name);
        key
    }

    /// Skips an object of another product whose kind is supported.
    fn skip_foreign(&mut self, api_version: &str, kind: &str, context: &mut Context<'_>) {
        let is_policy = foreign::restricts(foreign::group_of(api_version), kind);
        if !is_policy || self.options.ignores(api_version, kind) {
            return self.skip(api_version, kind, context);
        }
        *self.loaded.foreign.entry(format!("{api_version} {kind}")).or_insert(0) += 1;
    }

    fn skip(&mut self, api_version: &str, kind: &str, context: &mut Context<'_>) {
        let group = foreign::group_of(api_version);
        let restricts = foreign::restricts(group, kind);
        let is_ignored = restricts && self.options.ignores(api_version, kind);
        let counts = if is_ignored { &mut self.loaded.ignored } else { &mut self.loaded.skipped };
        let count = counts.entry(printable(&format!("{api_version} {kind}")).into_owned()).or_insert(0);
        *count += 1;
        // One message per kind: a cluster may have hundreds of such objects.
        if *count > 1 || !restricts || is_ignored {
            return;
        }
        let severity = match self.options.unenforced {
            Unenforced::Refuse => Severity::Error,
            Unenforced::Report => Severity::Unenforced,
        };
        self.report(severity, context, None, foreign::problem(api_version, kind));
    }
}

/// Returns the last part of a message in lenient mode: how the faulty object is treated until it is repaired.
pub(super) fn consequence(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Closed(Object::Namespace(namespace)) if namespace.isolation == IngressIsolation::DefaultDeny => {
            "; until then its pods are isolated, and only its name is used"
        }
        Outcome::Closed(Object::Namespace(_)) => "; until then only its name is used",
        Outcome::Closed(Object::Policy(_)) => "; until then it isolates its pods and allows nothing",
        Outcome::Closed(Object::Foreign(_)) => {
            "; until then a rule decides nothing if it allows, and denies everything otherwise"
        }
        Outcome::Closed(Object::ClusterPolicy(_)) => {
            "; until then the rule matches nothing if it accepts, and denies everything otherwise"
        }
        Outcome::Closed(_) => "; until then the object is used without this part",
        _ => "; until then the object is left out",
    }
}

fn namespace_name(object: &Object) -> Option<&Arc<str>> {
    match object {
        Object::Namespace(namespace) => Some(&namespace.name),
        _ => None,
    }
}
