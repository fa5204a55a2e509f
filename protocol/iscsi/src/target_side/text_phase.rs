//! Text requests in full feature phase: SendTargets (RFC 7143 §11.10, appendix C).

use alloc::{format, vec::Vec};

use bytes::Bytes;

use super::{SessionKind, TargetClosed, TargetConnection, TargetEntry, session::TargetPhase};
use crate::{
    limits,
    parameters::{self, KeyAnswer},
    pdu::{self, Bhs, NO_TAG, flag, opcode, reason},
    text,
};

/// The transfer tag of a text exchange that continues; there is one at a time.
const TRANSFER: u32 = 1;

pub(super) struct TextExchange {
    tag: u32,
    request: Vec<u8>,
    /// Answer not yet sent.
    answer: Vec<u8>,
}

impl TargetConnection {
    pub(super) fn text(&mut self, bhs: &Bhs, data: &[u8]) -> Result<(), TargetClosed> {
        let header = pdu::Text::of(bhs);
        let (tag, transfer) = (header.tag.get(), header.transfer.get());
        let continues = header.flags & flag::CONTINUE != 0;
        let finish = header.flags & flag::FINAL != 0;
        if continues && finish {
            self.text = None;
            return self.reject(bhs, reason::PROTOCOL);
        }
        let mut exchange = match self.text.take() {
            // A new request discards the previous one (§11.10.4).
            _ if transfer == NO_TAG => TextExchange { tag, request: Vec::new(), answer: Vec::new() },
            Some(exchange) if transfer == TRANSFER && exchange.tag == tag => exchange,
            _ => return self.reject(bhs, reason::PROTOCOL),
        };
        if exchange.request.len() + data.len() > limits::TEXT_MAX {
            return self.reject(bhs, reason::OUT_OF_RESOURCES);
        }
        exchange.request.extend_from_slice(data);
        let mut response = pdu::TextResponse::new(opcode::TEXT_RESPONSE, 0);
        response.lun = header.lun;
        response.tag.set(tag);
        response.transfer.set(TRANSFER);
        if continues {
            self.text = Some(exchange);
            self.control(response.wire(), Bytes::new(), true);
            return Ok(());
        }
        let request = core::mem::take(&mut exchange.request);
        if !request.is_empty() && self.answer_keys(&request, &mut exchange.answer).is_err() {
            return self.reject(bhs, reason::PROTOCOL);
        }
        let length = exchange.answer.len().min(self.agreed.max_send as usize);
        let rest = exchange.answer.split_off(length);
        let answer = core::mem::replace(&mut exchange.answer, rest);
        if !exchange.answer.is_empty() {
            response.flags |= flag::CONTINUE;
            self.text = Some(exchange);
        } else if finish {
            response.flags |= flag::FINAL;
            response.transfer.set(NO_TAG);
        } else {
            self.text = Some(exchange);
        }
        self.control(response.wire(), Bytes::from(answer), true);
        Ok(())
    }

    fn answer_keys(&mut self, request: &[u8], answer: &mut Vec<u8>) -> Result<(), text::TextError> {
        let pairs = text::parse(request)?;
        // A key may occur once in a negotiation (§6.2).
        for (at, (key, _)) in pairs.iter().enumerate() {
            if pairs[..at].iter().any(|(earlier, _)| earlier == key) {
                return Err(text::TextError::Twice);
            }
        }
        for (key, value) in pairs {
            match key {
                "SendTargets" => self.send_targets(value, answer),
                // The one operational key that may change in full feature phase (§13.12).
                "MaxRecvDataSegmentLength" => {
                    let policy = &self.config.policy;
                    if let Some(KeyAnswer::Reject) = parameters::answer(&mut self.agreed, policy, key, value)
                    {
                        text::put(answer, key, KeyAnswer::Reject);
                    }
                }
                // A declaration that is permitted at any time (§13.7).
                "InitiatorAlias" => {}
                _ if parameters::is_for_login(key) => text::put(answer, key, KeyAnswer::Reject),
                _ if parameters::is_constant(value) => {}
                _ => text::put(answer, key, "NotUnderstood"),
            }
        }
        Ok(())
    }

    fn send_targets(&self, which: &str, answer: &mut Vec<u8>) {
        let config = &self.config;
        let own = match self.phase {
            TargetPhase::Full(SessionKind::Normal { target }) => config.targets.get(target),
            _ => None,
        };
        let (initiator, user) = &self.peer;
        let seen = |entry: &TargetEntry| match &config.access {
            Some(access) => access.grant(initiator, user.as_deref(), &entry.name).is_some(),
            None => true,
        };
        let wanted = |entry: &&TargetEntry| {
            seen(entry)
                && match (which, own) {
                    ("All", None) => true,
                    ("", Some(own)) => entry.name == own.name,
                    (name, None) => entry.name.eq_ignore_ascii_case(name),
                    (name, Some(own)) => entry.name == own.name && own.name.eq_ignore_ascii_case(name),
                }
        };
        if (which == "All" && own.is_some()) || !is_valid_request(which) {
            // Only discovery sessions may request all (appendix C).
            text::put(answer, "SendTargets", KeyAnswer::Reject);
        }
        for entry in config.targets.iter().filter(wanted) {
            text::put(answer, "TargetName", &entry.name);
            let own_address = core::slice::from_ref(&self.local_address);
            let addresses = if entry.addresses.is_empty() { own_address } else { &entry.addresses };
            for address in addresses {
                text::put(answer, "TargetAddress", format!("{address},{}", config.portal_group));
            }
        }
    }
}

/// Whether the request is valid: all targets, the session's own, or one by its name (appendix C); a
/// name has one of three prefixes (§4.2.7.3).
fn is_valid_request(which: &str) -> bool {
    let begins = |kind: &&str| which.get(..4).is_some_and(|head| head.eq_ignore_ascii_case(kind));
    matches!(which, "All" | "") || ["iqn.", "eui.", "naa."].iter().any(begins)
}
