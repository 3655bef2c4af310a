//! Parts that the client's tests share: a temporary folder, and a server with given answers.

mod exec;
mod http;
mod kubeconfig;
mod tls;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

use super::config::Config;
use super::{Access, Client, Error};

/// A temporary folder, removed on drop.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("bulkhead-client-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Writes an executable shell script. Returns its path.
    pub(crate) fn program(&self, name: &str, script: &str) -> PathBuf {
        let path = self.write(name, &format!("#!/bin/sh\n{script}\n"));
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Returns a kubeconfig with one cluster and one user, given as YAML in flow style.
pub(crate) fn kubeconfig(cluster: &str, user: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Config, current-context: it, contexts: [{{name: it, context: {{cluster: c, user: u}}}}], \
         clusters: [{{name: c, cluster: {cluster}}}], users: [{{name: u, user: {user}}}]}}"
    )
}

fn read(path: &Path) -> Result<Config, String> {
    super::read(&Access::Kubeconfig { path: path.to_owned(), context: None })
}

/// Returns a client of a server, authenticated as this user.
fn client(scratch: &Scratch, cluster: &str, user: &str) -> Client {
    let path = scratch.write("kubeconfig", &kubeconfig(cluster, user));
    let config = read(&path).unwrap_or_else(|error| panic!("{error}"));
    Client::new(config, Duration::from_secs(10))
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn text(client: &Client, path: &str) -> Result<String, Error> {
    block_on(client.text(path))
}

/// A server on this machine. It serves until the process ends.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Starts a server that answers each request with the result of `answer`, which gets the request's head.
    pub(crate) fn start(tls: Option<ServerConfig>, answer: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let (own, answer) = (Arc::clone(&heads), Arc::new(answer));
        let (tell, address) = mpsc::channel();
        let serve = async move {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            let acceptor = tls.map(|config| TlsAcceptor::from(Arc::new(config)));
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, heads, answer) = (acceptor.clone(), Arc::clone(&own), Arc::clone(&answer));
                tokio::spawn(async move {
                    match acceptor {
                        None => converse(stream, &heads, &*answer).await,
                        // A client that does not trust the certificate closes the connection.
                        Some(acceptor) => match acceptor.accept(stream).await {
                            Ok(stream) => converse(stream, &heads, &*answer).await,
                            Err(_) => None,
                        },
                    }
                });
            }
        };
        std::thread::spawn(move || block_on(serve));
        Self { address: address.recv().unwrap(), heads }
    }

    /// Returns the heads of the requests received so far.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

/// Answers requests until the client closes the connection.
async fn converse(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    heads: &Mutex<Vec<String>>,
    answer: &(dyn Fn(&str) -> String + Send + Sync),
) -> Option<()> {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.ok()?);
        }
        let head = String::from_utf8(head).unwrap();
        let answer = answer(&head);
        heads.lock().unwrap().push(head);
        stream.write_all(answer.as_bytes()).await.ok()?;
        stream.flush().await.ok()?;
    }
}

/// Returns an HTTP answer with this status and body, and its `Content-Length`.
pub(crate) fn answer(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}
