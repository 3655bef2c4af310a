//! gRPC over HTTP/2, for methods that take one message and answer with any number of messages.
//!
//! ```text
//!   POST /service/method   flag, length, message                     --[ message ]--> bytes
//!   200   flag, length, message ...   grpc-status, grpc-message      <--[ respond ]-- messages, status
//! ```
//!
//! Follows gRPC's `doc/PROTOCOL-HTTP2.md` and, for status codes, `doc/statuscodes.md`. Messages are not compressed. The server ignores
//! `grpc-timeout`: after a timeout the client resets the call, which drops the answers.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::Stream;
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Request, Response};

/// Length of the head of each message, in bytes: a compression flag and the message's length as a big-endian `u32`.
const HEAD: usize = 5;

/// Size in bytes from which on collected messages are sent without adding more: two DATA frames of the usual 16 KiB.
const FULL: usize = 1 << 15;

/// The answers to a call, one encoded message after another. The first error ends them.
pub(super) type Answers = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

/// The gRPC status codes that this server uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Code {
    Ok = 0,
    InvalidArgument = 3,
    NotFound = 5,
    ResourceExhausted = 8,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
}

/// The final status of a call: a code and an error text, which is empty for [`Code::Ok`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) code: Code,
    pub(super) message: String,
}

impl Status {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    fn add_to(&self, headers: &mut HeaderMap) {
        headers.insert("grpc-status", (self.code as u16).into());
        let message = percent_encoded(&self.message);
        if let Some(message) = HeaderValue::try_from(message).ok().filter(|message| !message.is_empty()) {
            headers.insert("grpc-message", message);
        }
    }
}

/// Encodes a text for `grpc-message`: each byte that is `%` or not visible ASCII becomes `%` and two hexadecimal digits.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'%' => encoded.push_str("%25"),
            byte if byte.is_ascii_graphic() => encoded.push(byte.into()),
            byte => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// Reads the only message of a request.
///
/// # Errors
/// If the request does not have exactly one complete, uncompressed message of at most `longest` bytes.
pub(super) async fn message<B>(request: Request<B>, longest: usize) -> Result<Bytes, Status>
where
    B: Body<Data = Bytes> + Unpin,
{
    let encoding = request.headers().get("grpc-encoding");
    if encoding.is_some_and(|encoding| encoding != "identity") {
        return Err(Status::new(Code::Unimplemented, "the message is compressed; this server reads only `identity`"));
    }
    let (mut body, mut read) = (request.into_body(), Vec::new());
    while let Some(frame) = body.frame().await {
        // The client has reset the call or disconnected.
        let frame = frame.map_err(|_| Status::new(Code::Internal, "the request cannot be read"))?;
        // Trailers of a request have no meaning.
        let Ok(data) = frame.into_data() else { continue };
        read.extend_from_slice(&data);
        let Some(head) = read.first_chunk() else { continue };
        let length = length(*head, longest)?;
        if read.len() > HEAD + length {
            return Err(Status::new(Code::Unimplemented, "the request has more than one message"));
        }
    }
    match read.split_first_chunk() {
        Some((head, message)) if length(*head, longest)? == message.len() => Ok(Bytes::from(read).slice(HEAD..)),
        None if read.is_empty() => Err(Status::new(Code::Unimplemented, "the request has no message")),
        _ => Err(Status::new(Code::Internal, "the request ends within its message")),
    }
}

/// Returns the message's length in bytes, from its head. An error if it exceeds `longest`, or the message is compressed.
fn length([flag, length @ ..]: [u8; HEAD], longest: usize) -> Result<usize, Status> {
    if flag != 0 {
        let told = format!("the message's flag for compression is {flag}, without an encoding");
        return Err(Status::new(Code::Internal, told));
    }
    let length = u32::from_be_bytes(length);
    let fits = usize::try_from(length).ok().filter(|length| *length <= longest);
    fits.ok_or_else(|| Status::new(Code::OutOfRange, format!("the message has {length} bytes; {longest} are allowed")))
}

/// Returns a response that streams the messages and then their status, or one with only an error status.
pub(super) fn respond(answers: Result<Answers, Status>) -> Response<Messages> {
    let mut response = Response::new(Messages::Ended(None));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-accept-encoding", HeaderValue::from_static("identity"));
    match answers {
        Ok(answers) => *response.body_mut() = Messages::Coming(answers),
        // Without messages, the only HEADERS frame carries the status.
        Err(status) => status.add_to(headers),
    }
    response
}

/// The body of a response: the messages, then the status as trailers.
pub(super) enum Messages {
    Coming(Answers),
    /// All messages are sent, and this status follows as trailers. `None` once the status is sent too.
    Ended(Option<Status>),
}

impl Body for Messages {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let mut data = Vec::new();
        while let Self::Coming(answers) = &mut *self
            && data.len() < FULL
        {
            let status = match answers.as_mut().poll_next(context) {
                Poll::Pending if !data.is_empty() => break,
                polled => match ready!(polled) {
                    Some(Ok(message)) => match u32::try_from(message.len()) {
                        Ok(length) => {
                            data.push(0);
                            data.extend_from_slice(&length.to_be_bytes());
                            data.extend_from_slice(&message);
                            continue;
                        }
                        Err(_) => Status::new(Code::Internal, "the answer has more than 4 GiB"),
                    },
                    Some(Err(status)) => status,
                    None => Status::new(Code::Ok, ""),
                },
            };
            *self = Self::Ended(Some(status));
        }
        match &mut *self {
            Self::Ended(status) if data.is_empty() => Poll::Ready(status.take().map(|status| {
                let mut trailers = HeaderMap::new();
                status.add_to(&mut trailers);
                Ok(Frame::trailers(trailers))
            })),
            _ => Poll::Ready(Some(Ok(Frame::data(data.into())))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Ended(None))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, stream};
    use http_body_util::{Full, StreamBody};

    use super::*;

    /// Reads a request that arrives in these pieces, with a limit of 8 bytes for its message.
    fn read(pieces: &[&[u8]]) -> Result<Bytes, Status> {
        let frames = pieces.iter().map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(piece))));
        let body = StreamBody::new(stream::iter(frames.collect::<Vec<_>>()));
        message(Request::new(body), 8).now_or_never().unwrap()
    }

    #[test]
    fn a_message_is_read_however_it_is_cut() {
        let sent = b"\0\0\0\0\x03abc";
        for cut in 0..sent.len() {
            assert_eq!(read(&[&sent[..cut], &sent[cut..]]).unwrap(), "abc");
        }
        assert_eq!(read(&[b"\0\0\0\0\0"]).unwrap(), "", "a message without fields");
    }

    #[test]
    fn a_request_without_exactly_one_whole_message_is_refused() {
        for (sent, code) in [
            (&b""[..], Code::Unimplemented),
            (b"\0\0\0", Code::Internal),
            (b"\0\0\0\0\x03ab", Code::Internal),
            (b"\0\0\0\0\x01a\0\0\0\0\x01b", Code::Unimplemented),
            (b"\0\0\0\0\x09", Code::OutOfRange),
            (b"\0\xff\xff\xff\xff", Code::OutOfRange),
            (b"\x01\0\0\0\x01a", Code::Internal),
            (b"\x02\0\0\0\x01a", Code::Internal),
        ] {
            assert_eq!(read(&[sent]).unwrap_err().code, code, "{sent:?}");
            let bytes: Vec<&[u8]> = sent.chunks(1).collect();
            assert_eq!(read(&bytes).unwrap_err().code, code, "{sent:?}, byte by byte");
        }
    }

    #[test]
    fn a_message_that_is_too_long_is_refused_before_it_has_come() {
        let begun = stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"\0\0\0\0\x09")))]);
        let body = StreamBody::new(stream::StreamExt::chain(begun, stream::pending()));
        let refused = message(Request::new(body), 8).now_or_never();
        assert_eq!(refused.unwrap().unwrap_err().code, Code::OutOfRange);
    }

    #[test]
    fn a_compressed_request_is_refused_and_told_what_is_read() {
        for (encoding, is_read) in [("identity", true), ("gzip", false)] {
            let body = Full::from(&b"\0\0\0\0\x01a"[..]);
            let request = Request::builder().header("grpc-encoding", encoding).body(body).unwrap();
            let read = message(request, 8).now_or_never().unwrap().map_err(|status| status.code);
            assert_eq!(read, if is_read { Ok("a".into()) } else { Err(Code::Unimplemented) });
        }
        let refused = respond(Err(Status::new(Code::Unimplemented, "")));
        assert_eq!(refused.headers()["grpc-accept-encoding"], "identity");
    }

    fn answers(all: Vec<Result<&'static str, Status>>) -> Answers {
        Box::pin(stream::iter(all.into_iter().map(|answer| answer.map(|text| Bytes::from_static(text.as_bytes())))))
    }

    /// Returns the DATA frames and trailers of a response whose answers are all ready.
    fn sent(all: Answers) -> (Vec<Bytes>, HeaderMap) {
        let response = respond(Ok(all));
        assert_eq!(response.headers()[CONTENT_TYPE], "application/grpc");
        assert!(!response.headers().contains_key("grpc-status"));
        let (mut body, mut frames) = (response.into_body(), Vec::new());
        loop {
            let frame = body.frame().now_or_never().unwrap().unwrap().unwrap();
            match frame.into_data() {
                Ok(data) => frames.push(data),
                Err(frame) => {
                    assert!(body.is_end_stream() && body.frame().now_or_never().unwrap().is_none());
                    return (frames, frame.into_trailers().unwrap());
                }
            }
        }
    }

    #[test]
    fn answers_are_sent_together_and_the_status_follows() {
        let (frames, trailers) = sent(answers(vec![Ok("abc"), Ok("")]));
        assert_eq!(frames, [&b"\0\0\0\0\x03abc\0\0\0\0\0"[..]]);
        assert_eq!((trailers["grpc-status"].as_bytes(), trailers.get("grpc-message")), (&b"0"[..], None));
        let failed = Err(Status::new(Code::Unavailable, "99% full: \u{e9}\n"));
        let (frames, trailers) = sent(answers(vec![Ok("a"), failed, Ok("never sent")]));
        assert_eq!(frames, [&b"\0\0\0\0\x01a"[..]]);
        assert_eq!(
            (&trailers["grpc-status"], &trailers["grpc-message"]),
            (&"14".parse().unwrap(), &"99%25%20full:%20%C3%A9%0A".parse().unwrap())
        );
        let (frames, trailers) = sent(answers(Vec::new()));
        assert!(frames.is_empty() && trailers["grpc-status"] == "0", "{trailers:?}");
    }

    #[test]
    fn many_answers_are_sent_in_pieces_and_what_is_there_does_not_wait_for_more() {
        let long: &str = "x".repeat(FULL / 2).leak();
        let (frames, _) = sent(answers(vec![Ok(long); 5]));
        assert_eq!(frames.iter().map(Bytes::len).collect::<Vec<_>>(), [2, 2, 1].map(|all| all * (HEAD + FULL / 2)));
        let first = Box::pin(stream::StreamExt::chain(answers(vec![Ok("a")]), stream::pending()));
        let mut body = respond(Ok(first)).into_body();
        assert_eq!(body.frame().now_or_never().unwrap().unwrap().unwrap().into_data().unwrap(), &b"\0\0\0\0\x01a"[..]);
        assert!(body.frame().now_or_never().is_none());
    }

    #[test]
    fn an_error_before_any_answer_is_in_the_head() {
        let response = respond(Err(Status::new(Code::NotFound, "no such service")));
        let headers = response.headers();
        assert_eq!(
            (&headers["grpc-status"], &headers["grpc-message"]),
            (&"5".parse().unwrap(), &"no%20such%20service".parse().unwrap())
        );
        assert!(response.body().is_end_stream());
    }
}
