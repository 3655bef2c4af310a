//! bpf(2): programs, links and pins. Source: `include/uapi/linux/bpf.h`.
//!
//! Implements only the needs of a few programs of some hundred instructions. The alternative, libbpf or aya with programs compiled by
//! clang, would make libelf or clang a build requirement.

#[cfg(feature = "bench")]
mod test_run;

use std::ffi::{CString, c_long};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

#[cfg(feature = "bench")]
pub(super) use test_run::{TestRun, test_run, test_run_tc};

use super::instruction::Instruction;
use super::small_size;

/// `BPF_F_XDP_HAS_FRAGS`: the program supports multi-buffer packets.
pub(super) const HAS_FRAGS: u32 = 1 << 5;
/// The point in the kernel at which a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    /// XDP: packets that an interface has received, before the kernel processes them.
    Xdp,
    /// tc ingress: packets that an interface has received, before the network stack.
    TcIngress,
    /// tc egress: packets that the network stack sends out of an interface.
    TcEgress,
}

impl Hook {
    /// Returns the program type of the hook, one of `BPF_PROG_TYPE_*`.
    const fn program_type(self) -> u32 {
        match self {
            Self::Xdp => 6,
            Self::TcIngress | Self::TcEgress => 3,
        }
    }

    /// Returns the attach type: `BPF_XDP`, `BPF_TCX_INGRESS` or `BPF_TCX_EGRESS`.
    pub(super) const fn attach_type(self) -> u32 {
        match self {
            Self::Xdp => 37,
            Self::TcIngress => 46,
            Self::TcEgress => 47,
        }
    }
}

/// `BPF_F_BEFORE`, for tc hooks: run before all attached programs.
pub(super) const BEFORE: u32 = 1 << 3;

/// Size of the verifier's log in bytes. The verdict is at its end, after the instructions.
const LOG: usize = 1 << 20;

const PROG_LOAD: c_long = 5;
const OBJ_PIN: c_long = 6;
const OBJ_GET: c_long = 7;
const OBJ_GET_INFO_BY_FD: c_long = 15;
const PROG_QUERY: c_long = 16;
const LINK_CREATE: c_long = 28;
const LINK_UPDATE: c_long = 29;
const LINK_DETACH: c_long = 34;

/// Loads a program. `bpftool` displays the name.
pub(super) fn load_program(hook: Hook, name: &str, instructions: &[Instruction], flags: u32) -> io::Result<OwnedFd> {
    load(hook, name, instructions, flags, &mut [])
}

/// Loads a rejected program again and returns the last lines of the verifier's log.
pub(super) fn refusal(hook: Hook, instructions: &[Instruction], flags: u32) -> String {
    /// Number of returned lines: enough for the verdict and the registers.
    const LINES: usize = 4;
    let mut log = vec![0; LOG];
    match load(hook, "bulkhead_why", instructions, flags, &mut log) {
        Ok(_) => "the verifier accepted the program on the second try".to_owned(),
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
    // SAFETY: the attributes of this command. The pointers are to memory that outlives the call, and the kernel writes only
    // within the log.
    owned(unsafe { bpf(PROG_LOAD, attributes) }?)
}

/// Attaches a program to an interface while the returned descriptor is open or the link is pinned. So the kernel detaches an unpinned link
/// when the process dies. The alternative, attaching by netlink, keeps the program after `kill -9`.
pub(super) fn attach(hook: Hook, program: BorrowedFd<'_>, interface: u32, flags: u32) -> io::Result<OwnedFd> {
    /// `struct bpf_attr`, `link_create`. The last two belong to tc hooks; 0 means not relative to another program.
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

/// Atomically replaces a link's program.
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

/// Detaches a link's program immediately. Closing the descriptor does not while a child process has a copy, as between `fork` and `exec`.
pub(super) fn detach(link: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the attribute of this command, without pointers.
    unsafe { bpf(LINK_DETACH, link.as_raw_fd()) }.map(drop)
}

/// Returns the index of the interface that an XDP or tcx link is attached to, and the program's id. The index is 0 if the interface is
/// gone.
pub(super) fn attached_to(link: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    link_info(link).map(|info| (info.interface, info.program))
}

/// The start of `struct bpf_link_info`, which XDP and tcx links share.
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

/// Reads the information about a map, program or link to the address `info`.
///
/// # Safety
/// `length` bytes at the address must be writable with any content.
pub(super) unsafe fn info_of(object: BorrowedFd<'_>, info: u64, length: u32) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        descriptor: u32,
        info_len: u32,
        info: u64,
    }
    let attributes = Attributes { descriptor: object.as_raw_fd().cast_unsigned(), info_len: length, info };
    // SAFETY: the attributes of this command, with memory that the caller guarantees.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, attributes) }.map(drop)
}

/// `struct bpf_attr` of the commands on pinned objects.
#[repr(C)]
struct Pinned {
    path: u64,
    descriptor: u32,
    flags: u32,
}

/// Pins a map or link in a BPF file system, so that it outlives the process.
pub(super) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let descriptor = object.as_raw_fd().cast_unsigned();
    // SAFETY: the attributes of this command; the path outlives the call and ends with a zero.
    unsafe { bpf(OBJ_PIN, Pinned { path: address(path.as_ptr()), descriptor, flags: 0 }) }.map(drop)
}

/// Returns the type of a path's file system, by `statfs`.
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

/// Opens a pinned map or link.
pub(super) fn pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: as above.
    owned(unsafe { bpf(OBJ_GET, Pinned { path: address(path.as_ptr()), descriptor: 0, flags: 0 }) }?)
}

pub(super) fn link_id(link: BorrowedFd<'_>) -> io::Result<u32> {
    link_info(link).map(|info| info.id)
}

pub(super) fn program_id(program: BorrowedFd<'_>) -> io::Result<u32> {
    /// `struct bpf_prog_info` up to the id.
    #[derive(Default)]
    #[repr(C)]
    struct ProgramInfo {
        kind: u32,
        id: u32,
    }
    let mut info = ProgramInfo::default();
    // SAFETY: `ProgramInfo` is made of numbers, and the kernel writes at most as many bytes as it has.
    unsafe { info_of(program, address(&raw mut info), small_size::<ProgramInfo>()) }?;
    Ok(info.id)
}

/// The programs that are attached by tcx to a hook of an interface, in execution order.
#[derive(Debug)]
pub(super) struct AtHook {
    /// The kernel's ids of the programs.
    pub(super) programs: Vec<u32>,
    /// The kernel's ids of their links, in the same order. 0 for a program that is attached without a link.
    pub(super) links: Vec<u32>,
}

/// Returns what is attached by tcx to a hook of an interface in the calling thread's network namespace.
///
/// # Errors
/// `ENOENT` if nothing was ever attached there, `EINVAL` before Linux 6.6, or `EPERM` without privileges.
pub(super) fn at_hook(hook: Hook, interface: u32) -> io::Result<AtHook> {
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
    // SAFETY: the attributes of this command, to which the kernel writes the count. The arrays have room for the kernel's
    // maximum of ids.
    let result = unsafe { libc::syscall(libc::SYS_bpf, PROG_QUERY, &raw mut attributes, len) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let [programs, links] = [programs, links].map(|ids| ids[..(attributes.count as usize).min(MOST)].to_vec());
    Ok(AtHook { programs, links })
}

/// Returns a name of at most 15 bytes as an array that is padded with zeros.
pub(super) fn padded(name: &str) -> [u8; 16] {
    let mut padded = [0; 16];
    padded.iter_mut().take(15).zip(name.bytes()).for_each(|(to, from)| *to = from);
    padded
}

pub(super) fn address<T>(pointer: *const T) -> u64 {
    pointer.expose_provenance() as u64
}

pub(super) fn owned(descriptor: c_long) -> io::Result<OwnedFd> {
    let descriptor = i32::try_from(descriptor).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
    // SAFETY: bpf(2) has just created it, and nothing else owns it. The kernel sets close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Calls bpf(2). Retries `EAGAIN`.
///
/// # Safety
/// The attributes must be those of the command, with pointers to memory of the sizes that the kernel reads and writes.
pub(super) unsafe fn bpf<A>(command: c_long, mut attributes: A) -> io::Result<c_long> {
    // SAFETY: the caller's.
    unsafe { bpf_into(command, &mut attributes) }
}

/// Like [`bpf`], for commands that write into their attributes.
///
/// # Safety
/// As for [`bpf`].
pub(super) unsafe fn bpf_into<A>(command: c_long, attributes: &mut A) -> io::Result<c_long> {
    /// Maximum number of calls: the verifier returns `EAGAIN` if a signal is pending. libbpf tries five times too.
    const TRIES: u32 = 5;
    let mut tries = 0;
    loop {
        // SAFETY: the caller's, and the size is the attributes' own.
        let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size_of::<A>()) };
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
