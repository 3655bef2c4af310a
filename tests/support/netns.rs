//! Network namespaces for the tests that need root: made by the test, gone with it.
//!
//! ```text
//!   [ pod a: eth0 ] --veth-- [ node: a ... b ] --veth-- [ pod b: eth0 ]      one namespace each
//! ```
//!
//! **Invariant.** Every name has the process's id and a counter in it, so that tests run side by side and nothing that belongs to
//! somebody else is touched. What was started is stopped by its process id. Everything goes away in `Drop`, after a failed
//! assertion too.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Why the tests of this file cannot run here, none when they can.
pub fn obstacle(programs: &[&str]) -> Option<String> {
    if std::env::var("BULKHEAD_E2E").is_ok_and(|value| value == "skip") {
        return Some("`cargo xtask e2e` runs this (BULKHEAD_E2E=skip)".to_owned());
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or_default().trim();
    let capabilities = u64::from_str_radix(effective, 16).unwrap_or_default();
    // CAP_NET_ADMIN and CAP_SYS_ADMIN: interfaces and namespaces.
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

/// Ends the test early where it cannot run: not root, or one of the named programs is missing. Where it must run
/// (`BULKHEAD_E2E=require`, as in CI) that is a failure.
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

/// The first two cores that this process may run on, none (with a printed reason) where it has fewer: a container or
/// `taskset` gives any set.
pub fn two_cores() -> Option<[usize; 2]> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    // `0-3,8,10-11`
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

/// How long flows run, in seconds: short, unless `BULKHEAD_E2E_SECONDS` says otherwise.
pub fn seconds() -> u32 {
    std::env::var("BULKHEAD_E2E_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3)
}

/// Tries again until it holds. Fails with the message after ten seconds, which is for a machine that is busy: what is
/// waited for takes milliseconds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs a command of this machine and fails with what it said when it fails.
pub fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {errors}", args.join(" "));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// `ip` with the words of a line.
pub fn ip(line: &str) -> String {
    run("ip", &line.split_whitespace().collect::<Vec<_>>())
}

/// A network namespace.
#[derive(Debug)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// Makes one with its loopback up. `what` is a part of its name, for whoever looks while a test runs.
    pub fn new(what: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("bh{}-{number}-{what}", std::process::id());
        ip(&format!("netns add {name}"));
        let netns = Self { name };
        netns.ip("link set lo up");
        // Nothing but what the test sends: no address autoconfiguration, no duplicate address detection.
        for family in ["all", "default"] {
            netns.sysctl(&format!("net.ipv6.conf.{family}.accept_dad"), "0");
            netns.sysctl(&format!("net.ipv6.conf.{family}.accept_ra"), "0");
        }
        netns
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// `ip` inside.
    pub fn ip(&self, line: &str) -> String {
        ip(&format!("-n {} {line}", self.name))
    }

    pub fn sysctl(&self, name: &str, value: &str) {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        self.shell(&format!("echo {value} > {path}"));
    }

    /// A command that runs inside.
    pub fn command<S: AsRef<OsStr>>(&self, program: impl AsRef<OsStr>, args: &[S]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program).args(args);
        command.stdin(Stdio::null());
        command
    }

    /// Runs a program inside, whatever becomes of it. It is ended after a minute: a test that hangs says nothing.
    pub fn output(&self, line: &str) -> Output {
        let words: Vec<&str> = ["-k", "1", "60"].into_iter().chain(line.split_whitespace()).collect();
        self.command("timeout", &words).output().unwrap()
    }

    /// Runs a program inside, which must succeed. Returns what it printed.
    pub fn exec(&self, line: &str) -> String {
        let output = self.output(line);
        let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "in {}: {line}\n{text}{errors}", self.name);
        text.into_owned()
    }

    /// Runs a line of shell inside, which must succeed.
    pub fn shell(&self, line: &str) -> String {
        let output = self.command("timeout", &["-k", "1", "60", "sh", "-c", line]).output().unwrap();
        let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "in {}: {line}\n{text}{errors}", self.name);
        text.into_owned()
    }

    /// Starts a program inside that runs until it is dropped.
    pub fn spawn(&self, line: &str) -> Running {
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut command = self.command(words[0], &words[1..]);
        Running::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
    }

    /// Starts a server inside and waits until it listens on the TCP port.
    pub fn serve(&self, line: &str, port: u16) -> Running {
        let server = self.spawn(line);
        eventually(&format!("{line} listens on {port}"), || self.exec("ss -Htln").contains(&format!(":{port} ")));
        server
    }

    /// A number of the statistics in /proc/net/dev of one of its interfaces: 1 are received packets, 9 sent ones.
    pub fn statistic(&self, interface: &str, column: usize) -> u64 {
        let table = self.exec("cat /proc/net/dev");
        let line = table.lines().find_map(|line| line.trim().strip_prefix(&format!("{interface}:"))).unwrap();
        line.split_whitespace().nth(column).unwrap().parse().unwrap()
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        // Also removes its interfaces, and with them the other ends of its veths.
        let _ = Command::new("ip").args(["netns", "del", &self.name]).output();
    }
}

/// A program that runs until this is dropped.
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

    /// Whether it waits for something to do.
    pub fn sleeps(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap();
        // The state follows the name, which is in parentheses and may have any character in it.
        stat.rsplit_once(')').unwrap().1.trim_start().starts_with('S')
    }

    /// The next line that it prints, without anything behind it.
    pub fn line(&mut self) -> String {
        let output = self.child.as_mut().unwrap().stdout.as_mut().unwrap();
        let (mut bytes, mut byte) = (Vec::new(), [0]);
        while output.read(&mut byte).unwrap() > 0 && byte != *b"\n" {
            bytes.extend(byte);
        }
        String::from_utf8(bytes).unwrap()
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.child.as_mut().unwrap().try_wait().unwrap().is_some()
    }

    /// Waits until it ends by itself. Returns what it printed.
    pub fn wait(mut self) -> Output {
        self.child.take().unwrap().wait_with_output().unwrap()
    }

    /// As Ctrl-C: programs that measure then say what they have measured.
    pub fn interrupt(self) -> Output {
        self.signal("INT");
        self.wait()
    }

    /// Asks it to end, waits, and answers what it printed.
    pub fn stop(self) -> Output {
        self.signal("TERM");
        self.wait()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A Python program that is talked to by lines, until this is dropped.
#[derive(Debug)]
pub struct Dialogue(Child, ChildStdin, BufReader<ChildStdout>);

impl Dialogue {
    pub fn start(netns: &Netns, program: &str, argument: &str) -> Self {
        let mut command = netns.command("python3", &["-c", program, argument]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self(child, input, output)
    }

    /// The next line that it says, empty when it has ended.
    pub fn hear(&mut self) -> String {
        let mut line = String::new();
        self.2.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Says a line to it. Returns its next one.
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
