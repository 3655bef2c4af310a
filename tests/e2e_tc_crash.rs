//! A vswitch that is killed at any moment: denied packets never pass, and the next process takes over. The node's kernel forwards by
//! itself, so a packet that bypasses the vswitch arrives. The kills are spread over the duration of an undisturbed start and the time after
//! it. The test prints the stage that each process reached.

use crate::require;
use std::collections::BTreeSet;
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::lab::lasting::{Lasting, PATIENCE, answers, connect, echo, settle};
use crate::lab::netns::{Running, eventually};
use crate::lab::{Lab, has_tcx, own_programs, policy};
use bulkhead_dataplane::io::{LinkInfo, in_namespace};

const PORT: u16 = 7010;

/// A node with open ports for pods a, b and c, and a new interface for d in each round. Only c may reach b.
struct Node {
    lasting: Lasting,
    rules: String,
    /// An open connection from c to b.
    connection: TcpStream,
    /// A ping flood from a to b, which policy denies.
    flood: Option<Running>,
    /// The number of echo requests at b before the first vswitch started.
    echoes: u64,
    /// The duration of an undisturbed start.
    start: Duration,
}

impl Node {
    fn new() -> Self {
        let mut lasting = Lasting::new();
        let lab = &mut lasting.lab;
        lab.pod("d", "{app: d}");
        lab.forward_past();
        assert!(lab.pings("a", &lab.get("b").v4) && lab.pings("d", &lab.get("b").v4), "the way past the vswitch");
        let from = "from: [{podSelector: {matchLabels: {app: c}}}]";
        let spec =
            format!("{{podSelector: {{matchLabels: {{app: b}}}}, policyTypes: [Ingress], ingress: [{{{from}}}]}}");
        let rules = policy("b", &spec);
        let began = Instant::now();
        lab.start(&rules);
        let start = began.elapsed();
        let links = || lab.pods.iter().all(|pod| filters(lab, &pod.interface) == 0);
        eventually("links take the place of filters where there are links", || !has_tcx() || links());
        echo(lab.get("b"), PORT);
        let mut connection = connect(lab.get("c"), lab.get("b"), PORT, PATIENCE).unwrap();
        settle(&mut connection);
        let echoes = lab.counter("b", "Icmp:", "InEchos");
        let flood = Some(lab.get("a").netns.spawn(&format!("ping -n -q -i 0.002 {}", lab.get("b").v4)));
        Self { lasting, rules, connection, flood, echoes, start }
    }

    fn lab(&mut self) -> &mut Lab {
        &mut self.lasting.lab
    }

    /// Replaces d's interface by a new one.
    fn replace_d(&mut self) {
        let lab = self.lab();
        lab.unplug("d");
        lab.plug("d");
        lab.forward_past_to("d");
    }

    fn launch(&mut self) {
        let rules = self.rules.clone();
        self.lab().launch(Path::new(env!("CARGO_BIN_EXE_bulkhead")), &rules, &[]);
    }

    /// Checks that no packet from a's flood, or from d, has reached b.
    fn check(&mut self, when: &str) {
        let echoes = self.echoes;
        let lab = self.lab();
        lab.get("d").netns.output(&format!("ping -n -q -c 5 -i 0.002 -W 0.05 {}", lab.get("b").v4));
        assert_eq!(lab.counter("b", "Icmp:", "InEchos"), echoes, "something got past policy, {when}:\n{}", lab.log());
    }

    /// Checks that the next vswitch takes everything over.
    fn check_next(mut self) {
        self.launch();
        self.lab().wait_until_ready();
        self.check("after the last start");
        let lab = self.lab();
        let sent = lab.node.statistic(&lab.get("a").interface, 1);
        eventually("a goes on to send", || lab.node.statistic(&lab.get("a").interface, 1) > sent + 50);
        for (from, to) in [("a", "c"), ("a", "d"), ("d", "c"), ("c", "a")] {
            assert!(lab.pings(from, &lab.get(to).v4), "{from} reaches {to}: {}", lab.log());
        }
        let mut new = connect(lab.get("c"), lab.get("b"), PORT, PATIENCE).unwrap();
        assert!(answers(&mut new), "{}", lab.log());
        assert!(answers(&mut self.connection), "the old connection goes on: {}", self.lasting.lab.log());
        self.check("in the end");
        drop(self.flood.take());
        self.lab().stop();
    }
}

/// The number of hooks of an interface with a filter of the vswitch.
fn filters(lab: &Lab, interface: &str) -> usize {
    let shown = ["ingress", "egress"].map(|hook| lab.node.exec(&format!("tc filter show dev {interface} {hook}")));
    shown.iter().filter(|shown| shown.contains("bulkhead")).count()
}

/// The stage that a process reached: the first words of its last log line.
fn stage(said: &str) -> String {
    let last = said.lines().rfind(|line| line.contains("info: ")).unwrap_or("nothing");
    last.split_once("info: ").map_or(last, |(_, text)| text).split(' ').take(4).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_vswitch_that_is_killed_at_any_moment_of_its_start_opens_nothing_and_the_next_one_takes_over() {
    require!("mount", "ping", "tc");
    only_with_tc!();
    const KILLS: u32 = 18;
    let mut node = Node::new();
    let start = node.start;
    node.lab().kill();
    node.check("after the first kill");
    let mut stages = BTreeSet::new();
    for number in 0..KILLS {
        node.replace_d();
        let said = node.lab().log().len();
        node.launch();
        std::thread::sleep(start * number / (KILLS - 4));
        node.lab().kill();
        let stage = stage(&node.lab().log()[said..]);
        node.check(&format!("killed after {stage:?}"));
        stages.insert(stage);
    }
    println!("a start takes {start:?}; killed after {stages:?}");
    assert!(stages.len() >= 2, "killed at one stage only: {stages:?}");
    node.check_next();
}

#[test]
fn a_vswitch_that_is_killed_while_it_opens_a_port_opens_nothing_and_the_next_one_takes_over() {
    require!("mount", "ping", "tc");
    only_with_tc!();
    const KILLS: usize = 8;
    let mut node = Node::new();
    let mut stages = BTreeSet::new();
    for number in 0..KILLS {
        let lab = node.lab();
        lab.unplug("d");
        let removed = || lab.count("port default/d (p5) was removed");
        eventually("the port is removed", || removed() == number + 1);
        let said = lab.log().len();
        std::thread::scope(|scope| {
            scope.spawn(|| lab.plug("d"));
            let path = Path::new("/run/netns").join(lab.node.name());
            let has_come = || LinkInfo::read("p5").is_ok();
            in_namespace(&path, || while !has_come() {}).unwrap();
            std::thread::sleep(Duration::from_micros(700) * u32::try_from(number).unwrap());
            lab.vswitch().signal("KILL");
        });
        lab.kill();
        stages.insert((stage(&lab.log()[said..]), own_programs_of(lab, "p5")));
        lab.forward_past_to("d");
        node.check(&format!("killed {number} after the interface has come"));
        node.launch();
        node.lab().wait_until_ready();
    }
    println!("the last words, and how many programs were there: {stages:?}");
    node.lab().kill();
    node.check_next();
}

/// The number of the vswitch's programs on an interface of the node.
fn own_programs_of(lab: &Lab, interface: &str) -> usize {
    let path = Path::new("/run/netns").join(lab.node.name());
    in_namespace(&path, || own_programs(LinkInfo::read(interface).unwrap().index)).unwrap()
}

#[test]
fn a_vswitch_that_is_killed_while_links_take_the_place_of_filters_opens_nothing_and_the_next_one_takes_over() {
    require!("mount", "ping", "tc");
    only_with_tc!();
    if !has_tcx() {
        println!("skipped: it is about links, and runs without BULKHEAD_TCX");
        return;
    }
    const KILLS: u32 = 5;
    let mut node = Node::new();
    let mut left = Vec::new();
    for number in 0..KILLS {
        let said = node.lab().log().len();
        node.replace_d();
        eventually("the port is open", || node.lab().log()[said..].contains("port default/d (p5) is open"));
        // A second later, links start to replace filters, one by one with pauses.
        std::thread::sleep(Duration::from_millis(970) + Duration::from_millis(25) * number);
        node.lab().kill();
        left.push((filters(node.lab(), "p5"), own_programs_of(node.lab(), "p5")));
        node.check(&format!("killed while links take the place of filters, {number}"));
        node.launch();
        node.lab().wait_until_ready();
    }
    println!("filters, and programs in all, that were left at each kill: {left:?}");
    node.lab().kill();
    node.check_next();
}
