//! The terminal of `bulkhead top`.
//!
//! ```text
//!   terminal --bytes, hang-up--.
//!   signals: size, end --------+--poll--> this thread --draws--> terminal
//!   sampling thread: sample ---'
//! ```
//!
//! One thread polls all three sources without a timeout and is the only one that draws. If the terminal is closed, `poll` reports a
//! hang-up, the input ends, or a write fails; each ends the program. The terminal's settings are restored at the end, and after an error,
//! signal or panic.

use std::io::{self, ErrorKind, Read, Write, stdin, stdout};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::{Mutex, Once, PoisonError};
use std::time::Instant;

use anyhow::Context;
use crossbeam_channel::Receiver;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};

use super::choices::{Choices, Effect};
use super::keys::keys;
use super::paint::{ENTER, LEAVE, Painter};
use super::picture::{Picture, Tracker};
use super::sample::Sample;
use super::view::{self, Scene};
use crate::args;
use bulkhead_answers::output::{printable, told};

/// Size of a terminal that does not report one, such as a serial console, in columns and rows.
const USUAL: (u16, u16) = (80, 24);

/// The terminal's original settings. `None` while they are in effect.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Shows the screen until the user quits or the terminal is closed.
///
/// # Errors
/// If the terminal cannot be used.
pub(super) fn run(args: &args::Top, first: Sample, choices: Choices) -> anyhow::Result<ExitCode> {
    let waits = Sources::new()?;
    let samples = sample_on(args, waits.sampled()?);
    let _ours =
        Ours::take().context("cannot use this terminal for a screen\n  help: `bulkhead top | cat` prints text")?;
    // no-color.org
    let has_colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let painter = Painter::new(size(), has_colours);
    let mut tracker = Tracker::default();
    let picture = tracker.next(first);
    let mut screen = Screen { painter, tracker, picture, choices, away: None, args };
    match screen.show(&waits, &samples) {
        Err(error) if is_gone(&error) => Ok(ExitCode::SUCCESS),
        shown => shown.map(|()| ExitCode::SUCCESS).context("cannot draw the screen"),
    }
}

/// File descriptors to poll.
struct Sources {
    /// Receives a byte per sample, and the end that the sampling thread writes to.
    sampled: UnixStream,
    tell_sampled: UnixStream,
    /// Receives a byte when the terminal's size changes.
    resized: UnixStream,
    /// Receives a byte on a terminating signal.
    ended: UnixStream,
}

impl Sources {
    fn new() -> io::Result<Self> {
        let pair = || -> io::Result<(UnixStream, UnixStream)> {
            let (ours, theirs) = UnixStream::pair()?;
            ours.set_nonblocking(true)?;
            // Writers do not block: one pending byte is enough.
            theirs.set_nonblocking(true)?;
            Ok((ours, theirs))
        };
        let ((sampled, tell_sampled), (resized, tell_resized), (ended, tell_ended)) = (pair()?, pair()?, pair()?);
        signal_hook::low_level::pipe::register(SIGWINCH, tell_resized)?;
        for signal in [SIGTERM, SIGHUP, SIGINT] {
            signal_hook::low_level::pipe::register(signal, tell_ended.try_clone()?)?;
        }
        Ok(Self { sampled, tell_sampled, resized, ended })
    }

    fn sampled(&self) -> io::Result<UnixStream> {
        self.tell_sampled.try_clone()
    }
}

/// Queries the vswitch at each interval in a separate thread, which ends with the process. Errors read like those of `bulkhead status`.
fn sample_on(args: &args::Top, mut tell: UnixStream) -> Receiver<Result<Sample, String>> {
    // One pending sample is enough.
    let (send, samples) = crossbeam_channel::bounded(1);
    let (socket, interval) = (args.socket.clone(), args.delay);
    std::thread::spawn(move || {
        let mut next = Instant::now() + interval;
        loop {
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            // After a slow answer, do not catch up.
            next = (next + interval).max(Instant::now());
            let sample = Sample::take(&socket).map_err(|error| told(&error));
            if send.send(sample).is_err() {
                return;
            }
            // Fails if unread bytes are pending, which is equivalent.
            let _ = tell.write(&[0]);
        }
    });
    samples
}

struct Screen<'a> {
    painter: Painter,
    tracker: Tracker,
    /// The picture on the screen. Not updated while paused.
    picture: Picture,
    choices: Choices,
    away: Option<String>,
    args: &'a args::Top,
}

impl Screen<'_> {
    fn show(&mut self, sources: &Sources, samples: &Receiver<Result<Sample, String>>) -> io::Result<()> {
        let input = stdin();
        self.draw()?;
        loop {
            let woken = wait([input.as_fd(), sources.ended.as_fd(), sources.resized.as_fd(), sources.sampled.as_fd()])?;
            let [typed, ended, resized, sampled] = woken;
            let is_hung_up = typed.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
            if is_hung_up || !ended.is_empty() {
                return Ok(());
            }
            let mut effect = Effect::Nothing;
            if typed.contains(PollFlags::IN) {
                effect = self.read_keys(input.as_fd())?;
            }
            if effect == Effect::Quit {
                return Ok(());
            }
            if !resized.is_empty() {
                empty(&sources.resized)?;
                effect = Effect::Redraw;
            }
            if !sampled.is_empty() {
                empty(&sources.sampled)?;
                if self.take(samples) && effect == Effect::Nothing {
                    effect = Effect::Show;
                }
            }
            match effect {
                Effect::Redraw => {
                    self.painter.restart(size());
                    self.draw()?;
                }
                Effect::Show => self.draw()?,
                Effect::Nothing | Effect::Quit => {}
            }
        }
    }

    /// Handles pressed keys. The end of input quits.
    fn read_keys(&mut self, input: BorrowedFd<'_>) -> io::Result<Effect> {
        let mut bytes = [0; 1024];
        let length = match rustix::io::read(input, &mut bytes) {
            Ok(0) => return Ok(Effect::Quit),
            Ok(length) => length,
            Err(Errno::INTR | Errno::AGAIN) => return Ok(Effect::Nothing),
            Err(error) => return Err(error.into()),
        };
        let ports = self.choices.ports(&self.picture).len();
        let mut all = Effect::Nothing;
        for key in keys(&bytes[..length]) {
            match self.choices.press(key, ports) {
                Effect::Quit => return Ok(Effect::Quit),
                Effect::Nothing => {}
                Effect::Redraw => all = Effect::Redraw,
                Effect::Show if all == Effect::Nothing => all = Effect::Show,
                Effect::Show => {}
            }
        }
        Ok(all)
    }

    /// Takes new samples. Returns whether there is something new to show.
    fn take(&mut self, samples: &Receiver<Result<Sample, String>>) -> bool {
        let mut has_changed = false;
        for sample in samples.try_iter() {
            match sample {
                Ok(sample) => {
                    let picture = self.tracker.next(sample);
                    has_changed |= self.away.take().is_some();
                    if !self.choices.is_paused {
                        self.picture = picture;
                        has_changed = true;
                    }
                }
                Err(error) => {
                    // Only the first line: the screen has no room for the help.
                    self.away = Some(printable(error.lines().next().unwrap_or_default()));
                    has_changed = true;
                }
            }
        }
        has_changed
    }

    fn draw(&mut self) -> io::Result<()> {
        let scene = Scene {
            picture: &self.picture,
            choices: &self.choices,
            interval: self.args.delay,
            away: self.away.as_deref(),
        };
        let lines = view::draw(scene, self.painter.size());
        write(&self.painter.paint(lines))
    }
}

/// Polls the descriptors. Returns the events of each.
fn wait(sources: [BorrowedFd<'_>; 4]) -> io::Result<[PollFlags; 4]> {
    let mut asked = sources.map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN));
    loop {
        match poll(&mut asked, None) {
            Ok(_) => return Ok(asked.map(|source| source.revents())),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reads and discards the bytes that are pending in a socket.
fn empty(mut source: &UnixStream) -> io::Result<()> {
    let mut bytes = [0; 64];
    loop {
        match source.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns columns and rows of the terminal.
fn size() -> (u16, u16) {
    let size = tcgetwinsize(stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
    size.map_or(USUAL, |size| (size.ws_col, size.ws_row))
}

fn write(text: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Whether the error means that the terminal is closed.
fn is_gone(error: &io::Error) -> bool {
    let is_io = error.raw_os_error().map(Errno::from_raw_os_error) == Some(Errno::IO);
    is_io || matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

/// The terminal in screen mode. Dropping restores it.
struct Ours;

impl Ours {
    fn take() -> io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                // Restore first, or the message disappears with the screen.
                give_back();
                before(panic);
            }));
        });
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Now, &raw)?;
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        let ours = Self;
        write(ENTER)?;
        Ok(ours)
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        give_back();
    }
}

/// Restores the terminal once. Ignores errors, which mean that the terminal is closed.
fn give_back() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = before {
        let _ = write(LEAVE);
        let _ = tcsetattr(stdin(), OptionalActions::Now, &before);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::process::Command;

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    use super::*;

    /// Environment variable that makes the test's child process panic.
    const PANICS: &str = "BULKHEAD_TEST_PANICS";

    #[test]
    fn a_panic_gives_the_terminal_back_before_it_says_what_has_happened() {
        if std::env::var_os(PANICS).is_some() {
            // Never dropped, so that only the panic hook restores the terminal.
            std::mem::forget(Ours::take().unwrap());
            panic!("a test wants this");
        }
        let mut screen = File::from(openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap());
        grantpt(&screen).unwrap();
        unlockpt(&screen).unwrap();
        let path = ptsname(&screen, Vec::new()).unwrap().into_string().unwrap();
        let terminal = File::options().read(true).write(true).open(path).unwrap();
        let state = || format!("{:?}", tcgetattr(&terminal).unwrap());
        let before = state();
        let name = "top::terminal::tests::a_panic_gives_the_terminal_back_before_it_says_what_has_happened";
        let mut test = Command::new(std::env::current_exe().unwrap());
        test.args(["--exact", name, "--nocapture"]).env(PANICS, "1").env("RUST_BACKTRACE", "0");
        let streams = [(); 3].map(|()| terminal.try_clone().unwrap());
        let [input, output, error] = streams;
        let ended = test.stdin(input).stdout(output).stderr(error).status().unwrap();
        assert_eq!((ended.success(), state()), (false, before));
        // Pending output stays readable. Afterwards, reading a terminal that no process has open fails.
        drop((test, terminal));
        let mut written = Vec::new();
        let _ = screen.read_to_end(&mut written);
        let written = String::from_utf8_lossy(&written);
        let at = |text: &str| written.find(text).unwrap_or_else(|| panic!("no {text:?} in {written:?}"));
        let places = ["\u{1b}[?1049h", "\u{1b}[?1049l", "a test wants this"].map(at);
        assert!(places.is_sorted(), "{written:?}");
    }
}
