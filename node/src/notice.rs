//! Messages from the other threads to the thread that runs the vswitch.

/// A message of another thread to the main thread ([`Daemon`](crate::daemon::Daemon)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The interfaces thread has tried every configured port once. `open` of `all` ports are open.
    Settled { open: usize, all: usize },
    /// The policy thread has published another policy, or retries that.
    Policy,
    /// The policy thread has published other Services with the same policy.
    Services,
    /// A client of the admin socket requests to read the files now.
    Look,
}
