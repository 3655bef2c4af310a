//! Measures commands: runs the program on files, as users do.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::MEDIUM;
use super::support::{Shape, files};

/// Creates a folder for one line's files.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("goals-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The peak memory of all programs run so far, in kB, sampled every millisecond.
pub(super) static PEAK_OF_COMMAND: AtomicU64 = AtomicU64::new(0);

/// Runs the program. Returns its duration. Its exit code must be one of `codes`.
fn command(args: &[&str], codes: &[i32]) -> Duration {
    let started = (Instant::now(), children_ran());
    let mut child = Command::new(env!("CARGO_BIN_EXE_bulkhead"))
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let status = loop {
        let text = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let peak = text.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
        PEAK_OF_COMMAND.fetch_max(peak.unwrap_or(0), Ordering::Relaxed);
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(status.code().is_some_and(|code| codes.contains(&code)), "{args:?}: {status}");
    if env::var_os("BULKHEAD_NET").is_some() { children_ran() - started.1 } else { started.0.elapsed() }
}

/// CPU time of all child processes that have ended.
fn children_ran() -> Duration {
    // Source: proc_pid_stat(5): cutime and cstime are the 16th and 17th field, in hundredths of a second.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let behind_name = stat.rsplit_once(')').unwrap().1;
    let ticks = behind_name.split_whitespace().skip(13).take(2).map(|text| text.parse::<u64>().unwrap());
    Duration::from_millis(ticks.sum::<u64>() * 10)
}

/// Runs `diff` on two states in files. In `more`, `CAPTURE` is replaced by the path of a capture.
pub(super) fn diff(more: &[&str]) -> Vec<Duration> {
    let folder = folder("diff");
    let [old, new] = [("old", false), ("new", true)].map(|(name, is_changed)| {
        let folder = folder.join(name);
        files::write_state(&folder, MEDIUM, is_changed).unwrap();
        folder.display().to_string()
    });
    let capture = folder.join("in.pcap").display().to_string();
    if more.contains(&"CAPTURE") {
        files::write_capture(Path::new(&capture), MEDIUM, 1_000_000, false).unwrap();
    }
    let more = more.iter().map(|&word| if word == "CAPTURE" { &*capture } else { word });
    let args: Vec<&str> = ["diff", "--state", &old, "--against", &new].into_iter().chain(more).collect();
    let times = (0..3).map(|_| command(&args, &[1])).collect();
    std::fs::remove_dir_all(folder).unwrap();
    times
}

/// Runs `diff` on each bundled case and the next one.
pub(super) fn diff_bundled() -> Vec<Duration> {
    let pcaps = Path::new(env!("CARGO_MANIFEST_DIR")).join("pcaps");
    let folders = std::fs::read_dir(pcaps).unwrap().map(|entry| entry.unwrap().path().join("state.yaml"));
    let mut states: Vec<String> = folders.filter(|path| path.exists()).map(|path| path.display().to_string()).collect();
    states.sort_unstable();
    assert!(states.len() > 5);
    let pairs = states.windows(2).chain(states.windows(2)).chain(states.windows(2));
    pairs.map(|pair| command(&["diff", "--state", &pair[0], "--against", &pair[1]], &[0, 1])).collect()
}

pub(super) fn test_claims() -> Vec<Duration> {
    let folder = folder("test");
    let (state, claims) = (folder.join("state"), folder.join("claims.yaml"));
    files::write_state(&state, MEDIUM, false).unwrap();
    files::write_claims(&claims, MEDIUM, 100).unwrap();
    let [state, claims] = [state, claims].map(|path| path.display().to_string());
    let times = (0..3).map(|_| command(&["test", "--state", &state, &claims], &[1])).collect();
    std::fs::remove_dir_all(folder).unwrap();
    times
}

pub(super) fn learn(shape: Shape, is_scattered: bool) -> Vec<Duration> {
    let folder = folder("learn");
    let (state, capture) = (folder.join("state"), folder.join("in.pcap"));
    files::write_state(&state, Shape { policies: 0, ..shape }, false).unwrap();
    files::write_capture(&capture, shape, 1_000_000, is_scattered).unwrap();
    let [state, capture] = [state.join("cluster.yaml"), capture].map(|path| path.display().to_string());
    let times = (0..3).map(|_| command(&["learn", "--state", &state, &capture], &[0])).collect();
    std::fs::remove_dir_all(folder).unwrap();
    times
}
