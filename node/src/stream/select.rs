//! Selects pods by name, namespace and labels.

use bulkhead_control::object::{Labels, Pod};

use bulkhead_observe::admin::Failure;

/// A selector for pods. A list without entries selects all pods; in others, one matching entry is enough.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    /// Each a namespace and a prefix of the pod's name, as in `shop/web-`. The namespace is `default` if omitted.
    pods: Vec<String>,
    namespaces: Vec<String>,
    /// Sets of labels, all of which a pod must have. A label without a value matches any value.
    labels: Vec<Vec<(String, Option<String>)>>,
}

/// Maximum number of pods, namespaces and labels of a selector together.
const MOST: usize = 256;

impl Selector {
    /// Validates the parts of a selector.
    ///
    /// # Errors
    /// If the selector has too many parts, or a label has no key.
    pub(super) fn new(pods: &[String], namespaces: &[String], labels: &[String]) -> Result<Self, Failure> {
        let malformed = |message: &str, help: &str| Failure::new("malformed", message, help);
        if pods.len() + namespaces.len() + labels.len() > MOST {
            return Err(malformed("too many pods, namespaces and labels in a request", "name a namespace or a label"));
        }
        let named = |pod: &String| if pod.contains('/') { pod.clone() } else { format!("default/{pod}") };
        let label = |text: &str| {
            let (key, value) = text.split_once('=').map_or((text, None), |(key, value)| (key, Some(value)));
            let key = key.trim();
            if key.is_empty() {
                let help = "write key=value or key, with commas between several that a pod must have";
                return Err(malformed("a label has no key", help));
            }
            Ok((key.to_owned(), value.map(|value| value.trim_start_matches('=').trim().to_owned())))
        };
        let labels = labels.iter().map(|list| list.split(',').map(label).collect()).collect::<Result<_, _>>()?;
        Ok(Self { pods: pods.iter().map(named).collect(), namespaces: namespaces.to_vec(), labels })
    }

    /// Whether the selector is empty and so selects all ends.
    pub(super) fn is_everything(&self) -> bool {
        self.pods.is_empty() && self.namespaces.is_empty() && self.labels.is_empty()
    }

    /// Returns each part of the selector as the user wrote it, with a selector of this part alone.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (String, Self)> + '_ {
        let pods =
            self.pods.iter().map(|pod| (format!("--pod {pod}"), Self { pods: vec![pod.clone()], ..Self::default() }));
        let namespaces = self
            .namespaces
            .iter()
            .map(|name| (format!("--namespace {name}"), Self { namespaces: vec![name.clone()], ..Self::default() }));
        let labels = self.labels.iter().map(|labels| {
            let one = |(key, value): &(String, Option<String>)| match value {
                Some(value) => format!("{key}={value}"),
                None => key.clone(),
            };
            let text = labels.iter().map(one).collect::<Vec<_>>().join(",");
            (format!("--label {text}"), Self { labels: vec![labels.clone()], ..Self::default() })
        });
        pods.chain(namespaces).chain(labels)
    }

    pub(crate) fn selects(&self, pod: &Pod) -> bool {
        self.selects_named(Some((&pod.name.namespace, &pod.name.name)), Some(&pod.labels))
    }

    /// Like [`Self::selects`], for an end whose name and labels may be unknown.
    pub(super) fn selects_named(&self, name: Option<(&str, &str)>, labels: Option<&Labels>) -> bool {
        let is_named = |wanted: &String| {
            let (namespace, prefix) = wanted.split_once('/').unwrap_or(("default", wanted));
            name.is_some_and(|(space, name)| space == namespace && name.starts_with(prefix))
        };
        let is_labeled = |wanted: &Vec<(String, Option<String>)>| {
            let has = |(key, value): &(String, Option<String>)| {
                let own = labels.and_then(|labels| labels.get(key.as_str()));
                own.is_some_and(|own| value.as_ref().is_none_or(|value| **own == **value))
            };
            wanted.iter().all(has)
        };
        (self.pods.is_empty() || self.pods.iter().any(is_named))
            && (self.namespaces.is_empty()
                || name.is_some_and(|(space, _)| self.namespaces.iter().any(|wanted| wanted == space)))
            && (self.labels.is_empty() || self.labels.iter().any(is_labeled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_selected_by_the_beginning_of_their_name_their_namespace_and_their_labels() {
        let labels: Labels = [("app", "web"), ("tier", "front")].map(|(key, value)| (key.into(), value.into())).into();
        let selects = |pods: &[&str], namespaces: &[&str], wanted: &[&str]| {
            let [pods, namespaces, wanted] =
                [pods, namespaces, wanted].map(|list| list.iter().map(ToString::to_string).collect::<Vec<_>>());
            let selector = Selector::new(&pods, &namespaces, &wanted).unwrap();
            selector.selects_named(Some(("shop", "web-7d9")), Some(&labels))
        };
        assert!(selects(&[], &[], &[]));
        assert!(selects(&["shop/web"], &[], &[]) && selects(&["x/y", "shop/"], &[], &[]));
        assert!(!selects(&["web"], &[], &[]), "without a namespace it is default");
        assert!(selects(&[], &["shop"], &["app=web"]) && !selects(&[], &["other"], &["app=web"]));
        assert!(selects(&[], &[], &["app=web,tier"]) && !selects(&[], &[], &["app=web,tier=back"]));
        assert!(selects(&[], &[], &["app=db", "tier=front"]));
        assert!(Selector::new(&[], &[], &["=x".to_owned()]).is_err());
        let nobody = Selector::new(&["shop/web".to_owned()], &[], &[]).unwrap();
        assert!(!nobody.selects_named(None, None) && Selector::default().is_everything());
    }
}
