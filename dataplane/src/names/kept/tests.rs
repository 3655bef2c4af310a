use std::path::PathBuf;

use super::super::{Holder, NameId};
use super::*;

const BOOT: [u8; 16] = [7; 16];
const SECOND: u64 = 1_000_000_000;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bulkhead-names-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Returns the path of the file of the process with this number.
    fn file(&self, process: u32) -> PathBuf {
        self.0.join(process.to_string())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a process knows, with its file.
struct Process {
    learned: Learned,
    kept: KeptNames,
    found: FoundNames,
}

impl Process {
    /// Starts the process with this number at `now`, with the file of the one before. The first has number 1.
    fn start(folder: &Folder, process: u32, now: u64) -> Self {
        let found = FoundNames::read(&folder.file(process - 1), BOOT);
        let mut found = if process == 1 { FoundNames::nothing() } else { found.unwrap() };
        let learned = Learned::new();
        let kept = KeptNames::in_file(&folder.file(process), BOOT, &mut found, &learned, now).unwrap();
        Self { learned, kept, found }
    }

    fn learn(&self, pod: (&str, &str), name: &str, address: &str, until: u64) -> NameId {
        let id = self.learned.learn(Holder(1), name, ip(address), SECOND, until).unwrap();
        self.kept.keep((pod.0, ip(pod.1)), (id, name), &[(ip(address), until)]);
        id
    }

    fn give_back(&self, holder: u32, pod: (&str, &str), now: u64) -> usize {
        self.kept.give_back(&self.learned, &[learner(holder, pod)], now)
    }

    fn names(&self, holder: u32, address: &str, now: u64) -> Vec<String> {
        let mut found = Vec::new();
        self.learned.names_of(Holder(holder), ip(address), now, |_, name| found.push(name.to_owned()));
        found
    }
}

fn learner(holder: u32, (port, address): (&str, &str)) -> Learner {
    Learner { holder: Holder(holder), port: port.into(), addresses: vec![ip(address)] }
}

const A: (&str, &str) = ("x/a", "10.0.0.1");
const B: (&str, &str) = ("x/b", "fd00::2");

#[test]
fn the_next_process_gives_a_pod_back_what_it_had_learned() {
    let folder = Folder::new("back");
    let first = Process::start(&folder, 1, SECOND);
    let id = first.learn(A, "www.example.com", "203.0.113.7", 90 * SECOND);
    first.learn(A, "www.example.com", "203.0.113.7", 99 * SECOND);
    first.learn(A, "old.example.com", "203.0.113.8", 20 * SECOND);
    first.learn(B, "b.example.org", "2001:db8::7", 99 * SECOND);
    drop(first);

    let found = FoundNames::read(&folder.file(1), BOOT).unwrap();
    assert_eq!((found.holdings.len(), found.names.len()), (3, 3), "a later answer overwrites");
    let next = Process::start(&folder, 2, 50 * SECOND);
    assert_eq!(next.found.name(id.bits()), Some("www.example.com"));
    assert_eq!(next.found.name(77), None);
    let session = next.kept.intern(&next.learned, "session.example.net", 50 * SECOND).unwrap();
    assert_eq!(next.learned.text(session).as_deref(), Some("session.example.net"));
    assert_eq!(next.give_back(5, A, 50 * SECOND), 1, "the other has ended");
    assert_eq!(next.names(5, "203.0.113.7", 95 * SECOND), ["www.example.com"]);
    assert!(next.names(5, "2001:db8::7", 51 * SECOND).is_empty(), "another pod's");
    assert_eq!(next.give_back(6, A, 50 * SECOND), 0, "only once");
    assert_eq!(next.give_back(7, B, 50 * SECOND), 1);
    // What was given back is in the new file, and so is the name that only a session has.
    let again = FoundNames::read(&folder.file(2), BOOT).unwrap();
    assert_eq!((again.holdings.len(), again.names.len()), (2, 3));
}

#[test]
fn a_process_that_is_killed_before_it_gives_anything_back_loses_nothing() {
    let folder = Folder::new("quick");
    Process::start(&folder, 1, SECOND).learn(A, "www.example.com", "203.0.113.7", 90 * SECOND);
    for process in 2..5 {
        drop(Process::start(&folder, process, 50 * SECOND));
    }
    let last = Process::start(&folder, 5, 51 * SECOND);
    assert_eq!(last.give_back(5, A, 51 * SECOND), 1);
    assert_eq!(last.names(5, "203.0.113.7", 80 * SECOND), ["www.example.com"]);
}

#[test]
fn another_pod_with_the_same_address_inherits_nothing() {
    let folder = Folder::new("other");
    Process::start(&folder, 1, SECOND).learn(A, "www.example.com", "203.0.113.7", 90 * SECOND);
    let next = Process::start(&folder, 2, 50 * SECOND);
    assert_eq!(next.give_back(5, ("x/other", A.1), 50 * SECOND), 0);
    assert_eq!(next.give_back(6, (A.0, "10.0.0.9"), 50 * SECOND), 0);
    assert_eq!(next.give_back(7, A, 50 * SECOND), 1);
}

#[test]
fn a_forgotten_pod_gets_nothing_back_in_this_process_and_the_next() {
    let folder = Folder::new("forgotten");
    let first = Process::start(&folder, 1, SECOND);
    for pod in [A, B] {
        first.learn(pod, "www.example.com", "203.0.113.7", 90 * SECOND);
        first.learn(pod, "b.example.com", "203.0.113.8", 90 * SECOND);
    }
    first.kept.forget(&[learner(1, A)]);
    let next = Process::start(&folder, 2, 50 * SECOND);
    assert_eq!(next.give_back(5, A, 50 * SECOND), 0);
    next.kept.forget(&[learner(1, B)]);
    assert_eq!(next.give_back(6, B, 50 * SECOND), 0);
    assert!(FoundNames::read(&folder.file(2), BOOT).unwrap().holdings.is_empty());
}

#[test]
fn an_earlier_end_after_a_later_one_does_not_shorten() {
    let folder = Folder::new("shorten");
    let first = Process::start(&folder, 1, SECOND);
    first.learn(A, "www.example.com", "203.0.113.7", 90 * SECOND);
    first.learn(A, "www.example.com", "203.0.113.7", 60 * SECOND);
    let next = Process::start(&folder, 2, 50 * SECOND);
    assert_eq!(next.give_back(5, A, 50 * SECOND), 1);
    assert_eq!(next.names(5, "203.0.113.7", 89 * SECOND), ["www.example.com"]);
}

#[test]
fn an_end_in_the_far_future_counts_as_the_latest_possible() {
    let folder = Folder::new("future");
    Process::start(&folder, 1, SECOND).learn(A, "www.example.com", "203.0.113.7", u64::MAX);
    let next = Process::start(&folder, 2, 50 * SECOND);
    assert_eq!(next.give_back(5, A, 50 * SECOND), 1);
    let latest = 50 * SECOND + LONGEST_VALIDITY;
    assert_eq!(next.names(5, "203.0.113.7", latest - 1), ["www.example.com"]);
    assert!(next.names(5, "203.0.113.7", latest + LONGEST_VALIDITY / 4 + SECOND).is_empty());
}

#[test]
fn the_longest_name_is_kept_and_a_longer_one_is_not() {
    let folder = Folder::new("long");
    let first = Process::start(&folder, 1, SECOND);
    let longest = [&"a.".repeat(126), "b"].concat();
    assert_eq!(longest.len(), LONGEST);
    first.learn(A, &longest, "203.0.113.7", 90 * SECOND);
    first.learn(A, &(longest.clone() + "c"), "203.0.113.8", 90 * SECOND);
    let next = Process::start(&folder, 2, 50 * SECOND);
    assert_eq!(next.give_back(5, A, 50 * SECOND), 1);
    assert_eq!(next.names(5, "203.0.113.7", 51 * SECOND), [longest]);
}

#[test]
fn a_holding_whose_lines_are_in_use_replaces_the_one_that_ends_first() {
    let folder = Folder::new("ways");
    let first = Process::start(&folder, 1, SECOND);
    let id = first.learned.intern("www.example.com", SECOND).unwrap();
    let pod = first.kept.pod((A.0, ip(A.1)));
    // All holdings of the first set, as the hash selects them.
    let mut written = Vec::new();
    for number in 0u32.. {
        let address = IpAddr::from(number.to_be_bytes());
        let [a, b, c] = pod.0;
        let [high, low] = halves(address);
        if first.kept.line([a, b, c, high, low], id.bits()) == 0 {
            let until = (100 + (written.len() as u64 + 4) % 9) * SECOND;
            first.kept.keep((A.0, ip(A.1)), (id, "www.example.com"), &[(address, until)]);
            written.push((until, address));
        }
        if written.len() == WAYS + 1 {
            break;
        }
    }
    let found = FoundNames::read(&folder.file(1), BOOT).unwrap();
    let mut kept: Vec<(u64, IpAddr)> = found.holdings.iter().map(|holding| (holding.until, holding.address)).collect();
    kept.sort_unstable();
    written.sort_unstable();
    assert_eq!(kept, written[1..], "the one that ends first is lost");
}

#[test]
fn a_file_of_another_boot_or_a_damaged_one_is_not_believed() {
    let folder = Folder::new("damaged");
    let path = folder.file(1);
    Process::start(&folder, 1, SECOND).learn(A, "www.example.com", "203.0.113.7", 99 * SECOND);
    assert_eq!(FoundNames::read(&path, [8; 16]).unwrap_err(), "it was written before the last boot");
    let bytes = std::fs::read(&path).unwrap();
    let at = bytes.len() - bytes.iter().rev().position(|byte| *byte != 0).unwrap() - 1;
    let holding = (4096..bytes.len()).find(|&at| bytes[at] != 0).unwrap();
    for (what, at) in [("a name", at), ("a holding", holding)] {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        std::fs::write(&path, damaged).unwrap();
        let found = FoundNames::read(&path, BOOT).unwrap();
        assert_eq!(found.holdings.len() + found.names.len(), 1, "{what}");
    }
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    assert_eq!(FoundNames::read(&path, BOOT).unwrap_err(), "its length differs from its header");
    std::fs::write(&path, b"nonsense").unwrap();
    assert_eq!(FoundNames::read(&path, BOOT).unwrap_err(), "it has no names");
}
