//! `bulkhead wait`.

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::client::ask;
use super::protocol::{Enforcement, PolicyQuestion, Request};
use crate::args;
use bulkhead_answers::args::Format;
use bulkhead_answers::output::{self, printable};
use bulkhead_control::object::ClusterPolicyKind;

/// Polling interval. A change takes effect within 100 ms after its file is complete.
const INTERVAL: Duration = Duration::from_millis(20);

/// Waits until the policy is enforced, or with `--gone` until it is not. Returns exit code 1 on timeout. For an audited policy, waits until
/// the vswitch counts what the policy would deny; the output says that it is not enforced.
pub fn wait(args: &args::Wait) -> anyhow::Result<ExitCode> {
    let question = match args.policy.cluster {
        None => PolicyQuestion { kind: None, namespace: args.namespace.clone(), name: args.policy.name.clone() },
        kind => PolicyQuestion { kind, namespace: String::new(), name: qualified(args) },
    };
    let (started, request) = (Instant::now(), Request::Enforcement(question));
    loop {
        let asked = ask::<Enforcement>(&args.admin.socket, &request);
        let missing = asked.as_ref().map(|now| missing(args, now)).ok();
        let is_done = missing.as_ref().is_some_and(Option::is_none);
        if !is_done && started.elapsed() + INTERVAL < args.timeout {
            std::thread::sleep(INTERVAL);
            continue;
        }
        let now = asked?;
        let missing = missing.flatten();
        show(args, &now, missing.as_deref(), started.elapsed())?;
        return Ok(ExitCode::from(u8::from(!is_done)));
    }
}

/// Returns the name of the policy in output and in the state: `NAMESPACE/NAME`, or `NAME` if its kind has no namespaces.
fn qualified(args: &args::Wait) -> String {
    match args.policy.cluster.is_none_or(ClusterPolicyKind::has_namespaces) {
        true => format!("{}/{}", args.namespace, args.policy.name),
        false => args.policy.name.clone(),
    }
}

/// Returns what is still missing. `None` if the condition holds.
fn missing(args: &args::Wait, now: &Enforcement) -> Option<String> {
    let is_named = args.generation.is_some() || args.uid.is_some();
    if args.gone {
        if now.known {
            return Some("the vswitch still has the policy".into());
        }
    } else if !now.known {
        let why = now.pending.iter().map(|pending| format!("; {pending}")).collect::<String>();
        return Some(format!("the vswitch has no policy of this name{why}"));
    }
    if let Some(wanted) = args.generation.filter(|wanted| now.generation.is_none_or(|known| known < *wanted)) {
        let known =
            now.generation.map_or("one that does not say its own".into(), |known| format!("generation {known}"));
        return Some(format!("the vswitch has {known}, not yet generation {wanted}"));
    }
    if let Some(wanted) = args.uid.as_deref().filter(|wanted| now.uid.as_deref() != Some(wanted)) {
        return Some(format!("the vswitch has another policy of this name, not the one with uid {wanted}"));
    }
    if let Some(fault) = now.fault.as_deref().filter(|_| !args.gone) {
        return Some(format!("the policy could not be parsed, so it allows nothing: {fault}"));
    }
    if now.stale && !is_named {
        return Some("the connection to the API server is lost, so a newer version of the policy may exist".into());
    }
    (!now.enforced).then(|| now.pending.join("; "))
}

fn show(args: &args::Wait, now: &Enforcement, missing: Option<&str>, waited: Duration) -> anyhow::Result<()> {
    let mut out = output::stdout();
    let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
    if args.admin.output == Format::Json {
        let mut value = serde_json::to_value(now)?;
        value["waited_ms"] = waited_ms.into();
        value["done"] = missing.is_none().into();
        value["missing"] = missing.into();
        serde_json::to_writer_pretty(&mut out, &value)?;
        writeln!(out)?;
        return Ok(());
    }
    let kind = args.policy.cluster.map_or("NetworkPolicy", ClusterPolicyKind::name);
    let name = format!("{kind} {}", qualified(args));
    let name = printable(&name);
    match missing {
        None => {
            let what = match (args.gone, now.audited) {
                (true, _) => "is gone",
                (false, true) => "is in force, audited and not enforced",
                (false, false) => "is enforced",
            };
            let generation = now.generation.map_or_else(String::new, |generation| format!(", generation {generation}"));
            writeln!(out, "{name} {what}{generation}; tables of generation {}", now.tables_generation)?;
        }
        Some(missing) => {
            let (what, missing) = (if args.gone { "gone" } else { "enforced" }, printable(missing));
            writeln!(out, "{name} is not {what} after {waited_ms} ms: {missing}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(words: &str) -> args::Wait {
        args::parsed(["netpol/x"].into_iter().chain(words.split_whitespace()))
    }

    fn in_force() -> Enforcement {
        let (uid, generation) = (Some("u".into()), Some(3));
        Enforcement { known: true, uid, generation, enforced: true, ..Enforcement::default() }
    }

    #[test]
    fn what_is_waited_for_is_the_state_that_was_asked_for_and_no_older_one() {
        let says = |words: &str, now: &Enforcement| missing(&args(words), now).unwrap_or_default();
        for words in ["", "--generation 3", "--generation 2 --uid u"] {
            assert_eq!(says(words, &in_force()), "", "{words}");
        }
        assert!(says("--generation 4", &in_force()).contains("has generation 3, not yet generation 4"));
        assert!(says("--uid v", &in_force()).contains("another policy of this name"));
        assert!(says("--gone", &in_force()).contains("still has"));
        let none = Enforcement { enforced: true, ..Enforcement::default() };
        assert!(says("", &none).contains("has no policy"));
        assert_eq!(says("--gone", &none), "");
        let unnamed = Enforcement { generation: None, ..in_force() };
        assert!(says("--generation 1", &unnamed).contains("does not say its own"));
        let faulty = Enforcement { fault: Some("spec.ports".into()), ..in_force() };
        assert!(says("", &faulty).contains("allows nothing: spec.ports"));
        let pending = Enforcement { enforced: false, pending: vec!["a".into(), "b".into()], ..in_force() };
        assert_eq!(says("", &pending), "a; b");
    }

    #[test]
    fn a_server_that_is_not_heard_may_have_a_newer_state_unless_the_state_was_named() {
        let stale = Enforcement { stale: true, ..in_force() };
        assert!(missing(&args(""), &stale).unwrap().contains("is lost"));
        assert_eq!(missing(&args("--generation 3"), &stale), None);
    }
}
