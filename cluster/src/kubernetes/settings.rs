//! Which server is followed, and how patiently.

use std::collections::BTreeSet;
use std::time::Duration;

use bulkhead_control::source::{KindName, ServiceKinds};

use super::kinds::{Kind, Purpose};
use crate::client::Access;

/// What is followed.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// How the server is reached.
    pub access: Access,
    /// Kinds that are passed over though they restrict traffic. Only those that a server may be without can be.
    pub ignored: BTreeSet<KindName>,
    /// Whether Services and endpoint slices are followed.
    pub services: ServiceKinds,
    /// How patiently.
    pub timing: Timing,
}

impl Settings {
    /// The kinds that are followed, where the server has them.
    pub(super) fn kinds(&self) -> impl Iterator<Item = Kind> + use<'_> {
        let is_ignored =
            |kind: Kind| kind.is_optional() && self.ignored.iter().any(|name| name.is(kind.group(), kind.name()));
        let is_wanted = move |kind: &Kind| match kind.purpose() {
            Purpose::Policy => !is_ignored(*kind),
            Purpose::Services => self.services == ServiceKinds::Read,
        };
        Kind::ALL.into_iter().filter(is_wanted)
    }
}

/// How patiently a server is followed. Tests are less patient than the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long after the first change of a batch it is handed over. What comes meanwhile, and until it is taken, joins it. Short
    /// beside the 50 ms within which a policy has to be enforced, long beside the distance of events in a burst.
    pub gather: Duration,
    /// The pause after the first failure. It doubles from failure to failure.
    pub first_pause: Duration,
    /// The longest pause after a failure: what a server that is back is waited for at most.
    pub longest_pause: Duration,
    /// How often the server is asked which kinds it has, which also tells whether it is there. A server has thousands of such
    /// clients: their kubelets ask three times as often.
    pub contact: Duration,
    /// How long an answer that is short may take.
    pub answer: Duration,
    /// How long one page of a list may take. Servers that have just started take long.
    pub page: Duration,
    /// How many objects a page has at most. Source: client-go, `pager`'s default.
    pub page_size: u32,
    /// After how long the server ends a watch by itself, in seconds. Source: Kubernetes API concepts, "timeoutSeconds"; below the
    /// five minutes after which proxies like to.
    pub watch_seconds: u32,
    /// How long a watch may be silent. Servers send a bookmark every minute: two that are missed are a dead connection.
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
