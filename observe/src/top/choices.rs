//! The user's choices: order, filter, pause, help and scroll position.

use std::cmp::Ordering;

use super::keys::Key;
use super::picture::{Picture, PortRates, Traffic};
use crate::args::PortOrder;

/// Maximum length of a filter: the longest port name (a namespace, and a pod name of 253 characters, RFC 1123).
const LONGEST_FILTER: usize = 320;

/// Rows per page. The view limits scrolling.
const PAGE: usize = 10;

/// What the user has chosen by keys and arguments.
#[derive(Clone, Debug)]
pub(super) struct Choices {
    pub(super) order: PortOrder,
    /// Text that the names of shown ports contain.
    pub(super) filter: String,
    /// The previous filter while a new one is being typed. `None` otherwise.
    typing: Option<String>,
    /// Whether the screen is frozen.
    pub(super) is_paused: bool,
    /// Whether the help is shown.
    pub(super) shows_help: bool,
    /// Index of the first shown port among those that match.
    pub(super) first: usize,
}

/// The effect of a key on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Quit,
    /// The screen has changed.
    Show,
    /// The whole screen must be redrawn, because something else wrote to the terminal.
    Redraw,
    Nothing,
}

impl Choices {
    pub(super) fn new(order: PortOrder, filter: &str) -> Self {
        Self { order, filter: filter.to_owned(), typing: None, is_paused: false, shows_help: false, first: 0 }
    }

    pub(super) const fn is_typing(&self) -> bool {
        self.typing.is_some()
    }

    /// Handles a key. `ports` is the number of matching ports.
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
            // Any key closes the help.
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

    /// Returns the matching ports in order. The sort is stable, so that equal rows do not swap.
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

/// Returns a comparison of ports by the figure `of`, in descending order.
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
