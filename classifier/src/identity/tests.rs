use std::net::Ipv4Addr;

use ipnet::IpNet;
use proptest::prelude::*;

use super::*;
use crate::engine::Axis;
use crate::{AddressSet, PortRange, Service, ServiceSet, Tables, protocol};

fn address(at: u16) -> IpAddr {
    if at.is_multiple_of(3) { IpAddr::from(u128::from(at).to_be_bytes()) } else { Ipv4Addr::from(u32::from(at)).into() }
}

fn set(members: &[u16]) -> AddressSet {
    members.iter().map(|&at| address(at)).collect()
}

proptest! {
    #[test]
    fn an_ipcache_follows_its_changes_as_a_map_of_addresses_does(
        steps in prop::collection::vec(prop::collection::vec((prop::collection::vec(0u16..400, 0..80), 0u32..5), 0..4), 0..12),
    ) {
        let (mut cache, mut truth) = (IpCache::default(), [0u32; 400]);
        for step in steps {
            let before = (cache.clone(), truth);
            let sets: Vec<AddressSet> = step.iter().map(|(members, _)| set(members)).collect();
            // The number encodes each change, in order.
            let change = |number: u32, changes: &[usize]| changes.iter().fold(number, |number, &at| (number * 5 + step[at].1) % 97);
            cache = cache.changed(&sets.iter().collect::<Vec<_>>(), change);
            for (at, number) in (0..).zip(&mut truth) {
                let here: Vec<usize> = (0..step.len()).filter(|&of| step[of].0.contains(&at)).collect();
                if !here.is_empty() {
                    *number = change(*number, &here);
                }
                prop_assert_eq!(cache.get(address(at)), *number, "{}", at);
            }
            let mut pairs = AHashSet::new();
            before.0.v4.differences(&cache.v4, &mut |one, other| {
                pairs.insert((one, other));
            });
            before.0.v6.differences(&cache.v6, &mut |one, other| {
                pairs.insert((one, other));
            });
            let differ = before.1.iter().zip(&truth).filter(|(one, other)| one != other);
            prop_assert_eq!(pairs, differ.map(|(&one, &other)| (one, other)).collect::<AHashSet<_>>());
        }
        let told: Vec<(IpNet, u32)> = cache.entries();
        for (at, &number) in (0..).zip(&truth) {
            let found: Vec<u32> = told.iter().filter(|(net, _)| net.contains(&address(at))).map(|&(_, of)| of).collect();
            prop_assert_eq!(found, if number == 0 { vec![] } else { vec![number] });
        }
        let other = cache.renumbered(|number| number / 2);
        prop_assert!((0..).zip(&truth).all(|(at, number)| other.get(address(at)) == number / 2));
    }
}

#[test]
fn an_address_more_writes_one_part_and_shares_the_others() {
    let odd: AddressSet = (0..100_000u32).map(|at| IpAddr::from(Ipv4Addr::from(0x0a00_0001 + 2 * at))).collect();
    let cache = IpCache::default().changed(&[&odd], |_, _| 1);
    assert_eq!(cache.len(), 200_001 + 1);
    let more = set(&[7]);
    let one = AddressSet::from_iter([IpAddr::from(Ipv4Addr::from(0x0a01_0000))]);
    for (added, wanted) in [(&one, 2), (&more, 1)] {
        let next = cache.changed(&[added], |_, _| 2);
        let shared = |part: &&Arc<Axis<u32>>| cache.v4.parts_of_tests().iter().any(|known| Arc::ptr_eq(known, part));
        let written = next.v4.parts_of_tests().iter().filter(|part| !shared(part)).count();
        assert!(written <= wanted, "{written} parts written");
    }
    // The number of parts stays bounded under changes.
    let mut cache = cache;
    let parts = cache.v4.parts_of_tests().len();
    for round in 0..50u32 {
        let at = |first: u32| -> AddressSet {
            (0..2_000).map(|at| IpAddr::from(Ipv4Addr::from(0xac00_0000 + first * 8_000 + 2 * at))).collect()
        };
        cache = cache.changed(&[&at(round)], |_, _| 3);
        cache = cache.changed(&[&at(round)], |_, _| 0);
    }
    assert!(cache.v4.parts_of_tests().len() <= parts + 4, "{} parts", cache.v4.parts_of_tests().len());
}

const ALLOW: Verdict = IdentityTables::verdict(Action::Allow, 0);
const DENY: Verdict = IdentityTables::verdict(Action::Deny, 1);

fn row(open: &[(u8, u16, u16)]) -> Row {
    let open: ServiceSet = open
        .iter()
        .map(|&(number, first, last)| Service { protocols: (number, number), ports: PortRange { first, last } })
        .collect();
    vec![(ServiceSet::all().subtract(&open), DENY), (open, ALLOW)]
}

#[test]
fn a_map_has_a_row_for_each_identity_and_the_first_for_all_others() {
    let rows =
        [row(&[]), row(&[(protocol::TCP, 6379, 6379)]), row(&[(protocol::UDP, 0, 65535), (protocol::SCTP, 1, 3)])];
    let map = PolicyMap::new(&[(0, 1), (3, 1), (4, 1), (6, 2), (u32::MAX, 1)], &rows);
    for (identity, of) in [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 0), (6, 2), (7, 0), (u32::MAX, 1)] {
        for protocol in [0, 5, 6, 7, 16, 17, 18, 131, 132, 255] {
            for port in [0, 1, 3, 4, 6378, 6379, 6380, 65535] {
                let (_, wanted) = rows[of].iter().find(|(services, _)| services.contains(protocol, port)).unwrap();
                assert_eq!(map.verdict(identity, protocol, port), *wanted, "{identity} {protocol} {port}");
            }
        }
    }
    assert_eq!(PolicyMap::new(&[], &[vec![]]).verdict(0, 6, 80), Verdict::NO_MATCH);
}

fn tables(cache: IpCache, open: &[u32]) -> IdentityTables {
    let maps = |open: &[u32]| {
        let identities: Vec<(u32, usize)> = open.iter().map(|&identity| (identity, 1)).collect();
        Arc::new(PolicyMap::new(&identities, &[row(&[]), row(&[(protocol::TCP, 80, 80)])]))
    };
    let any = Arc::new(PolicyMap::new(&[], &[vec![(ServiceSet::all(), ALLOW)]]));
    let parties = [(0, None), (1, None), (2, None), (3, Some(0)), (4, Some(1))];
    let parties: Vec<Party> = parties.map(|(identity, endpoint)| Party { identity, endpoint }).into();
    let first = EndpointMaps { ingress: maps(open), egress: any.clone() };
    let endpoints = [first, EndpointMaps { ingress: any, egress: maps(&[1, 3]) }];
    let decisions = [Action::Allow, Action::Deny].map(|action| IdentityTables::decision(action, OriginId(9)));
    let decisions = RuleList::from(Vec::from(decisions));
    IdentityTables::new(1, Arc::new(cache), parties.into(), endpoints.into(), ALLOW, decisions)
}

/// Returns the parties of addresses 1, 2, 4 and 5.
fn cache(parties: [u32; 4]) -> IpCache {
    let sets = [1, 2, 4, 5].map(|at| set(&[at]));
    IpCache::default().changed(&sets.each_ref(), |_, changes| parties[changes[0]])
}

#[test]
fn both_ends_are_asked_and_either_denies() {
    let built = tables(cache([1, 2, 3, 4]), &[1, 4]);
    let all = Tables::of_identities(Arc::new(built));
    let (known, other, first, second, world) = (address(1), address(2), address(4), address(5), address(7));
    let keys = [
        (known, first, 80, true),
        (other, first, 80, false),
        (known, first, 81, false),
        (world, first, 80, false),
        (first, world, 80, true),
        (second, first, 80, true),
        (second, known, 80, true),
        (second, other, 80, false),
        (known, second, 1, true),
        (known, other, 1, true),
    ];
    let asked: Vec<Key> = keys.iter().map(|&(src, dst, port, _)| Key::new(src, dst, protocol::TCP, 1, port)).collect();
    let mut verdicts = vec![Verdict::NO_MATCH; asked.len()];
    all.lookup_batch(&asked, &mut verdicts);
    for ((key, (.., allowed)), verdict) in asked.iter().zip(keys).zip(verdicts) {
        assert_eq!((verdict.is_allow(), all.lookup(key)), (allowed, verdict), "{key:?}");
        assert_eq!(all.deciding_rule(verdict).unwrap().action, verdict.action());
    }
}

#[test]
fn only_endpoints_whose_verdicts_may_differ_are_not_left_alone() {
    let first = tables(cache([1, 2, 3, 4]), &[1]);
    let with = |parties| IdentityTables { cache: Arc::new(cache(parties)), ..first.clone() };
    let alone = |new: &IdentityTables| {
        let difference = Difference::between(&first, new);
        [4, 5, 7].map(|at| difference.leaves_alone(&first, new, &[address(at)]))
    };
    assert_eq!(alone(&first.clone()), [true; 3]);
    // A remote address gets an identity that both endpoints distinguish from its former one.
    assert_eq!(alone(&with([2, 2, 3, 4])), [false, false, true]);
    // An unknown address gets an identity that no map names.
    assert_eq!(alone(&with([1, 0, 3, 4])), [true; 3]);
    assert_eq!(alone(&IdentityTables { lineage: 2, ..first.clone() }), [false, false, false]);
    // Another endpoint behind the same address.
    assert_eq!(alone(&with([1, 2, 4, 3])), [false, false, true]);
    let mut maps = first.clone();
    maps.endpoints = tables(cache([1, 2, 3, 4]), &[1]).endpoints;
    assert_eq!(alone(&maps), [false, false, true], "maps that were rebuilt");
}
