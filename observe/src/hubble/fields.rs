//! Parses the fields of an encoded message, to detect those that must not be ignored.
//!
//! Decoders skip unknown fields. That is right for information, but wrong for restrictions: a skipped filter silently returns more than
//! requested.

/// A field of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// Field number.
    pub number: u32,
    /// Content of a length-delimited field: a message, string or packed numbers. `None` for other types.
    pub content: Option<&'a [u8]>,
    /// All bytes of the field.
    pub whole: &'a [u8],
}

/// Why a message is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// The bytes are not a valid message.
    #[error("{0} is not a message of the protocol")]
    Malformed(&'static str),
    /// The protocol has no field of this number.
    #[error("{message} has field {number}, which this server does not support")]
    Unknown {
        /// Name of the message.
        message: &'static str,
        /// Field number.
        number: u32,
    },
    /// The protocol has the field, but the vswitch does not support it.
    #[error("{message}.{name} is not supported")]
    Unsupported {
        /// Name of the message.
        message: &'static str,
        /// Name of the field.
        name: &'static str,
    },
}

/// The fields of a message type.
#[derive(Debug)]
pub struct Shape {
    name: &'static str,
    /// Supported fields, with the shapes of embedded messages.
    read: &'static [(u32, Option<&'static Self>)],
    /// Other fields of the protocol, which are rejected.
    refused: &'static [(u32, &'static str)],
}

/// The fields of `google.protobuf.Timestamp`.
const TIMESTAMP: Shape = Shape { name: "Timestamp", read: &[(1, None), (2, None)], refused: &[] };

/// The fields of `google.protobuf.FieldMask`.
const FIELD_MASK: Shape = Shape { name: "FieldMask", read: &[(1, None)], refused: &[] };

const WORKLOAD: Shape = Shape { name: "Workload", read: &[(1, None), (2, None)], refused: &[] };

const EVENT_TYPE: Shape = Shape { name: "EventTypeFilter", read: &[(1, None), (2, None), (3, None)], refused: &[] };

const TCP_FLAGS: Shape = Shape {
    name: "TCPFlags",
    read: &[(1, None), (2, None), (3, None), (4, None), (5, None), (6, None), (7, None), (8, None), (9, None)],
    refused: &[],
};

const FLOW_FILTER: Shape = Shape {
    name: "FlowFilter",
    read: &[
        (1, None),
        (2, None),
        (3, None),
        (4, None),
        (5, None),
        (6, Some(&EVENT_TYPE)),
        (7, None),
        (8, None),
        (9, None),
        (10, None),
        (11, None),
        (12, None),
        (13, None),
        (14, None),
        (15, None),
        (18, None),
        (19, None),
        (20, None),
        (21, None),
        (22, None),
        (23, Some(&TCP_FLAGS)),
        (24, None),
        (25, None),
        (26, Some(&WORKLOAD)),
        (27, Some(&WORKLOAD)),
        (30, None),
        (31, None),
        (33, None),
    ],
    refused: &[
        (16, "source_service"),
        (17, "destination_service"),
        (28, "trace_id"),
        (29, "uuid"),
        (32, "http_header"),
        (34, "source_ip_xlated"),
        (35, "interface"),
        (36, "node_labels"),
        (37, "source_cluster_name"),
        (38, "destination_cluster_name"),
        (39, "ip_trace_id"),
        (40, "encrypted"),
        (999, "experimental"),
    ],
};

/// The fields of `observer.GetFlowsRequest`, a client's request for flows: those supported, and those rejected.
pub const GET_FLOWS: Shape = Shape {
    name: "GetFlowsRequest",
    read: &[
        (1, None),
        (3, None),
        (5, Some(&FLOW_FILTER)),
        (6, Some(&FLOW_FILTER)),
        (7, Some(&TIMESTAMP)),
        (8, Some(&TIMESTAMP)),
        (9, None),
        (10, Some(&FIELD_MASK)),
    ],
    refused: &[(999, "experimental"), (150_000, "extensions")],
};

impl Shape {
    /// Checks for unsupported fields, including those of embedded messages.
    ///
    /// # Errors
    /// The first unsupported field, or an invalid message.
    pub fn check(&self, message: &[u8]) -> Result<(), FieldError> {
        for field in fields(message) {
            let field = field.ok_or(FieldError::Malformed(self.name))?;
            if let Some((_, inner)) = self.read.iter().find(|(number, _)| *number == field.number) {
                if let Some(inner) = inner {
                    inner.check(field.content.ok_or(FieldError::Malformed(inner.name))?)?;
                }
                continue;
            }
            let refused = self.refused.iter().find(|(number, _)| *number == field.number);
            return Err(match refused {
                Some((_, name)) => FieldError::Unsupported { message: self.name, name },
                None => FieldError::Unknown { message: self.name, number: field.number },
            });
        }
        Ok(())
    }
}

/// Iterates over the fields of a message. Ends with `None` if the bytes are invalid.
pub fn fields(message: &[u8]) -> impl Iterator<Item = Option<Field<'_>>> {
    let mut rest = Some(message);
    std::iter::from_fn(move || {
        let bytes = rest.filter(|bytes| !bytes.is_empty())?;
        let field = field(bytes);
        rest = field.map(|field| &bytes[field.whole.len()..]);
        Some(field)
    })
}

/// Parses the first field. `None` if the bytes are invalid, or for a group, which proto3 does not have.
fn field(bytes: &[u8]) -> Option<Field<'_>> {
    let mut rest = bytes;
    let key = varint(&mut rest)?;
    let number = u32::try_from(key >> 3).ok().filter(|&number| number > 0)?;
    let length = match key & 7 {
        0 => {
            varint(&mut rest)?;
            None
        }
        1 => Some((8, false)),
        2 => Some((usize::try_from(varint(&mut rest)?).ok()?, true)),
        5 => Some((4, false)),
        _ => return None,
    };
    let mut content = None;
    if let Some((length, is_delimited)) = length {
        let (held, after) = rest.split_at_checked(length)?;
        content = is_delimited.then_some(held);
        rest = after;
    }
    Some(Field { number, content, whole: &bytes[..bytes.len() - rest.len()] })
}

/// Parses a varint: up to ten bytes of seven bits, least significant first. `None` if it is truncated or longer.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for at in 0..10 {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::super::flow::{FlowFilter, TcpFlags, Workload};
    use super::super::observer::{FieldMask, GetFlowsRequest};
    use super::*;

    /// Encodes a request with one filter, whose encoding is `filter`.
    fn request(filter: &[u8]) -> Vec<u8> {
        [&[0x32, u8::try_from(filter.len()).unwrap()], filter].concat()
    }

    #[test]
    fn all_that_is_read_passes() {
        let filter = FlowFilter {
            source_ip: vec!["10.0.0.0/8".into()],
            verdict: vec![2],
            event_type: vec![super::super::flow::EventTypeFilter { r#type: 1, match_sub_type: true, sub_type: 133 }],
            tcp_flags: vec![TcpFlags::of(0xff)],
            source_workload: vec![Workload { name: "web".into(), kind: "Deployment".into() }],
            drop_reason_desc: vec![133],
            ..FlowFilter::default()
        };
        let request = GetFlowsRequest {
            number: 20,
            first: true,
            whitelist: vec![filter.clone()],
            blacklist: vec![filter],
            since: Some(super::super::Timestamp::from_nanoseconds(1)),
            field_mask: Some(FieldMask { paths: vec!["time".into()] }),
            ..GetFlowsRequest::default()
        };
        assert_eq!(GET_FLOWS.check(&request.encode_to_vec()), Ok(()));
        assert_eq!(GET_FLOWS.check(&[]), Ok(()));
    }

    #[test]
    fn what_a_decoder_would_skip_is_named() {
        // Field 41 of a filter, a string, is unassigned. Field 16 is source_service. Field 3 of a workload does not exist.
        let cases: [(&[u8], &str); 4] = [
            (&[0xca, 0x02, 1, b'x'], "FlowFilter has field 41, which this server does not support"),
            (&[0x82, 0x01, 1, b'x'], "FlowFilter.source_service is not supported"),
            (&[0xd2, 0x01, 2, 0x18, 1], "Workload has field 3, which this server does not support"),
            (&[0x0a, 9, b'x'], "FlowFilter is not a message of the protocol"),
        ];
        for (filter, expected) in cases {
            assert_eq!(GET_FLOWS.check(&request(filter)).unwrap_err().to_string(), expected);
        }
        // 999, a message without fields.
        let error = GET_FLOWS.check(&[0xba, 0x3e, 0]).unwrap_err().to_string();
        assert_eq!(error, "GetFlowsRequest.experimental is not supported");
    }

    #[test]
    fn bytes_of_any_kind_are_told_to_be_no_message_and_nothing_is_read_beyond_them() {
        let hostile: [&[u8]; 7] = [
            &[0x00],
            &[0x80; 20],
            &[0x0b, 0x0c],
            &[0x32, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
            &[0x32],
            &[0x09, 1, 2],
            &[0x08, 0xff],
        ];
        for bytes in hostile {
            assert!(matches!(GET_FLOWS.check(bytes), Err(FieldError::Malformed(_))), "{bytes:x?}");
        }
        // All messages of two bytes, and all prefixes of a message.
        for bytes in (0..=u16::MAX).map(u16::to_be_bytes) {
            let _ = GET_FLOWS.check(&bytes);
        }
        let whole = request(&[0x0a, 1, b'x']);
        assert!((1..whole.len()).all(|length| GET_FLOWS.check(&whole[..length]).is_err()));
    }
}
