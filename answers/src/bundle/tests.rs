use std::io::Write;

use bulkhead_control::source::Strictness;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;

const STATE_TEXT: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: x}
---
apiVersion: v1
kind: Pod
metadata:
  name: a
  namespace: x
  annotations: {kubectl.kubernetes.io/last-applied-configuration: planted-annotation}
spec: {nodeName: node-1, containers: [{name: c, env: [{name: TOKEN, value: planted-environment}]}]}
status: {phase: Running, podIPs: [{ip: 10.1.0.1}]}
---
apiVersion: v1
kind: Secret
metadata: {name: s, namespace: x}
stringData: {token: planted-secret}
";

fn members() -> BTreeMap<&'static str, Vec<u8>> {
    let objects = source::load_text("state", STATE_TEXT, Strictness::Strict).unwrap().objects;
    let lines: String = objects.iter().map(|object| format!("{}\n", serde_json::to_string(object).unwrap())).collect();
    [(STATE, lines.into_bytes()), ("status.json", b"{}".to_vec())].into()
}

fn manifest(members: &BTreeMap<&'static str, Vec<u8>>) -> Manifest {
    let member = |bytes: &Vec<u8>| Member { length: bytes.len() as u64, sha256: digest(bytes) };
    Manifest {
        format: FORMAT.into(),
        version: VERSION,
        program: "0".into(),
        node: "n".into(),
        made: "2026-11-24T14:32:07Z".into(),
        settings: Some(Settings::default()),
        attached: Vec::new(),
        members: members.iter().map(|(name, bytes)| ((*name).to_owned(), member(bytes))).collect(),
    }
}

/// Returns a gzipped tar with these members.
fn packed(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (name, bytes) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o600);
        // The library refuses to write some of the names.
        let field = &mut header.as_old_mut().name;
        field[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        archive.append(&header, *bytes).unwrap();
    }
    archive.into_inner().unwrap().finish().unwrap()
}

fn bundle() -> Vec<u8> {
    let members = members();
    let manifest = serde_json::to_vec(&manifest(&members)).unwrap();
    let names: Vec<(String, &[u8])> =
        members.iter().map(|(name, bytes)| (format!("{FOLDER}/{name}"), &bytes[..])).collect();
    let mut all = vec![("bulkhead-bundle/manifest.json", &manifest[..])];
    all.extend(names.iter().map(|(name, bytes)| (name.as_str(), *bytes)));
    packed(&all)
}

fn read(bytes: &[u8], wanted: Wanted) -> anyhow::Result<Unpacked> {
    super::read(bytes, bytes.len() as u64, wanted)
}

fn objects() -> Vec<Object> {
    source::load_text("state", STATE_TEXT, Strictness::Strict).unwrap().objects
}

fn refused(bytes: &[u8]) -> String {
    format!("{:#}", read(bytes, Wanted::State).unwrap_err())
}

#[test]
fn what_was_packed_is_what_is_read_and_no_secret_is_in_it() {
    let members = members();
    let read = read(&bundle(), Wanted::State).unwrap();
    assert_eq!(read.objects.unwrap(), objects());
    let shown = String::from_utf8_lossy(&members[STATE]);
    assert!(shown.contains("10.1.0.1") && !shown.contains("planted"), "{shown}");
    let written = Written::new("no-journal", &manifest(&members), &members);
    let error = open_journal(&written.0).unwrap_err().to_string();
    assert!(error.contains("was disabled"), "{error}");
}

#[test]
fn the_writer_writes_what_the_reader_reads() {
    let (settings, made) = (Some(Settings::default()), "2026-11-24T14:32:07Z".to_owned());
    let mut members = members();
    // Zeros in front, in the middle and at the end, as in a journal whose segments are not all in use.
    let journal = [&[0; 3 * BUFFER][..], b"one", &[0; 5 * BUFFER], b"two", &[0; 2 * BUFFER]].concat();
    members.insert(JOURNAL, journal.clone());
    let contents = Contents { node: "n".into(), made, settings, attached: Vec::new(), members };
    let mut out = Vec::new();
    contents.pack(&mut out).unwrap();
    assert_eq!(read(&out, Wanted::State).unwrap().objects.unwrap(), objects());
    let (mut file, mut found) = (read(&out, Wanted::Journal).unwrap().journal.unwrap(), Vec::new());
    std::io::Seek::rewind(&mut file).unwrap();
    file.read_to_end(&mut found).unwrap();
    assert!(found == journal, "{} bytes", found.len());
}

#[test]
fn a_bundle_without_the_end_of_its_gzip_is_refused() {
    let whole = bundle();
    for missing in 1..=8 {
        assert!(refused(&whole[..whole.len() - missing]).contains("truncated"));
    }
}

#[test]
fn a_bundle_that_is_cut_off_or_damaged_is_refused() {
    let whole = bundle();
    for end in (0..whole.len()).step_by(3) {
        // Only the end of the tar's zeros and gzip's checksum follow all members.
        assert!(
            read(&whole[..end], Wanted::State).is_err() || end + 32 >= whole.len(),
            "cut at {end} of {}",
            whole.len()
        );
    }
    for at in (0..whole.len()).step_by(3) {
        let mut wrong = whole.clone();
        wrong[at] ^= 0x20;
        if let Ok(read) = read(&wrong, Wanted::State) {
            assert_eq!(read.objects.unwrap(), objects(), "byte {at}");
        }
    }
}

#[test]
fn hostile_members_are_refused() {
    let manifest_of = |members: &BTreeMap<&'static str, Vec<u8>>| serde_json::to_vec(&manifest(members)).unwrap();
    let none = manifest_of(&BTreeMap::new());
    let manifest_name = "bulkhead-bundle/manifest.json";
    for name in [
        "../../etc/cron.d/x",
        "/etc/passwd",
        "bulkhead-bundle/../x",
        "bulkhead-bundle/other",
        "state.jsonl",
        "x\u{1b}[2J",
    ] {
        let error = refused(&packed(&[(manifest_name, &none), (name, b"x")]));
        assert!(error.contains("unknown member") && !error.contains('\u{1b}'), "{name}: {error}");
    }
    let twice = refused(&packed(&[(manifest_name, &none), (manifest_name, &none)]));
    assert!(twice.contains("manifest"), "{twice}");
    let unnamed = refused(&packed(&[(manifest_name, &none), ("bulkhead-bundle/status.json", b"{}")]));
    assert!(unnamed.contains("does not list"), "{unnamed}");
    let missing = refused(&packed(&[(manifest_name, &manifest_of(&members()))]));
    assert!(missing.contains("missing"), "{missing}");
    let other = refused(&packed(&[(manifest_name, br#"{"format":"x","version":1}"#)]));
    assert!(other.contains("cannot parse the manifest"), "{other}");
    assert!(refused(b"apiVersion: v1").contains("not a bundle"));
    assert!(refused(&packed(&[])).contains("no manifest"));
    let mut later = manifest(&BTreeMap::new());
    later.version = 2;
    let later = refused(&packed(&[(manifest_name, &serde_json::to_vec(&later).unwrap())]));
    assert!(later.contains("version 2"), "{later}");
}

#[test]
fn a_bomb_is_refused_before_it_is_unpacked() {
    // A member with a declared size of four gigabytes.
    let mut header = tar::Header::new_gnu();
    header.set_size(4 << 30);
    header.set_entry_type(tar::EntryType::Regular);
    header.as_old_mut().name[..23].copy_from_slice(b"bulkhead-bundle/journal");
    header.set_cksum();
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    packer.write_all(header.as_bytes()).unwrap();
    packer.write_all(&[0; 1 << 16]).unwrap();
    let error = refused(&packer.finish().unwrap());
    assert!(error.contains("exceed"), "{error}");
    // A member that declares a link, and one that declares a device.
    for kind in [tar::EntryType::Symlink, tar::EntryType::Char, tar::EntryType::GNULongName] {
        let mut header = tar::Header::new_gnu();
        header.set_size(0);
        header.set_entry_type(kind);
        header.as_old_mut().name[..23].copy_from_slice(b"bulkhead-bundle/journal");
        header.set_cksum();
        let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
        packer.write_all(header.as_bytes()).unwrap();
        packer.write_all(&[0; 1024]).unwrap();
        assert!(read(&packer.finish().unwrap(), Wanted::State).is_err(), "{kind:?}");
    }
}

#[test]
fn a_state_that_unpacks_to_far_more_than_its_bundle_is_refused_by_line() {
    let line = [members()[STATE].split(|&byte| byte == b'\n').next().unwrap(), b"\n"].concat();
    let many: BTreeMap<&'static str, Vec<u8>> = [(STATE, line.repeat(60_000))].into();
    let mut out = Vec::new();
    let (made, attached) = (String::new(), Vec::new());
    Contents { node: "n".into(), made, settings: None, attached, members: many }.pack(&mut out).unwrap();
    assert!(out.len() < 100_000, "{}", out.len());
    let error = refused(&out);
    assert!(error.contains("member `state.jsonl`: line ") && error.contains("larger than a cluster's"), "{error}");
    assert!(read(&out, Wanted::Journal).is_ok(), "only a command that needs the state keeps it");
}

#[test]
fn a_member_without_end_is_refused_at_its_name_whoever_needs_it() {
    // One line, as long as the bundle claims, and a manifest of that length.
    let long = vec![b' '; usize::try_from(weight::LONGEST_LINE).unwrap() + 2];
    let none = serde_json::to_vec(&manifest(&BTreeMap::new())).unwrap();
    let state = packed(&[("bulkhead-bundle/manifest.json", &none), ("bulkhead-bundle/state.jsonl", &long)]);
    assert!(refused(&state).contains("`state.jsonl`: line 1"), "{}", refused(&state));
    let manifest = refused(&packed(&[("bulkhead-bundle/manifest.json", &long)]));
    assert!(manifest.contains("the manifest exceeds"), "{manifest}");
}

/// A bundle in a temporary file, removed on drop.
struct Written(PathBuf);

impl Written {
    fn new(name: &str, manifest: &Manifest, members: &BTreeMap<&'static str, Vec<u8>>) -> Self {
        let path = std::env::temp_dir().join(format!("bulkhead-{}-{name}.tgz", std::process::id()));
        let manifest = serde_json::to_vec(manifest).unwrap();
        let names: Vec<(String, &[u8])> =
            members.iter().map(|(name, bytes)| (format!("{FOLDER}/{name}"), &bytes[..])).collect();
        let mut all = vec![("bulkhead-bundle/manifest.json", &manifest[..])];
        all.extend(names.iter().map(|(name, bytes)| (name.as_str(), *bytes)));
        std::fs::write(&path, packed(&all)).unwrap();
        Self(path)
    }

    fn state(&self) -> crate::args::State {
        crate::args::State {
            paths: vec![self.0.clone()],
            lenient: false,
            strict: false,
            policy_semantics: None,
            namespace_default: None,
            ignore: Vec::new(),
            enforcement: None,
            names: None,
        }
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_state_of_a_bundle_is_judged_as_its_vswitch_judged_it_unless_the_command_line_says_otherwise() {
    use bulkhead_control::object::{Enforcement, IngressIsolation};
    use bulkhead_control::service;

    let members = members();
    let services = |cidr: &str| service::Settings::parse("settings", &format!("service_cidrs: [{cidr}]")).unwrap();
    let mut manifest = manifest(&members);
    // The pod's address differs from its object's.
    let attachment = Attachment { uid: None, addresses: vec!["10.1.0.99".parse().unwrap()], number: 1 };
    manifest.attached = vec![(PodName::new("x", "a"), attachment)];
    manifest.settings = Some(Settings {
        isolation: IngressIsolation::DefaultDeny,
        enforcement: Enforcement::Audit,
        services: Some(services("10.96.0.0/12")),
        program: "0".into(),
    });
    let one = Written::new("said", &manifest, &members);
    let state = one.state();
    let sources = Sources::open(&state.paths).unwrap();
    assert_eq!(sources.service_settings(None).unwrap(), services("10.96.0.0/12"));
    assert_eq!(sources.enforcement(&state).unwrap(), Enforcement::Audit);
    assert_eq!(sources.options(&state).unwrap().semantics.default_isolation(), IngressIsolation::DefaultDeny);
    let pipeline = crate::run::load(&crate::run::Input::open(&state).unwrap(), None).unwrap();
    let cache = pipeline.cache();
    let pod = cache.pod(cache.pod_key(&PodName::new("x", "a")).unwrap()).unwrap();
    assert!(pod.addresses.contains(&"10.1.0.99".parse().unwrap()), "{pod:?}");

    let file = std::env::temp_dir().join(format!("bulkhead-{}-settings.yaml", std::process::id()));
    std::fs::write(&file, "service_cidrs: [10.97.0.0/16]").unwrap();
    assert_eq!(sources.service_settings(Some(&file)).unwrap(), services("10.97.0.0/16"));
    std::fs::remove_file(&file).unwrap();
    let told = crate::args::State {
        enforcement: Some(crate::args::EnforcementName::Enforce),
        namespace_default: Some(crate::args::NamespaceDefault::Open),
        ..state.clone()
    };
    assert_eq!(sources.enforcement(&told).unwrap(), Enforcement::Enforce);
    assert_eq!(sources.options(&told).unwrap().semantics.default_isolation(), IngressIsolation::ClusterDefault);

    // Bundles of two nodes with different settings contradict each other.
    manifest.settings = Some(Settings { services: Some(services("10.98.0.0/16")), ..Settings::default() });
    let other = Written::new("said-otherwise", &manifest, &members);
    let both = crate::args::State { paths: vec![one.0.clone(), other.0.clone()], ..state };
    let sources = Sources::open(&both.paths).unwrap();
    let error = sources.service_settings(None).unwrap_err().to_string();
    assert!(error.contains("said-otherwise") && error.contains("--settings"), "{error}");
    assert!(sources.enforcement(&both).unwrap_err().to_string().contains("--enforcement"));
}

#[test]
fn a_bundle_is_opened_once_per_question_and_whoever_reads_it_gets_the_addresses_that_the_runtime_gave() {
    let members = members();
    let mut manifest = manifest(&members);
    let attachment = Attachment { uid: None, addresses: vec!["10.1.0.99".parse().unwrap()], number: 1 };
    manifest.attached = vec![(PodName::new("x", "a"), attachment)];
    let written = Written::new("once", &manifest, &members);
    let sources = Sources::open(std::slice::from_ref(&written.0)).unwrap();
    // Nothing is read from the file again.
    drop(written);
    sources.service_settings(None).unwrap();
    let loaded = sources.load(&Options::default()).unwrap().unwrap();
    let addresses = loaded.objects.iter().filter_map(|object| match object {
        Object::Pod(pod) => Some(pod.addresses.clone()),
        _ => None,
    });
    let expected: Vec<Vec<std::net::IpAddr>> = vec![vec!["10.1.0.99".parse().unwrap()]];
    assert_eq!(
        addresses.collect::<Vec<_>>(),
        expected,
        "commands without a pipeline, such as `resolve`, need them too"
    );
}
