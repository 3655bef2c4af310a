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
    why: String,
    again: Instant,
    /// Whether it was one of the state.
    state: bool,
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
        let before = self.publisher.current().generation();
        let generation = before + 1;
        let snapshot = view(&self.state, &self.ports, &self.config).snapshot(generation, &mut self.ids)?;
        // Before the workers: what they add by the old tables from now on is never used.
        self.enter(generation);
        self.publisher.publish(snapshot).inspect_err(|_| self.enter(before))?;
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

    /// The flow cache knows flows of this generation only.
    fn enter(&self, generation: u64) {
        if let Some(cache) = &self.flow_cache {
            cache.enter(generation);
        }
    }
}

/// What the snapshot of now is made of.
pub(super) fn view<'a>(state: &'a LiveState, ports: &'a Ports, config: &'a Config) -> View<'a> {
    View { tables: state.tables(), ports, routes: &config.routes, peers: state.peers(), denied: state.is_denied() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Format, Run};
    use crate::live::config::RouteEntry;
    use crate::live::scratch::Scratch;
    use crate::live::signals::Requests;

    fn pod(name: &str, address: &str) -> String {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: x}}\nspec: {{nodeName: node-1}}\n\
             status: {{phase: Running, podIP: {address}, podIPs: [{{ip: {address}}}]}}\n"
        )
    }

    /// A control thread that has a worker, and no interface.
    fn control(folder: &Scratch) -> Control {
        let text = "node: node-1\nstate: {paths: [state.yaml]}\nports: []\n\
            workers: {frames: 4096}\nsessions: {capacity: 1000}\n";
        let config = folder.write("config.yaml", text);
        let args = Run { config, check: false, force: false, ready_file: None, capture: None, output: Format::Json };
        let requests = Requests::of(crossbeam_channel::never());
        Control::start(Config::read(&args.config).unwrap(), &args, requests).unwrap()
    }

    /// The generation in force, and whether it has this pod.
    fn in_force(control: &Control, pod: &str) -> (u64, bool) {
        let snapshot = control.publisher.current();
        (snapshot.generation(), snapshot.port_named(pod).is_some())
    }

    #[test]
    fn a_change_that_cannot_be_enforced_is_tried_again_and_takes_effect_when_it_can() {
        let folder = Scratch::new("enforce");
        folder.write("state.yaml", &pod("a", "10.1.0.1"));
        let mut control = control(&folder);
        assert_eq!(in_force(&control, "x/a"), (1, true));
        // A configuration with this is refused: what a user can write is not known to make a snapshot fail.
        let nowhere = RouteEntry { prefix: "10.9.0.0/16".parse().unwrap(), via: None, port: "nowhere".into() };
        control.config.routes.push(nowhere);
        folder.write("state.yaml", &(pod("a", "10.1.0.1") + &pod("b", "10.1.0.2")));
        // It is read when it looks the same twice.
        for _ in 0..2 {
            control.state.hurry();
            control.round();
        }
        assert_eq!(control.state.counters().applied, 2);
        let refused = control.refused.as_mut().unwrap();
        assert!(refused.state && refused.why.contains("10.9.0.0/16 leads to no port"), "{}", refused.why);
        assert_eq!(in_force(&control, "x/b"), (1, false), "what was in force stays");
        control.refused.as_mut().unwrap().hurry();
        control.round();
        assert!(control.refused.is_some());
        assert_eq!(in_force(&control, "x/b"), (1, false), "it was tried, and refused again");
        // What was in its way is gone, and nothing else changes.
        control.config.routes.clear();
        control.refused.as_mut().unwrap().hurry();
        control.round();
        assert_eq!(in_force(&control, "x/b"), (2, true));
        assert!(control.refused.is_none());
        control.round();
        assert_eq!(in_force(&control, "x/b"), (2, true), "once");
    }

    #[test]
    fn what_was_refused_is_tried_by_itself_after_a_while_and_at_once_when_asked() {
        let again = Instant::now() + Duration::from_secs(3600);
        let mut refused = Refused { why: String::new(), again, state: false };
        assert!(!refused.is_due());
        refused.hurry();
        assert!(refused.is_due());
    }
}
