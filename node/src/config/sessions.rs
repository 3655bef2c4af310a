//! How connections are remembered, and the dataplane's settings for it.

use std::path::PathBuf;
use std::time::Duration;

use bulkhead_dataplane::{Percent, SessionConfig, TcpWindow, Timeouts};

/// How connections are remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionsConfig {
    /// The folder that keeps them while the process is away; none when they end with it.
    pub folder: Option<PathBuf>,
    /// The most sessions of all workers together.
    pub capacity: Option<usize>,
    /// Whether a TCP connection may be picked up in its middle.
    pub tcp_pickup: bool,
    /// What becomes of a segment that would end a connection and is not where one can be.
    pub tcp_window: Window,
    /// Life without packets; none is the dataplane's default.
    pub timeouts: TimeoutsConfig,
    /// What one sender may have of them; none is the dataplane's default.
    pub shares: SharesConfig,
}

/// What becomes of a TCP segment that would end a connection and is not where a segment of it can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Window {
    /// It ends nothing and is left to its receiver.
    #[default]
    Loose,
    /// It is dropped; every segment goes through a worker.
    Strict,
}

/// Shares of the sessions in percent, where the file says them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SharesConfig {
    /// Connections that are not established or are over.
    pub half_open: Option<u8>,
    /// What one pod has started, and what others have started to it.
    pub pod: Option<u8>,
    /// What the uplink, and what the host has started.
    pub outside: Option<u8>,
}

/// Life of a session without packets, where the file says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TimeoutsConfig {
    /// TCP until both sides have acknowledged.
    pub tcp_new: Option<Duration>,
    /// TCP that both sides have acknowledged.
    pub tcp_established: Option<Duration>,
    /// TCP that one side has finished.
    pub tcp_half_closed: Option<Duration>,
    /// TCP after its end.
    pub tcp_closed: Option<Duration>,
    /// UDP without an answer.
    pub udp_unreplied: Option<Duration>,
    /// UDP with answers.
    pub udp_stream: Option<Duration>,
    /// SCTP and the rest.
    pub idle: Option<Duration>,
    /// Ping.
    pub icmp_echo: Option<Duration>,
}

impl SessionsConfig {
    /// What the dataplane is told: its own defaults where the file says nothing.
    pub(crate) fn settings(&self) -> SessionConfig {
        let default = SessionConfig::live(self.capacity.unwrap_or(SessionConfig::default().capacity));
        let nanoseconds = |time: Option<Duration>, default: u64| {
            time.map_or(default, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
        };
        let (times, defaults, shares) = (self.timeouts, default.timeouts, self.shares);
        SessionConfig {
            tcp_pickup: self.tcp_pickup,
            tcp_window: match self.tcp_window {
                Window::Loose => TcpWindow::Loose,
                Window::Strict => TcpWindow::Strict,
            },
            timeouts: Timeouts {
                tcp_new: nanoseconds(times.tcp_new, defaults.tcp_new),
                tcp_established: nanoseconds(times.tcp_established, defaults.tcp_established),
                tcp_half_closed: nanoseconds(times.tcp_half_closed, defaults.tcp_half_closed),
                tcp_closed: nanoseconds(times.tcp_closed, defaults.tcp_closed),
                udp_unreplied: nanoseconds(times.udp_unreplied, defaults.udp_unreplied),
                udp_stream: nanoseconds(times.udp_stream, defaults.udp_stream),
                idle: nanoseconds(times.idle, defaults.idle),
                icmp_echo: nanoseconds(times.icmp_echo, defaults.icmp_echo),
                ..defaults
            },
            half_open: shares.half_open.map_or(default.half_open, Percent),
            pod_share: shares.pod.map_or(default.pod_share, Percent),
            outside_share: shares.outside.map_or(default.outside_share, Percent),
            ..default
        }
    }
}
