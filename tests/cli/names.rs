//! Names of ends: every command that asks about an end takes the same forms, and suggests the nearest name for a misspelt one.

use serde_json::Value;

use super::stderr;
use crate::support::{bulkhead, scratch, stdout};

/// Two nodes, a Deployment with three pods, a database and a policy by which only the Deployment reaches the database.
fn shop() -> String {
    let node = |at: u8| {
        format!(
            "---\n{{apiVersion: v1, kind: Node, metadata: {{name: n{at}}}, status: {{addresses: [{{type: InternalIP, address: 172.18.0.{at}}}]}}}}\n"
        )
    };
    let pod = |name: &str, labels: &str, node: u8, address: u8, owner: Option<(&str, &str)>| {
        let owner = owner.map(|(kind, name)| {
            format!(
                ", ownerReferences: [{{apiVersion: apps/v1, kind: {kind}, name: {name}, uid: u, controller: true}}]"
            )
        });
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {{{labels}}}{}}}\n\
             spec: {{nodeName: n{node}, containers: [{{name: c}}]}}\nstatus: {{phase: Running, podIPs: [{{ip: 10.0.0.{address}}}]}}\n",
            owner.unwrap_or_default()
        )
    };
    let policy = "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: db, namespace: shop}\n\
                  spec: {podSelector: {matchLabels: {app: db}}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]}\n";
    let space = "---\n{apiVersion: v1, kind: Namespace, metadata: {name: shop}}\n";
    let (web, of_web) = ("app: web, pod-template-hash: 5d4f", Some(("ReplicaSet", "web-5d4f")));
    let pods = [
        pod("web-5d4f-a", web, 1, 2, of_web),
        pod("web-5d4f-b", web, 1, 3, of_web),
        pod("web-5d4f-c", web, 2, 4, of_web),
        pod("db-0", "app: db", 1, 5, Some(("StatefulSet", "db"))),
        pod("cart", "app: cart", 2, 6, None),
    ];
    format!("{space}{}{}{}{policy}", node(1), node(2), pods.concat())
}

#[test]
fn explain_takes_workloads_and_labels_and_explains_alike_connections_once() {
    let path = scratch("names-explain.yaml", shop().as_bytes());
    let ask = |from: &str, to: &str| {
        bulkhead(&["explain", "--state", &path, "--from", from, "--to", to, "--port", "5432", "-o", "json"])
    };
    for from in ["deploy/shop/web", "Deployment/shop/web", "rs/shop/web-5d4f", "shop/web", "app=web -n shop"] {
        for to in ["shop/db-0", "sts/shop/db", "shop/db", "app=db -n shop", "pod/shop/db-0"] {
            let output = ask(from, to);
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            let answer: Value = serde_json::from_str(&stdout(&output, 0)).unwrap();
            let walks: Vec<&Value> = answer["walks"].as_array().unwrap().iter().map(|walk| &walk["from"]).collect();
            // One of the two pods on the database's node, and the pod of the other node.
            assert_eq!(walks, ["shop/web-5d4f-a", "shop/web-5d4f-c"], "{from} {to}");
            assert!(told.contains("1 more connections have the same answers"), "{told}");
        }
    }
    stdout(&ask("app=cart -n shop", "deploy/shop/web"), 0);
    stdout(&ask("shop/cart", "sts/shop/db"), 1);
    // The pods of a workload reach each other; a pod's connection to itself is left out.
    let answer: Value = serde_json::from_str(&stdout(&ask("deploy/shop/web", "deploy/shop/web"), 0)).unwrap();
    assert!(answer["walks"].as_array().unwrap().iter().all(|walk| walk["from"] != walk["to"]), "{answer}");
}

#[test]
fn a_misspelt_end_gets_the_nearest_name() {
    let path = scratch("names-near.yaml", shop().as_bytes());
    for (from, problem, help) in [
        ("shop/carr", "no pod shop/carr in the state", "did you mean shop/cart?"),
        ("shop/wbe", "no pod shop/wbe in the state", "did you mean shop/web?"),
        ("shpo/cart", "no pod shpo/cart in the state", "did you mean shop/cart?"),
        ("default/cart", "no pod default/cart in the state", "did you mean shop/cart?"),
        ("other/zzz", "no pod other/zzz", "no pod in namespace other and no pod named zzz"),
        ("deploy/shop/wbe", "no Deployment shop/wbe in the state", "did you mean shop/web?"),
        ("deploy/shop/db", "no Deployment shop/db in the state", "it has shop/web"),
        ("app=wbe -n shop", "no pod with app=wbe in namespace shop", "did you mean app=web?"),
        ("app=web -n shpo", "no pod with app=web in namespace shpo", "did you mean shop?"),
        ("node/n3", "no node `n3` in the state", "it has n1, n2"),
    ] {
        let told = stderr(&["explain", "--state", &path, "--from", from, "--to", "shop/db", "--port", "1"], 2);
        assert!(told.contains(problem) && told.contains(help), "{from}: {told}");
    }
}

#[test]
fn policies_takes_every_name_of_pods_with_the_same_labels() {
    let path = scratch("names-policies.yaml", shop().as_bytes());
    let ask = |pod: &str| bulkhead(&["policies", "--state", &path, "--pod", pod]);
    for name in ["shop/db-0", "sts/shop/db", "shop/db", "app=db -n shop", "10.0.0.5"] {
        let answer = stdout(&ask(name), 0);
        assert!(answer.starts_with("shop/db-0, StatefulSet db, labels: app=db\n"), "{name}: {answer}");
    }
    let many = ask("deploy/shop/web");
    assert!(stdout(&many, 0).starts_with("shop/web-5d4f-a, Deployment web"));
    assert!(String::from_utf8_lossy(&many.stderr).contains("3 pods with these labels; shown for shop/web-5d4f-a"));
    for (name, words) in [
        ("shop/dbb", "did you mean shop/db?"),
        ("192.0.2.1", "no pod has the address 192.0.2.1"),
        ("node/n1", "no policy selects a node, such as n1"),
    ] {
        let told = stderr(&["policies", "--state", &path, "--pod", name], 2);
        assert!(told.contains(words), "{name}: {told}");
    }
}

#[test]
fn a_node_may_be_named_with_its_kind_wherever_a_node_is_asked_for() {
    let path = scratch("names-node.yaml", shop().as_bytes());
    let compile = |node: &str| stdout(&bulkhead(&["compile", "--state", &path, "--node", node]), 0);
    assert_eq!(compile("node/n1"), compile("n1"));
    for node in ["node/n1", "nodes/n1", "no/n1"] {
        let to = ["--to", "10.96.0.1:80/TCP"];
        stdout(&bulkhead(&[&["resolve", "--state", &path, "--node", node, "--from", node][..], &to].concat()), 0);
    }
}

#[test]
fn a_service_is_no_client_and_policies_select_pods_only() {
    let path = scratch("names-service.yaml", shop().as_bytes());
    let service = "`svc/shop/db` is a Service, which opens no connections and which no policy selects; name the pods";
    for args in [
        &["explain", "--state", &path, "--from", "svc/shop/db", "--to", "shop/db", "--port", "1"][..],
        &["resolve", "--state", &path, "--node", "n1", "--from", "svc/shop/db", "--to", "10.96.0.1:80"],
        &["reach", "--state", &path, "--port", "1", "-o", "md", "--focus", "svc/shop/db"],
        &["policies", "--state", &path, "--pod", "svc/shop/db"],
    ] {
        let told = stderr(args, 2);
        assert!(told.contains(service), "{told}");
    }
    let claims = "claims:\n- name: closed\n  never: {from: svc/shop/db, to: shop/web}\n";
    let told = stderr(&["test", "--state", &path, &scratch("names-service-claims.yaml", claims)], 2);
    assert!(told.contains(&format!("names-service-claims.yaml:3: claims[0].never.from: {service}")), "{told}");
    let ask = ["resolve", "--state", &path, "--node", "n1", "--from", "shop/web", "--to"];
    for to in ["deploy/shop/web", "node/n1", "shop/db"] {
        let told = stderr(&[&ask[..], &[to]].concat(), 2);
        assert!(told.contains(&format!("`{to}` is neither a Service")), "{told}");
    }
}

#[test]
fn a_claim_about_a_service_is_judged_at_its_endpoints_and_their_ports() {
    // The database's pod serves at two ports, and the cart's one; policy closes the database to all but the web shop.
    let service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: db, namespace: shop}\n\
                   spec: {clusterIP: 10.96.0.1, ports: [{name: sql, port: 80, targetPort: 5432}, {name: stats, port: 81, targetPort: 9090}]}\n\
                   ---\napiVersion: v1\nkind: Service\nmetadata: {name: idle, namespace: shop}\nspec: {clusterIP: 10.96.0.2, ports: [{port: 80}]}\n\
                   ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n\
                   metadata: {name: db-1, namespace: shop, labels: {kubernetes.io/service-name: db}}\n\
                   ports: [{name: sql, port: 5432}]\nendpoints: [{addresses: [10.0.0.5], conditions: {ready: false}}]\n\
                   ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n\
                   metadata: {name: db-2, namespace: shop, labels: {kubernetes.io/service-name: db}}\n\
                   ports: [{name: stats, port: 9090}]\nendpoints: [{addresses: [10.0.0.6]}]\n";
    let path = scratch("names-service-state.yaml", format!("{}{service}", shop()).as_bytes());
    let judge = |claim: &str| {
        let claims = scratch("names-service-judged.yaml", &format!("claims:\n- name: one\n  {claim}\n"));
        let output = bulkhead(&["test", "--state", &path, &claims, "-o", "json"]);
        let report: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{claim}: {}", String::from_utf8_lossy(&output.stderr)));
        report["claims"][0].clone()
    };
    for (claim, result) in [
        ("never: {from: shop/cart, to: 'service/shop/db:sql'}", "pass"),
        ("never: {from: shop/cart, to: 'svc/shop/db', ports: [80]}", "pass"),
        ("always: {from: deploy/shop/web, to: service/shop/db}", "pass"),
        ("only: {from: deploy/shop/web, to: 'service/shop/db:80/TCP'}", "pass"),
        ("only: {from: deploy/shop/web, to: service/shop/db}", "fail"),
        ("never: {from: outside, to: 'service/shop/db:81'}", "fail"),
        ("never: {from: shop/cart, to: ['service/shop/db:sql', shop/web]}", "fail"),
    ] {
        assert_eq!(judge(claim)["result"], result, "{claim}");
    }
    let witness = &judge("never: {from: outside, to: service/shop/db}")["witness"];
    assert_eq!((&witness["to"], &witness["port"]), (&"shop/cart".into(), &9090.into()), "{witness}");
    for (to, reason) in [
        ("service/shop/idel", "`to` selects nobody: did you mean shop/idle?"),
        ("'service/shop/db:5432'", "Service shop/db has none of these ports, but sql (80/TCP), stats (81/TCP)"),
        ("service/shop/idle", "Service shop/idle has no endpoints in the state"),
    ] {
        let told = judge(&format!("never: {{from: outside, to: {to}}}"));
        assert!(told["result"] == "vacuous" && told["reason"].as_str().unwrap().contains(reason), "{told}");
    }
}

#[test]
fn policies_finds_the_host_network_pod_of_an_address() {
    let pod = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: agent, namespace: shop}\n\
               spec: {nodeName: n1, hostNetwork: true, containers: [{name: c}]}\nstatus: {phase: Running, podIPs: [{ip: 172.18.0.1}]}\n";
    let path = scratch("names-host.yaml", format!("{}{pod}", shop()).as_bytes());
    let answer = stdout(&bulkhead(&["policies", "--state", &path, "--pod", "172.18.0.1"]), 0);
    assert!(answer.starts_with("shop/agent"), "{answer}");
}
