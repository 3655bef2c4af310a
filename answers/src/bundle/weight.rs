//! Bounds the memory of objects that are read from compressed lines: a small file can decompress to any size.

use bulkhead_control::cache::Event;

/// Maximum length of a line in bytes. API servers limit objects to 1.5 MB.
pub const LONGEST_LINE: u64 = 1 << 24;

/// Maximum weight of a state: about 150,000 pods, Kubernetes' documented maximum.
pub const MOST_WEIGHT: u64 = 1 << 29;

/// Weight that any file may have, in bytes: about 6,000 pods. Small states of equal objects compress better than large ones.
const FREE_WEIGHT: u64 = 1 << 24;

/// Maximum ratio of the weight to the compressed size. The objects of 10,000 pods weigh 50 times their compressed size.
const MAX_RATIO: u64 = 200;

/// Memory of an object besides its text, in bytes.
const OBJECT: u64 = size_of::<Event>() as u64;
/// Memory of a list or map item besides its text, in bytes. A label has two.
const ITEM: u64 = 64;

/// Estimates the memory of an object from its line of JSON, in bytes.
pub fn of_line(line: &[u8]) -> u64 {
    let items = line.iter().filter(|byte| matches!(byte, b',' | b':' | b'[' | b'{')).count() as u64;
    line.len() as u64 + OBJECT + ITEM * items
}

/// Returns the maximum weight of objects that take this number of compressed bytes.
pub fn most(compressed: u64) -> u64 {
    compressed.saturating_mul(MAX_RATIO).clamp(FREE_WEIGHT, MOST_WEIGHT)
}
