//! What a person has chosen to see.

use std::cmp::Ordering;

use super::keys::Key;
use super::picture::{Picture, PortRates, Traffic};
use crate::args::PortOrder;

/// Characters of a filter: no name of a port is longer (a namespace and a pod, RFC 1123 labels and a name of 253).
const LONGEST_FILTER: usize = 320;

/// Rows that a page moves the ports by. The screen says how far it can.
const PAGE: usize = 10;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Choices {
    /// The order of the ports.
    pub(super) order: PortOrder,
    /// What is in the names of the ports that are shown.
    pub(super) filter: String,
    /// Whether the filter is being typed, and what it was before.
    typing: Option<String>,
    /// Whether the screen stays as it is.
    pub(super) is_paused: bool,
    /// Whether the keys are explained.
    pub(super) shows_help: bool,
    /// The first port that is shown, of those that match.
    pub(super) first: usize,
}

/// What follows from a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// It is over.
    Quit,
    /// Something else is to be shown.
    Show,
    /// All of the screen is to be drawn again: somebody else has written on it.
    Redraw,
    /// Nothing.
    Nothing,
}

impl Choices {
    pub(super) fn new(order: PortOrder, filter: &str) -> Self {
        Self { order, filter: filter.to_owned(), typing: None, is_paused: false, shows_help: false, first: 0 }
    }

    /// Whether the filter is being typed.
    pub(super) const fn is_typing(&self) -> bool {
        self.typing.is_some()
    }

    /// A key was pressed while `ports` match.
    pub(super) fn press(&mut self, key: Key, ports: usize) -> Effect {
        if key == Key::Interrupt {
            return Effect::Quit;
        }
        if self.typing.is_some() {
            return self.type_filter(key);
        }
        let before = self.first;
        match key {
            Key::Char('q' | 'Q') => return Effect::Quit,
            // Whoever looks at the help wants it away, by whatever key.
            _ if self.shows_help => self.shows_help = false,
            Key::Char('?' | 'h') => self.shows_help = true,
            Key::Char('p') => self.arrange(PortOrder::Packets),
            Key::Char('b') => self.arrange(PortOrder::Bits),
            Key::Char('d') => self.arrange(PortOrder::Drops),
            Key::Char('s') => self.arrange(PortOrder::Sessions),
            Key::Char('n') => self.arrange(PortOrder::Name),
            Key::Char('/') => self.typing = Some(self.filter.clone()),
            Key::Char(' ') => self.is_paused = !self.is_paused,
            Key::Escape => self.seek(""),
            Key::Redraw => return Effect::Redraw,
            Key::Up => self.first = before.saturating_sub(1),
            Key::Down => self.first = before + 1,
            Key::PageUp => self.first = before.saturating_sub(PAGE),
            Key::PageDown => self.first = before + PAGE,
            Key::Home => self.first = 0,
            Key::End => self.first = ports,
            _ => return Effect::Nothing,
        }
        self.first = self.first.min(ports.saturating_sub(1));
        Effect::Show
    }

    fn type_filter(&mut self, key: Key) -> Effect {
        let mut filter = self.filter.clone();
        match key {
            Key::Enter => self.typing = None,
            Key::Escape => filter = self.typing.take().unwrap_or_default(),
            Key::Backspace => drop(filter.pop()),
            Key::Char(char) if filter.chars().count() < LONGEST_FILTER => filter.push(char),
            _ => return Effect::Nothing,
        }
        self.seek(&filter);
        Effect::Show
    }

    fn arrange(&mut self, order: PortOrder) {
        (self.order, self.first) = (order, 0);
    }

    fn seek(&mut self, filter: &str) {
        if self.filter != filter {
            (self.filter, self.first) = (filter.to_owned(), 0);
        }
    }

    /// The ports that match, in order. Equal ones stay in the vswitch's order, so that rows do not change places.
    pub(super) fn ports<'a>(&self, picture: &'a Picture) -> Vec<&'a PortRates> {
        let mut ports: Vec<&PortRates> =
            picture.ports.iter().filter(|port| port.name.contains(&*self.filter)).collect();
        match self.order {
            PortOrder::Packets => ports.sort_by(most(Traffic::packets)),
            PortOrder::Bits => ports.sort_by(most(Traffic::bits)),
            PortOrder::Drops => ports.sort_by(|one, other| one.traffic.drops().most_first(&other.traffic.drops())),
            PortOrder::Sessions => ports.sort_by_key(|port| std::cmp::Reverse(port.sessions)),
            PortOrder::Name => ports.sort_by(|one, other| one.name.cmp(&other.name)),
        }
        ports
    }
}

/// The most first.
fn most(of: fn(&Traffic) -> f64) -> impl Fn(&&PortRates, &&PortRates) -> Ordering {
    move |one, other| of(&other.traffic).total_cmp(&of(&one.traffic))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choices() -> Choices {
        Choices::new(PortOrder::Packets, "")
    }

    fn press(choices: &mut Choices, keys: &str) -> Effect {
        keys.chars().map(|key| choices.press(Key::Char(key), 100)).last().unwrap()
    }

    fn port(name: &str, packets: f64, dropped: u64, sessions: u64) -> PortRates {
        PortRates {
            name: name.into(),
            traffic: Traffic { packets_in: Some(packets), dropped_total: dropped, ..Traffic::default() },
            sessions: Some(sessions),
            ..PortRates::default()
        }
    }

    #[test]
    fn keys_change_the_order_and_the_pause_and_end_it() {
        let mut choices = choices();
        for (key, order) in
            [("b", PortOrder::Bits), ("d", PortOrder::Drops), ("s", PortOrder::Sessions), ("n", PortOrder::Name)]
        {
            assert_eq!((press(&mut choices, key), choices.order), (Effect::Show, order));
        }
        press(&mut choices, " ");
        assert!(choices.is_paused);
        press(&mut choices, "?");
        assert!(choices.shows_help);
        press(&mut choices, "p");
        assert!(!choices.shows_help && choices.order == PortOrder::Name, "the key has put the help away");
        assert_eq!((press(&mut choices, "x"), press(&mut choices, "q")), (Effect::Nothing, Effect::Quit));
        assert_eq!(choices.press(Key::Interrupt, 0), Effect::Quit);
    }

    #[test]
    fn a_filter_is_typed_in_which_no_letter_is_a_command() {
        let mut choices = choices();
        press(&mut choices, "/shop q");
        assert!(choices.is_typing() && choices.filter == "shop q");
        choices.press(Key::Backspace, 1);
        choices.press(Key::Enter, 1);
        assert_eq!((choices.is_typing(), &*choices.filter), (false, "shop "));
        press(&mut choices, "/x");
        choices.press(Key::Escape, 1);
        assert_eq!((choices.is_typing(), &*choices.filter), (false, "shop "), "as it was");
        choices.press(Key::Escape, 1);
        assert_eq!(choices.filter, "");
        press(&mut choices, "/");
        assert_eq!(choices.press(Key::Interrupt, 1), Effect::Quit);
        choices.filter = "x".repeat(LONGEST_FILTER);
        press(&mut choices, "y");
        assert_eq!(choices.filter.len(), LONGEST_FILTER);
    }

    #[test]
    fn ports_are_ordered_and_chosen() {
        let ports = vec![port("b", 1.0, 9, 0), port("c", 3.0, 0, 1), port("a", 1.0, 0, 5)];
        let picture = Picture { ports, ..Picture::default() };
        let names = |choices: &Choices| choices.ports(&picture).iter().map(|port| &*port.name).collect::<String>();
        let mut choices = choices();
        assert_eq!(names(&choices), "cba");
        for (key, expected) in [("d", "bca"), ("s", "acb"), ("n", "abc")] {
            press(&mut choices, key);
            assert_eq!(names(&choices), expected, "{key}");
        }
        choices.filter = "c".into();
        assert_eq!(names(&choices), "c");
    }

    #[test]
    fn one_cannot_scroll_past_the_last_port() {
        let mut choices = choices();
        for key in [Key::Down, Key::PageDown, Key::End, Key::PageDown] {
            choices.press(key, 12);
        }
        assert_eq!(choices.first, 11);
        choices.press(Key::PageUp, 12);
        choices.press(Key::Home, 12);
        choices.press(Key::Up, 0);
        assert_eq!(choices.first, 0);
    }
}
