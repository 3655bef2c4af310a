//! Messages from the other threads to the thread that runs the vswitch.

use crossbeam_channel::Sender;

/// A message of another thread to the main thread ([`Daemon`](crate::daemon::Daemon)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The interfaces thread has tried every configured port once. `open` of `all` ports are open.
    Settled { open: usize, all: usize },
    /// The interfaces thread has published other ports, or retries that.
    Ports,
    /// The policy thread has published another policy, or retries that.
    Policy,
    /// The policy thread has published other Services with the same policy.
    Services,
    /// A client of the admin socket requests to read the files now.
    Look,
    /// The main thread ends the process if a thread has died, which is a bug. The text is the thread's name with its verb, such as "the
    /// policy thread has".
    Died(&'static str),
}

/// Reports the end of a thread that must not end: the thread owns this value, and dropping it sends [`Notice::Died`].
pub(crate) struct Obituary {
    /// As in [`Notice::Died`].
    pub(crate) who: &'static str,
    pub(crate) notices: Sender<Notice>,
}

impl Drop for Obituary {
    fn drop(&mut self) {
        // At shutdown, nobody receives notices any more.
        let _ = self.notices.send(Notice::Died(self.who));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_panics_is_reported_by_its_name() {
        let (notices, told) = crossbeam_channel::unbounded();
        let obituary = Obituary { who: "the policy thread has", notices };
        let thread = std::thread::spawn(move || {
            let _obituary = obituary;
            panic!("the test's panic");
        });
        assert_eq!(told.recv(), Ok(Notice::Died("the policy thread has")));
        assert!(thread.join().is_err());
    }
}
