use std::time::{Duration, SystemTime};

use super::*;
use crate::client::credential::Authorization;
use crate::client::exec::time;

const VERSION: &str = "apiVersion: client.authentication.k8s.io/v1";

/// Returns the configuration of a user with this plugin, or the error.
fn with(scratch: &Scratch, cluster: &str, plugin: &str) -> Result<Config, String> {
    read(&scratch.write("kubeconfig", &kubeconfig(cluster, &format!("{{exec: {{{plugin}}}}}"))))
}

fn token(config: &Config) -> &str {
    let Authorization::Fixed(value) = &config.authorization else { panic!("it has no token") };
    value.to_str().unwrap()
}

#[test]
fn a_plugin_is_run_with_arguments_environment_and_what_it_is_told_of_the_cluster() {
    let scratch = Scratch::new();
    let said = scratch.path("said");
    scratch.program(
        "plugin",
        &format!(
            "echo \"$1 $2 $EXTRA\" > {0}\necho \"$KUBERNETES_EXEC_INFO\" >> {0}\n\
             echo '{{\"status\": {{\"token\": \"t-1\", \"expirationTimestamp\": \"2100-01-01T00:00:00Z\"}}}}'",
            said.display()
        ),
    );
    let cluster = "{server: 'https://192.0.2.1', insecure-skip-tls-verify: true, tls-server-name: k, \
                   extensions: [{name: client.authentication.k8s.io/exec, extension: {audience: x}}]}";
    let plugin = format!(
        "{VERSION}beta1, command: ./plugin, args: [a, b], env: [{{name: EXTRA, value: e}}], provideClusterInfo: true, interactiveMode: Never"
    );
    let config = with(&scratch, cluster, &plugin).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(token(&config), "Bearer t-1");
    assert!(config.end.is_some_and(|end| end > SystemTime::now()) && !Config::is_ending(config.end));
    let said = std::fs::read_to_string(said).unwrap();
    let (words, info) = said.split_once('\n').unwrap();
    assert_eq!(words, "a b e");
    let info: serde_json::Value = serde_json::from_str(info).unwrap();
    assert_eq!(
        info,
        serde_json::json!({
            "apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential",
            "spec": {"interactive": false, "cluster": {"server": "https://192.0.2.1", "tls-server-name": "k",
                "insecure-skip-tls-verify": true, "config": {"audience": "x"}}},
        })
    );
    // Without `provideClusterInfo` the plugin gets nothing about the cluster. Its answer may also be YAML.
    let told = scratch.path("told");
    let script = format!("echo \"$KUBERNETES_EXEC_INFO\" > {}\necho 'status: {{token: t-2}}'", told.display());
    let path = scratch.program("plugin", &script);
    let config = with(&scratch, cluster, &format!("{VERSION}, command: {}, interactiveMode: Never", path.display()));
    let config = config.unwrap_or_else(|error| panic!("{error}"));
    assert!(token(&config) == "Bearer t-2" && config.end.is_none());
    assert!(!std::fs::read_to_string(told).unwrap().contains("cluster"));
}

#[test]
fn a_plugin_that_fails_is_told_with_what_it_says_and_how_to_install_it_and_without_what_it_answers() {
    let scratch = Scratch::new();
    let cluster = "{server: 'https://192.0.2.1'}";
    let refused = |script: &str, more: &str| {
        scratch.program("plugin", script);
        let plugin = format!("{VERSION}, command: ./plugin, interactiveMode: Never{more}");
        let error = with(&scratch, cluster, &plugin).err().unwrap();
        assert!(error.contains("kubeconfig cannot be used: user u: exec: ") && !error.contains("hush"), "{error}");
        error
    };
    let told = refused("echo hush\necho 'not logged in' >&2\nexit 3", ", installHint: log in with x");
    assert!(told.contains("./plugin failed, exit status: 3: not logged in\n  help: log in with x"), "{told}");
    let told = refused("exit 1", "");
    assert!(told.contains("help: name a kubeconfig file that works with `kubectl --kubeconfig`"), "{told}");
    for (script, says) in [
        ("echo hush", "it is not an ExecCredential"),
        ("echo '{}'", "it has no status"),
        ("echo '{\"status\": {}}'", "it has neither a token nor a certificate"),
        (
            "echo '{\"status\": {\"token\": \"hush\", \"expirationTimestamp\": \"soon\"}}'",
            "expirationTimestamp is not a time",
        ),
        (r#"printf %s '{"status": {"token": "hush\nhush"}}'"#, "status.token: it contains characters"),
        ("echo '{\"status\": {\"clientKeyData\": \"hush\"}}'", "a key without a certificate"),
        (
            "echo '{\"status\": {\"clientKeyData\": \"hush\", \"clientCertificateData\": \"x\"}}'",
            "clientCertificateData: ",
        ),
    ] {
        let told = refused(script, "");
        assert!(told.contains("the answer of ./plugin: ") && told.contains(says), "{says}: {told}");
    }
    let missing = with(&scratch, cluster, &format!("{VERSION}, command: bulkhead-no-such-plugin, installHint: get it"));
    let missing = missing.err().unwrap();
    assert!(missing.contains("cannot run bulkhead-no-such-plugin: ") && missing.contains("help: get it"), "{missing}");
}

#[test]
fn a_program_that_does_not_end_is_ended() {
    let mut command = std::process::Command::new("sleep");
    command.arg("60");
    let started = std::time::Instant::now();
    let ended = crate::client::exec::output(command, Duration::from_millis(50));
    assert_eq!(ended.err().unwrap().kind(), std::io::ErrorKind::TimedOut);
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    // A program whose child outlives it and keeps its output open.
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "sleep 60 & echo $!"]);
    let (status, ..) = crate::client::exec::output(command, Duration::from_millis(500)).unwrap();
    assert!(status.success() && started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
}

#[test]
fn times_have_any_offset() {
    let at = |seconds| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    for (text, time_) in [
        ("1970-01-02T00:00:00Z", at(86_400)),
        ("1970-01-02T00:00:00.5Z", Some(SystemTime::UNIX_EPOCH + Duration::from_millis(86_400_500))),
        ("1970-01-02T02:00:00+02:00", at(86_400)),
        ("1970-01-01T22:30:00-01:30", at(86_400)),
        ("1970-01-01T00:00:00+00:00", at(0)),
        ("1970-01-02", None),
        ("tomorrow", None),
        ("", None),
        ("1970-01-02T00:00:00+x:00", None),
    ] {
        assert_eq!(time(text), time_, "{text}");
    }
    let end = Some(SystemTime::now() + Duration::from_secs(30));
    assert!(Config::is_ending(end), "a minute before");
}
