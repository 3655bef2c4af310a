//! The index from a domain name to the rules whose patterns match it.

use ahash::AHashMap;

use crate::{Key, NameSet, Rule, RuleList, Verdict};

/// The positions of a list's rules that name domains, by domain name. A lookup hashes the name and each of its parents once, whatever the
/// number of patterns.
#[derive(Debug, Default)]
pub(crate) struct NameIndex {
    /// By the name of a pattern without a star: the rules' positions in the list, ascending.
    exact: AHashMap<Box<str>, Vec<u32>>,
    /// By the name of a pattern with a star, without the star: the rules' positions in the list, ascending.
    below: AHashMap<Box<str>, Vec<u32>>,
}

impl NameIndex {
    /// Returns the index of a list. `None` if no rule names domains.
    pub(crate) fn of<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> Option<Self> {
        let mut index = Self::default();
        for (at, rule) in (0..).zip(rules) {
            for pattern in rule.names.iter().flat_map(NameSet::patterns) {
                let (name, is_below) = pattern.parts();
                let by_name = if is_below { &mut index.below } else { &mut index.exact };
                by_name.entry(name.into()).or_default().push(at);
            }
        }
        (!index.exact.is_empty() || !index.below.is_empty()).then_some(index)
    }

    /// Whether a pattern of any rule matches a name in lower case without a final dot.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.exact.contains_key(name) || parents(name).any(|parent| self.below.contains_key(parent))
    }

    /// Returns the verdict of the first rule that has a pattern for this name and otherwise matches the key. [`Verdict::NO_MATCH`] if no
    /// rule does. `rules` is the indexed list.
    pub(crate) fn lookup(&self, name: &str, key: &Key, rules: &RuleList) -> Verdict {
        let lists = self.exact.get(name).into_iter().chain(parents(name).filter_map(|parent| self.below.get(parent)));
        let first = |list: &Vec<u32>| {
            list.iter().find_map(|&at| {
                let rule = rules.get(at as usize).filter(|rule| rule.matches_named(key))?;
                Some(Verdict::by(rule.action, at))
            })
        };
        lists.filter_map(first).min_by_key(|verdict| verdict.code()).unwrap_or(Verdict::NO_MATCH)
    }

    /// Returns the maximum number of rules that a lookup of any name verifies.
    pub(crate) fn longest(&self) -> usize {
        let below = |name: &str| self.below.get(name).map_or(0, Vec::len);
        let above = |name: &str| parents(name).map(below).sum::<usize>();
        let exact = self.exact.iter().map(|(name, list)| list.len() + above(name));
        exact.chain(self.below.keys().map(|name| below(name) + above(name))).max().unwrap_or_default()
    }

    /// Returns the estimated heap use in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let of = |map: &AHashMap<Box<str>, Vec<u32>>| -> usize {
            map.iter().map(|(name, list)| size_of::<(Box<str>, Vec<u32>)>() + name.len() + 4 * list.capacity()).sum()
        };
        of(&self.exact) + of(&self.below)
    }
}

/// Returns the names that a name is below: `example.com` and `com` for `www.example.com`.
fn parents(name: &str) -> impl Iterator<Item = &str> {
    name.match_indices('.').map(|(dot, _)| &name[dot + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Action, Addresses, BuildOptions, Change, OriginId, PortRange, Service, ServiceSet, Tables, linear, protocol,
    };

    fn named(names: &[&str], port: u16, origin: u32) -> Rule {
        let service = Service { protocols: (protocol::TCP, protocol::TCP), ports: PortRange::one(port) };
        Rule {
            names: Some(names.iter().map(|name| name.parse().unwrap()).collect()),
            services: [service].into_iter().collect::<ServiceSet>().into(),
            ..Rule::any(Action::Allow, OriginId(origin))
        }
    }

    fn list() -> Vec<Rule> {
        let block = Addresses::prefix("192.0.2.128/25".parse().unwrap());
        vec![
            Rule { dst: block, ..Rule::any(Action::Deny, OriginId(0)) },
            named(&["www.example.com", "*.example.org"], 443, 1),
            named(&["www.example.com"], 80, 2),
            Rule::any(Action::Deny, OriginId(3)),
            named(&["www.example.com"], 22, 4),
        ]
    }

    /// Returns the list without the rules that name domains.
    fn plain() -> Vec<Rule> {
        list().into_iter().filter(|rule| rule.names.is_none()).collect()
    }

    fn key(dst: [u8; 4], port: u16) -> Key {
        Key::new([10, 0, 0, 1].into(), dst.into(), protocol::TCP, 50_000, port)
    }

    /// Returns the position of the first rule that matches a destination with these names.
    fn first(tables: &Tables, key: &Key, names: &[&str]) -> Option<usize> {
        let all = names.iter().map(|name| tables.lookup_name(key, name)).chain([tables.lookup(key)]);
        all.reduce(|first, next| if next.precedes(first) { next } else { first })?.rule()
    }

    #[test]
    fn a_rule_that_names_domains_matches_only_with_a_name_and_in_its_place() {
        let tables = Tables::build(list()).unwrap();
        for (names, dst, port, rule) in [
            (&[][..], [192, 0, 2, 1], 443, 3),
            (&["www.example.com"][..], [192, 0, 2, 1], 443, 1),
            (&["www.example.com"], [192, 0, 2, 1], 80, 2),
            (&["www.example.com"], [192, 0, 2, 1], 22, 3),
            (&["a.b.example.org"], [192, 0, 2, 1], 443, 1),
            (&["example.org"], [192, 0, 2, 1], 443, 3),
            (&["other.com", "www.example.com"], [192, 0, 2, 1], 443, 1),
            (&["www.example.com"], [192, 0, 2, 200], 443, 0),
        ] {
            assert_eq!(first(&tables, &key(dst, port), names), Some(rule), "{names:?} {dst:?} {port}");
        }
        assert_eq!(tables.worst_case().entries, Tables::build(plain()).unwrap().worst_case().entries + 3);
        assert!(tables.names("www.example.com") && tables.names("x.example.org") && !tables.names("example.org"));
        // Without names, the list is as if the rules were not there.
        for port in [22, 80, 443] {
            let key = key([192, 0, 2, 1], port);
            assert_eq!(tables.lookup(&key), linear::scan(&list(), &key));
        }
    }

    #[test]
    fn an_updated_list_names_what_its_rules_name() {
        let tables = Tables::build(list()).unwrap();
        let options = BuildOptions::default();
        let key = key([192, 0, 2, 1], 443);
        let without = tables.update(&[Change::Remove { at: 1 }], &options).unwrap();
        assert_eq!(first(&without, &key, &["www.example.com"]), Some(2), "the deny is now third");
        let again = without
            .update(&[Change::Insert { at: 0, rule: named(&["*.com"].map(|_| "www.example.com"), 443, 9) }], &options);
        assert_eq!(first(&again.unwrap(), &key, &["www.example.com"]), Some(0));
        let none = tables.changed_to(&plain(), &options).unwrap();
        assert!(!none.names("www.example.com"));
        let back = none.changed_to(&list(), &options).unwrap();
        assert_eq!(first(&back, &key, &["www.example.com"]), Some(1));
        assert_eq!(first(&Tables::scanned(list()).unwrap(), &key, &["www.example.com"]), Some(1));
    }
}
