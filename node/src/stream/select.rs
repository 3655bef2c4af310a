//! Selects pods by name, namespace and labels, and nodes and addresses.

use std::net::IpAddr;

use bulkhead_answers::args::EndName;
use bulkhead_answers::named::{self, KnownEnd};
use bulkhead_answers::output;
use bulkhead_control::cache::Cache;
use bulkhead_control::object::{Pod, PodName};
use bulkhead_control::source::nearest_word;
use bulkhead_observe::admin::Failure;

/// A selector for pods, nodes and addresses. A list without entries selects all; in others, one matching entry is enough.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    pods: Vec<PodWord>,
    namespaces: Vec<String>,
    /// Sets of labels, all of which a pod must have. A label without a value matches any value.
    labels: Vec<Vec<(String, Option<String>)>>,
}

/// One value of `--pod`, which selects any number of pods, a node or an address.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PodWord {
    /// A namespace and a prefix of the pod's name, as in `shop/web-`. The namespace is `default` if omitted.
    Prefix(String),
    /// The pods of a workload, or with labels in a namespace, one pod, a node or an address: as `explain` takes them. With the text that the
    /// user wrote.
    Name(EndName, String),
}

impl PodWord {
    /// Parses the value. A text with one `/` or none is a prefix, as Hubble's clients send it, unless it is an address or `node/NAME`.
    ///
    /// # Errors
    /// A [`Failure`] `malformed` if the text looks like a workload or labels, and is neither.
    fn new(text: &str) -> Result<Self, Failure> {
        let is_name = text.contains(['=', ' '])
            || text.matches('/').count() > 1
            || text.strip_prefix("node/").is_some_and(|name| !name.is_empty())
            || text.parse::<IpAddr>().is_ok();
        if !is_name {
            return Ok(Self::Prefix(if text.contains('/') { text.to_owned() } else { format!("default/{text}") }));
        }
        let name = text.parse().map_err(|wrong: String| {
            Failure::new(
                "malformed",
                output::printable(&wrong),
                "write namespace/name, deploy/NAMESPACE/NAME, `app=web -n shop`, node/NAME or an address",
            )
        })?;
        Ok(Self::Name(name, text.to_owned()))
    }

    /// Returns the value as the user wrote it; a prefix with its namespace.
    fn text(&self) -> &str {
        match self {
            Self::Prefix(text) | Self::Name(_, text) => text,
        }
    }

    /// Whether the value selects this end. False if what it asks for is not known of the end.
    fn means(&self, end: KnownEnd<'_>) -> bool {
        match self {
            Self::Prefix(text) => {
                let (namespace, prefix) = text.split_once('/').unwrap_or(("default", text));
                end.name.is_some_and(|(space, name)| space == namespace && name.starts_with(prefix))
            }
            Self::Name(name, _) => named::means_known(name, end),
        }
    }
}

/// Maximum number of pods, namespaces and labels of a selector together.
const MOST: usize = 256;

impl Selector {
    /// Validates the parts of a selector.
    ///
    /// # Errors
    /// If the selector has too many parts, a label has no key, or a pod's name has no known form.
    pub(crate) fn new(pods: &[String], namespaces: &[String], labels: &[String]) -> Result<Self, Failure> {
        let malformed = |message: &str, help: &str| Failure::new("malformed", message, help);
        if pods.len() + namespaces.len() + labels.len() > MOST {
            return Err(malformed("too many pods, namespaces and labels in a request", "name a namespace or a label"));
        }
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
        let pods = pods.iter().map(|pod| PodWord::new(pod)).collect::<Result<_, _>>()?;
        Ok(Self { pods, namespaces: namespaces.to_vec(), labels })
    }

    /// Whether the selector is empty and so selects all ends.
    pub(super) fn is_everything(&self) -> bool {
        self.pods.is_empty() && self.namespaces.is_empty() && self.labels.is_empty()
    }

    /// Returns each part of the selector as the user wrote it, with a selector of this part alone.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (String, Self)> + '_ {
        let pods = self
            .pods
            .iter()
            .map(|pod| (format!("--pod {}", pod.text()), Self { pods: vec![pod.clone()], ..Self::default() }));
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

    /// Suggests a name for the first value of `--pod`, or else of `--namespace`: `did you mean shop/web?`. `None` if nothing in the state is similar.
    pub(crate) fn similar(&self, cache: &Cache) -> Option<String> {
        let pod = self.pods.first().and_then(|word| {
            let name = match word {
                PodWord::Prefix(text) => {
                    text.split_once('/').map(|(space, name)| EndName::Pod(PodName::new(space, name)))?
                }
                PodWord::Name(name, _) => name.clone(),
            };
            named::find(cache, &name).err()?.similar
        });
        let namespace = || {
            let near = nearest_word(self.namespaces.first()?, cache.namespaces().keys().map(|name| &**name))?;
            Some(format!("did you mean {}?", output::printable(near)))
        };
        // What else the state has is too long beside other values.
        let similar = pod.or_else(namespace).filter(|similar| similar.starts_with("did you mean"))?;
        similar.split_inclusive('?').next().map(str::to_owned)
    }

    pub(crate) fn selects(&self, pod: &Pod) -> bool {
        self.selects_known(KnownEnd::of(pod, &pod.workload()))
    }

    /// Returns the addresses that `--pod` names themselves, as IPv4 if they are mapped to IPv6. Empty if it names none.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        let named = self.pods.iter().filter_map(|pod| match pod {
            PodWord::Name(EndName::Address(address), _) => Some(*address),
            PodWord::Name(..) | PodWord::Prefix(_) => None,
        });
        named.collect()
    }

    /// Like [`Self::selects`], for an end of which not everything is known.
    pub(crate) fn selects_known(&self, end: KnownEnd<'_>) -> bool {
        let is_labeled = |wanted: &Vec<(String, Option<String>)>| {
            let has = |(key, value): &(String, Option<String>)| {
                let own = end.labels.and_then(|labels| labels.get(key.as_str()));
                own.is_some_and(|own| value.as_ref().is_none_or(|value| **own == **value))
            };
            wanted.iter().all(has)
        };
        (self.pods.is_empty() || self.pods.iter().any(|pod| pod.means(end)))
            && (self.namespaces.is_empty()
                || end.name.is_some_and(|(space, _)| self.namespaces.iter().any(|wanted| wanted == space)))
            && (self.labels.is_empty() || self.labels.iter().any(is_labeled))
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_control::object::{Labels, Workload};

    use super::*;

    #[test]
    fn pods_are_selected_by_the_beginning_of_their_name_their_namespace_and_their_labels() {
        let labels: Labels = [("app", "web"), ("tier", "front")].map(|(key, value)| (key.into(), value.into())).into();
        let selects = |pods: &[&str], namespaces: &[&str], wanted: &[&str]| {
            let [pods, namespaces, wanted] =
                [pods, namespaces, wanted].map(|list| list.iter().map(ToString::to_string).collect::<Vec<_>>());
            let selector = Selector::new(&pods, &namespaces, &wanted).unwrap();
            let workload = Workload { kind: "Deployment".into(), name: "web".into() };
            let name = Some(("shop", "web-7d9"));
            let address = "10.0.0.7".parse().ok();
            selector.selects_known(KnownEnd {
                name,
                labels: Some(&labels),
                workload: Some(&workload),
                address,
                node: None,
            })
        };
        assert!(selects(&[], &[], &[]));
        assert!(selects(&["shop/web"], &[], &[]) && selects(&["x/y", "shop/"], &[], &[]));
        assert!(!selects(&["web"], &[], &[]), "without a namespace it is default");
        assert!(selects(&[], &["shop"], &["app=web"]) && !selects(&[], &["other"], &["app=web"]));
        assert!(selects(&[], &[], &["app=web,tier"]) && !selects(&[], &[], &["app=web,tier=back"]));
        assert!(selects(&[], &[], &["app=db", "tier=front"]));
        assert!(Selector::new(&[], &[], &["=x".to_owned()]).is_err());
        let nobody = Selector::new(&["shop/web".to_owned()], &[], &[]).unwrap();
        assert!(!nobody.selects_known(KnownEnd::default()) && Selector::default().is_everything());
        // As `explain` takes them.
        for name in [
            "deploy/shop/web",
            "Deployment/shop/web",
            "pod/shop/web-7d9",
            "pod/shop/web",
            "app=web -n shop",
            "-n shop tier=front",
            "10.0.0.7",
        ] {
            assert!(selects(&[name], &[], &[]), "{name}");
        }
        assert!(selects(&["10.0.0.7"], &["shop"], &[]) && !selects(&["10.0.0.7"], &["other"], &[]));
        let node = |name| KnownEnd { node: Some(name), ..KnownEnd::default() };
        let n1 = Selector::new(&["node/n1".to_owned()], &[], &[]).unwrap();
        assert!(n1.selects_known(node("n1")) && !n1.selects_known(node("n10")) && n1.addresses().is_empty());
        let namesake = KnownEnd { name: Some(("node", "n1")), ..KnownEnd::default() };
        assert!(
            n1.selects_known(namesake)
                && Selector::new(&["node/".to_owned()], &[], &[]).unwrap().selects_known(namesake)
        );
        let mapped = Selector::new(&["::ffff:10.0.0.7".to_owned()], &[], &[]).unwrap();
        assert_eq!(mapped.addresses(), ["10.0.0.7".parse::<IpAddr>().unwrap()]);
        for name in [
            "deploy/shop/web-7d9",
            "sts/shop/web",
            "deploy/other/web",
            "pod/shop/web-7",
            "app=db -n shop",
            "app=web -n other",
        ] {
            assert!(!selects(&[name], &[], &[]), "{name}");
        }
        for wrong in ["app=web", "deploy/shop/", "=x -n shop"] {
            assert!(Selector::new(&[wrong.to_owned()], &[], &[]).is_err(), "{wrong}");
        }
    }
}
