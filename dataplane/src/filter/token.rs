//! Splits an expression into tokens.

use super::{FilterError, LONGEST};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    Open,
    Close,
    Not,
    And,
    Or,
    Word(&'a str),
}

/// A token with its byte range in the expression: first byte, and byte after the last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spanned<'a> {
    pub(super) token: Token<'a>,
    pub(super) span: (usize, usize),
}

/// Splits an expression into tokens.
pub(super) fn tokens(text: &str) -> Result<Vec<Spanned<'_>>, FilterError> {
    if text.len() > LONGEST {
        let help = "use networks instead of many hosts, or --pod, --namespace and --label";
        return Err(FilterError::new(text, (0, 0), format!("the expression has more than {LONGEST} bytes"), help));
    }
    let bytes = text.as_bytes();
    let (mut tokens, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let start = at;
        let token = match bytes[at] {
            byte if byte.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            b'(' => Token::Open,
            b')' => Token::Close,
            b'!' => Token::Not,
            b'&' | b'|' => {
                let is_double = bytes.get(at + 1) == Some(&bytes[at]);
                if !is_double {
                    let help = "write `and`, `or`, `&&` or `||`; filters cannot test bits of a packet";
                    return Err(FilterError::new(text, (at, at + 1), "a single `&` or `|`", help));
                }
                at += 1;
                if bytes[at] == b'&' { Token::And } else { Token::Or }
            }
            byte if is_of_word(byte) => {
                while at + 1 < bytes.len() && is_of_word(bytes[at + 1]) {
                    at += 1;
                }
                word(&text[start..=at])
            }
            _ => {
                let length = text[at..].chars().next().map_or(1, char::len_utf8);
                let help = "write an expression such as `tcp port 80 and not host 10.0.0.1`";
                return Err(FilterError::new(text, (at, at + length), "unexpected character", help));
            }
        };
        at += 1;
        tokens.push(Spanned { token, span: (start, at) });
    }
    Ok(tokens)
}

const fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b':' | b'/' | b'-' | b'_')
}

fn word(text: &str) -> Token<'_> {
    match text {
        "not" => Token::Not,
        "and" => Token::And,
        "or" => Token::Or,
        _ => Token::Word(text),
    }
}
