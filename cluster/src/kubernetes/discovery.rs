//! Polls which optional kinds the server has. The poll also detects when the server is down and when it is back.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Deserialize;

use super::backoff::Backoff;
use super::connection::{Fault, UNAUTHORIZED};
use super::kinds::{CLUSTER_POLICY_GROUP, Kind};
use super::shared::Shared;

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

/// Polls the server's kinds at each interval, forever. Updates which optional kinds the server has.
pub(super) async fn follow(shared: &Arc<Shared>) {
    let timing = shared.settings.timing;
    let mut backoff = Backoff::new(&timing);
    let mut misses = [0; Kind::ALL.len()];
    let mut was_lost = false;
    loop {
        match discover(shared).await {
            Ok(found) => {
                backoff.reset();
                for kind in shared.settings.kinds().filter(|kind| kind.is_optional()) {
                    let misses = &mut misses[kind.index()];
                    *misses = if found.contains(&kind) { 0 } else { *misses + 1 };
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

/// Returns the optional kinds that the server has.
async fn discover(shared: &Shared) -> Result<BTreeSet<Kind>, Fault> {
    let root = format!("/apis/{CLUSTER_POLICY_GROUP}");
    let Some(group) = asked::<Group>(shared, &root).await? else { return Ok(BTreeSet::new()) };
    let mut found = BTreeSet::new();
    let wanted: BTreeSet<&str> =
        shared.settings.kinds().filter(|kind| kind.is_optional()).map(Kind::api_version).collect();
    for version in wanted.into_iter().filter(|wanted| group.versions.iter().any(|has| has.group_version == *wanted)) {
        // The version was removed after the group was listed.
        let Some(has) = asked::<Resources>(shared, &format!("/apis/{version}")).await? else { continue };
        let is_there =
            |kind: &Kind| kind.api_version() == version && has.resources.iter().any(|has| has.name == kind.resource());
        found.extend(shared.settings.kinds().filter(is_there));
    }
    Ok(found)
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
