//! Writes standard output and standard error from separate threads.
//!
//! A pipe that is not read blocks its writer, and the threads of a vswitch must keep enforcing changes and handling signals. The
//! alternative was non-blocking descriptors: that setting belongs to the open file, which the shell and other programs share.
//!
//! ```text
//!   put --bounded queue--> thread --write--> standard output
//!    '--full: counted, reported when the queue has room
//! ```
//!
//! **Invariant.** [`Outlet::put`] never waits. Texts are written whole and in the order of the calls.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

/// How long the end of the process waits for a slow reader.
pub(super) const LAST_WAIT: Duration = Duration::from_secs(1);

/// What an outlet reports about texts that it could not write.
pub(super) struct Faults {
    /// Returns the message about this number of missed texts.
    pub(super) missed: fn(u64) -> String,
    /// Called if writing fails.
    pub(super) failed: fn(&io::Error),
}

enum Message {
    /// A text, and the number of missed texts before it.
    Text(String, u64),
    /// Requests an answer when all earlier texts are written.
    Flush(Sender<()>),
}

/// Standard output or standard error, with the queue and the thread that writes it.
pub(super) struct Outlet {
    queue: Sender<Message>,
    missed: Arc<AtomicU64>,
}

impl Outlet {
    /// Starts the thread. Its queue holds at most `waiting` texts.
    pub(super) fn start(name: &str, descriptor: io::Result<OwnedFd>, waiting: usize, faults: Faults) -> Self {
        let (queue, messages) = crossbeam_channel::bounded(waiting);
        let missed = Arc::new(AtomicU64::new(0));
        let told = Arc::clone(&missed);
        // Without a descriptor or a thread, the receiver is dropped and texts count as missed.
        if let Ok(descriptor) = descriptor {
            let mut out = File::from(descriptor);
            let write = move || write(&mut out, &messages, &told, &faults);
            drop(std::thread::Builder::new().name(name.into()).spawn(write));
        }
        Self { queue, missed }
    }

    /// Enqueues a text. If the queue is full, the text counts as missed.
    pub(super) fn put(&self, text: String) {
        let before = self.missed.swap(0, Ordering::Relaxed);
        if self.queue.try_send(Message::Text(text, before)).is_err() {
            self.missed.fetch_add(before + 1, Ordering::Relaxed);
        }
    }

    /// Waits until everything is written, for at most `limit`. Returns false if something is not written.
    pub(super) fn finish(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let (tell, done) = crossbeam_channel::bounded(1);
        self.queue.send_deadline(Message::Flush(tell), deadline).is_ok() && done.recv_deadline(deadline).is_ok()
    }
}

fn write(out: &mut impl Write, messages: &Receiver<Message>, missed: &AtomicU64, faults: &Faults) {
    let put = |out: &mut dyn Write, text: &str| {
        if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            (faults.failed)(&error);
        }
    };
    let tell = |out: &mut dyn Write, count: u64| {
        if count > 0 {
            put(out, &(faults.missed)(count));
        }
    };
    for message in messages {
        match message {
            Message::Text(text, before) => {
                tell(out, before);
                put(out, &text);
            }
            Message::Flush(done) => {
                tell(out, missed.swap(0, Ordering::Relaxed));
                // The caller may have given up.
                let _ = done.send(());
            }
        }
        // The next text may be hours away.
        if messages.is_empty() {
            tell(out, missed.swap(0, Ordering::Relaxed));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, pipe};

    use super::*;

    const FAULTS: Faults = Faults { missed: |count| format!("{count} missed\n"), failed: |_| {} };

    #[test]
    fn a_reader_that_does_not_read_makes_nobody_wait_and_is_told_what_it_missed() {
        let (reader, writer) = pipe().unwrap();
        let outlet = Outlet::start("test", Ok(writer.into()), 4, FAULTS);
        // Longer than a pipe's buffer, so that the thread blocks in the first.
        let long = "x".repeat(1 << 21);
        outlet.put(format!("0 {long}\n"));
        while !outlet.queue.is_empty() {
            std::thread::yield_now();
        }
        for number in 1..10 {
            outlet.put(format!("{number} {long}\n"));
        }
        assert!(!outlet.finish(Duration::ZERO));
        let mut lines = BufReader::new(reader).lines().map(|line| line.unwrap());
        let mut numbers = Vec::new();
        let missed = loop {
            let line = lines.next().unwrap();
            match line.strip_suffix(" missed") {
                Some(count) => break count.parse::<usize>().unwrap(),
                None => numbers.push(line.split(' ').next().unwrap().parse::<usize>().unwrap()),
            }
        };
        assert_eq!(numbers, (0..5).collect::<Vec<_>>(), "the thread took one, and four fit");
        assert_eq!(missed, 5);
        outlet.put("after\n".to_owned());
        assert_eq!(lines.next().unwrap(), "after");
        assert!(outlet.finish(Duration::from_secs(60)));
    }

    #[test]
    fn what_was_put_is_written_in_order_when_finish_says_so() {
        let (reader, writer) = pipe().unwrap();
        let outlet = Outlet::start("test", Ok(writer.into()), 1000, FAULTS);
        (0..500).for_each(|number| outlet.put(format!("{number}\n")));
        assert!(outlet.finish(Duration::from_secs(60)));
        drop(outlet);
        let numbers: Vec<usize> = BufReader::new(reader).lines().map(|line| line.unwrap().parse().unwrap()).collect();
        assert_eq!(numbers, (0..500).collect::<Vec<_>>());
    }
}
