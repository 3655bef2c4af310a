//! Formats errors of libraries for the user.

use std::error::Error;

use bulkhead_control::source::escaped;

/// Maximum length of a server's error text, in characters: a proxy's error page is not useful.
pub(crate) const MAX_TEXT: usize = 300;

/// Formats an error and its sources in one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut said = text.clone();
    let mut source = error.source();
    while let Some(error) = source {
        let next = error.to_string();
        // Many errors repeat the text of their source.
        if !said.contains(&next) {
            text = format!("{text}: {next}");
            said = next;
        }
        source = error.source();
    }
    bounded(&text)
}

/// Truncates a foreign text to [`MAX_TEXT`] and escapes what a terminal would interpret.
pub(crate) fn bounded(text: &str) -> String {
    escaped(text).chars().take(MAX_TEXT).collect()
}
