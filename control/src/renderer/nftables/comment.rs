//! Comments in scripts for nft.

use std::fmt::Display;

/// What nft keeps of a comment, in bytes without the end.
/// Source: libnftnl, `NFTNL_UDATA_COMMENT_MAXLEN` 128.
const COMMENT: usize = 127;

/// A text as it can stand in a comment.
pub(super) fn comment(text: impl Display) -> String {
    let plain = |c: char| if c.is_ascii_graphic() && c != '"' && c != '\\' || c == ' ' { c } else { '?' };
    let mut text: String = text.to_string().chars().map(plain).collect();
    if text.len() > COMMENT {
        text.truncate(COMMENT - 3);
        text.push_str("...");
    }
    text
}
