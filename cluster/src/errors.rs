//! Errors of libraries as text for the user.

use std::error::Error;

use bulkhead_control::source::escaped;

/// How much of an error's text is kept, in characters: an error page of a proxy is no message.
pub(crate) const MAX_TEXT: usize = 300;

/// An error with what it comes from.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut said = text.clone();
    let mut source = error.source();
    while let Some(error) = source {
        let next = error.to_string();
        // Many wrap the text of what they come from.
        if !said.contains(&next) {
            text = format!("{text}: {next}");
            said = next;
        }
        source = error.source();
    }
    bounded(&text)
}

/// The start of a text that comes from elsewhere, with everything escaped that a terminal would obey.
pub(crate) fn bounded(text: &str) -> String {
    escaped(text).chars().take(MAX_TEXT).collect()
}
