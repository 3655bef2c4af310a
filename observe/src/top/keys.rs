//! Parses terminal input into keys.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// A character except control characters.
    Char(char),
    Enter,
    Escape,
    Backspace,
    /// Ctrl-C or Ctrl-D: quits.
    Interrupt,
    /// Ctrl-L: redraws the whole screen.
    Redraw,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
}

/// Parses input from one read. A terminal sends a key's sequence in one piece, so a trailing escape character is the Escape key. Unknown
/// sequences and invalid UTF-8 are skipped.
pub(super) fn keys(bytes: &[u8]) -> Vec<Key> {
    let text = String::from_utf8_lossy(bytes);
    let (mut rest, mut keys) = (text.chars().peekable(), Vec::new());
    while let Some(next) = rest.next() {
        let key = match next {
            '\u{1b}' => match rest.peek() {
                Some('[' | 'O') => {
                    rest.next();
                    sequence(&mut rest)
                }
                // Pressed twice. The second one may start a sequence.
                Some('\u{1b}') => Some(Key::Escape),
                // A key with Alt, which has no meaning here.
                Some(_) => {
                    rest.next();
                    None
                }
                None => Some(Key::Escape),
            },
            '\r' | '\n' => Some(Key::Enter),
            '\u{7f}' | '\u{8}' => Some(Key::Backspace),
            '\u{3}' | '\u{4}' => Some(Key::Interrupt),
            '\u{c}' => Some(Key::Redraw),
            char::REPLACEMENT_CHARACTER => None,
            next if next.is_control() => None,
            next => Some(Key::Char(next)),
        };
        keys.extend(key);
    }
    keys
}

/// Parses the rest of a control sequence (ECMA-48, section 5.4): parameters, then a letter or `~`. `None` for an unknown key.
fn sequence(rest: &mut impl Iterator<Item = char>) -> Option<Key> {
    let mut parameters = String::new();
    let end = loop {
        match rest.next()? {
            end @ '@'..='~' => break end,
            parameter => parameters.push(parameter),
        }
    };
    match (end, &*parameters) {
        ('A', "") => Some(Key::Up),
        ('B', "") => Some(Key::Down),
        ('H', "") | ('~', "1" | "7") => Some(Key::Home),
        ('F', "") | ('~', "4" | "8") => Some(Key::End),
        ('~', "5") => Some(Key::PageUp),
        ('~', "6") => Some(Key::PageDown),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use bolero::check;

    use super::*;

    #[test]
    fn keys_are_what_terminals_send_for_them() {
        let sent = b"q/\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[H\x1b[4~\x7f\r\x03\x0c\xc3\xa9\x1b";
        let expected = [
            Key::Char('q'),
            Key::Char('/'),
            Key::Up,
            Key::Down,
            Key::PageUp,
            Key::PageDown,
            Key::Home,
            Key::End,
            Key::Backspace,
            Key::Enter,
            Key::Interrupt,
            Key::Redraw,
            Key::Char('é'),
            Key::Escape,
        ];
        assert_eq!(keys(sent), expected);
        assert_eq!(keys(b"\x1b\x1b\x1b[A"), [Key::Escape, Key::Escape, Key::Up], "pressed quickly, or read late");
        assert!(keys(b"\x1b[1;5C\x1bx\x1b[200~\x00\xff\x1b[").is_empty(), "nothing is done with these");
    }

    #[test]
    fn whatever_comes_no_control_character_is_a_character() {
        check!().with_type::<Vec<u8>>().for_each(|bytes| {
            let keys = keys(bytes);
            assert!(keys.len() <= bytes.len());
            assert!(keys.iter().all(|key| !matches!(key, Key::Char(char) if char.is_control())));
        });
    }
}
