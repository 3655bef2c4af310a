//! Measures a node with many pods: memory, the time to add a pod, idle CPU and a restart.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;

use super::node::{Node, Plan, Pod, SINK, Way, addresses};
use super::{Bench, PATIENCE};
use crate::policy::UDP_PORT;
use crate::table::{Goal, Line, digits, median, milliseconds};
use crate::testbed::proc::{field, resident, running_time};
use crate::testbed::traffic::{ASKS, UdpServer, server};

/// Time limit until all pods are forwarded. A program that opens ports one after another takes a minute for many.
const ALL_PATIENCE: Duration = Duration::from_secs(240);
/// Minimum of available memory in KiB. Below it, the benchmark ends the program before the machine runs out of memory.
const MEMORY_LEFT: u64 = 1 << 20;
/// Interval at which an unanswered pod sends again.
const RETRY: Duration = Duration::from_millis(10);
/// Time for `ip` to start and wait for commands.
const LOADED: Duration = Duration::from_millis(100);
/// Time limit for the program to replace filters by links in the background: up to half a second per pod.
const LINKS: Duration = Duration::from_secs(400);
/// Time without an answer after which a port counts as closed.
const CLOSED: Duration = Duration::from_millis(100);
/// Time limit for an answer. Several times what a forwarded packet takes, and far less than opening a port.
const ANSWER: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000 };
/// Time before memory and idle CPU are measured.
const SETTLE: Duration = Duration::from_secs(2);

pub(super) fn pods(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let rounds = usize::try_from(bench.rounds)?;
    let names = std::iter::once(SINK.to_owned()).chain((1..bench.pods).map(|number| format!("pod{number}")));
    let plan = Plan { pods: names.collect(), later: rounds, fixed_gateway: true, ..Plan::default() };
    let mut node = Node::without_program(&bench.program, plan)?;
    let echo = UdpServer::start(&node.pod(SINK).netns, UDP_PORT, None)?;

    let before = Memory::now()?;
    let started = launch_and_wait(&mut node)?;
    std::thread::sleep(SETTLE);
    let id = node.program()?.running()?.id();
    let idle_time = bench.time.max(Duration::from_secs(1)) * 3;
    let linking = idle_percent(id, idle_time)?;
    node.program()?.wait_for_links(LINKS);
    std::thread::sleep(SETTLE);
    let idle = idle_percent(id, idle_time)?;
    let (kernel, resident) = (Memory::now()?.since(before), resident(id)?);
    let opened: Vec<[f64; 2]> = (0..rounds).map(|number| open_one(&node, number)).collect::<anyhow::Result<_>>()?;
    let configured: Vec<f64> =
        (0..rounds).map(|number| configure_one(&mut node, number)).collect::<anyhow::Result<_>>()?;
    node.program()?.stop(ALL_PATIENCE)?;
    let restarted = launch_and_wait(&mut node)?;
    drop(echo);

    let count = bench.pods;
    #[expect(clippy::cast_precision_loss, reason = "mebibytes are shown with three digits")]
    let mebibytes = |kibibytes: i64| kibibytes as f64 / 1024.0;
    let memory = mebibytes(resident) + mebibytes(kernel.counted).max(0.0);
    let note = format!(
        "process {} and kernel {}; MemAvailable fell by {}",
        digits(mebibytes(resident)),
        digits(mebibytes(kernel.counted)),
        digits(mebibytes(kernel.gone))
    );
    let of = |at: usize| opened.iter().map(|times| times[at]).collect::<Vec<_>>();
    let reference = kernel_opens(bench)?;
    let opening = format!(
        "{} ms of it after `ip` had done its part; kernel routing {} and {}",
        digits(median(&of(1))),
        digits(median(&reference.iter().map(|times| times[0]).collect::<Vec<_>>())),
        digits(median(&reference.iter().map(|times| times[1]).collect::<Vec<_>>()))
    );
    let line = |what: &str, value, unit, goal| Line::value("pods", &format!("{count} pods: {what}"), value, unit, goal);
    Ok(vec![
        line("process and kernel memory", memory, "MiB", Goal::AtMost(300.0)).noted(&note),
        line("open one more", median(&of(0)), "ms", Goal::AtMost(5.0))
            .noted(&opening)
            .with("rounds", json!(of(0).into_iter().map(digits).collect::<Vec<_>>())),
        line("add one to the configuration file", median(&configured), "ms", Goal::AtMost(100.0))
            .with("rounds", json!(configured.iter().copied().map(digits).collect::<Vec<_>>())),
        line("idle CPU", idle, "% of a core", Goal::AtMost(0.2))
            .noted(&format!("{} while filters are replaced by links after the start", digits(linking))),
        line("restart until all forward new flows", restarted.as_secs_f64(), "s", Goal::AtMost(1.0))
            .noted(&format!("first start {} s", digits(started.as_secs_f64()))),
    ])
}

/// Starts the program and waits until a new flow of every pod is forwarded. Returns the duration.
fn launch_and_wait(node: &mut Node) -> anyhow::Result<Duration> {
    let mut waiting: Vec<UdpSocket> = node
        .present()
        .iter()
        .filter(|pod| pod.name != SINK)
        .map(|pod| probe(node, pod))
        .collect::<anyhow::Result<_>>()?;
    let started = Instant::now();
    node.launch()?;
    let mut answer = [0; 64];
    while !waiting.is_empty() {
        for socket in &waiting {
            // Errors are expected until the pod is forwarded.
            let _ = socket.send(&[ASKS; 18]);
        }
        std::thread::sleep(RETRY);
        waiting.retain(|socket| socket.recv(&mut answer).is_err());
        let left = memory("MemAvailable")?;
        let program = node.program()?;
        let ended = program.running()?.has_ended();
        if ended || left < MEMORY_LEFT || started.elapsed() > ALL_PATIENCE {
            let log = program.log_tail();
            program.kill();
            let why = if ended { "the vswitch ended" } else { "given up" };
            bail!(
                "{why} after {} s: {} pods are not forwarded, {} MiB of memory are left; the end of the log:\n{log}",
                started.elapsed().as_secs(),
                waiting.len(),
                left / 1024
            );
        }
    }
    Ok(started.elapsed())
}

/// Opens a socket for a new flow to the sink.
fn probe(node: &Node, pod: &Pod) -> anyhow::Result<UdpSocket> {
    let socket = pod.netns.inside(|| Ok(UdpSocket::bind("0.0.0.0:0")?))?;
    socket.connect(server(&node.pod(SINK).address, UDP_PORT)?)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Opens a pod's port. Returns two times in milliseconds: from the creation of the veth to the first packet's answer, and the part of it
/// after `ip` has ended.
fn open_one(node: &Node, number: usize) -> anyhow::Result<[f64; 2]> {
    let pod = &node.later()[number];
    let mut lines = vec![node.veth_from_inside(pod), format!("link set {} up", pod.interface)];
    if node.way() == Way::Policy {
        lines.extend(node.kernel_route(pod));
    }
    let inside = addresses(pod, true);
    let target = server(&node.pod(SINK).address, UDP_PORT)?;
    let socket = pod.netns.inside(|| Ok(UdpSocket::bind("0.0.0.0:0")?))?;
    socket.set_nonblocking(true)?;
    let [in_node, in_pod] = [node.netns.prepared_ip()?, pod.netns.prepared_ip()?];
    std::thread::sleep(LOADED);
    let started = Instant::now();
    in_node.run(&lines)?;
    in_pod.run(&inside)?;
    let done = started.elapsed();
    while !is_answered(&socket, target)? {
        ensure!(started.elapsed() < PATIENCE, "a new pod is not forwarded within {} s", PATIENCE.as_secs());
    }
    Ok([milliseconds(started.elapsed()), milliseconds(started.elapsed().saturating_sub(done))])
}

/// Removes a pod's port from the configuration file and adds it again. Returns the time from the second write until a packet is answered, in
/// milliseconds.
fn configure_one(node: &mut Node, number: usize) -> anyhow::Result<f64> {
    let target = server(&node.pod(SINK).address, UDP_PORT)?;
    let (name, socket) = {
        let pod = &node.later()[number];
        (pod.name.clone(), pod.netns.inside(|| Ok(UdpSocket::bind("0.0.0.0:0")?))?)
    };
    socket.set_nonblocking(true)?;
    let folder = node.program()?.folder();
    let with = std::fs::read_to_string(folder.path("config.yaml"))?;
    let is_others = |line: &&str| !line.contains(&format!("pod: x/{name},"));
    let without: String = with.lines().filter(is_others).map(|line| format!("{line}\n")).collect();
    folder.write("config.yaml", &without)?;
    let (started, mut answered) = (Instant::now(), Instant::now());
    while answered.elapsed() < CLOSED {
        if is_answered(&socket, target)? {
            answered = Instant::now();
        }
        ensure!(started.elapsed() < PATIENCE, "a removed port is still forwarded after {} s", PATIENCE.as_secs());
    }
    let started = Instant::now();
    folder.write("config.yaml", &with)?;
    while !is_answered(&socket, target)? {
        ensure!(started.elapsed() < PATIENCE, "a configured port is not forwarded within {} s", PATIENCE.as_secs());
    }
    Ok(milliseconds(started.elapsed()))
}

/// Sends a packet to the sink. Returns whether an answer arrives within [`ANSWER`].
fn is_answered(socket: &UdpSocket, target: SocketAddr) -> anyhow::Result<bool> {
    let _ = socket.send_to(&[ASKS; 18], target);
    // Not by the socket's own timeout, which the kernel rounds up to its ticks: 1 ms takes 8 ms with 250 of them a second.
    poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&ANSWER))?;
    match socket.recv(&mut [0; 64]) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error).context("cannot receive in a new pod"),
    }
}

/// Measures as [`open_one`] with the kernel as the router, which opens no port: the time that `ip` takes.
fn kernel_opens(bench: &Bench) -> anyhow::Result<Vec<[f64; 2]>> {
    let rounds = usize::try_from(bench.rounds)?;
    let node = bench.node(Way::Policy, Plan { later: rounds, fixed_gateway: true, ..Plan::pair() })?;
    let _echo = UdpServer::start(&node.pod(SINK).netns, UDP_PORT, None)?;
    (0..rounds).map(|number| open_one(&node, number)).collect()
}

/// The kernel's memory, in KiB.
#[derive(Clone, Copy, Debug)]
struct Memory {
    /// Memory that the kernel attributes to its own purposes, such as slab and page tables.
    counted: u64,
    available: u64,
}

/// A change of [`Memory`], in KiB. Other programs of the machine affect it, `gone` more than `counted`.
#[derive(Clone, Copy, Debug)]
struct Change {
    counted: i64,
    gone: i64,
}

impl Memory {
    fn now() -> anyhow::Result<Self> {
        let parts = ["Slab", "Percpu", "VmallocUsed", "KernelStack", "PageTables"];
        let counted = parts.iter().map(|name| memory(name)).sum::<anyhow::Result<u64>>()?;
        Ok(Self { counted, available: memory("MemAvailable")? })
    }

    fn since(self, before: Self) -> Change {
        let change = |now: u64, before: u64| now.cast_signed() - before.cast_signed();
        Change { counted: change(self.counted, before.counted), gone: change(before.available, self.available) }
    }
}

/// Reads a line of `/proc/meminfo`, in KiB.
fn memory(name: &str) -> anyhow::Result<u64> {
    field("/proc/meminfo", name)
}

/// Measures the CPU time of all threads of a process during `time`, in percent of a core.
fn idle_percent(id: u32, time: Duration) -> anyhow::Result<f64> {
    let (before, started) = (running_time(id)?, Instant::now());
    std::thread::sleep(time);
    let took = running_time(id)?.saturating_sub(before);
    Ok(took.as_secs_f64() / started.elapsed().as_secs_f64() * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_what_it_has() {
        assert!(Memory::now().unwrap().counted > 0 && memory("MemAvailable").unwrap() > 0);
        assert!(memory("NoSuchThing").is_err());
    }
}
