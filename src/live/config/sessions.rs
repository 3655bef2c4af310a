//! From the sessions of the file to the dataplane's settings.

use std::time::Duration;

use bulkhead_dataplane::{Percent, SessionConfig, TcpWindow, Timeouts};

use super::{SessionsConfig, Window};

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
