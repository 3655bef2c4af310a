//! Parses tokens to a syntax tree.

use std::net::IpAddr;

use bulkhead_classifier::protocol;
use ipnet::{IpNet, Ipv4Net};

use super::predicate::{Predicate, Sides};
use super::token::{Spanned, Token, tokens};
use super::{DEEPEST, FilterError, MOST_TESTS};

/// The syntax tree of a filter expression.
#[derive(Clone, Debug)]
pub(super) enum Tree {
    Test(Predicate),
    Not(Box<Self>),
    All(Vec<Self>),
    Any(Vec<Self>),
}

/// The kind of a value, as the keyword before it says: `host`, `net`, `port`, `portrange` or `proto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Host,
    Net,
    Port,
    PortRange,
    Proto,
}

/// The keywords before a value, or those taken over from the previous value.
#[derive(Clone, Copy, Debug)]
struct Qualifiers {
    /// Address family and protocol, such as `ip6` and `tcp`. `None` without a qualifier.
    v6: Option<bool>,
    protocol: Option<u8>,
    sides: Sides,
    kind: Kind,
}

/// Port names that a filter may use, as in /etc/services.
const NAMED: [(&str, u16); 7] =
    [("http", 80), ("https", 443), ("domain", 53), ("ssh", 22), ("ntp", 123), ("smtp", 25), ("dns", 53)];

/// Keywords of `pcap-filter(7)` that are not supported.
const OTHERS: [&str; 16] = [
    "ether",
    "arp",
    "rarp",
    "vlan",
    "mpls",
    "len",
    "less",
    "greater",
    "gateway",
    "broadcast",
    "multicast",
    "inbound",
    "outbound",
    "ah",
    "esp",
    "igmp",
];

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Spanned<'a>>,
    at: usize,
    tests: usize,
    depth: usize,
    last: Option<Qualifiers>,
}

/// Parses an expression. `None` for an empty one.
pub(super) fn parse(text: &str) -> Result<Option<Tree>, FilterError> {
    let tokens = tokens(text)?;
    if tokens.is_empty() {
        return Ok(None);
    }
    let mut parser = Parser { text, tokens, at: 0, tests: 0, depth: 0, last: None };
    let tree = parser.expression()?;
    match parser.peek() {
        None => Ok(Some(tree)),
        Some(Token::Close) => Err(parser.wrong("there is no `(` for this `)`", "")),
        Some(_) => Err(parser.wrong("`and` or `or` is missing before this", "")),
    }
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|spanned| spanned.token)
    }

    fn next(&mut self) -> Option<Token<'a>> {
        let token = self.peek();
        self.at += usize::from(token.is_some());
        token
    }

    /// Returns an error at the next token, or at the end.
    fn wrong(&self, message: impl Into<String>, help: &str) -> FilterError {
        let end = self.text.len();
        let span = self.tokens.get(self.at).map_or((end, end), |spanned| spanned.span);
        FilterError::new(self.text, span, message, help)
    }

    /// Parses tests joined by `and` and `or`, which have equal precedence and associate to the left.
    fn expression(&mut self) -> Result<Tree, FilterError> {
        let mut tree = self.factor()?;
        loop {
            match self.peek() {
                Some(Token::And) => {
                    self.at += 1;
                    let next = self.factor()?;
                    tree = match tree {
                        Tree::All(mut all) => {
                            all.push(next);
                            Tree::All(all)
                        }
                        tree => Tree::All(vec![tree, next]),
                    };
                }
                Some(Token::Or) => {
                    self.at += 1;
                    let next = self.factor()?;
                    tree = match tree {
                        Tree::Any(mut any) => {
                            any.push(next);
                            Tree::Any(any)
                        }
                        tree => Tree::Any(vec![tree, next]),
                    };
                }
                _ => return Ok(tree),
            }
        }
    }

    /// Parses a test or a parenthesised expression, with any number of `not` before it.
    fn factor(&mut self) -> Result<Tree, FilterError> {
        let mut is_turned = false;
        while self.peek() == Some(Token::Not) {
            self.at += 1;
            is_turned = !is_turned;
        }
        let tree = match self.peek() {
            Some(Token::Open) => {
                if self.depth == DEEPEST {
                    return Err(self.wrong(format!("more than {DEEPEST} nested parentheses"), ""));
                }
                (self.at, self.depth) = (self.at + 1, self.depth + 1);
                let tree = self.expression()?;
                self.depth -= 1;
                match self.next() {
                    Some(Token::Close) => tree,
                    Some(_) => {
                        self.at -= 1;
                        return Err(self.wrong("`and`, `or` or `)` is missing before this", ""));
                    }
                    None => return Err(self.wrong("a `)` is missing", "")),
                }
            }
            _ => self.primitive()?,
        };
        Ok(if is_turned { Tree::Not(Box::new(tree)) } else { tree })
    }

    /// Parses qualifiers such as `tcp dst port`, and the value after them.
    fn primitive(&mut self) -> Result<Tree, FilterError> {
        self.tests += 1;
        if self.tests > MOST_TESTS {
            let help = "use networks or port ranges instead";
            return Err(self.wrong(format!("more than {MOST_TESTS} tests"), help));
        }
        let first = self.at;
        let (mut v6, mut protocol) = (None, None);
        if let Some(Token::Word(word)) = self.peek() {
            let named = match word {
                "ip" => Some((Some(false), None)),
                "ip6" => Some((Some(true), None)),
                "tcp" => Some((None, Some(protocol::TCP))),
                "udp" => Some((None, Some(protocol::UDP))),
                "sctp" => Some((None, Some(protocol::SCTP))),
                "icmp" => Some((Some(false), Some(protocol::ICMP))),
                "icmp6" => Some((Some(true), Some(protocol::ICMPV6))),
                _ => None,
            };
            if let Some(named) = named {
                (v6, protocol) = named;
                self.at += 1;
            }
        }
        let sides = self.sides()?;
        let kind = self.kind();
        let has_qualifier = self.at > first;
        let is_value = matches!(self.peek(), Some(Token::Word(_)));
        if !is_value {
            if has_qualifier && sides.is_none() && kind.is_none() {
                self.last = None;
                return Ok(all(family_and_protocol(v6, protocol)));
            }
            let what = match self.peek() {
                None => "the expression ends where a test must be",
                Some(_) => "a test must be here",
            };
            return Err(self.wrong(what, "for example `host 10.0.0.1`, `net 10.0.0.0/8`, `tcp port 80`, `icmp`"));
        }
        let qualifiers = match (has_qualifier, self.last) {
            (false, Some(last)) => last,
            (false, None) => Qualifiers { v6, protocol, sides: Sides::Either, kind: Kind::Host },
            (true, _) => {
                Qualifiers { v6, protocol, sides: sides.unwrap_or(Sides::Either), kind: kind.unwrap_or(Kind::Host) }
            }
        };
        self.last = Some(qualifiers);
        self.value(qualifiers)
    }

    /// Parses `src`, `dst`, `src or dst` or `src and dst`. `None` if the next token is none of them.
    fn sides(&mut self) -> Result<Option<Sides>, FilterError> {
        let side = |token: Option<Token<'_>>| match token {
            Some(Token::Word("src")) => Some(Sides::Source),
            Some(Token::Word("dst")) => Some(Sides::Destination),
            _ => None,
        };
        let Some(first) = side(self.peek()) else { return Ok(None) };
        self.at += 1;
        let joint = self.peek();
        let second = side(self.tokens.get(self.at + 1).map(|spanned| spanned.token));
        match (joint, second) {
            // `src and dst host ..`. In `src 10.0.0.1 and dst ..` a value comes first.
            (Some(Token::And | Token::Or), Some(second)) if second != first => {
                self.at += 2;
                Ok(Some(if joint == Some(Token::And) { Sides::Both } else { Sides::Either }))
            }
            (Some(Token::And | Token::Or), _) => Err(self.wrong("a value must be here", "")),
            _ => Ok(Some(first)),
        }
    }

    fn kind(&mut self) -> Option<Kind> {
        let kind = match self.peek()? {
            Token::Word("host") => Kind::Host,
            Token::Word("net") => Kind::Net,
            Token::Word("port") => Kind::Port,
            Token::Word("portrange") => Kind::PortRange,
            Token::Word("proto") => Kind::Proto,
            _ => return None,
        };
        self.at += 1;
        Some(kind)
    }

    /// Parses the next token as a value of these qualifiers.
    fn value(&mut self, qualifiers: Qualifiers) -> Result<Tree, FilterError> {
        let Some(Token::Word(word)) = self.peek() else { return Err(self.wrong("a value must be here", "")) };
        let Qualifiers { v6, protocol, sides, kind } = qualifiers;
        let mut tests = family_and_protocol(v6, protocol);
        if OTHERS.contains(&word) {
            let help = "filters test addresses, ports and protocols only: host, net, port, portrange, proto, src, dst";
            return Err(self.wrong(format!("`{word}` is not supported"), help));
        }
        let value = match kind {
            Kind::Host | Kind::Net => {
                let net = if kind == Kind::Host { host(word) } else { net(word) };
                let net = net.map_err(|(message, help)| self.wrong(message, help))?;
                let is_v6 = net.network().is_ipv6();
                if v6.is_some_and(|wanted| wanted != is_v6) {
                    return Err(self.wrong("the address belongs to the other family", ""));
                }
                Predicate::net(sides, net)
            }
            Kind::Port | Kind::PortRange => {
                let range = if kind == Kind::Port { port(word).map(|port| (port, port)) } else { port_range(word) };
                let (low, high) = range.map_err(|(message, help)| self.wrong(message, help))?;
                if protocol.is_some_and(|number| matches!(number, protocol::ICMP | protocol::ICMPV6)) {
                    return Err(self.wrong("ICMP has no ports", ""));
                }
                Predicate::Ports(sides, low, high)
            }
            Kind::Proto => Predicate::Protocol(number(word).map_err(|(message, help)| self.wrong(message, help))?),
        };
        self.at += 1;
        tests.push(value);
        Ok(all(tests))
    }
}

fn all(tests: Vec<Predicate>) -> Tree {
    Tree::All(tests.into_iter().map(Tree::Test).collect())
}

fn family_and_protocol(v6: Option<bool>, protocol: Option<u8>) -> Vec<Predicate> {
    // The protocol comes first, because most packets fail it.
    protocol.map(Predicate::Protocol).into_iter().chain(v6.map(Predicate::Family)).collect()
}

/// Message and help of an invalid value.
type Wrong = (String, &'static str);

fn host(word: &str) -> Result<IpNet, Wrong> {
    if word.contains('/') {
        return Err(("a host has no prefix length".to_owned(), "write `net` for a network"));
    }
    let address: Result<IpAddr, _> = word.parse();
    address.map(IpNet::from).map_err(|_| {
        (
            format!("`{word}` is neither an address nor a keyword"),
            "write a host as an address; use --pod for a pod's name",
        )
    })
}

/// Parses a network: `10.0.0.0/8`, `fd00::/8`, or as in libpcap `10.1` for 10.1.0.0/16.
fn net(word: &str) -> Result<IpNet, Wrong> {
    if let Ok(net) = word.parse::<IpNet>() {
        if net.trunc() != net {
            return Err((
                format!("`{word}` has bits set beyond its prefix length"),
                "write the network's first address",
            ));
        }
        return Ok(net);
    }
    if let Ok(address) = word.parse::<IpAddr>() {
        return Ok(address.into());
    }
    let wrong = || (format!("`{word}` is not a network"), "for example `net 10.0.0.0/8` or `net fd00::/8`");
    let parts: Vec<&str> = word.split('.').collect();
    if parts.len() > 3 {
        return Err(wrong());
    }
    let mut octets = [0u8; 4];
    for (octet, part) in octets.iter_mut().zip(&parts) {
        *octet = decimal(part).ok_or_else(wrong)?;
    }
    let length = u8::try_from(8 * parts.len()).map_err(|_| wrong())?;
    Ipv4Net::new(octets.into(), length).map(IpNet::from).map_err(|_| wrong())
}

/// Parses a number from digits only. `None` for any other text, such as `+1`.
fn decimal<T: std::str::FromStr>(word: &str) -> Option<T> {
    word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse().ok()).flatten()
}

fn port(word: &str) -> Result<u16, Wrong> {
    if let Some((_, port)) = NAMED.into_iter().find(|(name, _)| *name == word) {
        return Ok(port);
    }
    decimal(word).ok_or_else(|| ("a port is a number from 0 to 65535".to_owned(), ""))
}

fn port_range(word: &str) -> Result<(u16, u16), Wrong> {
    let wrong = || ("a port range is two numbers, the lower one first".to_owned(), "for example `portrange 8000-8080`");
    let (low, high) = word.split_once('-').ok_or_else(wrong)?;
    let (low, high): (u16, u16) = (decimal(low).ok_or_else(wrong)?, decimal(high).ok_or_else(wrong)?);
    if low <= high { Ok((low, high)) } else { Err(wrong()) }
}

fn number(word: &str) -> Result<u8, Wrong> {
    let named = match word {
        "tcp" => Some(protocol::TCP),
        "udp" => Some(protocol::UDP),
        "sctp" => Some(protocol::SCTP),
        "icmp" => Some(protocol::ICMP),
        "icmp6" => Some(protocol::ICMPV6),
        _ => None,
    };
    named.or_else(|| decimal(word)).ok_or_else(|| ("a protocol is a number from 0 to 255".to_owned(), ""))
}
