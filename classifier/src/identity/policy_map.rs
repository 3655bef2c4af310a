//! Policy maps: what each identity may do with an endpoint.

use crate::engine::{Axis, Classed};
use crate::simd::{Scalar, Simd};
use crate::{Service, ServiceSet, Verdict};

/// The policy for one identity: disjoint sets of services, each with a verdict. Others get [`Verdict::NO_MATCH`], a deny without a rule.
pub type Row = Vec<(ServiceSet, Verdict)>;

/// The policy of one direction of an endpoint, for every identity.
#[derive(Clone, Debug)]
pub struct PolicyMap {
    /// Maps an identity to the index of its row.
    identities: Axis<u32>,
    /// For each row: maps a protocol and port to the code of the verdict.
    rows: Vec<Axis<u32>>,
}

impl PolicyMap {
    /// Creates a map from identities to at least one row. `identities`, ascending, lists the identities that do not use row 0.
    pub fn new(identities: &[(u32, usize)], rows: &[Row]) -> Self {
        let mut of = Classed { lasts: Vec::new(), class_of: Vec::new() };
        let mut push = |first: u32, row: u32| match of.class_of.last() {
            Some(&before) if before == row => {}
            Some(_) => {
                of.lasts.push(first - 1);
                of.class_of.push(row);
            }
            None => of.class_of.push(row),
        };
        push(0, 0);
        let mut identities = identities.iter().peekable();
        while let Some(&(identity, row)) = identities.next() {
            let row = u32::try_from(row).expect("fewer rows than identities");
            if identity == 0 {
                continue;
            }
            push(identity, row);
            if let Some(after) = identity.checked_add(1)
                && identities.peek().is_none_or(|next| next.0 > after)
            {
                push(after, 0);
            }
        }
        Self { identities: Axis::new(of), rows: rows.iter().map(services).collect() }
    }

    /// Returns the verdict on traffic between the endpoint and an identity. `port` is the destination port.
    pub fn verdict(&self, identity: u32, protocol: u8, port: u16) -> Verdict {
        Verdict::from_code(self.code(Scalar, identity, u32::from(protocol) << 16 | u32::from(port)))
    }

    #[inline(always)]
    pub(super) fn code<S: Simd>(&self, simd: S, identity: u32, service: u32) -> u32 {
        self.rows[self.identities.class(simd, identity) as usize].class(simd, service)
    }

    /// Whether the verdicts on traffic with two identities are the same.
    pub(super) fn says_the_same_of(&self, one: u32, other: u32) -> bool {
        let row = |identity| self.identities.class(Scalar, identity) as usize;
        let (one, other) = (row(one), row(other));
        one == other || self.rows[one] == self.rows[other]
    }

    /// Returns the number of rows: policies, each for one or more identities.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Returns the heap memory of the map in bytes.
    pub fn bytes(&self) -> usize {
        let rows: usize = self.rows.iter().map(|row| row.bytes() + size_of::<Axis<u32>>()).sum();
        self.identities.bytes() + rows
    }
}

/// Compiles a row to a search tree over protocol and port.
fn services(row: &Row) -> Axis<u32> {
    let mut pieces: Vec<(u32, u32, u32)> = Vec::new();
    for (set, verdict) in row {
        for Service { protocols: (first, last), ports } in set.services() {
            let at = |protocol: u8, port: u16| u32::from(protocol) << 16 | u32::from(port);
            if ports.first == 0 && ports.last == u16::MAX {
                pieces.push((at(first, 0), at(last, u16::MAX), verdict.code()));
            } else {
                let each = |protocol| (at(protocol, ports.first), at(protocol, ports.last), verdict.code());
                pieces.extend((first..=last).map(each));
            }
        }
    }
    pieces.sort_unstable();
    let mut of = Classed { lasts: Vec::new(), class_of: Vec::new() };
    let mut push = |first: u32, code: u32| match of.class_of.last() {
        Some(&before) if before == code => {}
        Some(_) => {
            of.lasts.push(first - 1);
            of.class_of.push(code);
        }
        None => of.class_of.push(code),
    };
    let mut next = 0;
    for (first, last, code) in pieces {
        if first > next {
            push(next, u32::MAX);
        }
        push(first, code);
        next = last + 1;
    }
    // The point after the last protocol ends the axis.
    if next < 1 << 24 {
        push(next, u32::MAX);
    }
    Axis::new(of)
}
