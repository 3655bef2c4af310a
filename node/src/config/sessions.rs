//! Settings of the session table.

use std::path::PathBuf;
use std::time::Duration;

use bulkhead_dataplane::{Percent, SessionConfig, TcpWindow, Timeouts};

/// Settings of the session table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionsConfig {
    /// The folder that keeps sessions while no process runs. `None` if sessions end with the process.
    pub folder: Option<PathBuf>,
    /// Maximum number of sessions of all workers together. `None` for the dataplane's default.
    pub capacity: Option<usize>,
    /// Whether a TCP segment without a session may start one, as for connections older than the vswitch.
    pub tcp_pickup: bool,
    /// The treatment of RST and FIN segments outside the connection's window.
    pub tcp_window: Window,
    /// Idle timeouts by protocol and connection state.
    pub timeouts: TimeoutsConfig,
    /// Limits on the part of the table that one pod, outside hosts or half-open connections may use.
    pub shares: SharesConfig,
}

/// The treatment of a TCP segment that would end a connection but is outside its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Window {
    /// The vswitch forwards the segment, which does not end the session.
    #[default]
    Loose,
    /// The vswitch drops the segment. All TCP segments go through a worker, not through the kernel's flow cache.
    Strict,
}

/// Maximum shares of the session table in percent. `None` for the dataplane's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SharesConfig {
    /// Share for sessions that are not established or are closing.
    pub half_open: Option<u8>,
    /// Share for the sessions that one pod initiated, and again for those that others initiated to it.
    pub pod: Option<u8>,
    /// Share for sessions initiated from the uplink, and again for those from the host.
    pub outside: Option<u8>,
}

/// Time without packets after which a session expires. `None` for the dataplane's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TimeoutsConfig {
    /// TCP and SCTP sessions whose handshake is not complete.
    pub tcp_new: Option<Duration>,
    /// Established TCP sessions.
    pub tcp_established: Option<Duration>,
    /// TCP and SCTP sessions after one side's FIN or SHUTDOWN.
    pub tcp_half_closed: Option<Duration>,
    /// TCP and SCTP sessions that were reset, aborted or closed by both sides.
    pub tcp_closed: Option<Duration>,
    /// Sessions of UDP and other protocols without a reply.
    pub udp_unreplied: Option<Duration>,
    /// UDP sessions with replies.
    pub udp_stream: Option<Duration>,
    /// Established SCTP sessions, and sessions of other protocols with a reply.
    pub idle: Option<Duration>,
    /// ICMP echo sessions (ping).
    pub icmp_echo: Option<Duration>,
}

impl SessionsConfig {
    /// Converts to the dataplane's settings.
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
