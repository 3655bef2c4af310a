use std::path::PathBuf;
use std::process::Command;

use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;

use super::*;

/// A certificate authority with its files in a folder: `NAME.crt`, `NAME.key`.
pub(super) struct Authority<'a> {
    scratch: &'a Scratch,
    name: &'static str,
}

impl<'a> Authority<'a> {
    /// Creates an authority. `None`, with a printed reason, if `openssl` is not installed.
    pub(super) fn new(scratch: &'a Scratch, name: &'static str) -> Option<Self> {
        let authority = Self { scratch, name };
        if Command::new("openssl").arg("version").output().is_err() {
            assert!(std::env::var_os("BULKHEAD_E2E").is_none_or(|how| how != "require"), "openssl is missing");
            println!("skipped: openssl is missing");
            return None;
        }
        authority.request(name, &[]);
        Some(authority)
    }

    pub(super) fn certificate(&self) -> PathBuf {
        self.scratch.path(&format!("{}.crt", self.name))
    }

    fn request(&self, name: &str, more: &[&str]) {
        let [key, certificate] = ["key", "crt"].map(|end| self.scratch.path(&format!("{name}.{end}")));
        let mut command = Command::new("openssl");
        command.args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ]);
        command.arg("-subj").arg(format!("/CN={name}")).arg("-keyout").arg(key).arg("-out").arg(certificate).args(more);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn issue(&self, name: &str, subject: &str) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
        let [ca, ca_key] = ["crt", "key"].map(|end| self.scratch.path(&format!("{}.{end}", self.name)));
        let (ca, ca_key) = (ca.to_str().unwrap(), ca_key.to_str().unwrap());
        let subject = format!("subjectAltName={subject}");
        let ends = ["-addext", &subject, "-addext", "extendedKeyUsage=serverAuth,clientAuth"];
        let more = ["-CA", ca, "-CAkey", ca_key, "-addext", "basicConstraints=critical,CA:FALSE"];
        self.request(name, &[&more[..], &ends].concat());
        let [certificate, key] = ["crt", "key"].map(|end| self.scratch.path(&format!("{name}.{end}")));
        (CertificateDer::from_pem_file(certificate).unwrap(), PrivateKeyDer::from_pem_file(key).unwrap())
    }

    /// Starts a server with a certificate for this name. `clients` is the authority of accepted clients. `None` accepts all clients.
    fn server(&self, subject: &str, clients: Option<&Self>) -> Server {
        let (certificate, key) = self.issue("server", subject);
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(clients) => {
                let mut roots = RootCertStore::empty();
                roots.add(CertificateDer::from_pem_file(clients.certificate()).unwrap()).unwrap();
                let provider = Arc::new(ring::default_provider());
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                builder.with_client_cert_verifier(verifier.unwrap())
            }
        };
        let config = builder.with_single_cert(vec![certificate], key).unwrap();
        Server::start(Some(config), |_| answer("200 OK", "secure"))
    }
}

fn of(server: &Server, more: &str) -> String {
    format!("{{server: 'https://{}', {more}}}", server.address)
}

fn lost(client: &Client) -> String {
    match text(client, "/") {
        Err(Error::Lost(told)) => told,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_server_is_known_by_its_authority_and_by_its_address_or_the_name_that_is_given() {
    let scratch = Scratch::new();
    let Some(authority) = Authority::new(&scratch, "authority") else { return };
    Authority::new(&scratch, "other").unwrap();
    let server = authority.server("IP:127.0.0.1", None);
    let trusting = "certificate-authority: authority.crt";
    assert_eq!(text(&client(&scratch, &of(&server, trusting), "{}"), "/").unwrap(), "secure");
    let other = lost(&client(&scratch, &of(&server, "certificate-authority: other.crt"), "{}"));
    assert!(other.starts_with(&format!("https://{}: ", server.address)) && other.contains("UnknownIssuer"), "{other}");
    let system = lost(&client(&scratch, &of(&server, "disable-compression: true"), "{}"));
    assert!(system.contains("UnknownIssuer"), "{system}");
    // A server whose certificate has another name. `tls-server-name` makes the client expect that name.
    let named = authority.server("DNS:api.example", None);
    assert!(lost(&client(&scratch, &of(&named, trusting), "{}")).contains("not valid for name"), "by its address");
    let expected = format!("{trusting}, tls-server-name: api.example");
    assert_eq!(text(&client(&scratch, &of(&named, &expected), "{}"), "/").unwrap(), "secure");
}

#[test]
fn a_server_is_not_checked_where_the_file_says_so() {
    let scratch = Scratch::new();
    let Some(authority) = Authority::new(&scratch, "authority") else { return };
    Authority::new(&scratch, "other").unwrap();
    let server = authority.server("DNS:api.example", None);
    for more in ["insecure-skip-tls-verify: true", "insecure-skip-tls-verify: true, certificate-authority: other.crt"] {
        assert_eq!(text(&client(&scratch, &of(&server, more), "{}"), "/").unwrap(), "secure", "{more}");
    }
    let checked = of(&server, "insecure-skip-tls-verify: false, certificate-authority: other.crt");
    assert!(lost(&client(&scratch, &checked, "{}")).contains("UnknownIssuer"));
}

#[test]
fn a_client_shows_the_certificate_of_its_file_or_of_its_plugin() {
    let scratch = Scratch::new();
    let Some(authority) = Authority::new(&scratch, "authority") else { return };
    let clients = Authority::new(&scratch, "clients").unwrap();
    clients.issue("jane", "DNS:jane");
    let server = authority.server("IP:127.0.0.1", Some(&clients));
    let cluster = of(&server, "certificate-authority: authority.crt");
    lost(&client(&scratch, &cluster, "{}"));
    let files = "{client-certificate: jane.crt, client-key: jane.key}";
    assert_eq!(text(&client(&scratch, &cluster, files), "/").unwrap(), "secure");
    let read = |name: &str| std::fs::read_to_string(scratch.path(name)).unwrap();
    let status = serde_json::json!({"clientCertificateData": read("jane.crt"), "clientKeyData": read("jane.key")});
    scratch.write("answer", &serde_json::json!({ "status": status }).to_string());
    let plugin = format!(
        "{{exec: {{apiVersion: client.authentication.k8s.io/v1, command: cat, args: ['{}']}}}}",
        scratch.path("answer").display()
    );
    assert_eq!(text(&client(&scratch, &cluster, &plugin), "/").unwrap(), "secure");
    // A key that belongs to another certificate.
    let wrong =
        scratch.write("wrong", &kubeconfig(&cluster, "{client-certificate: jane.crt, client-key: authority.key}"));
    let told = super::read(&wrong).err().unwrap();
    assert!(told.contains("user u: the client's certificate and key cannot be used"), "{told}");
}
