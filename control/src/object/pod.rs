//! Pods: what policy needs of them, and what tells one from an earlier one of its name.

use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Labels, PodName, Transport, Workload};

/// A port that a container declares.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ContainerPort {
    /// The name that policies may refer to.
    pub name: Arc<str>,
    /// Its protocol.
    pub transport: Transport,
    /// Its number on the pod's address.
    pub port: u16,
}

/// A port of its node that a container has for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HostPort {
    /// The node's address at which it answers (`hostIP`); none for every one. An unspecified address stands for all of its family.
    pub address: Option<IpAddr>,
    /// Its protocol.
    pub transport: Transport,
    /// Its number on the node's addresses (`hostPort`).
    pub number: u16,
    /// Its number on the pod's address (`containerPort`).
    pub port: u16,
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// Namespace and name.
    pub name: PodName,
    /// Its labels.
    pub labels: Labels,
    /// The node it is bound to, none while it waits for one.
    pub node: Option<Arc<str>>,
    /// Its addresses (`status.podIPs`), none before the network is set up. At most one of each family.
    pub addresses: Vec<IpAddr>,
    /// The MAC address of its interface where a network annotation tells it.
    pub mac: Option<[u8; 6]>,
    /// Whether it shares the node's network; then its address is the node's and policies do not select it.
    pub host_network: bool,
    /// Whether it has ended (`Succeeded`, `Failed`): its address may belong to another pod already.
    pub finished: bool,
    /// What tells it from an earlier pod of its name; none where its object does not say.
    #[serde(default)]
    pub uid: Option<Uid>,
    /// What tells whether it or another pod has an address that both say is theirs.
    pub lifetime: Lifetime,
    /// The named ports of its containers and of its restartable init containers ("sidecars").
    pub ports: Vec<ContainerPort>,
    /// The ports of its node that these containers have for themselves; none for a pod on the host network, which has all its ports there.
    /// Most pods have none: a slice without elements takes no memory beyond its place here.
    #[serde(default)]
    pub host_ports: Box<[HostPort]>,
    /// The workload that has made it; `None` if nothing has, and of pods that an API server tells.
    #[serde(default)]
    pub owner: Option<Arc<Workload>>,
    /// Whether it is not there yet: it stands for the pods that a workload's template or a manifest will make, and its addresses are
    /// nobody's. Only [`Templates::Read`](crate::source::Templates) makes such pods, so no vswitch ever knows one.
    #[serde(default)]
    pub planned: bool,
}

impl Pod {
    /// Whether policies may select the pod and name it as a peer: it runs, on the pod network, with an address.
    pub fn is_endpoint(&self) -> bool {
        !self.host_network && !self.finished && !self.addresses.is_empty()
    }
}

/// The UID by which a pod's node knows it: `metadata.uid`, and for a static pod the annotation [`STATIC_POD_ANNOTATION`]. Only whether
/// two are the same matters, so this is a fingerprint (FNV-1a, 128 bits), which takes less memory than the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Uid([u64; 2]);

/// The annotation of a static pod's object with the UID by which the kubelet knows the pod, and names it to a CNI plugin.
pub const STATIC_POD_ANNOTATION: &str = "kubernetes.io/config.hash";

impl Uid {
    /// The UID that is written so; none for an empty text.
    pub fn of(text: &str) -> Option<Self> {
        /// The offset basis and the prime of FNV-1a with 128 bits.
        const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        let hash = text.bytes().fold(BASIS, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME));
        #[expect(clippy::cast_possible_truncation, reason = "the halves")]
        let halves = [(hash >> 64) as u64, hash as u64];
        (!text.is_empty()).then_some(Self(halves))
    }
}

/// How far a pod is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lifetime {
    /// Whether it is being deleted (`metadata.deletionTimestamp`): its network may be gone already.
    pub terminating: bool,
    /// Whether it runs (`status.phase`), or does not say.
    pub running: bool,
    /// When its node took it on (`status.startTime`).
    pub started: Option<Timestamp>,
    /// When its object was made (`metadata.creationTimestamp`).
    pub created: Option<Timestamp>,
    /// Where its node's container runtime has given it its addresses: the number of that [`Attachment`]. What an object says comes
    /// later than that, so of two pods of one node the one that was attached last has an address.
    ///
    /// [`Attachment`]: crate::attachments::Attachment
    #[serde(skip)]
    pub attached: Option<u64>,
}

impl Lifetime {
    /// Whether of two pods with one address it must be this one that has it: the other one is being deleted, or does not run,
    /// or is older. False both ways where that cannot be told.
    pub fn beats(&self, other: &Self) -> bool {
        let stage = |of: &Self| (!of.terminating, of.running);
        let age = |of: fn(&Self) -> Option<Timestamp>| of(self).zip(of(other)).map(|(own, other)| own.cmp(&other));
        let ages = [age(|of| of.started), age(|of| of.created)];
        let order = ages.into_iter().flatten().fold(stage(self).cmp(&stage(other)), std::cmp::Ordering::then);
        order == std::cmp::Ordering::Greater
    }
}

/// A point in time, in seconds, as the API server writes it: it says only which of two is later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Reads `2026-01-31T23:59:59Z`, the one form that the API server writes. None for any other.
    pub fn parse(text: &str) -> Option<Self> {
        const FORM: &[u8] = b"0000-00-00T00:00:00Z";
        let fits = |(&byte, &form): (&u8, &u8)| if form == b'0' { byte.is_ascii_digit() } else { byte == form };
        let is_such = text.len() == FORM.len() && text.bytes().zip(FORM).all(|(byte, form)| fits((&byte, form)));
        // Its digits as one number: in this order the larger one is the later.
        let digits = text.bytes().filter(u8::is_ascii_digit);
        is_such.then(|| Self(digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))))
    }
}

impl Pod {
    /// What the pod belongs to.
    pub fn workload(&self) -> Workload {
        match &self.owner {
            Some(owner) => Workload::clone(owner),
            None => Workload { kind: "Pod".into(), name: self.name.name.clone() },
        }
    }
}
