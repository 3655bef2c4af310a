//! Field masks of flows. `hubble observe` requests only the fields that its output shows.

use std::collections::BTreeMap;

use super::fields::fields;

/// Fields of `flow.Flow` that are sent.
const SENT: [(&str, u32); 19] = [
    ("time", 1),
    ("verdict", 2),
    ("drop_reason", 3),
    ("IP", 5),
    ("l4", 6),
    (SOURCE.0, SOURCE.1),
    (DESTINATION.0, DESTINATION.1),
    ("Type", 10),
    ("node_name", 11),
    ("destination_names", 14),
    ("event_type", 19),
    ("traffic_direction", 22),
    ("drop_reason_desc", 25),
    ("is_reply", 26),
    ("Summary", 100_000),
    ("egress_allowed_by", 21_001),
    ("ingress_allowed_by", 21_002),
    ("egress_denied_by", 21_004),
    ("ingress_denied_by", 21_005),
];

/// Other fields of the protocol. Requests for them return nothing.
const NOT_SENT: [&str; 26] = [
    "uuid",
    "emitter",
    "auth_type",
    "ethernet",
    "tunnel",
    "node_labels",
    "source_names",
    "l7",
    "reply",
    "source_service",
    "destination_service",
    "policy_match_type",
    "trace_observation_point",
    "trace_reason",
    "file",
    "ip_trace_id",
    "debug_capture_point",
    "interface",
    "proxy_port",
    "trace_context",
    "sock_xlate_point",
    "socket_cookie",
    "cgroup_id",
    "extensions",
    "policy_log",
    "aggregate",
];

const SOURCE: (&str, u32) = ("source", 8);
const DESTINATION: (&str, u32) = ("destination", 9);

/// Fields of `flow.Endpoint`. The first and the last are not sent.
const ENDPOINT: [(&str, u32); 7] = [
    ("ID", 1),
    ("identity", 2),
    ("namespace", 3),
    ("labels", 4),
    ("pod_name", 5),
    ("workloads", 6),
    ("cluster_name", 7),
];

/// Maximum number of paths: more than the protocol has fields.
const MOST: usize = 256;

/// A parsed field mask: the fields of a flow that a client requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mask {
    /// Fields to keep. `None` keeps all subfields.
    kept: BTreeMap<u32, Option<Vec<u32>>>,
}

impl Mask {
    /// Parses paths such as `time` or `source.labels`. A path into another field than `source` or `destination` keeps the whole field.
    ///
    /// # Errors
    /// If a path names no field.
    pub fn new(paths: &[String]) -> Result<Self, String> {
        if paths.len() > MOST {
            return Err(format!("field_mask has more than {MOST} paths"));
        }
        let mut kept = BTreeMap::new();
        for path in paths {
            let nowhere =
                || format!("field_mask: flow.Flow has no field {}", bulkhead_answers::output::printable(path));
            let (name, inner) = path.split_once('.').map_or((&**path, None), |(name, inner)| (name, Some(inner)));
            let Some((_, number)) = SENT.iter().find(|(known, _)| *known == name) else {
                if NOT_SENT.contains(&name) {
                    continue;
                }
                return Err(nowhere());
            };
            let inner = inner.filter(|_| [SOURCE.1, DESTINATION.1].contains(number));
            let Some(inner) = inner else {
                kept.insert(*number, None);
                continue;
            };
            let name = inner.split('.').next().unwrap_or(inner);
            let (_, inner) = ENDPOINT.iter().find(|(known, _)| *known == name).ok_or_else(nowhere)?;
            if let Some(inside) = kept.entry(*number).or_insert_with(|| Some(Vec::new())) {
                inside.push(*inner);
            }
        }
        Ok(Self { kept })
    }

    /// Returns an encoded flow reduced to the mask.
    #[must_use]
    pub fn apply(&self, flow: &[u8]) -> Vec<u8> {
        let mut left = Vec::with_capacity(flow.len());
        for field in fields(flow).flatten() {
            match (self.kept.get(&field.number), field.content) {
                (Some(None), _) => left.extend(field.whole),
                (Some(Some(inside)), Some(content)) => {
                    let is_kept = |inner: &super::fields::Field<'_>| inside.contains(&inner.number);
                    let inner: Vec<u8> =
                        fields(content).flatten().filter(is_kept).flat_map(|inner| inner.whole).copied().collect();
                    put(field.number, &inner, &mut left);
                }
                _ => {}
            }
        }
        left
    }
}

/// Appends a length-delimited field of this number to `into`.
fn put(number: u32, content: &[u8], into: &mut Vec<u8>) {
    // The key is a varint of the field number and the wire type 2.
    let key = usize::try_from(number << 3 | 2).unwrap_or(usize::MAX);
    for varint in [key, content.len()] {
        // Writing to a vector cannot fail.
        let _ = prost::encode_length_delimiter(varint, into);
    }
    into.extend(content);
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::super::flow::{Endpoint, Flow};
    use super::*;

    #[test]
    fn what_is_asked_for_is_left_and_nothing_else() {
        let end = |name: &str| Endpoint {
            identity: 7,
            namespace: "shop".into(),
            pod_name: name.into(),
            labels: vec!["k8s:a=b".into(), "k8s:c=d".into()],
            ..Endpoint::default()
        };
        let flow = Flow {
            verdict: 2,
            source: Some(end("web")),
            destination: Some(end("db")),
            node_name: "node-1".into(),
            summary: "UDP".into(),
            ..Flow::default()
        };
        let masked = |paths: &[&str]| {
            let paths: Vec<String> = paths.iter().map(ToString::to_string).collect();
            Flow::decode(&*Mask::new(&paths).unwrap().apply(&flow.encode_to_vec())).unwrap()
        };
        let expected = Flow {
            verdict: 2,
            source: Some(Endpoint { labels: end("").labels, ..Endpoint::default() }),
            ..Flow::default()
        };
        assert_eq!(masked(&["verdict", "source.labels", "ethernet", "l7.http"]), expected);
        let expected = Flow { destination: Some(end("db")), summary: "UDP".into(), ..Flow::default() };
        assert_eq!(
            masked(&["destination.labels", "destination", "destination.identity", "Summary", "IP.source"]),
            expected
        );
        assert_eq!(masked(&[]), Flow::default());
        for wrong in ["verdicts", "source.lables", "", "source."] {
            assert!(Mask::new(&[wrong.to_owned()]).is_err(), "{wrong}");
        }
    }
}
