//! What is watched of a running vswitch.

use std::path::PathBuf;

use bulkhead_answers::args::DEFAULT_SOCKET;
use bulkhead_answers::args::Format;

/// Whose traffic is watched.
#[derive(Debug, Default, clap::Args)]
pub struct WatchedEnds {
    /// Only traffic of pods whose namespace/name begins so, whichever side they are; may be repeated
    #[arg(long = "pod", value_name = "NAMESPACE/NAME")]
    pub pods: Vec<String>,
    /// Only traffic of pods of this namespace; may be repeated
    #[arg(long = "namespace", value_name = "NAME")]
    pub namespaces: Vec<String>,
    /// Only traffic of pods with these labels: key=value or key, with commas between those that a pod must have; may be repeated
    #[arg(short = 'l', long = "label", value_name = "LABELS")]
    pub labels: Vec<String>,
}

/// `bulkhead monitor`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  bulkhead monitor --verdict DROPPED\n  bulkhead monitor --pod shop/web --port 80 -n 10\n  \
    bulkhead monitor -o json > flows.json; bulkhead replay --flows flows.json --state .\n\n\
    A line for each new session, and for each flow of which packets are dropped: repeats within a second are one line with their number.\n\
    -o json prints what `hubble observe -o json` does, with more in the field `bulkhead`. What is left out is told as `lost_events`."
)]
pub struct Monitor {
    /// The vswitch's admin socket
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// The form of the answer
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Format,
    /// Whose traffic.
    #[command(flatten)]
    pub ends: WatchedEnds,
    /// Only these verdicts: FORWARDED, DROPPED or AUDIT; may be repeated
    #[arg(long = "verdict", value_name = "VERDICT")]
    pub verdicts: Vec<String>,
    /// Only traffic with this port on one side; may be repeated
    #[arg(long = "port", value_name = "PORT")]
    pub ports: Vec<u16>,
    /// Only this protocol: tcp, udp, sctp, icmp, icmpv6, or a number; may be repeated
    #[arg(long = "protocol", value_name = "NAME")]
    pub protocols: Vec<String>,
    /// End after so many lines
    #[arg(short = 'n', long = "number", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Show so many of the last ones that are remembered, and end unless --follow is given. The vswitch remembers what it has told
    /// somebody: 4,096 at most
    #[arg(long, value_name = "N")]
    pub last: Option<usize>,
    /// With --last, go on
    #[arg(short, long, requires = "last")]
    pub follow: bool,
    /// The most lines a second; what is more is left out and counted
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: u32,
}

/// Which packets are looked at.
#[derive(Debug, Default, clap::Args)]
pub struct Traced {
    /// Whose traffic.
    #[command(flatten)]
    pub ends: WatchedEnds,
    /// Only packets that are forwarded (FORWARDED) or dropped (DROPPED)
    #[arg(long = "verdict", value_name = "VERDICT")]
    pub verdicts: Vec<String>,
    /// Only packets that are dropped
    #[arg(long, conflicts_with = "verdicts")]
    pub dropped_only: bool,
    /// Also packets that the kernel forwards by itself: flows that match come to the workers until this ends
    #[arg(long)]
    pub cached: bool,
    /// End after so many packets
    #[arg(short = 'n', long = "number", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// The most packets a second; what is more is left out and counted
    #[arg(long, value_name = "N", default_value = "10000", value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: u32,
    /// An expression of pcap-filter(7) about addresses, ports and protocols: `tcp port 80 and not host 10.0.0.1`
    #[arg(value_name = "FILTER")]
    pub filter: Vec<String>,
}

/// `bulkhead trace`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  bulkhead trace --dropped-only -n 5 'host 10.244.1.7'\n  bulkhead trace --pod shop/web tcp port 80\n  \
    bulkhead trace --cached --namespace shop -o json\n\n\
    Each packet with its walk: where it came in, session, translation, table and rule, where it leaves or why it does not."
)]
pub struct Trace {
    /// The vswitch's admin socket
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// The form of the answer
    #[arg(short, long, value_enum, default_value = "text")]
    pub output: Format,
    /// Which packets.
    #[command(flatten)]
    pub traced: Traced,
}

/// `bulkhead capture`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  bulkhead capture --write web.pcapng --pod shop/web tcp port 80\n  \
    bulkhead capture --write - --dropped-only | wireshark -k -i -\n  \
    bulkhead capture --write ring.pcapng --files 5 --file-size 100 --snaplen 96\n\n\
    A pcapng with the verdict of each packet as its comment, as `bulkhead replay --write` makes it.")]
pub struct Capture {
    /// The vswitch's admin socket
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// The file that is written; `-` for standard output
    #[arg(short, long, value_name = "FILE")]
    pub write: PathBuf,
    /// With --file-size, so many files, of which the oldest is written over: FILE with a number before its extension
    #[arg(long, value_name = "N", requires = "file_size", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub files: Option<u32>,
    /// The size of a file in megabytes at which another one begins
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub file_size: Option<u32>,
    /// Bytes of each packet that are kept; a packet's first frame has 3,840 at most
    #[arg(long, value_name = "BYTES", default_value_t = 3840, value_parser = clap::value_parser!(u16).range(1..=3840))]
    pub snaplen: u16,
    /// Which packets.
    #[command(flatten)]
    pub traced: Traced,
}
