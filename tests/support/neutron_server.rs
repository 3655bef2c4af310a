//! An HTTP server around the tests' Neutron model, with faults at chosen requests.
#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses a part of this; tests may panic")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::double::Neutron;

/// The only token that the server accepts.
pub(crate) const TOKEN: &str = "a-secret-that-nobody-may-print";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection closes and the request has no effect.
    LostBefore,
    /// The request takes effect, but the connection closes without an answer.
    LostAfter,
    /// The request has no effect. The answer has this status, error type and message.
    Answers(u16, &'static str, &'static str),
    /// The request takes effect, but the answer has this error status.
    DoneBut(u16),
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) neutron: Neutron,
    /// Faults by the number of the changing request, counted from 0 since the last [`State::plan`].
    pub(crate) faults: Vec<(usize, Fault)>,
    changes: usize,
}

impl State {
    /// Plans faults at the next changing requests, counted from 0.
    pub(crate) fn plan(&mut self, faults: &[(usize, Fault)]) {
        (self.faults, self.changes) = (faults.to_vec(), 0);
    }
}

/// The fake Neutron server. It runs until the test process ends.
#[derive(Clone)]
pub(crate) struct Server {
    state: Arc<Mutex<State>>,
    pub(crate) url: String,
}

impl Server {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = Self { state: Arc::default(), url };
        let of_thread = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = of_thread.clone();
                thread::spawn(move || while server.answer(&stream).is_some() {});
            }
        });
        server
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers one request. `None` if the connection must close.
    fn answer(&self, stream: &TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|&read| read > 0)?;
        let (method, target) = line.split_once(' ').map(|(method, rest)| (method.to_owned(), rest.to_owned()))?;
        let target = target.split(' ').next()?.to_owned();
        let (mut length, mut token) = (0, String::new());
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).ok()?;
            let Some((name, value)) = header.trim_end().split_once(':') else { break };
            match &*name.to_ascii_lowercase() {
                "content-length" => length = value.trim().parse().unwrap(),
                "x-auth-token" => token = value.trim().to_owned(),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let (status, value) = self.judge(&method, &target, &token, std::str::from_utf8(&body).unwrap())?;
        let text = if value.is_null() { String::new() } else { value.to_string() };
        let more = if status == 429 { "Retry-After: 0\r\n" } else { "" };
        let head = format!(
            "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{more}Content-Length: {}\r\n\r\n",
            text.len()
        );
        let mut stream = stream;
        stream.write_all(format!("{head}{text}").as_bytes()).ok()
    }

    fn judge(&self, method: &str, target: &str, token: &str, body: &str) -> Option<(u16, serde_json::Value)> {
        let refused = |status: u16, kind: &str, message: &str| {
            (status, serde_json::json!({"NeutronError": {"type": kind, "message": message, "detail": ""}}))
        };
        if token != TOKEN {
            return Some(refused(401, "", "The request you have made requires authentication."));
        }
        let mut state = self.state();
        let mut fault = None;
        if method != "GET" {
            let at = state.changes;
            state.changes += 1;
            fault = state.faults.iter().find(|(of, _)| *of == at).map(|(_, fault)| fault.clone());
        }
        match fault {
            None => Some(state.neutron.handle(method, target, body)),
            Some(Fault::LostBefore) => None,
            Some(Fault::LostAfter) => {
                state.neutron.handle(method, target, body);
                None
            }
            Some(Fault::Answers(status, kind, message)) => Some(refused(status, kind, message)),
            Some(Fault::DoneBut(status)) => {
                state.neutron.handle(method, target, body);
                Some(refused(status, "", "<html>"))
            }
        }
    }
}
