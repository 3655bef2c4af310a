//! Another version of the program takes over everything that its predecessor left, or nothing if the layout differs.

use crate::require;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::lab::lasting::{Lasting, PATIENCE, answers, connect, echo, settle};
use crate::lab::netns::eventually;
use crate::lab::{Lab, has_tcx, is_attached, policy};
use bulkhead_dataplane::io::{LinkInfo, in_namespace, tc_programs};

const PORT: u16 = 7020;

/// A policy: only a may reach b.
fn rules() -> String {
    let from = "from: [{podSelector: {matchLabels: {app: a}}}]";
    policy("b", &format!("{{podSelector: {{matchLabels: {{app: b}}}}, policyTypes: [Ingress], ingress: [{{{from}}}]}}"))
}

/// The ids of a process's tcx links with the ids of their programs, from the kernel.
fn links(process: u32) -> BTreeMap<u32, u32> {
    let texts = fs::read_dir(format!("/proc/{process}/fdinfo")).unwrap();
    // A descriptor may be closed meanwhile.
    let texts = texts.filter_map(|file| fs::read_to_string(file.unwrap().path()).ok());
    let links = texts.filter(|text| text.contains("link_type:\ttcx")).map(|text| {
        let number =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().parse().unwrap();
        (number("link_id:"), number("prog_id:"))
    });
    links.collect()
}

/// The names of the programs at the hooks of an interface.
fn names(lab: &Lab, interface: &str) -> BTreeSet<String> {
    let path = Path::new("/run/netns").join(lab.node.name());
    let programs = || tc_programs(LinkInfo::read(interface).unwrap().index).unwrap();
    in_namespace(&path, programs).unwrap().into_iter().map(|program| program.name).collect()
}

/// A copy of the program whose kernel programs have other names.
fn another_version(lab: &Lab) -> PathBuf {
    let mut bytes = fs::read(env!("CARGO_BIN_EXE_bulkhead")).unwrap();
    for name in [&b"bulkhead_in"[..], b"bulkhead_guard", b"bulkhead_out"] {
        let places: Vec<usize> =
            bytes.windows(name.len()).enumerate().filter(|(_, at)| *at == name).map(|(at, _)| at).collect();
        assert!(!places.is_empty(), "the program does not have its programs' names as they are");
        for at in places {
            bytes[at..at + 9].copy_from_slice(b"bulkhead2");
        }
    }
    let path = lab.path("another-version");
    fs::write(&path, bytes).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn wait_for_links(lab: &Lab, count: usize) {
    eventually("links have taken the place of filters", || links(lab.vswitch().id()).len() >= count);
}

#[test]
fn another_version_puts_its_programs_into_the_links_of_the_one_before_while_a_connection_goes_on() {
    require!("mount");
    only_with_tc!();
    if !has_tcx() {
        println!("skipped: it is about links, and runs without BULKHEAD_TCX");
        return;
    }
    let mut lasting = Lasting::new();
    let lab = &mut lasting.lab;
    let other = another_version(lab);
    lab.start(&rules());
    echo(lab.get("b"), PORT);
    let mut stream = connect(lab.get("a"), lab.get("b"), PORT, PATIENCE).unwrap();
    settle(&mut stream);
    // Two hooks each of three pods, and the trunk.
    wait_for_links(lab, 7);
    settle(&mut stream);
    let (before, old_names) = (links(lab.vswitch().id()), names(lab, "p2"));
    let is_over = AtomicBool::new(false);
    let (after, new_names, rounds) = std::thread::scope(|scope| {
        let talk = scope.spawn(|| {
            let mut rounds = 0_u32;
            while !is_over.load(Ordering::SeqCst) {
                assert!(answers(&mut stream), "the connection goes on; it had {rounds} answers");
                rounds += 1;
            }
            rounds
        });
        lab.kill();
        lab.launch(&other, &rules(), &[]);
        lab.wait_until_ready();
        let seen = (links(lab.vswitch().id()), names(lab, "p2"));
        is_over.store(true, Ordering::SeqCst);
        (seen.0, seen.1, talk.join().unwrap())
    });
    println!("links and programs before: {before:?}, after: {after:?}; {rounds} answers meanwhile");
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>(), "the links are the same");
    assert!(before.iter().all(|(link, program)| after[link] != *program), "each has another program");
    assert_ne!(old_names, new_names, "which is the other version's");
    assert!(new_names.iter().all(|name| name.starts_with("bulkhead2")), "{new_names:?}");
    assert!(rounds > 10);
    assert!(connect(lab.get("c"), lab.get("b"), PORT, PATIENCE).is_err(), "policy holds");
    assert!(answers(&mut stream));
    lab.stop();
}

/// A killed vswitch whose pinned maps and sessions have another layout, and a connection that the kernel still forwards.
fn left_by_another_layout() -> (Lasting, TcpStream) {
    let mut lasting = Lasting::new();
    let lab = &mut lasting.lab;
    lab.start(&rules());
    echo(lab.get("b"), PORT);
    let mut stream = connect(lab.get("a"), lab.get("b"), PORT, PATIENCE).unwrap();
    settle(&mut stream);
    if has_tcx() {
        wait_for_links(lab, 7);
        settle(&mut stream);
    }
    lab.kill();
    // The names of pinned folders have a version, and so do the headers of the files of sessions.
    let folder = lasting.mount.join("bulkhead");
    let own = fs::read_dir(&folder).unwrap().next().unwrap().unwrap().file_name().into_string().unwrap();
    let (_, namespace) = own.split_once('-').unwrap();
    fs::rename(folder.join(&own), folder.join(format!("v0-{namespace}"))).unwrap();
    const VERSION_AT: usize = 56;
    for file in fs::read_dir(lasting.lab.path("sessions/current")).unwrap() {
        let path = file.unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        bytes[VERSION_AT] ^= 0x80;
        fs::write(path, bytes).unwrap();
    }
    (lasting, stream)
}

#[test]
fn what_has_another_layout_is_refused_whole_and_policy_holds() {
    require!("mount");
    only_with_tc!();
    let (mut lasting, _) = left_by_another_layout();
    let lab = &mut lasting.lab;
    lab.start(&rules());
    assert!(!lab.log().contains("taking over"), "{}", lab.log());
    assert!(lab.log().contains("its format version is not supported"), "{}", lab.log());
    assert_eq!(lab.log().matches("the stored sessions are those of another version").count(), 1, "{}", lab.log());
    let mut new = None;
    eventually("it forwards", || {
        new = connect(lab.get("a"), lab.get("b"), PORT, PATIENCE).ok();
        new.is_some()
    });
    assert!(connect(lab.get("c"), lab.get("b"), PORT, PATIENCE).is_err(), "policy holds");
    settle(&mut new.unwrap());
    let summary = lab.stop();
    assert_eq!(summary["sessions"]["adopted"], 0, "{summary:#}");
    assert!(summary["flow_cache"]["forwarded"].as_u64() > Some(0), "{summary:#}");
}

#[test]
fn flows_of_another_layout_end_before_the_next_one_is_ready() {
    require!("mount");
    only_with_tc!();
    let (mut lasting, mut stream) = left_by_another_layout();
    let lab = &mut lasting.lab;
    assert!(answers(&mut stream), "the kernel has it");
    lab.start(&policy("b", "{podSelector: {matchLabels: {app: b}}, policyTypes: [Ingress]}"));
    assert!(!answers(&mut stream), "it is denied now");
    assert!(lab.pings("a", &lab.get("c").v4), "what is ready forwards");
    lab.stop();
}

#[test]
fn check_tells_of_another_layout_and_cleanup_removes_what_it_has_left() {
    require!("mount");
    only_with_tc!();
    let (lasting, _) = left_by_another_layout();
    let lab = &lasting.lab;
    assert!(is_attached(&lab.node, "p2"));
    let (code, text) = lab.try_run("config.yaml", &["--check"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("warning: the stored sessions are those of another version"), "{text}");
    let line = format!("{} cleanup --config {}", env!("CARGO_BIN_EXE_bulkhead"), lab.path("config.yaml").display());
    assert_eq!(lab.node.output(&line).status.code(), Some(0));
    assert!(!is_attached(&lab.node, "p2"));
    assert!(!lasting.mount.join("bulkhead").exists());
}
