//! Handle of the thread that serves the admin socket and the HTTP endpoints.

use std::time::Duration;

use tokio::runtime;
use tokio::sync::oneshot;

/// A thread with its own async runtime. Dropping the handle stops the thread and waits for it.
pub(crate) struct Handle {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
    /// A second thread, which ends when the tasks drop their state.
    other: Option<std::thread::JoinHandle<()>>,
}

impl Handle {
    /// Starts the tasks that `begin` spawns. Blocking calls use up to `blocking` further threads, and may delay shutdown by `ending`.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn start(
        blocking: usize,
        ending: Duration,
        begin: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread().enable_all().max_blocking_threads(blocking).build()?;
        let (stop, stopped) = oneshot::channel();
        let serve = move || {
            runtime.block_on(async {
                begin();
                // A dropped sender also means stop.
                let _ = stopped.await;
            });
            runtime.shutdown_timeout(ending);
        };
        let thread = std::thread::Builder::new().name("admin".into()).spawn(serve)?;
        Ok(Self { stop: Some(stop), thread: Some(thread), other: None })
    }
}

impl Handle {
    /// Adds a thread to join at shutdown. It must end when the tasks drop their state.
    pub(super) fn with(mut self, other: std::thread::JoinHandle<()>) -> Self {
        self.other = Some(other);
        self
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        drop(self.stop.take());
        for thread in [self.thread.take(), self.other.take()].into_iter().flatten() {
            // A panicked thread has already logged its panic.
            let _ = thread.join();
        }
    }
}
