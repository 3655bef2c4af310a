//! Follows one kind: lists it, watches it from there, and lists it again when the server no longer has the history.
//!
//! Lists are consistent and paged, as servers answer by default. A watch that starts with the existing objects (`sendInitialEvents`) lost:
//! it fails on servers before 1.32, and on later ones with an old etcd.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::backoff::Backoff;
use super::connection::Fault;
use super::kinds::{Form, Kind};
use super::page::{self, Line};
use super::shared::Shared;
use super::store::Listing;

/// A watch that ends within this time without an event counts as useless: the next one starts after a pause.
const SHORT: Duration = Duration::from_secs(1);

/// Where a watch continues.
#[derive(Clone, Debug)]
struct Place {
    /// The kind in the API version that the server has.
    form: Form,
    /// The resource version as the server writes it.
    version: String,
    /// The resource version as a number. `None` if the server's versions are not numeric.
    number: Option<u64>,
}

/// Lists and watches a kind forever, and applies its objects to the store.
pub(super) async fn follow(kind: Kind, shared: &Arc<Shared>) {
    let mut backoff = Backoff::new(&shared.settings.timing);
    let mut place: Option<Place> = None;
    loop {
        let fault = match &mut place {
            None => match list(kind, shared).await {
                Ok(listed) => {
                    place = Some(listed);
                    continue;
                }
                Err(fault) => fault,
            },
            Some(from) => match watch(kind, shared, from, &mut backoff).await {
                Ok(true) => continue,
                // Not an error, but a server that ends watches immediately must not be asked without pauses.
                Ok(false) => {
                    shared.pause(backoff.next()).await;
                    continue;
                }
                Err(fault) => {
                    // An upgraded server may have the kind in another API version.
                    if matches!(fault, Fault::Expired | Fault::Absent) {
                        place = None;
                    }
                    fault
                }
            },
        };
        shared.failed(kind, &fault);
        shared.pause(backoff.next()).await;
    }
}

/// Lists the kind in the first of its API versions that the server has.
async fn list(kind: Kind, shared: &Shared) -> Result<Place, Fault> {
    for form in kind.forms(shared.settings.foreign) {
        match list_form(form, shared).await {
            Err(Fault::Absent) => {}
            listed => return listed,
        }
    }
    Err(Fault::Absent)
}

/// Reads all pages of a list, then replaces the objects of the kind. An incomplete list changes nothing.
async fn list_form(form: Form, shared: &Shared) -> Result<Place, Fault> {
    let size = shared.settings.timing.page_size;
    let mut listing = Listing::new(form.kind);
    let (mut place, mut next) = (None, None::<String>);
    loop {
        let mut path = format!("{}?limit={size}", form.path());
        if let Some(next) = &next {
            path.push_str("&continue=");
            path.extend(next.bytes().map(escaped));
        }
        let text = shared.connection.page(&path).await?;
        let page = page::page(form, &text).map_err(Fault::Other)?;
        drop(text);
        // The watch starts at the first page's version, so it misses nothing even if later pages have newer ones.
        let first = place.get_or_insert(Place { form, number: page.version.parse().ok(), version: page.version });
        shared.store().add(&mut listing, page.items);
        next = page.next;
        if next.is_none() {
            let place = first.clone();
            shared.change(|store| store.settle(listing));
            shared.listed(form.kind);
            return Ok(place);
        }
    }
}

/// Applies changes until the server ends the watch. Returns false if the watch was useless.
///
/// # Errors
/// If the watch broke. It continues from `place`, except after [`Fault::Expired`].
async fn watch(kind: Kind, shared: &Shared, place: &mut Place, backoff: &mut Backoff) -> Result<bool, Fault> {
    let timing = &shared.settings.timing;
    let mut reconnect = shared.reconnect.subscribe();
    let (form, version, seconds) = (place.form, &place.version, timing.watch_seconds);
    let path = form.path();
    let path = format!("{path}?watch=1&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds={seconds}");
    let mut lines = shared.connection.lines(&path).await?;
    shared.up(Some(kind));
    let (started, mut served, mut text) = (Instant::now(), false, Vec::new());
    loop {
        let read = tokio::select! {
            read = tokio::time::timeout(timing.silence, lines.next(&mut text)) => read,
            _ = reconnect.changed() => return Ok(true),
        };
        match read {
            Err(_) => return Ok(served || started.elapsed() >= SHORT),
            Ok(Err(error)) => return Err(error.into()),
            Ok(Ok(false)) => return Ok(served || started.elapsed() >= SHORT),
            Ok(Ok(true)) => {}
        }
        if text.trim_ascii().is_empty() {
            continue;
        }
        let (line, version) = page::line(form, &text).map_err(Fault::Other)?;
        text.clear();
        // The server repeats older versions: it has lost its position, and events may be missing.
        if line.version().zip(place.number).is_some_and(|(version, place)| version < place) {
            return Err(Fault::Expired);
        }
        let number = line.version();
        match line {
            Line::Applied(item) => shared.change(|store| store.put(item)),
            Line::Deleted { key, .. } => shared.change(|store| store.delete(key)),
            Line::Bookmark { .. } => {}
            Line::Failed { code: 410, .. } => return Err(Fault::Expired),
            Line::Failed { code, message } => {
                return Err(Fault::other(&format_args!("the server ended the watch with {code}: {message}")));
            }
        }
        *place = Place { form, version, number };
        served = true;
        backoff.reset();
        shared.up(Some(kind));
    }
}

/// Percent-encodes a byte for a URL.
pub(super) fn escaped(byte: u8) -> String {
    match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    }
}
