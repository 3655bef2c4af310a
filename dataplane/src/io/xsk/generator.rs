//! A packet generator for benchmarks and tests, behind the cargo feature `bench`. The vswitch does not use it.
//!
//! The kernel runs an XDP program on a generated packet and performs the returned action (`BPF_F_TEST_XDP_LIVE_FRAMES`, Linux 5.18). The
//! program here redirects the packet to an interface. That takes about 150 ns per packet, a packet socket more than a microsecond, so
//! the generator is not the bottleneck. Source: `Documentation/bpf/bpf_prog_run.rst` of the kernel.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use super::bpf::{self, Hook, TestRun};
use super::error::XskError;
use super::instruction::{Assembler, Instruction, Operation, Test, Width};
use super::link::LinkInfo;
use super::map::{MAP_ARRAY, Map};

/// Threads that call the kernel. Starting and ending a call takes about 30 ms, during which the other thread sends.
const THREADS: usize = 2;

/// Packets per call: enough to outweigh the 30 ms, and few enough to notice `stop` within about half a second.
const PER_CALL: usize = 1 << 18;

/// Packets that the kernel creates and sends at once, at most 256. Equal to a driver's NAPI poll.
const BATCH: u32 = 64;

/// Sends given frames repeatedly, as fast as one core can.
#[derive(Debug)]
pub struct Generator {
    interface: String,
    groups: Vec<Group>,
    /// Number of frames given to [`Generator::new`].
    frames: usize,
}

/// The frames of one length, with a program that sends them: it copies a constant number of bytes.
#[derive(Debug)]
struct Group {
    program: OwnedFd,
    /// A frame of the group, which gives the length.
    frame: Vec<u8>,
    count: usize,
}

impl Generator {
    /// Prepares frames for sending out of an interface of the calling thread's network namespace. Each frame starts with the Ethernet
    /// header, has no frame check sequence, and has 14 to 3,500 bytes. A veth's peer must have an XDP program in driver mode or GRO on,
    /// otherwise the kernel drops the packets.
    ///
    /// # Errors
    /// [`XskError`] if there is no such interface, the kernel is older than 5.18, or the process lacks the capabilities.
    pub fn new(interface: &str, frames: &[Vec<u8>]) -> Result<Self, XskError> {
        let index = LinkInfo::read(interface)?.index;
        let mut by_length: Vec<&Vec<u8>> = frames.iter().collect();
        // The sort is stable, so frames of one length keep their order.
        by_length.sort_by_key(|frame| frame.len());
        let groups = by_length.chunk_by(|one, other| one.len() == other.len()).map(|frames| Group::new(frames, index));
        let groups = groups
            .collect::<io::Result<_>>()
            .map_err(|source| XskError::system(interface, "load the generator's program", source))?;
        Ok(Self { interface: interface.to_owned(), groups, frames: frames.len() })
    }

    /// Sends until `stop` is set. Returns the number of packets, including those that the interface or a veth's peer dropped for lack of
    /// room; count arrivals at the receiver. Must be called in the interface's network namespace and on the sending core, which its threads
    /// inherit.
    ///
    /// # Errors
    /// [`XskError`] if the kernel refuses.
    ///
    /// # Panics
    /// If a thread cannot be started.
    pub fn run(&self, stop: &AtomicBool) -> Result<u64, XskError> {
        let send = || {
            let mut sent = 0;
            while !stop.load(Ordering::Relaxed) && self.frames > 0 {
                sent += self.send(PER_CALL.div_ceil(self.frames))?;
            }
            Ok(sent)
        };
        std::thread::scope(|scope| {
            let threads = [(); THREADS].map(|()| scope.spawn(send));
            let sent = threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            sent.sum()
        })
    }

    /// Sends every frame `rounds` times, in turn within each length and one length after another. Returns the number of packets.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub fn send(&self, rounds: usize) -> Result<u64, XskError> {
        let mut sent = 0;
        for group in &self.groups {
            let repeat = u32::try_from(group.count.saturating_mul(rounds)).unwrap_or(u32::MAX);
            group
                .send(repeat)
                .map_err(|source| XskError::system(&self.interface, "send the generator's packets", source))?;
            sent += u64::from(repeat);
        }
        Ok(sent)
    }
}

impl Group {
    fn new(frames: &[&Vec<u8>], interface: u32) -> io::Result<Self> {
        let too_big = || io::Error::from_raw_os_error(libc::E2BIG);
        let count = u32::try_from(frames.len()).map_err(|_| too_big())?;
        let len = u32::try_from(frames[0].len()).map_err(|_| too_big())?;
        let contents = Map::new(MAP_ARRAY, "frames", len, count)?;
        for (frame, at) in frames.iter().zip(0..) {
            contents.set(at, frame)?;
        }
        let next = Map::new(MAP_ARRAY, "next", 4, 1)?;
        let program =
            bpf::load_program(Hook::Xdp, "bulkhead_gen", &instructions(&contents, &next, count, len, interface), 0)?;
        Ok(Self { program, frame: frames[0].clone(), count: frames.len() })
    }

    fn send(&self, repeat: u32) -> io::Result<()> {
        loop {
            match bpf::test_run(self.program.as_fd(), &self.frame, TestRun { repeat, live: true, batch: BATCH }) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map(drop),
            }
        }
    }
}

/// Copies the next frame into the packet and sends it:
///
/// ```text
///   n = *next; *next = (n + 1) % count
///   bpf_xdp_store_bytes(ctx, 0, contents[n], len)
///   return bpf_redirect(interface, 0)
/// ```
fn instructions(contents: &Map, next: &Map, count: u32, len: u32, interface: u32) -> Vec<Instruction> {
    const MAP_LOOKUP: i32 = 1;
    const REDIRECT: i32 = 23;
    const XDP_STORE_BYTES: i32 = 190;
    const STACK: u8 = 10;
    /// Stack offset of the key.
    const KEY: i16 = -4;
    let number = |value: u32| value.cast_signed();
    let mut program = Assembler::new();
    // The verifier requires the check for a missing key. The program would end with 0 (XDP_ABORTED).
    let look_up = |program: &mut Assembler<&str>, map| {
        program.push(Instruction::map(1, map));
        program.push([Instruction::copy(2, STACK)]);
        program.apply(Operation::Add, 2, i32::from(KEY));
        program.push([Instruction::call(MAP_LOOKUP)]);
        program.jump_if(0, Test::Equal, 0, "end");
    };
    program.push([Instruction::copy(6, 1), Instruction::set(1, 0)]);
    program.store(Width::Word, STACK, 1, KEY);
    look_up(&mut program, next);
    program.load(Width::Word, 7, 0, 0);
    program.push([Instruction::copy(2, 7)]);
    program.apply(Operation::Add, 2, 1);
    program.apply(Operation::Modulo, 2, number(count));
    program.store(Width::Word, 0, 2, 0);
    program.store(Width::Word, STACK, 7, KEY);
    look_up(&mut program, contents);
    program.push([Instruction::copy(1, 6), Instruction::set(2, 0), Instruction::copy(3, 0)]);
    program.push([Instruction::set(4, number(len)), Instruction::call(XDP_STORE_BYTES)]);
    program.push([Instruction::set(1, number(interface)), Instruction::set(2, 0), Instruction::call(REDIRECT)]);
    program.place("end");
    program.push([Instruction::exit()]);
    program.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_is_not_there_is_an_error_that_names_it() {
        let error = Generator::new("absent0", &[vec![0; 60]]).unwrap_err();
        assert!(matches!(error, XskError::NoInterface { interface } if interface == "absent0"));
    }
}
