//! Determines the workload of a pod from its `ownerReferences`.
//!
//! A Deployment's pods name its `ReplicaSet` as owner, and a `CronJob`'s pods name its Job. Both controllers derive these names from their
//! own, so the workload is known without the object in between.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use crate::object::{Labels, TEMPLATE_HASH_LABEL, Workload};

/// Minimum number of digits that the `CronJob` controller appends to a Job's name: the scheduled time in minutes since 1970, which has 8
/// digits from 1989 to 2160.
const MIN_TIME_DIGITS: usize = 8;

#[derive(Deserialize)]
struct Reference {
    kind: String,
    name: String,
    #[serde(default)]
    controller: Option<bool>,
}

/// Returns the controller named in `ownerReferences`. `None` if no controller is named or readable. That is no error: no verdict depends on
/// it.
pub(super) fn manager(references: Option<&Value>) -> Option<Workload> {
    let managing = |value: &Value| Reference::deserialize(value).ok().filter(|one| one.controller == Some(true));
    let found = references?.as_array()?.iter().find_map(managing)?;
    Some(Workload { kind: found.kind.into(), name: found.name.into() })
}

/// Returns the workload of a pod. `None` for a pod without a controller and for a static pod, whose controller is its node.
pub(super) fn workload(references: Option<&Value>, labels: &Labels) -> Option<Arc<Workload>> {
    let manager = manager(references).filter(|manager| &*manager.kind != "Node")?;
    let maker = match &*manager.kind {
        "ReplicaSet" => labels.get(TEMPLATE_HASH_LABEL).and_then(|hash| {
            let name = manager.name.strip_suffix(&**hash)?.strip_suffix('-')?;
            Some(("Deployment", name))
        }),
        "Job" => manager.name.rsplit_once('-').and_then(|(name, time)| {
            let is_time = time.len() >= MIN_TIME_DIGITS && time.bytes().all(|byte| byte.is_ascii_digit());
            is_time.then_some(("CronJob", name))
        }),
        _ => None,
    };
    let maker = maker.filter(|(_, name)| !name.is_empty());
    Some(Arc::new(match maker {
        Some((kind, name)) => Workload { kind: kind.into(), name: name.into() },
        None => manager,
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::labels;

    #[test]
    fn a_pod_belongs_to_the_workload_behind_what_manages_it() {
        for (kind, name, label, expected) in [
            ("ReplicaSet", "web-5d4f", "pod-template-hash=5d4f", "Deployment web"),
            ("ReplicaSet", "web-5d4f", "pod-template-hash=0000", "ReplicaSet web-5d4f"),
            ("ReplicaSet", "web-5d4f", "", "ReplicaSet web-5d4f"),
            ("ReplicaSet", "5d4f", "pod-template-hash=5d4f", "ReplicaSet 5d4f"),
            ("Job", "nightly-29384760", "", "CronJob nightly"),
            ("Job", "migrate-2", "", "Job migrate-2"),
            ("StatefulSet", "db", "", "StatefulSet db"),
            ("Cluster", "pg", "", "Cluster pg"),
        ] {
            let references = json!([{"kind": "X", "name": "y"}, {"kind": kind, "name": name, "controller": true}]);
            let found = workload(Some(&references), &labels(label));
            assert_eq!(found.unwrap().to_string(), expected);
        }
        for nobody in [
            json!([{"kind": "Node", "name": "n1", "controller": true}]),
            json!([{"kind": "Deployment", "name": "web"}]),
            json!("x"),
            json!([7]),
        ] {
            assert_eq!(workload(Some(&nobody), &labels("")), None, "{nobody}");
        }
    }
}
