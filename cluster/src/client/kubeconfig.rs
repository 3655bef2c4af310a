//! Kubeconfig files, as `kubectl` reads them. Source: Kubernetes, "kubeconfig (v1)".
//!
//! The structures contain secrets and so have no `Debug`.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio_rustls::rustls::pki_types::ServerName;

use super::config::{Config, server};
use super::credential::{Authorization, Credential, TokenFile, bearer, sensitive};
use super::exec::Plugin;
use super::tls::{self, Identity, Roots};
use super::unusable::{Unusable, contents};

/// The cluster extension that is passed to exec plugins.
const PLUGIN_EXTENSION: &str = "client.authentication.k8s.io/exec";

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Document {
    current_context: Option<String>,
    contexts: Option<Vec<NamedContext>>,
    clusters: Option<Vec<NamedCluster>>,
    users: Option<Vec<NamedUser>>,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Option<Context>,
}

#[derive(Deserialize)]
struct Context {
    cluster: Option<String>,
    user: Option<String>,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Option<Cluster>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: Option<String>,
    certificate_authority: Option<String>,
    certificate_authority_data: Option<String>,
    insecure_skip_tls_verify: Option<bool>,
    tls_server_name: Option<String>,
    proxy_url: Option<String>,
    disable_compression: Option<bool>,
    extensions: Option<Vec<Extension>>,
}

#[derive(Deserialize)]
struct Extension {
    name: String,
    extension: Option<Value>,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    user: Option<User>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    username: Option<String>,
    password: Option<String>,
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<String>,
    client_certificate: Option<String>,
    client_certificate_data: Option<String>,
    client_key: Option<String>,
    client_key_data: Option<String>,
    r#as: Option<String>,
    as_uid: Option<String>,
    as_groups: Option<Vec<String>>,
    as_user_extra: Option<BTreeMap<String, Vec<String>>>,
    auth_provider: Option<Value>,
    exec: Option<Plugin>,
}

/// Reads a kubeconfig. Relative paths in it start at its folder. `context` is `None` for `current-context`.
pub(super) fn read(path: &Path, context: Option<&str>) -> Result<Config, Unusable> {
    let text = String::from_utf8(contents(path)?).map_err(|_| Unusable::new("it is not UTF-8 text"))?;
    let documents: Vec<Document> = serde_saphyr::from_multiple(text.trim_start_matches('\u{feff}'))
        // The error must not quote the file, which contains secrets.
        .map_err(|error| Unusable::new(format!("it is not a kubeconfig: {}", error.without_snippet())))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let wanted = documents.iter().find_map(|document| given(document.current_context.as_ref()));
    let name = context.or(wanted).ok_or_else(|| {
        let help = "set state.kubernetes.context, or run `kubectl config use-context`";
        Unusable::with_help("it has no current-context", help)
    })?;
    let contexts = || documents.iter().flat_map(|document| document.contexts.iter().flatten());
    let context = contexts().find(|named| named.name == name).and_then(|named| named.context.as_ref());
    let context = context.ok_or_else(|| {
        let names: Vec<&str> = contexts().map(|named| &*named.name).collect();
        Unusable::with_help(format!("it has no context {name}"), format!("name one of these: {}", names.join(", ")))
    })?;
    let clusters = documents.iter().flat_map(|document| document.clusters.iter().flatten());
    let asker = given(context.user.as_ref()).unwrap_or_default();
    let wanted = given(context.cluster.as_ref()).unwrap_or_default();
    let mut clusters = clusters.filter(|named| named.name == wanted);
    let cluster = clusters.next().and_then(|named| named.cluster.as_ref()).ok_or_else(|| {
        let help = "set the context's cluster to one of `clusters`";
        Unusable::with_help(format!("context {name} names the cluster {wanted}, which does not exist"), help)
    })?;
    // As in `kubectl`, a context without a user, or with an unlisted one, has no credentials.
    let users = documents.iter().flat_map(|document| document.users.iter().flatten());
    let none = User::default();
    let user = users.filter(|named| named.name == asker).find_map(|named| named.user.as_ref()).unwrap_or(&none);
    let Target { server, server_name, roots } =
        cluster.target(folder).map_err(|error| error.of(&format!("cluster {wanted}")))?;
    let of_user = |error: Unusable| error.of(&format!("user {asker}"));
    let Credential { authorization, identity, end } = user.credential(cluster, folder).map_err(of_user)?;
    let impersonation = user.impersonation().map_err(of_user)?;
    let tls = tls::config(roots, identity).map_err(of_user)?;
    Ok(Config { server, server_name, tls, authorization, impersonation, end })
}

/// The part of the configuration that does not depend on the user.
struct Target {
    server: String,
    server_name: Option<ServerName<'static>>,
    roots: Roots,
}

/// Returns the text. `None` if it is missing or empty.
fn given(text: Option<&String>) -> Option<&str> {
    text.map(String::as_str).filter(|text| !text.is_empty())
}

/// Decodes `NAME-data` (base64), or reads the file that `NAME` names. `None` if neither is set.
fn data(name: &str, data: Option<&String>, file: Option<&String>, folder: &Path) -> Result<Option<Vec<u8>>, Unusable> {
    if let Some(data) = given(data) {
        let text: String = data.split_ascii_whitespace().collect();
        let help = format!("write the file in base64 (base64 -w0 FILE), or name the file in {name}");
        let wrong = |_| Unusable::with_help(format!("{name}-data: it is not base64"), help);
        return STANDARD.decode(text).map_err(wrong).map(Some);
    }
    let read = |file: &str| contents(&folder.join(file)).map_err(|error| error.of(name));
    given(file).map(read).transpose()
}

impl Cluster {
    fn target(&self, folder: &Path) -> Result<Target, Unusable> {
        if let Some(proxy) = given(self.proxy_url.as_ref()) {
            let help =
                "remove proxy-url if the server can be reached directly, or set `server` to one that forwards to it";
            return Err(Unusable::with_help(format!("proxy-url: {proxy}: proxies are not supported"), help));
        }
        let url = given(self.server.as_ref()).ok_or_else(|| {
            Unusable::with_help("it has no server", "write a URL such as `server: https://192.0.2.1:6443`")
        })?;
        let name = given(self.tls_server_name.as_ref());
        let named = |name: &str| {
            ServerName::try_from(name.to_owned()).map_err(|_| {
                let help = "write a DNS name or an address that the server's certificate contains";
                Unusable::with_help(format!("tls-server-name: {name:?} is not a valid name"), help)
            })
        };
        let server_name = name.map(named).transpose()?;
        let roots = match self.authorities(folder)? {
            _ if self.insecure_skip_tls_verify == Some(true) => Roots::Unchecked,
            None => Roots::System,
            Some(text) => Roots::from_pem(&text).map_err(|error| error.of("certificate-authority"))?,
        };
        Ok(Target { server: server(url).map_err(|error| error.of("server"))?, server_name, roots })
    }

    fn authorities(&self, folder: &Path) -> Result<Option<Vec<u8>>, Unusable> {
        let (text, file) = (self.certificate_authority_data.as_ref(), self.certificate_authority.as_ref());
        data("certificate-authority", text, file, folder)
    }

    /// Returns the cluster description for exec plugins. Source: Kubernetes, `ExecCredential`, "Cluster".
    fn told(&self, folder: &Path) -> Result<Value, Unusable> {
        let mut told = Map::new();
        let mut tell = |name: &str, value: Option<Value>| {
            value.into_iter().for_each(|value| drop(told.insert(name.to_owned(), value)));
        };
        let extension = self.extensions.iter().flatten().find(|extension| extension.name == PLUGIN_EXTENSION);
        tell("server", self.server.clone().map(Value::from));
        tell("tls-server-name", self.tls_server_name.clone().map(Value::from));
        tell("insecure-skip-tls-verify", self.insecure_skip_tls_verify.map(Value::from));
        tell("certificate-authority-data", self.authorities(folder)?.map(|text| STANDARD.encode(text).into()));
        tell("disable-compression", self.disable_compression.map(Value::from));
        tell("config", extension.and_then(|extension| extension.extension.clone()));
        Ok(told.into())
    }
}

impl User {
    /// Returns the user's credential. Runs the exec plugin if the user has one.
    fn credential(&self, cluster: &Cluster, folder: &Path) -> Result<Credential, Unusable> {
        if let Some(provider) = &self.auth_provider {
            let name = provider.get("name").and_then(Value::as_str).unwrap_or_default();
            let help = "Kubernetes 1.26 has removed auth-provider: rewrite the user with the provider's own program, which uses `exec` \
                        (kubelogin, gke-gcloud-auth-plugin, aws eks update-kubeconfig)";
            return Err(Unusable::with_help(format!("auth-provider: {name} is not supported"), help));
        }
        let identity = self.identity(folder)?;
        let authorization = if let (Some(name), Some(password)) = (&self.username, &self.password) {
            let text = format!("Basic {}", STANDARD.encode(format!("{name}:{password}")));
            Authorization::Fixed(sensitive(&text).expect("headers may have the letters of base64"))
        } else if let Some(token) = given(self.token.as_ref()) {
            Authorization::Fixed(bearer(token).map_err(|error| error.of("token"))?)
        } else if let Some(file) = given(self.token_file.as_ref()) {
            Authorization::File(TokenFile::read(folder.join(file)).map_err(|error| error.of("tokenFile"))?)
        } else if let Some(plugin) = &self.exec {
            let told = plugin.wants_cluster().then(|| cluster.told(folder)).transpose()?;
            let said = plugin.run(folder, told).map_err(|error| error.of("exec"))?;
            return Ok(Credential { identity: said.identity.or(identity), ..said });
        } else {
            Authorization::None
        };
        Ok(Credential { authorization, identity, end: None })
    }

    fn identity(&self, folder: &Path) -> Result<Option<Identity>, Unusable> {
        let (text, file) = (self.client_certificate_data.as_ref(), self.client_certificate.as_ref());
        let certificate = data("client-certificate", text, file, folder)?;
        let (text, file) = (self.client_key_data.as_ref(), self.client_key.as_ref());
        let key = data("client-key", text, file, folder)?;
        match (certificate, key) {
            (None, None) => Ok(None),
            (Some(certificate), Some(key)) => {
                let chain = Identity::chain(&certificate).map_err(|error| error.of("client-certificate"))?;
                let key = Identity::key(&key).map_err(|error| error.of("client-key"))?;
                Ok(Some(Identity::new(chain, key)))
            }
            (Some(_), None) => {
                Err(Unusable::with_help("client-certificate: it has no key", "write client-key or client-key-data"))
            }
            (None, Some(_)) => {
                let help = "write client-certificate or client-certificate-data";
                Err(Unusable::with_help("client-key: it has no certificate", help))
            }
        }
    }

    /// Returns the impersonation headers. Source: Kubernetes, "User impersonation".
    fn impersonation(&self) -> Result<HeaderMap, Unusable> {
        let mut headers = HeaderMap::new();
        let mut add = |field: &str, name: &str, text: &str| {
            let wrong =
                || Unusable::new(format!("{field}: {text:?} contains characters that HTTP headers cannot have"));
            let name: HeaderName = name.parse().map_err(|_| wrong())?;
            headers.append(name, HeaderValue::from_str(text).map_err(|_| wrong())?);
            Ok::<(), Unusable>(())
        };
        given(self.r#as.as_ref()).map_or(Ok(()), |name| add("as", "impersonate-user", name))?;
        given(self.as_uid.as_ref()).map_or(Ok(()), |uid| add("as-uid", "impersonate-uid", uid))?;
        for group in self.as_groups.iter().flatten() {
            add("as-groups", "impersonate-group", group)?;
        }
        for (key, values) in self.as_user_extra.iter().flatten() {
            let name: String = key.bytes().map(escaped).collect();
            for value in values {
                add("as-user-extra", &format!("impersonate-extra-{name}"), value)?;
            }
        }
        Ok(headers)
    }
}

/// Percent-encodes a byte that header names cannot have, and `%` itself.
fn escaped(byte: u8) -> String {
    if byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte) {
        char::from(byte).to_string()
    } else {
        format!("%{byte:02X}")
    }
}
