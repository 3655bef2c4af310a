#[allow(unused_imports, reason = "filled below")]
use super::*;
