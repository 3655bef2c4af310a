//! Random histories, compared with a list of all holdings. The list has no limits: it checks that each refusal and eviction was allowed.

use std::cell::Cell;

use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits { names: 6, addresses: 3, ..Limits::NODE };
const HOLDERS: u32 = 3;
const NAMES: usize = 9;
const ADDRESSES: u32 = 6;

#[derive(Clone, Debug)]
enum Step {
    Learn {
        holder: u32,
        name: usize,
        address: u32,
        /// Nanoseconds until the address ends.
        left: u64,
    },
    Forget(u32),
    /// Number of calls: 32 are a complete sweep.
    Sweep(usize),
    /// Nanoseconds.
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let left = prop_oneof![
        1 => Just(0),
        2 => 1..5 * SECOND,
        8 => 30 * SECOND..120 * SECOND,
        2 => 120 * SECOND..100_000 * SECOND,
    ];
    // Two names get more addresses than the limit.
    let learn = (0..HOLDERS, prop_oneof![0..2usize, 0..NAMES], 0..ADDRESSES, left);
    let step = prop_oneof![
        30 => learn.prop_map(|(holder, name, address, left)| Step::Learn { holder, name, address, left }),
        1 => (0..HOLDERS).prop_map(Step::Forget),
        2 => prop_oneof![1..40usize, Just(96)].prop_map(Step::Sweep),
        6 => prop_oneof![0..2 * SECOND, 2 * SECOND..60 * SECOND, 60 * SECOND..400 * SECOND].prop_map(Step::Wait),
    ];
    proptest::collection::vec(step, 1..150)
}

/// The bounds of a holding's end, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
struct Ends {
    /// The latest end of an answer. The holding is valid before it.
    sure: u64,
    /// The latest lengthened end. The holding has ended at it.
    latest: u64,
}

/// A known name.
#[derive(Clone, Copy, Debug)]
struct Known {
    id: NameId,
    /// The latest lengthened end of any holder's answer, including refused ones and those of forgotten holders.
    latest: u64,
}

/// How often the histories reached a case.
#[derive(Debug, Default)]
struct Reached {
    expired: Cell<usize>,
    lengthened: Cell<usize>,
    renewed: Cell<usize>,
    not_shortened: Cell<usize>,
    replaced: Cell<usize>,
    refused_addresses: Cell<usize>,
    refused_names: Cell<usize>,
    evicted: Cell<usize>,
    forgotten: Cell<usize>,
    swept: Cell<usize>,
}

fn count(cell: &Cell<usize>, is_reached: bool) {
    cell.set(cell.get() + usize::from(is_reached));
}

struct Model<'a> {
    table: Learned,
    now: u64,
    /// The holdings by holder, number of the name and number of the address.
    holdings: BTreeMap<(u32, usize, u32), Ends>,
    known: BTreeMap<usize, Known>,
    reached: &'a Reached,
}

impl<'a> Model<'a> {
    fn new(reached: &'a Reached) -> Self {
        let table = Learned::with_limits(LIMITS);
        // The holders' bits are in different bitmaps, until a sweep frees the seats between.
        for number in 0..HOLDERS {
            let mut world = write(&table.world);
            world.seats.assign(Holder(number));
            assert!((1..64).all(|other| world.seats.assign(Holder(number * 64 + other + 100)).is_some()));
        }
        Self { table, now: START, holdings: BTreeMap::new(), known: BTreeMap::new(), reached }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Learn { holder, name, address, left } => self.learn(holder, name, address, left),
            Step::Forget(holder) => {
                let now = self.now;
                count(
                    &self.reached.forgotten,
                    self.holdings.iter().any(|(key, ends)| key.0 == holder && ends.sure > now),
                );
                self.table.forget(Holder(holder));
                self.holdings.retain(|key, _| key.0 != holder);
            }
            Step::Sweep(calls) => {
                let removed: usize = (0..calls).map(|_| self.table.sweep(self.now).holdings).sum();
                count(&self.reached.swept, removed > 0);
            }
            Step::Wait(time) => self.now += time,
        }
    }

    /// Returns the number of the holder's addresses under the name for which `end` returns a time later than now.
    fn addresses(&self, holder: u32, name: usize, end: impl Fn(&Ends) -> u64) -> usize {
        let own = self.holdings.range((holder, name, 0)..=(holder, name, u32::MAX));
        own.filter(|(_, ends)| end(ends) > self.now).count()
    }

    fn learn(&mut self, holder: u32, name: usize, address: u32, left: u64) {
        let (now, until, key) = (self.now, self.now + left, (holder, name, address));
        let latest = until + left / 4 + SECOND;
        let old = self.holdings.get(&key).copied();
        let is_held = old.is_some_and(|old| old.sure > now);
        match self.table.learn(Holder(holder), &format!("n{name}"), ip(address), now, until) {
            Ok(id) => {
                self.intern(name, id);
                if left == 0 {
                    return;
                }
                let (sure, all) =
                    (self.addresses(holder, name, |ends| ends.sure), self.addresses(holder, name, |_| u64::MAX));
                assert!(is_held || sure < LIMITS.addresses, "{sure} addresses are valid");
                count(&self.reached.replaced, !is_held && all >= LIMITS.addresses);
                count(&self.reached.renewed, old.is_some_and(|old| old.sure > now && old.sure < until));
                count(&self.reached.not_shortened, old.is_some_and(|old| old.sure > until));
                let ends = self.holdings.entry(key).or_insert(Ends { sure: 0, latest: 0 });
                *ends = Ends { sure: ends.sure.max(until), latest: ends.latest.max(latest) };
            }
            Err(Full::Addresses) => {
                assert!(!is_held && self.known.contains_key(&name) && left > 0);
                assert!(self.addresses(holder, name, |ends| ends.latest) >= LIMITS.addresses, "refused without need");
                count(&self.reached.refused_addresses, true);
            }
            Err(Full::Names) => {
                assert!(!self.known.contains_key(&name) && self.known.len() == LIMITS.names);
                assert!(self.known.values().all(|known| known.latest > now), "refused without need");
                count(&self.reached.refused_names, true);
            }
            Err(Full::Holdings) => panic!("the limit is far"),
        }
        if let Some(known) = self.known.get_mut(&name) {
            known.latest = known.latest.max(latest);
        }
    }

    /// Checks the id that the table returned for a name, and which name was evicted for it.
    fn intern(&mut self, name: usize, id: NameId) {
        if let Some(known) = self.known.get(&name) {
            assert_eq!(known.id, id, "a known name keeps its id");
            return;
        }
        let gone: Vec<usize> =
            self.known.iter().filter(|(_, k)| !knows(&self.table, k.id)).map(|(&name, _)| name).collect();
        assert_eq!(gone.len(), usize::from(self.known.len() == LIMITS.names), "one is evicted if the limit is reached");
        for gone in gone {
            let is_valid = |(key, ends): (&(u32, usize, u32), &Ends)| key.1 == gone && ends.sure > self.now;
            assert!(!self.holdings.iter().any(is_valid), "n{gone} was valid");
            self.holdings.retain(|key, _| key.1 != gone);
            self.known.remove(&gone);
            count(&self.reached.evicted, true);
        }
        assert!(self.known.values().all(|known| known.id != id), "two names have one id");
        self.known.insert(name, Known { id, latest: 0 });
    }

    /// Checks what the table answers for all holders and addresses.
    fn check(&self) {
        for (holder, address) in (0..HOLDERS).flat_map(|holder| (0..ADDRESSES).map(move |address| (holder, address))) {
            let mut found = names(&self.table, holder, ip(address), self.now);
            for (&name, known) in &self.known {
                let ends = self.holdings.get(&(holder, name, address)).copied();
                match (found.remove(&format!("n{name}")), ends) {
                    (Some(id), Some(ends)) => {
                        assert!(ends.latest > self.now, "n{name} is lengthened by more than a quarter");
                        assert_eq!(id, known.id);
                        count(&self.reached.lengthened, ends.sure <= self.now);
                    }
                    (Some(_), None) => panic!("holder {holder} never learned {address} for n{name}"),
                    (None, Some(ends)) => {
                        assert!(ends.sure <= self.now, "holder {holder} lost {address} of n{name}");
                        count(&self.reached.expired, true);
                    }
                    (None, None) => (),
                }
            }
            assert!(found.is_empty(), "unknown names: {found:?}");
        }
        for (name, known) in &self.known {
            assert!(self.table.with_name(known.id, |text| assert_eq!(text, format!("n{name}"))));
        }
        self.check_listing();
    }

    fn check_listing(&self) {
        let mut sure: BTreeMap<_, _> = self.holdings.iter().filter(|(_, ends)| ends.sure > self.now).collect();
        let mut listed = 0;
        self.table.for_each(self.now, |holder, text, address, end| {
            let (name, address) = (text[1..].parse().unwrap(), (0..ADDRESSES).find(|&at| ip(at) == address).unwrap());
            let ends = self.holdings[&(holder.0, name, address)];
            assert!(ends.sure <= end && end <= ends.latest && end > self.now, "{ends:?} became {end}");
            sure.remove(&(holder.0, name, address));
            listed += 1;
        });
        assert!(sure.is_empty(), "not listed: {sure:?}");
        let counts = self.table.counts();
        assert!(counts.holdings >= listed && counts.names == self.known.len());
    }
}

#[test]
fn random_histories_agree_with_a_list_of_all_holdings() {
    let reached = Reached::default();
    proptest!(ProptestConfig::with_cases(200), |(steps in steps())| {
        let mut model = Model::new(&reached);
        for step in &steps {
            model.step(step);
            model.check();
        }
        // Nothing is left of what has ended.
        sweep_all(&model.table, model.now + 1_000_000 * SECOND);
        let counts = model.table.counts();
        prop_assert_eq!((counts.addresses, counts.holdings, counts.names), (0, 0, model.known.len()));
    });
    let cases = [
        ("expired", &reached.expired),
        ("lengthened", &reached.lengthened),
        ("renewed", &reached.renewed),
        ("not shortened", &reached.not_shortened),
        ("replaced", &reached.replaced),
        ("refused for its addresses", &reached.refused_addresses),
        ("refused for all names", &reached.refused_names),
        ("evicted", &reached.evicted),
        ("forgotten", &reached.forgotten),
        ("swept", &reached.swept),
    ];
    for (case, count) in cases {
        assert!(count.get() >= 50, "only {} times {case}", count.get());
    }
}
