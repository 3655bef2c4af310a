//! Measures `ADD` of the CNI plugin, alone and many at once, and whether each pod's first packets are forwarded.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use serde_json::json;

use super::Bench;
use super::node::Node;
use super::objects::PodName;
use super::runtime::Sandbox;
use crate::table::{Goal, Line, digits, median, milliseconds, percentile};
use crate::testbed::traffic::server;

/// Number of pods added one after another in each round.
const SINGLES: usize = 20;
/// Time until a first packet counts as lost. It is sent only once.
const ARRIVAL: Duration = Duration::from_secs(2);

pub(super) fn add(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let node = Node::new(bench, "")?;
    let client = node.create(&[PodName::probe("client")])?.remove(0);
    let (mut singles, mut bursts, mut in_bursts, mut failed) = (Vec::new(), Vec::new(), Vec::new(), 0.0);
    let mut packets = 0;
    for round in 0..bench.rounds {
        for at in 0..SINGLES {
            let mut pod = node.declare(&[PodName::probe(&format!("single-{round}-{at}"))])?.remove(0);
            singles.push(milliseconds(node.add(&mut pod)?));
            failed += not_forwarded(&client, &pod)?;
            packets += 2;
            node.report(&pod);
            node.delete(&pod)?;
        }
        let names: Vec<PodName> = (0..bench.ports).map(|at| PodName::probe(&format!("many-{round}-{at}"))).collect();
        let mut pods = node.declare(&names)?;
        let added = all_at_once(&node, &client, &mut pods)?;
        in_bursts.extend(added.iter().map(|added| milliseconds(added.took)));
        failed += added.iter().map(|added| added.failed).sum::<f64>();
        packets += 2 * pods.len();
        bursts.push(added.iter().map(|added| added.since_start.as_secs_f64()).fold(0.0, f64::max));
        for pod in &pods {
            node.report(pod);
            node.delete(pod)?;
        }
    }
    let rounded = |values: &[f64]| values.iter().map(|&value| digits(value)).collect::<Vec<_>>();
    let note =
        format!("p99 {}, {} times; the plugin's process included", digits(percentile(&singles, 99.0)), singles.len());
    let burst = format!("median of {} rounds; one of them takes {} ms", bench.rounds, digits(median(&in_bursts)));
    let line = |what: &str, value, unit, most| Line::value("add", what, value, unit, Goal::AtMost(most));
    Ok(vec![
        line("CNI ADD, one after another, median", median(&singles), "ms", 30.0)
            .noted(&note)
            .with("times", json!(rounded(&singles))),
        line(&format!("{} pods added at once", bench.ports), median(&bursts), "s", 5.0)
            .noted(&burst)
            .with("rounds", json!(rounded(&bursts))),
        line("first packets after ADD that are not forwarded", failed, "packets", 0.0)
            .noted(&format!("of {packets}, to each pod and from it")),
    ])
}

/// The results of one `ADD`.
struct Added {
    took: Duration,
    since_start: Duration,
    failed: f64,
}

fn all_at_once(node: &Node, client: &Sandbox, pods: &mut [Sandbox]) -> anyhow::Result<Vec<Added>> {
    let started = Instant::now();
    std::thread::scope(|scope| {
        let one = |pod: &mut Sandbox| {
            let took = node.add(pod)?;
            let since_start = started.elapsed();
            Ok(Added { took, since_start, failed: not_forwarded(client, pod)? })
        };
        let all: Vec<_> = pods.iter_mut().map(|pod| scope.spawn(move || one(pod))).collect();
        all.into_iter().map(|one| one.join().map_err(|_| anyhow::anyhow!("a thread has panicked"))?).collect()
    })
}

/// Sends one packet from the pod to the client and one back, the first in each direction. Returns how many do not arrive.
fn not_forwarded(client: &Sandbox, pod: &Sandbox) -> anyhow::Result<f64> {
    let arrives = |from: &Sandbox, to: &Sandbox| -> anyhow::Result<bool> {
        // Several pods may exchange packets with the client at the same time.
        let sink = to.netns.inside(|| Ok(UdpSocket::bind(server(&to.address, 0)?)?))?;
        sink.set_read_timeout(Some(ARRIVAL))?;
        let source = from.netns.inside(|| Ok(UdpSocket::bind("0.0.0.0:0")?))?;
        source.send_to(b"first", sink.local_addr()?)?;
        Ok(sink.recv(&mut [0; 16]).is_ok())
    };
    let lost = [arrives(pod, client)?, arrives(client, pod)?].into_iter().filter(|arrived| !arrived).count();
    Ok(f64::from(u8::try_from(lost)?))
}
