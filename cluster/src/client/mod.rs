//! # A client of a Kubernetes API server
//!
//! **Purpose.** Sends GET requests to an API server and returns whole answers, or the lines of a watch. Server and credentials come from a
//! pod's service account or a kubeconfig.
//!
//! **Not its purpose.** It knows no object and no kind, and writes nothing to the server.
//!
//! ```text
//!  service account --config--------.
//!                                  +--> Config --tls, http--> Client --text, lines--> kubernetes::connection
//!  file --kubeconfig--> user ------'
//!                        '- exec plugin --exec--> token or certificate
//! ```
//! **Invariant.** Credentials are sent only to the configured server. No error and no `Debug` output contains a token, a password or a key.
//! A configuration that asks for an unsupported feature is an error that names the file, user or cluster, and the remedy.
//!
//! **Choices.** The `kube` crate lost: it adds 31 crates and a seventh of the build time (all Kubernetes types, JSONPath, regular
//! expressions, a middleware stack) for three calls. These files replace its configuration reader. TLS and HTTP come from libraries that
//! other crates use too: rustls, hyper, and hyper-util's connection pool, through which all pages of a list share one connection.
//!
//! `auth-provider` is refused: Kubernetes 1.26 has replaced it by exec plugins. `proxy-url` is refused, and `HTTPS_PROXY` and `NO_PROXY`
//! are ignored: the client connects directly. It reads one kubeconfig file, not a list as in `KUBECONFIG`.

mod access;
mod config;
mod credential;
mod exec;
mod http;
mod kubeconfig;
mod tls;
mod unusable;

pub use access::Access;
pub(crate) use access::read;
pub(crate) use http::{Client, Error, Lines};

#[cfg(test)]
pub(crate) mod tests;
