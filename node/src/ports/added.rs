//! A validated request of an admin socket's client to add a port.

use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_control::object::{PodName, Uid};
use bulkhead_observe::admin::{AddPort, Failure, PortKey};
use serde::{Deserialize, Serialize};

use crate::config::{check_interface, parse_mac};

/// Container IDs have 64 characters. The limit keeps nonsense out of the logs.
const MAX_CONTAINER_LEN: usize = 128;

/// IPAM plugins use the name as a file name, which has at most 255 bytes.
const MAX_NETWORK_LEN: usize = 255;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AddedEntry {
    pub(super) key: Arc<PortKey>,
    #[serde(default)]
    pub(super) network: Option<Arc<str>>,
    pub(super) pod: PodName,
    pub(super) uid: Option<Uid>,
    pub(super) interface: Arc<str>,
    pub(super) netns: Option<Arc<str>>,
    pub(super) mac: Option<[u8; 6]>,
    pub(super) addresses: Vec<IpAddr>,
    /// The port's number, higher than those of all ports added before.
    pub(super) number: u64,
}

impl AddedEntry {
    /// Validates a request. The entry's number is 0 until it is added.
    ///
    /// # Errors
    /// If a field is invalid, with the remedy.
    pub(super) fn read(asked: &AddPort) -> Result<Self, Failure> {
        let refused = |problem: String, help: &str| Err(Failure::new("refused", problem, help));
        let key = asked.key();
        let is_id = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
        if key.container.is_empty() || key.container.len() > MAX_CONTAINER_LEN || !key.container.chars().all(is_id) {
            return refused(
                format!("container: `{}` is not a container's ID", key.container),
                "write it as in CNI_CONTAINERID",
            );
        }
        let is_network = |name: &str| name.len() <= MAX_NETWORK_LEN && name.chars().all(is_id);
        if let Some(network) = asked.network.as_deref().filter(|name| !is_network(name)) {
            return refused(
                format!("network: `{network}` is not a network's name"),
                "write `name` of the CNI configuration",
            );
        }
        for (field, name) in [("container_interface", &key.container_interface), ("interface", &asked.interface)] {
            if let Err(problem) = check_interface(name) {
                return refused(format!("{field}: {problem}"), "write its name as `ip link` shows it");
            }
        }
        let names = asked.pod.split_once('/');
        let is_name = |name: &str| !name.is_empty() && !name.contains('/');
        let Some((namespace, pod)) = names.filter(|(namespace, pod)| is_name(namespace) && is_name(pod)) else {
            return refused(
                format!("pod: `{}` is not namespace/name", asked.pod),
                "write it as K8S_POD_NAMESPACE/K8S_POD_NAME",
            );
        };
        let mac = asked.mac.as_deref().map(|text| parse_mac(text).ok_or(text)).transpose();
        let mac = match mac {
            Ok(mac) => mac,
            Err(text) => {
                return refused(
                    format!("mac: `{text}` is not a MAC address"),
                    "write six bytes in hex: 02:00:0a:f4:01:02",
                );
            }
        };
        let (v4, v6): (Vec<IpAddr>, Vec<IpAddr>) = asked.addresses.iter().partition(|address| address.is_ipv4());
        let unusable = |address: &&IpAddr| address.is_unspecified() || address.is_loopback() || address.is_multicast();
        if let Some(address) = asked.addresses.iter().find(unusable) {
            return refused(format!("addresses: {address} is not a pod's address"), "");
        }
        if v4.len() > 1 || v6.len() > 1 {
            return refused("addresses: a pod has at most one address of each family".to_owned(), "");
        }
        Ok(Self {
            key: Arc::new(key),
            network: asked.network.as_deref().map(Arc::from),
            pod: PodName::new(namespace, pod),
            uid: asked.pod_uid.as_deref().and_then(Uid::of),
            interface: asked.interface.as_str().into(),
            netns: asked.netns.as_deref().map(Arc::from),
            mac,
            addresses: asked.addresses.clone(),
            number: 0,
        })
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        *self == Self { number: self.number, ..other.clone() }
    }
}
