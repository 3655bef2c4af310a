//! A configuration without what is secret.

use serde_json::Value;

/// What keys of secrets are called, or end with. The configuration of today has none; one of tomorrow, or a typing error, may.
const SECRET: [&str; 9] =
    ["token", "password", "passwd", "secret", "secrets", "key", "credential", "credentials", "authorization"];

/// What stands in the place of a secret.
const HIDDEN: &str = "(left out)";

fn is_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    SECRET.iter().any(|name| key.ends_with(name))
}

/// The values of a configuration's text as JSON: comments are gone, and so is what is called like a secret, and who logs in to a URL.
///
/// # Errors
/// When it is no YAML.
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
            // https://user:password@host, where people may forget to escape an @ of the password.
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
