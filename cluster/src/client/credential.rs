//! Credentials: an `Authorization` header, a token file or a client certificate.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use hyper::header::HeaderValue;

use super::tls::Identity;
use super::unusable::{Unusable, contents};

/// Interval after which a token file is read again. Kubelets renew tokens at four fifths of their lifetime, which is ten minutes or more.
/// Kubernetes asks clients to reread them within a minute.
const REREAD: Duration = Duration::from_secs(50);

/// What the client authenticates with: a header, a client certificate, both or neither.
pub(super) struct Credential {
    pub(super) authorization: Authorization,
    /// The client certificate. `None` without one.
    pub(super) identity: Option<Identity>,
    /// When this credential expires. `None` if unknown.
    pub(super) end: Option<SystemTime>,
}

/// Source of the `Authorization` header.
pub(super) enum Authorization {
    /// No header: the client certificate authenticates, or the client is anonymous.
    None,
    Fixed(HeaderValue),
    File(TokenFile),
}

/// Returns the value of `Authorization: Bearer TOKEN`.
pub(super) fn bearer(token: &str) -> Result<HeaderValue, Unusable> {
    sensitive(&format!("Bearer {}", token.trim()))
        .ok_or_else(|| Unusable::new("it contains characters that tokens cannot have, such as a line break"))
}

/// Returns a header value that logs redact. `None` if the text has characters that headers cannot have.
pub(super) fn sensitive(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// A file with a bearer token, which is read again after [`REREAD`].
pub(super) struct TokenFile {
    path: PathBuf,
    last: Mutex<(HeaderValue, Instant)>,
}

impl TokenFile {
    pub(super) fn read(path: PathBuf) -> Result<Self, Unusable> {
        let last = Mutex::new((header(&path)?, Instant::now()));
        Ok(Self { path, last })
    }

    /// Returns the header with the current token. If the file cannot be read, the last token stays in use until the server rejects it.
    pub(super) fn header(&self) -> HeaderValue {
        self.header_after(REREAD)
    }

    /// Returns the header, reading the file again if the last read is older than `reread`.
    pub(super) fn header_after(&self, reread: Duration) -> HeaderValue {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.1.elapsed() >= reread {
            let header = header(&self.path).unwrap_or_else(|_| last.0.clone());
            *last = (header, Instant::now());
        }
        last.0.clone()
    }
}

fn header(path: &Path) -> Result<HeaderValue, Unusable> {
    let part = path.display().to_string();
    let text = String::from_utf8(contents(path)?).map_err(|_| Unusable::new("it is not UTF-8 text").of(&part))?;
    if text.trim().is_empty() {
        return Err(Unusable::new("it is empty").of(&part));
    }
    bearer(&text).map_err(|error| error.of(&part))
}
