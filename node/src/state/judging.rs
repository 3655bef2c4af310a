//! Selects where and by what packets are judged. With `engine: auto`, the state decides.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bulkhead_control::object::{Enforcement, IngressIsolation};
use bulkhead_control::pipeline::{Choice, Pipeline};
use bulkhead_control::processor::Scope;
use bulkhead_control::renderer::acl::EnforcedAt;
use bulkhead_control::renderer::nftables::Suspects;

use super::LiveState;
use crate::log;
use bulkhead_answers::run;

/// The place where packets are judged, and the component that judges them.
#[derive(Clone, Debug)]
pub(crate) enum Judging {
    /// By the vswitch at the port where packets leave (egress), with this engine's tables. The enforcement is for policies that set none.
    Destination(Choice, Enforcement),
    /// By the vswitch at the port where packets enter (ingress), with session rules.
    Source,
    /// By the node's kernel with nftables. The suspects are the interfaces that count as pods' although no port names them.
    Kernel(Suspects),
}

impl Default for Judging {
    fn default() -> Self {
        Self::Destination(Choice::default(), Enforcement::default())
    }
}

impl Judging {
    pub(super) fn pipeline(self, node: &Arc<str>, isolation: IngressIsolation) -> anyhow::Result<Pipeline> {
        Ok(match self {
            Self::Destination(choice, enforcement) => {
                let empty = Pipeline::with_default_isolation(Scope::Node(node.clone()), isolation);
                let mut pipeline = empty.auditing(enforcement);
                pipeline.choose(choice)?;
                pipeline
            }
            Self::Source => Pipeline::at_source(node.clone(), isolation),
            Self::Kernel(suspects) => Pipeline::in_the_kernel(node.clone(), isolation, suspects),
        })
    }
}

/// The renderer that judges packets now, and the place, for `bulkhead status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Judged {
    /// The renderer's name in the configuration's `renderers`.
    pub renderer: &'static str,
    /// The place where packets are judged: `destination`, `source` or `kernel`.
    pub place: &'static str,
    /// Whether the state has chosen the engine (`engine: auto`).
    pub is_automatic: bool,
}

impl Judged {
    pub(super) fn of(pipeline: &Pipeline) -> Self {
        let is_automatic = pipeline.choice() == Choice::Auto;
        if pipeline.kernel().is_some() {
            return Self { renderer: "nftables", place: "kernel", is_automatic: false };
        }
        if pipeline.session_table().is_some() {
            return Self { renderer: "session-rules", place: EnforcedAt::Source.name(), is_automatic: false };
        }
        Self { renderer: pipeline.engine().name(), place: EnforcedAt::Destination.name(), is_automatic }
    }
}

impl LiveState {
    /// Switches the engine and which policies are audited. Does nothing unless packets are judged at the destination. Returns whether
    /// anything in force changed.
    pub(crate) fn judge(&mut self, judging: &Judging) -> bool {
        let &Judging::Destination(choice, enforcement) = judging else { return false };
        self.changes.note_enforcement(enforcement);
        // Both apply, even if one fails.
        let enforced = self.pipeline.enforce(Some(enforcement));
        let judged = enforced.and(self.pipeline.choose(choice)).map_err(anyhow::Error::from);
        if self.counts.applied.load(Ordering::Relaxed) == 0 {
            self.tell_judging();
            return false;
        }
        let contests = self.pipeline.contests().len();
        match judged.and_then(|()| self.take_tables(contests)) {
            Ok(has_changed) => {
                // Rules that fit one engine may be too large for another.
                self.tell(&run::refusals(&self.pipeline).into_iter().collect(), log::warn);
                has_changed
            }
            Err(error) => {
                let name = self.pipeline.engine().name();
                log::error(&format!("cannot switch to engine {name}; the previous tables stay in force\n{error:#}"));
                false
            }
        }
    }

    /// Records which renderer judges packets, and where. With `engine: auto`, logs a change of the engine.
    pub(super) fn tell_judging(&self) {
        let now = Judged::of(&self.pipeline);
        let before = self.counts.judged(now);
        if now.is_automatic && before != now {
            let (engine, named) = (now.renderer, self.pipeline.most_named());
            log::info(&format!(
                "engine auto uses {engine}: the policies of this node's pods name at most {named} pods each"
            ));
        }
    }
}
