//! Rules that name domains, with real resolvers and servers: which connections a DNS answer allows, and which stay denied.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::e2e_services::{Endpoint, service};
use crate::lab::lasting::inside;
use crate::lab::netns::{Running, eventually};
use crate::lab::{Lab, Pod};
use crate::require;

/// The cluster addresses of the DNS Service.
const DNS: &str = "10.96.0.10";
const DNS6: &str = "fd96::10";

/// The addresses of `www.example.com`, which belong to the machine outside.
const WEB: &str = "203.0.113.1";
const WEB6: &str = "2001:db8:1::1";

/// The number of names below `many.example.org`, each with an address of its own.
const MANY: u32 = 200;

/// Returns the client's policy as YAML: the client may reach DNS and TCP port 80 of names that match `patterns`, and nothing else.
fn names(patterns: &str) -> String {
    format!(
        "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {{name: names}}\n\
         spec: {{tier: Admin, priority: 10, subject: {{pods: {{podSelector: {{matchLabels: {{app: client}}}}}}}}, egress: [\
         {{name: dns, action: Accept, to: [{{pods: {{podSelector: {{matchLabels: {{app: dns}}}}}}}}], \
         protocols: [{{udp: {{destinationPort: {{number: 53}}}}}}, {{tcp: {{destinationPort: {{number: 53}}}}}}]}}, \
         {{name: web, action: Accept, to: [{{domainNames: [{patterns}]}}], protocols: [{{tcp: {{destinationPort: {{number: 80}}}}}}]}}, \
         {{name: rest, action: Deny, to: [{{networks: [0.0.0.0/0, '::/0']}}]}}]}}\n"
    )
}

/// A lab with a client, the cluster's DNS server, and a world whose machine has all addresses of 203.0.113.0/24 and 2001:db8:1::/64.
struct World {
    lab: Lab,
    _programs: Vec<Running>,
}

impl World {
    fn new(patterns: &str) -> Self {
        let mut lab = Lab::new();
        lab.more_config = "services: {service_cidrs: [10.96.0.0/12, 'fd96::/64']}\nnames: {grace: 1s}\n".to_owned();
        for name in ["client", "other", "dns"] {
            lab.pod(name, &format!("{{app: {name}}}"));
        }
        lab.outside();
        let outside = lab.outside.as_ref().unwrap();
        for block in ["203.0.113.0/24", "2001:db8:1::/64"] {
            outside.ip(&format!("route add local {block} dev lo"));
        }
        lab.more_config.push_str(
            "routes: [{prefix: 203.0.113.0/24, via: 172.18.0.100, port: uplink}, \
             {prefix: '2001:db8:1::/64', via: 'fd00:18::100', port: uplink}]\n",
        );
        let web = outside.serve("socat TCP6-LISTEN:80,fork,reuseaddr,ipv6-v6only=0 EXEC:cat", 80);
        let mut line = format!(
            "dnsmasq --keep-in-foreground --no-resolv --no-hosts --conf-file=/dev/null --pid-file --user=root --local-ttl=2 \
             --address=/www.example.com/{WEB} --address=/www.example.com/{WEB6} --address=/evil.example.net/203.0.113.250 \
             --host-record=cdn.example.net,203.0.113.240,60 --cname=alias.example.org,cdn.example.net,60"
        );
        for at in 0..MANY {
            write!(line, " --address=/n{at}.many.example.org/203.0.113.{}", at + 2).unwrap();
        }
        for at in 0..100 {
            write!(line, " --host-record=big.example.org,203.0.113.{at}").unwrap();
        }
        let dns = lab.get("dns").netns.serve(&line, 53);
        let world = Self { lab, _programs: vec![web, dns] };
        let text = world.objects(patterns);
        let Self { mut lab, _programs } = world;
        lab.start(&text);
        Self { lab, _programs }
    }

    /// Returns, as YAML, the cluster's DNS Service and the client's policy with these patterns.
    fn objects(&self, patterns: &str) -> String {
        let endpoint = || Endpoint::of(self.lab.get("dns"), 53);
        let of = |port: &str| service("kube-dns", [DNS, DNS6], "", port, &[endpoint()]);
        let ports = "{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}";
        let text = of(ports).replace("namespace: default", "namespace: kube-system");
        let slices = "[{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]";
        let text = text.replace("[{name: '', port: 53, protocol: UDP}]", slices);
        format!("---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: kube-system}}\n{text}{}", names(patterns))
    }

    fn client(&self) -> &Pod {
        self.lab.get("client")
    }

    fn connect(&self, address: &str) -> Option<TcpStream> {
        let address: SocketAddr = match address.contains(':') {
            true => format!("[{address}]:80").parse().unwrap(),
            false => format!("{address}:80").parse().unwrap(),
        };
        let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(400));
        let stream = inside(self.client(), connect).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        Some(stream)
    }

    fn connects(&self, address: &str) -> bool {
        self.connect(address).is_some_and(|mut stream| echoes(&mut stream))
    }

    /// Runs `dig +short` with these arguments in the client. Returns the lines of its output.
    fn dig(&self, words: &str) -> Vec<String> {
        let said = self.client().netns.exec(&format!("dig +short +time=2 +tries=2 {words}"));
        said.lines().map(str::to_owned).collect()
    }
}

fn echoes(stream: &mut TcpStream) -> bool {
    let mut byte = [0];
    stream.write_all(b"x").is_ok() && stream.read_exact(&mut byte).is_ok()
}

#[test]
fn a_pod_reaches_what_it_has_resolved_and_nothing_else() {
    require!("dnsmasq", "dig", "socat", "ss");
    let mut world = World::new("www.example.com, '*.example.org'");
    assert!(!world.connects(WEB) && !world.connects(WEB6), "nothing is resolved yet\n{}", world.lab.log());
    assert_eq!(world.dig(&format!("@{DNS} WWW.example.com A")), [WEB]);
    assert!(world.connects(WEB), "{}", world.lab.log());
    assert!(!world.connects(WEB6), "the other family was not asked");
    assert_eq!(world.dig(&format!("@{DNS6} www.example.com AAAA")), [WEB6]);
    assert!(world.connects(WEB6), "{}", world.lab.log());
    // A chain counts for the name asked, a name outside of the patterns does not.
    assert_eq!(world.dig(&format!("@{DNS} alias.example.org A")), ["cdn.example.net.", "203.0.113.240"]);
    assert!(world.connects("203.0.113.240"));
    assert_eq!(world.dig(&format!("@{DNS} evil.example.net A")), ["203.0.113.250"]);
    assert!(!world.connects("203.0.113.250"));
    // The server's own address, and TCP with an answer of many addresses.
    let server = world.lab.get("dns").v4.clone();
    assert_eq!(world.dig(&format!("+tcp @{server} big.example.org A")).len(), 100);
    for at in [0, 57, 99] {
        assert!(world.connects(&format!("203.0.113.{at}")), "{at}\n{}", world.lab.log());
    }
    // What an operator asks.
    let (code, told) = world.lab.ask(&["names", "--pod", "default/client", "--name", "www.example.com"]);
    assert_eq!(code, Some(0));
    assert!(told.contains(WEB) && told.contains(WEB6) && told.contains("answers count from"), "{told}");
    let (code, told) = world.lab.ask(&["explain", "--live", "--from", "default/client", "--to", WEB6, "--port", "80"]);
    assert!(code == Some(0) && told.contains("the pod has resolved www.example.com"), "{code:?} {told}");
    let (code, told) =
        world.lab.ask(&["explain", "--live", "--from", "default/client", "--to", "203.0.113.250", "--port", "80"]);
    assert_eq!(code, Some(1), "{told}");
    // Nobody restricts another pod, and what one pod has resolved opens nothing to others.
    let other = world.lab.get("other");
    assert!(other.netns.output(&format!("nc -z -w 2 {WEB} 80")).status.success());
    world.lab.stop();
}

#[test]
fn an_established_connection_outlives_the_answer_and_ends_with_the_rule() {
    require!("dnsmasq", "dig", "socat", "ss");
    let mut world = World::new("www.example.com");
    assert_eq!(world.dig(&format!("@{DNS} www.example.com A")), [WEB]);
    let mut stream = world.connect(WEB).expect("just resolved");
    assert!(echoes(&mut stream));
    // TTL 2 s, grace 1 s, rounded up to the full second.
    std::thread::sleep(Duration::from_secs(5));
    assert!(echoes(&mut stream), "an open connection goes on");
    assert!(!world.connects(WEB), "a new one needs a new answer");
    // Other tables in which a rule still names the name, and some in which none does.
    let apply = |world: &World, patterns: &str| {
        let before = world.lab.count("the new state is in force");
        world.lab.apply(&world.objects(patterns));
        eventually("the new state is in force", || world.lab.count("the new state is in force") > before);
    };
    apply(&world, "'*.example.com'");
    assert!(echoes(&mut stream), "the rule still names it\n{}", world.lab.log());
    apply(&world, "other.example.net");
    assert!(!echoes(&mut stream), "no rule names it any more");
    world.lab.stop();
}

#[test]
fn no_first_connection_of_a_resolver_and_its_client_is_denied() {
    require!("dnsmasq", "curl", "socat", "ss", "unshare");
    let mut world = World::new("'*.many.example.org'");
    let file = world.lab.path("resolv.conf");
    std::fs::write(&file, format!("nameserver {DNS}\n")).unwrap();
    // glibc asks for both families at once; curl connects as soon as it has an address. The server's echo is no HTTP, hence exit code 1.
    let urls: Vec<String> = (0..MANY).map(|at| format!("http://n{at}.many.example.org/")).collect();
    let loops = format!(
        "mount --bind {} /etc/resolv.conf && for url in {}; do curl -s -m 3 --connect-timeout 1 $url > /dev/null; code=$?; \
         test $code = 1 || echo $code $url; done",
        file.display(),
        urls.join(" ")
    );
    let said = world.client().netns.command("unshare", &["-m", "sh", "-c", &loops]).output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert_eq!(said, "", "{}", world.lab.log());
    let summary = world.lab.stop();
    let denied = summary["dropped"]["policy_denied"].as_u64().unwrap_or_default();
    assert_eq!(denied, 0, "{summary:#}");
}

#[test]
fn what_pods_have_resolved_and_what_they_have_opened_by_name_outlives_a_killed_process() {
    require!("dnsmasq", "dig", "socat", "ss");
    let mut world = World::new("www.example.com, '*.example.org'");
    // One address whose answer ends soon, with an open connection, and one that a cache may keep for long.
    assert_eq!(world.dig(&format!("@{DNS} www.example.com A")), [WEB]);
    let mut stream = world.connect(WEB).expect("just resolved");
    assert!(echoes(&mut stream));
    std::thread::sleep(Duration::from_secs(4));
    for round in 0..3 {
        assert_eq!(world.dig(&format!("@{DNS} alias.example.org A")).len(), 2);
        let text = world.objects("www.example.com, '*.example.org'");
        world.lab.kill();
        world.lab.start(&text);
        assert!(world.connects("203.0.113.240"), "round {round}: resolved before the kill\n{}", world.lab.log());
        assert!(!world.connects(WEB), "its answer has ended");
        assert!(echoes(&mut stream), "a rule still names the name of the open connection\n{}", world.lab.log());
    }
    // The name of the open connection is known across processes: it ends when no rule names it.
    let before = world.lab.count("the new state is in force");
    world.lab.apply(&world.objects("'*.example.org'"));
    eventually("the new state is in force", || world.lab.count("the new state is in force") > before);
    assert!(!echoes(&mut stream), "no rule names it any more");
    world.lab.stop();
}
