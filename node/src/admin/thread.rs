//! Handle of the thread that serves the admin socket and the HTTP endpoints.

use std::time::Duration;

use tokio::runtime;
use tokio::sync::oneshot;

/// A thread with a runtime of its own. Dropped, it ends.
pub(crate) struct Handle {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
    /// Another one, which ends with what the tasks have.
    other: Option<std::thread::JoinHandle<()>>,
}

impl Handle {
    /// Starts the tasks that `begin` spawns. What waits for others does so on `blocking` more threads, and at the end for `ending` at
    /// most.
    ///
    /// # Errors
    /// When the system refuses a thread.
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
                // An error is the end as well.
                let _ = stopped.await;
            });
            runtime.shutdown_timeout(ending);
        };
        let thread = std::thread::Builder::new().name("admin".into()).spawn(serve)?;
        Ok(Self { stop: Some(stop), thread: Some(thread), other: None })
    }
}

impl Handle {
    /// A thread that ends when the tasks have dropped what they have; it is waited for as well.
    pub(super) fn with(mut self, other: std::thread::JoinHandle<()>) -> Self {
        self.other = Some(other);
        self
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        drop(self.stop.take());
        for thread in [self.thread.take(), self.other.take()].into_iter().flatten() {
            // One that has panicked has said so.
            let _ = thread.join();
        }
    }
}
