//! Measures one TCP flow of iperf3 through the vswitch, the bare loop or a kernel bridge.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use bulkhead_dataplane::vswitch::PollMode;

use super::lab::{Lab, SINK};
use super::paths::{self, Path, Setup};

/// A server process, killed on drop.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the received bits per second.
///
/// # Errors
/// If a path cannot be set up, or iperf3 fails.
pub(super) fn measure(lab: &Lab, path: Path, cores: [usize; 2], time: Duration) -> anyhow::Result<f64> {
    match path {
        Path::Pipeline | Path::FlowCache | Path::OneWorker => {
            let workers = if path == Path::Pipeline { &cores[..] } else { &cores[1..] };
            let setup = Setup { poll: PollMode::Adaptive, with_policy: false, flow_cache: path == Path::FlowCache };
            // Workers must not spin: on a machine with two cores, iperf3 shares their cores.
            let vswitch = paths::pipeline(lab, workers, setup, [None, None])?;
            let rate = flow(lab, cores[0], time);
            drop(vswitch);
            rate
        }
        Path::Bare => paths::bare(lab, cores[1], || flow(lab, cores[0], time)),
        Path::Kernel | Path::KernelRps => {
            lab.run("node", "ip link add br0 type bridge")?;
            lab.run("node", "ip link set br0 up")?;
            for interface in ["hA", "hB"] {
                lab.run("node", &format!("ip link set {interface} master br0"))?;
            }
            flow(lab, cores[0], time)
        }
    }
}

/// Runs one flow from the generator to the sink.
fn flow(lab: &Lab, core: usize, time: Duration) -> anyhow::Result<f64> {
    let mut server = lab.command("sink", "iperf3 -s -1");
    let _server = Server(server.stdout(Stdio::null()).spawn().context("cannot run iperf3")?);
    wait_for_server(lab)?;
    let pinned = format!("taskset -c {core} iperf3 -J -c {SINK} -t {}", time.as_secs().max(1));
    let report: serde_json::Value = serde_json::from_str(&lab.run("gen", &pinned)?)?;
    report["end"]["sum_received"]["bits_per_second"].as_f64().context("iperf3 has not measured anything")
}

fn wait_for_server(lab: &Lab) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !lab.run("sink", "ss -Htln")?.contains(":5201 ") {
        anyhow::ensure!(Instant::now() < deadline, "iperf3 does not start to listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
