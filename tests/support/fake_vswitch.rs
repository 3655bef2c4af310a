//! A fake vswitch that answers at an admin socket and records the requests.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test file uses a part of this; tests may panic"
)]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

/// A fake vswitch. Dropping it removes its socket.
pub struct FakeVswitch {
    socket: PathBuf,
    asked: Arc<Mutex<Vec<Value>>>,
}

impl FakeVswitch {
    /// Serves each request with `answer`, which returns `{"answer": ..}`, `{"failure": ..}`, or null to close the connection.
    pub fn start(socket: &Path, answer: impl Fn(&Value) -> Value + Send + Sync + 'static) -> Self {
        let listener = UnixListener::bind(socket).unwrap();
        let (asked, answer) = (Arc::<Mutex<Vec<Value>>>::default(), Arc::new(answer));
        let seen = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, seen, answer) = (stream.unwrap(), Arc::clone(&seen), Arc::clone(&answer));
                std::thread::spawn(move || converse(&stream, &seen, &*answer));
            }
        });
        Self { socket: socket.to_owned(), asked }
    }

    /// Starts a fake that reports every port as open.
    pub fn content(socket: &Path) -> Self {
        Self::start(socket, |request| json!({"answer": content(request)}))
    }

    /// Takes the requests recorded since the last call.
    pub fn asked(&self) -> Vec<Value> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

impl Drop for FakeVswitch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Returns the answer of a healthy vswitch to a request.
pub fn content(request: &Value) -> Value {
    match request["request"].as_str().unwrap_or_default() {
        "add_port" => json!({"port": "p", "interface": "i", "state": "open", "generation": 1, "waited_ms": 0}),
        "check_port" => json!({"port": "p", "interface": "i", "state": "open", "why": null, "addresses": []}),
        "retain_ports" => json!({"removed": []}),
        "status" => json!({"node": "node-1", "ready": true, "denying": false}),
        _ => json!({"removed": true}),
    }
}

fn converse(stream: &UnixStream, seen: &Mutex<Vec<Value>>, answer: &(impl Fn(&Value) -> Value + ?Sized)) {
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else { return };
        let request: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(request["version"], 1);
        seen.lock().unwrap().push(request.clone());
        let mut answer = answer(&request);
        if answer.is_null() {
            // Closes the connection without an answer.
            return;
        }
        answer["version"] = 1.into();
        let mut stream = stream;
        if writeln!(stream, "{answer}").is_err() {
            return;
        }
    }
}
