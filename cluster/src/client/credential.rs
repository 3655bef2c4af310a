//! Credentials: an `Authorization` header, a token file that is read again, or a client certificate.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use hyper::header::HeaderValue;

use super::tls::Identity;
use super::unusable::{Unusable, contents};

/// After how long a file with a token is read again. Kubelets renew it at four fifths of its life, which is ten minutes or more: to read it
/// within a minute is what Kubernetes asks of clients.
const REREAD: Duration = Duration::from_secs(50);

/// What says who asks.
pub(super) struct Credential {
    pub(super) authorization: Authorization,
    /// The client's certificate.
    pub(super) identity: Option<Identity>,
    /// When it is out of date; `None` if that is not known.
    pub(super) end: Option<SystemTime>,
}

/// What the header of this name is.
pub(super) enum Authorization {
    /// There is none: a certificate says who asks, or nothing does.
    None,
    Fixed(HeaderValue),
    File(TokenFile),
}

/// `Authorization: Bearer TOKEN`.
pub(super) fn bearer(token: &str) -> Result<HeaderValue, Unusable> {
    sensitive(&format!("Bearer {}", token.trim()))
        .ok_or_else(|| Unusable::new("it has characters that no token has, such as a line's end"))
}

/// A header that no log shows; `None` if it has characters that no header has.
pub(super) fn sensitive(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// A file with a token that is renewed from time to time.
pub(super) struct TokenFile {
    path: PathBuf,
    last: Mutex<(HeaderValue, Instant)>,
}

impl TokenFile {
    pub(super) fn read(path: PathBuf) -> Result<Self, Unusable> {
        let last = Mutex::new((header(&path)?, Instant::now()));
        Ok(Self { path, last })
    }

    /// The header with the token. A token that cannot be read any more is used on: a server says when it is out of date.
    pub(super) fn header(&self) -> HeaderValue {
        self.header_after(REREAD)
    }

    /// The same, read again if it was read this long ago.
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
    let text = String::from_utf8(contents(path)?).map_err(|_| Unusable::new("it is no text").of(&part))?;
    if text.trim().is_empty() {
        return Err(Unusable::new("it is empty").of(&part));
    }
    bearer(&text).map_err(|error| error.of(&part))
}
