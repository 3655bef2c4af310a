//! One TCP flow of iperf3, through the vswitch and through a bridge of the kernel.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use bulkhead_dataplane::vswitch::PollMode;

use super::lab::{Lab, SINK};
use super::paths::{self, Path, Setup};

/// A server that is ended with this.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Bits per second that arrive.
///
/// # Errors
/// When a path cannot be set up, or iperf3 fails.
pub(super) fn measure(lab: &Lab, path: Path, cores: [usize; 2], time: Duration) -> anyhow::Result<f64> {
    match path {
        Path::Pipeline | Path::FlowCache | Path::OneWorker => {
            let workers = if path == Path::Pipeline { &cores[..] } else { &cores[1..] };
            let setup = Setup { poll: PollMode::Adaptive, with_policy: false, flow_cache: path == Path::FlowCache };
            // Not spinning: iperf3 needs the workers' cores as well where there are only two.
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

/// One flow from the generator's end to the sink's.
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
