//! Resolves a Service again and records the differences.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::super::claims::Rank;
use super::super::health::HealthCheck;
use super::super::select::{Candidate, Selection, candidates};
use super::super::{Backend, BackendId, Changes, List, Owner, PortName, ResolvedPort, ServicePortId, Vip, VipKind};
use super::{Known, Resolver};
use crate::object::{ClusterService, ServiceName, ServicePort, Timestamp, TrafficPolicy};

/// A service port's properties other than its name, VIPs and backends.
pub(in crate::service) struct Terms<'a> {
    pub(in crate::service) internal_policy: TrafficPolicy,
    pub(in crate::service) external_policy: TrafficPolicy,
    pub(in crate::service) affinity: Option<u32>,
    /// Blocks of permitted clients, of both families. `None` permits all.
    pub(in crate::service) source_ranges: Option<&'a [IpNet]>,
    pub(in crate::service) created: Option<Timestamp>,
}

impl<'a> Terms<'a> {
    fn of(service: &'a ClusterService) -> Self {
        let &ClusterService { internal_policy, external_policy, affinity, created, .. } = service;
        let source_ranges = service.source_ranges.as_deref();
        Self { internal_policy, external_policy, affinity, source_ranges, created }
    }
}

impl Resolver {
    /// Resolves a Service again. Removes its entry if neither the Service nor a slice of it exists.
    pub(super) fn refresh(&mut self, name: &ServiceName, node_ports: &[IpAddr], changes: &mut Changes) {
        let Some(mut known) = self.services.remove(name) else { return };
        let service = known.object.clone();
        let ours = service.as_deref().filter(|service| self.settings.is_ours(service.proxy.as_deref()));
        self.register_cluster_ips(name, &mut known, changes);
        let before = std::mem::take(&mut known.ports);
        let names: Vec<(PortName, &ServicePort)> = ours.into_iter().flat_map(port_names).collect();
        for &id in &before {
            let stays = |port: &ResolvedPort| names.iter().any(|(name, _)| *name == port.name);
            if !self.port(id).is_some_and(stays) {
                self.remove_port(id, changes);
            }
        }
        let mut local_ready = [BTreeSet::new(), BTreeSet::new()];
        for (name, port) in names {
            let Some(service) = ours else { continue };
            let id = before.iter().copied().find(|&id| self.port(id).is_some_and(|known| known.name == name));
            let ipv4 = name.ipv4;
            let slices = known.slices.values().map(|slice| &**slice);
            let candidates = candidates(slices, (&name.port, name.transport), ipv4);
            let local = candidates.iter().filter(|candidate| candidate.is_on(&self.own.location.node));
            let ready = local.filter(|candidate| candidate.endpoint.ready).map(|candidate| candidate.address);
            local_ready[usize::from(!ipv4)].extend(ready);
            let vips = self.vips_of(service, port, ipv4, node_ports);
            known.ports.push(self.set_port(id, name, &Terms::of(service), vips, &candidates, changes));
        }
        self.set_health_check(&mut known, ours, &local_ready, changes);
        if known.object.is_some() || !known.slices.is_empty() {
            self.services.insert(name.clone(), known);
        }
    }

    fn register_cluster_ips(&mut self, name: &ServiceName, known: &mut Known, changes: &mut Changes) {
        let service = known.object.as_deref();
        let is_ours = service.is_some_and(|service| self.settings.is_ours(service.proxy.as_deref()));
        let addresses = service.into_iter().flat_map(|service| &service.cluster_ips);
        let new: Vec<(IpAddr, bool)> = addresses.map(|&address| (address, is_ours)).collect();
        if new == known.cluster_ips {
            return;
        }
        for (address, _) in &known.cluster_ips {
            if let Some(services) = self.cluster_ips.get_mut(address) {
                services.remove(name);
                if services.is_empty() {
                    self.cluster_ips.remove(address);
                }
            }
        }
        for &(address, is_ours) in &new {
            self.cluster_ips.entry(address).or_default().insert(name.clone(), is_ours);
        }
        changes.cluster_ips.extend(known.cluster_ips.iter().chain(&new).map(|(address, _)| *address));
        known.cluster_ips = new;
    }

    /// Returns the VIPs that a service port claims, sorted, without duplicates.
    fn vips_of(
        &self,
        service: &ClusterService,
        port: &ServicePort,
        ipv4: bool,
        node_ports: &[IpAddr],
    ) -> Vec<(Vip, VipKind)> {
        let permitted = |address: &IpAddr| {
            self.settings.external_ips.as_ref().is_none_or(|all| all.iter().any(|block| block.contains(address)))
        };
        let at = |kind, addresses: &[IpAddr], number| -> Vec<(Vip, VipKind)> {
            let own = addresses.iter().filter(|address| address.is_ipv4() == ipv4);
            own.map(|&address| (Vip { address, transport: port.transport, port: number }, kind)).collect()
        };
        let external: Vec<IpAddr> = service.external_ips.iter().copied().filter(permitted).collect();
        let mut vips = at(VipKind::ClusterIp, &service.cluster_ips, port.port);
        vips.extend(at(VipKind::LoadBalancer, &service.balancer_ips, port.port));
        vips.extend(at(VipKind::ExternalIp, &external, port.port));
        if let Some(number) = port.node_port {
            vips.extend(at(VipKind::NodePort, node_ports, number));
        }
        // One address may occur twice, for example as load balancer and external address. The first kind counts.
        vips.sort_unstable();
        vips.dedup_by_key(|(vip, _)| *vip);
        vips
    }

    /// Replaces the service port `id`, or creates one if `id` is `None`. Returns its id.
    pub(in crate::service) fn set_port(
        &mut self,
        id: Option<ServicePortId>,
        name: PortName,
        terms: &Terms<'_>,
        vips: Vec<(Vip, VipKind)>,
        candidates: &[Candidate<'_>],
        changes: &mut Changes,
    ) -> ServicePortId {
        let old = id.and_then(|id| self.ports[id.index()].take());
        let id = id.unwrap_or_else(|| self.new_port_id());
        let known = old.as_ref().map_or(&[][..], |port| &port.backends);
        let backends = self.set_backends(id, known, candidates, changes);
        let selection = Selection::of(candidates, &self.own.location);
        let list = |list, before: Option<&Arc<[BackendId]>>| -> Arc<[BackendId]> {
            let checked = candidates.iter().zip(&backends);
            let new: Vec<BackendId> =
                checked.filter(|(candidate, _)| selection.check(list, candidate).is_ok()).map(|(_, id)| *id).collect();
            // An equal list keeps its allocation, which snapshots share.
            before.filter(|before| ***before == *new).cloned().unwrap_or_else(|| new.into())
        };
        let cluster = list(List::Cluster, old.as_ref().map(|port| &port.cluster));
        let local = list(List::Local, old.as_ref().map(|port| &port.local));
        let ipv4 = name.ipv4;
        let ranges = terms.source_ranges.map(|ranges| {
            let own = ranges.iter().filter(|range| range.addr().is_ipv4() == ipv4).copied();
            own.collect::<Arc<[_]>>()
        });
        let new = ResolvedPort {
            name,
            local: if *local == *cluster { cluster.clone() } else { local },
            cluster,
            internal_policy: terms.internal_policy,
            external_policy: terms.external_policy,
            affinity: terms.affinity,
            source_ranges: ranges,
            backends,
            vips,
            created: terms.created,
        };
        self.claim(id, old.as_ref(), Some(&new), changes);
        let differs = old.is_none_or(|old| !is_same(&old, &new));
        if differs {
            changes.ports.insert(id);
        }
        self.ports[id.index()] = Some(new);
        id
    }

    fn new_port_id(&mut self) -> ServicePortId {
        self.free_ports.pop().unwrap_or_else(|| {
            self.ports.push(None);
            ServicePortId(u32::try_from(self.ports.len() - 1).expect("fewer than 2^32 service ports at a time"))
        })
    }

    pub(in crate::service) fn remove_port(&mut self, id: ServicePortId, changes: &mut Changes) {
        let Some(old) = self.ports[id.index()].take() else { return };
        for &backend in &old.backends {
            self.backends.remove(backend);
            changes.add_backend(backend, id);
        }
        self.claim(id, Some(&old), None, changes);
        self.free_ports.push(id);
        changes.ports.insert(id);
    }

    /// Replaces a service port's backends. Both lists are sorted by address; remaining backends keep their ids.
    fn set_backends(
        &mut self,
        service_port: ServicePortId,
        known: &[BackendId],
        candidates: &[Candidate<'_>],
        changes: &mut Changes,
    ) -> Vec<BackendId> {
        let mut known = known.iter().copied().peekable();
        let mut ids = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            let new = Backend {
                address: candidate.address,
                port: candidate.port,
                serving: candidate.endpoint.serving,
                local: candidate.is_on(&self.own.location.node),
                service_port,
                incarnation: 0,
            };
            let key = (new.address, new.port);
            let key_of = |backends: &Self, id| {
                let backend = backends.backends.get(id);
                (backend.address, backend.port)
            };
            while let Some(gone) = known.next_if(|&id| key_of(self, id) < key) {
                self.backends.remove(gone);
                changes.add_backend(gone, service_port);
            }
            let id = match known.next_if(|&id| key_of(self, id) == key) {
                Some(id) => {
                    let backend = self.backends.get_mut(id);
                    let new = Backend { incarnation: backend.incarnation, ..new };
                    if *backend != new {
                        *backend = new;
                        changes.add_backend(id, service_port);
                    }
                    id
                }
                None => {
                    let id = self.backends.add(new);
                    changes.add_backend(id, service_port);
                    id
                }
            };
            ids.push(id);
        }
        for gone in known {
            self.backends.remove(gone);
            changes.add_backend(gone, service_port);
        }
        ids
    }

    /// Replaces a service port's old claims by its new ones.
    fn claim(
        &mut self,
        id: ServicePortId,
        old: Option<&ResolvedPort>,
        new: Option<&ResolvedPort>,
        changes: &mut Changes,
    ) {
        // Claims contain the creation time of the Service or pod.
        let is_as_old = old.zip(new).is_some_and(|(old, new)| old.created == new.created);
        let vips = |port: Option<&ResolvedPort>| port.map_or(Vec::new(), |port| port.vips.clone());
        let (before, after) = (vips(old), vips(new));
        for claim in before.iter().filter(|claim| !is_as_old || !after.contains(claim)) {
            if self.vips.remove_of(&claim.0, id) {
                changes.vips.insert(claim.0);
            }
        }
        let Some(new) = new else { return };
        for claim in after.iter().filter(|claim| !is_as_old || !before.contains(claim)) {
            let (vip, kind) = *claim;
            let rank = Rank::new(kind, new.created, new.name.owner.clone(), new.name.port.clone());
            if self.vips.add(vip, rank, id) {
                changes.vips.insert(vip);
            }
        }
    }

    fn set_health_check(
        &mut self,
        known: &mut Known,
        service: Option<&ClusterService>,
        local_ready: &[BTreeSet<IpAddr>; 2],
        changes: &mut Changes,
    ) {
        let new = service.and_then(|service| {
            // A Service without a cluster address is not translated.
            let port = service.health_check_port.filter(|_| !service.cluster_ips.is_empty())?;
            let rank = Rank::new(VipKind::NodePort, service.created, Owner::Service(service.name.clone()), "".into());
            let [ipv4, ipv6] = [&local_ready[0], &local_ready[1]].map(BTreeSet::len);
            Some((rank, HealthCheck { service: service.name.clone(), port, ipv4, ipv6 }))
        });
        if new == known.health_check {
            return;
        }
        if let Some((rank, old)) = &known.health_check {
            self.health_checks.remove(&old.port, rank);
            changes.health_checks.insert(old.port);
        }
        if let Some((rank, new)) = &new {
            self.health_checks.add(new.port, rank.clone(), ());
            changes.health_checks.insert(new.port);
        }
        known.health_check = new;
    }
}

/// Returns the service ports of a Service, one per port and family with a cluster address.
fn port_names(service: &ClusterService) -> impl Iterator<Item = (PortName, &ServicePort)> {
    let families = [true, false].into_iter();
    let families = families.filter(|&ipv4| service.cluster_ips.iter().any(|address| address.is_ipv4() == ipv4));
    families.flat_map(move |ipv4| {
        service.ports.iter().map(move |port| {
            let owner = Owner::Service(service.name.clone());
            let name = PortName { owner, port: port.name.clone(), transport: port.transport, ipv4 };
            (name, port)
        })
    })
}

/// Whether two states of a service port treat new connections alike. Changes of backends in no list are reported separately.
fn is_same(old: &ResolvedPort, new: &ResolvedPort) -> bool {
    let lists = |port: &ResolvedPort| (port.cluster.clone(), port.local.clone());
    let policies = |port: &ResolvedPort| (port.internal_policy, port.external_policy, port.affinity);
    let claims = |port: &ResolvedPort| (port.source_ranges.clone(), port.vips.clone());
    lists(old) == lists(new) && policies(old) == policies(new) && claims(old) == claims(new)
}
