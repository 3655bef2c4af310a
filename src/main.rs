//! The `bulkhead` program. Calls the library's `main`.

use std::process::ExitCode;

fn main() -> ExitCode {
    bulkhead::main()
}
