//! Makes the table of [`super::pairs`]: which rules are direct, and the lists of the others.

use std::cmp::Reverse;
use std::collections::HashMap;

use ahash::RandomState;

use super::address::Address;
use super::cover::{Cover, Cut, Rows};
use super::pairs::{BLOCK_CLASSES, Pairs};
use super::partition::{Bounds, Lists, Side};
use super::ports::Ports;
use super::rules::{LiveRules, port_interval};
use super::vectors::{CHUNK_BITS, by_place};
use super::{Axes, Choice};
use crate::simd::{Chunk, Transport};
use crate::{BuildError, BuildOptions};

/// Direct rules: rows of two chunks. One chunk is 12 % quicker on ipc1.10k, for 3.7 times the memory and 2.3 times the
/// build; it would take from the caches of whatever else runs.
pub(super) const DIRECT: usize = 2 * CHUNK_BITS;

/// The most rules of a list that one packet can make a lookup compare: eight lines.
const LONGEST: usize = 32;

/// Positions in the lists of an axis's classes: 16 MiB while it is built. ipc1.10k has 2.1 million.
const POSITIONS: usize = 1 << 22;

/// Pairs of classes, nearly all of which lie in blocks that are stored once. ipc1.10k has 4.2 million.
const PAIRS: usize = 1 << 24;

/// Pairs that hold a rule, counted per rule: the time of the build, some tenths of a second. ipc1.10k has 1 million.
const HELD: usize = 1 << 22;

/// Bytes per rule at most, or as for this many rules: 64 MB for 100,000. ipc1.10k takes 260.
const BYTES: usize = 640;
const BYTES_RULES: usize = 1 << 11;

impl Pairs {
    /// None when the list is not for this: too many classes, or too many pairs share too many rules.
    pub(crate) fn build<A: Address>(
        live: &LiveRules<'_, A>,
        options: &BuildOptions<'_>,
        choice: Choice,
    ) -> Result<Option<(Axes<A>, Self)>, BuildError> {
        let Some(most) = choice.paired.filter(|_| live.rules.len() > choice.all_direct) else { return Ok(None) };
        let most_positions = POSITIONS.min(options.max_bytes / 8);
        options.proceed()?;
        let Some(src) = Side::new(live, |rule| rule.src, most_positions) else { return Ok(None) };
        options.proceed()?;
        let Some(dst) = Side::new(live, |rule| rule.dst, most_positions) else { return Ok(None) };
        let most_bytes = options.max_bytes.min(BYTES * live.rules.len().max(BYTES_RULES));
        // Rows are written for whole blocks of destinations, and for the classes of both sides.
        let pairs = src.classes.len() * dst.classes.len().next_multiple_of(BLOCK_CLASSES as usize);
        let row_bytes = row_chunks(most.min(live.rules.len())) * size_of::<Chunk>();
        if pairs > PAIRS || (src.classes.len() + dst.classes.len()) * row_bytes > most_bytes {
            return Ok(None);
        }
        let direct = direct(live, &src, &dst, most);
        let mut filling = Filling::new(live, &dst.classes, &direct, most_bytes);
        for class in 0..src.classes.len() {
            options.proceed()?;
            if filling.add(src.classes.get(class)).is_none() {
                return Ok(None);
            }
        }
        let built = compile(live, src, dst, &direct, filling.table, most_bytes, options)?;
        Ok(built.filter(|(axes, pairs)| axes.bytes() + pairs.bytes() <= most_bytes))
    }
}

/// How many classes of a side each rule covers.
fn covered(classes: &Lists, rules: usize) -> Vec<usize> {
    let mut covered = vec![0; rules];
    for class in 0..classes.len() {
        classes.get(class).iter().for_each(|&rule| covered[rule as usize] += 1);
    }
    covered
}

/// Chunks of a row of so many direct rules.
fn row_chunks(direct: usize) -> usize {
    direct.div_ceil(CHUNK_BITS).max(1)
}

/// Stands for the bit of a rule that has none.
const NO_BIT: u32 = u32::MAX;

/// The bit of each rule, ascending; [`NO_BIT`] for one that is not direct. Those that most pairs hold are direct.
fn direct<A: Address>(live: &LiveRules<'_, A>, src: &Side<A>, dst: &Side<A>, most: usize) -> Vec<u32> {
    let [srcs, dsts] = [src, dst].map(|side| covered(&side.classes, live.rules.len()));
    let held = |at: usize| srcs[at] * dsts[at] * live.services(&live.rules[at]).len();
    let mut order: Vec<usize> = (0..live.rules.len()).collect();
    order.sort_by_cached_key(|&at| Reverse(held(at)));
    let mut direct = vec![NO_BIT; live.rules.len()];
    order.iter().take(most).for_each(|&at| direct[at] = 0);
    for (bit, at) in (0..).zip(direct.iter_mut().filter(|bit| **bit == 0)) {
        *at = bit;
    }
    direct
}

/// The lists of all pairs, as [`Pairs`] has them.
struct Table {
    width: u32,
    blocks: Vec<u32>,
    cells: Vec<u32>,
    lines: Vec<Transport>,
    longest: usize,
}

/// A table that grows by one class of sources after the other.
struct Filling<'a, A> {
    live: &'a LiveRules<'a, A>,
    /// The classes of destinations of each rule that is not direct.
    dsts_of: Vec<Vec<u32>>,
    table: Table,
    most_bytes: usize,
    /// Pairs that hold a rule, so far.
    held: usize,
    /// Different lists, and the first line of each.
    lists: Lists,
    line_of: Vec<u32>,
    /// Where the different blocks begin in the table's cells.
    block_of: HashMap<Vec<u32>, u32, RandomState>,
    /// Of the class at hand: the rules and the line of each class of destinations. Empty in between.
    rules: Vec<Vec<u32>>,
    row: Vec<u32>,
}

impl<'a, A: Address> Filling<'a, A> {
    fn new(live: &'a LiveRules<'a, A>, dsts: &Lists, direct: &[u32], most_bytes: usize) -> Self {
        let mut dsts_of = vec![Vec::new(); live.rules.len()];
        for (class, dst) in (0..dsts.len()).zip(0u32..) {
            let rules = dsts.get(class).iter().filter(|&&rule| direct[rule as usize] == NO_BIT);
            rules.for_each(|&rule| dsts_of[rule as usize].push(dst));
        }
        let width = dsts.len().div_ceil(BLOCK_CLASSES as usize);
        let positions = HELD.min(most_bytes);
        let mut lists = Lists::new(Bounds { longest: LONGEST, positions, work: HELD });
        // The first line is the list of no rules: pairs that nothing is known of are zeros.
        lists.of(&[]);
        let lines = vec![Transport::new(&[], false)];
        let number = u32::try_from(width).expect("PAIRS bounds it");
        Self {
            live,
            dsts_of,
            table: Table { width: number, blocks: Vec::new(), cells: Vec::new(), lines, longest: 0 },
            most_bytes,
            held: 0,
            lists,
            line_of: vec![0],
            block_of: HashMap::default(),
            rules: vec![Vec::new(); dsts.len()],
            row: vec![0; width * BLOCK_CLASSES as usize],
        }
    }

    /// Adds the row of a class of sources with these rules; none when it would take more than the bounds.
    fn add(&mut self, rules: &[u32]) -> Option<()> {
        let mut touched = Vec::new();
        for &rule in rules {
            self.held += self.dsts_of[rule as usize].len();
            if self.held > HELD {
                return None;
            }
            for &dst in &self.dsts_of[rule as usize] {
                let rules = &mut self.rules[dst as usize];
                if rules.is_empty() {
                    touched.push(dst);
                }
                rules.push(rule);
            }
        }
        for &dst in &touched {
            let list = self.lists.of(&self.rules[dst as usize])? as usize;
            if list == self.line_of.len() {
                self.line_of.push(u32::try_from(self.table.lines.len()).expect("HELD bounds it"));
                self.write(dst)?;
            }
            self.row[dst as usize] = self.line_of[list];
        }
        self.share_blocks();
        for dst in touched {
            self.row[dst as usize] = 0;
            self.rules[dst as usize].clear();
        }
        (self.table.cells.len() * size_of::<u32>() <= self.most_bytes).then_some(())
    }

    /// Appends the lines of the list of a class of destinations; none when it is too long, or all are too many.
    fn write(&mut self, dst: u32) -> Option<()> {
        let rules = self.rules[dst as usize].iter().map(|&at| &self.live.rules[at as usize]);
        let port = |port: u32| u16::try_from(port).expect("rules have ports");
        let mut all = Vec::new();
        for rule in rules {
            let src_ports = (port(rule.src_ports.0), port(rule.src_ports.1));
            let services = self.live.services(rule);
            if all.len() + services.len() > LONGEST {
                return None;
            }
            all.extend(services.iter().map(|&service| (service, src_ports, rule.code)));
        }
        let lines = all.chunks(Transport::RULES).len();
        let line = |(at, line)| Transport::new(line, at < lines);
        self.table.lines.extend((1..).zip(all.chunks(Transport::RULES)).map(line));
        self.table.longest = self.table.longest.max(all.len());
        (size_of_val(&self.table.lines[..]) <= self.most_bytes).then_some(())
    }

    /// Appends the row, block by block, each different block once.
    fn share_blocks(&mut self) {
        for block in self.row.chunks_exact(BLOCK_CLASSES as usize) {
            let next = u32::try_from(self.table.cells.len()).expect("PAIRS bounds it");
            let known = self.block_of.get(block).copied();
            self.table.blocks.push(known.unwrap_or(next));
            if known.is_none() {
                self.block_of.insert(block.to_vec(), next);
                self.table.cells.extend_from_slice(block);
            }
        }
    }
}

/// Adds the direct rules' rows to the table.
fn compile<A: Address>(
    live: &LiveRules<'_, A>,
    src: Side<A>,
    dst: Side<A>,
    direct: &[u32],
    table: Table,
    most_bytes: usize,
    options: &BuildOptions<'_>,
) -> Result<Option<(Axes<A>, Pairs)>, BuildError> {
    let count = direct.iter().filter(|&&bit| bit != NO_BIT).count();
    let each = row_chunks(count);
    let words = each * CHUNK_BITS / 64;
    let (mut services, mut src_ports) = (Cover::new(), Cover::new());
    let mut codes = Vec::with_capacity(count);
    for (rule, &bit) in live.rules.iter().zip(direct).filter(|&(_, &bit)| bit != NO_BIT) {
        services.add_set(bit, live.services(rule));
        src_ports.add_set(bit, &[port_interval(rule.src_ports)]);
        codes.push(rule.code);
    }
    let cut = Cut { words, max_classes: most_bytes / (each * size_of::<Chunk>()), options };
    let Some((services, service_rows)) = services.cut(&cut)? else { return Ok(None) };
    let Some((src_ports, src_port_rows)) = src_ports.cut(&cut)? else { return Ok(None) };
    let all = [rows(&src.classes, direct, words), rows(&dst.classes, direct, words), service_rows, src_port_rows];
    let mut axes = Axes {
        src: src.pieces.axis(),
        dst: dst.pieces.axis(),
        service: Ports::new(&services, live.last_service),
        src_port: Ports::new(&src_ports, u32::from(u16::MAX)),
    };
    let [_, first_dst, ..] = Rows::number(&all, &mut axes, each);
    let (rows, codes, classes) = (Rows::chunks(&all), by_place(&codes, each), all.each_ref().map(Rows::classes));
    let Table { width, blocks, cells, lines, longest } = table;
    Ok(Some((
        axes,
        Pairs { rows, each, codes, first_dst, width, blocks, cells, lines, longest, direct: count, classes },
    )))
}

/// The rows of an axis's classes.
fn rows(classes: &Lists, direct: &[u32], words: usize) -> Rows {
    let mut bits = vec![0; classes.len() * words];
    for (class, row) in bits.chunks_exact_mut(words).enumerate() {
        for bit in classes.get(class).iter().map(|&rule| direct[rule as usize]).filter(|&bit| bit != NO_BIT) {
            row[bit as usize / 64] |= 1 << (bit % 64);
        }
    }
    Rows { words, bits }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use ipnet::{IpNet, Ipv4Net, Ipv4Subnets};

    use super::*;
    use crate::engine::Protocols;
    use crate::{Action, AddressSet, Addresses, OriginId, PortRange, Rule, Service, ServiceSet, protocol};

    /// What making the table of a list took, counted: positions looked at for the classes of both sides, pairs written
    /// down, pairs that hold a rule, and positions looked at for their lists.
    #[derive(Debug, Default)]
    struct Work {
        classes: usize,
        pairs: usize,
        held: usize,
        lists: usize,
        is_made: bool,
    }

    fn work(rules: &[Rule]) -> Work {
        let (protocols, options) = (Protocols::new(rules), BuildOptions::default());
        let live = LiveRules::<u32>::new(rules, &protocols);
        let made = Pairs::build(&live, &options, Choice::default()).unwrap();
        let sides = Side::new(&live, |rule| rule.src, POSITIONS).zip(Side::new(&live, |rule| rule.dst, POSITIONS));
        let Some((src, dst)) = sides else { return Work::default() };
        let classes = src.classes.work() + dst.classes.work();
        let mut work = Work { classes, is_made: made.is_some(), ..Work::default() };
        let width = dst.classes.len().next_multiple_of(BLOCK_CLASSES as usize);
        let most_bytes = BYTES * live.rules.len().max(BYTES_RULES);
        if src.classes.len() * width > PAIRS || (src.classes.len() + dst.classes.len()) * 128 > most_bytes {
            return work;
        }
        let mut filling = Filling::new(&live, &dst.classes, &direct(&live, &src, &dst, DIRECT), most_bytes);
        for class in 0..src.classes.len() {
            work.pairs += width;
            if filling.add(src.classes.get(class)).is_none() {
                break;
            }
        }
        Work { held: filling.held, lists: filling.lists.work(), ..work }
    }

    fn host(base: u32, at: u32, length: u8) -> Addresses {
        Addresses::prefix(IpNet::V4(Ipv4Net::new(Ipv4Addr::from(base + at), length).unwrap()))
    }

    fn rule(at: u32, src: Addresses, dst: Addresses) -> Rule {
        let port = u16::try_from(at % 60_000).unwrap();
        let service = Service { protocols: (protocol::TCP, protocol::TCP), ports: PortRange::one(port) };
        let services = [service].into_iter().collect::<ServiceSet>().into();
        let src_ports = PortRange { first: 0, last: 1000 + port };
        Rule { src, dst, src_ports, services, ..Rule::any(Action::Allow, OriginId(at)) }
    }

    /// Lists that were made to take long, each by another part of the work. What counts is the work, not the time.
    #[test]
    fn no_list_takes_more_work_than_is_stated() {
        let (a, b) = (0x0a00_0000, 0x0b00_0000);
        let one_end = |at| rule(at, host(a, at * 3, 32), host(b, 0, 24));
        let either = |at: u32| match at % 2 {
            0 => rule(at, host(a, at * 3, 32), Addresses::Any),
            _ => rule(at, Addresses::Any, host(b, at * 3, 32)),
        };
        let hosts = |at: u32| rule(at, host(a, at * 3, 32), host(b, at * 5, 32));
        // Each source is in a thousand windows, so that classes are many and long.
        let windows = |at: u32| {
            let window = Ipv4Subnets::new((a + at).into(), (a + at + 1000).into(), 0).map(IpNet::V4);
            rule(at, window.collect::<AddressSet>().into(), host(b, at % 60 * 2, 32))
        };
        type List<'a> = (&'a str, u32, &'a dyn Fn(u32) -> Rule);
        let lists: [List<'_>; 6] = [
            ("one end", 60_000, &one_end),
            ("either side", 5000, &either),
            ("as many pairs as are written down", 4000, &hosts),
            ("more pairs", 60_000, &hosts),
            ("windows", 3500, &windows),
            ("more windows", 5000, &windows),
        ];
        let (mut most, mut made) = (Work::default(), 0);
        for (name, count, list) in lists {
            let work = work(&(0..count).map(list).collect::<Vec<_>>());
            // A bound is seen by the step that passes it: a list, or the classes of a rule.
            assert!(work.classes <= 2 * 5 * POSITIONS, "{name}: {work:?}");
            assert!(work.pairs <= PAIRS, "{name}: {work:?}");
            assert!(work.held <= HELD + PAIRS / BLOCK_CLASSES as usize, "{name}: {work:?}");
            assert!(work.lists <= HELD, "{name}: {work:?}");
            most.classes = most.classes.max(work.classes);
            most.pairs = most.pairs.max(work.pairs);
            most.held = most.held.max(work.held);
            most.lists = most.lists.max(work.lists);
            made += usize::from(work.is_made);
        }
        assert!(0 < made && made < lists.len(), "some are made and some are given up, not {made}");
        let reached =
            [most.classes * 2 / POSITIONS, most.pairs * 2 / PAIRS, most.held * 2 / HELD, most.lists * 4 / HELD];
        assert!(reached.iter().all(|&part| part > 0), "too easy: {most:?}");
    }
}
