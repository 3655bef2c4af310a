//! Further conditions on pods.

use bulkhead_control::filter::Filter;
use bulkhead_control::object::{Labels, Pod};
use bulkhead_control::selector::Requirement;

use super::{State, meets};

/// Whether a condition certainly holds, and whether it certainly does not. Neither if it depends on the labels of a namespace without an
/// object.
pub(super) fn certainty(state: &State, filter: &Filter, pod: &Pod) -> (bool, bool) {
    let of = |filter: &Filter| certainty(state, filter, pod);
    let known = |holds: bool| (holds, !holds);
    match filter {
        Filter::All(all) => (all.iter().all(|one| of(one).0), all.iter().any(|one| of(one).1)),
        Filter::Any(all) => (all.iter().any(|one| of(one).0), all.iter().all(|one| of(one).1)),
        Filter::Not(one) => {
            let (holds, fails) = of(one);
            (fails, holds)
        }
        Filter::Label(requirement) => known(meets(requirement, &pod.labels)),
        Filter::NamespaceLabel(requirement) => match state.namespaces.get(&pod.name.namespace) {
            Some(namespace) => known(meets(requirement, &namespace.labels)),
            None if &*requirement.key == "kubernetes.io/metadata.name" => {
                let name = Labels::from([(requirement.key.clone(), pod.name.namespace.clone())]);
                known(meets(requirement, &name))
            }
            None => (false, false),
        },
        Filter::Namespaces(names) => known(names.contains(&pod.name.namespace)),
        Filter::ServiceAccount(condition) => {
            let requirement = Requirement { key: "name".into(), condition: condition.clone() };
            let name = pod.service_account.clone().unwrap_or_else(|| "default".into());
            known(meets(&requirement, &Labels::from([(requirement.key.clone(), name)])))
        }
    }
}
