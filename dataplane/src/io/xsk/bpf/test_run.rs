//! Runs programs on synthetic packets (`BPF_PROG_TEST_RUN`), for benches and tests.

use std::ffi::c_long;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::address;

const PROG_TEST_RUN: c_long = 10;

#[derive(Clone, Copy, Debug, Default)]
pub(in crate::io::xsk) struct TestRun {
    /// Number of times that the program runs.
    pub(in crate::io::xsk) repeat: u32,
    /// Whether to perform the program's action on the packets (`BPF_F_TEST_XDP_LIVE_FRAMES`).
    pub(in crate::io::xsk) live: bool,
    /// Number of packets per batch if `live` is set.
    pub(in crate::io::xsk) batch: u32,
}

/// `struct bpf_attr`, `test`.
#[derive(Default)]
#[repr(C)]
struct TestAttributes {
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

/// # Safety
/// The attributes must be those of the command, with pointers to memory of the sizes that are in them.
unsafe fn run_test(mut attributes: TestAttributes) -> io::Result<TestAttributes> {
    let len = size_of::<TestAttributes>();
    // SAFETY: the caller ensures it. The kernel writes results into the attributes, which are exclusively borrowed.
    let result = unsafe { libc::syscall(libc::SYS_bpf, PROG_TEST_RUN, &raw mut attributes, len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(attributes) }
}

/// Runs a program on a packet. Returns its return code, or 0 for live frames.
pub(in crate::io::xsk) fn test_run(program: BorrowedFd<'_>, packet: &[u8], run: TestRun) -> io::Result<u32> {
    const LIVE_FRAMES: u32 = 1 << 1;
    let attributes = TestAttributes {
        program: program.as_raw_fd().cast_unsigned(),
        packet_len: u32::try_from(packet.len()).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?,
        packet: address(packet.as_ptr()),
        repeat: run.repeat,
        flags: if run.live { LIVE_FRAMES } else { 0 },
        batch: run.batch,
        ..TestAttributes::default()
    };
    // SAFETY: the packet outlives the call, and the kernel only reads it.
    unsafe { run_test(attributes) }.map(|attributes| attributes.returned)
}

/// Runs a tc program once on a packet as if `interface` of the calling thread's network namespace had received it. Returns the return code
/// and the modified packet. With `is_summed`, the kernel provides the sum over the packet (Linux 6.13).
///
/// # Errors
/// `EBADMSG` if that sum is wrong after the program.
pub(in crate::io::xsk) fn test_run_tc(
    program: BorrowedFd<'_>,
    packet: &[u8],
    interface: u32,
    is_summed: bool,
) -> io::Result<(u32, Vec<u8>)> {
    /// `BPF_F_TEST_SKB_CHECKSUM_COMPLETE`.
    const SUMMED: u32 = 1 << 2;
    /// Bytes that the program may add to the packet, such as a VLAN tag.
    const ROOM: usize = 64;
    /// `ifindex` of `struct __sk_buff`, in words. The following members are 0.
    const INTERFACE: usize = 10;
    let mut context = [0_u32; INTERFACE + 1];
    context[INTERFACE] = interface;
    let mut out = vec![0; packet.len() + ROOM];
    let small = |len: usize| u32::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG));
    let attributes = TestAttributes {
        program: program.as_raw_fd().cast_unsigned(),
        packet_len: small(packet.len())?,
        out_len: small(out.len())?,
        packet: address(packet.as_ptr()),
        out: address(out.as_mut_ptr()),
        repeat: 1,
        context_len: small(size_of_val(&context))?,
        context: address(context.as_ptr()),
        flags: if is_summed { SUMMED } else { 0 },
        ..TestAttributes::default()
    };
    // SAFETY: packet, context and room for the packet outlive the call and have the sizes that the attributes say.
    let after = unsafe { run_test(attributes) }?;
    out.truncate(after.out_len as usize);
    Ok((after.returned, out))
}
