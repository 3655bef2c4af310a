//! `bulkhead top` with real programs, on a terminal and without one.

use std::net::{TcpStream, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::lab::lasting::{PATIENCE, answers, connect, echo, inside};
use crate::lab::netns::eventually;
use crate::lab::screen::Screen;
use crate::lab::{Lab, policy};
use crate::require;
use serde_json::Value;

/// A lab with two pods.
fn lab() -> Lab {
    let mut lab = Lab::new();
    lab.pod("a", "{app: a}");
    lab.pod("b", "{app: b}");
    lab.more_config.push_str("admin: {socket: admin.sock}\n");
    lab
}

fn only_redis() -> String {
    policy(
        "only-redis",
        "{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress], \
         ingress: [{from: [{podSelector: {matchLabels: {app: a}}}], ports: [{port: 6379}]}]}",
    )
}

/// A lab with a running vswitch and one connection that policy allows.
fn lab_with_a_session() -> (Lab, TcpStream) {
    let mut lab = lab();
    lab.start(&only_redis());
    echo(lab.get("b"), 6379);
    let mut client = connect(lab.get("a"), lab.get("b"), 6379, PATIENCE).unwrap();
    assert!(answers(&mut client));
    (lab, client)
}

/// Sends some hundred denied datagrams per second until it is dropped.
struct Denied(Arc<AtomicBool>);

impl Denied {
    fn start(lab: &Lab) -> Self {
        let (from, to) = (lab.get("a"), lab.get("b").v4.clone());
        let socket = inside(from, || UdpSocket::bind((from.v4.as_str(), 0)).unwrap());
        let goes_on = Arc::new(AtomicBool::new(true));
        let flag = Arc::clone(&goes_on);
        std::thread::spawn(move || {
            while flag.load(Ordering::Relaxed) {
                let _ = socket.send_to(b"x", (to.as_str(), 1000));
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        Self(goes_on)
    }
}

impl Drop for Denied {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Runs `top` in a terminal of 100 columns and 30 lines.
fn top(lab: &Lab) -> Screen {
    let (program, socket) = (env!("CARGO_BIN_EXE_bulkhead"), lab.path("admin.sock"));
    Screen::start(lab.node.name(), (100, 30), &format!("{program} top --socket {} -d 0.3", socket.display()))
}

#[test]
fn a_screen_shows_what_is_dropped_and_who_denies_it_and_obeys_keys() {
    require!("tmux");
    let (mut lab, client) = lab_with_a_session();
    let denied = Denied::start(&lab);
    let screen = top(&lab);
    for text in [
        "node-1  ready",
        "policy_denied",
        "ingress isolated by default/only-redis",
        "default/a",
        "default/b",
        "of 500000",
    ] {
        screen.shows(text);
    }
    // `top` uses the words of `status` and of `policies`.
    let (_, status) = lab.ask(&["status"]);
    let (_, policies) = lab.ask(&["policies"]);
    assert!(status.contains("policy_denied") && policies.contains("ingress isolated by default/only-redis"));
    // The rate is 200 per second, or fewer on a busy machine.
    eventually("the drops have a rate", || {
        let shown = screen.shown();
        let line = shown.lines().find(|line| line.contains("policy_denied")).unwrap_or_default();
        line.split_whitespace()
            .nth(1)
            .and_then(|rate| rate.parse::<f64>().ok())
            .is_some_and(|rate| rate > 20.0 && rate < 500.0)
    });
    // Set the filter and clear it.
    screen.press("/");
    screen.press("default/b");
    screen.shows("ports with: default/b");
    eventually("only b", || !screen.shown().contains("default/a "));
    screen.press("Escape");
    screen.shows("default/a ");
    screen.press("?");
    screen.shows("Ctrl-L");
    screen.press("x");
    screen.shows("PORT");
    // Pausing freezes the screen.
    screen.press("Space");
    screen.shows("PAUSED");
    let held = screen.shown();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(screen.shown(), held);
    screen.press("Space");
    // Resize the terminal.
    screen.tmux(&["resize-window", "-x", "60", "-y", "16"]);
    eventually("it fits", || {
        let shown = screen.shown();
        let lines: Vec<&str> = shown.trim_end().lines().collect();
        lines.len() == 16
            && lines[0].trim_end().ends_with("0.3s")
            && lines[15].contains("quit")
            && shown.contains("PORT")
    });
    drop(denied);
    screen.press("q");
    screen.shows("ended with 0");
    assert!(!screen.shown().contains("PORT"), "the screen before is there again");
    drop(screen);
    drop(client);
    lab.stop();
}

#[test]
fn a_vswitch_that_goes_away_is_told_and_what_it_counts_anew_makes_no_leap() {
    require!("tmux");
    let mut lab = lab();
    lab.start(&only_redis());
    let denied = Denied::start(&lab);
    let screen = top(&lab);
    screen.shows("policy_denied");
    lab.kill();
    screen.shows("no answer, trying again: cannot reach a vswitch at");
    lab.start(&only_redis());
    eventually("it is back", || !screen.shown().contains("no answer"));
    // Every screen after the restart is checked: the rates must stay at some hundred packets per second.
    for _ in 0..15 {
        let shown = screen.shown();
        let totals: String =
            shown.lines().filter(|line| line.starts_with(" packets") || line.starts_with(" path")).collect();
        // A dash means that the rate is not known yet. A dash before a number would be a minus sign.
        let is_negative = totals
            .split_whitespace()
            .any(|word| word.starts_with('-') && word[1..].starts_with(|sign: char| sign.is_ascii_digit()));
        assert!(!is_negative && !totals.contains("M/s") && !totals.contains("G/s"), "{shown}");
        std::thread::sleep(Duration::from_millis(100));
    }
    screen.shows("policy_denied");
    screen.press("C-c");
    screen.shows("ended with 0");
    drop(denied);
    drop(screen);
    lab.stop();
}

/// Runs `top` on a terminal that is no process's controlling terminal, so that a hang-up sends no signal. The first argument is what
/// ends it. Prints the exit code, and whether `top` used raw mode, drew, restored the terminal, left its screen, and used under a second of CPU.
const PTY: &str = r#"
import os, pty, sys, time, termios, resource, signal, select
what, words = sys.argv[1], sys.argv[2:]
master, slave = pty.openpty()
before = termios.tcgetattr(slave)
child = os.fork()
if child == 0:
    os.setsid()
    os.close(master)
    for fd in (0, 1): os.dup2(slave, fd)
    os.execv(words[0], words)
written = b""
def read(seconds):
    global written
    end = time.time() + seconds
    while time.time() < end:
        if select.select([master], [], [], 0.05)[0]:
            try: written += os.read(master, 65536)
            except OSError: return
read(1.5)
raw = termios.tcgetattr(slave) != before
if what == "hang-up":
    os.close(slave)
    os.close(master)
else:
    os.kill(child, getattr(signal, what))
    read(1)
for _ in range(100):
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended: break
    time.sleep(0.05)
else:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print("it goes on")
    sys.exit(1)
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
restored = what == "hang-up" or termios.tcgetattr(slave) == before
left = what == "hang-up" or written.rstrip().endswith(b"\x1b[?1049l")
print(os.waitstatus_to_exitcode(status), raw, b"PORT" in written, restored, left, usage.ru_utime + usage.ru_stime < 1.0)
"#;

#[test]
fn a_terminal_that_hangs_up_ends_it_and_a_signal_leaves_the_terminal_as_it_was() {
    require!("python3");
    let mut lab = lab();
    lab.start(&only_redis());
    let socket = lab.path("admin.sock");
    for what in ["hang-up", "SIGTERM", "SIGHUP", "SIGINT"] {
        let words =
            ["-c", PTY, what, env!("CARGO_BIN_EXE_bulkhead"), "top", "-d", "0.2", "--socket", socket.to_str().unwrap()];
        let output = Command::new("python3").args(words).output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(told.trim(), "0 True True True True True", "{what}: {error}");
    }
    lab.stop();
}

#[test]
fn without_a_terminal_it_is_text_or_json_and_agrees_with_what_else_is_told() {
    require!("ping");
    let (mut lab, client) = lab_with_a_session();
    let denied = Denied::start(&lab);
    let (code, text) = lab.ask(&["top", "-n", "2", "-d", "0.5"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(!text.contains('\u{1b}'), "{text:?}");
    for part in ["node-1  ready", "policy_denied", "ingress isolated by default/only-redis", "default/a", "NS/PKT"] {
        assert_eq!(text.matches(part).count(), 2, "{part}: {text}");
    }
    let (code, text) = lab.ask(&["top", "-n", "3", "-d", "0.5", "-o", "json"]);
    assert_eq!(code, Some(0), "{text}");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 3);
    for line in &lines {
        let rate = &line["dropped"][0]["packets"];
        assert_eq!(line["dropped"][0]["reason"], "policy_denied");
        assert!(rate.as_f64().is_some_and(|rate| rate > 20.0 && rate < 500.0), "{line:#}");
        assert!(line["workers"][0]["busy"].as_f64().is_some_and(|busy| busy > 0.0 && busy < 1.0), "{line:#}");
        assert!(
            line["workers"][0]["ns_per_packet"].as_f64().is_some_and(|time| time > 100.0 && time < 1e8),
            "{line:#}"
        );
    }
    drop(denied);
    // All datagrams have arrived, and a new answer of the vswitch is due.
    std::thread::sleep(Duration::from_millis(300));
    let json = |words: &[&str]| -> Value { serde_json::from_str(&lab.ask(words).1).unwrap() };
    let (status, ports) = (json(&["status", "-o", "json"]), json(&["ports", "-o", "json"]));
    let port = |name: &str| ports.as_array().unwrap().iter().find(|port| port["name"] == name).unwrap();
    let (a, b) = (port("default/a"), port("default/b"));
    let reason =
        |name: &str| status["dropped"].as_array().unwrap().iter().find(|row| row["reason"] == name).cloned().unwrap();
    assert!(a["dropped"].as_u64() >= reason("policy_denied")["packets"].as_u64(), "{a:#} {status:#}");
    assert!(a["sessions_started"].as_u64() >= Some(1) && b["sessions_reached"] == a["sessions_started"], "{a:#} {b:#}");
    assert!(status["sessions"]["created"].as_u64() >= Some(1), "{status:#}");
    assert!(status["workers"][0]["busy_ns"].as_u64() > Some(0), "{status:#}");
    let (code, text) = lab.ask(&["top", "-n", "1", "-d", "0.2", "--port", "/b"]);
    assert!(code == Some(0) && text.contains("default/b") && !text.contains("default/a "), "{text}");
    drop(client);
    lab.stop();
}

#[test]
fn without_a_vswitch_it_says_where_it_has_looked() {
    let socket = std::env::temp_dir().join(format!("bulkhead-top-{}.sock", std::process::id()));
    let output = Command::new(env!("CARGO_BIN_EXE_bulkhead")).args(["top", "--socket"]).arg(&socket).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains(&*socket.to_string_lossy()) && error.contains("help: start the vswitch"), "{error}");
}
