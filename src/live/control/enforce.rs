//! From what the control thread knows to what the workers enforce: one whole snapshot, or the one before and another try.

use std::time::{Duration, Instant};

use anyhow::Context;
use bulkhead_dataplane::PortId;

use super::Control;
use crate::live::config::Config;
use crate::live::log;
use crate::live::ports::Ports;
use crate::live::state::LiveState;
use crate::live::system::NewPort;
use crate::live::view::View;

/// How long after a change that could not be enforced it is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// A change that could not be enforced, and is tried again.
pub(super) struct Refused {
    /// What was wrong.
    pub(super) why: String,
    /// When it is tried again.
    pub(super) again: Instant,
    /// Whether it was one of the state.
    pub(super) state: bool,
}

impl Refused {
    /// Whether it is to be tried now.
    pub(super) fn is_due(&self) -> bool {
        Instant::now() >= self.again
    }

    /// Has it tried at the next opportunity.
    pub(super) fn hurry(&mut self) {
        self.again = Instant::now();
    }
}

impl Control {
    /// Puts into force what is so now. What cannot be is tried again: it may be for lack of memory, which passes.
    pub(super) fn enforce(&mut self, changed: bool, state: bool) {
        let before = self.refused.take();
        let state = state || before.as_ref().is_some_and(|refused| refused.state);
        match self.publish() {
            Ok(generation) if state && !self.state.is_denied() => {
                log::info(&format!("the new state is in force, generation {generation}"));
            }
            Ok(_) => {}
            Err(error) => {
                let why = format!("{error:#}");
                // The same again is no news.
                if changed || before.is_none_or(|refused| refused.why != why) {
                    log::error(&format!("the change cannot be enforced; what was in force stays\n{why}"));
                }
                self.refused = Some(Refused { why, again: Instant::now() + AGAIN, state });
            }
        }
    }

    /// Tells the workers what is so now; then ports that were opened become theirs. Answers the generation.
    fn publish(&mut self) -> anyhow::Result<u64> {
        let current = self.publisher.current();
        let generation = current.generation() + 1;
        let snapshot = view(&self.state, &self.ports, &self.config).snapshot(generation, &mut self.ids)?;
        let snapshot = snapshot.after(&current);
        // Before the workers: what they add by the old tables from now on is never used.
        if let Some(cache) = &self.flow_cache {
            cache.enter(&snapshot);
        }
        self.publisher.publish(snapshot)?;
        let mut said = Vec::new();
        for NewPort { name, queues, said: text } in self.opened.drain(..) {
            let id = self.ids.of(&name).and_then(|id| u16::try_from(id).ok());
            let id = PortId(id.with_context(|| format!("port {name} has no number, a fault of the program"))?);
            for (queue, port) in (0..).zip(queues) {
                self.vswitch.add_port(id, queue, Box::new(port));
            }
            said.push(text);
        }
        if !said.is_empty() {
            // What is said is true then: the second answer comes after a round in which the worker has given the port's
            // rings buffers to receive into.
            let _ = (self.vswitch.counters(), self.vswitch.counters());
        }
        said.iter().for_each(log::info);
        Ok(generation)
    }
}

/// What the snapshot of now is made of.
pub(super) fn view<'a>(state: &'a LiveState, ports: &'a Ports, config: &'a Config) -> View<'a> {
    View {
        tables: state.tables(),
        ports,
        routes: &config.routes,
        peers: state.peers(),
        refusing: state.pipeline().refusing_origins(config.denied),
        denied: state.is_denied(),
    }
}
