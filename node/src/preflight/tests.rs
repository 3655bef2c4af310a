use super::*;
use bulkhead_dataplane::io::{LinkFeatures, LinkInfo, TcHook, TcProgram};
use std::path::Path;

/// Most checks concern AF_XDP sockets, so the tests use them.
fn config(rest: &str) -> Config {
    Config::parse("c", &format!("node: n\nstate: {{paths: [s]}}\n{rest}\nattach: xdp\n"), Path::new("")).unwrap()
}

/// The findings without the note about memory, which is always present.
fn judge(config: &Config, facts: &Facts, force: bool) -> Vec<Finding> {
    let findings = super::judge(config, facts, force);
    findings.into_iter().filter(|finding| !finding.what.contains("MiB of packet memory")).collect()
}

fn link(name: &str, mtu: u32) -> LinkInfo {
    let (name, mac) = (name.to_owned(), [2, 0, 0, 0, 0, 1]);
    LinkInfo { name, index: 7, mac, mtu, ethernet: true, up: true, queues: 1, transmit_queues: 1, most_queues: 1 }
}

/// A machine without any problem.
fn good(config: &Config) -> Facts {
    Facts {
        release: "6.18.44".to_owned(),
        capabilities: u64::MAX,
        locked_memory: None,
        cores: (0..4).collect(),
        links: config.ports.iter().map(|port| (port.interface.clone(), link(&port.interface, 1500))).collect(),
        ..Facts::default()
    }
}

fn only(findings: &[Finding]) -> &Finding {
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(!findings[0].why.is_empty() && !findings[0].remedy.is_empty());
    &findings[0]
}

const PORTS: &str = "ports: [{kind: pod, pod: x/a, interface: va, netns: pod-a}, {kind: uplink, interface: up0}]";

#[test]
fn nothing_is_found_where_all_is_well() {
    let config = config(PORTS);
    assert_eq!(judge(&config, &good(&config), false), []);
}

#[test]
fn the_way_to_the_machine_is_not_taken_unless_it_must_be() {
    let config = config(PORTS);
    let mut facts = Facts { default_routes: [9].into(), ..good(&config) };
    assert_eq!(judge(&config, &facts, false), []);
    // Interfaces are compared by number, as one may have several names.
    facts.links.get_mut("up0").unwrap().index = 9;
    let findings = judge(&config, &facts, false);
    assert_eq!(only(&findings).severity, Severity::Error);
    assert!(findings[0].remedy.contains("--force"));
    assert_eq!(judge(&config, &facts, true), []);
}

#[test]
fn what_is_no_ethernet_interface_is_refused() {
    let config = config(PORTS);
    let mut facts = good(&config);
    facts.links.get_mut("va").unwrap().ethernet = false;
    assert!(only(&judge(&config, &facts, true)).what.contains("va is not an Ethernet interface"));
}

#[test]
fn what_keeps_af_xdp_from_working_is_an_error() {
    let config = config(PORTS);
    let old = Facts { release: "5.4.0-150-generic".to_owned(), ..good(&config) };
    assert_eq!(only(&judge(&config, &old, false)).severity, Severity::Error);
    let without = |bit: u32| Facts { capabilities: !(1 << bit), ..good(&config) };
    assert!(only(&judge(&config, &without(facts::NET_RAW), false)).what.contains("CAP_NET_RAW"));
    assert_eq!(judge(&config, &without(facts::BPF), false), [], "CAP_SYS_ADMIN includes it");
    assert!(only(&judge(&config, &without(facts::SYS_ADMIN), false)).why.contains("namespace"));
    let limited = Facts { locked_memory: Some(8 << 20), ..without(facts::IPC_LOCK) };
    assert!(only(&judge(&config, &limited, false)).remedy.contains("ulimit -l 67584"));
    let taken = Facts { programs: ["va".into()].into(), ..good(&config) };
    assert!(only(&judge(&config, &taken, false)).remedy.contains("ip link set va xdp off"));
}

#[test]
fn cores_that_are_not_there_are_named_with_those_that_are() {
    let config = config(&format!("{PORTS}\nworkers: {{cores: [3, 9]}}"));
    let findings = judge(&config, &good(&config), false);
    assert!(only(&findings).what.contains('9') && findings[0].remedy.contains("0-3"));
}

#[test]
fn a_missing_interface_is_waited_for_and_a_downed_one_is_told() {
    let config = config(PORTS);
    let mut facts = good(&config);
    facts.links.remove("va");
    facts.links.get_mut("up0").unwrap().up = false;
    let findings = judge(&config, &facts, false);
    assert_eq!(findings.len(), 2);
    assert!(findings.iter().all(|finding| finding.severity == Severity::Warning));
    assert!(findings.iter().any(|finding| finding.remedy == "ip link set up0 up"));
}

#[test]
fn jumbo_packets_need_a_kernel_that_can() {
    let config = config(PORTS);
    let mut facts = good(&config);
    facts.links.get_mut("va").unwrap().mtu = 9000;
    assert_eq!(judge(&config, &facts, false), []);
    facts.release = "6.1.0-29-amd64".to_owned();
    assert!(only(&judge(&config, &facts, false)).why.contains("6.6"));
}

#[test]
fn too_few_buffers_for_all_queues_are_told_with_the_number_that_is_enough() {
    let config = config(PORTS);
    let mut facts = good(&config);
    facts.links.get_mut("up0").unwrap().queues = 16;
    let findings = judge(&config, &facts, false);
    assert!(only(&findings).remedy.contains("19456") && findings[0].severity == Severity::Warning, "{findings:?}");
}

#[test]
fn the_memory_is_told_that_of_the_kernel_included() {
    let config = config(&format!("{PORTS}\nworkers: {{frames: 16384}}"));
    let findings = super::judge(&config, &good(&config), false);
    // 16,384 x 4 KiB, and 16,384 x 2 queues x 170 bytes.
    assert!(only(&findings).what.starts_with("64 MiB of packet memory, and about 5 MiB"), "{findings:?}");
}

#[test]
fn a_netns_that_is_none_is_named_with_its_line() {
    let config = config(
        "ports:\n  - {kind: pod, pod: x/a, interface: va, netns: /dev}\n  \
        - {kind: pod, pod: x/b, interface: vb, netns: /proc/self/status}\n  \
        - {kind: pod, pod: x/c, interface: vc, netns: /no/such}",
    );
    let told = |at: usize| {
        let entry = &config.ports[at];
        judge_offload(entry, &Offload::at(entry)).unwrap().what
    };
    for (at, part) in ["/dev is not a network namespace", "/proc/self/status", "/no/such"].into_iter().enumerate() {
        let (line, what) = (at + 4, told(at));
        assert!(what.contains(&format!("line {line} of the configuration")) && what.contains(part), "{what}");
    }
}

#[test]
fn the_command_that_turns_the_offload_off_is_told_exactly() {
    let on = |port: &str| {
        let config = config(&format!("ports: [{port}]"));
        judge_offload(&config.ports[0], &Offload::On).unwrap()
    };
    let finding = on("{kind: pod, pod: x/a, interface: va, netns: pod-a}");
    assert!(finding.remedy.starts_with("ip netns exec pod-a ethtool -K eth0 tx off\n"), "{finding}");
    assert_eq!(finding.severity, Severity::Warning);
    let finding = on("{kind: pod, pod: x/a, interface: va, netns: /proc/7/ns/net, peer: net0}");
    assert!(finding.remedy.starts_with("nsenter --net=/proc/7/ns/net ethtool -K net0 tx off"), "{finding}");
    let fixed = on("{kind: pod, pod: x/a, interface: va, netns: pod-a, fix_offloads: true}");
    assert_eq!(fixed.severity, Severity::Note);
    let config = config("ports: [{kind: pod, pod: x/a, interface: va}, {kind: host, interface: vh}]");
    let mut facts = good(&config);
    assert_eq!(judge_offload(&config.ports[0], &Offload::Off), None);
    facts.offloads = config.ports.iter().map(|port| (port.name.clone(), Offload::Unknown)).collect();
    let findings = judge(&config, &facts, false);
    assert!(only(&findings).remedy.contains("ethtool -K eth0 tx off") && findings[0].what.contains("x/a, host"));
}

#[test]
fn what_the_flow_cache_lacks_is_told_unless_it_is_not_wanted_or_will_be_mended() {
    let facts = |config: &Config| Facts { without_frames: ["x/a".into()].into(), ..good(config) };
    let with = |rest: &str| config(&format!("{PORTS}\n{rest}"));
    let config = with("");
    let findings = judge(&config, &facts(&config), false);
    assert_eq!(only(&findings).severity, Severity::Note);
    assert!(findings[0].what.contains("x/a") && findings[0].remedy.contains("gro on"), "{findings:?}");
    for rest in ["flow_cache: false", "xdp_mode: skb"] {
        let config = with(rest);
        assert_eq!(judge(&config, &facts(&config), false), [], "{rest}");
    }
    let mut mended = with("");
    mended.ports[0].fix_offloads = true;
    assert_eq!(judge(&mended, &facts(&mended), false), []);
    let capabilities = !(1 << facts::PERFMON | 1 << facts::SYS_ADMIN);
    let findings = judge(&mended, &Facts { capabilities, ..facts(&mended) }, false);
    assert!(findings.iter().any(|finding| finding.what.contains("CAP_PERFMON")), "{findings:?}");
}

#[test]
fn other_programs_at_tc_are_one_finding_and_our_own_are_none() {
    let config = config(PORTS);
    let linked = |name: &str, link| TcProgram { hook: TcHook::Ingress, name: name.to_owned(), link };
    let program = |name: &str| linked(name, None);
    let with = |programs: &[TcProgram]| Facts {
        tc_programs: ["up0", "va"].map(|name| (name.into(), programs.to_vec())).into(),
        ..good(&config)
    };
    let findings = judge(&config, &with(&[program("cil_from_container"), program("bulkhead_in")]), false);
    assert_eq!(only(&findings).severity, Severity::Warning);
    assert!(findings[0].what.contains("up0, va: ") && findings[0].what.ends_with("cil_from_container"), "{findings:?}");
    assert!(findings[0].remedy.contains("tc qdisc del dev up0 clsact"), "{findings:?}");
    assert_eq!(judge(&config, &with(&[program("bulkhead_in")]), false), []);
    // The names of programs cannot be read without CAP_SYS_ADMIN.
    let pinned_links = [7].into();
    let facts = Facts { pinned_links, ..with(&[linked("2604", Some(7)), linked("2605", Some(8)), program("2606")]) };
    let findings = judge(&config, &facts, false);
    assert!(only(&findings).what.ends_with(": 2605, 2606"), "{findings:?}");
}

#[test]
fn another_network_plugin_is_told_by_its_interfaces_and_chains_with_what_removes_them() {
    let config = config(PORTS);
    let alone = self::config("ports: [{kind: host, interface: h, peer: n, create: {}}]");
    let found = |config: &Config, interfaces: &[&str], chains: &[&str]| {
        let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        judge(config, &Facts { interfaces: set(interfaces), chains: set(chains), ..good(config) }, false)
    };
    let findings = found(&config, &["lo", "cilium_host", "cilium_net", "lxc1"], &["CILIUM_FORWARD", "INPUT"]);
    assert!(only(&findings).what.contains("Cilium") && findings[0].what.contains("cilium_host, cilium_net"));
    for part in ["ip link del cilium_host", "iptables-save | grep -v CILIUM_ | iptables-restore"] {
        assert!(findings[0].remedy.contains(part), "{findings:?}");
    }
    let findings = found(&config, &["vxlan.calico", "tunl0"], &[]);
    assert!(
        only(&findings).what.contains("Calico") && !findings[0].what.contains("tunl0"),
        "the module of IPIP makes it"
    );
    let chains = ["cali-FORWARD", "KUBE-ROUTER-INPUT", "FLANNEL-FWD", "KUBE-FORWARD", "WEAVE-NPC"];
    let findings = found(&alone, &["kube-ipvs0", "cni0", "flannel.1"], &chains);
    let named = |name: &str| {
        findings.iter().any(|finding| finding.what.contains(name) && finding.severity == Severity::Warning)
    };
    assert!(["Calico", "kube-router", "Flannel", "Weave Net", "cni0"].into_iter().all(named), "{findings:?}");
    assert_eq!(findings.len(), 5, "kube-proxy is no network plugin: {findings:?}");
    assert_eq!(
        found(&config, &["lo", "eth0", "cni0", "flannel.1"], &["FLANNEL-FWD"]),
        [],
        "with an uplink another may route"
    );
}

#[test]
fn what_an_uplinks_hardware_does_to_packets_is_told_for_xdp_with_the_command_that_ends_it() {
    let with = |mode: &str, features: LinkFeatures| {
        let config = config(&format!("{PORTS}\nxdp_mode: {mode}"));
        let facts = Facts { features: [("up0".into(), features)].into(), ..good(&config) };
        let remedies =
            |config: &Config| judge(config, &facts, false).into_iter().map(|finding| finding.remedy).collect();
        let told: Vec<String> = remedies(&config);
        let tc: Vec<String> = remedies(&Config { attach: Attach::Tc, ..config });
        assert!(tc.is_empty(), "{tc:?}");
        told.iter().map(|remedy| remedy.lines().next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let all = |driver: &str| LinkFeatures {
        driver: driver.to_owned(),
        generic_receive_offload: true,
        large_receive_offload: true,
        receive_vlan_offload: true,
    };
    let command = |what: &str| format!("ethtool -K up0 {what} off");
    assert_eq!(with("skb", all("ixgbe")), [command("lro"), command("gro"), command("rxvlan")]);
    assert_eq!(with("drv", all("ixgbe")), [command("lro"), command("rxvlan")]);
    assert_eq!(with("auto", all("veth")), [""; 0]);
}

#[test]
fn with_programs_at_tc_pods_settings_are_nobodys_concern() {
    let mut config = config(PORTS);
    let mut facts = good(&config);
    facts.offloads = config.ports.iter().map(|port| (port.name.clone(), Offload::On)).collect();
    facts.without_frames = ["x/a".into()].into();
    facts.capabilities = !(1 << facts::SYS_ADMIN);
    assert!(judge(&config, &facts, false).len() >= 3);
    config.attach = Attach::Tc;
    assert_eq!(judge(&config, &facts, false), []);
}

#[test]
fn masquerading_without_an_uplink_or_a_host_port_is_told_with_what_to_do() {
    let with = |ports: &str| masquerade::check(&config(&format!("{ports}\nmasquerade: true")));
    let host = "ports: [{kind: host, interface: h0, peer: h1}]";
    let finding = with(host).unwrap();
    assert!(finding.what.contains("no port of kind uplink") && finding.remedy.contains("nft add rule"), "{finding}");
    assert!(with(PORTS).unwrap().what.contains("no port of kind host"));
    let both = PORTS.replace("}]", "}, {kind: host, interface: h0, peer: h1}]");
    assert_eq!((with(&both), masquerade::check(&config(host))), (None, None));
}
