//! Which kinds the server has, asked again and again; which also tells whether the server is there.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Deserialize;

use super::backoff::Backoff;
use super::connection::{Fault, UNAUTHORIZED};
use super::kinds::{CLUSTER_POLICY_GROUP, Kind};
use super::shared::Shared;

/// How often in a row a kind has to be missing before its objects are gone: a server that has just started may not know all yet.
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

/// Asks, for ever.
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
                    // The first answer counts at once: nothing is in force yet that could be lost.
                    let is_served = *misses == 0 || (was_served == Some(true) && *misses < MISSES);
                    if was_served != Some(is_served) {
                        shared.served.send_modify(|served| served[kind.index()] = Some(is_served));
                    }
                }
                if std::mem::take(&mut was_lost) {
                    // Connections may be dead without anybody having been told.
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
        Fault::Forbidden => "the server does not say which kinds it has\n  \
                             help: bind the ClusterRole system:discovery, which all users have by default"
            .to_owned(),
        Fault::Absent | Fault::Expired => "the server does not say which kinds it has".to_owned(),
        Fault::Other(text) => text.clone(),
    }
}

/// The kinds that the server has, of those that it may be without.
async fn discover(shared: &Shared) -> Result<BTreeSet<Kind>, Fault> {
    let root = format!("/apis/{CLUSTER_POLICY_GROUP}");
    let Some(group) = asked::<Group>(shared, &root).await? else { return Ok(BTreeSet::new()) };
    let mut found = BTreeSet::new();
    let wanted: BTreeSet<&str> =
        shared.settings.kinds().filter(|kind| kind.is_optional()).map(Kind::api_version).collect();
    for version in wanted.into_iter().filter(|wanted| group.versions.iter().any(|has| has.group_version == *wanted)) {
        // A version that has gone since the group was asked for has no kinds.
        let Some(has) = asked::<Resources>(shared, &format!("/apis/{version}")).await? else { continue };
        let is_there =
            |kind: &Kind| kind.api_version() == version && has.resources.iter().any(|has| has.name == kind.resource());
        found.extend(shared.settings.kinds().filter(is_there));
    }
    Ok(found)
}

/// What the server says there; none where it has nothing.
async fn asked<T: for<'de> Deserialize<'de>>(shared: &Shared, path: &str) -> Result<Option<T>, Fault> {
    let text = match shared.connection.answer(path).await {
        Ok(text) => text,
        Err(Fault::Absent) => return Ok(None),
        Err(fault) => return Err(fault),
    };
    let parsed = serde_json::from_str(&text);
    parsed.map(Some).map_err(|_| Fault::Other("what the server says of its kinds cannot be read".to_owned()))
}
