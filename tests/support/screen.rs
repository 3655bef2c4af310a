//! A program on a terminal, by tmux.

use std::process::Command;
use std::time::Duration;

use super::netns::{eventually, run};

/// A tmux session by its name, which is also the name of its server's socket. Drop kills the session.
pub struct Screen(String);

impl Screen {
    /// Runs a shell's command line in a terminal of this width and height. `ended with` and its exit code follow its end.
    pub fn start(name: &str, (width, height): (u16, u16), command: &str) -> Self {
        let screen = Self(format!("bulkhead-{name}"));
        let command = format!("{command}; echo ended with $?; sleep 600");
        screen.tmux(&["new-session", "-d", "-x", &width.to_string(), "-y", &height.to_string(), &command]);
        screen
    }

    pub fn tmux(&self, words: &[&str]) -> String {
        let all = [&["-L", &self.0, "-f", "/dev/null"], words].concat();
        run("tmux", &all)
    }

    /// Returns the text on the terminal.
    pub fn shown(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Waits until the terminal shows a text.
    pub fn shows(&self, text: &str) {
        eventually(text, || {
            let shown = self.shown();
            if !shown.contains(text) {
                std::thread::sleep(Duration::from_millis(100));
            }
            shown.contains(text)
        });
    }

    pub fn press(&self, keys: &str) {
        self.tmux(&["send-keys", keys]);
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-L", &self.0, "kill-server"]).output();
    }
}
