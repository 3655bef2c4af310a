//! Session rules of a node, for applications on a host stack.

use std::collections::BTreeMap;
use std::io::Write;

use bulkhead_control::object::PodName;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::renderer::session_rules::{
    AttributedRule, SessionMatch, SessionRenderer, SessionRequest, SessionRule, SessionScope, SessionSide,
    SessionTarget, SessionTransport, TAG, TaggedRule, TargetError,
};
use serde_json::{Value, json};

use super::{attributions, named, write_json};
use crate::args::{Compile, Format};
use crate::output::{Columns, printable};

/// Application namespace of the first pod. The stack's default namespace is 0.
const FIRST_NAMESPACE: u32 = 1;

/// A simulated host stack without rules. A real stack numbers namespaces as applications attach; here pods are numbered by name.
struct Offline {
    namespaces: BTreeMap<PodName, u32>,
}

impl SessionTarget for Offline {
    fn dump(&mut self) -> Result<Vec<TaggedRule>, TargetError> {
        Ok(Vec::new())
    }

    fn ping(&mut self) -> Result<(), TargetError> {
        Ok(())
    }

    fn change(&mut self, _: &[SessionRequest]) -> Result<(), TargetError> {
        Ok(())
    }

    fn namespace(&self, pod: &PodName) -> Option<u32> {
        self.namespaces.get(pod).copied()
    }
}

pub(super) fn write(pipeline: &mut Pipeline, args: &Compile, out: &mut impl Write) -> anyhow::Result<()> {
    let of_node = pipeline.cache().pods().map(|(_, pod)| pod);
    let of_node = of_node.filter(|pod| pod.is_endpoint() && pod.node.as_deref() == Some(&*args.node));
    let mut names: Vec<PodName> = of_node.map(|pod| pod.name.clone()).collect();
    names.sort_unstable();
    let namespaces = names.into_iter().zip(FIRST_NAMESPACE..).collect();
    let handle = pipeline.register(SessionRenderer::new(args.node.as_str().into(), Offline { namespaces }));
    pipeline.render_all()?;
    let renderer = pipeline.renderer(handle);
    let rules = renderer.rules();
    match args.output {
        Format::Text => text(pipeline, &rules, &renderer.target().namespaces, &args.node, out),
        Format::Json => write_json(&document(pipeline, &rules, &renderer.target().namespaces, &args.node), out),
    }
}

fn text(
    pipeline: &Pipeline,
    rules: &[AttributedRule],
    namespaces: &BTreeMap<PodName, u32>,
    node: &str,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    writeln!(out, "node {}: {} session rules for TCP and UDP, tag {TAG}\n", printable(node), rules.len())?;
    let mut columns = Columns::new(&["NAMESPACE", "POD"]);
    for (pod, namespace) in namespaces {
        columns.row([namespace.to_string(), pod.to_string()]);
    }
    columns.write(out)?;
    writeln!(out)?;
    let mut columns = Columns::new(&["SCOPE", "NAMESPACE", "TRANSPORT", "LOCAL", "REMOTE", "ACTION", "ORIGIN"]);
    for AttributedRule { rule: SessionRule { matches, action }, origins, .. } in rules {
        let SessionMatch { scope, transport, local, remote } = matches;
        let (scope, namespace) = scope_of(*scope);
        columns.row([
            scope.into(),
            namespace.map_or_else(|| "-".into(), |namespace| namespace.to_string()),
            name(*transport).into(),
            side(local),
            side(remote),
            action.to_string(),
            match named(pipeline, origins) {
                none if none.is_empty() => "-".into(),
                origins => origins,
            },
        ]);
    }
    columns.write(out)?;
    Ok(())
}

fn document(pipeline: &Pipeline, rules: &[AttributedRule], namespaces: &BTreeMap<PodName, u32>, node: &str) -> Value {
    let rule = |AttributedRule { rule: SessionRule { matches, action }, pod, origins }: &AttributedRule| {
        let SessionMatch { scope, transport, local, remote } = matches;
        let (scope, namespace) = scope_of(*scope);
        json!({
            "scope": scope,
            "namespace": namespace,
            "pod": pod.as_ref().map(ToString::to_string),
            "tag": TAG,
            "transport": name(*transport),
            "local": { "network": local.network.to_string(), "port": local.port },
            "remote": { "network": remote.network.to_string(), "port": remote.port },
            "action": action.to_string(),
            "origins": attributions(pipeline, origins),
        })
    };
    let namespaces: Vec<Value> =
        namespaces.iter().map(|(pod, namespace)| json!({ "namespace": namespace, "pod": pod.to_string() })).collect();
    json!({
        "node": node,
        "renderer": "session-rules",
        "namespaces": namespaces,
        "rules": rules.iter().map(rule).collect::<Vec<_>>(),
    })
}

const fn scope_of(scope: SessionScope) -> (&'static str, Option<u32>) {
    match scope {
        SessionScope::Global => ("global", None),
        SessionScope::Local { namespace } => ("local", Some(namespace)),
    }
}

const fn name(transport: SessionTransport) -> &'static str {
    match transport {
        SessionTransport::Tcp => "TCP",
        SessionTransport::Udp => "UDP",
    }
}

/// Formats an end: `10.0.0.1/32 port 80` or `10.0.0.1/32 any port`. No colon, because IPv6 addresses contain colons.
fn side(side: &SessionSide) -> String {
    match side.port {
        0 => format!("{} any port", side.network),
        port => format!("{} port {port}", side.network),
    }
}
