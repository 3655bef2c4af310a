//! A small firewall: an ordered list whose first match decides, and the verdicts of some packets.
//!
//! ```sh
//! cargo run --example firewall
//! ```

#![allow(clippy::print_stdout, reason = "a program for people")]

use std::error::Error;
use std::net::IpAddr;

use bulkhead_classifier::{
    Action, AddressSet, Addresses, Key, OriginId, PortRange, Rule, Service, ServiceSet, Services, Tables, Verdict,
    protocol,
};
use ipnet::IpNet;

/// The rules' names. A rule's origin is its position in this list.
const NAMES: [&str; 4] =
    ["nothing from blocked networks", "the web servers", "name servers", "nothing else from outside"];

fn addresses(prefixes: &[&str]) -> Result<Addresses, Box<dyn Error>> {
    let prefixes: Vec<IpNet> = prefixes.iter().map(|prefix| prefix.parse()).collect::<Result<_, _>>()?;
    Ok(prefixes.into_iter().collect::<AddressSet>().into())
}

fn ports(protocols: &[u8], ports: &[PortRange]) -> Services {
    let service = |&protocol: &u8| ports.iter().map(move |&ports| Service { protocols: (protocol, protocol), ports });
    protocols.iter().flat_map(service).collect::<ServiceSet>().into()
}

fn rules() -> Result<Vec<Rule>, Box<dyn Error>> {
    let [blocked, web, names, rest] = [OriginId(0), OriginId(1), OriginId(2), OriginId(3)];
    Ok(vec![
        Rule { src: addresses(&["203.0.113.0/24", "2001:db8:bad::/48"])?, ..Rule::any(Action::Deny, blocked) },
        Rule {
            dst: addresses(&["192.0.2.0/25", "2001:db8::/64"])?,
            services: ports(&[protocol::TCP], &[PortRange::one(80), PortRange::one(443)]),
            ..Rule::any(Action::Allow, web)
        },
        Rule {
            dst: addresses(&["192.0.2.53/32"])?,
            services: ports(&[protocol::UDP, protocol::TCP], &[PortRange::one(53)]),
            ..Rule::any(Action::Allow, names)
        },
        Rule::any(Action::Deny, rest),
    ])
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let tables = Tables::build(rules()?)?;
    let packets = [
        ("198.51.100.7", "192.0.2.10", protocol::TCP, 443, "the web servers"),
        ("203.0.113.9", "192.0.2.10", protocol::TCP, 443, "nothing from blocked networks"),
        ("198.51.100.7", "192.0.2.53", protocol::UDP, 53, "name servers"),
        ("198.51.100.7", "192.0.2.10", protocol::TCP, 22, "nothing else from outside"),
        ("2001:db8:1::7", "2001:db8::10", protocol::TCP, 80, "the web servers"),
        ("2001:db8:bad::7", "2001:db8::10", protocol::TCP, 80, "nothing from blocked networks"),
    ];
    let mut keys = Vec::new();
    for (src, dst, protocol, port, _) in packets {
        keys.push(Key::new(src.parse::<IpAddr>()?, dst.parse()?, protocol, 50_000, port));
    }
    // A burst at once, as in a packet loop. `lookup` answers for one packet.
    let mut verdicts = vec![Verdict::NO_MATCH; keys.len()];
    tables.lookup_batch(&keys, &mut verdicts);
    for ((src, dst, _, port, expected), verdict) in packets.into_iter().zip(verdicts) {
        let rule = tables.deciding_rule(verdict).ok_or("the last rule matches every packet")?;
        let name = NAMES[rule.origin.0 as usize];
        println!("{src:>15} -> {dst:12} port {port:3}: {} by `{name}`", verdict.action());
        assert_eq!(name, expected);
    }
    Ok(())
}
