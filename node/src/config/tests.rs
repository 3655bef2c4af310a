use super::*;
use bulkhead_cluster::kubernetes::Access;
use bulkhead_control::object::Enforcement;
use bulkhead_control::pipeline::Choice;
use bulkhead_control::source::{ForeignKinds, ServiceKinds};
use bulkhead_dataplane::SessionConfig;

const LEAST: &str = "node: n\nstate: {paths: [s.yaml]}\nports: [{kind: uplink, interface: eth1}]\n";

fn parse(text: &str) -> Result<Config, String> {
    Config::parse("c.yaml", text, Path::new("/etc/bulkhead")).map_err(|errors| errors.to_string())
}

/// Asserts that the file is refused with an error that contains `part`, and a remedy.
fn assert_refused(text: &str, part: &str) {
    let error = parse(text).unwrap_err();
    assert!(error.contains(part) && error.contains("help: "), "{error}");
}

fn with_port(port: &str) -> Result<Config, String> {
    parse(&format!("node: n\nstate: {{paths: [s.yaml]}}\nports:\n  - {port}\n"))
}

#[test]
fn a_node_of_a_cluster_needs_one_setting_and_what_the_file_says_counts() {
    let cluster = |rest: &str| parse(&format!("node: n\nstate: {{paths: [s.yaml]}}\nmode: cluster\n{rest}"));
    let written = "ports: [{kind: host, interface: bh-host, peer: bh-node, create: {}}]\n\
        routes: [{prefix: 0.0.0.0/0, port: host}, {prefix: '::/0', port: host}]\nmasquerade: true\n";
    let whole = parse(&format!("node: n\nstate: {{paths: [s.yaml]}}\n{written}")).unwrap();
    let of = |config: &Config| (config.created_host.clone(), config.routes.clone(), config.masquerade.clone());
    assert_eq!(of(&cluster("").unwrap()), of(&whole));
    assert!(whole.masquerades_at_card() && whole.services.is_some());
    let other = cluster(
        "masquerade: false\nroutes: [{prefix: '::/0', via: 'fe80::7', port: host}]\n\
         ports: [{kind: host, interface: h, peer: p, create: {mtu: 1400}}, {kind: pod, pod: a/b, interface: v}]\n",
    )
    .unwrap();
    assert_eq!((other.masquerade, other.routes.len(), other.ports.len()), (None, 2, 2));
    assert_eq!(other.created_host.unwrap().mtu, Some(1400));
    assert!(other.routes.iter().any(|route| route.via.is_some()));
    for contradiction in ["attach: xdp", "dataplane: nftables\nservices: off", "ports: [{kind: uplink, interface: u}]"]
    {
        let error = cluster(contradiction).unwrap_err();
        assert!(error.contains("cluster does not go together with") && error.contains("c.yaml:3: "), "{error}");
    }
    assert!(parse("node: n\nstate: {paths: [s.yaml]}\n").unwrap_err().contains("mode: cluster"));
    assert!(parse(&format!("{LEAST}mode: skb\n")).unwrap_err().contains("expected one of cluster"));
}

#[test]
fn the_example_is_a_configuration_and_shows_what_is_the_default() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/node.yaml");
    let config = Config::read(&example, None).unwrap();
    assert_eq!((&*config.node, config.xdp_mode, config.workers.poll), ("node-1", XdpModeName::Auto, Poll::Adaptive));
    let names: Vec<&str> = config.ports.iter().map(|port| &*port.name).collect();
    assert_eq!(names, ["default/db", "default/backend1", "uplink", "host"]);
    assert!(config.state.paths[0].exists(), "paths start at the file's folder: {:?}", config.state.paths);

    // Commented-out fields show the defaults: uncommenting them must not change the configuration.
    let text = std::fs::read_to_string(&example).unwrap();
    let bare = |line: &str| {
        let rest = line.trim_start();
        let indent = &line[..line.len() - rest.len()];
        match rest.strip_prefix('#').filter(|rest| !rest.starts_with(' ')) {
            Some(field) => format!("{indent}{field}\n"),
            None => format!("{line}\n"),
        }
    };
    let full: String = text.lines().map(bare).collect();
    assert_ne!(full, text);
    // Exception: the dataplane defines the default number of sessions.
    let known = SessionConfig::default().capacity;
    let mut same = Config::parse("node.yaml", &full, example.parent().unwrap()).unwrap();
    assert_eq!(same.sessions.capacity.take(), Some(known));
    // Exception: the default number of packet buffers depends on the ports.
    assert_eq!(same.workers.frames.take(), Some(config.frames()));
    // Exception: no metrics over HTTP by default.
    assert_eq!(same.admin.listen.take(), Some("127.0.0.1:9965".parse().unwrap()));
    // Exception: no Hubble server by default.
    let served = std::mem::take(&mut same.hubble);
    let file = |name: &str| example.parent().unwrap().join("hubble").join(name);
    let client_ca = Some(file("ca.crt"));
    let files = TlsFiles { certificate: file("tls.crt"), key: file("tls.key"), client_ca, cluster: "default".into() };
    assert_eq!(served, HubbleConfig::Tcp("0.0.0.0:4244".parse().unwrap(), Some(files)));
    // Exception: by default, a missing BPF file system is no error.
    assert_eq!(std::mem::take(&mut same.pins), Pins::Path(DEFAULT_PINS.into()));
    // Exception: external IPs are not restricted by default.
    let services = same.services.as_mut().unwrap();
    assert_eq!(services.external_ips.take(), Some(vec!["198.51.100.0/24".parse().unwrap()]));
    // Exception: by default, audit counts are kept with the sessions.
    let folder = std::mem::replace(&mut same.audit_folder, config.audit_folder.clone());
    assert_eq!((folder, &config.audit_folder), (Some("/var/lib/bulkhead/audit".into()), &config.sessions.folder));
    // Exception: no masquerading by default.
    assert_eq!(same.masquerade.take(), Some(MasqueradeConfig::default().without([4789, 4792])));
    // Exception: by default, interfaces keep the kernel's packet size.
    assert_eq!(same.big_tcp.take(), Some(196_608));
    for (one, other) in same.ports.iter_mut().zip(&config.ports) {
        one.line = other.line;
    }
    assert_eq!(same, config);
}

#[test]
fn load_balancers_are_told_at_kube_proxys_port_unless_it_says_otherwise() {
    let read = |admin: &str| {
        let text = format!("node: n\nstate: {{paths: [s]}}\nadmin: {{{admin}}}\nports: []\n");
        Config::parse("c.yaml", &text, Path::new("/")).map(|config| config.admin.service_health)
    };
    assert_eq!(read("").unwrap(), Some("[::]:10256".parse().unwrap()));
    assert_eq!(read("service_health: none").unwrap(), None);
    assert_eq!(read("service_health: 192.0.2.1:10300").unwrap(), Some("192.0.2.1:10300".parse().unwrap()));
    for (wrong, why) in [
        ("service_health: '10256'", "c.yaml:3: admin.service_health: `10256` is not an address and port"),
        ("service_health: '0.0.0.0:0'", "`0.0.0.0:0` is not an address and port"),
        ("listen: '127.0.0.1:9000', service_health: '[::]:9000'", "has the port 9000 of admin.listen"),
    ] {
        let error = read(wrong).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains("help: "), "{error}");
    }
}

#[test]
fn the_name_of_hubbles_cluster_is_one_that_a_certificate_can_have() {
    let read = |cluster: &str, tls: &str| {
        let hubble = format!("listen: '127.0.0.1:4244', cluster: {cluster}{tls}");
        let text = format!("node: n\nstate: {{paths: [s]}}\nhubble: {{{hubble}}}\nports: []\n");
        Config::parse("c.yaml", &text, Path::new("/etc")).map(|config| config.hubble)
    };
    let tls = ", tls: {certificate: c, key: k}";
    let longest = format!("a{}9", "-".repeat(30));
    for name in ["east", "east-1", "1a", &*longest] {
        let Ok(HubbleConfig::Tcp(_, Some(files))) = read(name, tls) else { panic!("{name} is refused") };
        assert_eq!(files.cluster, name);
    }
    for name in ["''", "East", "a.b", "-a", "a-", "'*'", "ä", &*format!("{longest}0")] {
        let error = read(name, tls).unwrap_err().to_string();
        assert!(
            error.contains("c.yaml:3: hubble.cluster: `") && error.contains("is not a valid cluster name"),
            "{error}"
        );
    }
    let error = read("east", "").unwrap_err().to_string();
    assert!(error.contains("c.yaml:3: hubble.cluster: has no effect without hubble.tls\n  help: remove it"), "{error}");
}

#[test]
fn clients_of_hubble_are_served_at_a_socket_or_an_address_that_nobody_else_reaches_unless_it_says_otherwise() {
    let read = |hubble: &str| {
        let text = format!("node: n\nstate: {{paths: [s]}}\nhubble: {{{hubble}}}\nports: []\n");
        Config::parse("c.yaml", &text, Path::new("/etc")).map(|config| config.hubble)
    };
    let tls = |client_ca: Option<&str>| {
        let client_ca = client_ca.map(PathBuf::from);
        Some(TlsFiles { certificate: "/etc/c".into(), key: "/k".into(), client_ca, cluster: "default".into() })
    };
    for (written, expected) in [
        ("", HubbleConfig::Off),
        ("listen: none, plaintext: true", HubbleConfig::Off),
        ("listen: 'unix://hubble.sock'", HubbleConfig::Unix("/etc/hubble.sock".into())),
        ("listen: 'unix:///run/hubble.sock'", HubbleConfig::Unix("/run/hubble.sock".into())),
        ("listen: '127.0.0.1:4244'", HubbleConfig::Tcp("127.0.0.1:4244".parse().unwrap(), None)),
        ("listen: '[::1]:4244'", HubbleConfig::Tcp("[::1]:4244".parse().unwrap(), None)),
        ("listen: '[::]:4244', plaintext: true", HubbleConfig::Tcp("[::]:4244".parse().unwrap(), None)),
        (
            "listen: '[::]:4244', tls: {certificate: c, key: /k}",
            HubbleConfig::Tcp("[::]:4244".parse().unwrap(), tls(None)),
        ),
        (
            "listen: '127.0.0.1:4244', tls: {certificate: c, key: /k, client_ca: a}, plaintext: false",
            HubbleConfig::Tcp("127.0.0.1:4244".parse().unwrap(), tls(Some("/etc/a"))),
        ),
    ] {
        assert_eq!(read(written).unwrap(), expected, "{written}");
    }
    let long = format!("listen: 'unix:///{}'", "x".repeat(200));
    for (wrong, why) in [
        ("listen: '[::]:4244'", "c.yaml:3: hubble.listen: has neither TLS nor authentication"),
        ("listen: '192.0.2.1:4244', plaintext: false", "every client that reaches it"),
        ("listen: ':4244'", "`:4244` is neither a socket nor an address"),
        ("listen: '127.0.0.1:0'", "has no port"),
        ("listen: 'unix://'", "is not a valid path of a socket"),
        (&*long, "is not a valid path of a socket"),
        ("listen: none, tls: true", "tls: expected fields"),
        (
            "listen: '[::]:4244', tls: {certificate: c, key: k}, plaintext: true",
            "c.yaml:3: hubble.plaintext: is set together with hubble.tls\n  help: keep one of the two: tls, or plaintext: true for clients \
             without it",
        ),
        (
            "listen: '[::]:4244', tls: {}",
            "c.yaml:3: hubble.tls: has no certificate\n  help: name the PEM file of the server's certificate\n\
             c.yaml:3: hubble.tls: has no key\n  help: name the PEM file of the certificate's private key",
        ),
        (
            "listen: '[::]:4244', tls: {certificate: '', key: k, client_ca: ''}",
            "c.yaml:3: hubble.tls.certificate: is empty\n  help: name the PEM file of the server's certificate\n\
             c.yaml:3: hubble.tls.client_ca: is empty\n  help: name the PEM file of the CAs that issue client certificates, \
             or remove it",
        ),
        ("listen: '[::]:4244', tls: {certificate: c, key: k, ca: a}", "unknown field `ca`"),
        (
            "listen: 'unix://hubble.sock', tls: {certificate: c, key: k}",
            "c.yaml:3: hubble.tls: has no effect at a unix socket\n  help: remove it, because only the process's user may open the socket; \
             or listen at an address",
        ),
    ] {
        let error = read(wrong).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains("help: "), "{wrong}: {error}");
    }
}

#[test]
fn the_example_of_a_cluster_is_a_configuration_and_shows_what_is_the_default() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/cluster.yaml");
    let config = Config::read(&example, None).unwrap();
    let kubernetes = config.state.kubernetes.as_ref().unwrap();
    let path = PathBuf::from("/etc/bulkhead/kubeconfig");
    assert_eq!(kubernetes.access, Access::Kubeconfig { path: path.clone(), context: None });
    let text = std::fs::read_to_string(&example).unwrap();
    let full: String = text
        .lines()
        .map(|line| format!("{}\n", line.replace("    #", "    ").replace("  #ignore", "  ignore")))
        .collect();
    let full: String = full.lines().filter(|line| !line.starts_with("     ")).map(|line| format!("{line}\n")).collect();
    let same = Config::parse("c", &full, Path::new("")).unwrap().state;
    let access = Access::Kubeconfig { path, context: Some("node@cluster".into()) };
    assert_eq!(same.kubernetes, Some(KubernetesConfig { access, ..kubernetes.clone() }));
}

#[test]
fn the_command_lines_node_takes_the_place_of_the_files_and_one_of_the_two_must_be() {
    let nameless = LEAST.replace("node: n\n", "");
    let parse = |node, text: &str| Config::parse_for(node, "c.yaml", text, Path::new("")).map_err(|e| e.to_string());
    for text in [LEAST, &nameless] {
        let config = parse(Some("other"), text).unwrap();
        let folder = config.sessions.folder.unwrap();
        assert_eq!((&*config.node, folder.to_str().unwrap()), ("other", "/run/bulkhead/sessions-other"));
    }
    for (node, text) in [(None, &*nameless), (Some(""), LEAST), (None, &LEAST.replace("node: n", "node: ''"))] {
        let error = parse(node, text).unwrap_err();
        assert!(error.contains("node: is ") && error.contains("--node"), "{error}");
    }
}

#[test]
fn events_are_text_of_all_levels_unless_the_file_says_so() {
    assert_eq!(parse(LEAST).unwrap().log, LogConfig::default());
    let log = parse(&format!("{LEAST}log: {{format: json, level: warning}}\n")).unwrap().log;
    assert_eq!((log.format, log.level), (crate::args::LogFormat::Json, crate::log::Verbosity::Warning));
    assert!(parse(&format!("{LEAST}log: {{level: loud}}\n")).unwrap_err().contains("c.yaml:4"));
}

#[test]
fn the_host_ports_interfaces_can_be_made_and_no_others() {
    let host = "{kind: host, interface: h, peer: n, create: {mtu: 9000, networks: [10.1.2.3/24]}}";
    let created = with_port(host).unwrap().created_host.unwrap();
    assert_eq!((created.names(), created.mtu), (["h", "n"], Some(9000)));
    assert_eq!(created.networks, ["10.1.2.0/24".parse::<IpNet>().unwrap()]);
    let created = with_port("{kind: host, interface: h, peer: n, create: {}}").unwrap().created_host.unwrap();
    assert_eq!((created.mtu, created.networks.len()), (None, 0));
    assert_eq!(with_port("{kind: host, interface: h, peer: n}").unwrap().created_host, None);
    for (port, field) in [
        ("{kind: host, interface: h, create: {}}", "c.yaml:4: ports[0].create: "),
        ("{kind: uplink, interface: h, peer: n, create: {}}", "ports[0].create: only"),
        ("{kind: host, interface: h, peer: n, create: {mtu: 576}}", "ports[0].create.mtu: "),
        ("{kind: host, interface: h, peer: n, create: {networks: [0.0.0.0/0]}}", "ports[0].create.networks: "),
        ("{kind: host, interface: h, peer: n, create: {networks: [pods]}}", "ports[0].create.networks: `pods`"),
        ("{kind: host, interface: h, peer: n, create: {route: []}}", "unknown field `route`"),
    ] {
        let error = with_port(port).unwrap_err();
        assert!(error.contains(field), "{port}: {error}");
    }
    let config = |port: &str| with_port(port).unwrap();
    let changed = config("{kind: host, interface: h, peer: n, create: {mtu: 9000}}");
    assert_eq!(config(host).needs_restart(&changed), ["ports[].create"]);
}

#[test]
fn an_api_server_takes_the_place_of_files_and_what_is_about_files_is_refused_beside_it() {
    let state = |text: &str| parse(&LEAST.replace("{paths: [s.yaml]}", text)).map(|config| config.state);
    let kubernetes = state("{kubernetes: {}}").unwrap().kubernetes.unwrap();
    let default = KubernetesConfig {
        access: Access::InCluster,
        when_unreachable: WhenUnreachable::Deny,
        folder: "/var/lib/bulkhead".into(),
        stale_after: Duration::from_secs(300),
    };
    assert_eq!(kubernetes, default);
    let text = "{kubernetes: {kubeconfig: k, context: c, when_unreachable: last_good, folder: f, stale_after: 2m}, ignore: [AdminNetworkPolicy]}";
    let all = state(text).unwrap();
    let access = Access::Kubeconfig { path: "/etc/bulkhead/k".into(), context: Some("c".into()) };
    let expected = KubernetesConfig {
        access,
        when_unreachable: WhenUnreachable::LastGood,
        folder: "/etc/bulkhead/f".into(),
        stale_after: Duration::from_secs(120),
    };
    assert_eq!((all.kubernetes, all.options.ignored.len()), (Some(expected), 1));
    for (wrong, told) in [
        ("{}", "c.yaml:2: state: names neither paths nor kubernetes"),
        ("{kubernetes: }", "state: names neither paths nor kubernetes"),
        ("{paths: [s], kubernetes: {}}", "c.yaml:2: state.kubernetes: is set together with state.paths"),
        (
            "{kubernetes: {context: c}}",
            "c.yaml:2: state.kubernetes.context: is set without state.kubernetes.kubeconfig",
        ),
        ("{kubernetes: {kubeconfig: ''}}", "state.kubernetes.kubeconfig: is empty"),
        ("{kubernetes: {stale_after: 5s}}", "state.kubernetes.stale_after: `5s` is not a valid duration"),
        ("{kubernetes: {folder: ''}}", "state.kubernetes.folder: is empty"),
        ("{kubernetes: {server: x}}", "unknown field `server`"),
        ("{kubernetes: {when_unreachable: open}}", "unknown variant"),
        ("{kubernetes: {}, lenient: true}", "state.lenient: applies to files"),
        ("{kubernetes: {}, policy_semantics: v1}", "state.policy_semantics: applies to files"),
        ("{kubernetes: {}, when_missing: exit}", "state.when_missing: applies to files"),
        ("{kubernetes: {}, when_refused: keep}", "state.when_refused: applies to files"),
        ("{kubernetes: {}, node_ranges: {a: [10.1]}}", "c.yaml:2: state.node_ranges: `10.1` of a is no network"),
        (
            "{kubernetes: {}, node_ranges: {a: [10.1.0.0/24], b: ['fd00::/64', 10.1.0.128/25]}}",
            "state.node_ranges: 10.1.0.128/25 of b overlaps with 10.1.0.0/24 of a",
        ),
    ] {
        let error = state(wrong).unwrap_err();
        assert!(error.contains(told) && error.contains("help: "), "{wrong}: {error}");
    }
}

#[test]
fn policies_of_other_products_are_off_unless_they_are_audited_or_enforced() {
    let foreign = |text: &str, more: &str| {
        let state = format!("{{kubernetes: {{}}, foreign_policies: {text}}}");
        parse(&(LEAST.replace("{paths: [s.yaml]}", &state) + more)).map(|config| config.state.options.foreign)
    };
    assert_eq!(parse(LEAST).unwrap().state.options.foreign, ForeignKinds::Skip);
    for (text, kinds) in
        [("off", ForeignKinds::Skip), ("audit", ForeignKinds::Audit), ("enforce", ForeignKinds::Enforce)]
    {
        assert_eq!(foreign(text, "").unwrap(), kinds, "{text}");
    }
    for text in ["on", "true", "7", "Enforce", "[]"] {
        let error = foreign(text, "").unwrap_err();
        assert!(error.contains("enforce, audit or off"), "{text}: {error}");
    }
    assert!(foreign("enforce", "enforce: source\n").is_ok());
    let error = foreign("audit", "enforce: source\n").unwrap_err();
    assert!(error.contains("state.foreign_policies: `audit` cannot be combined with `enforce: source`"), "{error}");
}

#[test]
fn the_example_shows_the_sessions_as_they_are_by_default() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/node.yaml");
    let default = SessionConfig::live(SessionConfig::default().capacity);
    assert_eq!(Config::read(&example, None).unwrap().sessions.settings(), default);
}

#[test]
fn a_short_configuration_is_enough() {
    let config = parse(LEAST).unwrap();
    assert_eq!(config.workers.cores, [None]);
    assert_eq!(config.state.paths, [PathBuf::from("/etc/bulkhead/s.yaml")]);
}

#[test]
fn probes_have_a_port_of_their_own_and_an_interval_or_are_off() {
    let probing = |text: &str| parse(&format!("{LEAST}{text}")).unwrap().probing;
    let some = |port, interval| Some(Probing { port, interval });
    assert_eq!(probing(""), some(4792, Duration::from_secs(10)));
    assert_eq!(probing("probe: {port: 5000, interval: 500ms}\n"), some(5000, Duration::from_millis(500)));
    assert_eq!(probing("probe: {port: 0}\n"), None);
    for (text, part) in [
        ("probe: {port: 65536}", "65536 cannot be the port"),
        ("vxlan: {port: 4792}", "4792 cannot be the port"),
        ("probe: {interval: 1ms}", "`1ms` is not a valid duration"),
    ] {
        assert_refused(&format!("{LEAST}{text}\n"), part);
    }
}

#[test]
fn what_policy_denies_is_dropped_or_refused() {
    assert_eq!(parse(LEAST).unwrap().denied, Denied::Drop);
    assert_eq!(parse(&format!("{LEAST}denied: drop\n")).unwrap().denied, Denied::Drop);
    let refusing = parse(&format!("{LEAST}denied: refuse\n")).unwrap();
    assert_eq!(refusing.denied, Denied::Refuse);
    assert!(parse(LEAST).unwrap().needs_restart(&refusing).is_empty());
    let error = parse(&format!("{LEAST}denied: reject\n")).unwrap_err();
    assert!(error.starts_with("c.yaml:4") && error.contains("refuse"), "{error}");
}

#[test]
fn senders_to_addresses_that_no_pod_has_are_told_unless_the_configuration_says_otherwise() {
    assert_eq!(parse(LEAST).unwrap().unreachable, Denied::Refuse);
    let silent = parse(&format!("{LEAST}unreachable: drop\n")).unwrap();
    assert_eq!((silent.unreachable, silent.denied), (Denied::Drop, Denied::Drop));
    assert!(parse(LEAST).unwrap().needs_restart(&silent).is_empty());
}

#[test]
fn tables_are_rule_lists_or_identities_and_change_while_it_runs() {
    assert_eq!(parse(LEAST).unwrap().engine, EngineName::Acl);
    let identity = parse(&format!("{LEAST}engine: identity\n")).unwrap();
    assert_eq!(identity.engine, EngineName::Identity);
    assert!(parse(LEAST).unwrap().needs_restart(&identity).is_empty());
    let auto = parse(&format!("{LEAST}engine: auto\n")).unwrap();
    assert!(matches!(auto.judging(), Judging::Destination(Choice::Auto, Enforcement::Enforce)));
    let error = parse(&format!("{LEAST}engine: ipcache\n")).unwrap_err();
    assert!(error.starts_with("c.yaml:4") && error.contains("identity"), "{error}");
}

#[test]
fn where_and_by_what_policy_is_judged_has_to_be_what_the_dataplane_does() {
    for (text, field) in [
        ("enforce: source\nengine: identity\n", "engine"),
        ("enforce: source\nengine: auto\n", "engine"),
        ("dataplane: nftables\nengine: auto\n", "engine"),
        ("dataplane: nftables\nengine: identity\n", "engine"),
        ("dataplane: nftables\nenforce: source\n", "enforce"),
    ] {
        let error = parse(&format!("{LEAST}{text}")).unwrap_err();
        assert!(error.starts_with("c.yaml:5") && error.contains(field) && error.contains("help: "), "{text}: {error}");
    }
    for text in ["enforce: source\nengine: acl\n", "dataplane: nftables\nenforce: destination\nengine: acl\n"] {
        assert!(parse(&format!("{LEAST}{text}")).is_ok(), "{text}");
    }
}

#[test]
fn a_renderer_names_what_its_three_fields_say_and_no_other_value_stands_beside_it() {
    let judging = |text: &str| {
        let config = parse(&format!("{LEAST}{text}\n")).unwrap();
        (config.dataplane, config.enforce, config.engine)
    };
    for (name, fields) in [
        ("acl", ""),
        ("identity", "engine: identity"),
        ("session-rules", "enforce: source"),
        ("nftables", "dataplane: nftables"),
    ] {
        assert_eq!(judging(&format!("renderers: [{name}]")), judging(fields), "{name}");
        assert_eq!(judging(&format!("renderers: [{name}]\n{fields}")), judging(fields), "{name}");
    }
    for (text, field, told) in [
        ("renderers: acl", "renderers: expected a list", "write `renderers: [acl]`"),
        ("renderers: []", "renderers", "name one"),
        ("renderers: [acl, nftables]", "renderers", "name one"),
        ("renderers: [nft]", "renderers[0]", "session-rules"),
        ("renderers: [neutron]", "renderers[0]", "bulkhead sync neutron"),
        ("renderers: [nftables]\ndataplane: vswitch", "dataplane", "remove one"),
        ("renderers: [acl]\nenforce: source", "enforce", "remove one"),
        ("renderers: [acl]\nengine: identity", "engine", "remove one"),
    ] {
        let error = parse(&format!("{LEAST}{text}\n")).unwrap_err();
        let line = format!("c.yaml:{}", 3 + text.lines().count());
        assert!(error.starts_with(&line) && error.contains(field) && error.contains(told), "{text}: {error}");
    }
}

#[test]
fn services_are_on_unless_they_are_off_and_their_settings_stand_below_them() {
    let with = |services: &str| parse(&format!("{LEAST}{services}\n"));
    for on in ["", "services:", "services: {}"] {
        let config = with(on).unwrap();
        assert_eq!(config.services, Some(Settings::default()), "{on}");
        assert_eq!(config.state.options.services, ServiceKinds::Read, "{on}");
    }
    for off in ["services: off", "services: 'off'"] {
        let config = with(off).unwrap();
        assert_eq!((config.services, config.state.options.services), (None, ServiceKinds::Skip), "{off}");
    }
    let config = with("services:\n  service_cidrs: [10.96.0.0/16]\n  masquerade_all: true").unwrap();
    let services = config.services.as_ref().unwrap();
    assert_eq!((services.service_cidrs.len(), services.masquerade_all), (1, true));
    assert_eq!(with("").unwrap().needs_restart(&config), ["services"]);
    assert!(with("").unwrap().needs_restart(&with("services: off").unwrap()).contains(&"services"));
    for (wrong, told) in [
        (
            "services:\n  service_cdirs: []",
            vec!["c.yaml:5: service_cdirs: unknown field", "did you mean `service_cidrs`?"],
        ),
        ("services: on", vec!["c.yaml:4", "the word off, or an object"]),
        ("services: kube-proxy", vec!["c.yaml:4", "the word off, or an object"]),
        ("services: [off]", vec!["c.yaml:4", "the word off, or an object"]),
        ("services: {service_cidrs: [10.96.0.0]}", vec!["c.yaml:4", "has no prefix length"]),
        ("servces: off", vec!["c.yaml:4: servces: unknown field", "did you mean `services`?"]),
    ] {
        let error = with(wrong).unwrap_err();
        assert!(told.iter().all(|part| error.contains(part)) && error.contains("help: "), "{wrong}: {error}");
    }
}

#[test]
fn masquerading_is_off_unless_it_is_said_and_its_settings_are_checked() {
    let with = |text: &str| parse(&format!("{LEAST}{text}\n"));
    for off in ["", "masquerade:", "masquerade: false"] {
        assert_eq!(with(off).unwrap().masquerade, None, "{off}");
    }
    for on in ["masquerade: true", "masquerade: {}"] {
        assert_eq!(with(on).unwrap().masquerade, Some(MasqueradeConfig::default().without([4789, 4792])), "{on}");
    }
    let config = with("masquerade: {addresses: [192.0.2.1, 'fd00::1'], except: [192.168.1.0/16], ports: 50000-50999}");
    let masquerade = config.unwrap().masquerade.unwrap();
    assert_eq!((masquerade.addresses.len(), masquerade.ports.ranges()), (2, &[50_000..=50_999][..]));
    let several = with("masquerade: {ports: '61000-65535, 1024-29999'}").unwrap().masquerade.unwrap();
    assert_eq!(several.ports.ranges(), [61_000..=65_535, 1_024..=29_999]);
    assert_eq!(masquerade.except, ["192.168.0.0/16".parse().unwrap()]);
    assert_eq!(with("").unwrap().needs_restart(&with("masquerade: true").unwrap()), ["masquerade"]);
    for (wrong, told) in [
        ("masquerade: nat", vec!["c.yaml:4", "true, false, or an object"]),
        ("masquerade: {expect: []}", vec!["c.yaml:4: expect: unknown field", "did you mean `except`?"]),
        ("masquerade: {addresses: [192.0.2.1, 192.0.2.2]}", vec!["192.0.2.2 is a second address", "keep one"]),
        ("masquerade: {addresses: ['::']}", vec!["c.yaml:4: masquerade.addresses", "not a valid address of a node"]),
        ("masquerade: {except: [192.168.0.0]}", vec!["masquerade.except", "is not a prefix"]),
        ("masquerade: {ports: 61000}", vec!["masquerade.ports", "write the first and the last port"]),
        ("masquerade: {ports: 900-2000}", vec!["masquerade.ports", "`900-2000` is not a range of ports"]),
    ] {
        let error = with(wrong).unwrap_err();
        assert!(told.iter().all(|part| error.contains(part)) && error.contains("help: "), "{wrong}: {error}");
    }
}

#[test]
fn a_field_that_is_not_known_is_an_error_with_file_line_field_and_remedy() {
    let error = parse(&format!("{LEAST}sessions:\n  tcp_pikup: true\n")).unwrap_err();
    assert!(error.starts_with("c.yaml:5: tcp_pikup: unknown field"), "{error}");
    assert!(error.contains("tcp_pickup") && error.contains("help: "), "{error}");
    for (text, part) in [
        ("", "file is empty"),
        ("node: n\n", "missing field `state`"),
        ("- a\n", "expected fields"),
        ("node: n\nnode: m\n", "node"),
    ] {
        assert_refused(text, part);
    }
}

#[test]
fn every_fault_is_told_with_its_line_and_field() {
    let text = "node: ''
state: {paths: ['-']}
workers: {cores: [1, 1], frames: 5}
sessions:
  capacity: 0
  timeouts: {idle: soon, tcp_established: 0s}
  shares: {pod: 0}
ports:
  - {kind: pod, interface: a}
  - {kind: pod, pod: web, interface: b}
  - {kind: uplink, pod: a/b, interface: c}
  - {kind: host, interface: a/b, mac: 'ff:ff:ff:ff:ff:ff', fix_offloads: true}
  - {kind: uplink, interface: d}
  - {kind: uplink, interface: d}
  - {name: x, kind: pod, pod: a/x, interface: x1}
  - {name: x, kind: pod, pod: a/y, interface: x2}
routes:
  - {prefix: 10.0.0.0, via: 10.0.0.1}
  - {prefix: 10.0.0.0/8, via: 'fd00::1', port: nowhere}
  - {prefix: 10.1.0.0/8}
";
    let error = parse(text).unwrap_err();
    for part in [
        "c.yaml:1: node: ",
        "c.yaml:2: state.paths: ",
        "c.yaml:3: workers.cores: ",
        "c.yaml:3: workers.frames: ",
        "c.yaml:5: sessions.capacity: ",
        "c.yaml:6: sessions.timeouts.idle: ",
        "c.yaml:6: sessions.timeouts.tcp_established: ",
        "c.yaml:7: sessions.shares.pod: ",
        "c.yaml:9: ports[0].pod: ",
        "c.yaml:10: ports[1].pod: ",
        "c.yaml:11: ports[2].pod: ",
        "c.yaml:12: ports[3].interface: ",
        "c.yaml:12: ports[3].mac: ",
        "c.yaml:12: ports[3].fix_offloads: ",
        "c.yaml:14: ports[5]: is the port uplink, which line 13",
        "c.yaml:14: ports[5].interface: ",
        "c.yaml:16: ports[7].name: ",
        "c.yaml:18: routes[0].prefix: ",
        "c.yaml:19: routes[1].via: ",
        "c.yaml:19: routes[1].port: ",
        "c.yaml:20: routes[2].prefix: ",
    ] {
        assert!(error.contains(part), "{part} is not in:\n{error}");
    }
    assert_eq!(error.matches("help: ").count(), error.lines().filter(|line| line.starts_with("c.yaml")).count());
}

#[test]
fn the_longest_tcp_packet_is_longer_than_usual_and_for_programs_at_tc() {
    let of = |more: &str| parse(&format!("{LEAST}{more}"));
    assert_eq!(of("").unwrap().big_tcp, None);
    assert_eq!(of("big_tcp: 196608\n").unwrap().big_tcp, Some(196_608));
    for (text, part) in [
        ("big_tcp: 1500\n", "big_tcp: `1500` is not a valid packet length"),
        ("big_tcp: 524281\n", "from 65536 to 524280"),
        ("big_tcp: 131072\nattach: xdp\n", "big_tcp: is set with attach: xdp"),
        ("big_tcp: 131072\ndataplane: nftables\n", "big_tcp: applies to the vswitch"),
    ] {
        assert_refused(&format!("{LEAST}{text}"), part);
    }
    assert_eq!(of("").unwrap().needs_restart(&of("big_tcp: 65536\n").unwrap()), ["big_tcp"]);
}

#[test]
fn at_the_source_no_route_leads_to_a_pods_port() {
    let of = |enforce: &str| {
        let text = format!("{LEAST}enforce: {enforce}\nroutes: [{{prefix: 10.9.0.0/16, port: a/b}}]\n");
        parse(&text.replace("ports: [", "ports: [{kind: pod, pod: a/b, interface: v}, "))
    };
    assert_eq!(of("destination").unwrap().enforce, EnforcedAt::Destination);
    let error = of("source").unwrap_err();
    assert!(error.contains("routes[0].port: leads to a pod's port"), "{error}");
    let error = of("both").unwrap_err();
    assert!(error.starts_with("c.yaml:4") && error.contains("destination"), "{error}");
    assert_eq!(parse(LEAST).unwrap().needs_restart(&parse(&format!("{LEAST}enforce: source\n")).unwrap()), ["enforce"]);
}

#[test]
fn addresses_and_times_are_taken_as_people_write_them() {
    let port = with_port("{kind: pod, pod: a/b, interface: v, mac: '02:00:0A:f4:01:02'}").unwrap().ports.remove(0);
    assert_eq!(port.mac, Some([2, 0, 0x0a, 0xf4, 1, 2]));
    for wrong in ["01:00:00:00:00:01", "02:00:00:00:00", "02:00:00:00:00:00:00", "2:0:0:0:0:1", "00:00:00:00:00:00"] {
        assert!(with_port(&format!("{{kind: pod, pod: a/b, interface: v, mac: '{wrong}'}}")).is_err(), "{wrong}");
    }
    let text = format!("{LEAST}sessions: {{timeouts: {{tcp_established: 24h, icmp_echo: 1m 30s}}}}\n");
    let timeouts = parse(&text).unwrap().sessions.timeouts;
    assert_eq!(timeouts.tcp_established, Some(Duration::from_secs(86_400)));
    assert_eq!(timeouts.icmp_echo, Some(Duration::from_secs(90)));
}

#[test]
fn a_route_may_call_a_port_by_either_name() {
    let text = "node: n\nstate: {paths: [s]}\nports: [{name: gw, kind: pod, pod: a/b, interface: v}]\n\
        routes: [{prefix: 10.0.0.0/8, port: gw}, {prefix: 11.0.0.0/8, port: a/b}, {prefix: '::/0', via: 'fe80::1'}]\n";
    let config = parse(text).unwrap();
    let ports: Vec<&str> = config.routes.iter().map(|route| &*route.port).collect();
    assert_eq!(ports, ["a/b", "a/b", "uplink"]);
}

#[test]
fn what_a_running_vswitch_cannot_take_is_named() {
    let least = format!("{LEAST}attach: xdp\n");
    let old = parse(&least).unwrap();
    let more = "ports: [{kind: uplink, interface: eth1}, {kind: host, interface: h}]";
    let new = parse(&least.replace("ports: [{kind: uplink, interface: eth1}]", more)).unwrap();
    assert_ne!(old.frames(), new.frames());
    assert_eq!((old.needs_restart(&new), old.ports == new.ports), (vec![], false), "more ports are no other workers");
    let new = parse(&format!("{LEAST}xdp_mode: skb\nworkers: {{cores: [0]}}\n")).unwrap();
    assert_eq!(old.needs_restart(&new), ["attach", "xdp_mode", "workers"]);
}

#[test]
fn the_meaning_of_v1beta1_and_kinds_to_be_ignored_are_read_and_wrong_ones_are_named() {
    let with = |state: &str| parse(&format!("node: n\nports: []\nstate:\n  paths: [s]\n{state}\n"));
    let options =
        with("  policy_semantics: v1beta1\n  namespace_default: default-deny\n  ignore: [CiliumNetworkPolicy]")
            .unwrap();
    let options = options.state.options;
    assert_eq!(options.semantics.default_isolation(), bulkhead_control::object::IngressIsolation::DefaultDeny);
    assert_eq!(options.ignored, ["CiliumNetworkPolicy".parse().unwrap()].into());
    for (state, problem) in [
        ("  namespace_default: default-deny", "c.yaml:5: state.namespace_default: has no effect"),
        ("  ignore:\n  - NetworkPolicy", "c.yaml:6: state.ignore[0]: `NetworkPolicy` alone is Kubernetes' own"),
    ] {
        let error = with(state).unwrap_err();
        assert!(error.contains(problem) && error.contains("help: "), "{error}");
    }
}

#[test]
fn the_check_of_server_names_is_off_unless_the_file_says_otherwise() {
    let read = |names: &str| parse(&format!("node: n\nstate: {{paths: [s]}}\nnames: {{{names}}}\nports: []\n"));
    let all = [
        ("", "Off"),
        ("verify_server_name: off", "Off"),
        ("verify_server_name: audit", "Audit"),
        ("verify_server_name: drop", "Drop"),
    ];
    for (text, check) in all {
        assert_eq!(format!("{:?}", read(text).unwrap().names.server_names), check, "{text}");
    }
    let told = read("verify_server_name: warn").unwrap_err();
    let problem = "c.yaml:3: names.verify_server_name: `warn` is no treatment of connections to other servers";
    assert!(told.contains(problem) && told.contains("help: "), "{told}");
}
