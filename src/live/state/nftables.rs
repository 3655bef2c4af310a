//! The state as the node's kernel enforces it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_control::object::PodName;
use bulkhead_control::pipeline::RendererHandle;
use bulkhead_control::renderer::nftables::{Change, Epoch, NftRenderer, Suspects};

use super::LiveState;

impl LiveState {
    /// Has the state rendered for the kernel as well.
    ///
    /// # Errors
    /// When a renderer does not take the present state.
    pub(in crate::live) fn render_for_nftables(
        &mut self,
        suspects: Suspects,
    ) -> anyhow::Result<RendererHandle<NftRenderer>> {
        let mut renderer = NftRenderer::of_node(self.node.clone());
        renderer.set_suspects(suspects);
        let handle = self.pipeline.register(renderer);
        self.pipeline.render_all()?;
        Ok(handle)
    }

    /// The node's pods with their addresses.
    pub(in crate::live) fn nft_pods(
        &self,
        handle: RendererHandle<NftRenderer>,
    ) -> impl Iterator<Item = (&PodName, &[IpAddr])> {
        self.pipeline.renderer(handle).pods()
    }

    /// What the kernel is to be told so that it enforces the present state at these interfaces; none when it does already.
    pub(in crate::live) fn nft_change(
        &mut self,
        handle: RendererHandle<NftRenderer>,
        interfaces: BTreeMap<Arc<str>, Option<PodName>>,
        epoch: Epoch,
    ) -> Option<Change> {
        let is_closed = self.denied;
        let renderer = self.pipeline.renderer_mut(handle);
        renderer.set_closed(is_closed);
        renderer.set_interfaces(interfaces);
        self.pipeline.renderer(handle).change(epoch, self.pipeline.origins())
    }

    /// Whether the kernel has taken what it was told last. If not, it is told everything the next time.
    pub(in crate::live) fn nft_taken(&mut self, handle: RendererHandle<NftRenderer>, is_taken: bool) {
        let renderer = self.pipeline.renderer_mut(handle);
        if is_taken {
            renderer.take();
        } else {
            renderer.forget();
        }
    }

    /// Whether nothing may pass for lack of a state.
    pub(in crate::live) const fn is_denying(&self) -> bool {
        self.denied
    }
}
