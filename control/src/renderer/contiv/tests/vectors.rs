//! 300 histories of Contiv's renderer cache with the resulting tables (with its fault B1 fixed).

use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
struct Vector {
    orientation: String,
    updates: Vec<VectorUpdate>,
    local: BTreeMap<String, Option<Vec<VectorRule>>>,
    global: Option<Vec<VectorRule>>,
}

/// Contiv's terms: its egress rules cover traffic that leaves the vswitch towards the pod.
#[derive(Deserialize)]
struct VectorUpdate {
    pod: String,
    ip: std::net::IpAddr,
    txn: usize,
    #[serde(default)]
    removed: bool,
    ingress: Option<Vec<VectorRule>>,
    egress: Option<Vec<VectorRule>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct VectorRule {
    action: String,
    proto: String,
    src: String,
    dst: String,
    port: u16,
}

impl VectorRule {
    fn tuple(&self) -> SixTuple {
        let network = |text: &str| (!text.is_empty()).then(|| text.parse().unwrap());
        SixTuple {
            src: network(&self.src),
            dst: network(&self.dst),
            service: service_of(&format!("{}:{}", self.proto, self.port)),
            action: match self.action.as_str() {
                "PERMIT" => Action::Allow,
                "DENY" => Action::Deny,
                other => panic!("action {other}"),
            },
        }
    }
}

impl VectorUpdate {
    fn update(&self) -> Update {
        let one_sided = |rules: &Option<Vec<VectorRule>>,
                         side: fn(&SixTuple) -> (Option<ipnet::IpNet>, Option<ipnet::IpNet>)| {
            let peer_rules = rules.iter().flatten().map(|rule| {
                let tuple = rule.tuple();
                let (peer, pod) = side(&tuple);
                assert_eq!(pod, None);
                PeerRule { peer, service: tuple.service, action: tuple.action }
            });
            Arc::new(PeerList::new(peer_rules).unwrap())
        };
        let lists = (!self.removed).then(|| PodLists {
            addresses: vec![self.ip],
            ingress: one_sided(&self.egress, |tuple| (tuple.src, tuple.dst)),
            egress: one_sided(&self.ingress, |tuple| (tuple.dst, tuple.src)),
        });
        (PodName::new("", self.pod.as_str()), lists)
    }
}

/// Returns the known answers. `None` if the files are absent, which is an error in CI.
fn vectors() -> Option<Vec<Vector>> {
    let folder = std::env::var("BULKHEAD_CASES")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/cases").into());
    let path = std::path::Path::new(&folder).join("contiv_cache_vectors.json");
    match std::fs::read(&path) {
        Ok(text) => Some(serde_json::from_slice(&text).unwrap()),
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "{}: {error}", path.display());
            eprintln!("skipped: {}: {error}; BULKHEAD_CASES names the folder of the cases", path.display());
            None
        }
    }
}

#[test]
fn all_300_known_histories_end_with_the_known_tables_rule_by_rule() {
    let Some(vectors) = vectors() else { return };
    assert_eq!(vectors.len(), 300);
    for (at, vector) in vectors.iter().enumerate() {
        let orientation = match vector.orientation.as_str() {
            "egress" => Orientation::Egress,
            "ingress" => Orientation::Ingress,
            other => panic!("orientation {other}"),
        };
        let mut cache = RendererCache::new(orientation, crate::renderer::contiv::MAX_TUPLES);
        for transaction in vector.updates.chunk_by(|a, b| a.txn == b.txn) {
            let updates: Vec<_> = transaction.iter().map(VectorUpdate::update).collect();
            commit(&mut cache, orientation, &updates);
        }
        let tuples =
            |rules: &Option<Vec<VectorRule>>| rules.iter().flatten().map(VectorRule::tuple).collect::<Vec<_>>();
        let locals = cache.state().locals();
        for (name, rules) in &vector.local {
            let pod = PodName::new("", name.as_str());
            let have = locals.get(&pod).into_iter().flat_map(|table| &table.rules);
            assert_eq!(shown(have), shown(&tuples(rules)), "vector {at}, pod {name}");
        }
        let named = vector.local.iter().filter(|(_, rules)| !tuples(rules).is_empty()).count();
        assert_eq!(locals.len(), named, "vector {at}: no other tables");
        assert_eq!(shown(&cache.state().global().rules), shown(&tuples(&vector.global)), "vector {at}, global");
    }
}

fn shown<'a>(rules: impl IntoIterator<Item = &'a SixTuple>) -> Vec<String> {
    rules.into_iter().map(ToString::to_string).collect()
}
