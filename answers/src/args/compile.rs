//! Arguments of `bulkhead compile`.

use std::path::PathBuf;

use clap::ValueEnum;

use super::ends::node_name;
use super::{Format, State};

/// `bulkhead compile`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  bulkhead compile --state pcaps/redis-policy --node node-1\n\n\
    The vswitch enforces `acl`, `identity` or `session-rules` (`renderers:` in its configuration), the node's kernel `nftables`, and\n\
    OpenStack `neutron` (`bulkhead sync`). A policy that a renderer cannot express exactly, or only with too many rules, is an error;\n\
    a renderer never allows more than the policy. Cluster policies give the same verdicts in all renderers.")]
pub struct Compile {
    /// State to read.
    #[command(flatten)]
    pub state: State,
    /// Node whose tables to print; not used by --renderer neutron, which covers all nodes
    #[arg(long, value_parser = node_name, default_value = "", hide_default_value = true)]
    pub node: String,
    /// Renderer whose output to print
    #[arg(long, value_enum, value_name = "RENDERER", default_value = "acl")]
    pub renderer: RendererName,
    /// With --renderer acl: print individual (source, destination, protocol, port) rules instead of sets
    #[arg(long, conflicts_with = "stats")]
    pub six_tuples: bool,
    /// With --renderer acl: print how each table was compiled and its lookup cost instead of the rules
    #[arg(long)]
    pub stats: bool,
    /// With --renderer neutron: files or folders of an earlier state; print the requests that lead from it to this state
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub before: Vec<PathBuf>,
    /// With --renderer nftables: JSON or YAML object that maps pods to their interfaces on the node (`default/web: veth-13dd25c5cb`). If
    /// omitted, interfaces are named after the pods
    #[arg(long, value_name = "FILE")]
    pub interfaces: Option<PathBuf>,
    /// JSON or YAML file with service_cidrs (docs/services.md). Warns about policy blocks inside them: policy is judged on the pods behind
    /// a Service
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// Format of the answer on standard output
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Format,
}

/// A renderer: translates policies into the rules of one network stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RendererName {
    /// Tables per interface for the vswitch's own classifier.
    Acl,
    /// Contiv's 6-tuple rules of each pod, and the local and global tables that Contiv builds from them for VPP's ACLs.
    Contiv,
    /// Identity of each address, and what each identity may send to each pod, as Cilium and `engine: identity` use them.
    Identity,
    /// An nftables ruleset for the node's kernel, as `dataplane: nftables` enforces it: a script for `nft -f`.
    Nftables,
    /// TCP and UDP session rules of a host stack (VPPTCP): a local table for each pod's applications and one global table.
    SessionRules,
    /// Security groups, rules and port assignments of OpenStack Neutron, for the whole cluster (docs/neutron.md).
    Neutron,
}
