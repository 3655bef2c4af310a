//! Command line of `bulkhead cni`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use ipnet::IpNet;

use bulkhead_observe::admin::DEFAULT_SOCKET;

/// `bulkhead cni`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  bulkhead cni install --range 10.244.1.0/24 --range fd00:244:1::/64\n\n\
    Without a subcommand this is the CNI plugin itself. A container runtime runs it under the name bulkhead-cni, with the command in\n\
    CNI_COMMAND and the network configuration on standard input. docs/cni.md describes the configuration.")]
pub struct Cni {
    /// Install or uninstall the plugin
    #[command(subcommand)]
    pub action: Option<CniAction>,
}

/// Subcommands of `bulkhead cni`.
#[derive(Debug, clap::Subcommand)]
pub enum CniAction {
    /// Install the plugin and its network configuration in the container runtime's folders
    Install(CniInstall),
    /// Remove the plugin and its network configuration
    Uninstall(CniPlace),
}

/// Where the container runtime looks for plugins and network configurations.
#[derive(Debug, clap::Args)]
pub struct CniPlace {
    /// Folder of the CNI plugins
    #[arg(long, value_name = "FOLDER", default_value = "/opt/cni/bin")]
    pub bin_dir: PathBuf,
    /// Folder of the network configurations; the runtime uses the first file in alphabetical order
    #[arg(long, value_name = "FOLDER", default_value = "/etc/cni/net.d")]
    pub conf_dir: PathBuf,
    /// Name of the network configuration file
    #[arg(long, value_name = "NAME", default_value = "05-bulkhead.conflist")]
    pub conflist_name: String,
}

/// `bulkhead cni install`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  bulkhead cni install --range 10.244.1.0/24 --range fd00:244:1::/64\n  bulkhead cni install --timeout 2m\n\n\
    Each file is replaced atomically, so a runtime never reads half a file. The network configuration is written last: the runtime\n\
    starts pods as soon as it exists."
)]
pub struct CniInstall {
    /// Where to install.
    #[command(flatten)]
    pub place: CniPlace,
    /// Address range for pods of this node; repeat for more [default: the node's podCIDRs, as the vswitch reports them]
    #[arg(long = "range", value_name = "CIDR")]
    pub ranges: Vec<IpNet>,
    /// Name of this node: take its podCIDRs from the API server instead of the vswitch. For an init container, which runs before the
    /// vswitch
    #[arg(long, value_name = "NAME", conflicts_with = "ranges")]
    pub node: Option<String>,
    /// Address range for the pods of one node; repeat for more ranges and nodes. The node of --node uses its ranges of this list. A node
    /// without any uses its podCIDRs. For clusters whose nodes have no podCIDRs (--allocate-node-cidrs=false)
    #[arg(long = "node-range", value_name = "NODE=CIDR", requires = "node")]
    pub node_ranges: Vec<NodeRange>,
    /// Kubeconfig file for the API server [default: the pod's service account]
    #[arg(long, value_name = "FILE", requires = "node")]
    pub kubeconfig: Option<PathBuf>,
    /// How long to wait for the node's podCIDRs
    #[arg(long, value_name = "TIME", default_value = "60s", conflicts_with = "ranges", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
    /// Admin socket of the vswitch
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// MTU of pods' interfaces [default: what reaches all nodes, as the vswitch computes it]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1280..=65535))]
    pub mtu: Option<u32>,
    /// Version of the CNI specification [default: the newest that the runtime supports]
    #[arg(long, value_enum, value_name = "VERSION")]
    pub cni_version: Option<CniVersion>,
}

/// An address range for the pods of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRange {
    /// The node's name.
    pub node: String,
    /// The addresses.
    pub range: IpNet,
}

impl FromStr for NodeRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (node, range) = text
            .split_once('=')
            .filter(|(node, _)| !node.is_empty())
            .ok_or("write NODE=CIDR, such as node-1=10.244.1.0/24")?;
        let range =
            range.parse().map_err(|_| format!("`{range}` is no block of addresses; write node-1=10.244.1.0/24"))?;
        Ok(Self { node: node.to_owned(), range })
    }
}

/// A version of the CNI specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CniVersion {
    /// Has no GC and STATUS.
    #[value(name = "1.0.0")]
    V1_0,
    /// Has GC and STATUS.
    #[value(name = "1.1.0")]
    V1_1,
}
