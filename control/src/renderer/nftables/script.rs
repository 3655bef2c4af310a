//! Scripts for `nft -f`: a whole ruleset, or the change between two. nft applies a script as one transaction.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use super::comment::comment;
use super::elements::{self, Elements};
use super::rules::{self, Chain, KINDS, OWN_SETS};
use super::skeleton::skeleton;
use super::state::{State, Workload};
use super::{Change, Epoch, SetChange, Suspects, TABLE};
use bulkhead_classifier::{AddressSet, OriginId};

use crate::contract::{SetId, TierRule};
use crate::origin::{Direction, Origins};

const DIRECTIONS: [Direction; 2] = [Direction::Egress, Direction::Ingress];

/// Whether nft takes a quoted interface name literally: without wildcards and quotes.
pub(super) fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.len() < 16 && name.chars().all(|c| c.is_ascii_alphanumeric() || "-._+@=,".contains(c))
}

/// A script for nft under construction.
pub(super) struct Script<'a> {
    origins: &'a Origins,
    /// Commands before the block: they flush chains and sets.
    before: String,
    /// The block that adds objects.
    block: String,
    /// Commands after the block: they add and delete elements and delete objects.
    after: String,
    /// The changed addresses of sets, which the commands contain too.
    sets: Vec<SetChange>,
    /// Length in bytes of the part of `after` that only changes these addresses.
    of_sets: usize,
}

impl<'a> Script<'a> {
    /// Returns the whole ruleset. It replaces the existing one.
    pub(super) fn full(node: &str, suspects: &Suspects, state: &State, epoch: Epoch, origins: &'a Origins) -> String {
        // Creates the table first, so that deleting it cannot fail.
        let head = format!("table {TABLE}\ndelete table {TABLE}\n");
        head + &skeleton(node, suspects) + &Self::between(&State::default(), state, origins).text(epoch)
    }

    /// Returns the change from one ruleset to another.
    pub(super) fn change(old: &State, new: &State, epoch: Epoch, origins: &'a Origins) -> Change {
        let head = format!("flush chain {TABLE} remember\nflush set {TABLE} epoch\n");
        let script = if old.has_the_workloads_of(new) {
            Self::between_sets(old, new, origins)
        } else {
            Self::between(old, new, origins)
        };
        let is_of_sets = script.before.is_empty() && script.block.is_empty() && script.after.len() == script.of_sets;
        let sets = is_of_sets.then(|| script.sets.clone());
        Change { script: head + &script.text(epoch), sets }
    }

    fn new(origins: &'a Origins) -> Self {
        let (before, block, after) = (String::new(), String::new(), String::new());
        Self { origins, before, block, after, sets: Vec::new(), of_sets: 0 }
    }

    fn between(old: &State, new: &State, origins: &'a Origins) -> Self {
        let mut script = Self::new(origins);
        script.counters(old, new);
        script.sets(old, new);
        script.lists(old, new);
        script.workloads(old, new);
        script.interfaces(old, new);
        script.gone(old, new);
        script.gone_sets(old, new);
        script
    }

    /// Returns the change between states with the same workloads, and so with the same chains and counters.
    fn between_sets(old: &State, new: &State, origins: &'a Origins) -> Self {
        let mut script = Self::new(origins);
        script.sets(old, new);
        script.gone_sets(old, new);
        script
    }

    fn text(self, epoch: Epoch) -> String {
        let Self { before, block, after, .. } = self;
        let block = if block.is_empty() { block } else { format!("table {TABLE} {{\n{block}}}\n") };
        format!("{before}{block}add element {TABLE} epoch {{ {:#010x} }}\n{after}", epoch.mark())
    }

    fn counters(&mut self, old: &State, new: &State) {
        let known = counters_of(old);
        for (name, origin) in new.counters().into_iter().filter(|(name, _)| !known.contains_key(name)) {
            let comment = self.origins.get(origin).map_or_else(|| "unknown".to_owned(), comment);
            self.line(format_args!("  counter {name} {{ comment \"{comment}\"; }}"));
        }
    }

    /// Adds new sets completely, and the changes of other sets.
    fn sets(&mut self, old: &State, new: &State) {
        for (id, set) in &new.sets {
            let before = old.sets.get(id);
            if before.is_some_and(|before| Arc::ptr_eq(before, set)) {
                continue;
            }
            let now = Elements::of(set);
            match before {
                None => self.new_set(*id, &now),
                Some(before) => self.changed_set(*id, &Elements::of(before), &now),
            }
        }
        for (name, _, v4) in OWN_SETS {
            let [before, now] = [&old.own, &new.own].map(|own| own_addresses(own, v4));
            self.elements(name, &elements::without(&before, &now), &elements::without(&now, &before), v4);
        }
    }

    fn new_set(&mut self, id: SetId, elements: &Elements) {
        for (suffix, kind, has_blocks, v4) in KINDS {
            let flags = if has_blocks { " flags interval;" } else { "" };
            let members = match (has_blocks, v4) {
                (false, true) => elements::hosts(&elements.hosts4, true),
                (false, false) => elements::hosts(&elements.hosts6, false),
                (true, true) => elements::blocks(&elements.blocks4, true),
                (true, false) => elements::blocks(&elements.blocks6, false),
            };
            let members = if members.is_empty() { members } else { format!(" elements = {{ {members} }}") };
            let name = rules::set_name(id, suffix);
            self.line(format_args!("  set {name} {{ type {kind};{flags}{members} }}"));
        }
    }

    fn changed_set(&mut self, id: SetId, old: &Elements, new: &Elements) {
        for (suffix, v4, before, now) in
            [("hosts4", true, &old.hosts4, &new.hosts4), ("hosts6", false, &old.hosts6, &new.hosts6)]
        {
            let name = rules::set_name(id, suffix);
            self.elements(&name, &elements::without(before, now), &elements::without(now, before), v4);
        }
        for (suffix, v4, before, now) in
            [("blocks4", true, &old.blocks4, &new.blocks4), ("blocks6", false, &old.blocks6, &new.blocks6)]
        {
            if before != now {
                let name = rules::set_name(id, suffix);
                writeln!(self.after, "flush set {TABLE} {name}").expect("a text takes anything");
                self.add(&name, &elements::blocks(now, v4));
            }
        }
    }

    fn elements(&mut self, name: &str, gone: &[u128], new: &[u128], v4: bool) {
        if gone.is_empty() && new.is_empty() {
            return;
        }
        let before = self.after.len();
        self.delete(name, &elements::hosts(gone, v4));
        self.add(name, &elements::hosts(new, v4));
        self.of_sets += self.after.len() - before;
        let [gone, new] = [gone, new].map(|all| all.iter().map(|&number| elements::address(number, v4)).collect());
        self.sets.push(SetChange { set: name.to_owned(), gone, new });
    }

    fn add(&mut self, set: &str, elements: &str) {
        if !elements.is_empty() {
            writeln!(self.after, "add element {TABLE} {set} {{ {elements} }}").expect("a text takes anything");
        }
    }

    fn delete(&mut self, set: &str, elements: &str) {
        if !elements.is_empty() {
            writeln!(self.after, "delete element {TABLE} {set} {{ {elements} }}").expect("a text takes anything");
        }
    }

    fn lists(&mut self, old: &State, new: &State) {
        let known = old.lists();
        let origins = self.origins;
        let name = |rule: &TierRule| origins.get(rule.origin).map_or_else(|| "unknown".to_owned(), comment);
        for (id, (direction, list)) in new.lists() {
            if !known.contains_key(&id) {
                rules::chains(&list, direction, name).iter().for_each(|chain| self.chain(chain));
            }
        }
    }

    fn workloads(&mut self, old: &State, new: &State) {
        for (interface, workload) in new.workloads.iter().filter(|(_, workload)| workload.is_pod()) {
            let before = old.workloads.get(interface);
            for direction in DIRECTIONS {
                let chain = workload_chain(interface, workload, direction);
                match before.filter(|before| before.is_pod()) {
                    Some(before) if workload_chain(interface, before, direction) == chain => {}
                    Some(_) => {
                        writeln!(self.before, "flush chain {TABLE} {}", chain.name).expect("a text takes anything");
                        self.chain(&chain);
                    }
                    None => self.chain(&chain),
                }
            }
        }
    }

    fn interfaces(&mut self, old: &State, new: &State) {
        let changed = |name: &str, old: BTreeSet<String>, new: BTreeSet<String>, script: &mut Self| {
            script.delete(name, &elements::texts(&old.difference(&new).cloned().collect()));
            script.add(name, &elements::texts(&new.difference(&old).cloned().collect()));
        };
        changed("known", old.names(false), new.names(false), self);
        changed("pods", old.names(true), new.names(true), self);
        changed("sources4", old.sources(true), new.sources(true), self);
        changed("sources6", old.sources(false), new.sources(false), self);
        for (name, v4) in [("4", true), ("6", false)] {
            let texts = |all: &BTreeSet<IpAddr>| {
                all.iter().filter(|address| address.is_ipv4() == v4).map(ToString::to_string).collect()
            };
            changed(&format!("unplaced{name}"), texts(&old.unplaced), texts(&new.unplaced), self);
            changed(&format!("local{name}"), texts(&old.local), texts(&new.local), self);
        }
        changed("from", old.dispatch(Direction::Egress), new.dispatch(Direction::Egress), self);
        changed("to", old.dispatch(Direction::Ingress), new.dispatch(Direction::Ingress), self);
    }

    /// Deletes unused objects except sets, in order of reference: chains of workloads, chains of lists, counters.
    fn gone(&mut self, old: &State, new: &State) {
        let mut chains = Vec::new();
        let is_pod = |state: &State, name: &str| state.workloads.get(name).is_some_and(Workload::is_pod);
        for name in old.workloads.keys().filter(|name| is_pod(old, name) && !is_pod(new, name)) {
            chains.extend(DIRECTIONS.map(|direction| rules::workload_chain(name, direction)));
        }
        let known = new.lists();
        for (id, (_, list)) in old.lists() {
            if !known.contains_key(&id) {
                chains.extend(rules::names(&list));
            }
        }
        // A chain that is the target of a jump cannot be deleted, so all are flushed first.
        for verb in ["flush", "delete"] {
            for chain in &chains {
                writeln!(self.after, "{verb} chain {TABLE} {chain}").expect("a text takes anything");
            }
        }
        let kept = new.counters();
        for name in counters_of(old).into_keys().filter(|name| !kept.contains_key(name)) {
            writeln!(self.after, "delete counter {TABLE} {name}").expect("a text takes anything");
        }
    }

    /// Deletes unused sets, after the chains that used them.
    fn gone_sets(&mut self, old: &State, new: &State) {
        for id in old.sets.keys().filter(|id| !new.sets.contains_key(id)) {
            for (suffix, ..) in KINDS {
                writeln!(self.after, "delete set {TABLE} {}", rules::set_name(*id, suffix))
                    .expect("a text takes anything");
            }
        }
    }

    fn chain(&mut self, Chain { name, comment, rules }: &Chain) {
        self.line(format_args!("  chain {name} {{"));
        if !comment.is_empty() {
            self.line(format_args!("    comment \"{comment}\""));
        }
        for rule in rules {
            self.line(format_args!("    {rule}"));
        }
        self.line(format_args!("  }}"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.block, "{line}").expect("a text takes anything");
    }
}

/// Returns the node's addresses of a family, one by one. A node has few.
fn own_addresses(own: &AddressSet, v4: bool) -> Vec<u128> {
    let of_v4 = own.v4_intervals().iter().map(|&(first, last)| (u128::from(first), u128::from(last)));
    let intervals: Vec<_> = if v4 { of_v4.collect() } else { own.v6_intervals().to_vec() };
    intervals.into_iter().flat_map(|(first, last)| first..=last).collect()
}

/// Returns the counters of a state's rules, each with its origin. Empty for the default state, in which the kernel has no ruleset.
fn counters_of(state: &State) -> BTreeMap<String, OriginId> {
    if *state == State::default() { BTreeMap::new() } else { state.counters() }
}

/// Returns the chain for packets of a pod in one direction.
fn workload_chain(interface: &str, workload: &Workload, direction: Direction) -> Chain {
    let name = rules::workload_chain(interface, direction);
    let (pod, mut rules) = match workload {
        Workload::NoPod => (String::new(), Vec::new()),
        Workload::Closed(pod) => (pod.to_string(), Vec::new()),
        Workload::Pod(endpoint) => {
            let mut rules = vec!["jump established".to_owned()];
            for address in &endpoint.addresses {
                let family = if address.is_ipv4() { "ip" } else { "ip6" };
                // Through a Service. Other packets of a pod to itself do not leave the pod.
                let hairpin = format!("ct original {family} saddr {address} ct reply {family} saddr {address}");
                rules.extend(rules::hairpin(workload.list(direction).map(|list| &**list), &hairpin));
            }
            rules.push(match workload.list(direction) {
                Some(list) => format!("jump {}", rules::list_chain(list.id)),
                None => rules::open(direction),
            });
            (endpoint.pod.to_string(), rules)
        }
    };
    // The comment is on the rule, because a chain's comment cannot change when the interface passes to another pod.
    rules.push(format!("counter name \"closed\" drop comment \"{}\"", comment(format_args!("{direction} of {pod}"))));
    Chain { name, comment: String::new(), rules }
}
