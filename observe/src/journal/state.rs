//! Encodes changes of the state: compressed lines of JSON.
//!
//! ```text
//!   payload  number | part, parts | bytes of deflate( head \n event \n event ... )
//! ```
//! The objects are those that the vswitch parsed, in the form in which it also saves them for a start without API server. Data that no
//! policy depends on, such as secrets, environment variables and annotations, is not included. A custom format would be a third smaller,
//! but would have to change with each field of an object.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};

use bulkhead_answers::bundle::{Settings, weight};
use bulkhead_control::attachments::Attachment;
use bulkhead_control::cache::Event;
use bulkhead_control::inventory::Key;
use bulkhead_control::object::PodName;
use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use serde::{Deserialize, Serialize};

use super::format::{LONGEST_PAYLOAD, MOST_NUMBER};

/// Size of a part's header in bytes.
pub(super) const PART_HEAD: usize = 16;
/// Size of a part's content in bytes.
const PART: usize = LONGEST_PAYLOAD - PART_HEAD;
/// A change of the state in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Whether `events` are all objects, independent of earlier changes.
    pub is_whole: bool,
    /// Whether no state is in force, so that everything is denied.
    pub is_denying: bool,
    /// Number of merged changes, including this one.
    pub merged: u64,
    /// New settings. `None` if unchanged.
    pub settings: Option<Settings>,
    /// All attached pods. `None` if unchanged.
    pub attached: Option<BTreeMap<PodName, Attachment>>,
    /// Changed and removed objects; all objects if `is_whole`.
    pub events: Vec<Event>,
}

/// The first line of a change: its fields except the events.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Head {
    whole: bool,
    denying: bool,
    merged: u64,
    settings: Option<Settings>,
    attached: Option<Vec<(PodName, Attachment)>>,
}

/// The current state in encoded form, for checkpoints.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Encoded line of each object.
    objects: BTreeMap<Key, Box<str>>,
    is_denying: bool,
    settings: Option<Settings>,
    attached: Option<BTreeMap<PodName, Attachment>>,
}

impl Known {
    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    /// Applies a change. Returns its lines, and whether they are the whole state. If a state existed, they are only the difference.
    pub(super) fn take(&mut self, change: &Change) -> Result<(Vec<u8>, bool), serde_json::Error> {
        let mut lines: BTreeMap<Key, Option<Box<str>>> = BTreeMap::new();
        let is_first = self.objects.is_empty() && change.is_whole;
        if change.is_whole {
            lines.extend(self.objects.keys().map(|key| (key.clone(), None)));
        }
        for event in &change.events {
            let line = match event {
                Event::Apply(_) => Some(serde_json::to_string(event)?.into_boxed_str()),
                _ => None,
            };
            lines.insert(Key::of_event(event), line);
        }
        lines.retain(|key, line| self.objects.get(key) != line.as_ref());
        let settings = change.settings.clone().filter(|settings| self.settings.as_ref() != Some(settings));
        let attached = change.attached.clone().filter(|attached| self.attached.as_ref() != Some(attached));
        let head = Head {
            whole: is_first,
            denying: change.is_denying,
            merged: change.merged,
            settings: settings.clone(),
            attached: attached.clone().map(|attached| attached.into_iter().collect()),
        };
        let mut text = serde_json::to_vec(&head)?;
        for (key, line) in lines {
            text.push(b'\n');
            match line {
                Some(line) => {
                    text.extend_from_slice(line.as_bytes());
                    self.objects.insert(key, line);
                }
                None => {
                    serde_json::to_writer(&mut text, &key.clone().gone())?;
                    self.objects.remove(&key);
                }
            }
        }
        self.is_denying = change.is_denying;
        self.settings = settings.or(self.settings.take());
        self.attached = attached.or(self.attached.take());
        Ok((text, is_first))
    }

    /// Returns the whole state as lines.
    pub(super) fn whole(&self) -> Result<Vec<u8>, serde_json::Error> {
        let attached = self.attached.clone().map(|attached| attached.into_iter().collect());
        let (settings, denying) = (self.settings.clone(), self.is_denying);
        let mut text = serde_json::to_vec(&Head { whole: true, denying, merged: 1, settings, attached })?;
        for line in self.objects.values() {
            text.push(b'\n');
            text.extend_from_slice(line.as_bytes());
        }
        Ok(text)
    }
}

/// Compresses lines into payloads of change `number`. `None` if there are more than 2^32 parts.
pub(super) fn pack(number: u64, lines: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut packer = DeflateEncoder::new(Vec::new(), Compression::fast());
    // Writing to memory cannot fail.
    packer.write_all(lines).ok()?;
    let packed = packer.finish().ok()?;
    let parts = u32::try_from(packed.len().div_ceil(PART)).ok()?;
    let payload = |(part, bytes): (u32, &[u8])| {
        let mut payload = Vec::with_capacity(PART_HEAD + bytes.len());
        payload.extend_from_slice(&number.to_le_bytes());
        payload.extend_from_slice(&part.to_le_bytes());
        payload.extend_from_slice(&parts.to_le_bytes());
        payload.extend_from_slice(bytes);
        payload
    };
    Some((0..).zip(packed.chunks(PART)).map(payload).collect())
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    pub(super) number: u64,
    pub(super) part: u32,
    pub(super) parts: u32,
    pub(super) bytes: &'a [u8],
}

impl<'a> Part<'a> {
    pub(super) fn read(payload: &'a [u8]) -> Option<Self> {
        let (head, bytes) = payload.split_at_checked(PART_HEAD)?;
        let number = u64::from_le_bytes(head[..8].try_into().ok()?);
        let part = u32::from_le_bytes(head[8..12].try_into().ok()?);
        let parts = u32::from_le_bytes(head[12..].try_into().ok()?);
        (part < parts && (1..MOST_NUMBER).contains(&number)).then_some(Self { number, part, parts, bytes })
    }
}

/// Why a change cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// The change cannot be parsed.
    Foreign,
    /// The change, or the total read so far, exceeds the limit.
    TooLarge,
}

/// A decompressed change.
#[derive(Debug)]
pub(super) struct Unpacked {
    pub(super) change: Change,
    /// [Weight](weight::of_line) of each event.
    pub(super) weights: Vec<u64>,
}

/// Decompresses a change, whose parts `packed` reads one after the other. Reads line by line to detect an excessive size early. `budget` is
/// the number of bytes, of text and events, that may still be decompressed.
pub(super) fn unpack(packed: impl Read, most_weight: u64, budget: &Cell<u64>) -> Result<Unpacked, Unread> {
    let mut text = BufReader::new(DeflateDecoder::new(packed));
    let (mut head, mut change, mut weights, mut total) = (None, Change::default(), Vec::new(), 0);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read =
            (&mut text).take(weight::LONGEST_LINE + 1).read_until(b'\n', &mut line).map_err(|_| Unread::Foreign)?;
        if read == 0 {
            break;
        }
        let is_last = line.pop_if(|byte| *byte == b'\n').is_none();
        let weight = weight::of_line(&line);
        total += weight;
        let taken = line.len() as u64 + size_of::<Event>() as u64;
        if line.len() as u64 > weight::LONGEST_LINE || total > most_weight || taken > budget.get() {
            return Err(Unread::TooLarge);
        }
        budget.set(budget.get() - taken);
        if head.is_none() {
            head = Some(serde_json::from_slice::<Head>(&line).map_err(|_| Unread::Foreign)?);
        } else {
            change.events.push(serde_json::from_slice(&line).map_err(|_| Unread::Foreign)?);
            weights.push(weight);
        }
        if is_last {
            break;
        }
    }
    let Head { whole, denying, merged, settings, attached } = head.ok_or(Unread::Foreign)?;
    (change.is_whole, change.is_denying, change.merged, change.settings) = (whole, denying, merged, settings);
    change.attached = attached.map(|attached| attached.into_iter().collect());
    Ok(Unpacked { change, weights })
}
