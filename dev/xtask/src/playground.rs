//! The playground: a web page that contains the whole program and works offline (docs/playground.md).
//! ```text
//!   the program --wasm32-wasip1--> bulkhead.wasm --gzip, base64--.
//!   dev/playground/page.{html,css,js}, wasi.js, pcaps, examples ------+--> target/playground/index.html --> golden cases under node
//!                                                                                                  `-> a headless Chromium
//! ```
//! The program is the ordinary one without Linux-specific parts. The page calls its `main` with a command line and with files from the
//! page's fields, so the answer is what the command prints, and the golden cases apply. A library with bindings (`wasm-bindgen`) lost: it
//! needs a second interface for each command, a tool of the crate's version for building, and separate tests. It would only save `wasi.js`.

use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::step::{Step, cargo, root, tests};

const TARGET: &str = "wasm32-wasip1";

/// The toolchain that builds for [`TARGET`].
enum Toolchain {
    /// The default toolchain, which has the target's standard library.
    Own,
    /// Debian's, which builds the standard library from source.
    Debian,
}

/// Files of Debian's packages `cargo-web`, `rustc-web`, `rust-web-src`, `lld` and `wasi-libc`.
const DEBIAN: [&str; 5] = [
    "/usr/bin/cargo",
    "/usr/bin/rustc",
    "/usr/lib/rustlib/src/rust/library/std/Cargo.toml",
    "/usr/bin/wasm-ld",
    "/usr/lib/wasm32-wasi/libc.a",
];

/// Builds the page, and tests it if node and Chromium are installed.
pub(super) fn run() -> bool {
    build() && golden() && browser()
}

pub(super) fn build() -> bool {
    let Some(toolchain) = toolchain() else {
        return skip(
            "no Rust toolchain builds for wasm32-wasip1; run `rustup target add wasm32-wasip1`, or install Debian's packages cargo-web, \
             rustc-web, rust-web-src, lld and wasi-libc",
        );
    };
    if !compile(&toolchain) {
        return false;
    }
    match assemble() {
        Ok((program, page)) => {
            println!("{}: {page} bytes, the program in it {program} bytes", index().display());
            true
        }
        Err(error) => {
            eprintln!("playground: {error}");
            false
        }
    }
}

/// Runs the golden cases with the page's program.
fn golden() -> bool {
    if !index().is_file() || !is_there("node") {
        return skip("the golden cases need node");
    }
    // With the features of `test`, so that nothing is built twice.
    let runner = format!("node dev/playground/run.cjs {}", index().display());
    tests(&["--test", "all", "--", "golden::"]).env("BULKHEAD_RUNNER", &runner).run()
}

/// Tests the page in a browser.
fn browser() -> bool {
    let chromium = env::var_os("BULKHEAD_CHROMIUM").map_or_else(|| "/usr/bin/chromium".into(), PathBuf::from);
    if !index().is_file() || !is_there("node") || !chromium.is_file() {
        return skip(
            "the browser test needs node and Chromium; BULKHEAD_CHROMIUM names one that is not /usr/bin/chromium",
        );
    }
    let pictures = folder().join("screenshots");
    if let Err(error) = fs::create_dir_all(&pictures) {
        eprintln!("playground: {}: {error}", pictures.display());
        return false;
    }
    let [page, pictures] = [index(), pictures].map(|path| path.display().to_string());
    Step::new("node", &["dev/playground/browser.cjs", &page, &pictures]).run()
}

/// Prints why a step is skipped. Returns whether that is a success: false under CI.
fn skip(reason: &str) -> bool {
    if env::var_os("CI").is_some() {
        eprintln!("playground: required under CI: {reason}");
        return false;
    }
    println!("playground: skipped, {reason}");
    true
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

fn toolchain() -> Option<Toolchain> {
    let libraries =
        Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]).current_dir(root()).output();
    let has_target = libraries.is_ok_and(|output| {
        output.status.success() && Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir()
    });
    if has_target {
        return Some(Toolchain::Own);
    }
    DEBIAN.iter().all(|path| Path::new(path).exists()).then_some(Toolchain::Debian)
}

/// Returns cargo's target folder for the page: not the usual one, because the two toolchains would rebuild each other's libraries.
fn build_folder() -> PathBuf {
    folder().join("build")
}

fn compile(toolchain: &Toolchain) -> bool {
    let folder = build_folder().display().to_string();
    let mut args = vec!["rustc", "--locked", "--profile", "playground", "--bin", "bulkhead", "--target", TARGET];
    args.extend(["--target-dir", &folder]);
    match toolchain {
        Toolchain::Own => cargo(&args).run(),
        Toolchain::Debian => {
            args.extend(["-Zbuild-std=std,panic_abort", "--"]);
            args.push("-Clink-arg=/usr/lib/wasm32-wasi/crt1-command.o");
            args.push("-Clink-arg=--allow-undefined-file=dev/playground/absent-symbols");
            // Before rustup's programs of the same names.
            let path = format!("/usr/bin:{}", env::var("PATH").unwrap_or_default());
            Step::new("/usr/bin/cargo", &args)
                .env("PATH", &path)
                .env("RUSTC", "/usr/bin/rustc")
                // Lets a stable compiler use `-Zbuild-std`.
                .env("RUSTC_BOOTSTRAP", "1")
                .env("CARGO_TARGET_WASM32_WASIP1_RUSTFLAGS", DEBIAN_FLAGS)
                .run()
        }
    }
}

/// Flags that Debian's compiler needs for this target: the linker, and the path of the C library.
const DEBIAN_FLAGS: &str = "-C linker=wasm-ld -C link-self-contained=no -L native=/usr/lib/wasm32-wasi";

/// Assembles the page. Returns the bytes of the program and of the page.
fn assemble() -> io::Result<(usize, usize)> {
    let program = read(&build_folder().join(TARGET).join("playground/bulkhead.wasm"))?;
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(&program)?;
    let program = STANDARD.encode(packed.finish()?);
    let source = |name: &str| text(&format!("dev/playground/{name}"));
    let mut page = source("page.html")?;
    let parts = [
        ("{{style}}", source("page.css")?),
        ("{{examples}}", examples()?),
        ("{{wasi}}", source("wasi.js")?),
        ("{{script}}", source("page.js")?),
        ("{{program}}", program.clone()),
    ];
    for (place, part) in parts {
        page = page.replacen(place, &part, 1);
    }
    fs::create_dir_all(folder())?;
    fs::write(index(), &page)?;
    Ok((program.len(), page.len()))
}

/// The files offered in the page, which `page.js` combines. Text is included as it is, other files in base64.
const EXAMPLES: [&str; 6] = [
    "pcaps/shop/state.yaml",
    "examples/shop/policies.yaml",
    "examples/shop/claims.yaml",
    "pcaps/shop/in.pcap",
    "pcaps/redis-policy/state.yaml",
    "pcaps/redis-policy/in.pcapng",
];

fn examples() -> io::Result<String> {
    let mut all = String::new();
    for path in EXAMPLES {
        let is_text = path.ends_with(".yaml");
        let content = if is_text { text(path)? } else { STANDARD.encode(read(&root().join(path))?) };
        // A script element ends at `</`.
        if content.contains("</") {
            return Err(io::Error::other(format!("{path} contains `</`, which would end its element in the page")));
        }
        all += &format!("<script type=\"text/plain\" class=\"example\" data-path=\"{path}\">{content}</script>\n");
    }
    Ok(all)
}

fn text(path: &str) -> io::Result<String> {
    String::from_utf8(read(&root().join(path))?).map_err(io::Error::other)
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    fs::read(path).map_err(|error| io::Error::new(error.kind(), format!("cannot read {}: {error}", path.display())))
}

fn folder() -> PathBuf {
    root().join("target/playground")
}

fn index() -> PathBuf {
    folder().join("index.html")
}
