//! Growth of lists, and estimates of what they occupy on the heap.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

/// Inserts a value. A full list grows by a quarter instead of by its length, because most lists of a large table would be half empty.
pub(super) fn insert<T>(list: &mut Vec<T>, at: usize, value: T) {
    if list.len() == list.capacity() {
        list.reserve_exact(list.len() / 4 + 1);
    }
    list.insert(at, value);
}

/// Releases the free half of a list.
pub(super) fn trim<T>(list: &mut Vec<T>) {
    if list.len() <= list.capacity() / 2 {
        list.shrink_to_fit();
    }
}

/// Releases memory of a map that uses less than a quarter of its capacity.
pub(super) fn trim_map<K: Eq + Hash, V, S: BuildHasher>(map: &mut HashMap<K, V, S>) {
    if map.is_empty() || map.len() < map.capacity() / 4 {
        map.shrink_to(map.len() * 2);
    }
}

/// Returns what an allocator occupies for a value of this size: a word for its own use, and sizes in steps of 16.
pub(super) const fn allocation(size: usize) -> usize {
    if size == 0 { 0 } else { (size + 8).next_multiple_of(16) }
}

/// Returns the heap use of a list, without what its elements point to.
pub(super) const fn vec<T>(list: &Vec<T>) -> usize {
    allocation(list.capacity() * size_of::<T>())
}

/// Returns the heap use of a map, without what its entries point to: a power of two of places with a control byte each, at most 7 of 8 used.
pub(super) fn map<K, V, S>(map: &HashMap<K, V, S>) -> usize {
    let places = match map.capacity() {
        0 => return 0,
        capacity @ 1..8 => (capacity + 1).next_power_of_two(),
        capacity => (capacity * 8 / 7).next_power_of_two(),
    };
    allocation(places * (size_of::<(K, V)>() + 1) + 16)
}
