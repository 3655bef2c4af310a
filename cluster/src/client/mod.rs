//! # A client of an API server: whole answers, lines of watches, and the ways to say which server and who asks
//!
//! **Purpose.** GET requests to an API server, by the service account of a pod or by a kubeconfig.
//!
//! **Not its purpose.** It knows no object and no kind, and writes nothing to the server.
//!
//! ```text
//!  service account --config--------.
//!                                  +--> Config --tls, http--> Client --text, lines--> kubernetes::connection
//!  file --kubeconfig--> user ------'
//!                        '- exec plugin --exec--> token or certificate
//! ```
//! **Invariant.** What says who asks goes to the server of the configuration and to nobody else. No error and no `Debug` has a token, a
//! password or a key in it. What a configuration asks for and is not done here is an error that names file, user or cluster, and remedy.
//!
//! **Choices.** `kube` lost: it brings 31 crates and a seventh of the build's time (the types of all of Kubernetes, JSONPath, regular
//! expressions, a stack of middleware) for the three calls of it that were used. What these files do in its place is to read configurations.
//! Secure connections and HTTP stay with libraries that are here for others as well: rustls, hyper, and hyper-util's pool, through which
//! the pages of a list come over one connection.
//!
//! `auth-provider` is refused: Kubernetes 1.26 has removed it for exec plugins. So is `proxy-url`, and the variables `HTTPS_PROXY` and
//! `NO_PROXY` are ignored: the client connects directly. It reads one file, not a list of files as in `KUBECONFIG`.

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
