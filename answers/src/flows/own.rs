//! Parses `bulkhead sessions -o json`, or the same answer of the admin socket (docs/admin.md).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bulkhead_classifier::protocol;
use bulkhead_control::object::Transport;
use serde_json::Value;

use super::{Conversation, Observations, Read1, ResolvedNames, Said, SeenEnd, Sign};
use crate::dumps::{SessionRow, Sessions};

pub(super) fn read(file: &Arc<str>, value: &Value, line: u64, into: &mut Observations) -> Read1 {
    let told: Sessions = serde_path_to_error::deserialize(value)
        .map_err(|error| format!("cannot parse the session list: {}: {}", error.path(), error.inner()))?;
    // Refuse the whole list if one row is invalid: Bulkhead did not write it.
    let signs: Vec<Sign> = told.sessions.iter().map(|row| sign(row, line)).collect::<Result<_, _>>()?;
    let left_out = told.matching.saturating_sub(told.sessions.len());
    if left_out > 0 {
        into.remark(format!("sessions that {file} counts but does not list"), left_out as u64);
    }
    signs.into_iter().for_each(|sign| into.add(file, sign));
    Ok(())
}

fn sign(row: &SessionRow, line: u64) -> Result<Sign, String> {
    let number = number(&row.protocol)?;
    let has_ports = Transport::ALL.iter().any(|transport| transport.number() == number);
    let end = |text: &str| -> Result<(IpAddr, Option<u16>), String> {
        let wrong = || format!("`{}` is not the address of a session", crate::output::printable(text));
        if has_ports {
            let socket: SocketAddr = text.parse().map_err(|_| wrong())?;
            return Ok((socket.ip(), Some(socket.port())));
        }
        text.parse().map(|address| (address, None)).map_err(|_| wrong())
    };
    let ((from, client_port), (to, port)) = (end(&row.from)?, end(&row.to)?);
    let service = row.service.as_deref().map(end).transpose()?;
    let conversation = Conversation {
        from: SeenEnd::at(from),
        to: SeenEnd::at(to),
        protocol: Some(number),
        port,
        icmp: match number {
            // The vswitch keeps sessions only for echo requests (RFC 792, RFC 4443).
            protocol::ICMP => Some((8, 0)),
            protocol::ICMPV6 => Some((128, 0)),
            _ => None,
        },
        service: service.and_then(|(address, port)| Some(SocketAddr::new(address, port?))),
        missing: None,
    };
    Ok(Sign {
        conversation,
        client_port,
        said: Said { dropped: false, words: format!("allowed by {}", row.origin).into() },
        names: ResolvedNames::default(),
        sessions: 1,
        // The list does not say whether the server replied. It contains only allowed sessions.
        answered: true,
        ends: false,
        counts: None,
        times: (None, None),
        line,
    })
}

fn number(name: &str) -> Result<u8, String> {
    match name {
        "ICMP" => Ok(protocol::ICMP),
        "ICMPv6" => Ok(protocol::ICMPV6),
        name => match Transport::from_name(name) {
            Some(transport) => Ok(transport.number()),
            None => name.parse().map_err(|_| format!("`{}` is not a protocol", crate::output::printable(name))),
        },
    }
}
