//! Reads the texts of files and of standard input.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;

/// The path that denotes standard input.
pub(super) const STDIN: &str = "-";

/// Maximum size of a file, in bytes: several times that of 100,000 pods. A larger file is a mistake, such as a disk image or `/dev/zero`.
const MAX_FILE_BYTES: u64 = 4 << 30;

/// The first bytes of a text that is compressed by gzip (RFC 1952 §2.3.1).
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Maximum ratio of a text to its compressed size. Large states compress to a thirtieth; a small file must not fill the memory.
const MAX_RATIO: u64 = 100;

/// Size in bytes up to which any ratio is accepted: small texts of equal lines compress better.
const MIN_UNCOMPRESSED: u64 = 16 << 20;

/// Why a text cannot be read.
pub(super) struct ReadFault {
    pub(super) problem: String,
    pub(super) help: String,
    /// The text with U+FFFD instead of the bytes that are not UTF-8. `None` if something else is wrong.
    pub(super) lossy: Option<String>,
}

impl ReadFault {
    fn new(problem: impl Into<String>, help: impl Into<String>) -> Self {
        Self { problem: problem.into(), help: help.into(), lossy: None }
    }

    pub(super) fn io(error: &io::Error) -> Self {
        let help = match error.kind() {
            io::ErrorKind::NotFound => "check the path",
            io::ErrorKind::PermissionDenied => "make the file readable for this user",
            _ => "no object of this file was read",
        };
        Self::new(format!("cannot read: {error}"), help)
    }
}

/// Whether the bytes with which a file starts are neither compressed nor UTF-16, so that they are its text.
pub(super) fn is_plain(start: &[u8]) -> bool {
    ![&GZIP[..], &[0xff, 0xfe], &[0xfe, 0xff]].iter().any(|mark| start.starts_with(mark))
}

/// Returns the text of a file, without a byte order mark.
pub(super) fn file_text(path: &Path) -> Result<String, ReadFault> {
    open(path).and_then(text_of)
}

/// Opens a file or pipe. A device is an error, as reading it may never end; `/dev/null` is an empty file.
pub(super) fn open(path: &Path) -> Result<fs::File, ReadFault> {
    match fs::metadata(path) {
        Ok(about) if is_device(about.file_type()) && path != Path::new("/dev/null") => {
            Err(ReadFault::new("a device is no file", "name a file, a pipe, or - for the standard input"))
        }
        Ok(_) | Err(_) => fs::File::open(path).map_err(|error| ReadFault::io(&error)),
    }
}

/// Whether reading may never end. Pipes end: the shell passes them for `<(...)`.
#[cfg(unix)]
fn is_device(kind: fs::FileType) -> bool {
    use std::os::unix::fs::FileTypeExt;
    kind.is_char_device() || kind.is_block_device()
}

/// The playground has no devices.
#[cfg(not(unix))]
fn is_device(_: fs::FileType) -> bool {
    false
}

/// Returns the text of a source, without a byte order mark.
pub(super) fn text_of(source: impl Read) -> Result<String, ReadFault> {
    let mut bytes = bounded(source, MAX_FILE_BYTES)?;
    if bytes.starts_with(&GZIP) {
        let compressed = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let most = compressed.saturating_mul(MAX_RATIO).clamp(MIN_UNCOMPRESSED, MAX_FILE_BYTES);
        bytes = bounded(MultiGzDecoder::new(&*bytes), most)?;
    }
    match bytes.get(..2) {
        Some([0xff, 0xfe]) => return of_utf16(&bytes[2..], u16::from_le_bytes),
        Some([0xfe, 0xff]) => return of_utf16(&bytes[2..], u16::from_be_bytes),
        _ => {}
    }
    String::from_utf8(bytes).map(without_mark).map_err(|error| {
        let line =
            error.as_bytes()[..error.utf8_error().valid_up_to()].iter().filter(|&&byte| byte == b'\n').count() + 1;
        let fault = ReadFault::new(format!("line {line} is not UTF-8"), "convert the file to UTF-8");
        ReadFault { lossy: Some(String::from_utf8_lossy(error.as_bytes()).into_owned()), ..fault }
    })
}

/// Reads a source to its end.
fn bounded(source: impl Read, most: u64) -> Result<Vec<u8>, ReadFault> {
    let mut bytes = Vec::new();
    source.take(most + 1).read_to_end(&mut bytes).map_err(|error| ReadFault::io(&error))?;
    if bytes.len() as u64 > most {
        let problem = format!("larger than {} MiB", most >> 20);
        return Err(ReadFault::new(problem, "split the file, or check that it is the right one"));
    }
    Ok(bytes)
}

/// Decodes UTF-16 after its byte order mark. PowerShell writes it when it redirects a program's output.
fn of_utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Result<String, ReadFault> {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let text: Result<String, _> = char::decode_utf16(pairs.iter().copied().map(unit)).collect();
    match text {
        Ok(text) if rest.is_empty() => Ok(text),
        _ => {
            Err(ReadFault::new("not UTF-16, although it begins with its byte order mark", "convert the file to UTF-8"))
        }
    }
}

/// Removes the byte order mark, which editors on Windows write and JSON does not allow.
fn without_mark(text: String) -> String {
    match text.strip_prefix('\u{feff}') {
        Some(rest) => rest.to_owned(),
        None => text,
    }
}
