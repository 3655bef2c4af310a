//! The index from a domain name to the rules whose patterns match it.

use ahash::AHashMap;

use crate::names::Indexed;
use crate::{Key, NamePattern, NameSet, Rule, RuleList, Verdict};

/// The positions of a list's rules that name domains, by domain name. A lookup hashes the name and each of its parents once, whatever the
/// number of patterns, and compares the name only with patterns that have stars inside labels.
#[derive(Debug, Default)]
pub(crate) struct NameIndex {
    /// By the name of a pattern without a star: the rules' positions in the list, ascending.
    exact: AHashMap<Box<str>, Vec<u32>>,
    /// By the name of a pattern with a star, without the star: the rules' positions in the list, ascending.
    below: AHashMap<Box<str>, Vec<u32>>,
    /// By the name below which a pattern with stars inside labels matches: the patterns, with the rules' positions in the list, ascending.
    among: AHashMap<Box<str>, Vec<(NamePattern, u32)>>,
}

impl NameIndex {
    /// Returns the index of a list. `None` if no rule names domains.
    pub(crate) fn of<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> Option<Self> {
        let mut index = Self::default();
        for (at, rule) in (0..).zip(rules) {
            for pattern in rule.names.iter().flat_map(NameSet::patterns) {
                match pattern.place() {
                    Indexed::At(name) => index.exact.entry(name.into()).or_default().push(at),
                    Indexed::Below(name) => index.below.entry(name.into()).or_default().push(at),
                    Indexed::Among(name) => index.among.entry(name.into()).or_default().push((pattern.clone(), at)),
                }
            }
        }
        (!index.exact.is_empty() || !index.below.is_empty() || !index.among.is_empty()).then_some(index)
    }

    /// Whether a pattern of any rule matches a name in lower case without a final dot.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.exact.contains_key(name)
            || parents(name).any(|parent| self.below.contains_key(parent))
            || self.with_stars(name).any(|list| list.iter().any(|(pattern, _)| pattern.matches(name)))
    }

    /// Returns the verdict of the first rule that has a pattern for this name and otherwise matches the key. [`Verdict::NO_MATCH`] if no
    /// rule does. `rules` is the indexed list.
    pub(crate) fn lookup(&self, name: &str, key: &Key, rules: &RuleList) -> Verdict {
        let verdict = |at: u32| {
            let rule = rules.get(at as usize).filter(|rule| rule.matches_named(key))?;
            Some(Verdict::by(rule.action, at))
        };
        let lists = self.exact.get(name).into_iter().chain(parents(name).filter_map(|parent| self.below.get(parent)));
        let first = |list: &Vec<u32>| list.iter().find_map(|&at| verdict(at));
        let with_stars = self.with_stars(name).filter_map(|list| {
            let mut matching = list.iter().filter(|(pattern, _)| pattern.matches(name));
            matching.find_map(|&(_, at)| verdict(at))
        });
        let all = lists.filter_map(first).chain(with_stars);
        all.min_by_key(|verdict| verdict.code()).unwrap_or(Verdict::NO_MATCH)
    }

    /// Returns the patterns with stars inside labels that may match a name.
    fn with_stars<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Vec<(NamePattern, u32)>> {
        // Most lists have none.
        let parents = (!self.among.is_empty()).then(|| parents(name).chain([""]));
        parents.into_iter().flatten().filter_map(|parent| self.among.get(parent))
    }

    /// Returns the maximum number of rules that a lookup of any name verifies.
    pub(crate) fn longest(&self) -> usize {
        let of = |name: &str| self.below.get(name).map_or(0, Vec::len) + self.among.get(name).map_or(0, Vec::len);
        let above = |name: &str| parents(name).chain([""]).map(of).sum::<usize>();
        let exact = self.exact.iter().map(|(name, list)| list.len() + above(name));
        let below = self.below.keys().chain(self.among.keys()).filter(|name| !name.is_empty());
        let longest = exact.chain(below.map(|name| of(name) + above(name))).max();
        longest.unwrap_or_default().max(of(""))
    }

    /// Returns the estimated heap use in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let of = |map: &AHashMap<Box<str>, Vec<u32>>| -> usize {
            map.iter().map(|(name, list)| size_of::<(Box<str>, Vec<u32>)>() + name.len() + 4 * list.capacity()).sum()
        };
        let with_stars = self.among.iter().map(|(name, list)| {
            let patterns: usize = list.iter().map(|(pattern, _)| pattern.bytes()).sum();
            size_of::<(Box<str>, Vec<(NamePattern, u32)>)>() + name.len() + patterns
        });
        of(&self.exact) + of(&self.below) + with_stars.sum::<usize>()
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
    fn a_form_with_stars_is_found_wherever_its_stars_are() {
        let forms =
            ["*", "www.*", "*.com", "a*.example.com", "**.example.com", "*.example.*", "x.example.com", "*.b.*.com"];
        let names = ["x.example.com", "abc.example.com", "a.b.example.com", "www.org", "com", "y.com", "q.b.c.com"];
        let text = |form: &str| format!("matchPattern:{form}");
        let (mut hits, mut misses) = (0, 0);
        for name in names {
            for (at, form) in forms.iter().enumerate() {
                let before = (0..at).map(|at| named(&[&text(forms[at])], 80, 0));
                let rules: Vec<_> = before.chain([named(&[&text(form), "other.example.net"], 443, 1)]).collect();
                let tables = Tables::build(rules).unwrap();
                let expected = text(form).parse::<NamePattern>().unwrap().matches(name).then_some(at);
                assert_eq!(first(&tables, &key([192, 0, 2, 1], 443), &[name]), expected, "{form} {name}");
                assert!(tables.names(name), "the lone star");
                if expected.is_some() { hits += 1 } else { misses += 1 }
            }
        }
        assert!(hits > 10 && misses > 10, "{hits} {misses}");
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
