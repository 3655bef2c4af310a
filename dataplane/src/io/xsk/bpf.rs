//! bpf(2): maps, programs, links. Source: `include/uapi/linux/bpf.h`.
//!
//! Only what a few programs of some hundred instructions need. The alternative, a loader such as libbpf or aya with programs
//! compiled by clang, would make libelf or clang a condition of building.

use std::ffi::{CString, c_long};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::instruction::Instruction;
use super::small_size;

/// `BPF_MAP_TYPE_HASH`.
pub(super) const MAP_HASH: u32 = 1;
/// `BPF_MAP_TYPE_ARRAY`.
pub(super) const MAP_ARRAY: u32 = 2;
/// `BPF_MAP_TYPE_PERCPU_ARRAY`: each core has values of its own.
pub(super) const MAP_PERCPU_ARRAY: u32 = 6;
/// `BPF_MAP_TYPE_LRU_HASH`: when it is full, the least recently used entries make room.
pub(super) const MAP_LRU_HASH: u32 = 9;
/// `BPF_MAP_TYPE_DEVMAP`: interfaces to send to, by number.
pub(super) const MAP_INTERFACES: u32 = 14;
/// `BPF_MAP_TYPE_XSKMAP`.
pub(super) const MAP_XSK: u32 = 17;
/// `BPF_F_MMAPABLE`: the values can be mapped into the process (Linux 5.5).
pub(super) const MAPPABLE: u32 = 1 << 10;
/// `BPF_F_XDP_HAS_FRAGS`: the program does not mind packets in several buffers.
pub(super) const HAS_FRAGS: u32 = 1 << 5;
/// What a program is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    /// XDP.
    Xdp,
    /// tc ingress (tcx, Linux 6.6): what an interface has received, before the network stack sees it.
    TcIngress,
    /// tc egress (tcx, Linux 6.6): what the network stack sends out of an interface.
    TcEgress,
}

impl Hook {
    /// `BPF_PROG_TYPE_*`.
    const fn program_type(self) -> u32 {
        match self {
            Self::Xdp => 6,
            Self::TcIngress | Self::TcEgress => 3,
        }
    }

    /// `BPF_XDP`, `BPF_TCX_INGRESS`, `BPF_TCX_EGRESS`.
    pub(super) const fn attach_type(self) -> u32 {
        match self {
            Self::Xdp => 37,
            Self::TcIngress => 46,
            Self::TcEgress => 47,
        }
    }
}

/// `BPF_F_BEFORE`, for tc hooks: before all programs that are there.
pub(super) const BEFORE: u32 = 1 << 3;

/// How much of the verifier's words is kept: its verdict is at the end, behind the instructions that led to it.
const LOG: usize = 1 << 20;

const MAP_CREATE: c_long = 0;
const MAP_LOOKUP_ELEM: c_long = 1;
const MAP_UPDATE_ELEM: c_long = 2;
const MAP_DELETE_ELEM: c_long = 3;
const MAP_GET_NEXT_KEY: c_long = 4;
const PROG_LOAD: c_long = 5;
const OBJ_PIN: c_long = 6;
const OBJ_GET: c_long = 7;
#[cfg(feature = "bench")]
const PROG_TEST_RUN: c_long = 10;
const OBJ_GET_INFO_BY_FD: c_long = 15;
const PROG_QUERY: c_long = 16;
const LINK_CREATE: c_long = 28;
const LINK_UPDATE: c_long = 29;
const LINK_DETACH: c_long = 34;

/// How a map is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct MapKind<'a> {
    /// `BPF_MAP_TYPE_*`.
    pub(super) kind: u32,
    /// For `bpftool`.
    pub(super) name: &'a str,
    /// Bytes of a key.
    pub(super) key_size: u32,
    /// Bytes of a value.
    pub(super) value_size: u32,
    /// How many there may be.
    pub(super) entries: u32,
    /// `BPF_F_*`.
    pub(super) flags: u32,
}

/// A map.
#[derive(Debug)]
pub(super) struct Map {
    descriptor: OwnedFd,
    key_size: usize,
    value_size: usize,
}

/// What the commands on a map's elements are told.
#[repr(C)]
struct Element {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl Map {
    /// A map whose keys are the numbers from 0.
    pub(super) fn new(kind: u32, name: &str, value_size: u32, entries: u32) -> io::Result<Self> {
        Self::of(&MapKind { kind, name, key_size: 4, value_size, entries, flags: 0 })
    }

    /// Any map.
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

    /// The map that is pinned there, when it is one of this kind.
    ///
    /// # Errors
    /// The kernel's; `InvalidData` for another kind of map, or no map.
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

    /// Makes the map, or takes the one that is pinned there; then it is pinned there.
    pub(super) fn at(wanted: &MapKind<'_>, path: Option<&Path>) -> io::Result<Self> {
        let Some(path) = path else { return Self::of(wanted) };
        match Self::pinned(wanted, path) {
            Ok(map) => return Ok(map),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // Something else has the name: it is of no use to anybody.
            Err(_) => std::fs::remove_file(path)?,
        }
        let map = Self::of(wanted)?;
        pin(map.as_fd(), path)?;
        Ok(map)
    }

    /// All keys, with their values, as they are while this goes through them.
    pub(super) fn entries(&self) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut all = Vec::new();
        let mut last: Option<Vec<u8>> = None;
        loop {
            let mut next = vec![0; self.key_size];
            let element = Element {
                map: self.descriptor.as_raw_fd().cast_unsigned(),
                padding: 0,
                key: last.as_ref().map_or(0, |key| address(key.as_ptr())),
                value: address(next.as_mut_ptr()),
                flags: 0,
            };
            // SAFETY: the attributes of this command; both keys have the size which the map was made with.
            match unsafe { bpf(MAP_GET_NEXT_KEY, element) } {
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(all),
                Err(error) => return Err(error),
                Ok(_) => {}
            }
            let mut value = vec![0; self.value_size];
            let element = self.element(&next, address(value.as_mut_ptr()));
            // SAFETY: as above; there is room for a value.
            if unsafe { bpf(MAP_LOOKUP_ELEM, element) }.is_ok() {
                all.push((next.clone(), value));
            }
            last = Some(next);
        }
    }

    /// Sets the value of a number.
    ///
    /// # Panics
    /// When key or value do not have the size of the map's.
    pub(super) fn set(&self, key: u32, value: &[u8]) -> io::Result<()> {
        self.insert(&key.to_ne_bytes(), value)
    }

    /// Sets the value of a key.
    ///
    /// # Panics
    /// When key or value do not have the size of the map's.
    pub(super) fn insert(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        assert_eq!(value.len(), self.value_size, "the map has values of another size");
        let element = self.element(key, address(value.as_ptr()));
        // SAFETY: the attributes of this command; key and value have the sizes which the map was made with.
        unsafe { bpf(MAP_UPDATE_ELEM, element) }.map(drop)
    }

    /// The value of a key in a map whose values are each core's own: those of all cores, one behind the other, each
    /// rounded up to 8 bytes.
    ///
    /// # Panics
    /// When the key does not have the size of the map's keys.
    pub(super) fn of_each_core(&self, key: &[u8], cores: usize) -> io::Result<Vec<u8>> {
        let mut values = vec![0; self.value_size.next_multiple_of(8) * cores];
        let element = self.element(key, address(values.as_mut_ptr()));
        // SAFETY: the attributes of this command. The kernel writes a rounded value for each core that is possible, and
        // there is room for as many.
        unsafe { bpf(MAP_LOOKUP_ELEM, element) }?;
        Ok(values)
    }

    /// Sets the values of all cores of a key: as many as [`of_each_core`](Self::of_each_core) tells.
    ///
    /// # Panics
    /// When the key does not have the size of the map's keys, or the values that of one core at least.
    pub(super) fn set_each_core(&self, key: &[u8], values: &[u8]) -> io::Result<()> {
        assert!(values.len() >= self.value_size, "values are missing");
        let element = self.element(key, address(values.as_ptr()));
        // SAFETY: the attributes of this command; there is a value for each core that is possible, as the caller has asked.
        unsafe { bpf(MAP_UPDATE_ELEM, element) }.map(drop)
    }

    /// Removes a key, which need not be there.
    ///
    /// # Panics
    /// When it does not have the size of the map's keys.
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

/// Loads a program. The name is for `bpftool`.
pub(super) fn load_program(hook: Hook, name: &str, instructions: &[Instruction], flags: u32) -> io::Result<OwnedFd> {
    load(hook, name, instructions, flags, &mut [])
}

/// Why the kernel's verifier refuses a program: the last lines of what it says.
pub(super) fn refusal(hook: Hook, instructions: &[Instruction], flags: u32) -> String {
    /// The verdict and what the registers were.
    const LINES: usize = 4;
    let mut log = vec![0; LOG];
    match load(hook, "bulkhead_why", instructions, flags, &mut log) {
        Ok(_) => "it takes it now".to_owned(),
        Err(_) => {
            let text = String::from_utf8_lossy(&log);
            let lines: Vec<&str> = text.trim_end_matches('\0').trim().lines().collect();
            lines[lines.len().saturating_sub(LINES)..].join(" | ")
        }
    }
}

fn load(hook: Hook, name: &str, instructions: &[Instruction], flags: u32, log: &mut [u8]) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        kind: u32,
        instruction_count: u32,
        instructions: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log: u64,
        kernel_version: u32,
        flags: u32,
        name: [u8; 16],
        interface: u32,
        attach_type: u32,
    }
    let is_quiet = log.is_empty();
    let attributes = Attributes {
        kind: hook.program_type(),
        instruction_count: u32::try_from(instructions.len()).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?,
        instructions: address(instructions.as_ptr()),
        license: address(c"Apache-2.0".as_ptr()),
        log_level: u32::from(!is_quiet),
        log_size: u32::try_from(log.len()).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?,
        log: if is_quiet { 0 } else { address(log.as_mut_ptr()) },
        kernel_version: 0,
        flags,
        name: padded(name),
        interface: 0,
        attach_type: if hook == Hook::Xdp { hook.attach_type() } else { 0 },
    };
    // SAFETY: the attributes of this command; the pointers are to memory that outlives the call, and the kernel writes
    // within the log only.
    owned(unsafe { bpf(PROG_LOAD, attributes) }?)
}

/// Attaches a program to an interface for as long as the descriptor that is returned is open, or the link is pinned: the
/// kernel detaches it when the process dies, however it dies. The alternative, attaching by netlink, leaves it behind
/// after `kill -9`.
pub(super) fn attach(hook: Hook, program: BorrowedFd<'_>, interface: u32, flags: u32) -> io::Result<OwnedFd> {
    /// `struct bpf_attr`, `link_create`; the last two are of tc hooks, 0 for "relative to nothing".
    #[repr(C)]
    struct Attributes {
        program: u32,
        interface: u32,
        attach_type: u32,
        flags: u32,
        relative: u64,
        revision: u64,
    }
    let program = program.as_raw_fd().cast_unsigned();
    let attributes =
        Attributes { program, interface, attach_type: hook.attach_type(), flags, relative: 0, revision: 0 };
    // SAFETY: the attributes of this command, without pointers.
    owned(unsafe { bpf(LINK_CREATE, attributes) }?)
}

/// Puts another program in the place of a link's, with no moment in between.
pub(super) fn replace(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        link: u32,
        program: u32,
        flags: u32,
        old_program: u32,
    }
    let [link, program] = [link, program].map(|descriptor| descriptor.as_raw_fd().cast_unsigned());
    // SAFETY: the attributes of this command, without pointers.
    unsafe { bpf(LINK_UPDATE, Attributes { link, program, flags: 0, old_program: 0 }) }.map(drop)
}

/// Detaches the program of a link at once. Closing the descriptor does so as well, but only when no child process has
/// a copy of it, which each has for a moment before it runs its program.
pub(super) fn detach(link: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the attribute of this command, without pointers.
    unsafe { bpf(LINK_DETACH, link.as_raw_fd()) }.map(drop)
}

/// The interface that a program is attached to by this link, XDP or tc, 0 when the interface is no more; and the program's
/// number.
pub(super) fn attached_to(link: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    link_info(link).map(|info| (info.interface, info.program))
}

/// `struct bpf_link_info` as far as it concerns XDP and tcx links, which begin alike.
#[derive(Default)]
#[repr(C)]
struct LinkInfo {
    kind: u32,
    id: u32,
    program: u32,
    padding: u32,
    interface: u32,
    rest: [u32; 3],
}

fn link_info(link: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    let mut info = LinkInfo::default();
    // SAFETY: `LinkInfo` is made of numbers, and the kernel writes at most as many bytes as it has.
    unsafe { info_of(link, address(&raw mut info), small_size::<LinkInfo>()) }?;
    Ok(info)
}

/// Has the kernel tell of a map, program or link.
///
/// # Safety
/// There must be `length` bytes to write to at the address, for any content.
unsafe fn info_of(object: BorrowedFd<'_>, info: u64, length: u32) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        descriptor: u32,
        info_len: u32,
        info: u64,
    }
    let attributes = Attributes { descriptor: object.as_raw_fd().cast_unsigned(), info_len: length, info };
    // SAFETY: the attributes of this command, with memory that the caller answers for.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, attributes) }.map(drop)
}

/// What the commands on pinned objects are told.
#[repr(C)]
struct Pinned {
    path: u64,
    descriptor: u32,
    flags: u32,
}

/// Gives a map or a link a name in a BPF file system, where it lives on when no process has it any more.
pub(super) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let descriptor = object.as_raw_fd().cast_unsigned();
    // SAFETY: the attributes of this command; the path outlives the call and ends with a zero.
    unsafe { bpf(OBJ_PIN, Pinned { path: address(path.as_ptr()), descriptor, flags: 0 }) }.map(drop)
}

/// The kind of file system that a path is in, as `statfs` tells it.
pub(super) fn file_system(path: &Path) -> io::Result<i64> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a structure of numbers, for which zeros are values.
    let mut told: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a zero, and the kernel writes within the structure.
    if unsafe { libc::statfs(path.as_ptr(), &raw mut told) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(told.f_type)
}

/// The map or link that has this name.
pub(super) fn pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: as above.
    owned(unsafe { bpf(OBJ_GET, Pinned { path: address(path.as_ptr()), descriptor: 0, flags: 0 }) }?)
}

/// The number of a link.
pub(super) fn link_id(link: BorrowedFd<'_>) -> io::Result<u32> {
    link_info(link).map(|info| info.id)
}

/// The numbers of the links at a tc hook of an interface of the calling thread's network namespace, in the order in which
/// their programs run (Linux 6.6).
pub(super) fn links_of(hook: Hook, interface: u32) -> io::Result<Vec<u32>> {
    /// `struct bpf_attr`, `query`.
    #[repr(C)]
    struct Attributes {
        interface: u32,
        attach_type: u32,
        query_flags: u32,
        attach_flags: u32,
        program_ids: u64,
        count: u32,
        padding: u32,
        program_flags: u64,
        link_ids: u64,
        link_flags: u64,
        revision: u64,
    }
    /// `BPF_MPROG_MAX`.
    const MOST: usize = 64;
    let (mut programs, mut links) = ([0_u32; MOST], [0_u32; MOST]);
    let mut attributes = Attributes {
        interface,
        attach_type: hook.attach_type(),
        query_flags: 0,
        attach_flags: 0,
        program_ids: address(programs.as_mut_ptr()),
        count: 64,
        padding: 0,
        program_flags: 0,
        link_ids: address(links.as_mut_ptr()),
        link_flags: 0,
        revision: 0,
    };
    let len = size_of::<Attributes>();
    // SAFETY: the attributes of this command, which the kernel writes the count to; there is room for as many numbers as it
    // ever has.
    let result = unsafe { libc::syscall(libc::SYS_bpf, PROG_QUERY, &raw mut attributes, len) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(links[..(attributes.count as usize).min(MOST)].to_vec())
}

/// What a run of a program on a packet is asked for: `struct bpf_attr`, `test`.
#[cfg(feature = "bench")]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TestRun {
    /// How many times.
    pub(super) repeat: u32,
    /// `BPF_F_TEST_XDP_LIVE_FRAMES`: do with the packets what the program says.
    pub(super) live: bool,
    /// Live frames at once.
    pub(super) batch: u32,
}

/// Runs a program on a packet; the answer is what it returned, for live frames 0.
#[cfg(feature = "bench")]
pub(super) fn test_run(program: BorrowedFd<'_>, packet: &[u8], run: TestRun) -> io::Result<u32> {
    const LIVE_FRAMES: u32 = 1 << 1;
    #[repr(C)]
    struct Attributes {
        program: u32,
        returned: u32,
        packet_len: u32,
        out_len: u32,
        packet: u64,
        out: u64,
        repeat: u32,
        duration: u32,
        context_len: u32,
        context_out_len: u32,
        context: u64,
        context_out: u64,
        flags: u32,
        cpu: u32,
        batch: u32,
        padding: u32,
    }
    let mut attributes = Attributes {
        program: program.as_raw_fd().cast_unsigned(),
        returned: 0,
        packet_len: u32::try_from(packet.len()).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?,
        out_len: 0,
        packet: address(packet.as_ptr()),
        out: 0,
        repeat: run.repeat,
        duration: 0,
        context_len: 0,
        context_out_len: 0,
        context: 0,
        context_out: 0,
        flags: if run.live { LIVE_FRAMES } else { 0 },
        cpu: 0,
        batch: run.batch,
        padding: 0,
    };
    let len = size_of::<Attributes>();
    // SAFETY: the attributes of this command: the packet outlives the call, and the kernel writes into the attributes
    // only, which are exclusively borrowed.
    let result = unsafe { libc::syscall(libc::SYS_bpf, PROG_TEST_RUN, &raw mut attributes, len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(attributes.returned) }
}

/// A name as the kernel wants it: zeros behind, at least one.
fn padded(name: &str) -> [u8; 16] {
    let mut padded = [0; 16];
    padded.iter_mut().take(15).zip(name.bytes()).for_each(|(to, from)| *to = from);
    padded
}

pub(super) fn address<T>(pointer: *const T) -> u64 {
    pointer.expose_provenance() as u64
}

pub(super) fn owned(descriptor: c_long) -> io::Result<OwnedFd> {
    let descriptor = i32::try_from(descriptor).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
    // SAFETY: bpf(2) has just made it for us, and nobody else knows of it. It is closed on exec by itself.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// # Safety
/// The attributes must be those of the command, with pointers to memory of the sizes that the kernel reads and writes.
pub(super) unsafe fn bpf<A>(command: c_long, mut attributes: A) -> io::Result<c_long> {
    /// The verifier gives up when a signal is pending. libbpf tries five times as well.
    const TRIES: u32 = 5;
    let mut tries = 0;
    loop {
        // SAFETY: the caller's, and the size is the attributes' own.
        let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut attributes, size_of::<A>()) };
        if result >= 0 {
            return Ok(result);
        }
        let error = io::Error::last_os_error();
        tries += 1;
        if error.raw_os_error() != Some(libc::EAGAIN) || tries == TRIES {
            return Err(error);
        }
    }
}
