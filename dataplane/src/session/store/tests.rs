use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::packet::Ports;
use crate::probe::{Probe, ProbeKind};
use crate::testbed::*;
use crate::*;

const HIT: Option<SessionState> = Some(SessionState::Hit);

/// A temporary folder.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self(std::env::temp_dir().join(format!("bulkhead-store-{}-{number}", std::process::id())))
    }

    fn file(&self, worker: usize) -> PathBuf {
        self.0.join("current").join(worker.to_string())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Offset of the first entry in a file.
const ENTRY: usize = 4096;

const NOW: u64 = 1000 * SECOND;

struct Process {
    workers: Vec<Worker>,
    store: SessionStore,
    affinity: Affinity,
    snapshot: Snapshot,
    now: u64,
}

impl Process {
    fn start(folder: &Scratch, workers: usize, now: u64) -> Self {
        Self::with(folder, SessionConfig::live(10_000), workers, now)
    }

    fn with(folder: &Scratch, sessions: SessionConfig, workers: usize, now: u64) -> Self {
        let mut store = SessionStore::open(&folder.0).unwrap();
        let config = WorkerConfig { sessions, ..WorkerConfig::default() };
        let affinity = Affinity::new();
        let workers = Worker::team_in(&mut store, config, workers, &affinity, &snapshot(), now).unwrap();
        Self { workers, store, affinity, snapshot: snapshot(), now }
    }

    fn send(&mut self, in_port: PortId, packet: &[u8]) -> Outcome {
        let ethertype = if packet[0] >> 4 == 6 { 0x86dd } else { 0x0800 };
        let frame = ethernet(A_MAC, ethertype, packet);
        let owner = self.affinity.worker(&frame, self.workers.len());
        let (link, time) = (LinkType::Ethernet, self.now);
        let packet = Packet { frame: &frame, wire_len: frame.len(), link, in_port, time };
        let mut outcomes = [Outcome::UNJUDGED];
        self.workers[owner].process(&self.snapshot, &[packet], &mut outcomes);
        outcomes[0]
    }

    /// Ends without further writes, like a killed process.
    fn kill(self) -> u64 {
        self.now
    }

    fn in_use(&self) -> usize {
        self.workers.iter().map(Worker::sessions_in_use).sum()
    }
}

fn there(client: u8, flags: u8) -> Vec<u8> {
    tcp(&format!("9.9.9.{client}"), "10.0.0.1", 40_000, 80, flags)
}

fn back(client: u8, flags: u8) -> Vec<u8> {
    tcp("10.0.0.1", &format!("9.9.9.{client}"), 80, 40_000, flags)
}

/// Creates a process with established connections from this number of clients to pod A, and one session of each other kind.
fn busy(folder: &Scratch, workers: usize, clients: u8) -> Process {
    let mut process = Process::start(folder, workers, NOW);
    for client in 0..clients {
        process.send(UPLINK, &there(client, SYN));
        process.send(A, &back(client, SYN | ACK));
        assert_eq!(process.send(UPLINK, &there(client, ACK)).session, HIT);
    }
    process
}

#[test]
fn sessions_outlive_a_killed_process_with_the_same_and_with_another_number_of_workers() {
    for (before, after) in [(1, 1), (1, 3), (3, 1), (2, 4), (4, 2)] {
        let folder = Scratch::new();
        let mut process = busy(&folder, before, 100);
        let stream = Probe { sport: 7, ..probe(ProbeKind::Udp, "fd00::2", "fd00::1", 53) };
        process.send(B, &stream.request().unwrap());
        process.send(A, &stream.reply().unwrap());
        let now = process.kill();
        let mut process = Process::start(&folder, after, now + 20 * SECOND);
        let expected = Adoption { adopted: 101, ..Adoption::default() };
        assert_eq!((process.store.adoption(), process.in_use()), (&expected, 101), "{before} to {after} workers");
        // Packets that no policy allows without a session: first from the pod, then from the client.
        for client in 0..100 {
            let (port, packet) = if client % 2 == 0 { (A, back(client, ACK)) } else { (UPLINK, there(client, ACK)) };
            let outcome = process.send(port, &packet);
            assert_eq!((outcome.session, outcome.decision.unwrap().table()), (HIT, Some(OPEN)), "client {client}");
        }
        assert_eq!(process.send(B, &stream.request().unwrap()).session, HIT);
        process.now += 80_000 * SECOND;
        assert_eq!(process.send(A, &back(1, ACK)).session, HIT, "the session is still established");
    }
}

#[test]
fn a_session_that_was_adopted_ends_with_its_pod_also_before_its_first_packet() {
    let folder = Scratch::new();
    let mut process = busy(&folder, 1, 3);
    let services = services(1, &[(VIP, service(&[backend("10.0.0.1", 80)]))]);
    process.snapshot = process.snapshot.clone().with_services(Some(Arc::new(services)));
    assert_eq!(process.send(B, &tcp("10.0.0.2", VIP, 40_000, 8080, SYN)).verdict, Verdict::Forward(A));
    let now = process.kill();
    let mut process = Process::start(&folder, 1, now);
    let worker = &mut process.workers[0];
    worker.end_port(A);
    let told: Vec<_> = std::iter::from_fn(|| worker.next_survivor(&mut 100, now)).collect();
    let of_service = told.iter().find(|told| told.own.0 == ip("10.0.0.2")).unwrap();
    assert_eq!((told.len(), of_service.other, process.in_use()), (4, (ip(VIP), 8080), 0));
}

#[test]
fn adopted_sessions_are_judged_by_the_tables_in_force() {
    let folder = Scratch::new();
    let now = busy(&folder, 1, 2).kill();
    let mut process = Process::start(&folder, 1, now);
    process.snapshot = snapshot_with(1, A, Some(CLOSED));
    for (port, packet) in [(A, back(0, ACK)), (UPLINK, there(1, ACK))] {
        assert_eq!(process.send(port, &packet).verdict, Verdict::Drop(DropReason::PolicyDenied));
    }
    // A third process allows them again. The result is the same as without the second one.
    let now = process.kill();
    let mut process = Process::start(&folder, 1, now);
    assert_eq!(process.send(A, &back(0, ACK)).session, HIT);
}

#[test]
fn a_session_finds_its_ports_under_other_numbers() {
    let folder = Scratch::new();
    let mut process = Process::start(&folder, 1, NOW);
    let (there, back) = (a_to_b, b_to_a);
    process.send(A, &there(SYN));
    process.send(B, &back(SYN | ACK));
    process.send(A, &there(ACK));
    let now = process.kill();
    let mut process = Process::start(&folder, 1, now);
    let mut ports = ports();
    ports.swap(A.index(), B.index());
    ports[B.index()].mac = None;
    process.snapshot = snapshot_of(1, ports);
    let outcome = process.send(A, &back(ACK));
    assert_eq!((outcome.verdict, outcome.session), (Verdict::Forward(B), HIT), "B is at A's place now");
}

#[test]
fn a_blind_reset_of_an_adopted_connection_changes_nothing() {
    let folder = Scratch::new();
    let now = busy(&folder, 1, 1).kill();
    let mut process = Process::start(&folder, 1, now);
    let reset = tcp_at(("9.9.9.0", 40_000), ("10.0.0.1", 80), RST, (1 << 30, 0));
    assert_eq!(process.send(UPLINK, &reset).session, HIT);
    process.now += 1000 * SECOND;
    assert_eq!(process.send(A, &back(0, ACK)).session, HIT);
}

#[test]
fn what_has_expired_and_what_finds_no_room_is_left_out_the_oldest_first() {
    let folder = Scratch::new();
    let mut process = busy(&folder, 1, 10);
    process.now += 40 * SECOND;
    for client in 5..10 {
        process.send(UPLINK, &there(client, ACK));
    }
    process.send(A, &udp("10.0.0.1", "8.8.8.8", 53));
    let now = process.kill();
    let process = Process::with(&folder, SessionConfig::live(5), 1, now + 30 * SECOND);
    let adoption = process.store.adoption().clone();
    assert_eq!((adoption.adopted, adoption.left_out), (5, 6));
    let now = process.kill();
    let mut process = Process::start(&folder, 1, now);
    for client in 0..10 {
        assert_eq!(process.send(A, &back(client, ACK)).session == HIT, client >= 5, "client {client}");
    }
}

#[test]
fn a_damaged_or_foreign_file_is_refused_whole_and_counted() {
    type Damage = fn(&mut Vec<u8>);
    let damages: [(&str, Damage); 9] = [
        ("not a session table", |bytes| bytes[0] ^= 1),
        ("format version", |bytes| bytes[56] ^= 4),
        ("damaged", |bytes| bytes[24] ^= 1),
        ("damaged", |bytes| bytes[40] ^= 1),
        ("length", |bytes| bytes.truncate(bytes.len() - 1)),
        ("not a session table", Vec::clear),
        ("invalid entry", |bytes| bytes[ENTRY + 60 + 1] = 0x0f),
        ("invalid entry", |bytes| bytes[ENTRY + 8] = 1),
        ("does not fit its protocol", |bytes| bytes[ENTRY + 33] = 17),
    ];
    for (reason, damage) in damages {
        let folder = Scratch::new();
        let now = busy(&folder, 1, 3).kill();
        let path = folder.file(0);
        let mut bytes = fs::read(&path).unwrap();
        assert_ne!(bytes[ENTRY..ENTRY + 64], [0; 64], "the first entry is in use");
        damage(&mut bytes);
        fs::write(&path, &bytes).unwrap();
        assert_eq!(SessionStore::has_another_version(&folder.0), reason == "format version", "{reason}");
        let mut process = Process::start(&folder, 1, now);
        let adoption = process.store.adoption();
        assert_eq!((adoption.adopted, adoption.left_out, adoption.refused.len()), (0, 0, 1), "{reason}");
        assert_eq!(adoption.refused[0].path, path);
        assert!(adoption.refused[0].reason.contains(reason), "{:?}", adoption.refused);
        assert_eq!(process.send(UPLINK, &there(0, SYN)).session, Some(SessionState::New));
    }
}

#[test]
fn a_file_from_before_the_machine_was_started_and_one_of_another_program_are_foreign() {
    let change = |change: fn(&mut Header)| {
        let folder = Scratch::new();
        let now = busy(&folder, 1, 1).kill();
        let mut bytes = fs::read(folder.file(0)).unwrap();
        let (header, _) = Header::mut_from_prefix(&mut bytes).unwrap();
        change(header);
        header.check = header.sum();
        fs::write(folder.file(0), &bytes).unwrap();
        Process::start(&folder, 1, now).store.adoption().refused[0].reason.clone()
    };
    assert!(change(|header| header.boot[3] ^= 1).contains("before the last boot"));
    assert!(change(|header| header.entry += 8).contains("another program"));
    assert!(change(|header| header.reasons += 1).contains("another program"));
    assert!(change(|header| header.slots += 1).contains("length"));
}

#[test]
fn a_damaged_file_of_one_worker_does_not_take_those_of_the_others_along() {
    let folder = Scratch::new();
    let now = busy(&folder, 2, 100).kill();
    fs::write(folder.file(0), b"what is this").unwrap();
    let process = Process::start(&folder, 2, now);
    let adoption = process.store.adoption();
    assert_eq!(adoption.refused.len(), 1);
    assert!((1..100).contains(&adoption.adopted), "{adoption:?}");
}

#[test]
fn an_entry_that_was_just_being_written_or_changed_is_left_out_alone() {
    let folder = Scratch::new();
    let now = busy(&folder, 1, 3).kill();
    let mut bytes = fs::read(folder.file(0)).unwrap();
    // The first entry's key has no mark of use yet. The second was being cut.
    bytes[ENTRY + 32] = 0;
    bytes[ENTRY + 64 + 63] = 1;
    fs::write(folder.file(0), &bytes).unwrap();
    let process = Process::start(&folder, 1, now);
    assert_eq!(process.store.adoption(), &Adoption { adopted: 1, left_out: 1, ..Adoption::default() });
}

#[test]
fn a_folder_belongs_to_one_process() {
    let folder = Scratch::new();
    let _first = Process::start(&folder, 1, NOW);
    let error = SessionStore::open(&folder.0).unwrap_err();
    assert!(matches!(error, SessionStoreError::InUse { .. }), "{error}");
    assert!(error.to_string().contains("help: "), "{error}");
}

#[test]
fn a_process_that_dies_while_it_adopts_loses_nothing() {
    let folder = Scratch::new();
    let now = busy(&folder, 1, 5).kill();
    // The process ends before the new files replace the old ones.
    {
        let mut store = SessionStore::open(&folder.0).unwrap();
        store.create(0, 100).unwrap();
        assert_eq!(store.take().len(), 5);
    }
    // The process ends between the two renames.
    fs::rename(folder.0.join("current"), folder.0.join("previous")).unwrap();
    assert_eq!(Process::start(&folder, 1, now).store.adoption().adopted, 5);
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 2, "the lock and the new files");
}

#[test]
fn a_table_in_a_file_takes_its_whole_capacity_and_grows_as_it_is_used() {
    use std::os::unix::fs::MetadataExt;
    let folder = Scratch::new();
    let config = SessionConfig { capacity: 10_000, ..SessionConfig::default() };
    let mut process = Process::with(&folder, config, 1, NOW);
    let blocks = || fs::metadata(folder.file(0)).unwrap().blocks() * 512;
    assert!(blocks() <= 2 * START, "{}", blocks());
    for number in 0..10_000u16 {
        assert!(process.send(A, &tcp("10.0.0.1", "8.8.8.8", number, 443, SYN)).verdict.out_port().is_some());
    }
    assert!(blocks() >= 10_000 * 112 && blocks() <= 3 * STEP as u64 * 112 + 4 * START, "{}", blocks());
    assert_eq!(process.in_use(), 10_000);
    let now = process.kill();
    let process = Process::with(&folder, config, 1, now);
    assert_eq!(process.store.adoption().adopted, 10_000);
}

#[test]
fn a_worker_that_failed_goes_on_with_its_sessions_and_everybody_elses_accounts() {
    let folder = Scratch::new();
    let mut process = busy(&folder, 1, 50);
    process.workers[0].restart().unwrap();
    assert_eq!(process.in_use(), 50);
    for client in 0..50 {
        assert_eq!(process.send(A, &back(client, ACK)).session, HIT);
    }
    // The budget counts them for their ports: after they end, all of it is free.
    process.workers[0].end_sessions(0, &SessionSelector::default());
    assert_eq!(process.in_use(), 0);
    let now = process.kill();
    assert_eq!(Process::start(&folder, 1, now).store.adoption(), &Adoption::default());
}

#[test]
fn translated_sessions_of_a_program_that_kept_all_rewrites_beside_the_entries_go_on() {
    let folder = Scratch::new();
    let services = || Some(Arc::new(services(1, &[(VIP, service(&[backend("10.0.0.2", 80)]))])));
    let to_vip = |flags| tcp("10.0.0.1", VIP, 40_000, 8080, flags);
    let mut process = Process::start(&folder, 1, NOW);
    process.snapshot = process.snapshot.clone().with_services(services());
    for (port, packet) in [(A, to_vip(SYN)), (B, b_to_a(SYN | ACK)), (A, to_vip(ACK))] {
        assert!(process.send(port, &packet).translation.is_some());
    }
    let now = process.kill();

    let mut bytes = fs::read(folder.file(0)).unwrap();
    bytes[ENTRY + 8..ENTRY + 32].fill(0);
    let rewrite = Rewrite::new(ip("10.0.0.1"), ip(VIP), 6, Ports::Pair(40_000, 8080), 1);
    let (header, _) = Header::mut_from_prefix(&mut bytes).unwrap();
    header.version = 2;
    header.check = header.sum();
    let at = usize::try_from(header.rewrites_start()).unwrap();
    bytes[at..at + size_of::<Rewrite>()].copy_from_slice(rewrite.as_bytes());
    fs::write(folder.file(0), &bytes).unwrap();

    let mut process = Process::start(&folder, 1, now);
    assert_eq!(process.store.adoption().adopted, 1);
    process.snapshot = process.snapshot.clone().with_services(services());
    let (there, back) = (process.send(A, &to_vip(ACK)), process.send(B, &b_to_a(ACK)));
    assert_eq!((there.session, back.session), (HIT, HIT));
    assert_eq!(there.translation.map(|sent| (sent.dst, sent.dport)), Some((ip("10.0.0.2"), 80)));
    assert_eq!(back.translation.map(|sent| (sent.src, sent.sport)), Some((ip(VIP), 8080)));
}

#[test]
fn a_rewrite_that_cannot_be_is_refused_with_its_file() {
    let folder = Scratch::new();
    let mut process = Process::start(&folder, 1, NOW);
    let services = services(1, &[(VIP, service(&[backend("10.0.0.2", 80)]))]);
    process.snapshot = process.snapshot.clone().with_services(Some(Arc::new(services)));
    assert!(process.send(A, &tcp("10.0.0.1", VIP, 40_000, 8080, SYN)).translation.is_some());
    let now = process.kill();
    let whole = fs::read(folder.file(0)).unwrap();
    // Unknown marks, an alias with its endpoints in the wrong order, and no alias.
    type Damage = fn(&mut [u8]);
    let damages: [Damage; 3] = [
        |compact| compact[23] = 1,
        |compact| compact[..8].copy_from_slice(&(9u64 << 32 | 1).to_le_bytes()),
        |compact| compact.fill(0),
    ];
    for damage in damages {
        let mut bytes = whole.clone();
        damage(&mut bytes[ENTRY + 8..ENTRY + 32]);
        fs::write(folder.file(0), &bytes).unwrap();
        let adoption = Process::start(&folder, 1, now).store.adoption().clone();
        assert_eq!((adoption.adopted, adoption.refused.len()), (0, 1));
        assert!(adoption.refused[0].reason.contains("invalid rewrite"), "{:?}", adoption.refused);
    }
}
