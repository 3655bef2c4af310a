//! Reports whether Services are translated, and whether their health checks can be served.

use bulkhead_control::source::{Options, Strictness, Unenforced};

use super::{Finding, Severity};
use crate::admin::health;
use crate::config::Config;
use bulkhead_answers::output;
use bulkhead_answers::services::Adapter;

/// Maximum number of ports in one finding.
const MAX_NAMED: usize = 10;

/// Reports the Services in the state's files. Empty with an API server, or if the files do not load, which the start reports separately.
pub(crate) fn known(config: &Config) -> Vec<Finding> {
    let adapter = of_files(config);
    let counts = adapter.as_ref().map(|adapter| Finding {
        severity: Severity::Note,
        what: format!("the state has {}", adapter.counts()),
        why: "the vswitch translates their addresses".to_owned(),
        remedy: "nothing; with `services: off`, another program must translate them before packets reach the vswitch"
            .to_owned(),
        comes_again: true,
    });
    let mut checks = adapter.and_then(|mut adapter| adapter.take_health()).unwrap_or_default().checks;
    checks.retain(|port, _| config.admin.service_health.is_some_and(|own| own.port() != *port));
    counts.into_iter().chain(health(config, &checks.into_keys().collect::<Vec<_>>())).collect()
}

fn of_files(config: &Config) -> Option<Adapter> {
    let settings = config.services.clone().filter(|_| config.state.kubernetes.is_none())?;
    let options = &config.state.options;
    let options = Options { strictness: Strictness::Lenient, unenforced: Unenforced::Report, ..options.clone() };
    let loaded = config.state.load(options).ok()?;
    Some(Adapter::of(config.node.clone(), settings, &loaded.objects))
}

/// Reports the ports of load balancers' health checks, including those of Services, and the ports that other programs hold.
fn health(config: &Config, of_services: &[u16]) -> Vec<Finding> {
    let Some(own) = config.admin.service_health.filter(|_| config.services.is_some()) else { return Vec::new() };
    let mut ports: Vec<String> = vec![own.port().to_string()];
    ports.extend(of_services.iter().map(ToString::to_string));
    let named = output::some_of(&ports.iter().map(|port| &**port).collect::<Vec<_>>(), MAX_NAMED);
    let told = Finding {
        severity: Severity::Note,
        what: format!("the vswitch answers health checks of load balancers at {}, ports {named}", own.ip()),
        why:
            "load balancers send nothing to a node that does not report itself healthy (/healthz, healthCheckNodePort)"
                .to_owned(),
        remedy: "nothing; `admin: {service_health: none}` lets kube-proxy answer".to_owned(),
        comes_again: true,
    };
    let all = std::iter::once(own.port()).chain(of_services.iter().copied());
    let taken = all.filter_map(|port| {
        // The socket is closed immediately, so it hardly affects clients.
        let error = health::listen(std::net::SocketAddr::new(own.ip(), port)).err()?;
        Some(Finding {
            severity: Severity::Warning,
            what: format!(
                "the vswitch cannot answer health checks of load balancers at port {port} of {}: {error}",
                own.ip()
            ),
            why: "another program listens there and answers instead; the running vswitch retries".to_owned(),
            remedy: "stop kube-proxy on this node if it still runs, or set `admin: {service_health: none}`".to_owned(),
            comes_again: true,
        })
    });
    taken.chain([told]).collect()
}
