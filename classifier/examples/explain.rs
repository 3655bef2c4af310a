//! Explains a packet's verdict: the deciding rule, the matching rules behind it, and the cost of the lookup.
//!
//! ```sh
//! cargo run --example explain -- 10.0.0.5 10.0.1.9 6379
//! ```

#![allow(clippy::print_stdout, reason = "a program for people")]

use std::error::Error;
use std::net::IpAddr;

use bulkhead_classifier::{
    Action, Addresses, Key, OriginId, PortRange, Rule, Service, ServiceSet, Tables, linear, protocol,
};

/// The place where each rule was written. A program may map origins to files and lines, or to any other data.
const WRITTEN: [&str; 4] = ["db.rules:3", "db.rules:7", "site.rules:1", "site.rules:2"];

fn rules() -> Result<Vec<Rule>, Box<dyn Error>> {
    let service = |first, last| Service { protocols: (protocol::TCP, protocol::TCP), ports: PortRange { first, last } };
    let (clients, servers) = (Addresses::prefix("10.0.0.0/24".parse()?), Addresses::prefix("10.0.1.0/24".parse()?));
    Ok(vec![
        Rule {
            src: Addresses::prefix("10.0.0.128/25".parse()?),
            dst: servers.clone(),
            ..Rule::any(Action::Deny, OriginId(0))
        },
        Rule {
            src: clients.clone(),
            dst: servers,
            services: ServiceSet::from_iter([service(6379, 6379)]).into(),
            ..Rule::any(Action::Allow, OriginId(1))
        },
        Rule {
            src: clients,
            services: ServiceSet::from_iter([service(1024, 65_535)]).into(),
            ..Rule::any(Action::Allow, OriginId(2))
        },
        Rule::any(Action::Deny, OriginId(3)),
    ])
}

/// Returns the deciding rule and the other matching rules.
fn explain(tables: &Tables, key: &Key) -> (Option<usize>, Vec<usize>) {
    let verdict = tables.lookup(key);
    // A lookup gives the same answer as a scan of the list; `linear` is the reference.
    assert_eq!(verdict, linear::scan(tables.rules().iter(), key));
    let decides = verdict.rule();
    let matching = tables.rules().iter().enumerate().filter(|(_, rule)| rule.matches(key)).map(|(at, _)| at);
    (decides, matching.filter(|at| Some(*at) != decides).collect())
}

fn main() -> Result<(), Box<dyn Error>> {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    match asked.as_slice() {
        [] => run("10.0.0.5".parse()?, "10.0.1.9".parse()?, 6379),
        [src, dst, port] => run(src.parse()?, dst.parse()?, port.parse()?),
        _ => Err("write SOURCE DESTINATION PORT, or nothing".into()),
    }
}

pub(crate) fn run(src: IpAddr, dst: IpAddr, port: u16) -> Result<(), Box<dyn Error>> {
    let tables = Tables::build(rules()?)?;
    let key = Key::new(src, dst, protocol::TCP, 50_000, port);
    let told = |at: usize| {
        let rule = &tables.rules()[at];
        format!("rule {at}, {}, written at {}", rule.action, WRITTEN[rule.origin.0 as usize])
    };
    let (decides, others) = explain(&tables, &key);
    println!("{src} -> {dst} TCP {port}: {}", tables.lookup(&key).action());
    println!("  decided by {}", decides.map_or_else(|| "no rule".to_owned(), told));
    for at in others {
        println!("  also matched by {}", told(at));
    }
    println!("  this lookup: {:?}", tables.cost(&key));
    println!("  any lookup, at most: {:?}", tables.worst_case());

    // Known answers, independent of the arguments.
    let key = |src: [u8; 4], port| Key::new(src.into(), [10, 0, 1, 9].into(), protocol::TCP, 50_000, port);
    assert_eq!(explain(&tables, &key([10, 0, 0, 5], 6379)), (Some(1), vec![2, 3]));
    assert_eq!(explain(&tables, &key([10, 0, 0, 200], 6379)), (Some(0), vec![1, 2, 3]));
    assert_eq!(explain(&tables, &key([10, 0, 2, 1], 6379)), (Some(3), vec![]));
    Ok(())
}
