//! Polls which optional kinds the server has. The poll also detects when the server is down and when it is back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::backoff::Backoff;
use super::connection::{Fault, UNAUTHORIZED};
use super::kinds::{Form, Kind};
use super::shared::{Notice, Shared};

/// How many consecutive polls must miss a kind before its objects are removed: a server that has just started may not list all kinds yet.
const MISSES: u32 = 2;

#[derive(Deserialize)]
struct Group {
    versions: Vec<Version>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    group_version: String,
}

#[derive(Deserialize)]
struct Resources {
    resources: Vec<Resource>,
}

#[derive(Deserialize)]
struct Resource {
    name: String,
}

/// The part of a page of a list that counting needs.
#[derive(Deserialize)]
struct Counted {
    #[serde(default)]
    metadata: CountedMetadata,
    #[serde(default)]
    items: Option<Vec<IgnoredAny>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CountedMetadata {
    remaining_item_count: usize,
}

/// Polls the server's kinds at each interval, forever. Updates which optional kinds the server has. Counts policies of other products once
/// if they are not read.
pub(super) async fn follow(shared: &Arc<Shared>) {
    let timing = shared.settings.timing;
    let mut backoff = Backoff::new(&timing);
    let mut misses = [0; Kind::ALL.len()];
    let (mut was_lost, mut is_counted) = (false, false);
    loop {
        let wanted: Vec<Kind> = shared.settings.kinds().filter(|kind| kind.is_optional()).collect();
        match discover(shared, &wanted).await {
            Ok(found) => {
                backoff.reset();
                for kind in wanted {
                    let misses = &mut misses[kind.index()];
                    *misses = if found.contains_key(&kind) { 0 } else { *misses + 1 };
                    let was_served = shared.served.borrow()[kind.index()];
                    // The first answer takes effect at once: no policy is in force yet that could be lost.
                    let is_served = *misses == 0 || (was_served == Some(true) && *misses < MISSES);
                    if was_served != Some(is_served) {
                        shared.served.send_modify(|served| served[kind.index()] = Some(is_served));
                    }
                }
                if std::mem::take(&mut was_lost) {
                    // Connections may be dead without an error, so all watches reconnect.
                    shared.reconnect.send_modify(|count| *count += 1);
                }
                shared.up(None);
                if !is_counted {
                    is_counted = true;
                    tell_unread(shared).await;
                }
                tokio::time::sleep(timing.contact).await;
            }
            Err(fault) => {
                was_lost = true;
                shared.connection.renew();
                shared.lost(&told(&fault));
                tokio::time::sleep(backoff.next()).await;
            }
        }
    }
}

fn told(fault: &Fault) -> String {
    match fault {
        Fault::Unauthorized => UNAUTHORIZED.to_owned(),
        Fault::Forbidden => "the server did not list its API resources\n  \
                             help: bind the ClusterRole system:discovery to bulkhead's user; by default all authenticated users have it"
            .to_owned(),
        Fault::Absent | Fault::Expired => "the server did not list its API resources".to_owned(),
        Fault::Other(text) => text.clone(),
    }
}

/// Returns those of the kinds that the server has, each in the first API version that it has.
async fn discover(shared: &Shared, wanted: &[Kind]) -> Result<BTreeMap<Kind, Form>, Fault> {
    let forms = |kind: Kind| kind.forms(shared.settings.foreign);
    let groups: BTreeSet<&str> = wanted.iter().flat_map(|kind| kind.groups()).collect();
    let mut served: BTreeMap<&str, Resources> = BTreeMap::new();
    for group in groups {
        let Some(has) = asked::<Group>(shared, &format!("/apis/{group}")).await? else { continue };
        let versions: BTreeSet<&str> = wanted
            .iter()
            .copied()
            .flat_map(forms)
            .filter(|form| form.group() == group)
            .map(|form| form.api_version)
            .collect();
        for version in versions.into_iter().filter(|wanted| has.versions.iter().any(|has| has.group_version == *wanted))
        {
            // The version may have been removed after the group was listed.
            if let Some(resources) = asked::<Resources>(shared, &format!("/apis/{version}")).await? {
                served.insert(version, resources);
            }
        }
    }
    let is_served = |form: &Form| {
        let has = served.get(form.api_version);
        has.is_some_and(|has| has.resources.iter().any(|has| has.name == form.kind.resource()))
    };
    Ok(wanted.iter().filter_map(|&kind| Some((kind, forms(kind).find(is_served)?))).collect())
}

/// Counts the policies of other products that the server has and that are not read. Sends [`Notice::Unread`] if there are any. A failure is
/// not an error: nothing depends on the count.
async fn tell_unread(shared: &Shared) {
    let kinds: Vec<Kind> = shared.settings.unread().collect();
    let Ok(found) = discover(shared, &kinds).await else { return };
    let mut counts = Vec::new();
    for (kind, form) in found {
        let page = asked::<Counted>(shared, &format!("{}?limit=1", form.path())).await.ok().flatten();
        let count = page.map(|page| page.items.map_or(0, |items| items.len()) + page.metadata.remaining_item_count);
        if count != Some(0) {
            counts.push((kind, count));
        }
    }
    if !counts.is_empty() {
        (shared.tell)(Notice::Unread(counts));
    }
}

/// Requests a document. `None` if the server does not have it (404).
async fn asked<T: for<'de> Deserialize<'de>>(shared: &Shared, path: &str) -> Result<Option<T>, Fault> {
    let text = match shared.connection.answer(path).await {
        Ok(text) => text,
        Err(Fault::Absent) => return Ok(None),
        Err(fault) => return Err(fault),
    };
    let parsed = serde_json::from_str(&text);
    parsed.map(Some).map_err(|_| Fault::Other("the server's list of API resources is malformed".to_owned()))
}
