//! What the user typed, checked as far as it can be without reading anything.

mod admin;
mod asked;
mod claims;
mod cni;
mod diff;
mod explain;
mod learn;
mod lint;
#[cfg(target_os = "linux")]
mod live;
mod planned;
mod policies;
mod replay;
mod resolve;
mod sync;
mod target;
mod top;
mod wait;
mod watch;
mod why;

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use bulkhead_control::object::{Enforcement, IngressIsolation, PodName, Transport};
use bulkhead_control::source::{KindName, Options, Semantics, Strictness};
use clap::{Parser, Subcommand, ValueEnum};

pub use admin::{Admin, Audit, AuditAction, Reload, Sessions, Status, Tables};
pub use asked::Asked;
pub use claims::{Test, TestFormat};
pub use cni::{Cni, CniAction, CniInstall, CniPlace, CniVersion};
pub use diff::{Diff, DiffFormat};
pub use explain::Explain;
pub use learn::{Learn, Learned};
pub use lint::{Lint, LintFormat};
#[cfg(target_os = "linux")]
pub use live::LiveCommand;
pub use planned::Planned;
pub use policies::Policies;
pub use replay::Replay;
pub use resolve::{Destination, Resolve};
use serde::Deserialize;
pub use sync::{Sync, SyncNeutron, SyncTarget};
pub use target::{ServicePortWord, ServiceTarget, Target};
pub use top::{PortOrder, Top};
pub use wait::{PolicyReference, Wait};
pub use watch::{Capture, Monitor, Trace, Traced, WatchedEnds};
pub use why::{Bundle, Why};

/// A Kubernetes node's vswitch in user space that enforces NetworkPolicy.
#[derive(Debug, Parser)]
#[command(name = "bulkhead", version, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 ok, 1 the answer is \"no\", 2 an error.")]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Judge every packet of a capture by a node's tables
    Replay(Replay),
    /// Make the NetworkPolicies that allow what captures and flow logs show, and prove it
    Learn(Learn),
    /// Show who can reach whom: the truth table of a cluster
    Reach(Reach),
    /// Walk one connection through every table and name the rule that decides
    Explain(Explain),
    /// Say what became of a connection at a time in the past, by which rule, and what has changed since: the flight recorder
    Why(Why),
    /// Name what changes verdict from one state to another, exactly, and the rules that make the difference
    Diff(Diff),
    /// Find rules that never decide, and what policies say otherwise than was meant
    Lint(Lint),
    /// Name the backends that a new connection to a Service may be given
    Resolve(Resolve),
    /// Prove what is claimed of a state: never, always, only
    Test(Test),
    /// Print what a renderer makes of a node's policies: its compiled tables
    Compile(Compile),
    /// Check and time the classifier on a ClassBench rule set and trace
    Classify(Classify),
    /// List what each policy and rule of the running vswitch has let through and denied, or which policies of a state select a pod
    Policies(Policies),
    /// What needs a Linux machine.
    #[cfg(target_os = "linux")]
    #[command(flatten)]
    Live(LiveCommand),
    /// Print the script that completes this command line in a shell
    Completions(Completions),
    /// Write man pages, of the program and of each subcommand
    Man(Man),
}

/// Where the cluster's state comes from.
#[derive(Clone, Debug, clap::Args)]
pub struct State {
    /// Files or folders of Kubernetes objects: YAML, JSON, or what `kubectl get -o yaml|json` printed; `-` for standard input; or what
    /// `bulkhead bundle` has written
    #[arg(long = "state", value_name = "PATH", required = true, num_args = 1..)]
    pub paths: Vec<PathBuf>,
    /// Go on when an object is not understood, as `run` does: such a policy then isolates its pods and allows nothing, such a
    /// pod is nobody. Without this it is an error. A file that is not YAML or JSON is refused all the same
    #[arg(long)]
    pub lenient: bool,
    /// What NetworkPolicies of extensions/v1beta1 mean: the same as those of networking.k8s.io/v1, as servers since Kubernetes 1.7 have
    /// it, or what they meant in 2016: the annotation of the namespace isolates, policies only allow ingress, an empty list nothing
    #[arg(long, value_enum, value_name = "VERSION", default_value = "v1")]
    pub policy_semantics: PolicySemantics,
    /// With --policy-semantics v1beta1, what a namespace does with ingress when its annotation does not say
    #[arg(long, value_enum, value_name = "ISOLATION", default_value = "open")]
    pub namespace_default: NamespaceDefault,
    /// Go on though objects of this kind restrict traffic and are not enforced, such as CiliumNetworkPolicy or
    /// NetworkPolicy.projectcalico.org; without this they are an error. May be repeated
    #[arg(long, value_name = "KIND")]
    pub ignore: Vec<KindName>,
    /// Whether policies are enforced that do not say, nor their namespaces (bulkhead.dev/enforcement): as `enforcement` in the configuration
    /// of `run`. Audited policies deny nothing (docs/audit.md)
    #[arg(long, value_enum, value_name = "ENFORCEMENT", default_value = "enforce")]
    pub enforcement: EnforcementName,
}

/// Whether policies are enforced that do not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EnforcementName {
    /// They are.
    #[default]
    Enforce,
    /// They are audited: what they would deny passes, and is counted.
    Audit,
}

impl From<EnforcementName> for Enforcement {
    fn from(name: EnforcementName) -> Self {
        match name {
            EnforcementName::Enforce => Self::Enforce,
            EnforcementName::Audit => Self::Audit,
        }
    }
}

impl State {
    /// How the objects are read.
    ///
    /// # Errors
    /// When two arguments contradict each other.
    pub fn options(&self) -> anyhow::Result<Options> {
        let semantics = semantics(self.policy_semantics, self.namespace_default).ok_or_else(|| {
            anyhow::anyhow!(
                "--namespace-default default-deny has no effect\n  help: only with --policy-semantics v1beta1 do namespaces isolate"
            )
        })?;
        let strictness = if self.lenient { Strictness::Lenient } else { Strictness::Strict };
        let ignored = self.ignore.iter().cloned().collect();
        Ok(Options { strictness, semantics, ignored, ..Options::default() })
    }
}

/// What `extensions/v1beta1` means; none where the default for namespaces would have no effect.
pub(crate) fn semantics(version: PolicySemantics, default: NamespaceDefault) -> Option<Semantics> {
    match (version, default) {
        (PolicySemantics::V1, NamespaceDefault::Open) => Some(Semantics::V1),
        (PolicySemantics::V1, NamespaceDefault::DefaultDeny) => None,
        (PolicySemantics::V1beta1, NamespaceDefault::Open) => {
            Some(Semantics::V1beta1 { default: IngressIsolation::ClusterDefault })
        }
        (PolicySemantics::V1beta1, NamespaceDefault::DefaultDeny) => {
            Some(Semantics::V1beta1 { default: IngressIsolation::DefaultDeny })
        }
    }
}

/// What NetworkPolicies of `extensions/v1beta1` mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicySemantics {
    /// The same as those of `networking.k8s.io/v1`.
    #[default]
    V1,
    /// What they meant in 2016.
    V1beta1,
}

/// What namespaces do that do not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NamespaceDefault {
    /// Their pods are open unless a policy isolates them.
    #[default]
    Open,
    /// Nothing comes in but what a policy allows.
    DefaultDeny,
}

/// The form of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// How events of a running vswitch are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// A line for people, more lines indented.
    #[default]
    Text,
    /// An object in one line.
    Json,
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

/// `bulkhead reach`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  bulkhead reach --state pcaps/redis-policy --port 6379/TCP --port 53/UDP --external 192.0.2.1\n  \
    bulkhead reach --state examples/services.yaml examples/service-policy.yaml --to service/shop/web:http\n  \
    bulkhead reach --state pcaps/shop/state.yaml examples/shop/policies.yaml --port 6379 --port 8080 -o mermaid --focus shop\n\n\
    Each answer comes from a first packet and its reply that are pushed through the tables of every node on the way.\n\n\
    With --to the answer is about Services: for each source whether policy lets it reach all backends that its node may give it\n\
    (`allow`), some of them (`some`) or none (`deny`); or why the Service itself refuses: no endpoint, no local endpoint, source range.\n\
    Pods use the cluster address. An address outside (--external) uses the load balancer's address, else external addresses, else the\n\
    node port, and is asked about at every node. docs/services.md describes the JSON."
)]
pub struct Reach {
    /// Where the cluster's state comes from.
    #[command(flatten)]
    pub state: State,
    /// What of it is not there yet.
    #[command(flatten)]
    pub planned: Planned,
    /// The destination port and protocol to ask about, e.g. 80/TCP; may be repeated. With --to a port of the Service; without it all
    #[arg(long = "port", value_name = "PORT/PROTOCOL", required_unless_present = "to")]
    pub ports: Vec<PortProtocol>,
    /// Who reaches this Service; may be repeated
    #[arg(
        long = "to",
        value_name = "service/NAMESPACE/NAME[:PORT]|IP",
        help = "Ask who reaches this Service, by its name or by one of its addresses; may be repeated"
    )]
    pub to: Vec<Target>,
    /// An address outside the cluster to ask about too; may be repeated
    #[arg(long = "external", value_name = "IP")]
    pub external: Vec<IpAddr>,
    /// With --to: a JSON or YAML object with service_cidrs, cluster_cidrs and what else docs/services.md lists
    #[arg(long, value_name = "FILE", requires = "to")]
    pub settings: Option<PathBuf>,
    /// With -o md, csv, dot or mermaid: only what talks with the pods of this namespace, or with this workload or pod; may be repeated
    #[arg(long, value_name = "NAMESPACE[/NAME]", conflicts_with = "to")]
    pub focus: Vec<String>,
    /// The form of the answer. All but text and json tell equal pods of a workload as one
    #[arg(short, long, value_enum, value_name = "FORM", default_value = "text")]
    pub output: ReachFormat,
}

/// The form of a truth table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReachFormat {
    /// For people: a matrix of pods.
    Text,
    /// For programs: every two pods.
    Json,
    /// A table for a pull request.
    #[value(alias = "markdown")]
    Md,
    /// For spreadsheets: RFC 4180.
    Csv,
    /// A graph for Graphviz.
    Dot,
    /// A graph for Mermaid, which GitHub draws between fences.
    Mermaid,
}

/// `bulkhead compile`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  bulkhead compile --state pcaps/redis-policy --node node-1\n\n\
    The vswitch enforces the tables of `acl`. The other renderers are for other stacks: what they cannot say exactly, or only in\n\
    too many rules, is an error, never something wider. Tiers of cluster policies are lowered to the same verdicts in all of them.")]
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

/// `bulkhead cleanup`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  bulkhead cleanup\n  bulkhead cleanup --config node.yaml\n\n\
    After it nothing of a vswitch is in the kernel of this network namespace; sessions that it had left end at once. Exit code 0 when\n\
    there is nothing to remove; 2 when a vswitch still runs here. The flight recorder's journal stays, for whoever asks why afterwards: it is a\n\
    file, `journal-NODE` in journal.folder.")]
pub struct Cleanup {
    /// The configuration that the vswitch had, for its `pins` and the interfaces that it has had made (`create`); without it pins are
    /// where they are by default, and no interfaces are removed but the trunk
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// `bulkhead classify`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  bulkhead classify --rules acl1.rules.gz --trace acl1.trace.gz -o json\n\n\
    Exit code 1 when an answer differs from the trace's.")]
pub struct Classify {
    /// Rules in the ClassBench format, plain or gzip
    #[arg(long, value_name = "FILE")]
    pub rules: PathBuf,
    /// Packets with the position of the rule that decides each, plain or gzip
    #[arg(long, value_name = "FILE")]
    pub trace: PathBuf,
    /// The form of the answer
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Format,
}

/// `bulkhead run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  bulkhead run --config examples/node.yaml --check\n\n\
    The configuration and the state's files are watched: ports, routes and policy change while it runs.\n\
    SIGTERM and SIGINT stop it and give the interfaces back; SIGUSR1 prints the summary that also comes at the end;\n\
    SIGHUP looks at the files at once. A second SIGTERM or SIGINT, a second or more after the first, ends it without waiting.\n\
    Exit codes: 0 stopped by a signal; with --check 0 it would start, 1 it would not; 2 an error, or a capture that is not\n\
    whole; 143 or 130 ended by a second SIGTERM or SIGINT.")]
pub struct Run {
    /// The configuration; examples/node.yaml shows every field
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The node's name, instead of the configuration's: where one file is for all nodes of a cluster
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Only check whether it would start, and touch nothing
    #[arg(long)]
    pub check: bool,
    /// Take an interface even if it carries the node's default route
    #[arg(long)]
    pub force: bool,
    /// How events are written to standard error, instead of as the configuration says (log.format)
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
    /// Write this file when forwarding has started; systemd is told as well (Type=notify)
    #[arg(long, value_name = "PATH")]
    pub ready_file: Option<PathBuf>,
    /// Record what comes in, with its verdicts, until the end: for looking, it costs a copy of every packet
    #[arg(long, value_name = "OUT.pcapng")]
    pub capture: Option<PathBuf>,
    /// The form of the summary and of the findings of --check
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Format,
}

/// `bulkhead completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  bulkhead completions bash > /etc/bash_completion.d/bulkhead")]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// `bulkhead man`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  bulkhead man --out /usr/local/share/man/man1")]
pub struct Man {
    /// The folder that they are written to; it is made where there is none
    #[arg(long, value_name = "FOLDER")]
    pub out: PathBuf,
}

/// A destination port and its protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortProtocol {
    /// The port, 1 to 65535.
    pub port: u16,
    /// The protocol.
    pub transport: Transport,
}

impl std::fmt::Display for PortProtocol {
    /// `80/TCP`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.port, self.transport)
    }
}

impl FromStr for PortProtocol {
    type Err = String;

    /// `80/TCP`, `80/tcp`; `80` is TCP.
    fn from_str(text: &str) -> Result<Self, String> {
        let (port, protocol) = text.split_once('/').unwrap_or((text, "TCP"));
        let port = port.parse().ok().filter(|&port: &u16| port > 0);
        let port = port.ok_or_else(|| format!("`{text}` has no port from 1 to 65535; write for example 80/TCP"))?;
        let transport = Transport::from_name(&protocol.to_ascii_uppercase());
        let transport = transport.ok_or_else(|| format!("unknown protocol `{protocol}`; write TCP, UDP or SCTP"))?;
        Ok(Self { port, transport })
    }
}

/// One end of a connection as the user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndName {
    /// A pod.
    Pod(PodName),
    /// An address outside the cluster, or a pod's own.
    Address(IpAddr),
}

impl FromStr for EndName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        match text.split_once('/') {
            Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
                Ok(Self::Pod(PodName::new(namespace, name)))
            }
            _ => Err(format!("`{text}` is neither namespace/pod nor an IP address")),
        }
    }
}

/// Paths of states and of captures, told by the ends of their names: an option that takes several paths takes the captures behind them as
/// well.
pub(crate) fn without_captures(paths: &[PathBuf]) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let is_capture = |path: &PathBuf| {
        path.extension().and_then(|end| end.to_str()).is_some_and(|end| ["pcap", "pcapng", "cap"].contains(&end))
    };
    paths.iter().cloned().partition(|path| !is_capture(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Args::command().debug_assert();
    }

    #[test]
    fn ports_are_taken_as_people_write_them() {
        let tcp80 = PortProtocol { port: 80, transport: Transport::Tcp };
        assert_eq!("80".parse(), Ok(tcp80));
        assert_eq!("80/tcp".parse(), Ok(tcp80));
        assert_eq!("9/SCTP".parse(), Ok(PortProtocol { port: 9, transport: Transport::Sctp }));
        for wrong in ["0/TCP", "65536/TCP", "http/TCP", "80/ICMP", "/TCP", ""] {
            assert!(wrong.parse::<PortProtocol>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_end_is_a_pod_or_an_address() {
        assert_eq!("x/a".parse(), Ok(EndName::Pod(PodName::new("x", "a"))));
        assert_eq!("fd00::1".parse(), Ok(EndName::Address("fd00::1".parse().unwrap())));
        assert!("a".parse::<EndName>().is_err() && "/a".parse::<EndName>().is_err());
    }
}
