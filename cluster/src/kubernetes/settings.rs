//! Which server is followed, which kinds, and the timeouts.

use std::collections::BTreeSet;
use std::time::Duration;

use bulkhead_control::source::{ForeignKinds, KindName, ServiceKinds};

use super::kinds::{Kind, Purpose};
use crate::client::Access;

/// Settings of a follower: server, kinds and timeouts.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Access to the API server.
    pub access: Access,
    /// Policy kinds to ignore. Only optional kinds can be ignored.
    pub ignored: BTreeSet<KindName>,
    /// Whether Services and endpoint slices are followed. They are also followed if policies of other products are read.
    pub services: ServiceKinds,
    /// Whether and for what policies of other products are read. If they are not, they are counted once.
    pub foreign: ForeignKinds,
    /// Timeouts and pauses.
    pub timing: Timing,
}

impl Settings {
    /// Returns the kinds to follow, including optional ones.
    pub(super) fn kinds(&self) -> impl Iterator<Item = Kind> + use<'_> {
        let is_wanted = |kind: &Kind| match kind.purpose() {
            Purpose::Policy => !self.is_ignored(*kind) && (!kind.is_foreign() || self.reads_foreign()),
            Purpose::Services => self.services == ServiceKinds::Read || self.reads_foreign(),
        };
        Kind::ALL.into_iter().filter(is_wanted)
    }

    /// Returns the kinds of policies that other products enforce and that are not read here.
    pub(super) fn unread(&self) -> impl Iterator<Item = Kind> + use<'_> {
        let is_unread = |kind: &Kind| kind.is_foreign_policy() && !self.reads_foreign() && !self.is_ignored(*kind);
        Kind::ALL.into_iter().filter(is_unread)
    }

    /// Whether policies of other products are read. Policy then depends on Services.
    pub(super) fn reads_foreign(&self) -> bool {
        self.foreign != ForeignKinds::Skip
    }

    fn is_ignored(&self, kind: Kind) -> bool {
        kind.is_optional() && self.ignored.iter().any(|name| kind.is_named(name))
    }
}

/// Timeouts and pauses. Tests use shorter ones than the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long changes are gathered before a batch is announced. Later changes join the batch until it is taken. Short against the 50 ms
    /// within which a policy has to be enforced, long against the distance of events in a burst.
    pub gather: Duration,
    /// Pause after the first failure. Doubles with each further one.
    pub first_pause: Duration,
    /// Longest pause after a failure, which bounds the delay once the server is back.
    pub longest_pause: Duration,
    /// Interval of discovery, which also detects whether the server is up. A server has thousands of such clients; kubelets poll three
    /// times as often.
    pub contact: Duration,
    /// Timeout of a short answer, of the head of a watch's answer, and of a new TCP connection.
    pub answer: Duration,
    /// Timeout of one page of a list. A server that has just started is slow.
    pub page: Duration,
    /// Maximum number of objects on a page. Source: client-go, `pager`'s default.
    pub page_size: u32,
    /// After how many seconds the server ends a watch. Source: Kubernetes API concepts, "timeoutSeconds". Below five minutes, a common
    /// timeout of proxies.
    pub watch_seconds: u32,
    /// Longest silence of a watch. Servers send a bookmark every minute: after two missed ones the connection is dead.
    pub silence: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            gather: Duration::from_millis(10),
            first_pause: Duration::from_millis(200),
            longest_pause: Duration::from_secs(10),
            contact: Duration::from_secs(30),
            answer: Duration::from_secs(10),
            page: Duration::from_secs(60),
            page_size: 500,
            watch_seconds: 290,
            silence: Duration::from_secs(150),
        }
    }
}
