use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

fn plain(scratch: &Scratch, server: &Server, user: &str) -> Client {
    client(scratch, &format!("{{server: 'http://{}/prefix/'}}", server.address), user)
}

#[test]
fn a_request_says_who_asks_and_for_whom_below_the_servers_path() {
    let scratch = Scratch::new();
    let server = Server::start(None, |_| answer("200 OK", "{}"));
    let user = "{token: 't', as: jane, as-uid: '7', as-groups: [a, b], as-user-extra: {'example.org/x y': [z]}}";
    let client = plain(&scratch, &server, user);
    assert_eq!(text(&client, "/api/v1/pods?limit=1").unwrap(), "{}");
    let head = server.heads()[0].to_lowercase();
    let has = |line: &str| head.lines().any(|has| has == line);
    assert!(head.starts_with("get /prefix/api/v1/pods?limit=1 http/1.1\r\n"), "{head}");
    for line in [
        "accept: application/json",
        "accept-encoding: identity",
        "authorization: bearer t",
        "impersonate-user: jane",
        "impersonate-uid: 7",
        "impersonate-group: a",
        "impersonate-group: b",
        "impersonate-extra-example.org%2fx%20y: z",
    ] {
        assert!(has(line), "{line}: {head}");
    }
    assert!(has(&format!("host: {}", server.address)), "{head}");
}

#[test]
fn a_name_and_a_password_are_basic_authorization_and_come_before_a_token() {
    let scratch = Scratch::new();
    let server = Server::start(None, |_| answer("200 OK", ""));
    let client = plain(&scratch, &server, "{username: u, password: p, token: t}");
    text(&client, "/").unwrap();
    assert!(server.heads()[0].contains("authorization: Basic dTpw\r\n"), "{:?}", server.heads());
}

#[test]
fn what_is_no_success_is_an_error_with_code_and_message_and_nothing_is_followed() {
    let scratch = Scratch::new();
    let long = "x".repeat(1 << 20);
    for (status, body, code, message) in [
        ("403 X", r#"{"kind":"Status","message":"pods is forbidden","code":403}"#, 403, "pods is forbidden"),
        ("500 X", "<html>nothing to see</html>\n", 500, "<html>nothing to see</html>"),
        ("502 X", "\u{1b}[2J", 502, "\\u{1b}[2J"),
        ("302 X\r\nLocation: http://192.0.2.1/", "", 302, ""),
        ("500 X", &long, 500, ""),
    ] {
        let (status, body) = (status.to_owned(), body.to_owned());
        let server = Server::start(None, move |_| answer(&status, &body));
        let client = plain(&scratch, &server, "{}");
        let Err(Error::Status { code: found, message: said }) = text(&client, "/") else { panic!("{code}") };
        assert_eq!((found, &*said), (code, message));
    }
}

#[test]
fn a_busy_server_is_asked_again_a_few_times() {
    let scratch = Scratch::new();
    for (busy, requests, succeeds) in [(2, 3, true), (9, 4, false)] {
        let count = AtomicUsize::new(0);
        let server = Server::start(None, move |_| match count.fetch_add(1, Ordering::Relaxed) {
            at if at >= busy => answer("200 OK", "{}"),
            at if at % 2 == 0 => answer("429 X\r\nRetry-After: 0", "busy"),
            _ => answer("503 X", "starting"),
        });
        let client = plain(&scratch, &server, "{}");
        assert_eq!((text(&client, "/").is_ok(), server.heads().len()), (succeeds, requests));
    }
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let scratch = Scratch::new();
    let client = client(&scratch, "{server: 'http://127.0.0.1:1'}", "{token: secret}");
    let Err(Error::Lost(told)) = text(&client, "/") else { panic!("nobody answers") };
    assert!(told.starts_with("http://127.0.0.1:1: ") && told.contains("Connection refused"), "{told}");
    assert!(!told.contains("secret"), "{told}");
}

#[test]
fn lines_come_whole_however_they_are_cut_and_half_a_line_at_the_end_is_none() {
    let scratch = Scratch::new();
    for size in [1, 3, 100] {
        let server = Server::start(None, move |_| {
            let chunks = b"one\n\ntwo, longer\nhal".chunks(size);
            let chunks: String =
                chunks.map(|part| format!("{:x}\r\n{}\r\n", part.len(), String::from_utf8_lossy(part))).collect();
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n")
        });
        let client = plain(&scratch, &server, "{}");
        let read = block_on(async {
            let (mut lines, mut line, mut read) = (client.lines("/").await.unwrap(), Vec::new(), Vec::new());
            while lines.next(&mut line).await.unwrap() {
                read.push(String::from_utf8(line.clone()).unwrap());
            }
            read
        });
        assert_eq!(read, ["one", "", "two, longer"], "chunks of {size}");
    }
}

#[test]
fn an_answer_that_breaks_off_or_is_no_text_is_lost() {
    let scratch = Scratch::new();
    let server = Server::start(None, |_| "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n".to_owned());
    let client = plain(&scratch, &server, "{}");
    let Err(Error::Lost(told)) = text(&client, "/") else { panic!("it breaks off") };
    assert!(told.starts_with("the connection broke: "), "{told}");
    let broken = block_on(async { client.lines("/").await.unwrap().next(&mut Vec::new()).await });
    assert!(matches!(broken, Err(Error::Lost(_))));
}
