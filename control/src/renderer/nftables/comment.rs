//! Comments in scripts for nft.

use std::fmt::Display;

/// Maximum length of a comment in bytes, without the terminating zero. Source: libnftnl, `NFTNL_UDATA_COMMENT_MAXLEN` 128.
const COMMENT: usize = 127;

/// Returns a text without characters that are invalid in a comment, cut to [`COMMENT`] bytes.
pub(super) fn comment(text: impl Display) -> String {
    let plain = |c: char| if c.is_ascii_graphic() && c != '"' && c != '\\' || c == ' ' { c } else { '?' };
    let mut text: String = text.to_string().chars().map(plain).collect();
    if text.len() > COMMENT {
        text.truncate(COMMENT - 3);
        text.push_str("...");
    }
    text
}
