//! Removes secrets from a configuration.

use serde_json::Value;

/// Suffixes of keys with secrets. The current configuration has none, but a later one, or a misspelt key, may.
const SECRET: [&str; 9] =
    ["token", "password", "passwd", "secret", "secrets", "key", "credential", "credentials", "authorization"];

/// The text that replaces a secret.
const HIDDEN: &str = "(left out)";

fn is_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    SECRET.iter().any(|name| key.ends_with(name))
}

/// Converts a configuration to JSON, without comments, values of secret keys, and user names and passwords in URLs.
///
/// # Errors
/// If the text is not valid YAML.
pub(super) fn redacted(text: &str) -> anyhow::Result<Value> {
    let mut value = serde_saphyr::from_str(text)?;
    redact(&mut value);
    Ok(value)
}

fn redact(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                if is_secret(key) && !value.is_null() {
                    *value = HIDDEN.into();
                } else {
                    redact(value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(redact),
        Value::String(text) => {
            // https://user:password@host, where an @ in the password may be unescaped.
            if let Some((scheme, rest)) = text.split_once("://")
                && let Some((_, host)) = rest.rsplit_once('@')
            {
                *text = format!("{scheme}://{HIDDEN}@{host}");
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_what_is_called_like_a_secret_stay_behind() {
        let text = "# token: planted-1\nnode: node-1\nbearer_token: planted-2\nlog: {apiKey: planted-3, level: info}\n\
                    list: [{password: {nested: planted-4}}, 'https://me:planted-5@host/x', 'https://me:planted@planted-6@host']\n";
        let value = redacted(text).unwrap();
        let shown = value.to_string();
        assert!(!shown.contains("planted"), "{shown}");
        assert_eq!((&value["node"], &value["log"]["level"]), (&"node-1".into(), &"info".into()));
        assert_eq!(value["list"][1], "https://(left out)@host/x");
        assert_eq!(value["list"][2], "https://(left out)@host");
        assert!(redacted("a: [").is_err());
    }
}
