//! Objects of the server without the fields that no code here reads.
//!
//! Most of a Pod's text concerns others: how containers run, and which client set which field. A Node lists its images. Building a tree of
//! all that, for each event and object, would cost more than the rest of parsing. So these fields are skipped during parsing, as are parts
//! of endpoint slices and Services. Policies are kept whole except `managedFields`, because an unknown field matters there.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::kinds::Kind;

/// The part of a value to keep. Applies to each element of a list.
#[derive(Clone, Copy, Debug)]
enum Keep {
    Nothing,
    Whole,
    /// Keep each named field as given. `keeps_others` tells whether to keep all other fields.
    Fields {
        named: &'static [(&'static str, Keep)],
        keeps_others: bool,
    },
}

const fn only(named: &'static [(&'static str, Keep)]) -> Keep {
    Keep::Fields { named, keeps_others: false }
}

const METADATA: Keep = Keep::Fields { named: &[("managedFields", Keep::Nothing)], keeps_others: true };
const OBJECT: Keep = Keep::Fields { named: &[("metadata", METADATA)], keeps_others: true };

/// Metadata that `RawService` and `RawSlice` read. Annotations of Services are long and unused.
const NAMED: Keep = only(&[
    ("name", Keep::Whole),
    ("namespace", Keep::Whole),
    ("resourceVersion", Keep::Whole),
    ("creationTimestamp", Keep::Whole),
    ("labels", Keep::Whole),
]);

/// Fields that `RawContainer` reads.
const CONTAINERS: Keep = only(&[("restartPolicy", Keep::Whole), ("ports", Keep::Whole)]);
/// Fields that `RawPod` reads, and those of the `Status` with which a watch fails.
const POD: Keep = only(&[
    ("apiVersion", Keep::Whole),
    ("kind", Keep::Whole),
    ("code", Keep::Whole),
    ("message", Keep::Whole),
    ("metadata", METADATA),
    (
        "spec",
        only(&[
            ("nodeName", Keep::Whole),
            ("hostNetwork", Keep::Whole),
            ("serviceAccountName", Keep::Whole),
            ("containers", CONTAINERS),
            ("initContainers", CONTAINERS),
        ]),
    ),
    (
        "status",
        only(&[("phase", Keep::Whole), ("startTime", Keep::Whole), ("podIP", Keep::Whole), ("podIPs", Keep::Whole)]),
    ),
]);
/// Fields that `RawNode` reads.
const NODE: Keep = Keep::Fields {
    named: &[("metadata", METADATA), ("status", only(&[("addresses", Keep::Whole)]))],
    keeps_others: true,
};

/// Fields that `RawService` reads, and those of the `Status` with which a watch fails.
const SERVICE: Keep = only(&[
    ("apiVersion", Keep::Whole),
    ("kind", Keep::Whole),
    ("code", Keep::Whole),
    ("message", Keep::Whole),
    ("metadata", NAMED),
    (
        "spec",
        only(&[
            ("type", Keep::Whole),
            ("clusterIP", Keep::Whole),
            ("clusterIPs", Keep::Whole),
            ("externalIPs", Keep::Whole),
            ("ports", Keep::Whole),
            ("selector", Keep::Whole),
            ("sessionAffinity", Keep::Whole),
            ("sessionAffinityConfig", Keep::Whole),
            ("internalTrafficPolicy", Keep::Whole),
            ("externalTrafficPolicy", Keep::Whole),
            ("loadBalancerSourceRanges", Keep::Whole),
            ("healthCheckNodePort", Keep::Whole),
        ]),
    ),
    ("status", only(&[("loadBalancer", Keep::Whole)])),
]);
/// Fields that `RawSlice` reads, and those of the `Status` with which a watch fails.
const SLICE: Keep = only(&[
    ("apiVersion", Keep::Whole),
    ("kind", Keep::Whole),
    ("code", Keep::Whole),
    ("message", Keep::Whole),
    ("metadata", NAMED),
    ("addressType", Keep::Whole),
    ("ports", Keep::Whole),
    (
        "endpoints",
        only(&[
            ("addresses", Keep::Whole),
            ("conditions", Keep::Whole),
            ("nodeName", Keep::Whole),
            ("topology", only(&[("kubernetes.io/hostname", Keep::Whole)])),
            ("hints", Keep::Whole),
        ]),
    ),
]);

/// Deserializes an object of a kind, without the fields to skip.
pub(super) struct Pruned(pub(super) Kind);

impl<'de> DeserializeSeed<'de> for Pruned {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let keep = match self.0 {
            Kind::Pod => POD,
            Kind::Node => NODE,
            Kind::Service => SERVICE,
            Kind::EndpointSlice => SLICE,
            _ => OBJECT,
        };
        keep.deserialize(deserializer)
    }
}

impl<'de> DeserializeSeed<'de> for Keep {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self {
            Self::Nothing => IgnoredAny::deserialize(deserializer).map(|_| Value::Null),
            Self::Whole => Value::deserialize(deserializer),
            Self::Fields { named, keeps_others } => deserializer.deserialize_any(Fields { named, keeps_others }),
        }
    }
}

/// Keeps some fields of a mapping, or of each mapping of a list. Values of other types are kept: the code that reads the object reports
/// them.
#[derive(Clone, Copy)]
struct Fields {
    named: &'static [(&'static str, Keep)],
    keeps_others: bool,
}

impl<'de> Visitor<'de> for Fields {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = access.next_key::<Cow<'de, str>>()? {
            let keep = match self.named.iter().find(|(named, _)| *named == name) {
                Some((_, keep)) => *keep,
                None if self.keeps_others => Keep::Whole,
                None => Keep::Nothing,
            };
            let value = access.next_value_seed(keep)?;
            if !matches!(keep, Keep::Nothing) {
                fields.insert(name.into_owned(), value);
            }
        }
        Ok(Value::Object(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let Self { named, keeps_others } = self;
        let mut elements = Vec::new();
        while let Some(element) = access.next_element_seed(Keep::Fields { named, keeps_others })? {
            elements.push(element);
        }
        Ok(Value::Array(elements))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_control::object::Object;
    use bulkhead_control::source::{ForeignKinds, single};
    use serde_json::json;

    use super::*;

    fn pruned(kind: Kind, value: &Value) -> Value {
        let text = value.to_string();
        let mut deserializer = serde_json::Deserializer::from_str(&text);
        let read = Pruned(kind).deserialize(&mut deserializer).unwrap();
        deserializer.end().unwrap();
        read
    }

    fn object(kind: Kind, value: Value) -> Option<Object> {
        let read = single::read(value, kind.api_version(), kind.api_kind(), ForeignKinds::Read)?;
        if read.has_problems() { None } else { read.object }
    }

    /// Returns a pod with all fields that the parser reads, and others that servers add.
    fn pod() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "namespace": "x", "uid": "1-2", "resourceVersion": "7", "labels": {"app": "web"},
                "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-02T00:00:00Z",
                "annotations": {"k8s.v1.cni.cncf.io/network-status": "[{\"default\":true,\"mac\":\"02:00:00:00:00:07\"}]"},
                "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {"f:podIP": {}}}}]},
            "spec": {"nodeName": "n", "hostNetwork": false, "serviceAccountName": "s", "volumes": [{"name": "v", "emptyDir": {}}],
                "containers": [{"name": "c", "image": "i", "env": [{"name": "A", "value": "B"}],
                    "ports": [{"name": "web", "containerPort": 80, "protocol": "TCP", "hostPort": 8080, "hostIP": "192.0.2.1"}]}],
                "initContainers": [{"name": "s", "restartPolicy": "Always", "ports": [{"name": "side", "containerPort": 81}]}]},
            "status": {"phase": "Succeeded", "startTime": "2026-01-01T00:00:01Z", "podIP": "10.0.0.1",
                "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}], "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{"name": "c", "image": "i", "ready": true}]},
        })
    }

    /// Returns a Service with all fields that the parser reads, and others that servers add.
    fn service() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "a", "namespace": "x", "uid": "1-2", "resourceVersion": "7",
                "labels": {"app": "web", "service.kubernetes.io/service-proxy-name": "p"},
                "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": {"image": "a long text"},
                "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:ports": {}}}}]},
            "spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"],
                "externalIPs": ["192.0.2.1"], "ipFamilies": ["IPv4", "IPv6"], "selector": {"app": "x"},
                "ports": [{"name": "web", "protocol": "UDP", "port": 80, "targetPort": "web", "nodePort": 30080}],
                "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
                "internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30000,
                "loadBalancerSourceRanges": ["192.0.2.0/24"]},
            "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.1", "ipMode": "VIP"}]},
                "conditions": [{"type": "x", "status": "True"}]},
        })
    }

    /// Returns an endpoint slice with all fields that the parser reads, and others that servers add.
    fn slice() -> Value {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "a-1", "namespace": "x", "uid": "1-2", "resourceVersion": "7", "generateName": "a-",
                "labels": {"kubernetes.io/service-name": "a", "service.kubernetes.io/headless": ""},
                "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": [{"manager": "kube-controller-manager"}],
                "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z"},
                "ownerReferences": [{"kind": "Service", "name": "a", "image": "x"}]},
            "addressType": "IPv4", "ports": [{"name": "web", "protocol": "UDP", "port": 8080, "appProtocol": "x"}],
            "endpoints": [{"addresses": ["10.0.0.1"], "nodeName": "n", "zone": "z", "hostname": "image",
                "conditions": {"ready": false, "serving": true, "terminating": true},
                "hints": {"forZones": [{"name": "z"}], "forNodes": [{"name": "n"}]},
                "targetRef": {"kind": "Pod", "name": "a", "uid": "1"}, "deprecatedTopology": {"image": "x"}}],
        })
    }

    #[test]
    fn an_object_reads_the_same_and_what_nobody_reads_is_gone() {
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "n", "resourceVersion": "8", "labels": {"zone": "z"}, "managedFields": [{}]},
            "spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24", "fd00::/64"]},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}], "images": [{"names": ["i"]}]},
        });
        let policy = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": "p", "namespace": "x", "resourceVersion": "9", "managedFields": [{}]},
            "spec": {"podSelector": {}, "ingress": [{"from": [{"podSelector": {"matchLabels": {"a": "b"}}}]}]},
        });
        for (kind, whole) in [
            (Kind::Pod, pod()),
            (Kind::Node, node),
            (Kind::NetworkPolicy, policy),
            (Kind::Service, service()),
            (Kind::EndpointSlice, slice()),
        ] {
            let small = pruned(kind, &whole);
            for gone in ["managedFields", "image", "env", "volumes", "conditions\":[", "targetRef", "ownerReferences"] {
                let is_kept = small.to_string().contains(&format!("\"{gone}"));
                assert!(!is_kept, "{gone}: {small}");
            }
            let read = object(kind, whole.clone());
            assert!(read.is_some() && read == object(kind, small), "{whole}");
        }
    }

    /// Asserts that removing any of these fields changes the parsed object, so that the test above detects a skipped field.
    fn check_that_fields_matter(kind: Kind, value: &Value, paths: &[&str]) {
        let whole = object(kind, value.clone());
        for path in paths {
            let (parent, field) = path.rsplit_once('/').unwrap();
            let mut other = value.clone();
            assert!(other.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(field).is_some(), "{path}");
            assert!(object(kind, pruned(kind, &other)) != whole, "{path}");
        }
    }

    #[test]
    fn the_fields_of_the_objects_that_are_compared_matter() {
        let of_pod = [
            "/metadata/name",
            "/metadata/namespace",
            "/metadata/uid",
            "/metadata/labels",
            "/metadata/creationTimestamp",
            "/metadata/annotations",
            "/spec/nodeName",
            "/spec/serviceAccountName",
            "/spec/containers/0/ports",
            "/spec/initContainers/0/restartPolicy",
            "/spec/initContainers/0/ports",
            "/status/phase",
            "/status/podIPs",
        ];
        check_that_fields_matter(Kind::Pod, &pod(), &of_pod);
        let of_service = [
            "/metadata/name",
            "/metadata/namespace",
            "/metadata/labels",
            "/metadata/creationTimestamp",
            "/spec/type",
            "/spec/clusterIPs",
            "/spec/externalIPs",
            "/spec/ports",
            "/spec/selector",
            "/spec/sessionAffinity",
            "/spec/sessionAffinityConfig",
            "/spec/internalTrafficPolicy",
            "/spec/externalTrafficPolicy",
            "/spec/healthCheckNodePort",
            "/spec/loadBalancerSourceRanges",
            "/status/loadBalancer",
        ];
        check_that_fields_matter(Kind::Service, &service(), &of_service);
        // The parser reads the first of the two fields only if the other is missing.
        let mut single = service();
        single["spec"].as_object_mut().unwrap().remove("clusterIPs");
        assert_eq!(object(Kind::Service, pruned(Kind::Service, &single)), object(Kind::Service, single.clone()));
        check_that_fields_matter(Kind::Service, &single, &["/spec/clusterIP"]);
        let of_slice = [
            "/metadata/name",
            "/metadata/namespace",
            "/metadata/labels",
            "/addressType",
            "/ports",
            "/endpoints",
            "/endpoints/0/addresses",
            "/endpoints/0/nodeName",
            "/endpoints/0/conditions",
            "/endpoints/0/hints",
        ];
        check_that_fields_matter(Kind::EndpointSlice, &slice(), &of_slice);
        // Before Kubernetes 1.21 the topology names the node.
        let mut old = slice();
        old["endpoints"][0] =
            json!({"addresses": ["10.0.0.1"], "topology": {"image": "x", "kubernetes.io/hostname": "n"}});
        assert!(!pruned(Kind::EndpointSlice, &old).to_string().contains("image"));
        check_that_fields_matter(Kind::EndpointSlice, &old, &["/endpoints/0/topology"]);
    }

    #[test]
    fn what_is_not_of_the_expected_shape_is_kept_for_whoever_reads_it() {
        for wrong in [json!(null), json!(7), json!(-7), json!(0.5), json!("x"), json!(true), json!([1, [2], "x"])] {
            assert_eq!(pruned(Kind::Pod, &wrong), wrong);
            let spec = json!({"kind": "Pod", "spec": wrong});
            assert_eq!(pruned(Kind::Pod, &spec), spec);
        }
        assert!(
            Pruned(Kind::Pod).deserialize(&mut serde_json::Deserializer::from_str(r#"{"spec":{"volumes":[}"#)).is_err()
        );
    }
}
