//! The Hubble server over TCP: which clients it serves with TLS, renewal of certificates, and the node list that it sends to a relay.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use crate::e2e_hubble::Client;
use crate::lab::Lab;
use crate::lab::netns::{eventually, run};
use crate::lab::watched::{metrics, watched};
use crate::require;
use bulkhead_dataplane::io::in_namespace;
use bulkhead_observe::hubble::observer::{GetFlowsRequest, GetNodesResponse, NoFields, ServerStatusResponse};
use bulkhead_observe::hubble::peer::ChangeNotification;
use prost::Message;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

const NOTIFY: &str = "/peer.Peer/Notify";
const NODES: &str = "/observer.Observer/GetNodes";
const STATUS: &str = "/observer.Observer/ServerStatus";

/// The name by which a relay verifies the lab's node.
const SERVER: &str = "node-1.default.hubble-grpc.cilium.io";

/// The time limit for events that must happen.
const SOON: Duration = Duration::from_secs(10);

/// A certificate authority with its files `NAME.crt` and `NAME.key` in a folder.
struct Authority {
    folder: PathBuf,
    name: &'static str,
}

impl Authority {
    fn new(folder: &Path, name: &'static str) -> Self {
        let authority = Self { folder: folder.to_owned(), name };
        authority.request(name, &[]);
        authority
    }

    fn path(&self, file: &str) -> String {
        self.folder.join(file).to_str().unwrap().to_owned()
    }

    fn certificate(&self) -> String {
        self.path(&format!("{}.crt", self.name))
    }

    fn request(&self, name: &str, more: &[&str]) {
        let (subject, [key, certificate]) = (format!("/CN={name}"), ["key", "crt"].map(|end| format!("{name}.{end}")));
        let (key, certificate) = (self.path(&key), self.path(&certificate));
        let words =
            ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"];
        run("openssl", &[&words[..], &["-subj", &subject, "-keyout", &key, "-out", &certificate], more].concat());
    }

    /// Issues a certificate. Returns the paths of the certificate and of its key.
    fn issue(&self, name: &str) -> [String; 2] {
        let [ca, ca_key] = ["crt", "key"].map(|end| self.path(&format!("{}.{end}", self.name)));
        let names = "subjectAltName=DNS:*.default.hubble-grpc.cilium.io";
        let usage = "extendedKeyUsage=serverAuth,clientAuth";
        let ends = ["-addext", names, "-addext", usage, "-addext", "basicConstraints=critical,CA:FALSE"];
        self.request(name, &[&["-CA", &ca, "-CAkey", &ca_key], &ends[..]].concat());
        ["crt", "key"].map(|end| self.path(&format!("{name}.{end}")))
    }
}

/// A client's configuration: the authority that it trusts, and its own certificate and key.
fn trusting(authority: &str, own: Option<&[String; 2]>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let mut config = match own {
        Some([certificate, key]) => {
            let chain = vec![CertificateDer::from_pem_file(certificate).unwrap()];
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap()).unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

/// Opens a TCP connection from the node to the Hubble server.
fn connect(lab: &Lab) -> TcpStream {
    let namespace = Path::new("/run/netns").join(lab.node.name());
    let stream = in_namespace(&namespace, || TcpStream::connect("127.0.0.1:4244").unwrap()).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

fn asynchronous(stream: TcpStream) -> io::Result<tokio::net::TcpStream> {
    stream.set_nonblocking(true)?;
    tokio::net::TcpStream::from_std(stream)
}

fn plain_client(lab: &Lab) -> Client {
    let stream = connect(lab);
    Client::over(async || asynchronous(stream)).unwrap()
}

/// Connects a client and waits for its first answer. Returns the error if the server refuses the client.
fn client(lab: &Lab, config: ClientConfig) -> io::Result<Client> {
    let stream = connect(lab);
    let mut client = Client::over(async || {
        let connector = TlsConnector::from(Arc::new(config));
        connector.connect(ServerName::try_from(SERVER).unwrap(), asynchronous(stream)?).await
    })?;
    // With TLS 1.3 the client learns only after its handshake whether the server accepts its certificate.
    client.one::<ServerStatusResponse>(STATUS, &NoFields {}).map_err(io::Error::other)?;
    Ok(client)
}

/// A lab that is not started, configured for TLS with the certificate `server.crt` in its folder.
fn secured(more: &str) -> Lab {
    let mut lab = Lab::new();
    lab.pod("a", "{app: a}");
    lab.pod("b", "{app: b}");
    let files = format!("certificate: server.crt, key: server.key{more}");
    lab.more_config = format!("hubble: {{listen: '0.0.0.0:4244', tls: {{{files}}}}}\n");
    lab
}

fn follow(client: &mut Client) -> tonic::Streaming<hyper::body::Bytes> {
    client.get_flows(&GetFlowsRequest { follow: true, ..GetFlowsRequest::default() })
}

#[test]
fn over_tls_clients_know_the_node_by_the_name_that_it_tells_and_others_are_refused() {
    require!("ping", "openssl");
    let mut lab = secured("");
    let authority = Authority::new(&lab.path(""), "authority");
    let other = Authority::new(&lab.path(""), "other");
    authority.issue("server");
    lab.start("");
    let mut following = client(&lab, trusting(&authority.certificate(), None)).unwrap();
    let peer: ChangeNotification = following.one(NOTIFY, &NoFields {}).unwrap();
    assert_eq!((&*peer.name, &*peer.address, peer.r#type), ("node-1", "172.18.0.11:4244", 1));
    assert_eq!(peer.tls.unwrap().server_name, SERVER);
    let nodes: GetNodesResponse = following.one(NODES, &NoFields {}).unwrap();
    let tls = nodes.nodes[0].tls.as_ref().unwrap();
    assert_eq!((nodes.nodes.len(), tls.enabled, &*tls.server_name), (1, true, SERVER));
    let mut flows = follow(&mut following);
    lab.pings("a", &lab.get("b").v4.clone());
    assert!(following.next(&mut flows, SOON).unwrap().is_some());
    // A client that trusts another authority.
    let refused = client(&lab, trusting(&other.certificate(), None)).err().unwrap();
    assert!(refused.to_string().contains("UnknownIssuer"), "{refused}");
    // A client that does not support HTTP/2.
    let mut old = trusting(&authority.certificate(), None);
    old.alpn_protocols = vec![b"http/1.1".to_vec()];
    assert!(client(&lab, old).is_err());
    // Clients without TLS.
    let plain = plain_client(&lab).one::<ServerStatusResponse>(STATUS, &NoFields {});
    assert!(plain.is_err(), "{plain:?}");
    let mut stream = connect(&lab);
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    // The server may send an alert, which contains no text, and then closes the connection.
    stream.read_to_end(&mut answer).ok();
    assert!(!answer.starts_with(b"HTTP") && answer.len() < 16, "{answer:?}");
    let told = || lab.count("hubble.listen: refused the client at 127.0.0.1:");
    eventually("a refused client is logged", || told() > 0);
    assert_eq!(told(), 1, "not each of them: {}", lab.log());
    lab.pings("b", &lab.get("a").v4.clone());
    assert!(following.next(&mut flows, SOON).unwrap().is_some(), "others read on");
    lab.stop();
}

/// Changes the end of a certificate's validity to the end of 2020. Its signature is wrong afterwards, which only clients notice.
fn end_in_2020(certificate: &str) {
    let der = format!("{certificate}.der");
    run("openssl", &["x509", "-in", certificate, "-outform", "DER", "-out", &der]);
    let mut bytes = std::fs::read(&der).unwrap();
    // Tag and length of a `UTCTime`. The first is the begin.
    let is_time = |at: usize| bytes[at..].starts_with(&[0x17, 13]) && bytes[at + 14] == b'Z';
    let times: Vec<usize> = (0..bytes.len() - 15).filter(|&at| is_time(at)).collect();
    bytes[times[1] + 2..][..13].copy_from_slice(b"201231235959Z");
    std::fs::write(&der, bytes).unwrap();
    run("openssl", &["x509", "-in", &der, "-inform", "DER", "-out", certificate]);
}

#[test]
fn the_end_of_the_certificate_is_a_metric_and_a_missed_renewal_a_warning() {
    require!("openssl", "curl");
    let mut lab = secured("");
    lab.more_config.push_str("admin: {socket: admin.sock, listen: '127.0.0.1:9965'}\n");
    let authority = Authority::new(&lab.path(""), "authority");
    authority.issue("server");
    lab.start("");
    let end = || {
        let text = metrics(&lab);
        let line =
            text.lines().find_map(|line| line.strip_prefix("bulkhead_hubble_certificate_end_timestamp_seconds "));
        line.map(|end| end.parse::<u64>().unwrap())
    };
    let left = end().unwrap() - UNIX_EPOCH.elapsed().unwrap().as_secs();
    assert!((47 * 3600..=48 * 3600).contains(&left), "it was issued for two days: {left} s");
    assert_eq!(lab.count("a certificate"), 0, "{}", lab.log());
    end_in_2020(&lab.path("server.crt").display().to_string());
    eventually("the new end is seen", || end() == Some(1_609_459_199));
    let told = "server.crt: a certificate has not been valid since 2020-12-31T23:59:59Z";
    eventually("it is logged", || lab.count(told) == 1);
    lab.stop();
}

#[test]
fn with_an_authority_for_clients_only_those_with_a_certificate_of_it_are_served() {
    require!("openssl");
    let mut lab = secured(", client_ca: clients.crt");
    let authority = Authority::new(&lab.path(""), "authority");
    let clients = Authority::new(&lab.path(""), "clients");
    let other = Authority::new(&lab.path(""), "other");
    let server = authority.issue("server");
    let (relay, stranger) = (clients.issue("relay"), other.issue("stranger"));
    lab.start("");
    let served = |own: Option<&[String; 2]>| client(&lab, trusting(&authority.certificate(), own));
    assert!(served(None).is_err());
    eventually("the reason is logged", || lab.count("peer sent no certificates") == 1);
    assert!(served(Some(&stranger)).is_err());
    // The server's certificate is from another authority than the clients'.
    assert!(served(Some(&server)).is_err());
    let mut served = served(Some(&relay)).unwrap();
    let nodes: GetNodesResponse = served.one(NODES, &NoFields {}).unwrap();
    assert_eq!(nodes.nodes[0].name, "node-1");
    lab.stop();
}

/// Replaces files as a kubelet does for a Secret: a symbolic link to the folder of the new version is swapped atomically.
fn mount(lab: &Lab, version: &str, files: &[(&str, &str)]) {
    let folder = lab.path("secret");
    std::fs::create_dir_all(folder.join(version)).unwrap();
    for (name, from) in files {
        std::fs::copy(from, folder.join(version).join(name)).unwrap();
    }
    symlink(version, folder.join("..new")).unwrap();
    std::fs::rename(folder.join("..new"), folder.join("..data")).unwrap();
}

#[test]
fn renewed_certificates_are_used_without_a_restart_and_broken_ones_are_told_and_not_used() {
    require!("ping", "openssl");
    let mut lab = secured("");
    lab.more_config = lab
        .more_config
        .replace("server.", "secret/..data/tls.")
        .replace("tls.key", "tls.key, client_ca: secret/..data/ca.crt");
    let first = Authority::new(&lab.path(""), "first");
    let second = Authority::new(&lab.path(""), "second");
    let [one, two] = [first.issue("one"), second.issue("two")];
    let files = |authority: &Authority, own: &[String; 2]| {
        [("ca.crt", authority.certificate()), ("tls.crt", own[0].clone()), ("tls.key", own[1].clone())]
    };
    let mounted = |version: &str, files: &[(&str, String); 3]| {
        mount(&lab, version, &files.each_ref().map(|(name, from)| (*name, &**from)));
    };
    mounted("1", &files(&first, &one));
    lab.write_config();
    lab.start("");
    let mounted = |version: &str, files: &[(&str, String); 3]| {
        mount(&lab, version, &files.each_ref().map(|(name, from)| (*name, &**from)));
    };
    let old = || client(&lab, trusting(&first.certificate(), Some(&one)));
    let new = || client(&lab, trusting(&second.certificate(), Some(&two)));
    assert!(new().is_err());
    let mut following = old().unwrap();
    let mut flows = follow(&mut following);
    mounted("2", &files(&second, &two));
    eventually("the new certificate is shown", || new().is_ok());
    assert!(old().is_err(), "neither the old authority's clients are served nor do they trust");
    let used = || lab.count("hubble.tls: the files have changed; new connections");
    eventually("the change is logged", || used() == 1);
    // A key that belongs to another certificate.
    let mut broken = files(&second, &two);
    broken[2].1.clone_from(&one[1]);
    mounted("3", &broken);
    let told = || lab.count("hubble.tls: the changed files cannot be used");
    eventually("the broken files are logged", || told() == 1);
    assert_eq!(lab.count("hubble.tls.key: "), 1, "{}", lab.log());
    assert!(new().is_ok(), "those before are used");
    // A missing file.
    mount(&lab, "4", &[("ca.crt", &second.certificate())]);
    eventually("the missing files are logged", || told() == 2);
    assert!(new().is_ok());
    mounted("5", &files(&first, &one));
    eventually("files that are right again are used", || old().is_ok());
    assert_eq!(told(), 2, "each is logged once: {}", lab.log());
    // The connection from before these changes still receives flows.
    lab.pings("a", &lab.get("b").v4.clone());
    assert!(following.next(&mut flows, SOON).unwrap().is_some());
    lab.stop();
}

#[test]
fn a_thousand_connections_that_say_nothing_hold_nobody_back() {
    require!("ping", "openssl");
    // The test process needs a file descriptor for each connection.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    let mut lab = secured(", client_ca: authority.crt");
    let authority = Authority::new(&lab.path(""), "authority");
    authority.issue("server");
    let own = authority.issue("relay");
    lab.start("");
    let relay = || client(&lab, trusting(&authority.certificate(), Some(&own)));
    let mut following = relay().unwrap();
    let mut flows = follow(&mut following);
    // An authenticated client without a call.
    let mut idle = relay().unwrap();
    let silent: Vec<TcpStream> = (0..1_000).map(|_| connect(&lab)).collect();
    // The connections start a TLS handshake and do not continue it.
    for mut stream in &silent {
        stream.write_all(&[22, 3, 1, 0, 200, 1]).ok();
    }
    lab.pings("a", &lab.get("b").v4.clone());
    assert!(following.next(&mut flows, SOON).unwrap().is_some());
    assert!(idle.one::<ServerStatusResponse>(STATUS, &NoFields {}).is_ok());
    assert!(relay().is_ok(), "one that comes now is served");
    let (code, status) = lab.ask(&["status"]);
    assert_eq!(code, Some(0), "{status}");
    // The server closed the oldest connections to make room.
    let mut oldest = &silent[0];
    let end = loop {
        match oldest.read(&mut [0; 64]) {
            Ok(0) => break None,
            Ok(_) => {}
            Err(error) => break Some(error.kind()),
        }
    };
    assert_ne!(end, Some(io::ErrorKind::WouldBlock), "it is still there");
    drop(silent);
    lab.pings("b", &lab.get("a").v4.clone());
    assert!(following.next(&mut flows, SOON).unwrap().is_some());
    lab.stop();
}

#[test]
fn what_is_wrong_with_a_file_of_tls_is_told_with_its_name_and_the_remedy_before_anything_starts() {
    require!("openssl");
    let lab = secured("");
    let authority = Authority::new(&lab.path(""), "authority");
    authority.issue("server");
    authority.issue("other");
    lab.write_state("");
    let path = |name: &str| lab.path(name).display().to_string();
    std::fs::write(lab.path("empty"), "").unwrap();
    std::fs::write(lab.path("half"), "-----BEGIN CERTIFICATE-----\nAAAA\n").unwrap();
    std::fs::write(lab.path("nonsense"), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    let lock = ["pkcs8", "-topk8", "-passout", "pass:x", "-in", &path("server.key"), "-out", &path("locked.key")];
    run("openssl", &lock);
    run("openssl", &["genpkey", "-algorithm", "ed448", "-out", &path("ed448.key")]);
    let check = |tls: &str, more: &[&str]| {
        lab.try_config(
            &format!(
                "node: node-1\nstate: {{paths: [state.yaml]}}\nhubble: {{listen: '0.0.0.0:4244', tls: {{{tls}}}}}\n\
                 ports: []\nsessions: {{folder: sessions}}\nadmin: {{socket: none}}\n"
            ),
            more,
        )
    };
    let certificate = |file: &str| format!("certificate: {file}, key: server.key");
    let key = |file: &str| format!("certificate: server.crt, key: {file}");
    let client_ca = |file: &str| format!("certificate: server.crt, key: server.key, client_ca: {file}");
    let pem = "write PEM certificates, which begin with -----BEGIN CERTIFICATE-----";
    let locked = "write the private key as PEM without a passphrase: it begins with -----BEGIN PRIVATE KEY-----";
    let there = "name an existing file that the user of the vswitch may read";
    for (tls, what, help) in [
        (certificate("none"), "certificate: {none}: cannot be read: No such file or directory (os error 2)", there),
        (certificate("."), "certificate: {}: is not a file", "name a PEM file"),
        (certificate("empty"), "certificate: {empty}: has no certificate", pem),
        (certificate("server.key"), "certificate: {server.key}: has no certificate", pem),
        (certificate("half"), "certificate: {half}: is not PEM: ", pem),
        (
            certificate("nonsense"),
            "certificate: {nonsense}: its first certificate cannot be read: invalid peer certificate: BadEncoding",
            "put the server's own certificate first in the file",
        ),
        (key("none"), "key: {none}: cannot be read: No such file or directory (os error 2)", there),
        (key("server.crt"), "key: {server.crt}: has no private key, or one with a passphrase", locked),
        (key("locked.key"), "key: {locked.key}: has no private key, or one with a passphrase", locked),
        (
            key("ed448.key"),
            "key: {ed448.key}: is not a key that can be used: ",
            "make an ECDSA key (P-256, P-384), an Ed25519 key, or an RSA key of 2048 bits or more",
        ),
        (
            key("other.key"),
            "key: {other.key}: is not the key of {server.crt}",
            "name the key with which the first certificate of that file was requested",
        ),
        (client_ca("none"), "client_ca: {none}: cannot be read: No such file or directory (os error 2)", there),
        (client_ca("server.key"), "client_ca: {server.key}: has no certificate", pem),
        (
            client_ca("nonsense"),
            "client_ca: {nonsense}: certificate 1 cannot be read: invalid peer certificate: BadEncoding",
            "put the self-signed certificates of the CAs into the file",
        ),
    ] {
        let what = what.replace("{}", &path("."));
        let what = match (what.find('{'), what.find('}')) {
            (Some(from), Some(to)) => what.replace(&what[from..=to], &path(&what[from + 1..to])),
            _ => what,
        };
        let what = what.replace("{server.crt}", &path("server.crt"));
        let (code, text) = check(&tls, &["--check"]);
        let expected = [format!("error: hubble.tls.{what}"), format!("  help: {help}\n")];
        let is_told = text.contains(&expected[0]) && text.contains(&expected[1]);
        assert!(code == Some(1) && is_told, "{expected:?} is not in\n{text}");
    }
    let (code, text) = check(&key("other.key"), &[]);
    assert!(code == Some(2) && text.contains("hubble.tls.key: ") && text.contains("nothing was touched"), "{text}");
    // These configurations work but get a warning.
    let mode = |mode: u32| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(lab.path("server.key"), mode).unwrap();
    };
    mode(0o644);
    let (code, text) = check(&client_ca("authority.crt"), &["--check"]);
    let readable =
        format!("warning: hubble.tls.key: {}: every user of this machine may read it (mode 644)", path("server.key"));
    let remedy = format!("  help: chmod o= {}\n", path("server.key"));
    assert!(code == Some(0) && text.contains(&readable) && text.contains(&remedy), "{text}");
    mode(0o640);
    let (code, text) = check(&client_ca("authority.crt"), &["--check"]);
    assert!(code == Some(0) && !text.contains("hubble.tls"), "{text}");
    let (code, text) = check(&key("server.key"), &["--check"]);
    let asked = "warning: hubble.tls: clients at 0.0.0.0:4244 are not authenticated\n  \
                 why: every client that reaches this address can read all flows\n  \
                 help: set client_ca to the CA of the relay's certificate\n";
    assert!(code == Some(0) && text.contains(asked), "{text}");
}

fn node(name: &str, address: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\n\
         status: {{addresses: [{{type: InternalIP, address: {address}}}]}}\n"
    )
}

#[test]
fn a_relay_is_told_of_the_clusters_nodes_as_they_come_and_go() {
    require!();
    let mut lab = Lab::new();
    lab.pod("a", "{app: a}");
    lab.more_config = "hubble: {listen: '0.0.0.0:4244', plaintext: true}\n".to_owned();
    lab.more_state = node("node-2", "172.18.0.12") + &node("node-3", "172.18.0.13");
    lab.start("");
    let mut relay = plain_client(&lab);
    let mut changes = relay.call(NOTIFY, hyper::body::Bytes::new()).unwrap();
    let mut told = |count: usize| {
        let mut next = || ChangeNotification::decode(relay.next(&mut changes, SOON).unwrap().unwrap()).unwrap();
        (0..count).map(|_| next()).map(|change| (change.r#type, change.name, change.address)).collect::<Vec<_>>()
    };
    let change = |kind, name: &str, address: &str| (kind, name.to_owned(), address.to_owned());
    let first = [
        change(1, "node-1", "172.18.0.11:4244"),
        change(1, "node-2", "172.18.0.12:4244"),
        change(1, "node-3", "172.18.0.13:4244"),
    ];
    assert_eq!(told(3), first);
    lab.more_state = node("node-3", "172.18.0.23") + &node("node-4", "172.18.0.14");
    lab.apply("");
    let then = [
        change(2, "node-2", "172.18.0.12:4244"),
        change(3, "node-3", "172.18.0.23:4244"),
        change(1, "node-4", "172.18.0.14:4244"),
    ];
    assert_eq!(told(3), then);
    // A node without addresses is listed but not connected to.
    lab.more_state = node("node-3", "172.18.0.23") + "---\napiVersion: v1\nkind: Node\nmetadata: {name: node-4}\n";
    lab.apply("");
    assert_eq!(told(1), [change(3, "node-4", "")]);
    lab.stop();
}

#[test]
fn at_a_loopback_address_a_node_names_itself_alone() {
    require!();
    let mut lab = watched("hubble: {listen: '127.0.0.1:4244'}\n");
    lab.more_state = node("node-2", "172.18.0.12");
    lab.apply(&crate::lab::watched::only_redis());
    let mut relay = plain_client(&lab);
    let mut changes = relay.call(NOTIFY, hyper::body::Bytes::new()).unwrap();
    let peer = ChangeNotification::decode(relay.next(&mut changes, SOON).unwrap().unwrap()).unwrap();
    assert_eq!((&*peer.name, &*peer.address, peer.tls), ("node-1", "127.0.0.1:4244", None));
    let more = relay.next(&mut changes, Duration::from_millis(300));
    assert_eq!(more.unwrap_err().code(), tonic::Code::DeadlineExceeded);
    lab.stop();
}
