//! Growth of lists and maps, and estimates of the bytes that they occupy on the heap.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

use thin_vec::ThinVec;

/// Inserts a value at an index. A full list grows by a quarter. If it doubled, most lists of a large table would be half empty.
pub(super) fn insert<T>(list: &mut ThinVec<T>, at: usize, value: T) {
    if list.len() == list.capacity() {
        list.reserve_exact(list.len() / 4 + 1);
    }
    list.insert(at, value);
}

/// Shrinks a list to its length if it uses at most half of its capacity.
pub(super) fn trim<T>(list: &mut ThinVec<T>) {
    if list.len() <= list.capacity() / 2 {
        list.shrink_to_fit();
    }
}

/// Shrinks a map that is empty or uses less than a quarter of its capacity.
pub(super) fn trim_map<K: Eq + Hash, V, S: BuildHasher>(map: &mut HashMap<K, V, S>) {
    if map.is_empty() || map.len() < map.capacity() / 4 {
        map.shrink_to(map.len() * 2);
    }
}

/// Returns the bytes that an allocator occupies for a value of `size` bytes: 8 more for its own use, rounded up to a multiple of 16. 0 for
/// none.
pub(super) const fn allocation(size: usize) -> usize {
    if size == 0 { 0 } else { (size + 8).next_multiple_of(16) }
}

/// Returns the heap use of a list in bytes, without the memory to which its elements point.
pub(super) const fn vec<T>(list: &Vec<T>) -> usize {
    allocation(list.capacity() * size_of::<T>())
}

/// Returns the heap use of a thin list in bytes, whose length and capacity are on the heap, too.
pub(super) fn thin<T>(list: &ThinVec<T>) -> usize {
    if list.capacity() == 0 { 0 } else { allocation(16 + list.capacity() * size_of::<T>()) }
}

/// Returns the heap use of a map in bytes, without the memory to which its entries point. A map has a power of two of places with a control
/// byte each, and uses at most 7 of 8.
pub(super) fn map<K, V, S>(map: &HashMap<K, V, S>) -> usize {
    let places = match map.capacity() {
        0 => return 0,
        capacity @ 1..8 => (capacity + 1).next_power_of_two(),
        capacity => (capacity * 8 / 7).next_power_of_two(),
    };
    allocation(places * (size_of::<(K, V)>() + 1) + 16)
}
