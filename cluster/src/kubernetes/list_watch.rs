//! One kind: list it, watch it from there, and list it again when the watch has lost its place.
//!
//! Lists are those that servers answer by default, consistent and in pages. The alternative, a watch that begins with what there is
//! (`sendInitialEvents`), fails for ever on servers before 1.32 and on new servers with an old etcd.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::backoff::Backoff;
use super::connection::Fault;
use super::kinds::Kind;
use super::page::{self, Line};
use super::shared::Shared;
use super::store::Listing;

/// A watch that was silent all the while it lasted, and lasted less, has served for nothing.
const SHORT: Duration = Duration::from_secs(1);

/// Where a watch goes on.
#[derive(Clone, Debug, Default)]
struct Place {
    /// As the server writes it.
    version: String,
    /// The number that it is, where it is one.
    number: Option<u64>,
}

/// Follows a kind, for ever.
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
                // Nothing is wrong, but a server that does this all the time must not be asked all the time.
                Ok(false) => {
                    shared.pause(backoff.next()).await;
                    continue;
                }
                Err(Fault::Expired) => {
                    place = None;
                    shared.failed(kind, &Fault::Expired);
                    shared.pause(backoff.next()).await;
                    continue;
                }
                Err(fault) => fault,
            },
        };
        shared.failed(kind, &fault);
        shared.pause(backoff.next()).await;
    }
}

/// Reads all pages, and makes them what there is. A list that breaks off changes nothing.
async fn list(kind: Kind, shared: &Shared) -> Result<Place, Fault> {
    let size = shared.settings.timing.page_size;
    let mut listing = Listing::new(kind);
    let (mut place, mut next) = (None, None::<String>);
    loop {
        let mut path = format!("{}?limit={size}", kind.path());
        if let Some(next) = &next {
            path.push_str("&continue=");
            path.extend(next.bytes().map(escaped));
        }
        let text = shared.connection.page(&path).await?;
        let page = page::page(kind, &text).map_err(Fault::Other)?;
        drop(text);
        // A watch from the first page on misses nothing, should the server give later ones another version.
        place.get_or_insert_with(|| Place { number: page.version.parse().ok(), version: page.version });
        shared.store().add(&mut listing, page.items);
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    shared.change(|store| store.settle(listing));
    shared.listed(kind);
    Ok(place.unwrap_or_default())
}

/// Takes in changes until the server ends the watch. Returns whether it has served for something.
///
/// # Errors
/// When the watch has broken. `place` is where it goes on, but for [`Fault::Expired`].
async fn watch(kind: Kind, shared: &Shared, place: &mut Place, backoff: &mut Backoff) -> Result<bool, Fault> {
    let timing = &shared.settings.timing;
    let mut reconnect = shared.reconnect.subscribe();
    let (path, version, seconds) = (kind.path(), &place.version, timing.watch_seconds);
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
        let (line, version) = page::line(kind, &text).map_err(Fault::Other)?;
        text.clear();
        // Whoever sends the past again has lost its place, and what was between may be missing.
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
                return Err(Fault::other(&format_args!("the server ends the watch, {code}: {message}")));
            }
        }
        *place = Place { version, number };
        served = true;
        backoff.reset();
        shared.up(Some(kind));
    }
}

/// A byte as it may be in an address.
pub(super) fn escaped(byte: u8) -> String {
    match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    }
}
