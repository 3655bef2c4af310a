//! Builds hellos by hand, and with a real client.

use std::path::Path;
use std::sync::Arc;

use bulkhead_hello::Reading;
use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::kx_group::SECP384R1;
use rustls::crypto::ring::sign::any_eddsa_type;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

/// Types of extensions.
pub(crate) const SERVER_NAME: u16 = 0;
pub(crate) const KEY_SHARE: u16 = 51;
pub(crate) const ECH: u16 = 0xfe0d;

/// Returns bytes after their length, which has `size` bytes.
pub(crate) fn vector(size: usize, bytes: &[u8]) -> Vec<u8> {
    [&bytes.len().to_be_bytes()[8 - size..], bytes].concat()
}

/// Returns the data of `server_name` with host names.
pub(crate) fn names(names: &[&[u8]]) -> Vec<u8> {
    vector(2, &names.iter().flat_map(|name| [vec![0], vector(2, name)].concat()).collect::<Vec<u8>>())
}

/// Returns a ClientHello with extensions, as a handshake message.
pub(crate) fn hello(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let list = extensions.iter().flat_map(|(kind, data)| [kind.to_be_bytes().to_vec(), vector(2, data)].concat());
    message(&[&start()[..], &vector(2, &list.collect::<Vec<u8>>())].concat())
}

/// Returns a ClientHello with a name.
pub(crate) fn named(name: &str) -> Vec<u8> {
    hello(&[(KEY_SHARE, vec![9; 40]), (SERVER_NAME, names(&[name.as_bytes()])), (16, vec![0; 5])])
}

/// Returns where to cut two hellos that differ only in their names: around the difference, and elsewhere.
pub(crate) fn cuts([one, other]: &[Vec<u8>; 2]) -> [usize; 5] {
    assert_eq!(one.len(), other.len());
    let differs = |at: &usize| one[*at] != other[*at];
    let (first, last) = ((0..one.len()).find(differs).unwrap(), (0..one.len()).rfind(differs).unwrap());
    [0, 60, first, last + 1, one.len()]
}

/// Returns the header of a ClientHello and its body.
pub(crate) fn message(body: &[u8]) -> Vec<u8> {
    [&[1][..], &vector(3, body)].concat()
}

/// Returns a ClientHello's fields before its extensions.
pub(crate) fn start() -> Vec<u8> {
    [&[3, 3][..], &[7; 32], &vector(1, &[5; 32]), &vector(2, &[0x13, 1, 0x13, 2]), &vector(1, &[0])].concat()
}

/// Divides a handshake message into records of `size` bytes.
pub(crate) fn records(message: &[u8], size: usize) -> Vec<u8> {
    message.chunks(size).flat_map(|part| [&[22, 3, 1][..], &vector(2, part)].concat()).collect()
}

pub(crate) fn name(name: &str) -> Reading {
    Reading::Name { name: name.into(), has_ech: false }
}

/// Returns the configuration of a real client, whose records have at most `record` bytes.
pub(crate) fn client(record: Option<usize>) -> Arc<ClientConfig> {
    let mut config = ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    config.max_fragment_size = record;
    config.into()
}

/// Returns a real client's connection over TCP.
pub(crate) fn connection(record: Option<usize>, name: &str) -> ClientConnection {
    ClientConnection::new(client(record), name.to_owned().try_into().unwrap()).unwrap()
}

/// Returns the first bytes that a real client sends over TCP.
pub(crate) fn client_bytes(record: Option<usize>, name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    connection(record, name).write_tls(&mut bytes).unwrap();
    bytes
}

/// Returns a real server that wants another key share than the one clients send.
pub(crate) fn retrying_server() -> ServerConnection {
    let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    let key = any_eddsa_type(&PrivatePkcs8KeyDer::from(key.as_ref())).unwrap();
    // The server does not read its own certificate.
    let certified = CertifiedKey::new(vec![CertificateDer::from(vec![0])], key);
    let provider = CryptoProvider { kx_groups: vec![SECP384R1], ..rustls::crypto::ring::default_provider() };
    let config = ServerConfig::builder_with_provider(provider.into())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    ServerConnection::new(config.into()).unwrap()
}

/// Returns the HelloRetryRequest of a real server.
pub(crate) fn retry() -> Vec<u8> {
    let (mut server, mut bytes) = (retrying_server(), Vec::new());
    server.read_tls(&mut &client_bytes(None, "a.b")[..]).unwrap();
    server.process_new_packets().unwrap();
    server.write_tls(&mut bytes).unwrap();
    bytes
}

/// Returns what a client sent when `hellos/record.py` ran: the first bytes over TCP, or each datagram.
pub(crate) fn recorded(client: &str) -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hellos").join(client).with_added_extension("hex");
    std::fs::read_to_string(path).unwrap().lines().map(unhex).collect()
}

/// Returns the bytes of a text of hexadecimal digits.
pub(crate) fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}
