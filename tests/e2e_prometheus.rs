//! Checks the rules and the dashboard of `deploy/monitoring` with a real Prometheus that scrapes a running vswitch.

use crate::require;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::lab::netns::{Running, eventually};
use crate::lab::{Lab, policy};
use crate::support::root;
use serde_json::Value;

const PROMETHEUS: &str = "127.0.0.1:9090";

/// The prefixes of metrics that a node lacks without an API server, and with an uplink port. `e2e_node_probes` checks the latter.
const ELSEWHERE: [&str; 2] = ["bulkhead_source_", "bulkhead_remote_node_"];

fn monitoring(file: &str) -> PathBuf {
    root().join("deploy/monitoring").join(file)
}

fn lab() -> Lab {
    let mut lab = Lab::new();
    lab.pod("a", "{app: a}");
    lab.pod("b", "{app: b}");
    lab.more_config.push_str("admin: {socket: admin.sock, listen: '127.0.0.1:9965'}\n");
    lab
}

/// Starts a Prometheus with the alert rules on the node. It scrapes the vswitch every second.
fn prometheus(lab: &Lab) -> Running {
    let config = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{}']\n\
         scrape_configs: [{{job_name: bulkhead, static_configs: [{{targets: ['127.0.0.1:9965']}}]}}]\n",
        monitoring("alerts.yaml").display()
    );
    let file = lab.path("prometheus.yml");
    fs::write(&file, config).unwrap();
    let words = [
        format!("--config.file={}", file.display()),
        format!("--storage.tsdb.path={}", lab.path("prometheus").display()),
        format!("--web.listen-address={PROMETHEUS}"),
        "--log.level=error".to_owned(),
    ];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Running::start(lab.node.command("prometheus", &words).stdout(Stdio::null()).stderr(Stdio::null()))
}

/// The answer of Prometheus' API. Null if it does not answer.
fn api(lab: &Lab, path: &str, query: Option<&str>) -> Value {
    let url = format!("http://{PROMETHEUS}/api/v1/{path}");
    let mut words = vec!["-s", "-G", &url];
    let query = query.map(|query| format!("query={query}"));
    if let Some(query) = &query {
        words.extend(["--data-urlencode", query]);
    }
    let output = lab.node.command("curl", &words).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

fn metrics(expression: &str) -> BTreeSet<&str> {
    let words = expression.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.filter(|word| word.starts_with("bulkhead_")).collect()
}

fn alerts() -> Vec<(String, String)> {
    let text = fs::read_to_string(monitoring("alerts.yaml")).unwrap();
    let rules: Value = serde_saphyr::from_str(&text).unwrap();
    let groups = rules["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap());
    let named = |rule: &Value| (rule["alert"].as_str().unwrap().to_owned(), rule["expr"].as_str().unwrap().to_owned());
    groups.map(named).collect()
}

/// The dashboard's expressions with their variables set as if nothing is selected.
fn panels() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_slice(&fs::read(monitoring("dashboard.json")).unwrap()).unwrap();
    let asked = |text: &str| text.replace("$instance", ".*").replace("$__rate_interval", "5s");
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| {
        let title = panel["title"].as_str().unwrap();
        panel["targets"].as_array().unwrap().iter().map(move |target| (title, target["expr"].as_str().unwrap()))
    });
    targets.map(|(title, expression)| (title.to_owned(), asked(expression))).collect()
}

#[test]
fn every_alert_and_panel_asks_for_metrics_that_a_running_vswitch_has() {
    require!("prometheus", "promtool", "curl", "ping");
    let mut lab = lab();
    lab.start(&policy("closed", "{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress]}"));
    let _prometheus = prometheus(&lab);
    let to = lab.get("b").v4.clone();
    assert!(!lab.pings("a", &to), "policy denies it");
    eventually("Prometheus has read the vswitch twice", || {
        let seen = api(&lab, "query", Some("count_over_time(bulkhead_process_ready[1m])"));
        seen["data"]["result"][0]["value"][1].as_str().and_then(|count| count.parse().ok()) >= Some(2)
    });
    let (alerts, panels) = (alerts(), panels());
    assert!(alerts.len() > 20 && panels.len() >= 20, "{} and {}", alerts.len(), panels.len());
    for (name, expression) in alerts.iter().chain(&panels) {
        let answer = api(&lab, "query", Some(expression));
        assert_eq!(answer["status"], "success", "{name}: {answer:#}");
        let is_here = |metric: &&str| !ELSEWHERE.iter().any(|prefix| metric.starts_with(prefix));
        for metric in metrics(expression).into_iter().filter(is_here) {
            // A counter without events has no series yet, but its family is listed.
            let told = lab.node.exec("curl -s http://127.0.0.1:9965/metrics");
            let family = metric.trim_end_matches("_total").trim_end_matches("_bucket");
            assert!(told.contains(&format!("# TYPE {family} ")), "{name}: no vswitch tells {metric}");
        }
    }
    let denied = api(&lab, "query", Some("sum by (kind, namespace) (bulkhead_policy_denied_packets_total)"));
    assert_eq!(denied["data"]["result"][0]["metric"]["kind"], "isolation", "{denied:#}");
    // An invalid state must fire an alert.
    lab.write_state("---\n{ this is no state\n");
    eventually("the alert fires", || {
        let rules = api(&lab, "alerts", None);
        let firing = rules["data"]["alerts"].as_array().into_iter().flatten();
        firing
            .filter(|alert| alert["state"] == "firing")
            .any(|alert| alert["labels"]["alertname"] == "BulkheadStateRefused")
    });
    let rules = api(&lab, "rules", None);
    let groups = rules["data"]["groups"].as_array().unwrap().iter();
    for rule in groups.flat_map(|group| group["rules"].as_array().unwrap()) {
        assert_eq!(rule["health"], "ok", "{rule:#}");
    }
}

#[test]
fn the_alerts_fire_when_they_should() {
    require!("promtool");
    for words in [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts.test.yaml"]] {
        let output =
            Command::new("promtool").args(words).current_dir(root().join("deploy/monitoring")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
    }
}
