use std::time::Duration;

use super::*;
use crate::client::access::in_cluster;
use crate::client::config::server;
use crate::client::credential::{Authorization, TokenFile};

const CLUSTER: &str = "{server: 'https://192.0.2.1:6443'}";

/// Returns the error for a kubeconfig with this text.
fn refused(scratch: &Scratch, text: &str) -> String {
    let path = scratch.write("refused", text);
    let error = read(&path).err().unwrap_or_else(|| panic!("it is read: {text}"));
    assert!(error.starts_with(&format!("{} cannot be used: ", path.display())), "{error}");
    assert!(error.contains("\n  help: ") && !error.contains("hush"), "{error}");
    error
}

fn fixed(config: &Config) -> Option<String> {
    match &config.authorization {
        Authorization::Fixed(value) => Some(value.to_str().unwrap().to_owned()),
        Authorization::File(file) => Some(file.header().to_str().unwrap().to_owned()),
        Authorization::None => None,
    }
}

#[test]
fn a_context_is_the_one_that_is_named_or_the_files_own() {
    let scratch = Scratch::new();
    let text = "\u{feff}apiVersion: v1\nkind: Config\ncurrent-context: one\npreferences: {}\ncontexts:\n\
                - {name: one, context: {cluster: a, user: u, namespace: x}}\n- {name: two, context: {cluster: b}}\n\
                - {name: three, context: {cluster: b, user: nobody}}\n\
                clusters:\n- {name: a, cluster: {server: 'https://a/p/'}}\n- {name: b, cluster: {server: 'localhost:8080'}}\n\
                users:\n- {name: u, user: {token: t}}\n";
    let path = scratch.write("kubeconfig", text);
    let with = |context: Option<&str>| {
        crate::client::read(&Access::Kubeconfig { path: path.clone(), context: context.map(str::to_owned) })
    };
    let of = |context: Option<&str>| with(context).map(|config| (config.server.clone(), fixed(&config)));
    assert_eq!(of(None), Ok(("https://a/p".to_owned(), Some("Bearer t".to_owned()))));
    // As in `kubectl`: a context without a user, one with an unlisted user, and a server without a scheme.
    assert_eq!(of(Some("two")), Ok(("http://localhost:8080".to_owned(), None)));
    assert_eq!(of(Some("three")), of(Some("two")));
    let unknown = with(Some("four")).err().unwrap();
    assert!(unknown.contains("it has no context four\n  help: name one of these: one, two, three"), "{unknown}");
}

#[test]
fn of_several_documents_the_first_that_says_something_counts() {
    let scratch = Scratch::new();
    let first = "clusters: [{name: c, cluster: {server: 'https://first'}}]";
    let text = format!("{first}\n---\n{}", kubeconfig("{server: 'https://second'}", "{token: t}"));
    let config = read(&scratch.write("kubeconfig", &text)).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((config.server.as_str(), fixed(&config).as_deref()), ("https://first", Some("Bearer t")));
}

#[test]
fn paths_are_relative_to_the_file_and_data_comes_before_a_file() {
    let scratch = Scratch::new();
    scratch.write("token", "from-file\n");
    let text = kubeconfig(CLUSTER, "{tokenFile: token}");
    let config = read(&scratch.write("kubeconfig", &text)).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(fixed(&config).as_deref(), Some("Bearer from-file"));
    // `token` takes precedence over `tokenFile`. An empty value counts as missing.
    let both = read(&scratch.write("kubeconfig", &kubeconfig(CLUSTER, "{token: t, tokenFile: token}")));
    assert_eq!(both.ok().as_ref().and_then(fixed).as_deref(), Some("Bearer t"));
    let empty = read(&scratch.write("kubeconfig", &kubeconfig(CLUSTER, "{token: '', tokenFile: token}")));
    assert_eq!(empty.ok().as_ref().and_then(fixed).as_deref(), Some("Bearer from-file"));
    scratch.write("ca.crt", "nothing");
    let data = "{server: 'https://a', certificate-authority: missing, certificate-authority-data: 'bm90\n  aGluZw=='}";
    let told = refused(&scratch, &kubeconfig(data, "{}"));
    assert!(told.contains("cluster c: certificate-authority: it has no certificate"), "{told}");
}

#[test]
fn what_is_wrong_is_told_with_file_part_and_remedy_and_without_secrets() {
    let scratch = Scratch::new();
    scratch.write("empty", "");
    scratch.write("text", "hush");
    let of_cluster = |fields: &str| kubeconfig(&format!("{{server: 'https://a', {fields}}}"), "{}");
    let of_user = |fields: &str| kubeconfig(CLUSTER, &format!("{{{fields}}}"));
    for (text, says) in [
        (String::new(), "it has no current-context\n  help: set state.kubernetes.context"),
        ("{".to_owned(), "it is not a kubeconfig: "),
        ("users: [{name: u, user: {token: hush, exec: [}}]".to_owned(), "it is not a kubeconfig: "),
        ("clusters: 7".to_owned(), "it is not a kubeconfig: "),
        ("{current-context: x}".to_owned(), "it has no context x"),
        (
            kubeconfig(CLUSTER, "{}").replace("cluster: c,", "cluster: d,"),
            "context it names the cluster d, which does not exist",
        ),
        (kubeconfig("{}", "{}"), "cluster c: it has no server"),
        (kubeconfig("{server: 'ftp://a'}", "{}"), "cluster c: server: \"ftp://a\" is not an http or https URL"),
        (of_cluster("certificate-authority: missing"), "cluster c: certificate-authority: "),
        (of_cluster("certificate-authority: empty"), "cluster c: certificate-authority: it has no certificate"),
        (of_cluster("certificate-authority-data: '%'"), "cluster c: certificate-authority-data: it is not base64"),
        (of_cluster("tls-server-name: 'a b'"), "cluster c: tls-server-name: \"a b\" is not a valid name"),
        (of_cluster("proxy-url: 'http://p'"), "cluster c: proxy-url: http://p: proxies are not supported"),
        (of_user("tokenFile: missing"), "user u: tokenFile: "),
        (of_user("tokenFile: empty"), "it is empty"),
        (of_user("token: \"hush\\nhush\""), "user u: token: it contains characters that tokens cannot have"),
        (of_user("client-certificate: text"), "user u: client-certificate: it has no key"),
        (of_user("client-key: text"), "user u: client-key: it has no certificate"),
        (of_user("client-certificate: text, client-key: text"), "user u: client-certificate: it has no certificate"),
        (of_user("client-key-data: hush=x"), "user u: client-key-data: it is not base64"),
        (of_user("as: \"a\\nb\""), "user u: as: \"a\\nb\" contains characters"),
        (
            of_user("auth-provider: {name: gcp, config: {access-token: hush}}"),
            "user u: auth-provider: gcp is not supported",
        ),
        (of_user("exec: {apiVersion: v7, command: x}"), "user u: exec: apiVersion \"v7\" is not supported"),
        (of_user("exec: {apiVersion: client.authentication.k8s.io/v1}"), "user u: exec: it has no command"),
    ] {
        let told = refused(&scratch, &text);
        assert!(told.contains(says), "{says}: {told}");
    }
    let told = refused(&scratch, &of_user("auth-provider: {name: gcp}"));
    assert!(told.contains("Kubernetes 1.26 has removed auth-provider") && told.contains("`exec`"), "{told}");
    let missing = read(&scratch.path("nowhere")).err().unwrap();
    assert!(missing.contains("nowhere cannot be read: No such file"), "{missing}");
}

#[test]
fn a_renewed_token_is_used_and_one_that_is_gone_is_used_on() {
    let scratch = Scratch::new();
    let path = scratch.write("token", "first\n");
    let file = TokenFile::read(path.clone()).unwrap();
    scratch.write("token", "second\n");
    assert_eq!(file.header().to_str().unwrap(), "Bearer first", "within a minute");
    assert_eq!(file.header_after(Duration::ZERO).to_str().unwrap(), "Bearer second");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(file.header_after(Duration::ZERO).to_str().unwrap(), "Bearer second");
    assert!(!format!("{:?}", file.header()).contains("second"), "it is not for logs");
}

#[test]
fn urls_of_servers_are_those_of_http() {
    for (text, url) in [
        ("https://[2001:db8::1]:6443/", "https://[2001:db8::1]:6443"),
        ("http://a/k8s/clusters/c-1", "http://a/k8s/clusters/c-1"),
        ("10.0.0.1:8080", "http://10.0.0.1:8080"),
    ] {
        assert_eq!(server(text).unwrap(), url);
    }
    for wrong in ["", "https://", "unix:///x", "https://a?b=c", "http://a b"] {
        assert!(server(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_pod_is_told_its_server_by_variables_and_who_it_is_by_files() {
    let scratch = Scratch::new();
    let with = |host: &str, port: &str| {
        let variable = |name: &str| match name {
            "KUBERNETES_SERVICE_HOST" => Some(host.to_owned()).filter(|host| !host.is_empty()),
            "KUBERNETES_SERVICE_PORT" => Some(port.to_owned()),
            _ => None,
        };
        in_cluster(variable, &scratch.path("")).map_err(|error| error.problem)
    };
    let wrong = |host: &str, port: &str| with(host, port).err().unwrap();
    assert_eq!(wrong("", "443"), "KUBERNETES_SERVICE_HOST is not set");
    assert!(wrong("10.96.0.1", "tcp://x").contains("not a port number"));
    assert!(wrong("10.96.0.1", "443").contains("ca.crt cannot be read"));
    if tls::Authority::new(&scratch, "ca").is_none() {
        return;
    }
    assert!(wrong("10.96.0.1", "443").contains("token cannot be read"));
    scratch.write("token", "t");
    for (host, url) in [
        ("10.96.0.1", "https://10.96.0.1:443"),
        ("fd00::1", "https://[fd00::1]:443"),
        ("kubernetes.default", "https://kubernetes.default:443"),
    ] {
        let config = with(host, "443").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((config.server.as_str(), fixed(&config).as_deref()), (url, Some("Bearer t")));
    }
}
