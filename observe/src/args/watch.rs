//! Arguments of `bulkhead monitor`, `trace` and `capture`.

use std::path::PathBuf;

use bulkhead_answers::args::DEFAULT_SOCKET;
use bulkhead_answers::args::Format;

/// Filter by the ends of traffic.
#[derive(Debug, Default, clap::Args)]
pub struct WatchedEnds {
    /// Only traffic from or to these ends: the beginning of a pod's namespace/name, a workload (deploy/shop/web), labels (`app=web -n shop`),
    /// node/NAME or an address; may be repeated
    #[arg(long = "pod", value_name = "NAMESPACE/NAME|KIND/NAMESPACE/NAME|LABELS -n NAMESPACE|node/NAME|ADDRESS")]
    pub pods: Vec<String>,
    /// Only traffic of pods of this namespace; may be repeated
    #[arg(long = "namespace", value_name = "NAME")]
    pub namespaces: Vec<String>,
    /// Only traffic of pods with these labels: key=value or key, separated by commas (all must match); may be repeated
    #[arg(short = 'l', long = "label", value_name = "LABELS")]
    pub labels: Vec<String>,
}

/// `bulkhead monitor`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  bulkhead monitor --verdict DROPPED\n  bulkhead monitor --pod shop/web --port 80 -n 10\n  \
    bulkhead monitor -o json > flows.json; bulkhead replay --flows flows.json --state .\n\n\
    Prints a line for each new session and each flow with dropped packets; repeats within a second share a line with their count.\n\
    -o json uses the format of `hubble observe -o json` with additional data in the field `bulkhead`, and `lost_events` for lost lines."
)]
pub struct Monitor {
    /// Admin socket of the vswitch
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Format of the answer on standard output
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Format,
    /// Pods whose traffic to show.
    #[command(flatten)]
    pub ends: WatchedEnds,
    /// Only these verdicts: FORWARDED, DROPPED or AUDIT; may be repeated
    #[arg(long = "verdict", value_name = "VERDICT")]
    pub verdicts: Vec<String>,
    /// Only traffic with this source or destination port; may be repeated
    #[arg(long = "port", value_name = "PORT")]
    pub ports: Vec<u16>,
    /// Only this protocol: tcp, udp, sctp, icmp, icmpv6 or a number; may be repeated
    #[arg(long = "protocol", value_name = "NAME")]
    pub protocols: Vec<String>,
    /// Stop after N lines
    #[arg(short = 'n', long = "number", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Show the last N remembered flows, then stop unless --follow is given. The vswitch remembers up to 4,096 flows that it sent to
    /// clients
    #[arg(long, value_name = "N")]
    pub last: Option<usize>,
    /// With --last: continue with new flows
    #[arg(short, long, requires = "last")]
    pub follow: bool,
    /// Maximum lines per second; the rest is dropped and counted
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: u32,
}

/// Filter by packets.
#[derive(Debug, Default, clap::Args)]
pub struct Traced {
    /// Pods whose traffic to show.
    #[command(flatten)]
    pub ends: WatchedEnds,
    /// Only packets that are forwarded (FORWARDED) or dropped (DROPPED)
    #[arg(long = "verdict", value_name = "VERDICT")]
    pub verdicts: Vec<String>,
    /// Only dropped packets
    #[arg(long, conflicts_with = "verdicts")]
    pub dropped_only: bool,
    /// Include packets that the kernel forwards by itself: redirects matching flows to the workers until this command ends
    #[arg(long)]
    pub cached: bool,
    /// Stop after N packets
    #[arg(short = 'n', long = "number", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Maximum packets per second; the rest is dropped and counted
    #[arg(long, value_name = "N", default_value = "10000", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: u32,
    /// A pcap-filter(7) expression of addresses, ports and protocols: `tcp port 80 and not host 10.0.0.1`
    #[arg(value_name = "FILTER")]
    pub filter: Vec<String>,
}

/// `bulkhead trace`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  bulkhead trace --dropped-only -n 5 'host 10.244.1.7'\n  bulkhead trace --pod shop/web tcp port 80\n  \
    bulkhead trace --cached --namespace shop -o json\n\n\
    Prints each packet with its path: ingress port, session, translation, table and rule, and egress port or drop reason."
)]
pub struct Trace {
    /// Admin socket of the vswitch
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// Format of the answer on standard output
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Format,
    /// Packets to show.
    #[command(flatten)]
    pub traced: Traced,
}

/// `bulkhead capture`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  bulkhead capture --write web.pcapng --pod shop/web tcp port 80\n  \
    bulkhead capture --write - --dropped-only | wireshark -k -i -\n  \
    bulkhead capture --write ring.pcapng --files 5 --file-size 100 --snaplen 96\n\n\
    Writes a pcapng file with the verdict of each packet as its comment, like `bulkhead replay --write`.")]
pub struct Capture {
    /// Admin socket of the vswitch
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// File to write; `-` for standard output
    #[arg(short, long, value_name = "FILE")]
    pub write: PathBuf,
    /// With --file-size: number of files in the ring; the oldest is overwritten. FILE gets a number before its extension
    #[arg(long, value_name = "N", requires = "file_size", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub files: Option<u32>,
    /// Start a new file at this size in megabytes
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub file_size: Option<u32>,
    /// Bytes to keep of each packet, at most the 3,840 of a packet's first frame
    #[arg(long, value_name = "BYTES", default_value_t = 3840, value_parser = clap::value_parser!(u16).range(1..=3840))]
    pub snaplen: u16,
    /// Packets to show.
    #[command(flatten)]
    pub traced: Traced,
}
