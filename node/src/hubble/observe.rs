//! One client's `GetFlows` request: past flows, new flows, or both.

use std::sync::Arc;

use super::filter::Filters;
use bulkhead_observe::hubble::Timestamp;
use bulkhead_observe::hubble::flow::{Flow, LostEventSource};
use bulkhead_observe::hubble::observer::GetFlowsRequest;

/// An item of the stream to a `GetFlows` client.
#[derive(Clone, Debug)]
pub(crate) enum Observed {
    Flow(Arc<Flow>),
    /// The number of flows that the client missed, and where they were lost.
    Lost(LostEventSource, u64),
}

/// A client's `GetFlows` request, parsed: which past and new flows to send.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observe {
    filters: Filters,
    /// Maximum number of past flows; 0 for all.
    number: usize,
    /// Whether `number` selects the earliest past flows instead of the latest.
    first: bool,
    follow: bool,
    /// The earliest time of a flow, in nanoseconds since 1970. `None` for no bound.
    since: Option<u64>,
    /// The latest time of a flow, in nanoseconds since 1970. `None` for no bound.
    until: Option<u64>,
}

impl Observe {
    /// Parses a request.
    ///
    /// # Errors
    /// If a filter is invalid, or the request sets both `first` and `follow`.
    pub(super) fn new(request: &GetFlowsRequest) -> Result<Self, String> {
        if request.first && request.follow {
            return Err("first and follow exclude each other".to_owned());
        }
        Ok(Self {
            filters: Filters::new(request)?,
            number: usize::try_from(request.number).unwrap_or(usize::MAX),
            first: request.first,
            follow: request.follow,
            since: request.since.as_ref().map(Timestamp::nanoseconds),
            until: request.until.as_ref().map(Timestamp::nanoseconds),
        })
    }

    /// Whether the client wants new flows.
    pub(crate) const fn follows(&self) -> bool {
        self.follow
    }

    /// Whether the request ends before this time (nanoseconds since 1970).
    pub(crate) fn is_over_at(&self, time: u64) -> bool {
        self.until.is_some_and(|until| time > until)
    }

    /// Whether the time range and the filters select the flow.
    pub(crate) fn selects(&self, flow: &Flow) -> bool {
        let time = flow.time.unwrap_or_default().nanoseconds();
        self.since.is_none_or(|since| time >= since) && !self.is_over_at(time) && self.filters.select(flow)
    }

    /// Returns the requested flows out of `past`, which is in chronological order.
    ///
    /// As in Hubble, `number` takes the latest flows, or the earliest if `first` or `since` is set. With `follow` alone, no past flow is
    /// selected; with `follow` and `since`, all flows since that time.
    pub(crate) fn past(&self, past: impl DoubleEndedIterator<Item = Arc<Flow>>) -> Vec<Arc<Flow>> {
        if self.follow && self.number == 0 && self.since.is_none() {
            return Vec::new();
        }
        let selected = past.filter(|flow| self.selects(flow));
        if self.number == 0 || self.follow && self.since.is_some() {
            return selected.collect();
        }
        if self.first || self.since.is_some() {
            return selected.take(self.number).collect();
        }
        let mut latest: Vec<_> = selected.rev().take(self.number).collect();
        latest.reverse();
        latest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_observe::hubble::flow::FlowFilter;

    /// Flows at the seconds 1 to 9, of which the odd ones were dropped.
    fn past() -> impl DoubleEndedIterator<Item = Arc<Flow>> {
        (1..10).map(|second| {
            let time = Some(Timestamp { seconds: second, nanos: 0 });
            Arc::new(Flow { time, verdict: if second % 2 == 1 { 2 } else { 1 }, ..Flow::default() })
        })
    }

    fn seconds(request: &GetFlowsRequest) -> Vec<i64> {
        let flows = Observe::new(request).unwrap().past(past());
        flows.iter().map(|flow| flow.time.unwrap().seconds).collect()
    }

    #[test]
    fn numbers_and_times_choose_from_the_past_as_they_do_with_hubble() {
        let none = GetFlowsRequest::default();
        let at = |seconds| Some(Timestamp { seconds, nanos: 0 });
        let dropped = vec![FlowFilter { verdict: vec![2], ..FlowFilter::default() }];
        let with = |change: fn(&mut GetFlowsRequest)| {
            let mut request = none.clone();
            change(&mut request);
            request
        };
        assert_eq!(seconds(&none), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(seconds(&with(|request| request.number = 3)), [7, 8, 9]);
        assert_eq!(seconds(&with(|request| request.number = u64::MAX)).len(), 9);
        assert_eq!(seconds(&with(|request| (request.number, request.first) = (3, true))), [1, 2, 3]);
        assert_eq!(seconds(&with(|request| (request.number, request.follow) = (2, true))), [8, 9]);
        assert_eq!(seconds(&with(|request| request.follow = true)), [0; 0]);
        let request = GetFlowsRequest { since: at(4), until: at(6), ..none.clone() };
        assert_eq!(seconds(&request), [4, 5, 6]);
        assert_eq!(seconds(&GetFlowsRequest { number: 2, ..request.clone() }), [4, 5]);
        assert_eq!(seconds(&GetFlowsRequest { follow: true, until: None, ..request }), [4, 5, 6, 7, 8, 9]);
        // `number` counts only flows that the filters select.
        let request = GetFlowsRequest { number: 2, whitelist: dropped.clone(), ..none.clone() };
        assert_eq!(seconds(&request), [7, 9]);
        assert_eq!(seconds(&GetFlowsRequest { blacklist: dropped, ..none.clone() }), [2, 4, 6, 8]);
        let both = GetFlowsRequest { first: true, follow: true, ..none };
        assert!(Observe::new(&both).is_err());
    }

    #[test]
    fn it_ends_with_the_time_that_it_names() {
        let until = GetFlowsRequest {
            follow: true,
            until: Some(Timestamp { seconds: 5, nanos: 0 }),
            ..GetFlowsRequest::default()
        };
        let observe = Observe::new(&until).unwrap();
        assert!(!observe.is_over_at(5_000_000_000) && observe.is_over_at(5_000_000_001));
        assert!(!Observe::default().is_over_at(u64::MAX));
    }
}
