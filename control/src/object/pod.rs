//! Pods, reduced to what policy needs, and what distinguishes a pod from an earlier one of the same name.

use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Labels, PodName, Transport, Workload};

/// A named port that a container declares.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ContainerPort {
    /// The port's name, to which policies refer.
    pub name: Arc<str>,
    /// The port's protocol.
    pub transport: Transport,
    /// The port's number on the pod's addresses.
    pub port: u16,
}

/// A port of the node that leads to a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HostPort {
    /// The node address at which the port answers (`hostIP`). `None` for all; an unspecified address for all of its family.
    pub address: Option<IpAddr>,
    /// The port's protocol.
    pub transport: Transport,
    /// The port's number on the node's addresses (`hostPort`).
    pub number: u16,
    /// The port's number on the pod's addresses (`containerPort`).
    pub port: u16,
}

/// A pod, which has its own network or that of its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// The pod's namespace and name.
    pub name: PodName,
    /// The pod's labels.
    pub labels: Labels,
    /// The pod's node. `None` until the scheduler has assigned one.
    pub node: Option<Arc<str>>,
    /// The pod's addresses (`status.podIPs`), at most one per family. Empty until its network is set up.
    pub addresses: Vec<IpAddr>,
    /// The MAC address of its interface. `None` unless a network annotation contains one.
    pub mac: Option<[u8; 6]>,
    /// The pod's service account (`spec.serviceAccountName`). `None` for `default`, which most pods have.
    #[serde(default)]
    pub service_account: Option<Arc<str>>,
    /// Whether the pod uses the node's network and addresses. Policies do not select such pods.
    pub host_network: bool,
    /// Whether the pod has ended (`Succeeded`, `Failed`). Another pod may already have its address.
    pub finished: bool,
    /// Distinguishes the pod from an earlier one of the same name. `None` if the object has no UID.
    #[serde(default)]
    pub uid: Option<Uid>,
    /// The pod's stage and age, which decide which of two pods has an address that both claim.
    pub lifetime: Lifetime,
    /// Named ports of its containers and restartable init containers ("sidecars").
    pub ports: Vec<ContainerPort>,
    /// The host ports of these containers. Empty for a host-network pod, which has all its ports on the node. Most pods have none, and an
    /// empty box needs no allocation.
    #[serde(default)]
    pub host_ports: Box<[HostPort]>,
    /// The workload that created the pod. `None` if none did, or if the pod comes from an API server.
    #[serde(default)]
    pub owner: Option<Arc<Workload>>,
    /// Whether the pod represents future pods of a workload's template or manifest. No pod has its addresses yet. Only
    /// [`Templates::Read`](crate::source::Templates) creates such pods, so a vswitch never sees one.
    #[serde(default)]
    pub planned: bool,
}

impl Pod {
    /// Returns the name of the pod's service account.
    pub fn service_account_name(&self) -> &str {
        self.service_account.as_deref().unwrap_or("default")
    }

    /// Whether policies may select the pod or name it as a peer: it has not finished, is on the pod network and has an address.
    pub fn is_endpoint(&self) -> bool {
        !self.host_network && !self.finished && !self.addresses.is_empty()
    }
}

/// The UID by which the pod's node knows it: `metadata.uid`, or [`STATIC_POD_ANNOTATION`] for a static pod. Only equality matters, so this
/// is a fingerprint (FNV-1a, 128 bits), which is smaller than the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Uid([u64; 2]);

/// The annotation of a static pod with the UID that the kubelet uses and passes to a CNI plugin.
pub const STATIC_POD_ANNOTATION: &str = "kubernetes.io/config.hash";

impl Uid {
    /// Computes the fingerprint of a UID. `None` for an empty text.
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

/// A pod's stage and age.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lifetime {
    /// Whether the pod is being deleted (`metadata.deletionTimestamp`). Its network may already be gone.
    pub terminating: bool,
    /// Whether the pod is running (`status.phase`) or has no phase.
    pub running: bool,
    /// The time at which the node accepted the pod (`status.startTime`). `None` if unknown.
    pub started: Option<Timestamp>,
    /// Creation time of its object (`metadata.creationTimestamp`). `None` if unknown.
    pub created: Option<Timestamp>,
    /// The number of the [`Attachment`] by which the container runtime assigned its addresses. `None` if unknown. Objects lag behind, so of
    /// two pods on one node that claim an address, the one with the later attachment has it.
    ///
    /// [`Attachment`]: crate::attachments::Attachment
    #[serde(skip)]
    pub attached: Option<u64>,
}

impl Lifetime {
    /// Whether this pod certainly has an address that both claim: the other one terminates, does not run or is older. False if undecidable.
    pub fn beats(&self, other: &Self) -> bool {
        let stage = |of: &Self| (!of.terminating, of.running);
        let age = |of: fn(&Self) -> Option<Timestamp>| of(self).zip(of(other)).map(|(own, other)| own.cmp(&other));
        let ages = [age(|of| of.started), age(|of| of.created)];
        let order = ages.into_iter().flatten().fold(stage(self).cmp(&stage(other)), std::cmp::Ordering::then);
        order == std::cmp::Ordering::Greater
    }
}

/// A point in time with a resolution of 1 s. Supports only comparison: the later one is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Parses `2026-01-31T23:59:59Z`, the only format that the API server writes. `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        const FORM: &[u8] = b"0000-00-00T00:00:00Z";
        let fits = |(&byte, &form): (&u8, &u8)| if form == b'0' { byte.is_ascii_digit() } else { byte == form };
        let is_such = text.len() == FORM.len() && text.bytes().zip(FORM).all(|(byte, form)| fits((&byte, form)));
        // The digits as one number, which is greater for a later time.
        let digits = text.bytes().filter(u8::is_ascii_digit);
        is_such.then(|| Self(digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))))
    }
}

impl Pod {
    /// Returns the workload that created the pod, or the pod itself if none did.
    pub fn workload(&self) -> Workload {
        match &self.owner {
            Some(owner) => Workload::clone(owner),
            None => Workload { kind: "Pod".into(), name: self.name.name.clone() },
        }
    }
}
