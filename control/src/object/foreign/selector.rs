//! Calico's selectors: parses them, and tells whether they hold for a set of labels.
//!
//! Source: projectcalico/calico, `libcalico-go/lib/selector`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::selector::{Condition, Requirement};

/// Maximum depth of nested parentheses, so that no selector exhausts the stack.
const MAX_DEPTH: usize = 64;

/// Maximum length of a selector, in bytes. Calico's own limit for the selectors of rules is 1024.
const MAX_LENGTH: usize = 64 << 10;

/// Maximum length of a label's key, in bytes.
const MAX_KEY: usize = 512;

/// A condition on labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Selector {
    /// `all()` or an empty text: holds for every endpoint.
    All,
    /// `global()`: in a `namespaceSelector`, holds for endpoints and sets without a namespace.
    Global,
    /// A condition on one label.
    Label(Requirement),
    /// `!`: the selector does not hold.
    Not(Box<Selector>),
    /// `&&`: all selectors hold.
    And(Vec<Selector>),
    /// `||`: at least one selector holds.
    Or(Vec<Selector>),
}

impl Selector {
    /// Parses a selector.
    ///
    /// # Errors
    /// A message that names the fault and its place.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_LENGTH {
            return Err(format!("the selector is longer than {MAX_LENGTH} bytes"));
        }
        let mut parser = Parser { rest: text, text };
        parser.skip_space();
        if parser.rest.is_empty() {
            return Ok(Self::All);
        }
        let selector = parser.or(0)?;
        match parser.rest.is_empty() {
            true => Ok(selector),
            false => Err(parser.unexpected("`&&` or `||`")),
        }
    }

    /// Whether the selector holds for labels. `label` returns a label's value, `None` if it is missing.
    pub fn holds<'a>(&self, label: &impl Fn(&str) -> Option<&'a Arc<str>>) -> bool {
        match self {
            Self::All | Self::Global => true,
            Self::Label(requirement) => requirement.condition.holds(label(&requirement.key)),
            Self::Not(selector) => !selector.holds(label),
            Self::And(selectors) => selectors.iter().all(|selector| selector.holds(label)),
            Self::Or(selectors) => selectors.iter().any(|selector| selector.holds(label)),
        }
    }

    /// Whether `global()` occurs in the selector.
    pub fn has_global(&self) -> bool {
        match self {
            Self::Global => true,
            Self::All | Self::Label(_) => false,
            Self::Not(selector) => selector.has_global(),
            Self::And(selectors) | Self::Or(selectors) => selectors.iter().any(Self::has_global),
        }
    }

    /// Returns the selector with another selector instead of each of its parts that has no parts itself.
    #[must_use]
    pub(crate) fn map(&self, part: &impl Fn(&Self) -> Self) -> Self {
        match self {
            Self::All | Self::Global | Self::Label(_) => part(self),
            Self::Not(selector) => Self::Not(Box::new(selector.map(part))),
            Self::And(selectors) => Self::And(selectors.iter().map(|selector| selector.map(part)).collect()),
            Self::Or(selectors) => Self::Or(selectors.iter().map(|selector| selector.map(part)).collect()),
        }
    }

    /// Whether a part of the selector that has no parts itself is of a kind.
    pub(crate) fn any(&self, is_such: &impl Fn(&Self) -> bool) -> bool {
        match self {
            Self::All | Self::Global | Self::Label(_) => is_such(self),
            Self::Not(selector) => selector.any(is_such),
            Self::And(selectors) | Self::Or(selectors) => selectors.iter().any(|selector| selector.any(is_such)),
        }
    }
}

struct Parser<'a> {
    /// The text that is not yet parsed. It does not start with white space.
    rest: &'a str,
    text: &'a str,
}

impl<'a> Parser<'a> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t']);
    }

    fn unexpected(&self, expected: &str) -> String {
        let at = self.text[..self.text.len() - self.rest.len()].chars().count() + 1;
        match self.rest.chars().next() {
            Some(found) => format!("expected {expected} at character {at}, found `{found}`"),
            None => format!("expected {expected} at the end"),
        }
    }

    /// Takes a symbol, if the text goes on with it.
    fn takes(&mut self, symbol: &str) -> bool {
        let Some(rest) = self.rest.strip_prefix(symbol) else { return false };
        self.rest = rest;
        self.skip_space();
        true
    }

    fn wants(&mut self, symbol: &str) -> Result<(), String> {
        if self.takes(symbol) { Ok(()) } else { Err(self.unexpected(&format!("`{symbol}`"))) }
    }

    /// Takes words, with or without white space between them, if the text goes on with them and no word ends later.
    fn takes_words(&mut self, words: &[&str]) -> bool {
        let before = self.rest;
        for word in words {
            let Some(rest) = self.rest.strip_prefix(word) else {
                self.rest = before;
                return false;
            };
            self.rest = rest;
            self.skip_space();
        }
        let taken = &before[..before.len() - self.rest.len()];
        let is_whole = taken.ends_with([' ', '\t']) || !self.rest.starts_with(is_of_key);
        if !is_whole {
            self.rest = before;
        }
        is_whole
    }

    fn or(&mut self, depth: usize) -> Result<Selector, String> {
        let mut all = vec![self.and(depth)?];
        while self.takes("||") {
            all.push(self.and(depth)?);
        }
        Ok(single(all, Selector::Or))
    }

    fn and(&mut self, depth: usize) -> Result<Selector, String> {
        let mut all = vec![self.operation(depth)?];
        while self.takes("&&") {
            all.push(self.operation(depth)?);
        }
        Ok(single(all, Selector::And))
    }

    fn operation(&mut self, depth: usize) -> Result<Selector, String> {
        let mut is_negated = false;
        while self.rest.starts_with('!') && !self.rest.starts_with("!=") {
            self.takes("!");
            is_negated = !is_negated;
        }
        let selector = self.plain(depth)?;
        Ok(if is_negated { Selector::Not(Box::new(selector)) } else { selector })
    }

    fn plain(&mut self, depth: usize) -> Result<Selector, String> {
        if self.takes("(") {
            if depth == MAX_DEPTH {
                return Err(format!("more than {MAX_DEPTH} nested parentheses"));
            }
            let inner = self.or(depth + 1)?;
            self.wants(")")?;
            return Ok(inner);
        }
        for (name, selector) in [("all(", Selector::All), ("global(", Selector::Global)] {
            if self.takes(name) {
                self.wants(")")?;
                return Ok(selector);
            }
        }
        if self.takes("has(") {
            let key = self.key()?;
            self.wants(")")?;
            return Ok(Selector::Label(Requirement { key, condition: Condition::Exists }));
        }
        let key = self.key()?;
        let condition = self.condition()?;
        Ok(Selector::Label(Requirement { key, condition }))
    }

    fn condition(&mut self) -> Result<Condition, String> {
        if self.takes("==") {
            return Ok(Condition::In(vec![self.literal()?]));
        }
        if self.takes("!=") {
            return Ok(Condition::NotIn(vec![self.literal()?]));
        }
        if self.takes_words(&["contains"]) {
            return Ok(Condition::Contains(self.literal()?));
        }
        if self.takes_words(&["starts", "with"]) {
            return Ok(Condition::StartsWith(self.literal()?));
        }
        if self.takes_words(&["ends", "with"]) {
            return Ok(Condition::EndsWith(self.literal()?));
        }
        if self.takes_words(&["not", "in"]) {
            return Ok(Condition::NotIn(self.literals()?));
        }
        if self.takes_words(&["in"]) {
            return Ok(Condition::In(self.literals()?));
        }
        Err(self.unexpected("`==`, `!=`, `in`, `not in`, `contains`, `starts with` or `ends with`"))
    }

    fn key(&mut self) -> Result<Arc<str>, String> {
        let end = self.rest.find(|letter| !is_of_key(letter)).unwrap_or(self.rest.len());
        let key = &self.rest[..end];
        if key.is_empty() {
            return Err(self.unexpected("a label"));
        }
        if key.len() > MAX_KEY {
            return Err(format!("a label of more than {MAX_KEY} characters"));
        }
        self.rest = &self.rest[end..];
        self.skip_space();
        Ok(key.into())
    }

    fn literal(&mut self) -> Result<Arc<str>, String> {
        let quote = self.rest.chars().next().filter(|letter| matches!(letter, '"' | '\''));
        let Some(quote) = quote else { return Err(self.unexpected("a text in quotes")) };
        let inner = &self.rest[1..];
        let Some(end) = inner.find(quote) else { return Err("a text has no closing quote".to_owned()) };
        self.rest = &inner[end + 1..];
        self.skip_space();
        Ok(inner[..end].into())
    }

    /// Parses a set of texts. It may be empty, and a comma may follow its last text.
    fn literals(&mut self) -> Result<Vec<Arc<str>>, String> {
        self.wants("{")?;
        let mut all = Vec::new();
        while self.rest.starts_with(['"', '\'']) {
            all.push(self.literal()?);
            if !self.takes(",") {
                break;
            }
        }
        self.wants("}")?;
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }
}

fn single(mut all: Vec<Selector>, several: impl Fn(Vec<Selector>) -> Selector) -> Selector {
    if all.len() == 1 { all.remove(0) } else { several(all) }
}

fn is_of_key(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.' | '/' | '-')
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn holds(text: &str, labels: &[(&str, &str)]) -> bool {
        let labels: BTreeMap<&str, Arc<str>> = labels.iter().map(|&(key, value)| (key, value.into())).collect();
        Selector::parse(text).unwrap().holds(&|key| labels.get(key))
    }

    #[test]
    fn or_binds_weaker_than_and_and_not_binds_strongest() {
        let either = "a == 'x' || b == 'x' && c == 'x'";
        assert!(holds(either, &[("a", "x")]) && !holds(either, &[("b", "x")]));
        assert!(holds(either, &[("b", "x"), ("c", "x")]));
        let grouped = "(a == 'x' || b == 'x') && c == 'x'";
        assert!(!holds(grouped, &[("a", "x")]) && holds(grouped, &[("a", "x"), ("c", "x")]));
        assert!(
            holds("!has(a) && b == \"y\"", &[("b", "y")]) && !holds("!has(a) && b == 'y'", &[("a", ""), ("b", "y")])
        );
        assert!(holds("!!has(a)", &[("a", "")]) && holds("! ( has(a) && has(b) )", &[("a", "")]));
    }

    #[test]
    fn negative_operators_hold_without_the_label_and_string_operators_do_not() {
        for text in ["a != 'x'", "a not in {'x', 'y'}", "a notin {'x'}", "!has(a)", "a not in {}"] {
            assert!(holds(text, &[]), "{text}");
        }
        for text in ["a contains 'x'", "a starts with 'x'", "a ends with 'x'", "a == 'x'", "a in {'x'}", "a in {}"] {
            assert!(!holds(text, &[]), "{text}");
        }
        assert!(holds("a contains 'b'", &[("a", "abc")]) && !holds("a contains 'bd'", &[("a", "abc")]));
        assert!(holds("a starts with 'ab'", &[("a", "abc")]) && !holds("a startswith 'b'", &[("a", "abc")]));
        assert!(holds("a ends with 'bc'", &[("a", "abc")]) && !holds("a ends with 'b'", &[("a", "abc")]));
        assert!(!holds("a not in {'x'}", &[("a", "x")]) && holds("a in { 'y' , \"x\", }", &[("a", "x")]));
    }

    #[test]
    fn an_empty_text_selects_everything_and_texts_have_no_escapes() {
        for text in ["", "  ", "all()", "all( )", "global()"] {
            assert!(holds(text, &[]), "{text}");
        }
        assert!(holds(r"a == 'x\'", &[("a", r"x\")]) && holds("a == \"it's\"", &[("a", "it's")]));
        assert!(holds("pcns.kubernetes.io/x in{'y'}", &[("pcns.kubernetes.io/x", "y")]));
    }

    #[test]
    fn a_faulty_selector_is_refused_with_its_place() {
        for (text, part) in [
            ("a = 'x'", "expected `==`"),
            ("a == x", "expected a text in quotes at character 6, found `x`"),
            ("a == 'x", "no closing quote"),
            ("a", "at the end"),
            ("a == 'x' b == 'y'", "expected `&&` or `||` at character 10"),
            ("(a == 'x'", "expected `)`"),
            ("has(a", "expected `)`"),
            ("a contained 'x'", "expected `==`"),
            ("&& a == 'x'", "expected a label"),
            ("a in 'x'", "expected `{`"),
            ("a in {'x'", "expected `}`"),
            ("a == 'x' &", "expected `&&`"),
            ("\u{e4} == 'x'", "expected a label"),
        ] {
            let error = Selector::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn deep_and_long_texts_are_refused_and_exhaust_nothing() {
        let nested = |depth: usize| format!("{}has(a){}", "(".repeat(depth), ")".repeat(depth));
        assert!(Selector::parse(&nested(MAX_DEPTH)).is_ok());
        assert!(Selector::parse(&nested(MAX_DEPTH + 1)).unwrap_err().contains("nested"));
        assert!(holds(&format!("{}has(a)", "!".repeat(1001)), &[]));
        assert!(Selector::parse(&" ".repeat(MAX_LENGTH + 1)).unwrap_err().contains("longer"));
        assert!(Selector::parse(&format!("has({})", "a".repeat(MAX_KEY + 1))).is_err());
    }
}
