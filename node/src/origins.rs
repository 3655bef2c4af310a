//! Maps origin numbers in tables to policies. The policy thread updates the map; the capture and the summary read it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bulkhead_classifier::OriginId;
use bulkhead_control::origin::{Origin, Origins};

/// A shared map from origin numbers to origins. Clones see the same content.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedOrigins(Arc<Mutex<BTreeMap<OriginId, Origin>>>);

impl SharedOrigins {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<OriginId, Origin>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the origin with this number. `None` if the number is unknown.
    pub(super) fn get(&self, id: OriginId) -> Option<Origin> {
        self.lock().get(&id).cloned()
    }

    /// Copies new origins, and removes those that `origins` no longer has. Must be called before tables with these numbers are published.
    pub(super) fn follow(&self, origins: &Origins) {
        let mut known = self.lock();
        let first = known.last_key_value().map_or(0, |(last, _)| last.0.saturating_add(1));
        known.extend(origins.since(OriginId(first)).map(|(id, origin)| (id, origin.clone())));
        if known.len() > origins.len() {
            known.retain(|&id, _| origins.get(id).is_some());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_control::object::PolicyName;
    use bulkhead_control::origin::Direction;

    #[test]
    fn what_was_numbered_since_is_known_to_all_clones() {
        let (shared, mut origins) = (SharedOrigins::default(), Origins::default());
        let clone = shared.clone();
        for at in 0..3 {
            let origin = Origin::Policy {
                policy: PolicyName::new("x", format!("p{at}")),
                direction: Direction::Ingress,
                rule: 0,
            };
            let id = origins.id(origin.clone());
            assert_eq!(clone.get(id), None);
            shared.follow(&origins);
            assert_eq!((clone.get(id), clone.get(Origins::OWN_NODE)), (Some(origin), Some(Origin::OwnNode)));
        }
    }
}
