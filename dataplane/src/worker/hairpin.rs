//! Judges a pod's connection to itself through a Service, after the Service chose the pod as the backend of its own connection.
//!
//! For questions. The pipeline judges packets itself, by the same [`exit`].

use super::claim::policy_key;
use super::exit::{self, Check};
use crate::{Decision, DropReason, Flow, Outcome, SessionState, Snapshot, Verdict};

impl Snapshot {
    /// Returns the outcome of the first packet of a connection from a pod to itself through a Service. `flow` is the connection after
    /// translation: both addresses are the pod's, and the destination port is the backend's. `None` if no port has the address.
    pub fn judge_hairpin(&self, flow: Flow) -> Option<Outcome> {
        let in_port = self.owner(flow.src)?;
        let of = |verdict: Verdict, decision| {
            let session = verdict.out_port().map(|_| SessionState::New);
            Outcome { in_port, verdict, decision, session, flow: Some(flow), ..Outcome::UNJUDGED }
        };
        let exit = match exit::find(self, in_port, (flow.src, flow.dst), true) {
            Ok(exit) => exit,
            Err(reason) => return Some(of(Verdict::Drop(reason), None)),
        };
        let forward = Verdict::Forward(exit.port);
        Some(match exit.check {
            Check::Hairpin(origin) => of(forward, Some(Decision { by: None, rule: None, origin: Some(origin) })),
            Check::Table(bound) => {
                let verdict = self.table(bound.table)?.lookup(&policy_key(&flow));
                let denied = Verdict::Drop(DropReason::PolicyDenied);
                of(if verdict.is_allow() { forward } else { denied }, Some(self.decision(bound.table, verdict)))
            }
        })
    }
}
