//! Renews the lease of a valid flow.
//!
//! An added flow starts behind a latch, because a worker may still hold its packets. No worker holds packets of a valid flow, so a renewal
//! changes only the lease. Only the map shows whether the flow is still valid: an epoch may have ended it after the copy that requested
//! the renewal, and then a worker holds packets behind that copy.

use super::flow_layout::{FlowValue, action, part, put, value};
use crate::io::FlowHandshake;

/// The action bits for the start of forwarding, in which otherwise equal flows may differ.
const BEGINNING: u16 = action::HANDSHAKE | action::INITIATOR | action::BEGUN;

/// The action bits that a program sets. A forged FIN or reset sets them too, so a renewal clears them.
const RECORDED: u16 = action::ENDS;

/// Returns the map's flow `current` with the lease of `new`. `None` if the lease is over, or the flows differ in more than times and start.
///
/// A latch stays. A handshake must have ended, and the renewed flow no longer refers to it, because its number will be reused.
pub(super) fn renewed(
    current: &FlowValue,
    new: &FlowValue,
    now: u64,
    has_ended: impl FnOnce(FlowHandshake) -> bool,
) -> Option<FlowValue> {
    let [actions, new_actions] = [current, new].map(|flow| u16::from_ne_bytes(part(flow, value::ACTIONS)));
    let number = u16::from_ne_bytes(part(current, value::LATCH));
    if u64::from_ne_bytes(part(current, value::EXPIRES)) <= now || way(current) != way(new) {
        return None;
    }
    let begun = match actions & action::HANDSHAKE {
        0 => actions & BEGINNING,
        _ if has_ended(FlowHandshake(number)) => action::BEGUN,
        _ => return None,
    };
    let mut renewed = *new;
    put(&mut renewed, value::LATCH, &number.to_ne_bytes());
    put(&mut renewed, value::ACTIONS, &(new_actions & !BEGINNING | begun).to_ne_bytes());
    Some(renewed)
}

/// Returns the map's flow `current` with the epochs and the origin of `new`. `None` if the flows differ in more than these, times and start.
pub(super) fn confirmed(current: &FlowValue, new: &FlowValue) -> Option<FlowValue> {
    let ageless = |flow: &FlowValue| {
        let mut way = way(flow);
        [value::FROM_EPOCH, value::TO_EPOCH].into_iter().for_each(|at| put(&mut way, at, &[0; 8]));
        put(&mut way, value::ORIGIN, &[0; 2]);
        way
    };
    (ageless(current) == ageless(new)).then(|| {
        let mut confirmed = *current;
        for at in [value::FROM_EPOCH, value::TO_EPOCH] {
            put(&mut confirmed, at, &part::<8>(new, at));
        }
        put(&mut confirmed, value::ORIGIN, &part::<2>(new, value::ORIGIN));
        confirmed
    })
}

/// Returns a flow without its times and start, for comparison.
fn way(flow: &FlowValue) -> FlowValue {
    let mut way = *flow;
    put(&mut way, value::EXPIRES, &[0; 8]);
    put(&mut way, value::RENEW, &[0; 8]);
    put(&mut way, value::IDLE, &[0; 8]);
    put(&mut way, value::LATCH, &[0; 2]);
    let actions = u16::from_ne_bytes(part(flow, value::ACTIONS)) & !(BEGINNING | RECORDED);
    put(&mut way, value::ACTIONS, &actions.to_ne_bytes());
    way
}

#[cfg(test)]
mod tests {
    use super::super::flow_layout::place;
    use super::*;

    const NOW: u64 = 1_000;

    /// Returns a flow with these numbers and otherwise fixed values.
    fn flow(expires: u64, actions: u16, number: u16) -> FlowValue {
        let mut flow = [0; size_of::<FlowValue>()];
        put(&mut flow, value::FROM_EPOCH, &7_u64.to_ne_bytes());
        put(&mut flow, value::EXPIRES, &expires.to_ne_bytes());
        put(&mut flow, value::RENEW, &(expires / 2).to_ne_bytes());
        put(&mut flow, value::ACTIONS, &actions.to_ne_bytes());
        put(&mut flow, value::LATCH, &number.to_ne_bytes());
        flow
    }

    fn never(_: FlowHandshake) -> bool {
        panic!("a latch has no handshake")
    }

    #[test]
    fn a_flow_keeps_its_latch_and_gets_the_new_times() {
        let new = flow(9_000, action::HOP, 66);
        let renewed = renewed(&flow(2_000, action::HOP, 5), &new, NOW, never);
        assert_eq!(renewed, Some(flow(9_000, action::HOP, 5)));
    }

    #[test]
    fn a_handshake_that_has_ended_is_needed_no_more_and_another_one_is_waited_for() {
        let opening = flow(2_000, action::HOP | action::HANDSHAKE | action::INITIATOR, 5);
        let new = flow(9_000, action::HOP, 66);
        assert_eq!(renewed(&opening, &new, NOW, |number| number != FlowHandshake(5)), None);
        let begun = renewed(&opening, &new, NOW, |number| number == FlowHandshake(5));
        assert_eq!(begun, Some(flow(9_000, action::HOP | action::BEGUN, 5)));
        // And again.
        let again = renewed(&begun.unwrap(), &flow(19_000, action::HOP, 67), NOW, never);
        assert_eq!(again, Some(flow(19_000, action::HOP | action::BEGUN, 5)));
    }

    #[test]
    fn what_has_ended_or_goes_another_way_is_not_renewed() {
        let (current, new) = (flow(2_000, 0, 5), flow(9_000, 0, 66));
        assert!(renewed(&current, &new, NOW, never).is_some());
        assert_eq!(renewed(&current, &new, 2_000, never), None, "its time is up");
        assert_eq!(renewed(&flow(2_000, action::HOP, 5), &new, NOW, never), None, "one hop less");
        let at = [
            value::FROM_EPOCH,
            value::TO_EPOCH,
            value::OUT,
            value::ORIGIN,
            value::RECEIVED,
            value::SENT,
            value::LONGEST,
            value::TRANSLATION,
            value::PORTS,
        ];
        for at in at {
            let mut other = new;
            other[place(at.into())] ^= 1;
            assert_eq!(renewed(&current, &other, NOW, never), None, "a difference at byte {at}");
        }
    }
}
