//! The renderers of a pipeline and the handles by which callers read them.

use std::any::Any;
use std::marker::PhantomData;

use super::Pipeline;
use crate::renderer::Renderer;

/// Identifies one renderer of a pipeline. Valid for the pipeline that returned it.
#[derive(Debug)]
pub struct RendererHandle<R> {
    at: usize,
    renderer: PhantomData<fn() -> R>,
}

impl<R> RendererHandle<R> {
    /// The handle of the renderer that every pipeline starts with.
    pub(super) const FIRST: Self = Self { at: 0, renderer: PhantomData };
}

impl<R> Clone for RendererHandle<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for RendererHandle<R> {}

impl Pipeline {
    /// Registers another renderer. The pipeline owns it and moves between threads with it. The renderer receives every transaction from the
    /// next one on; [`Pipeline::resync`] gives it the whole state.
    pub fn register<R: Renderer>(&mut self, renderer: R) -> RendererHandle<R> {
        self.renderers.push(Box::new(renderer));
        RendererHandle { at: self.renderers.len() - 1, renderer: PhantomData }
    }

    /// Returns a registered renderer.
    ///
    /// # Panics
    /// If another pipeline returned the handle.
    pub fn renderer<R: Renderer>(&self, handle: RendererHandle<R>) -> &R {
        let renderer: &dyn Any = &*self.renderers[handle.at];
        renderer.downcast_ref().expect("the handle is this pipeline's")
    }

    /// Returns a registered renderer for changes.
    ///
    /// # Panics
    /// If another pipeline returned the handle.
    pub fn renderer_mut<R: Renderer>(&mut self, handle: RendererHandle<R>) -> &mut R {
        let renderer: &mut dyn Any = &mut *self.renderers[handle.at];
        renderer.downcast_mut().expect("the handle is this pipeline's")
    }
}
