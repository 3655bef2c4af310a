//! Reads the frames of an Initial packet (RFC 9000 sections 17.2.2 and 19).

use crate::cursor::Cursor;

/// Calls `each` with the offset and the data of every CRYPTO frame. `None` if a frame is malformed, or of a kind that Initial packets must
/// not have. Frames before it are reported.
pub(super) fn crypto(payload: &[u8], mut each: impl FnMut(u64, &[u8])) -> Option<()> {
    let mut cursor = Cursor(payload);
    while let Some(kind) = cursor.bytes(1) {
        match kind[0] {
            // PADDING, PING
            0x00 | 0x01 => {}
            kind @ (0x02 | 0x03) => acknowledgement(&mut cursor, kind == 0x03)?,
            0x06 => {
                let offset = cursor.varint()?;
                each(offset, cursor.varint_vector()?);
            }
            // CONNECTION_CLOSE by the transport: an error, the frame that caused it and a text.
            0x1c => {
                let (_error, _frame, _text) = (cursor.varint()?, cursor.varint()?, cursor.varint_vector()?);
            }
            _ => return None,
        }
    }
    Some(())
}

/// Reads an ACK frame after its type. `has_ecn` if it ends with three counts of ECN.
fn acknowledgement(cursor: &mut Cursor<'_>, has_ecn: bool) -> Option<()> {
    let (_largest, _delay, ranges, _first) = (cursor.varint()?, cursor.varint()?, cursor.varint()?, cursor.varint()?);
    // Every number takes a byte at least, so the payload bounds the loop.
    for _ in 0..ranges {
        let (_gap, _len) = (cursor.varint()?, cursor.varint()?);
    }
    for _ in 0..if has_ecn { 3 } else { 0 } {
        cursor.varint()?;
    }
    Some(())
}
