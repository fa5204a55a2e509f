//! One HTTP request, as a monitoring system would send it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Timeout of a response.
const ANSWER_MAX: Duration = Duration::from_secs(100);

/// Returns status and body of `GET path` at `address`.
#[track_caller]
#[must_use]
pub fn get(address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("the port is open");
    stream.set_read_timeout(Some(ANSWER_MAX)).expect("a timeout can be set");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
    let status = head.split_whitespace().nth(1).and_then(|text| text.parse().ok()).expect("a status");
    (status, body.to_owned())
}
