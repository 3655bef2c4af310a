//! A list that changes while packets are judged. New tables share the unchanged parts, and readers may keep the old tables.
//!
//! ```sh
//! cargo run --release --example incremental
//! ```

#![allow(clippy::print_stdout, reason = "a program for people")]

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant;

use bulkhead_classifier::{
    Action, AddressSet, Addresses, BuildOptions, Change, Key, OriginId, PortRange, Rule, Service, ServiceSet, Tables,
    protocol,
};
use ipnet::IpNet;

/// Enough for a change to be much faster than a build, and few enough for a short run.
const SERVERS: u16 = 2_000;

/// Returns one rule per server, which allows its clients one port.
fn rules() -> Vec<Rule> {
    let rule = |server: u16| {
        let [high, low] = server.to_be_bytes();
        let client = IpNet::from(IpAddr::from([10, 1, high, low]));
        let service = Service { protocols: (protocol::TCP, protocol::TCP), ports: PortRange::one(8080) };
        Rule {
            src: AddressSet::from_iter([client]).into(),
            dst: Addresses::prefix(IpAddr::from([10, 2, high, low]).into()),
            services: ServiceSet::from_iter([service]).into(),
            ..Rule::any(Action::Allow, OriginId(server.into()))
        }
    };
    (0..SERVERS).map(rule).collect()
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let options = BuildOptions::default();
    let started = Instant::now();
    let old = Arc::new(Tables::build(rules())?);
    println!("built {} rules in {:?}: {}", old.rules().len(), started.elapsed(), old.describe());

    // A second client for server 7: replaces a rule by one that differs in one address.
    let newcomer = Ipv4Addr::new(10, 1, 200, 1);
    let rule = &old.rules()[7];
    let mut clients: Vec<IpNet> =
        rule.src.members().into_iter().flat_map(|set| set.prefixes().collect::<Vec<_>>()).collect();
    clients.push(IpAddr::V4(newcomer).into());
    let rule = Rule { src: clients.into_iter().collect::<AddressSet>().into(), ..rule.clone() };
    let started = Instant::now();
    let new = old.update(&[Change::Replace { at: 7, rule }], &options)?;
    println!("a client entered a set in {:?}: {}", started.elapsed(), new.describe());

    let key = Key::new(newcomer.into(), [10, 2, 0, 7].into(), protocol::TCP, 50_000, 8080);
    // A reader of the old tables still gets the old answer.
    assert!(!old.lookup(&key).is_allow() && new.lookup(&key).is_allow());

    // Inserts a deny in front of all rules, then removes it. Positions refer to the list after the previous changes.
    let blocked =
        Rule { src: Addresses::prefix(IpAddr::V4(newcomer).into()), ..Rule::any(Action::Deny, OriginId(u32::MAX)) };
    let shut = new.update(&[Change::Insert { at: 0, rule: blocked }], &options)?;
    assert_eq!(shut.lookup(&key).rule(), Some(0));
    let open = shut.update(&[Change::Remove { at: 0 }], &options)?;
    assert_eq!(open.lookup(&key).rule(), Some(7));
    assert!(open == new, "tables of equal rules are equal");

    // After many changes, compiling the list again makes lookups as fast as they were.
    if !open.is_whole() {
        let whole = Tables::build(open.rules().iter().cloned().collect())?;
        assert!(whole.is_whole() && whole == open);
        println!("compiled again: {}", whole.describe());
    }
    Ok(())
}
