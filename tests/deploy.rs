//! Checks `deploy/`: manifests match their types, references resolve, this program accepts the configuration and commands, and the Helm
//! chart renders the same objects.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and print")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::manifests::{containers, documents, kustomized, rendered};
use crate::support::{bulkhead, root, scratch};
use bulkhead::args::Args;
use bulkhead_cluster::kubernetes::Kind;
use clap::{CommandFactory, Parser};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

fn deploy() -> PathBuf {
    root().join("deploy")
}

/// Both sets of manifests: installation and removal.
fn sets() -> [Vec<Value>; 2] {
    [kustomized(&deploy()), kustomized(&deploy().join("uninstall"))]
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

fn texts(value: &Value) -> BTreeSet<&str> {
    value.as_array().into_iter().flatten().map(text).collect()
}

/// The configuration in the manifests' ConfigMap.
fn configuration(objects: &[Value]) -> String {
    text(&of_kind(objects, "ConfigMap")[0]["data"]["node.yaml"]).to_owned()
}

/// The first field that is lost when an object is parsed as its type, because the type does not have it. `None` if nothing is lost.
fn lost<T: DeserializeOwned + Serialize>(object: &Value) -> Option<String> {
    let read: T = match serde_json::from_value(object.clone()) {
        Ok(read) => read,
        Err(error) => return Some(error.to_string()),
    };
    let again = serde_json::to_value(read).unwrap();
    (again != *object).then(|| format!("read as its kind it is\n{again:#}"))
}

fn is_wrong(object: &Value) -> Option<String> {
    match (text(&object["apiVersion"]), text(&object["kind"])) {
        ("apps/v1", "DaemonSet") => lost::<DaemonSet>(object),
        ("v1", "ConfigMap") => lost::<ConfigMap>(object),
        ("v1", "ServiceAccount") => lost::<ServiceAccount>(object),
        ("rbac.authorization.k8s.io/v1", "ClusterRole") => lost::<ClusterRole>(object),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding") => lost::<ClusterRoleBinding>(object),
        other => Some(format!("{other:?} is not known to this test")),
    }
}

#[test]
fn every_manifest_is_one_of_its_kind_and_a_misspelt_field_is_found() {
    for object in sets().iter().flatten() {
        assert_eq!(is_wrong(object), None, "{object:#}");
    }
    let mut daemonset = of_kind(&sets()[0], "DaemonSet")[0].clone();
    daemonset["spec"]["template"]["spec"]["toleration"] = serde_json::json!([]);
    assert!(is_wrong(&daemonset).is_some());
    daemonset = of_kind(&sets()[0], "DaemonSet")[0].clone();
    daemonset["spec"]["template"]["spec"]["hostNetwork"] = "yes".into();
    assert!(is_wrong(&daemonset).is_some());
}

#[test]
fn what_a_manifest_refers_to_is_there() {
    for objects in sets() {
        let names = |kind: &str| -> BTreeSet<String> {
            of_kind(&objects, kind).iter().map(|object| text(&object["metadata"]["name"]).to_owned()).collect()
        };
        let namespaces: BTreeSet<&str> =
            objects.iter().filter_map(|object| object["metadata"]["namespace"].as_str()).collect();
        assert_eq!(namespaces.len(), 1);
        for binding in of_kind(&objects, "ClusterRoleBinding") {
            assert!(names("ClusterRole").contains(text(&binding["roleRef"]["name"])));
            for subject in binding["subjects"].as_array().unwrap() {
                assert!(names("ServiceAccount").contains(text(&subject["name"])));
                assert!(namespaces.contains(text(&subject["namespace"])));
            }
        }
        for daemonset in of_kind(&objects, "DaemonSet") {
            let (spec, template) = (&daemonset["spec"]["template"]["spec"], &daemonset["spec"]["template"]);
            assert_eq!(daemonset["spec"]["selector"]["matchLabels"], template["metadata"]["labels"]);
            if let Some(account) = spec["serviceAccountName"].as_str() {
                assert!(names("ServiceAccount").contains(account));
            }
            let mut volumes = BTreeSet::new();
            for volume in spec["volumes"].as_array().unwrap() {
                assert!(volumes.insert(text(&volume["name"])), "{volume} twice");
                if let Some(map) = volume["configMap"]["name"].as_str() {
                    assert!(names("ConfigMap").contains(map), "{map}");
                }
            }
            let mounts = || containers(daemonset).into_iter().flat_map(|one| one["volumeMounts"].as_array()).flatten();
            assert_eq!(mounts().map(|mount| text(&mount["name"])).collect::<BTreeSet<_>>(), volumes);
            for container in containers(daemonset) {
                assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false, "{container:#}");
                assert_eq!(texts(&container["securityContext"]["capabilities"]["drop"]), BTreeSet::from(["ALL"]));
                assert_eq!(container["securityContext"].get("privileged"), None);
                // A surge runs two pods on a node, and the API server refuses it for containers with host ports.
                assert_eq!(container.get("ports"), None);
            }
        }
    }
}

#[test]
fn the_rights_are_those_to_list_and_watch_the_kinds_that_are_followed_and_no_others() {
    let objects = &sets()[0];
    let granted = of_kind(objects, "ClusterRole")[0]["rules"].as_array().unwrap().iter().flat_map(|rule| {
        assert_eq!(texts(&rule["verbs"]), BTreeSet::from(["list", "watch"]), "{rule:#}");
        let (groups, resources) = (texts(&rule["apiGroups"]), texts(&rule["resources"]));
        let of_group = |group: &str| resources.iter().map(|resource| format!("{resource}.{group}")).collect::<Vec<_>>();
        groups.into_iter().flat_map(of_group).collect::<Vec<_>>()
    });
    let names = |kind: Kind| kind.groups().into_iter().map(move |group| format!("{}.{group}", kind.resource()));
    let followed = Kind::ALL.into_iter().flat_map(names);
    assert_eq!(granted.collect::<BTreeSet<_>>(), followed.collect());
}

#[test]
fn the_configurations_load_and_what_they_name_is_mounted_and_probed() {
    for (at, objects) in sets().iter().enumerate() {
        let path = scratch(&format!("deployed-{at}.yaml"), &configuration(objects));
        let output = bulkhead(&["run", "--config", &path, "--node", "node-1", "--check", "-o", "json"]);
        let errors = String::from_utf8_lossy(&output.stderr);
        // 0 or 1, as this machine may be unable to run the configuration; 2 would mean that it is invalid.
        assert!(matches!(output.status.code(), Some(0 | 1)), "{errors}");
        let misspelt = scratch("misspelt.yaml", &configuration(objects).replace("state:", "stat:"));
        let output = bulkhead(&["run", "--config", &misspelt, "--node", "node-1", "--check"]);
        assert_eq!(output.status.code(), Some(2));
    }
    let objects = &sets()[0];
    let config = documents(&configuration(objects)).remove(0);
    let daemonset = of_kind(objects, "DaemonSet")[0];
    let container = containers(daemonset).into_iter().find(|one| one["name"] == "bulkhead").unwrap();
    let mounted: BTreeMap<&str, &Value> =
        container["volumeMounts"].as_array().unwrap().iter().map(|mount| (text(&mount["mountPath"]), mount)).collect();
    let (listen, port) = text(&config["admin"]["listen"]).rsplit_once(':').unwrap();
    for (probe, path) in [("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")] {
        let asked = &container[probe]["httpGet"];
        assert_eq!((text(&asked["host"]), text(&asked["path"])), (listen, path));
        assert_eq!(asked["port"].to_string(), port);
    }
    // The defaults of `pins`, `sessions.folder` and `state.kubernetes.folder`, and the folder of the configuration.
    let socket = text(&config["admin"]["socket"]).rsplit_once('/').unwrap().0;
    for folder in ["/sys/fs/bpf", "/run/bulkhead", "/var/lib/bulkhead", "/etc/bulkhead", socket] {
        assert!(mounted.contains_key(folder), "{folder}");
    }
    for folder in ["/sys/fs/bpf", "/run/netns"] {
        assert_eq!(mounted[folder]["mountPropagation"], "HostToContainer");
    }
}

#[test]
fn the_commands_of_the_containers_are_the_programs_own() {
    let known: BTreeSet<String> =
        Args::command().get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let mut seen = BTreeSet::new();
    for daemonset in sets().iter().flatten().filter(|object| object["kind"] == "DaemonSet") {
        for container in containers(daemonset).into_iter().filter(|one| texts(&one["command"]).contains("bulkhead")) {
            let words: Vec<&str> = container["args"].as_array().unwrap().iter().map(text).collect();
            assert!(known.contains(words[0]), "{words:?}");
            seen.insert(words[0].to_owned());
            Args::try_parse_from([&["bulkhead"], &words[..]].concat()).unwrap_or_else(|error| panic!("{error}"));
        }
    }
    assert!(seen.contains("run") && seen.contains("cleanup"), "{seen:?}");
}

#[test]
fn the_systemd_unit_has_the_same_capabilities_and_starts_the_program_as_it_is_started() {
    let unit = fs::read_to_string(deploy().join("systemd/bulkhead.service")).unwrap();
    let of = |field: &str| unit.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    let granted: BTreeSet<&str> =
        of("CapabilityBoundingSet=").split_whitespace().map(|name| name.strip_prefix("CAP_").unwrap()).collect();
    let objects = &sets()[0];
    let daemonset = of_kind(objects, "DaemonSet")[0];
    let container = containers(daemonset).into_iter().find(|one| one["name"] == "bulkhead").unwrap();
    assert_eq!(texts(&container["securityContext"]["capabilities"]["add"]), granted);
    for field in ["ExecStart=", "ExecReload="] {
        let words = of(field).split_whitespace();
        Args::try_parse_from(words).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn the_image_has_one_version_everywhere() {
    let version = env!("CARGO_PKG_VERSION");
    let named = format!("bulkhead:{version}");
    for object in sets().iter().flatten() {
        for container in containers(object) {
            assert_eq!(container["image"], named.as_str());
        }
    }
    let chart = documents(&fs::read_to_string(deploy().join("chart/Chart.yaml")).unwrap()).remove(0);
    assert_eq!((text(&chart["version"]), text(&chart["appVersion"])), (version, version));
    let recipe = fs::read_to_string(deploy().join("Containerfile")).unwrap();
    assert!(recipe.contains(&named));
    let rust = recipe.lines().find_map(|line| line.strip_prefix("ARG RUST=")).unwrap();
    assert!(fs::read_to_string(root().join("Cargo.toml")).unwrap().contains(&format!("rust-version = \"{rust}\"")));
}

/// Objects by kind and name, with configurations parsed so that only their meaning is compared.
fn comparable(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let objects = objects.into_iter().map(|mut object| {
        if let Some(text) = object.pointer("/data/node.yaml").and_then(Value::as_str).map(str::to_owned) {
            object["data"]["node.yaml"] = documents(&text).remove(0);
        }
        (format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"])), object)
    });
    objects.collect()
}

#[test]
fn the_chart_with_its_default_values_is_the_plain_manifests() {
    let plain = comparable(kustomized(&deploy()));
    assert_eq!(plain.len(), 5);
    assert_eq!(comparable(rendered(&deploy().join("chart"), "kube-system")), plain);
    let chart = deploy().join("chart");
    let words = ["template", "bulkhead", chart.to_str().unwrap(), "--namespace", "kube-system"];
    match Command::new("helm").args(words).output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            assert_eq!(comparable(documents(&String::from_utf8(output.stdout).unwrap())), plain);
            assert!(Command::new("helm").arg("lint").arg(&chart).status().unwrap().success());
        }
        Err(error) => println!("helm was not asked: {error}; the chart was rendered by this test alone"),
    }
}

#[test]
fn kustomize_makes_the_same_of_the_manifests_as_these_tests() {
    for folder in [deploy(), deploy().join("uninstall")] {
        let output = match Command::new("kubectl").arg("kustomize").arg(&folder).output() {
            Ok(output) => output,
            Err(error) => {
                println!("skipped: kubectl: {error}");
                return;
            }
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let made = comparable(documents(&String::from_utf8(output.stdout).unwrap()));
        assert_eq!(made, comparable(kustomized(&folder)));
    }
}
