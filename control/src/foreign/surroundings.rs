//! The objects that policies of other products refer to.

use std::collections::BTreeMap;
use std::ops::BitOrAssign;
use std::sync::Arc;

use super::{ForeignKind, ForeignName, ForeignObject, ServiceAccount, calico, cilium};
use crate::cache::Event;
use crate::object::{ClusterService, EndpointSlice, Labels, Object, ObjectName, ServiceName};

/// A set of kinds of objects, on which a policy's meaning depends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs(u8);

impl Needs {
    /// No kind.
    pub const NOTHING: Self = Self(0);
    /// Calico's tiers.
    pub const TIERS: Self = Self(1);
    /// Calico's sets of networks.
    pub const NETWORK_SETS: Self = Self(1 << 1);
    /// Cilium's groups of blocks.
    pub const CIDR_GROUPS: Self = Self(1 << 2);
    /// Service accounts.
    pub const SERVICE_ACCOUNTS: Self = Self(1 << 3);
    /// Services and EndpointSlices.
    pub const SERVICES: Self = Self(1 << 4);
    /// Labels of namespaces, which sets of networks inherit.
    pub const NAMESPACES: Self = Self(1 << 5);
    /// Services and EndpointSlices, for rules that allow less without them.
    pub const MORE_SERVICES: Self = Self(1 << 6);
    /// What a change of a Service or EndpointSlice may affect.
    const ANY_SERVICES: Self = Self(Self::SERVICES.0 | Self::MORE_SERVICES.0);

    /// Whether the set has no kind.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether both sets have a kind in common.
    pub const fn overlaps(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOrAssign for Needs {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// All objects that policies of other products may refer to.
#[derive(Debug, Default)]
pub struct Surroundings {
    /// Calico's tiers, by name.
    pub tiers: BTreeMap<Arc<str>, calico::Tier>,
    /// Calico's sets of networks, by kind and name.
    pub network_sets: BTreeMap<ForeignName, calico::NetworkSet>,
    /// Cilium's groups of blocks, by name.
    pub cidr_groups: BTreeMap<Arc<str>, cilium::CidrGroup>,
    /// Service accounts, by namespace and name.
    pub service_accounts: BTreeMap<ObjectName, ServiceAccount>,
    /// The labels of namespaces, by name.
    pub namespaces: BTreeMap<Arc<str>, Labels>,
    /// Services, by namespace and name.
    pub services: BTreeMap<ServiceName, Arc<ClusterService>>,
    /// EndpointSlices, by namespace and name.
    pub slices: BTreeMap<ObjectName, Arc<EndpointSlice>>,
}

impl Surroundings {
    /// Sets or, with `None`, removes an object that is no policy. Returns its kind, or nothing if the object is the same as before.
    pub(super) fn set(&mut self, name: ForeignName, object: Option<Arc<ForeignObject>>) -> Needs {
        let object = object.map(Arc::unwrap_or_clone);
        let key = || name.name.clone();
        let (has_changed, kind) = match (name.kind, object) {
            (ForeignKind::CalicoTier, Some(ForeignObject::CalicoTier(tier))) => {
                (put(&mut self.tiers, key(), Some(tier)), Needs::TIERS)
            }
            (ForeignKind::CalicoTier, _) => (put(&mut self.tiers, key(), None), Needs::TIERS),
            (
                ForeignKind::CalicoNetworkSet | ForeignKind::CalicoGlobalNetworkSet | ForeignKind::CalicoHostEndpoint,
                object,
            ) => {
                let set = match object {
                    Some(ForeignObject::CalicoNetworkSet(set)) => Some(set),
                    _ => None,
                };
                (put(&mut self.network_sets, name, set), Needs::NETWORK_SETS)
            }
            (ForeignKind::CiliumCidrGroup, Some(ForeignObject::CiliumCidrGroup(group))) => {
                (put(&mut self.cidr_groups, key(), Some(group)), Needs::CIDR_GROUPS)
            }
            (ForeignKind::CiliumCidrGroup, _) => (put(&mut self.cidr_groups, key(), None), Needs::CIDR_GROUPS),
            (ForeignKind::ServiceAccount, object) => {
                let (namespace, own) = name.name.split_once('/').unwrap_or(("", &name.name));
                let account = match object {
                    Some(ForeignObject::ServiceAccount(account)) => Some(account),
                    _ => None,
                };
                let key = ObjectName::new(namespace, own);
                (put(&mut self.service_accounts, key, account), Needs::SERVICE_ACCOUNTS)
            }
            _ => (false, Needs::NOTHING),
        };
        if has_changed { kind } else { Needs::NOTHING }
    }

    /// Keeps an object of Kubernetes that policies may refer to. Returns its kind, or nothing if no policy can depend on the event.
    pub(super) fn look_at(&mut self, event: &Event) -> Needs {
        let (has_changed, kind) = match event {
            Event::Apply(Object::Namespace(namespace)) => {
                let labels = Some(namespace.labels.clone());
                (put(&mut self.namespaces, namespace.name.clone(), labels), Needs::NAMESPACES)
            }
            Event::DeleteNamespace(name) => (put(&mut self.namespaces, name.clone(), None), Needs::NAMESPACES),
            Event::Apply(Object::Service(service)) => {
                (put(&mut self.services, service.name.clone(), Some(Arc::clone(service))), Needs::ANY_SERVICES)
            }
            Event::DeleteService(name) => (put(&mut self.services, name.clone(), None), Needs::ANY_SERVICES),
            Event::Apply(Object::EndpointSlice(slice)) => {
                (put(&mut self.slices, slice.name.clone(), Some(Arc::clone(slice))), Needs::ANY_SERVICES)
            }
            Event::DeleteEndpointSlice(name) => (put(&mut self.slices, name.clone(), None), Needs::ANY_SERVICES),
            _ => (false, Needs::NOTHING),
        };
        if has_changed { kind } else { Needs::NOTHING }
    }

    /// Returns the slices of a Service, sorted by name.
    pub fn slices_of<'a>(&'a self, service: &'a ServiceName) -> impl Iterator<Item = &'a Arc<EndpointSlice>> {
        let first = ObjectName::new(service.namespace.clone(), "");
        let own = self.slices.range(first..).take_while(|(name, _)| name.namespace == service.namespace);
        own.map(|(_, slice)| slice).filter(|slice| slice.service.as_ref() == Some(&service.name))
    }
}

/// Sets or, with `None`, removes a value. Returns whether the map has changed.
fn put<K: Ord, V: PartialEq>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) -> bool {
    match value {
        Some(value) if map.get(&key) == Some(&value) => false,
        Some(value) => {
            map.insert(key, value);
            true
        }
        None => map.remove(&key).is_some(),
    }
}
