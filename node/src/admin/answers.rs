//! Builds the answers of the admin socket from the state of the vswitch.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bulkhead_classifier::{OriginId, Rule, Tables};
use bulkhead_control::pipeline::AuditedPolicy;
use serde_json::Value;

use super::socket::Reply;
use super::{Shared, explain, names, sessions};
use crate::audit::policies_of;
use crate::clock;
use crate::interfaces::{PortState, PortStatus};
use crate::log;
use crate::notice::Notice;
use crate::observer::{Observation, Observer};
use crate::ports::Question;
use crate::remote_nodes::SharedReport;
use crate::state::Asked;
use crate::stream::Watch;
use crate::summary::dropped;
use crate::tables::{self, PortTable};
use crate::view::kind_name;
use bulkhead_answers::args::EndName;
use bulkhead_answers::compile::{shown_addresses, shown_services};
use bulkhead_answers::fabric;
use bulkhead_answers::named::Unknown;
use bulkhead_answers::translate::Translation;
use bulkhead_observe::admin::{
    AuditStatus, Connection, DropRow, Failure, FlowCacheRow, LastError, PolicyQuestion, PolicyRow, PolicyStatus,
    PortKey, PortRow, PortTotals, Request, SessionTotals, SourceStatus, Status, TableRow, WorkerRow,
};

/// Answers a request at the admin socket, with a stream of lines for `monitor` and `trace`.
pub(super) async fn reply(request: Request, shared: &Shared) -> Result<Reply, Failure> {
    let watch = match request {
        Request::Monitor(asked) => Watch::Monitor(asked),
        Request::Trace(asked) => Watch::Trace(asked),
        request => return answer(request, shared).await.map(Reply::Value),
    };
    let (watching, lines) = shared.hub.watch(watch).await?;
    let value = serde_json::to_value(watching);
    Ok(Reply::Lines(
        value.map_err(|error| Failure::new("internal", error.to_string(), "report it"))?,
        lines,
        Arc::clone(shared.observer.stream()),
    ))
}

async fn answer(request: Request, shared: &Shared) -> Result<Value, Failure> {
    let value = match request {
        Request::Monitor(_) | Request::Trace(_) => {
            return Err(Failure::new("internal", "a stream was requested as a single answer", "report it"));
        }
        Request::Status => serde_json::to_value(status(&*shared.observe().await, shared)),
        Request::Ports => serde_json::to_value(ports(&*shared.observe().await)),
        Request::Nodes => {
            let now = shared.observe().await;
            let help = "only a vswitch whose node keeps its network card, without an uplink port, sets up and probes ways to other nodes";
            let ways = now.about.remote_nodes.as_ref();
            let ways = ways.ok_or_else(|| Failure::new("not_here", "the uplink leads to other nodes", help))?;
            serde_json::to_value(ways.ways(&now.about.node))
        }
        Request::Names(filter) => {
            // One list at a time, as of sessions: a large table takes a while to read.
            let _turn = shared.listing.lock().await;
            let now = shared.observe().await;
            let listed = tokio::task::spawn_blocking(move || names::list(&now, &filter)).await;
            serde_json::to_value(listed.map_err(|error| Failure::new("internal", error.to_string(), "report it"))?)
        }
        Request::Policies => serde_json::to_value(policies(&*shared.observe().await)),
        Request::Tables { port } => serde_json::to_value(tables(&*shared.observe().await, port.as_deref())?),
        Request::Explain(asked) => return explained(asked, shared).await,
        Request::Enforcement(asked) => return enforcement(asked, shared).await,
        Request::Sessions(filter) => {
            // One session list at a time, so that a status request waits for at most one.
            let _turn = shared.listing.lock().await;
            let observer = shared.observer.clone();
            // The workers return sessions in pages. The total time is not limited.
            let listed = tokio::task::spawn_blocking(move || sessions::list(&observer, &filter)).await;
            serde_json::to_value(listed.map_err(|error| Failure::new("internal", error.to_string(), "report it"))??)
        }
        Request::AuditReport => {
            let now = shared.observe().await;
            let untold = now.counters.sum(|worker| worker.engine.untold_audits());
            serde_json::to_value(shared.observer.audit().report(&now.about.node, untold, now.audited.as_deref()))
        }
        Request::AddPort(asked) => return shared.ask_ports(Question::Add(asked)).await,
        Request::RemovePort(key) => return shared.ask_ports(Question::Remove(key)).await,
        Request::CheckPort(key) => return shared.ask_ports(Question::Check(key)).await,
        Request::RetainPorts { keep, network } => return shared.ask_ports(Question::Retain(keep, network)).await,
        Request::EndSessions(filter) => {
            let _turn = shared.listing.lock().await;
            let observer = shared.observer.clone();
            let ended = tokio::task::spawn_blocking(move || sessions::end(&observer, &filter)).await;
            serde_json::to_value(ended.map_err(|error| Failure::new("internal", error.to_string(), "report it"))??)
        }
        Request::KeptFiles => {
            let observer = shared.observer.clone();
            let kept = tokio::task::spawn_blocking(move || observer.kept_files(FLUSHED)).await;
            serde_json::to_value(kept.map_err(|error| Failure::new("internal", error.to_string(), "report it"))?)
        }
        Request::Reload => {
            // An error means that the vswitch is shutting down.
            let _ = shared.notices.send(Notice::Look);
            Ok(Value::Object(serde_json::Map::new()))
        }
    };
    value.map_err(|error| Failure::new("internal", error.to_string(), "report it"))
}

/// How long to wait for the policy thread to look up a name. Compiling keeps it busy for milliseconds, with a large state for seconds.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long the journal's thread may take to flush its queue to the file.
const FLUSHED: Duration = Duration::from_secs(1);

async fn enforcement(asked: PolicyQuestion, shared: &Shared) -> Result<Value, Failure> {
    // One at a time: the query goes to the workers, and waiting clients repeat it often.
    let _turn = shared.listing.lock().await;
    let observer = shared.observer.clone();
    let internal = |error: &dyn std::fmt::Display| Failure::new("internal", error.to_string(), "report it");
    let told = tokio::task::spawn_blocking(move || observer.enforcement(asked, PATIENCE)).await;
    let told = told.map_err(|error| internal(&error))?.map_err(|_| Names::busy("the policy"))?;
    serde_json::to_value(told).map_err(|error| internal(&error))
}

async fn explained(asked: Connection, shared: &Shared) -> Result<Value, Failure> {
    let now = shared.observe().await;
    // One at a time: looking up names may block.
    let _turn = shared.listing.lock().await;
    let observer = shared.observer.clone();
    let explain = move || {
        // The snapshot in force may be newer than the observation.
        let snapshot = observer.snapshot();
        let node = explain::Node {
            name: now.about.node.clone(),
            snapshot: &snapshot,
            origins: observer.origins(),
            ports: &now.interfaces.ports,
            learned: now.learned.clone(),
            time: clock::now(),
            is_denying: now.enforced.is_denying,
        };
        explain::explain(&node, &asked, &Names(&observer))
    };
    let internal = |error: &dyn std::fmt::Display| Failure::new("internal", error.to_string(), "report it");
    let explained = tokio::task::spawn_blocking(explain).await.map_err(|error| internal(&error))??;
    serde_json::to_value(explained).map_err(|error| internal(&error))
}

/// Looks up pods and Services at the policy thread. Fails after [`PATIENCE`], as the thread may be busy compiling.
struct Names<'a>(&'a Observer);

impl Names<'_> {
    fn busy(what: &str) -> Failure {
        let help = "a new state is being compiled: ask again, or name the pod's address";
        Failure::new("no_answer", format!("cannot look up {what}"), help)
    }
}

impl explain::Names for Names<'_> {
    fn addresses_of(&self, name: &EndName) -> Result<Result<Vec<Vec<IpAddr>>, Unknown>, Failure> {
        self.0.addresses_of(name, PATIENCE).map_err(|_| Self::busy(&format!("the addresses of {name}")))
    }

    fn translations(&self, asked: Asked) -> Result<Vec<(fabric::End, Translation)>, Failure> {
        let translations = self.0.translations(asked, PATIENCE).map_err(|_| Self::busy("the Services"))?;
        translations.map_err(|error| {
            let text = error.to_string();
            let (message, help) = text.split_once("\n  help: ").unwrap_or((&text, ""));
            Failure::new("malformed", message, help)
        })
    }
}

/// Maximum number of audited policies in the status: about one line.
const SHOWN: usize = 5;

fn status(now: &Observation, shared: &Shared) -> Status {
    let (summary, enforced) = (now.summary(), now.enforced);
    let statuses = &now.interfaces.ports;
    let late = statuses.iter().filter(|port| port.state != PortState::Open);
    let sessions = summary.sessions();
    let mut dropped_for: Vec<DropRow> = now
        .counters
        .drops()
        .filter(|(_, packets)| *packets > 0)
        .map(|(reason, packets)| DropRow { reason: reason.name().into(), means: reason.describe().into(), packets })
        .collect();
    dropped_for.sort_by_key(|row| std::cmp::Reverse(row.packets));
    Status {
        program: env!("CARGO_PKG_VERSION").into(),
        node: now.about.node.to_string(),
        pod_networks: now.pod_networks.to_vec(),
        ready: now.is_ready(),
        denying: enforced.is_denying,
        judging: now.state.judging(),
        uptime_seconds: now.uptime.as_secs(),
        uptime_ms: Some(milliseconds(now.uptime)),
        instance: Some(instance()),
        generation: now.snapshot.generation(),
        policy: PolicyStatus {
            age_seconds: enforced.since.elapsed().as_secs_f64(),
            enforce_seconds: enforced.took.as_secs_f64(),
            refused: enforced.is_refused,
            states_applied: now.state.applied,
            states_refused: now.state.refused,
            faulty_objects: now.state.faulty,
            contested_addresses: now.state.contested_addresses,
            unenforced_kinds: now.state.unenforced_kinds,
            refused_tables: now.state.refused_tables,
        },
        audit: AuditStatus {
            policies: now.audit.policies.keys().take(SHOWN).cloned().collect(),
            audited: now.audit.policies.len(),
            connections: now.audit.policies.values().sum(),
            untold: now.counters.sum(|worker| worker.engine.untold_audits()),
            refused_files: now.audit.refused_files,
        },
        source: now.source.as_ref().map(|source| SourceStatus {
            connected: source.is_connected,
            since_seconds: source.since.elapsed().as_secs(),
            age_seconds: source.age().map(|age| age.as_secs_f64()),
            last_error: source.last_error.clone(),
        }),
        services: now.state.services,
        service_health: shared.health.as_ref().map(|health| health.status(&shared.observer)),
        ports: PortTotals {
            configured: statuses.len(),
            added: statuses.iter().filter(|port| port.added.is_some()).count(),
            open: statuses.iter().filter(|port| port.state == PortState::Open).count(),
        },
        remote_nodes: now.about.remote_nodes.as_ref().and_then(SharedReport::read),
        late: late.map(|port| port_row(now, port)).collect(),
        workers: now
            .counters
            .workers
            .iter()
            .map(|worker| WorkerRow {
                received: worker.received,
                sent: worker.sent,
                dropped: dropped(worker),
                sessions: worker.sessions,
                restarts: worker.restarts,
                judged: Some(worker.engine.received()),
                busy_ns: Some(worker.busy_ns),
                silent: !worker.has_answered,
            })
            .collect(),
        sessions: SessionTotals {
            used: now.counters.sum(|worker| worker.sessions),
            capacity: now.about.session_capacity as u64,
            refused: sessions.refused,
            created: Some(sessions.created),
        },
        dropped: dropped_for,
        flow_cache: FlowCacheRow {
            forwarded: summary.cached.forwarded(),
            added: summary.cached.added,
            refused: summary.cached.refused,
        },
        last_error: log::last_error().map(|(at, text)| LastError { at, text }),
    }
}

/// Returns a number that differs for each process of this vswitch: the time of the first call, in milliseconds since 1970.
pub(crate) fn instance() -> u64 {
    static FIRST_ASKED: OnceLock<u64> = OnceLock::new();
    *FIRST_ASKED.get_or_init(|| milliseconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()))
}

pub(crate) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the status of each port: configured ports in the configuration's order, then the added ports.
fn ports(now: &Observation) -> Vec<PortRow> {
    now.interfaces.ports.iter().map(|port| port_row(now, port)).collect()
}

fn port_row(now: &Observation, port: &PortStatus) -> PortRow {
    let PortStatus { name, kind, interface, added, state, why } = port;
    let id = now.snapshot.port_named(name);
    let traffic = now.summary().port(id, name);
    let cached = now.interfaces.cached.port(name);
    let sessions = id.map(|id| now.counters.sessions_of(id)).unwrap_or_default();
    let addresses = id.and_then(|id| now.snapshot.port(id)).map(|port| port.addresses.as_slice()).unwrap_or_default();
    PortRow {
        name: name.to_string(),
        kind: kind_name(*kind).into(),
        interface: interface.to_string(),
        container: added.as_ref().map(|added| PortKey::clone(&added.key)),
        state: state.name().into(),
        why: why.clone(),
        addresses: addresses.iter().map(ToString::to_string).collect(),
        received: traffic.received,
        received_bytes: traffic.received_bytes,
        sent: traffic.sent,
        sent_bytes: traffic.sent_bytes,
        limited: cached.limited,
        bypassed: cached.bypassed,
        dropped: Some(id.map_or(0, |id| now.counters.port_dropped(id))),
        sessions_started: Some(sessions.started),
        sessions_reached: Some(sessions.reached),
        epoch: id.map_or(0, |id| now.snapshot.epoch(id)),
    }
}

/// Returns the packets that each policy allowed and denied, busiest policy first.
fn policies(now: &Observation) -> Vec<PolicyRow> {
    let audited = now.audited.as_deref();
    let is_audited = |policy: &AuditedPolicy| audited.is_some_and(|audited| audited.contains(policy));
    let mut named: BTreeSet<AuditedPolicy> = BTreeSet::new();
    let rows = now.summary().decided().into_iter().map(|(id, counters)| {
        let origin = now.about.origins.get(id);
        let mut policies = origin.as_ref().map(policies_of).unwrap_or_default();
        policies.retain(is_audited);
        let not_enforced = !policies.is_empty();
        named.extend(policies);
        PolicyRow {
            origin: origin.map_or_else(|| "unknown".to_owned(), |origin| origin.to_string()),
            allowed: counters.allowed,
            denied: counters.denied,
            audited: counters.audited,
            not_enforced,
        }
    });
    let mut rows: Vec<PolicyRow> = rows.collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.allowed + row.denied + row.audited));
    // Audited policies that would have denied nothing yet are listed as well, marked as not enforced.
    let quiet = audited.into_iter().flatten().filter(|policy| !named.contains(policy));
    rows.extend(quiet.map(|policy| PolicyRow {
        origin: policy.to_string(),
        allowed: 0,
        denied: 0,
        audited: 0,
        not_enforced: true,
    }));
    rows
}

/// Returns the tables in force, one row for each table of each port. If `wanted` is a table's name, only its row, with the rules.
fn tables(now: &Observation, wanted: Option<&str>) -> Result<Vec<TableRow>, Failure> {
    let ports = now.snapshot.ports().iter();
    let mut named = ports.flat_map(|port| tables::of_port(port).map(|table| (table.name(port), table)));
    let Some(wanted) = wanted else {
        return Ok(named.filter_map(|(name, used)| table(now, &name, &used, false)).collect());
    };
    if let Some(row) = named.find_map(|(name, used)| (&*name == wanted).then(|| table(now, &name, &used, true))?) {
        return Ok(vec![row]);
    }
    Err(match now.snapshot.port_named(wanted) {
        Some(_) => {
            let help = "the state has no such pod, or pod traffic is denied; `bulkhead status` shows which";
            Failure::new("no_table", format!("port {wanted} has no table: all packets to it are denied"), help)
        }
        None => {
            let help = "`bulkhead tables` lists this node's tables; a pod of another node has none here";
            Failure::new("unknown_port", format!("there is no port {wanted}"), help)
        }
    })
}

fn table(now: &Observation, name: &str, used: &PortTable, has_rules: bool) -> Option<TableRow> {
    let (snapshot, origins) = (&*now.snapshot, has_rules.then_some(&now.about.origins));
    let tables = snapshot.table(used.id)?;
    let rules = tables.rules();
    // Many rules share an origin.
    let mut names: HashMap<u32, String> = HashMap::new();
    let list = origins.map_or_else(Vec::new, |origins| {
        let mut line = |(at, rule): (usize, &Rule)| {
            let named = || origins.get(rule.origin).map(|origin| origin.to_string()).unwrap_or_default();
            let origin = names.entry(rule.origin.0).or_insert_with(named);
            if tables.identities().is_some() {
                return format!("{at:>3} {:<5} by identity  # {origin}", rule.action.to_string());
            }
            let (src, dst) = (shown_addresses(&rule.src), shown_addresses(&rule.dst));
            let services = shown_services(&rule.services);
            let by = rule.names.as_ref().map(|names| format!(" by name {names}")).unwrap_or_default();
            format!("{at:>3} {:<5} {src} -> {dst} {services}{by}  # {origin}", rule.action.to_string())
        };
        rules.iter().enumerate().map(&mut line).collect()
    });
    let not_enforced = used.audit.and_then(|id| snapshot.table(id)).map(|table| audited_in(now, table));
    let not_enforced = not_enforced.unwrap_or_default();
    Some(TableRow { port: name.to_owned(), rules: rules.len(), list, not_enforced })
}

/// Returns the names of the audited policies that have rules in this table.
fn audited_in(now: &Observation, table: &Tables) -> Vec<String> {
    let Some(audited) = now.audited.as_deref() else { return Vec::new() };
    let origins: BTreeSet<OriginId> = table.rules().iter().map(|rule| rule.origin).collect();
    let origins = origins.into_iter().filter_map(|id| now.about.origins.get(id));
    let policies: BTreeSet<AuditedPolicy> = origins.flat_map(|origin| policies_of(&origin)).collect();
    policies.intersection(audited).map(ToString::to_string).collect()
}
