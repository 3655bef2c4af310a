//! Compiles the tables of single nodes, for questions that need few of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Pipeline;
use super::apart::{self, Apart};
use super::audit::{AuditTables, Differing, of_audit};
use crate::contract::Endpoint;
use crate::object::PodName;
use crate::renderer::acl::{AclRenderer, NodeTables};
use crate::renderer::mirror::Mirror;
use crate::renderer::{Refusal, Renderer};

/// The tables of one node.
#[derive(Debug)]
pub struct CompiledNode {
    /// The tables in force.
    pub tables: Arc<NodeTables>,
    /// The audit tables. `None` if they cannot differ from those in force.
    pub audit: Option<AuditTables>,
    /// The rules that do not fit a table, unless [`Pipeline::refusals`] has them.
    pub refusals: Vec<Refusal>,
}

impl Pipeline {
    /// Returns the tables of a node, as its vswitch would have them. Compiles them if the pipeline makes no tables
    /// ([`Pipeline::without_tables`]). `None` if the node is unknown.
    pub fn compiled_node(&self, node: &str) -> Option<CompiledNode> {
        let Some(mirror) = self.mirror() else {
            let (tables, audit) = (self.node_tables(node)?, self.audit_tables(node));
            return Some(CompiledNode { tables, audit, refusals: Vec::new() });
        };
        let (tables, mut refusals) = compile(mirror, node, mirror.endpoints())?;
        let audit = self.shadow.as_ref().and_then(|shadow| {
            let mut differing = Differing::default();
            let here = mirror.endpoints().iter().filter(|(_, endpoint)| *endpoint.node == *node);
            here.for_each(|(name, enforced)| shadow.compare(name, enforced, &mut differing));
            if differing == Differing::default() {
                return None;
            }
            let (tables, refused) = compile(mirror, node, &shadow.told)?;
            refusals.extend(refused.into_iter().map(of_audit));
            Some(AuditTables { tables, differing })
        });
        Some(CompiledNode { tables, audit, refusals })
    }
}

/// Compiles a node's tables from the sets of a mirror and the node's pods among `endpoints`. `None` if the node is unknown.
fn compile(
    mirror: &Mirror,
    node: &str,
    endpoints: &BTreeMap<PodName, Arc<Endpoint>>,
) -> Option<(Arc<NodeTables>, Vec<Refusal>)> {
    let transaction = mirror.of_node(node, endpoints)?;
    let mut renderer = AclRenderer::of_questions(node.into());
    // Only single tables are refused. The renderer as a whole does not fail.
    renderer.render(&apart::for_tables(&transaction)).ok()?;
    let mut apart = Apart::default();
    apart.follow(&transaction, true);
    apart.combine(vec![renderer.node_tables(node)?.clone()]);
    let refusals = renderer.refusals().into_iter().chain(apart.refusals()).collect();
    Some((apart.tables(node)?.clone(), refusals))
}
