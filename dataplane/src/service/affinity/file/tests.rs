use std::fs;
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;

use zerocopy::FromBytes;

use super::super::super::lines::{Header, START};
use super::*;

const BOOT: [u8; 16] = [7; 16];

/// Size of a place in bytes.
const PLACE: usize = 2 * size_of::<u64>();

/// A temporary file, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self(std::env::temp_dir().join(format!("bulkhead-clients-{}-{number}", std::process::id())))
    }

    /// Opens the table as the next process does. Returns it with the number of adopted clients.
    fn next(&self, now: u64) -> (ClientAffinity, u64) {
        let found = Found::read(&self.0, BOOT).unwrap();
        fs::remove_file(&self.0).unwrap();
        ClientAffinity::in_file(&self.0, BOOT, found, now).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn ip(number: u32) -> IpAddr {
    IpAddr::from((0x0af4_0000 + number).to_be_bytes())
}

fn socket(number: u32) -> SocketAddr {
    SocketAddr::new(ip(number % 10), 80)
}

/// Writes a file with this number of clients of service port 5, all at second 1000.
fn written(clients: u32) -> Scratch {
    let scratch = Scratch::new();
    let (table, adopted) = ClientAffinity::in_file(&scratch.0, BOOT, Found::nothing(), 1000).unwrap();
    assert_eq!(adopted, 0);
    for client in 0..clients {
        table.remember(ip(client), 5, &socket(client), 1000);
    }
    scratch
}

#[test]
fn clients_find_their_backends_in_the_next_process_until_their_time_is_up() {
    let scratch = written(1000);
    let (table, adopted) = scratch.next(1500);
    assert_eq!(adopted, 1000);
    for client in 0..1000 {
        assert!(table.last(ip(client), 5, 1500, 600).unwrap().is(&socket(client)), "{client}");
        assert!(!table.last(ip(client), 5, 1500, 600).unwrap().is(&socket(client + 1)), "{client}");
        assert!(table.last(ip(client), 5, 1600, 600).is_none(), "the time is that of the connection");
        assert!(table.last(ip(client), 6, 1500, 600).is_none(), "another service port");
    }
    // The clock was set back; a day has passed; and the process after that.
    table.remember(ip(7), 5, &socket(8), 1700);
    let (table, adopted) = scratch.next(1200);
    assert_eq!(adopted, 1000);
    assert!(table.last(ip(7), 5, 1200, 600).unwrap().is(&socket(8)));
    drop(table);
    assert_eq!(scratch.next(1100 + u64::from(LONGEST)).1, 1, "seen at 1200; all others at 1000");
}

#[test]
fn a_file_takes_memory_as_it_is_used() {
    use std::os::unix::fs::MetadataExt;
    let blocks = |scratch: &Scratch| fs::metadata(&scratch.0).unwrap().blocks() * 512;
    assert!(blocks(&written(0)) <= 2 * START);
    assert!(blocks(&written(1)) <= 2 * START + 32 * 1024);
    let all = written(u32::try_from(PLACES).unwrap());
    assert!(blocks(&all) <= FORM.len() + START, "{}", blocks(&all));
}

#[test]
fn a_damaged_foreign_or_truncated_file_is_refused_whole() {
    type Damage = fn(&mut Vec<u8>);
    let damages: [(&str, Damage); 8] = [
        ("not a client table", |bytes| bytes[0] ^= 1),
        ("not a client table", Vec::clear),
        ("not a client table", |bytes| bytes.truncate(50)),
        ("format version", |bytes| bytes[72] ^= 1),
        ("damaged", |bytes| bytes[8] ^= 1),
        ("damaged", |bytes| bytes[20] ^= 1),
        ("length", |bytes| bytes.truncate(bytes.len() - 1)),
        ("length", |bytes| bytes.push(0)),
    ];
    for (reason, damage) in damages {
        let scratch = written(3);
        let mut bytes = fs::read(&scratch.0).unwrap();
        damage(&mut bytes);
        fs::write(&scratch.0, &bytes).unwrap();
        let error = Found::read(&scratch.0, BOOT).unwrap_err();
        assert!(error.contains(reason), "{error} is not {reason}");
    }
    let scratch = written(3);
    assert!(Found::read(&scratch.0, [8; 16]).unwrap_err().contains("before the last boot"));
    let with = |change: fn(&mut Header)| {
        let mut bytes = fs::read(&scratch.0).unwrap();
        let (header, _) = Header::mut_from_prefix(&mut bytes).unwrap();
        change(header);
        header.check = header.sum();
        fs::write(&scratch.0, &bytes).unwrap();
        Found::read(&scratch.0, BOOT).unwrap_err()
    };
    assert!(with(|header| header.proof ^= 1).contains("another program"), "it hashes differently");
    assert!(with(|header| header.pairs *= 2).contains("another program"));
}

#[test]
fn damaged_places_name_no_backend_and_no_other_client() {
    let scratch = written(2000);
    let mut bytes = fs::read(&scratch.0).unwrap();
    // Flips one bit in each place, at varying positions.
    let start = usize::try_from(START).unwrap();
    let mut damaged = 0;
    for (at, place) in bytes[start..].chunks_exact_mut(PLACE).enumerate() {
        if place.iter().any(|byte| *byte != 0) {
            // Not in the time of the last connection, where the table cannot detect it.
            let bit = [at % 64, 96 + at % 32][at % 2];
            place[bit / 8] ^= 1 << (bit % 8);
            damaged += 1;
        }
    }
    assert!(damaged > 1900);
    fs::write(&scratch.0, &bytes).unwrap();
    let (table, _) = scratch.next(1001);
    for client in 0..2000 {
        let last = table.last(ip(client), 5, 1001, 600);
        assert!(last.is_none_or(|last| (0..10).all(|backend| !last.is(&socket(backend)))), "{client}");
    }
    // Random bytes are no client.
    let mut word = 1u64;
    for bytes in bytes[start..].chunks_exact_mut(8) {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    fs::write(&scratch.0, &bytes).unwrap();
    let (table, _) = scratch.next(1001);
    assert!((0..2000).all(|client| table.last(ip(client), 5, 1001, 600).is_none()));
    table.remember(ip(1), 5, &socket(1), 1001);
    assert!(table.last(ip(1), 5, 1001, 600).unwrap().is(&socket(1)), "it goes on");
}
