//! The allocator on temporary folders: random histories with processes that are killed, concurrent commands, and `host-local` beside it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use super::allocator::Allocator;
use super::ranges;
use super::store::{Before, Step};
use crate::error::{Code, Error};
use crate::netconf::Attached;
use crate::scratch::Scratch;

/// Never kills.
const LIVE: Before<'static> = &|_| Ok(());

fn allocator<'a>(folder: &Path, ranges: &Value, before: Before<'a>) -> Allocator<'a> {
    let fields: Vec<Vec<ranges::Fields>> = serde_json::from_value(ranges.clone()).unwrap();
    Allocator { folder: folder.join("pods"), sets: ranges::read(&fields).unwrap(), before }
}

fn attached(container: &str) -> Attached {
    Attached { container: container.into(), interface: "eth0".into() }
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// The files of a folder by name, with their contents, except `lock`.
fn files(folder: &Path) -> BTreeMap<String, String> {
    let Ok(entries) = fs::read_dir(folder.join("pods")) else { return BTreeMap::new() };
    let read = entries.map(|entry| {
        let entry = entry.unwrap();
        (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap())
    });
    read.filter(|(name, _)| name != "lock").collect()
}

/// The files of addresses.
fn leases(folder: &Path) -> BTreeMap<IpAddr, String> {
    files(folder).into_iter().filter_map(|(name, content)| Some((name.parse().ok()?, content))).collect()
}

/// A step of a history. Containers and addresses are numbers.
#[derive(Clone, Copy, Debug)]
enum Act {
    Add(usize),
    Del(usize),
    Gc,
    /// `host-local` creates the file of the n-th free address, and is killed before it writes it.
    Damage(usize),
}

const CONTAINERS: usize = 9;
/// Five IPv4 addresses and six IPv6 addresses.
const SMALL: [&str; 2] = ["10.1.0.0/29", "fd00::/125"];

fn small() -> Value {
    json!([[{"subnet": SMALL[0]}], [{"subnet": SMALL[1]}]])
}

/// Acts, each with the number of changes after which its process is killed.
fn history() -> impl Strategy<Value = Vec<(Act, Option<usize>)>> {
    let act = prop_oneof![
        6 => (0..CONTAINERS).prop_map(Act::Add),
        4 => (0..CONTAINERS).prop_map(Act::Del),
        1 => Just(Act::Gc),
        1 => (0..11_usize).prop_map(Act::Damage),
    ];
    proptest::collection::vec((act, proptest::option::of(0..14_usize)), 1..60)
}

/// What the container runtime knows: the addresses of containers whose `ADD` succeeded, and the containers whose last command was killed.
#[derive(Default)]
struct Known {
    held: BTreeMap<usize, Vec<IpAddr>>,
    cut_short: BTreeSet<usize>,
    damaged: usize,
    /// How many `ADD`s found no address left.
    refused: usize,
}

impl Known {
    fn valid(&self) -> Vec<Attached> {
        self.held.keys().map(|number| attached(&format!("c{number}"))).collect()
    }

    fn added(&mut self, number: usize, added: Result<Vec<IpAddr>, Error>, killed: bool) {
        match added {
            Ok(addresses) => {
                assert_eq!(addresses.len(), 2);
                let others = self.held.iter().filter(|(other, _)| **other != number).flat_map(|(_, held)| held);
                others.for_each(|other| assert!(!addresses.contains(other), "{other} is assigned twice"));
                let before = self.held.insert(number, addresses.clone());
                assert!(before.is_none_or(|before| before == addresses), "an ADD is repeated with the same result");
                self.cut_short.remove(&number);
            }
            Err(_) if killed => drop(self.cut_short.insert(number)),
            Err(error) => {
                assert_eq!(error.code, Code::TryAgain, "{error}");
                let reserved: BTreeSet<_> = self.held.keys().chain(&self.cut_short).collect();
                assert!(reserved.len() + self.damaged >= 5, "it is not full: {error}");
                self.refused += 1;
            }
        }
    }
}

/// Carries out one act. Its process is killed before the change with this number.
fn act(folder: &Path, known: &mut Known, act: Act, fuse: Option<usize>) {
    let (steps, killed) = (Cell::new(0), Cell::new(false));
    let before = |step| {
        let is_last = Some(steps.replace(steps.get() + 1)) == fuse;
        if is_last && step == Step::Write {
            fs::write(folder.join("pods/.bulkhead-cni.new"), "c").unwrap();
        }
        killed.set(killed.get() || is_last);
        if killed.get() { Err(io::Error::other("killed")) } else { Ok(()) }
    };
    let allocator = allocator(folder, &small(), &before);
    match act {
        Act::Add(number) => {
            let added = allocator.add(&format!("c{number}"), "eth0");
            known.added(number, added, killed.get());
        }
        Act::Del(number) => match allocator.del(&format!("c{number}"), "eth0") {
            Ok(()) => {
                known.held.remove(&number);
                known.cut_short.remove(&number);
            }
            Err(error) => {
                assert!(killed.get(), "{error}");
                // The runtime repeats DEL until it succeeds, and no pod uses the addresses.
                known.held.remove(&number);
                known.cut_short.insert(number);
            }
        },
        Act::Gc => match allocator.gc(&known.valid()) {
            Ok(()) => {
                known.cut_short.clear();
                known.damaged = 0;
                let held: BTreeSet<IpAddr> = known.held.values().flatten().copied().collect();
                assert_eq!(leases(folder).into_keys().collect::<BTreeSet<_>>(), held, "GC leaves what is valid");
            }
            Err(error) => assert!(killed.get(), "{error}"),
        },
        Act::Damage(at) => {
            let all = (2..7).map(|host| format!("10.1.0.{host}")).chain((2..8).map(|host| format!("fd00::{host}")));
            let leases = leases(folder);
            if let Some(free) = all.filter(|name| !leases.contains_key(&name.parse().unwrap())).nth(at) {
                fs::create_dir_all(folder.join("pods")).unwrap();
                fs::write(folder.join("pods").join(free), "").unwrap();
                known.damaged += 1;
            }
        }
    }
    let leases = leases(folder);
    for (number, held) in &known.held {
        for address in held {
            assert_eq!(leases.get(address), Some(&format!("c{number}\r\neth0")), "{address} of c{number} is lost");
        }
    }
}

#[test]
fn no_history_of_commands_and_kills_assigns_an_address_twice_or_loses_one() {
    let mut runner = TestRunner::new(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() });
    let (kills, full, number) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let outcome = runner.run(&history(), |history| {
        let scratch = Scratch::in_memory(&format!("ipam-history-{}", number.replace(number.get() + 1)));
        let (folder, mut known) = (scratch.path(), Known::default());
        for (one, fuse) in history {
            act(folder, &mut known, one, fuse);
            kills.set(kills.get() + usize::from(!known.cut_short.is_empty()));
        }
        full.set(full.get() + known.refused);
        // After the end of all containers, every address can be assigned.
        for number in 0..CONTAINERS {
            act(folder, &mut known, Act::Del(number), None);
        }
        act(folder, &mut known, Act::Gc, None);
        assert!(leases(folder).is_empty());
        for number in 0..5 {
            act(folder, &mut known, Act::Add(number), None);
        }
        assert_eq!(known.held.len(), 5, "no address is lost");
        assert!(!files(folder).contains_key(".bulkhead-cni.new"), "nothing half-written is left");
        Ok(())
    });
    outcome.unwrap();
    assert!(kills.get() > 100 && full.get() > 10, "the histories reach kills and full sets: {kills:?}, {full:?}");
}

#[test]
fn a_file_gets_its_name_after_its_content_is_on_the_disk() {
    let scratch = Scratch::new("ipam-order");
    let steps = RefCell::new(Vec::new());
    let before = |step| {
        steps.borrow_mut().push(step);
        Ok(())
    };
    let allocator = allocator(scratch.path(), &json!([[{"subnet": "10.1.0.0/24"}]]), &before);
    allocator.add("c1", "eth0").unwrap();
    use Step::{Create, Link, Remove, Rename, Sync, SyncFolder, Write};
    assert_eq!(steps.take(), [Create, Write, Sync, Link, Remove, Create, Write, Sync, Rename, SyncFolder]);
    allocator.del("c1", "eth0").unwrap();
    assert_eq!(steps.take(), [Remove, SyncFolder]);
    allocator.del("c1", "eth0").unwrap();
    assert_eq!(steps.take(), []);
}

#[test]
fn a_file_of_a_process_that_ignores_the_lock_is_not_replaced() {
    let scratch = Scratch::new("ipam-lockless");
    let file = scratch.path().join("pods/10.1.0.2");
    let before = |step| if step == Step::Link { fs::write(&file, "other\r\neth0") } else { Ok(()) };
    let error = allocator(scratch.path(), &small(), &before).add("c1", "eth0").unwrap_err();
    assert!(error.code == Code::Io && error.details.contains("/pods/10.1.0.2: File exists"), "{error}");
    let ours = allocator(scratch.path(), &small(), LIVE);
    ours.del("c1", "eth0").unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "other\r\neth0");
    assert_eq!(ours.add("c1", "eth0").unwrap()[0], "10.1.0.3".parse::<IpAddr>().unwrap());
}

#[test]
fn a_hundred_and_ten_commands_at_once_get_different_addresses() {
    let scratch = Scratch::new("ipam-at-once");
    let ranges = json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]);
    let start = Instant::now();
    let add = |number: usize| {
        let allocator = allocator(scratch.path(), &ranges, LIVE);
        // A third of the containers ends again meanwhile.
        let gone = format!("gone-{number}");
        if number.is_multiple_of(3) {
            allocator.add(&gone, "eth0").unwrap();
        }
        let added = allocator.add(&format!("c{number}"), "eth0").unwrap();
        if number.is_multiple_of(3) {
            allocator.del(&gone, "eth0").unwrap();
        }
        added
    };
    let added: Vec<IpAddr> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..110).map(|number| scope.spawn(move || add(number))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    println!("took {:?}", start.elapsed());
    assert_eq!(added.iter().collect::<BTreeSet<_>>().len(), 220);
    assert_eq!(leases(scratch.path()).into_keys().collect::<BTreeSet<_>>(), added.into_iter().collect());
}

#[test]
fn an_add_that_is_repeated_gets_the_same_addresses_and_another_interface_others() {
    let scratch = Scratch::new("ipam-repeated");
    let allocator = allocator(scratch.path(), &small(), LIVE);
    let first = allocator.add("c1", "eth0").unwrap();
    assert_eq!(first, ips(&["10.1.0.2", "fd00::2"]));
    assert_eq!(allocator.add("c1", "eth0").unwrap(), first);
    assert_eq!(allocator.add("c1", "eth1").unwrap(), ips(&["10.1.0.3", "fd00::3"]));
    allocator.del("c1", "eth0").unwrap();
    assert_eq!(allocator.add("c2", "eth0").unwrap(), ips(&["10.1.0.4", "fd00::4"]), "a released address rests");
    assert_eq!(leases(scratch.path()).len(), 4);
}

#[test]
fn a_check_finds_addresses_that_are_missing_or_belong_to_others() {
    let scratch = Scratch::new("ipam-check");
    let allocator = allocator(scratch.path(), &small(), LIVE);
    let says =
        |expected: &[&str]| allocator.check("c1", "eth0", &ips(expected)).map_err(|error| (error.code, error.details));
    let wrong = |expected: &[&str]| {
        let (code, details) = says(expected).unwrap_err();
        assert_eq!(code, Code::Different);
        details.split_once(" is not reserved for eth0").unwrap().0.to_owned()
    };
    assert_eq!(wrong(&[]), "an address", "there is no folder yet");
    allocator.add("c2", "eth0").unwrap();
    assert_eq!(wrong(&[]), "an address");
    let own = allocator.add("c1", "eth0").unwrap();
    assert_eq!(says(&["10.1.0.3", "fd00::3"]), Ok(()));
    assert_eq!(says(&["10.9.9.9"]), Ok(()), "the ranges were others at the ADD");
    assert_eq!(wrong(&["10.1.0.2"]), "10.1.0.2", "it is the other container's");
    fs::remove_file(scratch.path().join("pods").join(own[1].to_string())).unwrap();
    assert_eq!(wrong(&["10.1.0.3", "fd00::3"]), "fd00::3");
}

#[test]
fn an_address_of_an_old_file_is_not_assigned_to_another_interface_of_the_container() {
    let scratch = Scratch::new("ipam-old");
    let allocator = allocator(scratch.path(), &json!([[{"subnet": "10.1.0.0/24"}]]), LIVE);
    fs::create_dir_all(scratch.path().join("pods")).unwrap();
    // Old versions of `host-local` wrote the container's ID alone.
    fs::write(scratch.path().join("pods/10.1.0.2"), "c1").unwrap();
    assert_eq!(allocator.add("c1", "net1").unwrap(), ips(&["10.1.0.3"]));
    allocator.del("c1", "eth0").unwrap();
    assert_eq!(leases(scratch.path()).into_keys().collect::<Vec<_>>(), ips(&["10.1.0.3"]));
}

#[test]
fn a_full_set_is_an_error_that_reserves_nothing_and_names_damaged_files() {
    let scratch = Scratch::new("ipam-full");
    let ranges = json!([[{"subnet": "fd00::/64"}], [{"subnet": "10.1.0.0/29"}]]);
    let allocator = allocator(scratch.path(), &ranges, LIVE);
    for number in 0..4 {
        allocator.add(&format!("c{number}"), "eth0").unwrap();
    }
    fs::write(scratch.path().join("pods/10.1.0.6"), "").unwrap();
    fs::write(scratch.path().join("pods/fd00::99"), [0; 8]).unwrap();
    let before = files(scratch.path());
    let error = allocator.add("c9", "eth0").unwrap_err();
    assert_eq!((error.code, &*error.message), (Code::TryAgain, "no address is left"));
    for part in [
        "ipam.ranges[1]: all addresses of 10.1.0.2 to 10.1.0.6 are reserved by files in /",
        "/pods; end pods of the node, or add a range",
        "; 1 of these files are empty or damaged: remove those whose address no pod has: 10.1.0.6",
    ] {
        assert!(error.details.contains(part), "{error} does not say {part}");
    }
    assert_eq!(files(scratch.path()), before);
    allocator.del("c2", "eth0").unwrap();
    assert_eq!(allocator.add("c9", "eth0").unwrap()[1], "10.1.0.4".parse::<IpAddr>().unwrap());
}

#[test]
fn garbage_is_what_no_valid_attachment_has_or_can_have() {
    let scratch = Scratch::new("ipam-gc");
    let allocator = allocator(scratch.path(), &small(), LIVE);
    allocator.gc(&[]).unwrap();
    let write = |name: &str, content: &str| fs::write(scratch.path().join("pods").join(name), content).unwrap();
    let names = || leases(scratch.path()).into_keys().map(|address| address.to_string()).collect::<Vec<_>>();
    for container in ["c1", "c2"] {
        allocator.add(container, "eth0").unwrap();
    }
    // Of an old host-local, without an interface; of another interface; damaged, in a set and outside.
    write("10.1.0.4", "c1");
    write("10.1.0.5", "c2\r\neth1");
    write("10.1.0.6", "\0\0\0");
    write("10.9.9.9", "");
    allocator.gc(&[attached("c1"), attached("c2"), attached("c3")]).unwrap();
    let expected = ["10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.6", "10.9.9.9", "fd00::2", "fd00::3"];
    assert_eq!(names(), expected, "the damaged one may be c3's");
    allocator.gc(&[attached("c1"), attached("c2")]).unwrap();
    assert_eq!(names(), ["10.1.0.2", "10.1.0.3", "10.1.0.4", "10.9.9.9", "fd00::2", "fd00::3"]);
    allocator.gc(&[attached("c2")]).unwrap();
    assert_eq!(names(), ["10.1.0.3", "10.9.9.9", "fd00::3"]);
    allocator.gc(&[]).unwrap();
    assert!(names().is_empty());
}

#[test]
fn a_file_that_cannot_be_read_or_written_is_named() {
    let scratch = Scratch::new("ipam-io");
    let file = scratch.write("file", "");
    let error = allocator(&file, &small(), LIVE).add("c1", "eth0").unwrap_err();
    assert!(error.code == Code::Io && error.details.contains("/file/pods: Not a directory"), "{error}");
    assert!(error.details.ends_with("; ipam.dataDir names the folder"), "{error}");
    fs::create_dir_all(scratch.path().join("pods/10.1.0.3")).unwrap();
    let error = allocator(scratch.path(), &small(), LIVE).add("c1", "eth0").unwrap_err();
    assert!(error.details.contains("cannot read /") && error.details.contains("/pods/10.1.0.3: Is a"), "{error}");
}

/// The program `host-local`. `None` if it is not installed; then the test is skipped, or fails with `BULKHEAD_E2E=require`.
fn host_local() -> Option<PathBuf> {
    let named = std::env::var_os("BULKHEAD_CNI_PLUGINS").map(PathBuf::from);
    let folders = named.into_iter().chain(["/usr/lib/cni", "/opt/cni/bin"].map(PathBuf::from));
    let found = folders.map(|folder| folder.join("host-local")).find(|program| program.is_file());
    if found.is_none() {
        let must = std::env::var("BULKHEAD_E2E").is_ok_and(|value| value == "require");
        assert!(
            !must,
            "this test must run (BULKHEAD_E2E=require), but there is no host-local; see BULKHEAD_CNI_PLUGINS"
        );
        println!("skipped: host-local is not installed (containernetworking-plugins)");
    }
    found
}

/// Runs `host-local` with this folder. Returns the assigned addresses, none for `DEL`, or what it printed.
fn run(program: &Path, folder: &Path, ranges: &Value, command: &str, container: &str) -> Result<Vec<IpAddr>, String> {
    let ipam = json!({"type": "host-local", "dataDir": folder, "ranges": ranges});
    let conf = json!({"cniVersion": "1.0.0", "name": "pods", "type": "ptp", "ipam": ipam});
    let mut process = Command::new(program);
    process.envs([
        ("CNI_COMMAND", command),
        ("CNI_CONTAINERID", container),
        ("CNI_NETNS", "/x"),
        ("CNI_IFNAME", "eth0"),
    ]);
    process.env("CNI_PATH", "/").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = process.spawn().unwrap();
    child.stdin.take().unwrap().write_all(conf.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    if !output.status.success() {
        return Err(said);
    }
    let said: Value = serde_json::from_str(&said).unwrap_or_default();
    let ips = said["ips"].as_array().into_iter().flatten().map(|ip| ip["address"].as_str().unwrap());
    Ok(ips.map(|ip| ip.split('/').next().unwrap().parse().unwrap()).collect())
}

/// Ranges of which both allocators assign the same addresses.
fn configurations() -> [Value; 3] {
    [
        small(),
        json!([[{"subnet": "10.1.0.0/29", "rangeStart": "10.1.0.4"}, {"subnet": "10.2.0.0/29", "rangeEnd": "10.2.0.3", "gateway": "10.2.0.1"}]]),
        json!([[{"subnet": "fd00:0:0:1::/64", "rangeEnd": "fd00:0:0:1::6"}, {"subnet": "fd00:0:0:2:8000::/126"}]]),
    ]
}

#[test]
fn the_same_history_leaves_the_same_files_as_with_host_local() {
    let Some(program) = host_local() else { return };
    let history = proptest::collection::vec((any::<bool>(), 0..CONTAINERS), 1..25);
    let number = Cell::new(0);
    let mut runner = TestRunner::new(ProptestConfig { cases: 8, failure_persistence: None, ..Default::default() });
    let compared = runner.run(&history, |history| {
        for ranges in configurations() {
            let [ours, theirs] = ["ours", "theirs"]
                .map(|whose| Scratch::new(&format!("ipam-{whose}-{}", number.replace(number.get() + 1))));
            let allocator = allocator(ours.path(), &ranges, LIVE);
            let mut held = BTreeSet::new();
            for &(adds, container) in &history {
                let name = format!("c{container}");
                // Repeated ADDs differ on purpose.
                let is_new = adds && held.insert(container);
                if is_new {
                    let added = allocator.add(&name, "eth0").map_err(drop);
                    let expected = run(&program, theirs.path(), &ranges, "ADD", &name).map_err(drop);
                    assert_eq!(added, expected, "{ranges}");
                } else {
                    held.remove(&container);
                    allocator.del(&name, "eth0").unwrap();
                    run(&program, theirs.path(), &ranges, "DEL", &name).unwrap();
                }
                assert_eq!(leases(ours.path()), leases(theirs.path()), "{ranges}");
            }
        }
        Ok(())
    });
    compared.unwrap();
}

#[test]
fn both_allocators_serve_one_folder() {
    let Some(program) = host_local() else { return };
    let scratch = Scratch::new("ipam-both");
    let (folder, ranges) = (scratch.path(), json!([[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]));
    let ours = allocator(folder, &ranges, LIVE);
    // An upgrade: addresses of host-local stay reserved, and are found by their owners.
    assert_eq!(run(&program, folder, &ranges, "ADD", "old-1").unwrap(), ips(&["10.1.0.2", "fd00::2"]));
    run(&program, folder, &ranges, "ADD", "old-2").unwrap();
    run(&program, folder, &ranges, "ADD", "old-3").unwrap();
    assert_eq!(ours.add("new-1", "eth0").unwrap(), ips(&["10.1.0.5", "fd00::5"]));
    ours.check("old-1", "eth0", &ips(&["10.1.0.2", "fd00::2"])).unwrap();
    ours.del("old-1", "eth0").unwrap();
    ours.gc(&[attached("old-3"), attached("new-1")]).unwrap();
    assert_eq!(leases(folder).into_keys().collect::<Vec<_>>(), ips(&["10.1.0.4", "10.1.0.5", "fd00::4", "fd00::5"]));
    // A downgrade: a killed process has left a file, which host-local tolerates.
    let [left, address] = [".bulkhead-cni.new", "10.1.0.5"].map(|name| folder.join("pods").join(name));
    fs::hard_link(address, &left).unwrap();
    assert_eq!(run(&program, folder, &ranges, "ADD", "new-2").unwrap(), ips(&["10.1.0.6", "fd00::6"]));
    run(&program, folder, &ranges, "CHECK", "new-1").unwrap();
    run(&program, folder, &ranges, "DEL", "new-1").unwrap();
    assert_eq!(leases(folder).into_keys().collect::<Vec<_>>(), ips(&["10.1.0.4", "10.1.0.6", "fd00::4", "fd00::6"]));
    // Both at once.
    let added: Vec<IpAddr> = std::thread::scope(|scope| {
        let add = |number: usize| match number % 2 {
            0 => allocator(folder, &ranges, LIVE).add(&format!("both-{number}"), "eth0").unwrap(),
            _ => run(&program, folder, &ranges, "ADD", &format!("both-{number}")).unwrap(),
        };
        let threads: Vec<_> = (0..60).map(|number| scope.spawn(move || add(number))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(added.iter().collect::<BTreeSet<_>>().len(), 120);
    assert_eq!(leases(folder).len(), 124);
}
