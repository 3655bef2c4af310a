//! A slow parser of DNS messages that expands every name. Shares no code with the fast one.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

/// Why the model refuses a message.
enum Trouble {
    /// The bytes end too early.
    Cut,
    Bad,
}

type Name = Vec<Vec<u8>>;

/// The addresses with their TTLs, and the count of ignored address records.
pub(super) type Answers = (Vec<(IpAddr, u32)>, usize);

struct Record {
    owner: Option<Name>,
    kind: usize,
    class: usize,
    ttl: u32,
    data: std::ops::Range<usize>,
}

/// Returns the answers in a response of class IN to a question for addresses. `None` for a faulty message.
pub(super) fn answers(bytes: &[u8]) -> Option<Answers> {
    let header = bytes.get(..12)?;
    if header[2] & 0x78 != 0 || number(bytes, 4).ok()? != 1 {
        return None;
    }
    let (end, asked) = name(bytes, 12).ok()?;
    let asked = asked?;
    let (kind, class) = (number(bytes, end).ok()?, number(bytes, end + 2).ok()?);
    if header[2] & 0x80 == 0 || class != 1 || ![1, 28, 255].contains(&kind) {
        return Some((Vec::new(), 0));
    }
    let records = records(bytes, end + 4)?;
    let reached = reached(bytes, asked, &records)?;
    let (mut addresses, mut ignored) = (Vec::new(), 0);
    for record in records.into_iter().filter(|record| record.class == 1 && [1, 28].contains(&record.kind)) {
        let is_reached = reached.contains(&record.owner?);
        let data = &bytes[record.data];
        let address = match (record.kind, data.len()) {
            (1, 4) => IpAddr::from(<[u8; 4]>::try_from(data).unwrap()),
            (28, 16) => IpAddr::from(<[u8; 16]>::try_from(data).unwrap()),
            _ => {
                ignored += 1;
                continue;
            }
        };
        if is_reached && (kind == 255 || kind == record.kind) {
            addresses.push((address, if record.ttl > i32::MAX as u32 { 0 } else { record.ttl }));
        } else {
            ignored += 1;
        }
    }
    Some((addresses, ignored))
}

/// Returns the records of the answer section, which starts at offset `at`. `None` if a record is malformed, or is incomplete without the TC
/// bit.
fn records(bytes: &[u8], mut at: usize) -> Option<Vec<Record>> {
    let is_truncated = bytes[2] & 2 != 0;
    let mut records = Vec::new();
    for _ in 0..number(bytes, 6).ok()? {
        match record(bytes, at) {
            Ok(record) => {
                at = record.data.end;
                records.push(record);
            }
            Err(Trouble::Cut) if is_truncated => break,
            Err(_) => return None,
        }
    }
    Some(records)
}

fn record(bytes: &[u8], at: usize) -> Result<Record, Trouble> {
    let (end, owner) = name(bytes, at)?;
    let (high, low) = (number(bytes, end + 4)?, number(bytes, end + 6)?);
    let data = end + 10..end + 10 + number(bytes, end + 8)?;
    bytes.get(data.clone()).ok_or(Trouble::Cut)?;
    Ok(Record {
        owner,
        kind: number(bytes, end)?,
        class: number(bytes, end + 2)?,
        ttl: u32::try_from(high << 16 | low).unwrap(),
        data,
    })
}

/// Returns the names that aliases reach from the name asked. `None` for a malformed alias, or more than 63.
fn reached(bytes: &[u8], asked: Name, records: &[Record]) -> Option<HashSet<Name>> {
    let mut aliases: HashMap<Name, Vec<Name>> = HashMap::new();
    let cnames = records.iter().filter(|record| record.kind == 5 && record.class == 1);
    for (count, cname) in cnames.enumerate() {
        let (end, target) = name(&bytes[..cname.data.end], cname.data.start).ok()?;
        if end != cname.data.end || count == 63 {
            return None;
        }
        aliases.entry(cname.owner.clone()?).or_default().push(target?);
    }
    let (mut reached, mut open) = (HashSet::new(), vec![asked]);
    while let Some(name) = open.pop() {
        if reached.insert(name.clone()) {
            open.extend(aliases.get(&name).into_iter().flatten().cloned());
        }
    }
    Some(reached)
}

/// Returns the end of a name, and the labels in lower case: `None` if its pointers lead nowhere or if it is too long.
fn name(bytes: &[u8], start: usize) -> Result<(usize, Option<Name>), Trouble> {
    let (mut at, mut labels) = (start, Name::new());
    loop {
        let first = usize::from(*bytes.get(at).ok_or(Trouble::Cut)?);
        match first {
            0 => return Ok((at + 1, Some(labels))),
            1..64 => {
                if at + 1 + first - start > 254 {
                    return Err(Trouble::Bad);
                }
                labels.push(bytes.get(at + 1..at + 1 + first).ok_or(Trouble::Cut)?.to_ascii_lowercase());
                at += 1 + first;
            }
            192.. => {
                let target = number(bytes, at)? - 0xc000;
                let rest = if (12..start).contains(&target) {
                    name(&bytes[..start], target).ok().and_then(|(_, rest)| rest)
                } else {
                    None
                };
                labels.extend(rest.iter().flatten().cloned());
                let len: usize = labels.iter().map(|label| label.len() + 1).sum();
                return Ok((at + 2, rest.filter(|_| len < 255).map(|_| labels)));
            }
            _ => return Err(Trouble::Bad),
        }
    }
}

fn number(bytes: &[u8], at: usize) -> Result<usize, Trouble> {
    let pair = bytes.get(at..at + 2).ok_or(Trouble::Cut)?;
    Ok(usize::from(pair[0]) << 8 | usize::from(pair[1]))
}
