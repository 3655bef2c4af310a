//! Judges fragments: later fragments get the first one's verdict ([`crate::fragment`]).

use super::Worker;
use super::column::Burst;
use super::exit;
use crate::fragment::{DatagramKey, FirstFragment};
use crate::packet::{Fragment, Ip};
use crate::{DropReason, SessionState, Verdict};

impl Worker {
    /// Judges one fragment. Fragments are not judged in batches: they are rare, and later ones depend on the first.
    pub(super) fn judge_fragment(
        &mut self,
        burst: &mut Burst<'_>,
        at: usize,
        ip: &Ip,
        part: Fragment,
    ) -> Result<(), DropReason> {
        let generation = burst.snapshot.generation();
        let key = DatagramKey::of(ip, part, burst.in_port(at));
        if !part.is_first() {
            let first = self.fragments.inherit(&key, part, self.now.time)?;
            if first.generation != generation {
                return Err(DropReason::FragmentWithoutFirst);
            }
            if let Some(worker) = first.elsewhere {
                burst.hand_over(at, worker);
                return Ok(());
            }
            if let Verdict::Forward(out) = first.verdict {
                exit::check_hop_limit(burst.snapshot, ip.hop_limit, burst.in_port(at), out)?;
                burst.judged[at].session = Some(SessionState::Hit);
            }
            burst.judged[at].verdict = first.verdict;
            if let Some(rewritten) = first.translated {
                let translation = burst.add_translation(rewritten);
                burst.translate(at, translation);
            }
            burst.decisions.set(at, first.decision);
            burst.set_transport_ports(at, first.transport_ports);
            return Ok(());
        }
        let kind = burst.snapshot.port(burst.in_port(at)).ok_or(DropReason::UnknownPort)?.kind;
        self.fragments.begin(key, kind, part, self.now.time)?;
        let judged = self.judge_packet(burst, at, ip);
        self.settle_pending(burst);
        if let Err(reason) = judged {
            burst.drop(at, reason);
        }
        let transport_ports = (ip.flow.sport, ip.flow.dport);
        let (verdict, decision) = (burst.judged[at].verdict, burst.decisions.get(at));
        let translated = burst.rewritten(at);
        let elsewhere = burst.judged[at].elsewhere.map(|worker| usize::from(worker.get()) - 1);
        let first = FirstFragment { verdict, decision, generation, transport_ports, translated, elsewhere };
        self.fragments.settle(&key, first);
        Ok(())
    }
}
