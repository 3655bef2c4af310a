//! The progress bar of a command on a terminal.

use std::fs;

use crate::lab::screen::Screen;
use crate::require;
use crate::support::{root, scratch};

#[test]
fn a_bar_names_the_step_and_is_gone_before_the_answer() {
    require!("tmux");
    let ready = scratch("progress-ready", b"");
    fs::remove_file(&ready).unwrap();
    let (program, state) = (env!("CARGO_BIN_EXE_bulkhead"), root().join("pcaps/redis-policy/state.yaml"));
    let input = format!("(until [ -e {ready} ]; do sleep 0.1; done; cat {})", state.display());
    let command = format!("{input} | {program} reach --port 6379 --state -");
    let screen = Screen::start(&format!("progress-{}", std::process::id()), (100, 30), &command);
    screen.shows("reading standard input ");
    fs::write(&ready, b"").unwrap();
    screen.shows("ended with 0");
    let shown = screen.shown();
    assert!(shown.starts_with("TCP 6379 over IPv4") && !shown.contains("reading"), "{shown}");
}
