//! `crate::sync` for the loom models: loom's types.

pub(crate) use loom::sync::Arc;
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

#[derive(Debug)]
pub(crate) struct Cell<T>(loom::sync::Mutex<Arc<T>>);

impl<T> Cell<T> {
    pub(crate) fn new(value: Arc<T>) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn load(&self) -> Arc<T> {
        Arc::clone(&self.0.lock().unwrap())
    }

    pub(crate) fn swap(&self, next: Arc<T>) -> Arc<T> {
        std::mem::replace(&mut self.0.lock().unwrap(), next)
    }
}
