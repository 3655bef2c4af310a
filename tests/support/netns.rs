//! Network namespaces for the tests that need root. Each test creates and removes its own.
//! ```text
//!   [ pod a: eth0 ] --veth-- [ node: a ... b ] --veth-- [ pod b: eth0 ]      one namespace each
//! ```
//!
//! **Invariant.** Every name contains the process id and a counter, so tests run in parallel and touch nothing else on the machine.
//! Programs are stopped by process id. `Drop` removes everything, also after a failed assertion.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Why end-to-end tests cannot run here: they are disabled, this is not root, or a program is missing. `None` if they can run.
pub fn obstacle(programs: &[&str]) -> Option<String> {
    if std::env::var("BULKHEAD_E2E").is_ok_and(|value| value == "skip") {
        return Some("`cargo xtask e2e` runs this (BULKHEAD_E2E=skip)".to_owned());
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or_default().trim();
    let capabilities = u64::from_str_radix(effective, 16).unwrap_or_default();
    // CAP_NET_ADMIN (12) for interfaces, CAP_SYS_ADMIN (21) for namespaces.
    if capabilities >> 12 & 1 == 0 || capabilities >> 21 & 1 == 0 {
        return Some("this needs root".to_owned());
    }
    let missing = ["ip", "ethtool"].iter().chain(programs).find(|program| find(program).is_none());
    missing.map(|program| format!("`{program}` is not installed"))
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let standard = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(standard).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Skips the test if it cannot run: this is not root, or one of the named programs is missing. With `BULKHEAD_E2E=require`, as in CI, fails
/// instead.
#[macro_export]
macro_rules! require {
    ($($program:expr),* $(,)?) => {
        if let Some(why) = $crate::lab::netns::obstacle(&[$($program),*]) {
            let must = std::env::var("BULKHEAD_E2E").is_ok_and(|value| value == "require");
            assert!(!must, "this test must run (BULKHEAD_E2E=require), but {why}");
            println!("skipped: {why}");
            return;
        }
    };
}

/// Returns the first two CPUs that this process may use; a container or `taskset` may allow any set. With fewer, prints a reason and
/// returns `None`.
pub fn two_cores() -> Option<[usize; 2]> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    let mut cores = list.trim().split(',').flat_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse::<usize>().unwrap()..=last.parse().unwrap()
    });
    match (cores.next(), cores.next()) {
        (Some(first), Some(second)) => Some([first, second]),
        _ => {
            println!("skipped: this needs two cores, and this process may run on {}", list.trim());
            None
        }
    }
}

/// How long measured flows run: `BULKHEAD_E2E_SECONDS`, or 3 seconds.
pub fn seconds() -> u32 {
    std::env::var("BULKHEAD_E2E_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3)
}

/// Polls until `holds` returns true. Panics with `what` after ten seconds: the conditions take milliseconds, but the machine may be busy.
pub fn eventually(what: &str, holds: impl FnMut() -> bool) {
    eventually_within(10, what, holds);
}

/// As [`eventually`], for conditions that take this many seconds.
pub fn eventually_within(seconds: u64, what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs a command on the host and returns its output. Panics with its error output if it fails.
pub fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {errors}", args.join(" "));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs `ip` with the words of a line. Panics if it fails.
pub fn ip(line: &str) -> String {
    run("ip", &line.split_whitespace().collect::<Vec<_>>())
}

/// A network namespace. Dropping it removes the namespace and its interfaces.
#[derive(Debug)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// Creates a namespace with its loopback up. `what` becomes part of the name, so that people can recognize it during a test.
    pub fn new(what: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("bh{}-{number}-{what}", std::process::id());
        ip(&format!("netns add {name}"));
        let netns = Self { name };
        netns.ip("link set lo up");
        // Only the test sends packets: no address autoconfiguration, no duplicate address detection.
        for family in ["all", "default"] {
            netns.sysctl(&format!("net.ipv6.conf.{family}.accept_dad"), "0");
            netns.sysctl(&format!("net.ipv6.conf.{family}.accept_ra"), "0");
        }
        netns
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `ip` in this namespace.
    pub fn ip(&self, line: &str) -> String {
        ip(&format!("-n {} {line}", self.name))
    }

    pub fn sysctl(&self, name: &str, value: &str) {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        self.shell(&format!("echo {value} > {path}"));
    }

    /// Returns a command that runs in this namespace, without standard input.
    pub fn command<S: AsRef<OsStr>>(&self, program: impl AsRef<OsStr>, args: &[S]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program).args(args);
        command.stdin(Stdio::null());
        command
    }

    /// Runs a program in this namespace and returns its output, even if it fails. Kills the program after a minute.
    pub fn output(&self, line: &str) -> Output {
        let words: Vec<&str> = ["-k", "1", "60"].into_iter().chain(line.split_whitespace()).collect();
        self.command("timeout", &words).output().unwrap()
    }

    /// Runs a program in this namespace and returns its standard output. Panics if it fails.
    pub fn exec(&self, line: &str) -> String {
        let output = self.output(line);
        let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "in {}: {line}\n{text}{errors}", self.name);
        text.into_owned()
    }

    /// Runs a shell command in this namespace and returns its standard output. Panics if it fails.
    pub fn shell(&self, line: &str) -> String {
        let output = self.command("timeout", &["-k", "1", "60", "sh", "-c", line]).output().unwrap();
        let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "in {}: {line}\n{text}{errors}", self.name);
        text.into_owned()
    }

    /// Starts a program in this namespace. Dropping the returned value ends it.
    pub fn spawn(&self, line: &str) -> Running {
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut command = self.command(words[0], &words[1..]);
        Running::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
    }

    /// Starts a server in this namespace and waits until it listens on this TCP port.
    pub fn serve(&self, line: &str, port: u16) -> Running {
        let server = self.spawn(line);
        eventually(&format!("{line} listens on {port}"), || self.exec("ss -Htln").contains(&format!(":{port} ")));
        server
    }

    /// Returns a counter of an interface in /proc/net/dev by column, from 0: 1 is received packets, 9 is sent packets.
    pub fn statistic(&self, interface: &str, column: usize) -> u64 {
        let table = self.exec("cat /proc/net/dev");
        let line = table.lines().find_map(|line| line.trim().strip_prefix(&format!("{interface}:"))).unwrap();
        line.split_whitespace().nth(column).unwrap().parse().unwrap()
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        // This also removes its interfaces, and thereby the other ends of its veths.
        let _ = Command::new("ip").args(["netns", "del", &self.name]).output();
    }
}

/// A running program. Dropping this value ends the program and the processes that it has started.
#[derive(Debug)]
pub struct Running {
    child: Option<Child>,
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        Self { child: Some(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"))) }
    }

    pub fn id(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub fn signal(&self, signal: &str) {
        run("kill", &["-s", signal, &self.id().to_string()]);
    }

    /// Whether the process sleeps, waiting for input.
    pub fn sleeps(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap();
        // The state follows the name, which is in parentheses and may contain any character.
        stat.rsplit_once(')').unwrap().1.trim_start().starts_with('S')
    }

    /// Reads the next line of its output, byte by byte, so that later output stays unread.
    pub fn line(&mut self) -> String {
        let output = self.child.as_mut().unwrap().stdout.as_mut().unwrap();
        let (mut bytes, mut byte) = (Vec::new(), [0]);
        while output.read(&mut byte).unwrap() > 0 && byte != *b"\n" {
            bytes.extend(byte);
        }
        String::from_utf8(bytes).unwrap()
    }

    /// Whether the program has exited.
    pub fn has_ended(&mut self) -> bool {
        self.child.as_mut().unwrap().try_wait().unwrap().is_some()
    }

    /// Waits until the program exits. Returns its output.
    pub fn wait(mut self) -> Output {
        self.child.take().unwrap().wait_with_output().unwrap()
    }

    /// Sends SIGINT as Ctrl-C does, on which measuring programs print their results. Waits and returns the output.
    pub fn interrupt(self) -> Output {
        self.signal("INT");
        self.wait()
    }

    /// Sends SIGTERM, waits, and returns the program's output.
    pub fn stop(self) -> Output {
        self.signal("TERM");
        self.wait()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // A server with a process for each connection leaves those behind. Absent if the program has ended.
            let id = child.id();
            let started = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
            let _ = child.kill();
            let _ = child.wait();
            if !started.is_empty() {
                // Fails if they ended with the program.
                let _ = Command::new("kill").arg("-KILL").args(started.split_whitespace()).output();
            }
        }
    }
}

/// A Python program that answers line by line. Dropping this value ends it.
#[derive(Debug)]
pub struct Dialogue(Child, ChildStdin, BufReader<ChildStdout>);

impl Dialogue {
    pub fn start(netns: &Netns, program: &str, argument: &str) -> Self {
        let mut command = netns.command("python3", &["-c", program, argument]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self(child, input, output)
    }

    /// Reads the program's next line. Empty if the program has ended.
    pub fn hear(&mut self) -> String {
        let mut line = String::new();
        self.2.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Sends a line to the program. Returns its next line.
    pub fn say(&mut self, line: &str) -> String {
        writeln!(self.1, "{line}").unwrap();
        self.hear()
    }
}

impl Drop for Dialogue {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
