//! The list of configured and added ports, and what follows from it for interfaces and attached pods.
//!
//! If a pod has several sandboxes, the newest one has the pod's name and addresses. The ports of the others stay closed until they are
//! removed: the node's kernel must not forward packets of their interfaces.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bulkhead_control::attachments::Attachment;
use bulkhead_control::object::PodName;
use bulkhead_dataplane::PortKind;

use super::added::AddedEntry;
use super::file::PortFile;
use crate::config::{Added, PortEntry};
use crate::log;
use bulkhead_observe::admin::{Failure, Missed, PortKey};

/// Maximum number of added ports: several times the pods of a node. It bounds the memory if a plugin never removes ports.
const MOST: usize = 4_096;

/// The list of configured and added ports.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    config: Vec<PortEntry>,
    added: BTreeMap<Arc<PortKey>, AddedEntry>,
    /// The number that the next added port gets. Numbers only increase.
    next: u64,
}

impl Registry {
    pub(crate) fn new(config: Vec<PortEntry>, added: Vec<AddedEntry>) -> Self {
        let next = added.iter().map(|entry| entry.number + 1).max().unwrap_or(1);
        let added = added.into_iter().map(|entry| (entry.key.clone(), entry)).collect();
        Self { config, added, next }
    }

    /// Replaces the configuration's ports.
    pub(super) fn configure(&mut self, ports: Vec<PortEntry>) {
        self.config = ports;
    }

    pub(super) fn get(&self, key: &PortKey) -> Option<&AddedEntry> {
        self.added.get(key)
    }

    pub(super) fn added(&self) -> impl Iterator<Item = &AddedEntry> {
        self.added.values()
    }

    /// Adds a port, or replaces the one with the same key. `is_there` returns whether an added port's interface exists. Returns whether
    /// anything changed.
    ///
    /// # Errors
    /// If the port conflicts with another one, or too many ports were added.
    pub(super) fn add(&mut self, mut new: AddedEntry, is_there: impl Fn(&PortKey) -> bool) -> Result<bool, Failure> {
        if self.added.get(&new.key).is_some_and(|known| known.is_same(&new)) {
            return Ok(false);
        }
        if let Some((problem, help)) = self.conflict(&new, is_there) {
            return Err(Failure::new("refused", problem, help));
        }
        new.number = self.next;
        self.next += 1;
        self.added.insert(new.key.clone(), new);
        Ok(true)
    }

    /// Returns why a port cannot be added, with the remedy. `None` if it can be added.
    fn conflict(&self, new: &AddedEntry, is_there: impl Fn(&PortKey) -> bool) -> Option<(String, &'static str)> {
        let pod = new.pod.to_string();
        for port in &self.config {
            if port.interface == new.interface {
                let help = "remove the port from the configuration, or create another interface";
                return Some((
                    format!("{} is the interface of {} in the configuration", new.interface, port.name),
                    help,
                ));
            }
            if *port.name == *pod {
                let help = "remove the port from the configuration: a pod has one port";
                return Some((format!("the configuration has a port for {pod}"), help));
            }
        }
        for other in self.added.values().filter(|other| other.key != new.key) {
            let container = &other.key.container;
            if other.interface == new.interface {
                let help = "remove that port first";
                return Some((
                    format!("{} is the interface of {} (container {container})", new.interface, other.pod),
                    help,
                ));
            }
            if other.pod == new.pod && *container == new.key.container {
                let inside = &other.key.container_interface;
                return Some((format!("{pod} is served at {inside} of the same container"), "a pod has one port"));
            }
            let shared = new.addresses.iter().find(|address| other.addresses.contains(address));
            if let Some(address) = shared.filter(|_| other.pod != new.pod && is_there(&other.key)) {
                let help = "remove that port first: its container may still use the address";
                return Some((format!("{address} is the address of {} (container {container})", other.pod), help));
            }
        }
        let is_full = self.added.len() >= MOST && !self.added.contains_key(&new.key);
        is_full.then(|| (format!("{MOST} ports were added already"), "remove the ports of ended containers"))
    }

    /// Undoes an addition: restores the previous entry (`before`), or removes the port if it had none.
    pub(super) fn restore(&mut self, key: &Arc<PortKey>, before: Option<AddedEntry>) {
        match before {
            Some(before) => self.added.insert(key.clone(), before),
            None => self.added.remove(key),
        };
    }

    pub(super) fn remove(&mut self, key: &PortKey) -> Option<AddedEntry> {
        self.added.remove(key)
    }

    /// Removes the ports of containers that ended while no vswitch was running, also from the file.
    pub(crate) fn make_up(&mut self, missed: &Missed, file: &PortFile) {
        let remove = |key| {
            let Some(entry) = self.remove(&key) else { return Ok(()) };
            file.write(self.added())?;
            log::info(&format!("port {} was removed: its container ended while no vswitch was running", entry.pod));
            anyhow::Ok(())
        };
        if let Err(error) = missed.make_up(remove, log::warn) {
            log::error(&format!(
                "cannot remove the stored ports of ended containers; the CNI plugin's next run removes them: {error:#}"
            ));
        }
    }

    /// Returns the keys of added ports that are not in `keep`. If `network` is set, only ports of that network.
    pub(super) fn others(&self, keep: &[PortKey], network: Option<&str>) -> Vec<Arc<PortKey>> {
        let keep: HashSet<&PortKey> = keep.iter().collect();
        let is_meant = |entry: &&AddedEntry| network.is_none() || entry.network.as_deref() == network;
        let others = self.added.values().filter(is_meant).filter(|entry| !keep.contains(&*entry.key));
        others.map(|entry| entry.key.clone()).collect()
    }

    /// Returns the number of each pod's newest added port.
    fn newest(&self) -> HashMap<&PodName, u64> {
        let mut newest = HashMap::new();
        for entry in self.added.values() {
            let number = newest.entry(&entry.pod).or_insert(entry.number);
            *number = entry.number.max(*number);
        }
        newest
    }

    /// Returns why the port must stay closed: a configured or newer port of the same pod exists. `None` if it may be opened.
    fn kept_closed(&self, entry: &AddedEntry, newest: &HashMap<&PodName, u64>) -> Option<Arc<str>> {
        let pod = entry.pod.to_string();
        if self.config.iter().any(|port| *port.name == *pod) {
            return Some(format!("is closed: the configuration has a port for {pod}").into());
        }
        let is_newest = newest.get(&entry.pod) == Some(&entry.number);
        (!is_newest).then(|| format!("is closed: a newer container of {pod} has replaced it").into())
    }

    /// Returns all ports for the interfaces thread: the configuration's, then the added ones.
    pub(crate) fn entries(&self) -> Vec<PortEntry> {
        let newest = self.newest();
        let entry = |entry: &AddedEntry| {
            let kept_closed = self.kept_closed(entry, &newest);
            let AddedEntry { key, pod, interface, netns, mac, number, .. } = entry;
            let PortKey { container, container_interface } = &**key;
            let name = match &kept_closed {
                None => pod.to_string(),
                Some(_) => format!("{pod}@{container}/{container_interface}"),
            };
            PortEntry {
                name: name.into(),
                label: None,
                kind: PortKind::Pod,
                pod: Some(pod.clone()),
                interface: interface.clone(),
                mac: *mac,
                netns: netns.clone(),
                peer: container_interface.as_str().into(),
                peer_named: true,
                fix_offloads: netns.is_some(),
                line: 0,
                added: Some(Added { key: key.clone(), number: *number, kept_closed }),
            }
        };
        self.config.iter().cloned().chain(self.added.values().map(entry)).collect()
    }

    /// Returns the pods of added ports that may be opened, for the policy thread.
    pub(crate) fn attachments(&self) -> BTreeMap<PodName, Attachment> {
        let newest = self.newest();
        let served = self.added.values().filter(|entry| self.kept_closed(entry, &newest).is_none());
        let attachment = |entry: &AddedEntry| {
            let AddedEntry { pod, uid, addresses, number, .. } = entry.clone();
            (pod, Attachment { uid, addresses, number })
        };
        served.map(attachment).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use bulkhead_observe::admin::AddPort;

    use super::*;
    use crate::config::Config;

    /// Returns a request for a container's `eth0`.
    pub(in crate::ports) fn asked(container: &str, pod: &str, interface: &str, addresses: &[&str]) -> AddPort {
        AddPort {
            container: container.into(),
            container_interface: "eth0".into(),
            network: None,
            pod: pod.into(),
            pod_uid: None,
            interface: interface.into(),
            netns: None,
            mac: None,
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            timeout_seconds: 1,
        }
    }

    fn registry(ports: &str) -> Registry {
        let text = format!("node: n\nstate: {{paths: [s]}}\nports: {ports}\n");
        let config = Config::parse("c", &text, std::path::Path::new("")).unwrap();
        Registry::new(config.ports, Vec::new())
    }

    fn add(registry: &mut Registry, asked: &AddPort) -> Result<bool, String> {
        let entry = AddedEntry::read(asked).map_err(|failure| failure.message)?;
        registry.add(entry, |_| true).map_err(|failure| failure.message)
    }

    fn shown(registry: &Registry) -> Vec<(String, String, bool)> {
        let show =
            |entry: &PortEntry| (entry.name.to_string(), entry.interface.to_string(), entry.kept_closed().is_some());
        registry.entries().iter().map(show).collect()
    }

    #[test]
    fn the_newest_container_of_a_pod_has_its_name_and_the_older_ones_stay_closed_until_they_are_removed() {
        let mut registry = registry("[{kind: uplink, interface: u}]");
        assert_eq!(add(&mut registry, &asked("one", "x/a", "v1", &["10.0.0.1"])), Ok(true));
        assert_eq!(add(&mut registry, &asked("two", "x/a", "v2", &["10.0.0.1"])), Ok(true));
        let expected = [("uplink", "u", false), ("x/a@one/eth0", "v1", true), ("x/a", "v2", false)];
        assert_eq!(shown(&registry), expected.map(|(name, on, closed)| (name.to_owned(), on.to_owned(), closed)));
        assert_eq!(registry.attachments()[&PodName::new("x", "a")].number, 2);
        // Adding a known port again changes nothing.
        assert_eq!(add(&mut registry, &asked("one", "x/a", "v1", &["10.0.0.1"])), Ok(false));
        registry.remove(&asked("two", "x/a", "", &[]).key()).unwrap();
        assert_eq!(shown(&registry)[1], ("x/a".into(), "v1".into(), false));
        registry.remove(&asked("one", "x/a", "", &[]).key()).unwrap();
        assert!(registry.attachments().is_empty() && registry.entries().len() == 1);
    }

    #[test]
    fn a_port_that_is_added_differently_replaces_itself() {
        let mut registry = registry("[]");
        add(&mut registry, &asked("one", "x/a", "v1", &["10.0.0.1"])).unwrap();
        let before = registry.entries();
        assert_eq!(add(&mut registry, &asked("one", "x/a", "v1", &["10.0.0.2"])), Ok(true));
        assert_ne!(registry.entries(), before, "it is reopened: its sessions belong to the other address");
        assert_eq!(registry.entries().len(), 1);
    }

    #[test]
    fn what_another_port_has_is_refused() {
        let mut registry = registry("[{kind: pod, pod: x/c, interface: vc}, {kind: uplink, interface: u}]");
        add(&mut registry, &asked("one", "x/a", "v1", &["10.0.0.1", "fd00::1"])).unwrap();
        let second = AddPort { container_interface: "net1".into(), ..asked("one", "x/a", "v9", &[]) };
        for (asked, why) in [
            (asked("two", "x/b", "u", &[]), "u is the interface of uplink in the configuration"),
            (asked("two", "x/c", "v2", &[]), "the configuration has a port for x/c"),
            (asked("two", "x/b", "v1", &[]), "v1 is the interface of x/a (container one)"),
            (asked("two", "x/b", "v2", &["fd00::1"]), "fd00::1 is the address of x/a (container one)"),
            (second, "x/a is served at eth0 of the same container"),
        ] {
            assert_eq!(add(&mut registry, &asked).unwrap_err(), why);
        }
        // The other container is gone, but its port was never removed.
        let again = AddedEntry::read(&asked("two", "x/b", "v2", &["fd00::1"])).unwrap();
        assert_eq!(registry.add(again, |_| false), Ok(true));
        // Configured ports take precedence.
        registry.configure(
            Config::parse(
                "c",
                "node: n\nstate: {paths: [s]}\nports: [{kind: pod, pod: x/a, interface: w}]\n",
                std::path::Path::new(""),
            )
            .unwrap()
            .ports,
        );
        assert!(shown(&registry)[1].2 && !registry.attachments().contains_key(&PodName::new("x", "a")));
    }

    #[test]
    fn what_no_port_can_be_is_refused_with_the_field() {
        let good = asked("one", "x/a", "v1", &["10.0.0.1"]);
        assert!(AddedEntry::read(&AddPort { mac: Some("02:00:00:00:00:01".into()), ..good.clone() }).is_ok());
        for (field, asked) in [
            ("container:", AddPort { container: "a b".into(), ..good.clone() }),
            ("container:", AddPort { container: String::new(), ..good.clone() }),
            ("container_interface:", AddPort { container_interface: "a/b".into(), ..good.clone() }),
            ("network:", AddPort { network: Some("a b".into()), ..good.clone() }),
            ("interface:", AddPort { interface: "much-too-long-for-one".into(), ..good.clone() }),
            ("pod:", AddPort { pod: "a".into(), ..good.clone() }),
            ("pod:", AddPort { pod: "a/b/c".into(), ..good.clone() }),
            ("mac:", AddPort { mac: Some("01:00:00:00:00:01".into()), ..good.clone() }),
            ("addresses:", AddPort { addresses: vec!["127.0.0.1".parse().unwrap()], ..good }),
            ("addresses:", asked("one", "x/a", "v1", &["10.0.0.1", "10.0.0.2"])),
        ] {
            let failure = AddedEntry::read(&asked).unwrap_err();
            assert!(failure.code == "refused" && failure.message.starts_with(field), "{failure:?}");
        }
    }

    #[test]
    fn only_added_ports_are_removed_where_some_are_to_stay() {
        let mut registry = registry("[{kind: uplink, interface: u}]");
        for (container, pod, interface) in [("one", "x/a", "v1"), ("two", "x/b", "v2"), ("three", "x/c", "v3")] {
            add(&mut registry, &asked(container, pod, interface, &[])).unwrap();
        }
        let keep = [asked("two", "x/b", "", &[]).key(), asked("nobody", "x/d", "", &[]).key()];
        let others = |registry: &Registry, network| -> Vec<String> {
            registry.others(&keep, network).iter().map(|key| key.container.clone()).collect()
        };
        assert_eq!(others(&registry, None), ["one", "three"]);
        assert!(others(&registry, Some("pods")).is_empty(), "nobody has said that they are of this network");
        for (container, network) in [("four", "pods"), ("five", "storage")] {
            let of = AddPort {
                network: Some(network.into()),
                ..asked(container, &format!("x/{container}"), container, &[])
            };
            add(&mut registry, &of).unwrap();
        }
        assert_eq!(others(&registry, Some("pods")), ["four"]);
        assert_eq!(others(&registry, None).len(), 4);
    }
}
