//! Compiles the C part and links librte_acl as pkg-config reports it. Debian: `apt install libdpdk-dev`.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=src/rte_acl.c");
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    let object = Path::new(&out).join("rte_acl.o");
    let flags = pkg_config("--cflags");
    run(Command::new("cc").args(["-O3", "-c", "src/rte_acl.c", "-o"]).arg(&object).args(flags.split_whitespace()));
    run(Command::new("ar").arg("crs").arg(Path::new(&out).join("libbench_rte_acl.a")).arg(&object));
    println!("cargo:rustc-link-search=native={out}");
    println!("cargo:rustc-link-lib=static=bench_rte_acl");
    for library in pkg_config("--libs").split_whitespace().filter_map(|flag| flag.strip_prefix("-l")) {
        let library = library.trim_start_matches(':').trim_start_matches("lib").trim_end_matches(".so");
        if ["rte_acl", "rte_eal"].contains(&library) {
            println!("cargo:rustc-link-lib=dylib={library}");
        }
    }
}

fn pkg_config(what: &str) -> String {
    let output = Command::new("pkg-config").args([what, "libdpdk"]).output().expect("pkg-config is installed");
    assert!(output.status.success(), "libdpdk is not installed");
    String::from_utf8(output.stdout).expect("flags are text")
}

fn run(command: &mut Command) {
    let status = command.status().expect("the C compiler is installed");
    assert!(status.success(), "{command:?} failed");
}
