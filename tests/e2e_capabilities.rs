//! The vswitch in the environment of `deploy/daemonset.yaml`: root with only the granted capabilities, `/proc/sys` read-only, and a small
//! limit of locked memory.

use crate::require;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::lab::lasting::{Lasting, PATIENCE, answers, connect, echo, settle};
use crate::lab::{Lab, policy};

const PORT: u16 = 7040;

/// The capabilities that the manifest grants to the container of this name, in `setpriv`'s form.
fn granted(file: &str, container: &str) -> Vec<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(file)).unwrap();
    let daemonset: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
    let spec = &daemonset["spec"]["template"]["spec"];
    let lists = ["initContainers", "containers"].map(|name| spec[name].as_array().unwrap());
    let found = lists.into_iter().flatten().find(|one| one["name"] == container).unwrap();
    let names = found["securityContext"]["capabilities"]["add"].as_array().unwrap();
    names.iter().map(|name| name.as_str().unwrap().to_lowercase()).collect()
}

/// A script that runs bulkhead with only these capabilities.
fn confined(lab: &Lab, capabilities: &[String]) -> PathBuf {
    let added: String = capabilities.iter().map(|name| format!(",+{name}")).collect();
    let path = lab.path("confined");
    let script = format!(
        "#!/bin/sh\nulimit -l 64\nexec unshare --mount sh -c 'mount --bind /proc/sys /proc/sys && \
         mount -o remount,bind,ro /proc/sys && exec setpriv --no-new-privs --bounding-set=-all{added} -- \"$@\"' sh {} \"$@\"\n",
        env!("CARGO_BIN_EXE_bulkhead")
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn the_granted_capabilities_are_enough_to_forward_to_enforce_to_take_over_and_to_clean_up() {
    require!("ping", "setpriv", "unshare", "mount");
    only_with_tc!();
    let Lasting { lab, .. } = &mut Lasting::new();
    let program = confined(lab, &granted("daemonset.yaml", "bulkhead"));
    let from = "from: [{podSelector: {matchLabels: {app: c}}}]";
    let rules = policy(
        "b",
        &format!("{{podSelector: {{matchLabels: {{app: b}}}}, policyTypes: [Ingress], ingress: [{{{from}}}]}}"),
    );
    lab.launch(&program, &rules, &[]);
    lab.wait_until_ready();
    echo(lab.get("b"), PORT);
    let mut connection = connect(lab.get("c"), lab.get("b"), PORT, PATIENCE).unwrap();
    assert!(!lab.pings("a", &lab.get("b").v4), "policy denies this");
    // Talk until the kernel forwards the connection. The programs for that need CAP_PERFMON.
    settle(&mut connection);
    lab.until_linked();
    lab.kill();
    assert!(answers(&mut connection), "the kernel goes on with the session");
    lab.launch(&program, &rules, &[]);
    lab.wait_until_ready();
    assert!(lab.log().contains("taking over"), "{}", lab.log());
    assert!(answers(&mut connection) && lab.pings("c", &lab.get("b").v4));
    assert!(!lab.log().contains("lacks") && !lab.log().contains("error:"), "{}", lab.log());
    assert!(
        !lab.log().contains("other programs are at tc"),
        "what the first one has left is not foreign: {}",
        lab.log()
    );
    lab.stop();
    let config = lab.path("config.yaml");
    let cleanup = confined(lab, &granted("uninstall/daemonset.yaml", "cleanup"));
    let output = lab.node.command(cleanup, &["cleanup", "--config", config.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!lab.node.ip("link").contains("bh0"), "the trunk is gone");
}

#[test]
fn without_any_one_of_them_it_does_not_start_or_says_what_does_not_work() {
    require!("setpriv", "unshare", "mount");
    only_with_tc!();
    let mut lab = Lab::new();
    lab.pod("a", "{app: a}");
    lab.write_state("");
    lab.write_config();
    let all = granted("daemonset.yaml", "bulkhead");
    let config = lab.path("config.yaml");
    for missing in &all {
        let rest: Vec<String> = all.iter().filter(|name| *name != missing).cloned().collect();
        let program = confined(&lab, &rest);
        let output =
            lab.node.command(program, &["run", "--config", config.to_str().unwrap(), "--check"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let named = format!("CAP_{}", missing.to_uppercase());
        assert!(text.contains(&named), "without {named}: {text}");
    }
    // With all capabilities the check reports none missing.
    let program = confined(&lab, &all);
    let output = lab.node.command(program, &["run", "--config", config.to_str().unwrap(), "--check"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && !text.contains("CAP_"), "{text}");
}
