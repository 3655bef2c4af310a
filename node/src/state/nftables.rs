//! The state as the node's kernel enforces it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_control::object::PodName;
use bulkhead_control::pipeline::RendererHandle;
use bulkhead_control::renderer::nftables::{Change, Epoch, NftRenderer};

use super::LiveState;

/// What the kernel is to enforce.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KernelState {
    /// The number of what the renderer knew when it was in force last.
    pub(super) revision: u64,
    /// Whether the renderer knows more than what makes sense. Until the state does the kernel is not told of it.
    pub(super) is_held: bool,
}

impl LiveState {
    /// The renderer of the kernel's ruleset, where the kernel enforces.
    pub(crate) fn nft_renderer(&self) -> Option<RendererHandle<NftRenderer>> {
        self.pipeline.kernel()
    }

    /// The number of what the kernel's renderer knows; none where the vswitch enforces.
    pub(super) fn kernel_revision(&self) -> Option<u64> {
        Some(self.pipeline.renderer(self.pipeline.kernel()?).revision())
    }

    /// The node's pods with their addresses.
    pub(crate) fn nft_pods(&self, handle: RendererHandle<NftRenderer>) -> impl Iterator<Item = (&PodName, &[IpAddr])> {
        self.pipeline.renderer(handle).pods()
    }

    /// What the kernel is to be told so that it enforces the present state at these interfaces; none when it does already.
    pub(crate) fn nft_change(
        &mut self,
        handle: RendererHandle<NftRenderer>,
        interfaces: BTreeMap<Arc<str>, Option<PodName>>,
        epoch: Epoch,
    ) -> Option<Change> {
        let (is_closed, is_held) = (self.denied, self.kernel.is_held);
        let renderer = self.pipeline.renderer_mut(handle);
        if is_held && renderer.is_taken() {
            return None;
        }
        // What was in force last is gone from the kernel, and nobody knows it any more.
        renderer.set_closed(is_closed || is_held);
        renderer.set_interfaces(interfaces);
        self.pipeline.renderer(handle).change(epoch, self.pipeline.origins())
    }

    /// Whether the kernel has taken what it was told last. If not, it is told everything the next time.
    pub(crate) fn nft_taken(&mut self, handle: RendererHandle<NftRenderer>, is_taken: bool) {
        let renderer = self.pipeline.renderer_mut(handle);
        if is_taken {
            renderer.take();
        } else {
            renderer.forget();
        }
    }

    /// Whether nothing may pass for lack of a state.
    pub(crate) const fn is_denying(&self) -> bool {
        self.denied
    }
}
