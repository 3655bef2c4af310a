//! The state for `dataplane: nftables`, which the node's kernel enforces.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_control::object::PodName;
use bulkhead_control::pipeline::RendererHandle;
use bulkhead_control::renderer::nftables::{Change, Epoch, NftRenderer};

use super::LiveState;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KernelState {
    /// The nftables renderer's revision for the last valid state.
    pub(super) revision: u64,
    /// Whether the renderer has a newer state that is not valid. It is withheld from the kernel.
    pub(super) is_held: bool,
}

impl LiveState {
    /// Returns the handle of the renderer of the nftables ruleset. `None` if the vswitch enforces policy.
    pub(crate) fn nft_renderer(&self) -> Option<RendererHandle<NftRenderer>> {
        self.pipeline.kernel()
    }

    /// Returns the revision of the nftables renderer's output. `None` if the vswitch enforces policy.
    pub(super) fn kernel_revision(&self) -> Option<u64> {
        Some(self.pipeline.renderer(self.pipeline.kernel()?).revision())
    }

    /// Returns the node's pods with their addresses.
    pub(crate) fn nft_pods(&self, handle: RendererHandle<NftRenderer>) -> impl Iterator<Item = (&PodName, &[IpAddr])> {
        self.pipeline.renderer(handle).pods()
    }

    /// Returns the change that makes the kernel enforce the present state at these interfaces. `None` if it already does.
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
        // If the kernel has lost the last valid ruleset, that state is no longer known: close all.
        renderer.set_closed(is_closed || is_held);
        renderer.set_interfaces(interfaces);
        self.pipeline.renderer(handle).change(epoch, self.pipeline.origins())
    }

    /// Records whether the kernel has loaded the last change. If not, the next change has the whole ruleset.
    pub(crate) fn nft_taken(&mut self, handle: RendererHandle<NftRenderer>, is_taken: bool) {
        let renderer = self.pipeline.renderer_mut(handle);
        if is_taken {
            renderer.take();
        } else {
            renderer.forget();
        }
    }

    /// Whether pod traffic is denied because no valid state is loaded.
    pub(crate) const fn is_denying(&self) -> bool {
        self.denied
    }
}
