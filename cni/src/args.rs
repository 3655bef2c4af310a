//! The CNI plugin, and how it comes onto a node.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use ipnet::IpNet;

use bulkhead_observe::admin::DEFAULT_SOCKET;

/// `bulkhead cni`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  bulkhead cni install --range 10.244.1.0/24 --range fd00:244:1::/64\n\n\
    Without a subcommand it is the plugin itself: a container runtime runs it by the name bulkhead-cni, says in CNI_COMMAND what it\n\
    shall do and writes the network configuration to its standard input. docs/cni.md describes the configuration.")]
pub struct Cni {
    /// What to do instead of being the plugin.
    #[command(subcommand)]
    pub action: Option<CniAction>,
}

/// What `bulkhead cni` does besides being the plugin.
#[derive(Debug, clap::Subcommand)]
pub enum CniAction {
    /// Put the plugin and its network configuration where the container runtime looks for them
    Install(CniInstall),
    /// Remove what install has put there
    Uninstall(CniPlace),
}

/// Where a container runtime looks.
#[derive(Debug, clap::Args)]
pub struct CniPlace {
    /// The folder of CNI plugins
    #[arg(long, value_name = "FOLDER", default_value = "/opt/cni/bin")]
    pub bin_dir: PathBuf,
    /// The folder of network configurations, of which the runtime takes the first one by name
    #[arg(long, value_name = "FOLDER", default_value = "/etc/cni/net.d")]
    pub conf_dir: PathBuf,
    /// The file in it
    #[arg(long, value_name = "NAME", default_value = "05-bulkhead.conflist")]
    pub conflist_name: String,
}

/// `bulkhead cni install`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  bulkhead cni install --range 10.244.1.0/24 --range fd00:244:1::/64\n  bulkhead cni install --timeout 2m\n\n\
    Both files are replaced at once, so that a runtime that looks meanwhile sees the old ones or the new ones. The network\n\
    configuration comes last: where it is, the runtime takes pods."
)]
pub struct CniInstall {
    /// Where.
    #[command(flatten)]
    pub place: CniPlace,
    /// Where pods of this node get their addresses from; may be repeated. Without it the node's podCIDRs, for which the vswitch is asked
    #[arg(long = "range", value_name = "CIDR")]
    pub ranges: Vec<IpNet>,
    /// Ask the API server for the podCIDRs of this node, as a pod of the cluster is told to reach it, and not the vswitch: what an init
    /// container does, which runs before the vswitch
    #[arg(long, value_name = "NAME", conflicts_with = "ranges")]
    pub node: Option<String>,
    /// How the API server is reached, as kubectl has it
    #[arg(long, value_name = "FILE", requires = "node")]
    pub kubeconfig: Option<PathBuf>,
    /// How long to wait until the node's podCIDRs are known
    #[arg(long, value_name = "TIME", default_value = "60s", conflicts_with = "ranges", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
    /// The vswitch's admin socket
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// The MTU of pods' interfaces; without it that of the node's way out
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1280..=65535))]
    pub mtu: Option<u32>,
    /// The version of the CNI specification; without it the newest one that host-local in the folder of plugins speaks as well
    #[arg(long, value_enum, value_name = "VERSION")]
    pub cni_version: Option<CniVersion>,
}

/// A version of the CNI specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CniVersion {
    /// Without GC and STATUS.
    #[value(name = "1.0.0")]
    V1_0,
    /// With both.
    #[value(name = "1.1.0")]
    V1_1,
}
