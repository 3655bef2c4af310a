//! What a renderer makes of a state.

use std::path::PathBuf;

use clap::ValueEnum;

use super::{Format, State};

/// `bulkhead compile`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  bulkhead compile --state pcaps/redis-policy --node node-1\n\n\
    The vswitch enforces `acl`, `identity` or `session-rules`, the node's kernel `nftables`, OpenStack `neutron`, as `renderers:` of the\n\
    configuration and `bulkhead sync` say. What a renderer cannot say exactly, or only in too many rules, is an error, never something\n\
    wider. Tiers of cluster policies have the same verdicts in all of them.")]
pub struct Compile {
    /// Where the cluster's state comes from.
    #[command(flatten)]
    pub state: State,
    /// The node whose tables to print; not for --renderer neutron, which is about all nodes
    #[arg(long, default_value = "", hide_default_value = true)]
    pub node: String,
    /// Whose rules to print
    #[arg(long, value_enum, value_name = "RENDERER", default_value = "acl")]
    pub renderer: RendererName,
    /// With --renderer acl: print single (source, destination, protocol, port) rules instead of sets
    #[arg(long, conflicts_with = "stats")]
    pub six_tuples: bool,
    /// With --renderer acl: print how each table was compiled and what a lookup may cost, instead of the rules
    #[arg(long)]
    pub stats: bool,
    /// With --renderer neutron: files or folders of an earlier state; print the requests that lead from it
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub before: Vec<PathBuf>,
    /// With --renderer nftables: a JSON or YAML object of pods and their interfaces on the node (`default/web: veth-13dd25c5cb`);
    /// without it interfaces are named after the pods
    #[arg(long, value_name = "FILE")]
    pub interfaces: Option<PathBuf>,
    /// A JSON or YAML object with service_cidrs (docs/services.md): blocks of policies that lie in them are warned of, for policy is
    /// judged on the pods behind a Service
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// The form of the answer
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Format,
}

/// Who turns policies into the rules of a network stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RendererName {
    /// Tables per interface for the vswitch's own classifier.
    Acl,
    /// Contiv's 6-tuple rules of each pod, and the local and global tables that its cache makes of them, as VPP's ACLs take them.
    Contiv,
    /// Who has which address, and what each identity may do with each pod, as Cilium and `engine: identity` have it.
    Identity,
    /// The ruleset of the node's kernel, as `dataplane: nftables` has it enforced: a script for `nft -f`.
    Nftables,
    /// Rules for TCP and UDP sessions of a host stack (VPPTCP): one local table for each pod's applications, one global table.
    SessionRules,
    /// Security groups, rules and port attachments of OpenStack Neutron, for the whole cluster (docs/neutron.md).
    Neutron,
}
