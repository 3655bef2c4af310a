//! The part of a filter that matches one end of a flow: source or destination.

use std::net::IpAddr;

use ipnet::IpNet;

use super::super::labels::LabelSelector;
use super::{any, read};
use bulkhead_answers::output::printable;
use bulkhead_observe::hubble::flow::{Endpoint, Workload};

/// The wanted values for one end. An empty field matches every flow.
#[derive(Clone, Debug, Default)]
pub(super) struct EndFilter {
    addresses: Vec<IpNet>,
    /// Each pod filter's namespace (`None` for any) and name prefix.
    pods: Vec<(Option<String>, String)>,
    labels: Vec<LabelSelector>,
    ports: Vec<u32>,
    identities: Vec<u32>,
    workloads: Vec<Workload>,
}

impl EndFilter {
    /// Parses a `FlowFilter`'s fields about the source, or those about the destination.
    ///
    /// # Errors
    /// If a value cannot be parsed, or a workload has neither a name nor a kind.
    pub(super) fn new(
        (addresses, pods, labels, ports): (&[String], &[String], &[String], &[String]),
        identities: &[u32],
        workloads: &[Workload],
    ) -> Result<Self, String> {
        if workloads.contains(&Workload::default()) {
            return Err("a workload has neither a name nor a kind".to_owned());
        }
        Ok(Self {
            addresses: read(addresses, address)?,
            pods: read(pods, pod)?,
            labels: read(labels, LabelSelector::parse)?,
            ports: read(ports, port)?,
            identities: identities.to_vec(),
            workloads: workloads.to_vec(),
        })
    }

    pub(super) fn agrees(&self, address: Option<&str>, end: Option<&Endpoint>, port: Option<u32>) -> bool {
        let is_in = |network: &IpNet| {
            address.and_then(|text| text.parse().ok()).is_some_and(|address: IpAddr| network.contains(&address))
        };
        let is_pod = |(namespace, prefix): &(Option<String>, String)| {
            end.is_some_and(|end| {
                !end.pod_name.is_empty()
                    && end.pod_name.starts_with(&**prefix)
                    && namespace.as_ref().is_none_or(|namespace| *namespace == end.namespace)
            })
        };
        let is_of = |wanted: &Workload| {
            let is_it = |own: &Workload| {
                (wanted.name.is_empty() || wanted.name == own.name)
                    && (wanted.kind.is_empty() || wanted.kind == own.kind)
            };
            end.is_some_and(|end| end.workloads.iter().any(is_it))
        };
        any(&self.addresses, is_in)
            && any(&self.pods, is_pod)
            && any(&self.labels, |selector| end.is_some_and(|end| selector.selects(&end.labels)))
            && any(&self.ports, |wanted| port == Some(*wanted))
            && any(&self.identities, |wanted| end.is_some_and(|end| end.identity == *wanted))
            && any(&self.workloads, is_of)
    }
}

fn address(text: &str) -> Result<IpNet, String> {
    let network = text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
    network.ok_or_else(|| format!("`{}` is neither an address nor a network", printable(text)))
}

/// Parses `namespace/prefix`, `namespace/` (all its pods), `/prefix` (any namespace) or `prefix` (namespace `default`).
fn pod(text: &str) -> Result<(Option<String>, String), String> {
    match text.split_once('/') {
        None if text.is_empty() => Err("a pod has no name".to_owned()),
        None => Ok((Some("default".to_owned()), text.to_owned())),
        Some((namespace, prefix)) => Ok(((!namespace.is_empty()).then(|| namespace.to_owned()), prefix.to_owned())),
    }
}

fn port(text: &str) -> Result<u32, String> {
    text.parse::<u16>().map(u32::from).map_err(|_| format!("`{}` is not a port number", printable(text)))
}
