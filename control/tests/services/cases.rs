//! The file with known answers.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bulkhead_control::object::{Endpoint, EndpointSlice, Object, Transport};
use bulkhead_control::service::Settings;
use bulkhead_control::source::{Options, ServiceKinds, load_text};
use serde_json::{Value, json};

use super::asked::{Running, Told};

pub(crate) struct Cases(Value);

impl Cases {
    /// The cases. `None`, with a printed reason, if the file is absent.
    pub(crate) fn load() -> Option<Self> {
        let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/cases");
        let folder = env::var_os("BULKHEAD_CASES").map_or_else(beside, PathBuf::from);
        let path = folder.join("service_cases.json");
        let Ok(text) = fs::read_to_string(&path) else {
            assert!(env::var_os("CI").is_none(), "{} is absent and CI must run this test", path.display());
            println!("skipped: {} is absent; set BULKHEAD_CASES", path.display());
            return None;
        };
        Some(Self(serde_json::from_str(&text).unwrap()))
    }

    pub(crate) fn packets(&self) -> &[Value] {
        self.list("cases")
    }

    pub(crate) fn list(&self, key: &str) -> &[Value] {
        self.0[key].as_array().unwrap()
    }

    /// The defaults, overridden by the case's settings.
    pub(crate) fn settings(&self, case: &Value) -> Settings {
        let mut settings = self.0["defaults"].clone();
        for (key, value) in case["settings"].as_object().into_iter().flatten() {
            settings[key] = value.clone();
        }
        Settings::parse("settings", &settings.to_string()).unwrap()
    }

    /// The objects of the case's cluster, read like a file.
    pub(crate) fn objects(&self, case: &Value) -> Vec<Object> {
        let cluster = self.0["objects"][case["objects"].as_str().unwrap()].as_object().unwrap();
        let items: Vec<&Value> = cluster.values().flat_map(|list| list.as_array().unwrap()).collect();
        let text = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
        let options = Options { services: ServiceKinds::Read, ..Options::default() };
        load_text("case.json", &text, options).unwrap_or_else(|errors| panic!("{errors}")).objects
    }
}

/// Compares a result with the case's expectation. Returns the action.
pub(crate) fn check(case: &Value, found: &Told) -> &'static str {
    let expect = &case["expect"];
    let context = format!("case {} ({}): {}\nfound {found:?}", case["id"], case["objects"], case["why"]);
    let texts = |value: &Value| -> BTreeSet<SocketAddr> {
        value.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().parse().unwrap()).collect()
    };
    assert_eq!(found.action, expect["action"].as_str().unwrap(), "{context}");
    if found.action == "dnat" {
        let backends: BTreeSet<SocketAddr> = found.backends.keys().copied().collect();
        assert_eq!(backends, texts(&expect["backends"]), "{context}");
        let rewritten: BTreeSet<SocketAddr> =
            found.backends.iter().filter(|(_, rewrites)| **rewrites).map(|(address, _)| *address).collect();
        let must = texts(&expect["snat"]["must"]);
        assert!(must.is_subset(&rewritten), "{context}");
        assert!(expect["snat"]["must_not"] != true || rewritten.is_empty(), "{context}");
        assert!(found.service.is_some(), "{context}");
    }
    found.action
}

/// All endpoints of a sequence packet's service port, eligible or not.
pub(crate) fn endpoints_of(running: &Running, packet: &Value) -> BTreeSet<String> {
    let transport = Transport::from_name(packet["protocol"].as_str().unwrap()).unwrap();
    let (_, port) = running.port_at(packet["dst"].as_str().unwrap(), transport).unwrap();
    port.backends().iter().map(|&id| running.resolver.backend(id).socket().to_string()).collect()
}

/// The objects after a sequence's change. `first` is the backend of its first packet.
pub(crate) fn changed(objects: &[Object], change: &Value, first: Option<&str>) -> Vec<Object> {
    let mut objects = objects.to_vec();
    let (kind, value) = change.as_object().unwrap().iter().next().unwrap();
    let named = |text: &str| match text {
        "of_first" => first.unwrap().parse::<SocketAddr>().unwrap().ip(),
        text => text.parse().unwrap(),
    };
    let mut done = 0;
    let mut endpoints = |change: &mut dyn FnMut(&mut EndpointSlice)| {
        for object in &mut objects {
            if let Object::EndpointSlice(slice) = object {
                change(Arc::make_mut(slice));
                done += 1;
            }
        }
    };
    let is = |conditions: &Value, key: &str| conditions[key].as_bool().unwrap();
    match &**kind {
        "remove_endpoint" => {
            let gone = named(value.as_str().unwrap());
            endpoints(&mut |slice| slice.endpoints.retain(|endpoint| endpoint.address != gone));
        }
        "set_endpoint" | "conditions" => {
            let conditions = &change["conditions"];
            let set = named(change["set_endpoint"].as_str().unwrap());
            endpoints(&mut |slice| {
                for endpoint in slice.endpoints.iter_mut().filter(|endpoint| endpoint.address == set) {
                    (endpoint.ready, endpoint.serving) = (is(conditions, "ready"), is(conditions, "serving"));
                    endpoint.terminating = is(conditions, "terminating");
                }
            });
        }
        "replace_endpoint" => {
            let [old, new] = [&value[0], &value[1]].map(|text| named(text.as_str().unwrap()));
            endpoints(&mut |slice| {
                slice.endpoints.iter_mut().filter(|one| one.address == old).for_each(|one| one.address = new);
            });
        }
        "add_endpoint" => {
            let address = named(value["ip"].as_str().unwrap());
            let node = Some(value["node"].as_str().unwrap().into());
            let new = Endpoint { address, node, ready: true, serving: true, terminating: false, hints: None };
            add_endpoint(&mut objects, new);
            done = 1;
        }
        "service" | "service_protocol" => {
            for object in &mut objects {
                match object {
                    Object::Service(service) if kind == "service" => {
                        assert_eq!(value, &json!({"sessionAffinity": "None"}));
                        Arc::make_mut(service).affinity = None;
                        done += 1;
                    }
                    Object::Service(service) => {
                        Arc::make_mut(service).ports.iter_mut().for_each(|port| port.transport = Transport::Udp);
                        done += 1;
                    }
                    Object::EndpointSlice(slice) if kind == "service_protocol" => {
                        Arc::make_mut(slice).ports.iter_mut().for_each(|port| port.transport = Transport::Udp);
                    }
                    _ => {}
                }
            }
        }
        other => panic!("a change {other} is not known"),
    }
    assert!(done > 0, "{change} changed nothing");
    objects
}

/// Adds an endpoint to the Service's slice. If it has none, creates one with the ports of the sequences' Service.
fn add_endpoint(objects: &mut Vec<Object>, new: Endpoint) {
    let slices = objects.iter_mut().filter_map(|object| match object {
        Object::EndpointSlice(slice) => Some(slice),
        _ => None,
    });
    if let Some(slice) = slices.into_iter().next() {
        return Arc::make_mut(slice).endpoints.push(new);
    }
    let service = objects.iter().find_map(|object| match object {
        Object::Service(service) => Some(service),
        _ => None,
    });
    let service = service.unwrap();
    let numbers: BTreeMap<&str, u16> = service.ports.iter().map(|port| (&*port.name, 9_090)).collect();
    let ports = service.ports.iter().map(|port| bulkhead_control::object::EndpointPort {
        name: port.name.clone(),
        transport: port.transport,
        port: numbers[&*port.name],
    });
    let slice = EndpointSlice {
        name: bulkhead_control::object::ObjectName::new(service.name.namespace.clone(), "added"),
        service: Some(service.name.name.clone()),
        headless: false,
        ports: ports.collect(),
        endpoints: vec![new],
    };
    objects.push(Object::EndpointSlice(slice.into()));
}
