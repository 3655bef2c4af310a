//! Limits the connections of one listener.
//!
//! Each [`Stage`] has its own limit. A hundred pods that start at once hold a hundred connections in `Changing`, and still no other client
//! is rejected.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

/// The current activity of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// No request received yet.
    New,
    /// A request is being answered.
    Asking,
    /// A request about added ports is being answered. May wait for a pod.
    Changing,
    /// Receives a stream until the connection ends.
    Watching,
    /// The last request was answered.
    Answered,
}

/// Maximum number of connections in each stage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub new: usize,
    pub asking: usize,
    pub changing: usize,
    pub watching: usize,
    pub answered: usize,
}

impl Limits {
    const fn of(&self, stage: Stage) -> usize {
        match stage {
            Stage::New => self.new,
            Stage::Asking => self.asking,
            Stage::Changing => self.changing,
            Stage::Watching => self.watching,
            Stage::Answered => self.answered,
        }
    }
}

struct Connection {
    number: u64,
    stage: Stage,
    task: AbortHandle,
}

#[derive(Default)]
struct List {
    /// The connections, ordered by time in the current stage, longest first.
    connections: VecDeque<Connection>,
    next: u64,
}

/// Tracks the connections and enforces their limits.
#[derive(Clone)]
pub(crate) struct Connections {
    limits: Limits,
    list: Arc<Mutex<List>>,
}

/// A handle with which the task of one connection reports its stage.
pub(crate) struct Place {
    number: u64,
    connections: Connections,
}

impl Place {
    /// Moves the connection to this stage. Returns false if `Changing` or `Watching` is full. Other full stages end their oldest one.
    pub(crate) fn enter(&self, stage: Stage) -> bool {
        self.connections.enter(self.number, stage)
    }
}

impl Connections {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, list: Arc::default() }
    }

    /// Serves another connection. At the limit of `New`, ends the oldest connection without a request, so idle clients lock out no others.
    pub(crate) fn serve<F: Future<Output = ()> + Send + 'static>(&self, connection: impl FnOnce(Place) -> F) {
        let number = {
            let mut list = self.lock();
            list.connections.retain(|connection| !connection.task.is_finished());
            list.next += 1;
            list.next
        };
        let place = Place { number, connections: self.clone() };
        let task = tokio::spawn(connection(place)).abort_handle();
        let mut list = self.lock();
        list.make_room(Stage::New, self.limits.new);
        list.connections.push_back(Connection { number, stage: Stage::New, task });
    }

    fn enter(&self, number: u64, stage: Stage) -> bool {
        let mut list = self.lock();
        let Some(at) = list.connections.iter().position(|connection| connection.number == number) else { return true };
        if list.connections[at].stage == stage {
            return true;
        }
        let Some(connection) = list.connections.remove(at) else { return true };
        let limit = self.limits.of(stage);
        let waits = matches!(stage, Stage::Changing | Stage::Watching);
        let is_full = waits && list.count(stage) >= limit;
        let stage = if is_full { connection.stage } else { stage };
        if !is_full {
            list.make_room(stage, limit);
        }
        list.connections.push_back(Connection { stage, ..connection });
        !is_full
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl List {
    fn count(&self, stage: Stage) -> usize {
        self.connections.iter().filter(|connection| connection.stage == stage).count()
    }

    /// Aborts the oldest connections of a stage until another one fits.
    fn make_room(&mut self, stage: Stage, limit: usize) {
        while self.count(stage) >= limit.max(1) {
            let oldest = self.connections.iter().position(|connection| connection.stage == stage);
            let Some(oldest) = oldest.and_then(|at| self.connections.remove(at)) else { return };
            oldest.task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    /// Opens a connection that never ends by itself. Returns its place.
    async fn open(connections: &Connections) -> Place {
        let (tell, mut told) = mpsc::unbounded_channel();
        connections.serve(|place| async move {
            let _ = tell.send(place);
            std::future::pending::<()>().await;
        });
        told.recv().await.unwrap()
    }

    fn stages(connections: &Connections) -> Vec<(u64, Stage)> {
        connections.lock().connections.iter().map(|one| (one.number, one.stage)).collect()
    }

    #[tokio::test]
    async fn each_stage_has_room_of_its_own_and_the_oldest_of_a_full_one_ends() {
        let connections = Connections::new(Limits { new: 2, asking: 1, changing: 2, watching: 1, answered: 1 });
        let [first, second] = [open(&connections).await, open(&connections).await];
        assert!(first.enter(Stage::Changing) && second.enter(Stage::Changing));
        let third = open(&connections).await;
        assert!(!third.enter(Stage::Changing), "those that wait are not ended");
        assert!(third.enter(Stage::Asking));
        let fourth = open(&connections).await;
        assert!(fourth.enter(Stage::Asking));
        let all = [(1, Stage::Changing), (2, Stage::Changing), (4, Stage::Asking)];
        assert_eq!(stages(&connections), all, "the third one had to go");
        let [_, _, _] = [open(&connections).await, open(&connections).await, open(&connections).await];
        assert_eq!(stages(&connections)[3..], [(6, Stage::New), (7, Stage::New)]);
        // A connection that has its port frees its slot for another one, and sends further requests.
        assert!(first.enter(Stage::Answered) && second.enter(Stage::Answered));
        assert_eq!(stages(&connections).last(), Some(&(2, Stage::Answered)));
        assert!(!stages(&connections).contains(&(1, Stage::Answered)));
        assert!(second.enter(Stage::Changing) && fourth.enter(Stage::Answered));
        assert_eq!(stages(&connections)[2..], [(2, Stage::Changing), (4, Stage::Answered)]);
    }
}
