//! The measured Services, as Kubernetes objects for the vswitch and as nftables rules like kube-proxy's. One Service in the middle leads to
//! the sink, all others to pods of other nodes. kube-proxy's rules find a Service in one map, however many exist, and mark connections of
//! its own endpoints for masquerading.

use std::fmt::Write as _;

/// Number of Services: those of a large cluster, as in kube-proxy's own benchmarks.
pub(crate) const SERVICES: u32 = 10_000;
/// Number of the Service that leads to the sink.
const SINKS: u32 = SERVICES / 2;
/// Ports of iperf3 and of the benchmark's servers, which the policy allows.
const PORTS: [u16; 9] = [5_201, 8_000, 8_001, 8_002, 8_003, 8_004, 8_005, 8_006, 8_007];

fn address(number: u32) -> String {
    format!("10.96.{}.{}", number / 250, number % 250 + 1)
}

/// Returns the cluster address of the sink's Service.
pub(crate) fn sink() -> String {
    address(SINKS)
}

/// Returns a Service's only endpoint, and whether it is on the node.
fn endpoint(number: u32, sink: &str) -> (String, bool) {
    if number == SINKS {
        (sink.to_owned(), true)
    } else {
        (format!("10.250.{}.{}", number / 250, number % 250 + 1), false)
    }
}

fn ports(number: u32) -> &'static [u16] {
    if number == SINKS { &PORTS } else { &PORTS[..1] }
}

/// Returns Services, slices and the node of the other endpoints. `sink` is the pod's address.
pub(crate) fn objects(sink: &str) -> String {
    let mut text =
        "---\n{apiVersion: v1, kind: Node, metadata: {name: node-2}, spec: {podCIDRs: [10.250.0.0/16]}}\n".to_owned();
    for number in 0..SERVICES {
        let (vip, (target, is_near)) = (address(number), endpoint(number, sink));
        let node = if is_near { "node-1" } else { "node-2" };
        let named = |text: &mut String, port: u16| {
            let _ = write!(text, "{{name: p{port}, port: {port}}}, ");
        };
        // Writing to a String cannot fail.
        let mut list = String::new();
        ports(number).iter().for_each(|&port| named(&mut list, port));
        let _ = write!(
            text,
            "---\n{{apiVersion: v1, kind: Service, metadata: {{name: s{number}, namespace: x}}, \
             spec: {{clusterIP: {vip}, clusterIPs: [{vip}], ports: [{list}]}}}}\n\
             ---\n{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, metadata: {{name: s{number}, \
             namespace: x, labels: {{kubernetes.io/service-name: s{number}}}}}, ports: [{list}], \
             endpoints: [{{addresses: [{target}], nodeName: {node}, conditions: {{ready: true}}}}]}}\n"
        );
    }
    text
}

/// Returns the same Services as nftables rules.
pub(crate) fn nftables(sink: &str) -> String {
    let (mut chains, mut elements) = (String::new(), Vec::new());
    for number in 0..SERVICES {
        let (vip, (target, _)) = (address(number), endpoint(number, sink));
        for port in ports(number) {
            let _ = write!(
                chains,
                "  chain endpoint-{number}-{port} {{\n    ip saddr {target} meta mark set 0x4000\n    \
                 meta l4proto tcp dnat to {target}:{port}\n  }}\n  \
                 chain service-{number}-{port} {{\n    numgen random mod 1 vmap {{ 0 : goto endpoint-{number}-{port} }}\n  }}\n"
            );
            elements.push(format!("{vip} . tcp . {port} : goto service-{number}-{port}"));
        }
    }
    format!(
        "table ip kube {{\n{chains}  map service-ips {{\n    type ipv4_addr . inet_proto . inet_service : verdict\n    \
         elements = {{ {} }}\n  }}\n  chain services {{\n    ip daddr . meta l4proto . th dport vmap @service-ips\n  }}\n  \
         chain prerouting {{\n    type nat hook prerouting priority dstnat\n    jump services\n  }}\n  \
         chain postrouting {{\n    type nat hook postrouting priority srcnat\n    \
         meta mark & 0x4000 == 0x4000 masquerade\n  }}\n}}\n",
        elements.join(", ")
    )
}

/// Returns a Service with these ports as node ports, whose endpoint is a pod of this node, and its slice.
pub(crate) fn node_ports(sink: &str, node: u8) -> String {
    let [ports, of_slice] = [true, false].map(|is_service| {
        let one = |port: &u16| {
            let more = if is_service { format!(", nodePort: {port}") } else { String::new() };
            format!("{{name: p{port}, port: {port}{more}}}")
        };
        PORTS.iter().map(one).collect::<Vec<_>>().join(", ")
    });
    format!(
        "---\n{{apiVersion: v1, kind: Service, metadata: {{name: sinks, namespace: x}}, \
         spec: {{type: NodePort, clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ports: [{ports}]}}}}\n\
         ---\n{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, metadata: {{name: sinks, \
         namespace: x, labels: {{kubernetes.io/service-name: sinks}}}}, ports: [{of_slice}], \
         endpoints: [{{addresses: [{sink}], nodeName: node-{node}, conditions: {{ready: true}}}}]}}\n"
    )
}

/// Returns the same node ports at this address as nftables rules like kube-proxy's: it masquerades all connections from outside, so that the answers
/// come back from any node.
pub(crate) fn node_port_rules(node: &str, sink: &str) -> String {
    let (mut chains, mut elements) = (String::new(), Vec::new());
    for port in PORTS {
        // Writing to a String cannot fail.
        let _ = write!(
            chains,
            "  chain endpoint-{port} {{\n    ip saddr {sink} jump mark-for-masquerade\n    meta l4proto tcp dnat to {sink}:{port}\n  }}\n  \
             chain service-{port} {{\n    ip daddr 10.96.0.1 tcp dport {port} ip saddr != 10.244.0.0/16 jump mark-for-masquerade\n    \
             numgen random mod 1 vmap {{ 0 : goto endpoint-{port} }}\n  }}\n  \
             chain external-{port} {{\n    jump mark-for-masquerade\n    goto service-{port}\n  }}\n"
        );
        elements.push(format!("tcp . {port} : goto external-{port}"));
    }
    format!(
        "table ip kube-proxy {{\n  chain mark-for-masquerade {{\n    mark set mark or 0x4000\n  }}\n{chains}  \
         map service-nodeports {{\n    type inet_proto . inet_service : verdict\n    elements = {{ {} }}\n  }}\n  \
         chain services {{\n    ip daddr {{ {node} }} meta l4proto . th dport vmap @service-nodeports\n  }}\n  \
         chain nat-prerouting {{\n    type nat hook prerouting priority dstnat\n    jump services\n  }}\n  \
         chain nat-postrouting {{\n    type nat hook postrouting priority srcnat\n    \
         mark & 0x4000 == 0 return\n    mark set mark xor 0x4000\n    masquerade fully-random\n  }}\n}}\n",
        elements.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_languages_have_all_services_and_the_sink_behind_one() {
        let (objects, nftables) = (objects("10.244.1.3"), nftables("10.244.1.3"));
        let count = usize::try_from(SERVICES).unwrap();
        assert_eq!(objects.matches("kind: Service,").count(), count);
        assert_eq!(objects.matches("kind: EndpointSlice").count(), count);
        assert_eq!(nftables.matches(": goto service-").count(), count - 1 + PORTS.len());
        assert_eq!(objects.matches("addresses: [10.244.1.3]").count(), 1);
        assert_eq!(nftables.matches("dnat to 10.244.1.3:").count(), PORTS.len());
    }
}
