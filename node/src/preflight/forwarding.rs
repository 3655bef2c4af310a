//! Checks what keeps pods from other machines where the node's kernel forwards their packets: settings, firewalls, and the tunnel's port.
//!
//! The checks run at a start, with `run --check`, and again in the running vswitch, because firewalls are often loaded or changed later.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use bulkhead_dataplane::io::{
    Firewall, FirewallDrop, FirewallHook, FirewallPacket, LinkStatus, Reach, links, own_routes, reach,
};
use ipnet::IpNet;

use super::{Finding, Severity};
use crate::config::{Config, CreatedHost, Encapsulation, EncapsulationMode, TUNNEL};

/// The path of pods' packets through the node's kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelPath<'a> {
    /// Name of the host port's interface at the node's end.
    pub host: &'a str,
    /// Settings of the tunnel.
    pub encapsulation: Encapsulation,
    /// The networks of the node's pods. If empty, IPv4 alone is checked.
    pub pods: &'a [IpNet],
}

/// Returns the findings of [`KernelPath::check`]. Returns none if the vswitch has an uplink port, or did not create the host port: then the kernel
/// forwards no packets of pods that the vswitch knows of. `pods` are the networks of the node's pods; empty if they are not known yet.
pub(crate) fn check(config: &Config, pods: &[IpNet]) -> Vec<Finding> {
    let Some(CreatedHost { peer, networks, .. }) = config.host_to_nodes() else { return Vec::new() };
    let pods = if networks.is_empty() { pods } else { networks };
    KernelPath { host: peer, encapsulation: config.encapsulation, pods }.check()
}

impl KernelPath<'_> {
    /// Checks the path in the calling thread's network namespace. A finding that is certain to keep packets away is marked as one that comes
    /// again. What cannot be read is left out.
    pub(crate) fn check(&self) -> Vec<Finding> {
        let all = links().unwrap_or_default();
        let mut findings = self.settings(|path| fs::read_to_string(path).ok());
        let firewall = Firewall::read().unwrap_or_default();
        findings.extend(self.forwarded(&firewall, &all));
        findings.extend(self.legacy(|path| fs::read_to_string(path).ok()));
        if self.encapsulation.mode != EncapsulationMode::Never {
            let is_needed = self.encapsulation.mode == EncapsulationMode::Always || is_tunneling();
            findings.extend(self.received(&firewall, &all, is_needed));
            findings.extend(self.taken(&all));
        }
        findings
    }

    /// Returns the address families of the pods' networks: true for IPv4, false for IPv6. IPv4 alone if no network is known.
    fn families(&self) -> BTreeSet<bool> {
        let families: BTreeSet<bool> = self.pods.iter().map(|network| network.addr().is_ipv4()).collect();
        if families.is_empty() { [true].into() } else { families }
    }

    /// Checks the settings that make the kernel forward. `read` returns a file's text, or `None` if the file cannot be read.
    fn settings(&self, read: impl Fn(&str) -> Option<String>) -> Vec<Finding> {
        let is_off = |is_v4: &bool| -> Option<Finding> {
            let (name, family) = match is_v4 {
                true => ("net.ipv4.ip_forward", "IPv4"),
                false => ("net.ipv6.conf.all.forwarding", "IPv6"),
            };
            let value = read(&format!("/proc/sys/{}", name.replace('.', "/")))?;
            (value.trim() == "0").then(|| {
                warning(
                    format!("the node's kernel does not forward {family} ({name} is 0)"),
                    "no uplink is configured, so pods reach other machines through the kernel",
                    format!("sysctl -w {name}=1\nand write it to a file in /etc/sysctl.d, so that it stays"),
                )
            })
        };
        self.families().iter().filter_map(is_off).collect()
    }

    /// Checks the chains through which forwarded packets pass.
    fn forwarded(&self, firewall: &Firewall, all: &[LinkStatus]) -> Vec<Finding> {
        let (mut drops, host) = (BTreeSet::new(), Some(self.host.to_owned()));
        for is_v4 in self.families() {
            let pod = self.pods.iter().find(|network| network.addr().is_ipv4() == is_v4);
            let pod: Option<IpAddr> = pod.and_then(|network| network.hosts().next());
            let has_tunnel = named(all, TUNNEL).is_some();
            let others = [card(all, is_v4), has_tunnel.then(|| TUNNEL.to_owned())];
            // The first is unknown on a node without a default route.
            for other in others.iter().take(if has_tunnel { 2 } else { 1 }) {
                let packet = |input: &Option<String>, output: &Option<String>, source, destination| FirewallPacket {
                    is_v4,
                    input: input.clone(),
                    output: output.clone(),
                    source,
                    destination,
                    udp_port: None,
                };
                drops.extend(firewall.drops(FirewallHook::Forward, &packet(&host, other, pod, None)));
                drops.extend(firewall.drops(FirewallHook::Forward, &packet(other, &host, None, pod)));
            }
        }
        let why = "pods and other machines do not reach each other through the node's kernel";
        let host = self.host;
        let commands = |drop: &FirewallDrop| match iptables(drop, "FORWARD") {
            Some(iptables) => {
                format!("{iptables} -I FORWARD -i {host} -j ACCEPT\n{iptables} -I FORWARD -o {host} -j ACCEPT")
            }
            None => {
                let rule = format!("nft insert rule {} {} {}", drop.family, drop.table, drop.chain);
                format!("{rule} iifname \"{host}\" accept\n{rule} oifname \"{host}\" accept")
            }
        };
        merged(drops).iter().map(|drop| dropping(drop, "packets from or to pods", why, &commands(drop))).collect()
    }

    /// Checks the chains through which packets of the tunnel reach the node. `is_needed`: whether a node is behind the tunnel.
    fn received(&self, firewall: &Firewall, all: &[LinkStatus], is_needed: bool) -> Vec<Finding> {
        let port = self.encapsulation.port;
        let packet = |is_v4| FirewallPacket {
            is_v4,
            input: card(all, is_v4),
            output: None,
            source: None,
            destination: None,
            udp_port: Some(port),
        };
        let drops =
            self.families().into_iter().flat_map(|is_v4| firewall.drops(FirewallHook::Input, &packet(is_v4))).collect();
        let what = format!("packets of the tunnel (UDP port {port})");
        let commands = |drop: &FirewallDrop| match iptables(drop, "INPUT") {
            Some(iptables) => format!("{iptables} -I INPUT -p udp --dport {port} -j ACCEPT"),
            None => {
                format!("nft insert rule {} {} {} udp dport {port} accept", drop.family, drop.table, drop.chain)
            }
        };
        let found = merged(drops).into_iter().map(|drop| {
            let why = "pods of nodes behind a router are not reached";
            let mut finding = dropping(&drop, &what, why, &commands(&drop));
            if !is_needed {
                finding.severity = Severity::Note;
                finding.why.push_str("; this node has none of these now");
                finding.comes_again = false;
            }
            finding
        });
        found.collect()
    }

    /// Reports tables of legacy `iptables`, whose rules this process does not read. `read` returns a file's text, or `None` if the file cannot be
    /// read.
    fn legacy(&self, read: impl Fn(&str) -> Option<String>) -> Option<Finding> {
        let families = self.families().into_iter().map(|is_v4| if is_v4 { "ip" } else { "ip6" });
        let has_filter = |family: &&str| {
            let names = read(&format!("/proc/thread-self/net/{family}_tables_names")).unwrap_or_default();
            names.lines().any(|name| name == "filter")
        };
        let program = |family: &str| format!("{family}tables-legacy");
        let programs: Vec<String> = families.filter(has_filter).map(program).collect();
        let look = |program: &String| format!("{program} -S FORWARD; {program} -S INPUT");
        let accept = |program: &String| {
            let host = self.host;
            format!("if it drops: {program} -I FORWARD -i {host} -j ACCEPT; {program} -I FORWARD -o {host} -j ACCEPT")
        };
        (!programs.is_empty()).then(|| Finding {
            severity: Severity::Note,
            what: format!("the kernel has rules of {}, which are not checked", programs.join(" and ")),
            why: "if their chain FORWARD drops, pods and other machines do not reach each other".to_owned(),
            remedy: programs.iter().map(look).chain(programs.iter().map(accept)).collect::<Vec<_>>().join("\n"),
            comes_again: false,
        })
    }

    /// Checks that no other device or program uses the tunnel's port.
    fn taken(&self, all: &[LinkStatus]) -> Option<Finding> {
        let port = self.encapsulation.port;
        let why = "the kernel cannot set up the tunnel, so pods of nodes behind a router are not reached";
        let other = "or set another vxlan.port, the same at all nodes";
        let (own, others): (Vec<&LinkStatus>, Vec<&LinkStatus>) =
            all.iter().filter(|link| link.vxlan_port == Some(port)).partition(|link| link.names[0] == TUNNEL);
        if let Some(device) = others.first() {
            let name = &device.names[0];
            let what = format!("the VXLAN device {name} uses UDP port {port}, which the tunnel needs");
            return Some(warning(what, why, format!("ip link del {name}\n{other}")));
        }
        // The socket is closed immediately, so it hardly affects others.
        let is_in_use = |address: IpAddr| {
            UdpSocket::bind((address, port)).is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
        };
        let is_taken =
            own.is_empty() && (is_in_use(Ipv4Addr::UNSPECIFIED.into()) || is_in_use(Ipv6Addr::UNSPECIFIED.into()));
        is_taken.then(|| {
            let what = format!("another program has UDP port {port}, which the tunnel needs");
            warning(what, why, format!("find it with `ss -ulpn sport = :{port}`, and stop it\n{other}"))
        })
    }
}

/// Whether the kernel has a route through the tunnel.
fn is_tunneling() -> bool {
    let routes = own_routes().unwrap_or_default();
    routes.iter().any(|route| route.hop.encapsulation.is_some())
}

/// Addresses in the world, of IPv4 and of IPv6: for documentation (RFC 5737, RFC 3849), so that only the default route leads to them.
pub(crate) const WORLD: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1))];

/// Returns the name of the interface over which packets to the world leave. `None` without a default route.
fn card(all: &[LinkStatus], is_v4: bool) -> Option<String> {
    match reach(WORLD[usize::from(!is_v4)]) {
        Ok(Reach::Router(index) | Reach::Link(index)) => {
            all.iter().find(|link| link.index == index).map(|link| link.names[0].clone())
        }
        _ => None,
    }
}

/// Returns the interface of this name. `None` if there is none.
fn named<'a>(all: &'a [LinkStatus], name: &str) -> Option<&'a LinkStatus> {
    all.iter().find(|link| link.names[0] == name)
}

/// Keeps one entry of each chain, a certain one if there is one.
fn merged(drops: BTreeSet<FirewallDrop>) -> Vec<FirewallDrop> {
    let certain: BTreeSet<FirewallDrop> = drops.iter().filter(|drop| drop.is_certain).cloned().collect();
    let is_kept =
        |drop: &FirewallDrop| drop.is_certain || !certain.contains(&FirewallDrop { is_certain: true, ..drop.clone() });
    drops.into_iter().filter(is_kept).collect()
}

/// Returns the program that changes this chain of `iptables-nft`. `None` for other chains.
fn iptables(drop: &FirewallDrop, chain: &str) -> Option<&'static str> {
    let is_iptables = drop.table == "filter" && drop.chain == chain;
    match drop.family {
        "ip" if is_iptables => Some("iptables"),
        "ip6" if is_iptables => Some("ip6tables"),
        _ => None,
    }
}

/// Returns the finding about a chain that drops. `commands` make it accept.
fn dropping(drop: &FirewallDrop, what: &str, why: &str, commands: &str) -> Finding {
    let FirewallDrop { family, table, chain, is_certain } = drop;
    let drops = if *is_certain { "drops" } else { "may drop" };
    let mut finding = warning(
        format!("the firewall's chain {chain} (nft list chain {family} {table} {chain}) {drops} {what}"),
        why,
        format!("{commands}\nand add this to the firewall's own configuration, so that it stays"),
    );
    if !is_certain {
        finding.why = format!("a rule that is not understood decides; if it does not accept, {why}");
    }
    finding.comes_again = *is_certain;
    finding
}

/// Returns a warning that comes again.
fn warning(what: String, why: &str, remedy: String) -> Finding {
    Finding { severity: Severity::Warning, what, why: why.to_owned(), remedy, comes_again: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(pods: &[IpNet]) -> KernelPath<'_> {
        let encapsulation = Encapsulation { mode: EncapsulationMode::Auto, port: 4789, vni: 1 };
        KernelPath { host: "bh-node", encapsulation, pods }
    }

    #[test]
    fn a_kernel_that_does_not_forward_a_family_of_pods_is_told_with_the_setting() {
        let [v4, v6] = ["10.244.1.0/24", "fd00:244:1::/64"].map(|text| text.parse::<IpNet>().unwrap());
        let off = |_: &str| Some("0\n".to_owned());
        let remedies = |pods: &[IpNet]| -> Vec<String> {
            let findings = path(pods).settings(off);
            findings.iter().map(|finding| finding.remedy.lines().next().unwrap().to_owned()).collect()
        };
        let [of_v4, of_v6] = ["sysctl -w net.ipv4.ip_forward=1", "sysctl -w net.ipv6.conf.all.forwarding=1"];
        assert_eq!(remedies(&[]), [of_v4]);
        assert_eq!(remedies(&[v6]), [of_v6]);
        assert_eq!(remedies(&[v4, v6]).len(), 2);
        assert_eq!(path(&[v4, v6]).settings(|_| Some("1\n".to_owned())), []);
        assert_eq!(path(&[v6]).settings(|_| None), [], "a kernel without IPv6");
        let read = |path: &str| Some(if path.ends_with("/net/ipv4/ip_forward") { "1" } else { "0" }.to_owned());
        assert_eq!(path(&[v4]).settings(read), []);
    }

    #[test]
    fn rules_of_legacy_iptables_are_told_as_not_checked() {
        let with = |v4: &'static str| {
            path(&[]).legacy(move |path: &str| path.ends_with("/ip_tables_names").then(|| v4.to_owned()))
        };
        let finding = with("nat\nfilter\n").unwrap();
        assert_eq!(finding.severity, Severity::Note);
        assert!(finding.remedy.starts_with("iptables-legacy -S FORWARD"), "{finding}");
        assert_eq!((with("nat\n"), with("")), (None, None));
    }

    #[test]
    fn a_chain_is_told_once_and_certainly_if_one_packet_is_certain() {
        let drop = |chain: &str, is_certain| FirewallDrop {
            family: "ip",
            table: "filter".to_owned(),
            chain: chain.to_owned(),
            is_certain,
        };
        let drops = [drop("FORWARD", true), drop("FORWARD", false), drop("other", false)].into();
        assert_eq!(merged(drops), [drop("FORWARD", true), drop("other", false)]);
        let told = dropping(&drop("other", false), "packets", "pods fail", "nft ...");
        assert!(told.what.contains("may drop packets") && !told.comes_again, "{told}");
    }
}
