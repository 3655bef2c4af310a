//! BPF maps, whose contents programs and process share. Source: `include/uapi/linux/bpf.h`.

use std::ffi::c_long;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use super::bpf::{address, bpf, bpf_into, info_of, owned, padded, pin, pinned};
use super::small_size;

/// `BPF_MAP_TYPE_HASH`.
pub(super) const MAP_HASH: u32 = 1;
/// `BPF_MAP_TYPE_ARRAY`.
pub(super) const MAP_ARRAY: u32 = 2;
/// `BPF_MAP_TYPE_PERCPU_ARRAY`: one value per core.
pub(super) const MAP_PERCPU_ARRAY: u32 = 6;
/// `BPF_MAP_TYPE_LRU_HASH`: a full map evicts the least recently used entries.
pub(super) const MAP_LRU_HASH: u32 = 9;
/// `BPF_MAP_TYPE_DEVMAP`: target interfaces of redirects, by key.
pub(super) const MAP_INTERFACES: u32 = 14;
/// `BPF_MAP_TYPE_LPM_TRIE`: finds the longest prefix of a key. Requires [`NO_PREALLOC`].
pub(super) const MAP_TRIE: u32 = 11;
/// `BPF_MAP_TYPE_XSKMAP`.
pub(super) const MAP_XSK: u32 = 17;
/// `BPF_F_NO_PREALLOC`: the map's memory grows with its entries.
pub(super) const NO_PREALLOC: u32 = 1;
/// `BPF_F_MMAPABLE`: the values can be mapped into the process (Linux 5.5).
pub(super) const MAPPABLE: u32 = 1 << 10;

const MAP_CREATE: c_long = 0;
const MAP_LOOKUP_ELEM: c_long = 1;
const MAP_UPDATE_ELEM: c_long = 2;
const MAP_DELETE_ELEM: c_long = 3;
/// Since Linux 5.6.
const MAP_LOOKUP_BATCH: c_long = 24;

/// The type, name and sizes with which a BPF map is created.
#[derive(Clone, Copy, Debug)]
pub(super) struct MapKind<'a> {
    /// The type, one of `BPF_MAP_TYPE_*`.
    pub(super) kind: u32,
    /// The name that `bpftool` displays, also the name of a pin.
    pub(super) name: &'a str,
    /// Bytes of a key.
    pub(super) key_size: u32,
    /// Bytes of a value.
    pub(super) value_size: u32,
    /// Maximum number of entries.
    pub(super) entries: u32,
    /// Flags, from `BPF_F_*`.
    pub(super) flags: u32,
}

/// An open BPF map.
#[derive(Debug)]
pub(super) struct Map {
    descriptor: OwnedFd,
    key_size: usize,
    value_size: usize,
}

/// `struct bpf_attr` of the commands on a map's elements.
#[repr(C)]
struct Element {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl Map {
    /// Creates a map with keys of four bytes.
    pub(super) fn new(kind: u32, name: &str, value_size: u32, entries: u32) -> io::Result<Self> {
        Self::of(&MapKind { kind, name, key_size: 4, value_size, entries, flags: 0 })
    }

    /// Creates a map with this type and these sizes.
    pub(super) fn of(wanted: &MapKind<'_>) -> io::Result<Self> {
        #[repr(C)]
        struct Attributes {
            kind: u32,
            key_size: u32,
            value_size: u32,
            entries: u32,
            flags: u32,
            inner_map: u32,
            numa_node: u32,
            name: [u8; 16],
        }
        let MapKind { kind, name, key_size, value_size, entries, flags } = *wanted;
        let name = padded(name);
        let attributes = Attributes { kind, key_size, value_size, entries, flags, inner_map: 0, numa_node: 0, name };
        // SAFETY: the attributes of this command, without pointers.
        let descriptor = owned(unsafe { bpf(MAP_CREATE, attributes) }?)?;
        Ok(Self { descriptor, key_size: key_size as usize, value_size: value_size as usize })
    }

    /// Opens a pinned map of this kind.
    ///
    /// # Errors
    /// `InvalidData` if the pin is another kind of map or no map, else the kernel's error.
    pub(super) fn pinned(wanted: &MapKind<'_>, path: &Path) -> io::Result<Self> {
        /// `struct bpf_map_info` up to its flags.
        #[derive(Default)]
        #[repr(C)]
        struct Info {
            kind: u32,
            id: u32,
            key_size: u32,
            value_size: u32,
            entries: u32,
            flags: u32,
        }
        let MapKind { kind, key_size, value_size, entries, flags, .. } = *wanted;
        let descriptor = pinned(path)?;
        let mut info = Info::default();
        let length = small_size::<Info>();
        // SAFETY: `Info` is made of numbers, and the kernel writes at most `length` bytes of it.
        unsafe { info_of(descriptor.as_fd(), address(&raw mut info), length) }?;
        let found = (info.kind, info.key_size, info.value_size, info.entries, info.flags);
        if found != (kind, key_size, value_size, entries, flags) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self { descriptor, key_size: key_size as usize, value_size: value_size as usize })
    }

    /// Opens the map that is pinned by its name in this folder with its contents, or creates and pins an empty one. Without a folder, creates a map that
    /// is not pinned.
    ///
    /// # Errors
    /// If the kernel refuses, or the pin is another object and cannot be removed.
    pub(super) fn at(wanted: &MapKind<'_>, folder: Option<&Path>) -> io::Result<Self> {
        let Some(folder) = folder else { return Self::of(wanted) };
        let path = &folder.join(wanted.name);
        match Self::pinned(wanted, path) {
            Ok(map) => return Ok(map),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // The pin is another object, which nothing uses.
            Err(_) => std::fs::remove_file(path)?,
        }
        let map = Self::of(wanted)?;
        pin(map.as_fd(), path)?;
        Ok(map)
    }

    /// Calls `each` with all keys and values of a hash map. Not a consistent snapshot if the map changes meanwhile.
    pub(super) fn for_each(&self, mut each: impl FnMut(&[u8], &[u8])) -> io::Result<()> {
        /// `struct bpf_attr` of the commands on several elements. The kernel writes the number of elements into `count`.
        #[repr(C)]
        struct Batch {
            last: u64,
            next: u64,
            keys: u64,
            values: u64,
            count: u32,
            map: u32,
            element_flags: u64,
            flags: u64,
        }
        /// Elements per call: more than a bucket of a hash map holds, and 700 KiB of flows.
        const COUNT: u32 = 1 << 12;
        let (mut keys, mut values) =
            (vec![0; self.key_size * COUNT as usize], vec![0; self.value_size * COUNT as usize]);
        let map = self.descriptor.as_raw_fd().cast_unsigned();
        // A hash map's position has four bytes, that of other maps is a key.
        let position = self.key_size.max(4);
        let (mut last, mut next, mut is_first) = (vec![0_u8; position], vec![0_u8; position], true);
        loop {
            let mut batch = Batch {
                last: if is_first { 0 } else { address(last.as_ptr()) },
                next: address(next.as_mut_ptr()),
                keys: address(keys.as_mut_ptr()),
                values: address(values.as_mut_ptr()),
                count: COUNT,
                map,
                element_flags: 0,
                flags: 0,
            };
            // SAFETY: the attributes of this command, with room for `COUNT` keys and values of the map's sizes, and for a position.
            let result = unsafe { bpf_into(MAP_LOOKUP_BATCH, &mut batch) };
            let is_last = match result {
                Ok(_) => false,
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
                Err(error) => return Err(error),
            };
            let pairs = keys.chunks_exact(self.key_size).zip(values.chunks_exact(self.value_size));
            pairs.take(batch.count as usize).for_each(|(key, value)| each(key, value));
            if is_last {
                return Ok(());
            }
            (last, next, is_first) = (next, last, false);
        }
    }

    /// Sets the value of a numeric key.
    ///
    /// # Panics
    /// If the size of key or value is not the map's.
    pub(super) fn set(&self, key: u32, value: &[u8]) -> io::Result<()> {
        self.insert(&key.to_ne_bytes(), value)
    }

    /// Sets the value of a key.
    ///
    /// # Panics
    /// If the size of key or value is not the map's.
    pub(super) fn insert(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        assert_eq!(value.len(), self.value_size, "the map has values of another size");
        let element = self.element(key, address(value.as_ptr()));
        // SAFETY: the attributes of this command; key and value have the sizes which the map was made with.
        unsafe { bpf(MAP_UPDATE_ELEM, element) }.map(drop)
    }

    /// Reads the value of a key.
    ///
    /// # Errors
    /// `ENOENT` if the key is missing.
    ///
    /// # Panics
    /// If the size of key or value is not the map's.
    pub(super) fn look_up(&self, key: &[u8], value: &mut [u8]) -> io::Result<()> {
        assert_eq!(value.len(), self.value_size, "the map has values of another size");
        let element = self.element(key, address(value.as_mut_ptr()));
        // SAFETY: the attributes of this command; key and value have the sizes which the map was made with, and the kernel writes
        // into the value only.
        unsafe { bpf(MAP_LOOKUP_ELEM, element) }.map(drop)
    }

    /// Returns a key's values of all cores in a per-core map, consecutive and each padded to 8 bytes.
    ///
    /// # Panics
    /// If the key's size is not the map's.
    pub(super) fn of_each_core(&self, key: &[u8], cores: usize) -> io::Result<Vec<u8>> {
        let mut values = vec![0; self.value_size.next_multiple_of(8) * cores];
        let element = self.element(key, address(values.as_mut_ptr()));
        // SAFETY: the attributes of this command. The kernel writes a rounded value for each core that is possible, and
        // there is room for as many.
        unsafe { bpf(MAP_LOOKUP_ELEM, element) }?;
        Ok(values)
    }

    /// Sets a key's values of all cores, in the format of [`of_each_core`](Self::of_each_core).
    ///
    /// # Panics
    /// If the key's size is not the map's, or the values are shorter than one.
    pub(super) fn set_each_core(&self, key: &[u8], values: &[u8]) -> io::Result<()> {
        assert!(values.len() >= self.value_size, "values are missing");
        let element = self.element(key, address(values.as_ptr()));
        // SAFETY: the attributes of this command; there is a value for each core that is possible, as the caller has asked.
        unsafe { bpf(MAP_UPDATE_ELEM, element) }.map(drop)
    }

    /// Removes a key. A missing key is no error.
    ///
    /// # Panics
    /// If the key's size is not the map's.
    pub(super) fn remove(&self, key: &[u8]) -> io::Result<()> {
        // SAFETY: the attributes of this command; the key has the size which the map was made with.
        match unsafe { bpf(MAP_DELETE_ELEM, self.element(key, 0)) } {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
            _ => Ok(()),
        }
    }

    fn element(&self, key: &[u8], value: u64) -> Element {
        assert_eq!(key.len(), self.key_size, "the map has keys of another size");
        Element {
            map: self.descriptor.as_raw_fd().cast_unsigned(),
            padding: 0,
            key: address(key.as_ptr()),
            value,
            flags: 0,
        }
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
