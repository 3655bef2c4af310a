//! Finds phrases in comments, strings and documents that readers must guess at, and prints what to write instead. The table lists what this
//! project wrote too often. A text without these phrases can still be unclear: read each sentence without its code.

use std::fs;
use std::process::Command;

use crate::step::root;

/// A phrase in lower case, and the remedy.
const PHRASES: [(&str, &str); 22] = [
    ("is told", "say who reports, logs or sends it"),
    ("are told", "say who reports, logs or sends it"),
    ("became of", "what happened to"),
    ("becomes of", "what happens to"),
    ("nobody's", "owned by no pod; unassigned"),
    ("nobody else's", "say whose it is"),
    ("none where there is none", "say when it is `None` or empty"),
    ("none when it is to go", "say when it is `None`"),
    ("whoever", "name the reader, client or caller"),
    ("let through", "allow, allowed"),
    ("lets through", "allows"),
    ("in the place of", "instead of"),
    ("anew", "again"),
    ("stands for", "represents, maps to"),
    ("stand for", "represent, map to"),
    ("as far as", "name the condition"),
    ("so many", "name the number"),
    ("that there are", "name what has them"),
    ("that there is", "name what has it"),
    ("asked for", "name the request, or `requested`"),
    ("has a running vswitch look", "name what the command does"),
    ("is to go", "is being removed"),
];

/// The file with the table, which must quote the phrases.
const EXEMPT: &str = "dev/xtask/src/prose.rs";

/// Prints each phrase found, and each `None` without backticks in a comment. Returns whether there were none.
pub(crate) fn run() -> bool {
    match found() {
        Ok(0) => true,
        Ok(count) => {
            println!("prose: {count} phrases to rewrite");
            false
        }
        Err(error) => {
            eprintln!("prose: {error}");
            false
        }
    }
}

fn found() -> Result<u64, String> {
    let args = ["ls-files", "*.rs", "*.md", "*.yaml", "*.toml", "*.js", "*.html"];
    let listed = Command::new("git").args(args).current_dir(root()).output();
    let listed = listed.map_err(|error| format!("cannot run git ls-files: {error}"))?;
    let mut count = 0;
    for path in String::from_utf8_lossy(&listed.stdout).lines().filter(|&path| path != EXEMPT) {
        // A file that git lists but the work tree lacks is being moved.
        let Ok(text) = fs::read_to_string(root().join(path)) else { continue };
        for (index, line) in text.lines().enumerate() {
            for remedy in faults(line) {
                println!("{path}:{}: {remedy}: {}", index + 1, line.trim());
                count += 1;
            }
        }
    }
    Ok(count)
}

fn faults(line: &str) -> Vec<String> {
    let lower = line.to_lowercase();
    let mut faults: Vec<String> = PHRASES
        .iter()
        .filter(|(phrase, _)| has_words(&lower, phrase))
        .map(|(phrase, remedy)| format!("`{phrase}` ({remedy})"))
        .collect();
    let comment = line.trim_start().starts_with("//");
    if comment
        && line
            .split_whitespace()
            .any(|word| word.trim_matches(|c: char| c.is_ascii_punctuation() && c != '`') == "None")
    {
        faults.push("None without backticks".to_owned());
    }
    faults
}

/// Whether a line contains a phrase as whole words.
fn has_words(line: &str, phrase: &str) -> bool {
    line.match_indices(phrase).any(|(at, _)| {
        let letter = |sign: Option<char>| sign.is_some_and(|sign| sign.is_alphanumeric() || sign == '_');
        !letter(line[..at].chars().next_back()) && !letter(line[at + phrase.len()..].chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phrases_are_found_as_words() {
        assert_eq!(faults("/// What became of a connection.").len(), 1);
        assert_eq!(faults("/// The Anew of it, anew.").len(), 1);
        assert!(faults("let stands_for = canew;").is_empty());
        assert_eq!(faults("    /// None when the port has no address."), ["None without backticks"]);
        assert!(faults("    /// `None` if the port has no address.").is_empty());
        assert!(faults("    Some(None) => None,").is_empty());
    }
}
