//! Files and directories.

use std::fs;

use super::tests::{messages, policy_text, strict};
use super::*;

/// A test's temporary directory, removed on drop.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bulkhead-source-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(super) fn file(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(super) fn pod(name: &str) -> String {
    format!("{{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {{\"name\": \"{name}\"}}}}")
}

pub(super) fn names(loaded: &Loaded) -> Vec<String> {
    let name = |object: &Object| match object {
        Object::Pod(pod) => pod.name.to_string(),
        Object::Namespace(namespace) => namespace.name.to_string(),
        Object::Node(node) => node.name.to_string(),
        Object::ClusterPolicy(policy) => policy.rank.name.to_string(),
        Object::Service(service) => service.name.to_string(),
        Object::EndpointSlice(slice) => slice.name.to_string(),
        Object::Policy(policy) => policy.name.to_string(),
        Object::Foreign(object) => object.name().to_string(),
    };
    loaded.objects.iter().map(name).collect()
}

#[test]
fn a_directory_is_read_with_all_below_it_sorted_and_by_ending() {
    let scratch = Scratch::new("directory");
    for (name, pod_name) in [("b.yaml", "b"), ("a/z.json", "az"), ("a/b.yml", "ab"), ("c.YAML", "c")] {
        scratch.file(name, pod(pod_name));
    }
    scratch.file("notes.txt", "no");
    scratch.file("..data/b.yaml", pod("b"));
    let loaded = load(std::slice::from_ref(&scratch.0), Strictness::Strict).unwrap();
    assert_eq!(
        (names(&loaded), loaded.files),
        (["default/ab", "default/az", "default/b", "default/c"].map(str::to_owned).to_vec(), 4)
    );
}

#[test]
fn a_file_that_is_named_is_read_whatever_its_ending() {
    let scratch = Scratch::new("named");
    let file = scratch.file("dump.txt", pod("a"));
    assert_eq!(names(&load(&[file], Strictness::Strict).unwrap()), ["default/a"]);
}

#[test]
fn what_cannot_be_read_is_an_error_in_both_modes() {
    let scratch = Scratch::new("unreadable");
    let inputs = [
        (scratch.0.join("none.yaml"), "cannot read: ", "check the path"),
        (
            scratch.0.clone(),
            "the directory contains no file that ends in .yaml, .yml or .json",
            "check the path; a single file may have any name",
        ),
        (scratch.file("latin.txt", b"a\n\xe9"), "line 2 is not UTF-8", "convert the file to UTF-8"),
    ];
    for (path, problem, help) in inputs {
        for strictness in [Strictness::Strict, Strictness::Lenient] {
            let errors = load(std::slice::from_ref(&path), strictness).unwrap_err();
            let error = &errors.shown()[0];
            assert_eq!(&*error.file, path.to_str().unwrap());
            assert!(error.problem.starts_with(problem), "{error}");
            assert_eq!(error.help, help);
            if path.is_dir() {
                fs::write(path.join("keep.txt"), "").unwrap();
            }
        }
    }
}

#[cfg(unix)]
#[test]
fn a_link_to_a_directory_above_is_named_once_and_not_followed() {
    let scratch = Scratch::new("loop");
    scratch.file("a/b.yaml", pod("a"));
    std::os::unix::fs::symlink(&scratch.0, scratch.0.join("a/up")).unwrap();
    scratch.file("c.yaml", pod("c"));
    for (path, all) in [(scratch.0.clone(), &["default/a", "default/c"][..]), (scratch.0.join("a"), &["default/a"])] {
        let loaded = load(&[path], Strictness::Strict).unwrap();
        assert_eq!(names(&loaded), all);
        let told = messages(&loaded.warnings);
        let expected = "a/up: a symbolic link to a directory above it is not followed";
        assert!(told.len() == 1 && told[0].contains(expected), "{told:?}");
    }
}

fn mixed() -> Options {
    Options { folders: Folders::Mixed, ..Strictness::Strict.into() }
}

#[test]
fn a_file_of_any_number_of_records_is_passed_over() {
    let scratch = Scratch::new("records");
    scratch.file("a.yaml", pod("a"));
    scratch.file("records.json", "{\"span\": {\"kind\": \"server\"}}\n".repeat(2 * parse::MAX_FOREIGN));
    let loaded = load(std::slice::from_ref(&scratch.0), mixed()).unwrap();
    assert_eq!((names(&loaded).len(), loaded.passed_over.len()), (1, 1));
}

#[cfg(unix)]
#[test]
fn a_repositorys_other_files_are_passed_over_and_named_unless_they_may_hold_a_policy() {
    let scratch = Scratch::new("mixed");
    scratch.file("a.yaml", pod("a"));
    let others = [
        ("chart/Chart.yaml", "apiVersion: v2\nname: shop\nversion: 1.0.0\n"),
        (
            "chart/templates/deployment.yaml",
            "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: {{ .Values.name }}\n  {{- if .x }}\n",
        ),
        ("chart/values.yaml", "spec: {replicas: 2}\nimage: nginx\n"),
        ("daemon.yaml", "kind: DaemonSet\nreplicaCount: 1\nmetadata: {labels: {a: b}}\n"),
        ("items.yaml", "items: [a, {b: c}]\n"),
        ("list.json", "[1, {\"a\": 2}, [], {\"kind\": \"span\"}]"),
        ("meta.yaml", "metadata: {name: a}\napiVersion: apps/v1\n"),
        ("package.json", "{\"name\": \"web\", \"items\": 7}"),
        ("socket.json", ""),
        ("tagged.yml", "Resource: !Ref other\n"),
        ("workflow.yaml", "on: push\njobs:\n  build: {steps: []}\n---\non: pull\n"),
    ];
    let all = std::slice::from_ref(&scratch.0);
    for (name, text) in others {
        match name {
            "socket.json" => drop(std::os::unix::net::UnixListener::bind(scratch.0.join(name)).unwrap()),
            _ => drop(scratch.file(name, text)),
        }
    }
    let loaded = load(all, mixed()).unwrap();
    assert_eq!((names(&loaded), loaded.files, loaded.faulty), (vec!["default/a".to_owned()], 1, 0));
    let path = |name: &str| scratch.0.join(name).to_str().unwrap().to_owned();
    let passed: Vec<String> = loaded.passed_over.iter().map(ToString::to_string).collect();
    assert_eq!(passed, others.map(|(name, _)| path(name)));
    assert_eq!(load(all, Strictness::Strict).unwrap_err().total(), 12, "one file has two documents");
    for (name, _) in others.iter().filter(|(name, _)| *name != "socket.json") {
        assert!(load(&[scratch.0.join(name)], mixed()).is_err(), "{name} was named itself");
    }
    for text in [
        // A policy without its apiVersion and kind.
        "spec: {podSelector: {}}\n",
        "kind: NetworkPolicy\nspec: {podSelector: {}}\n",
        "kind: CiliumNetworkPolicy\nspec: {endpointSelector: {}}\n",
        "kind: GlobalNetworkPolicyList\n",
        "spec: {endpointSelector: {}}\n",
        "spec: {subject: {}, ingress: []}\n",
        "kind: Namespace\nmetadata: {name: a}\n",
        // Not YAML.
        "kind: NetworkPolicy\nspec: {podSelector: {}\n",
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nspec:\n  podSelector: {{ .Values.selector }}\n  {{- end }}\n",
        "kind: {{ .Values.kind }}\nspec:\n  {{- end }}\n",
        "{\"spec\": {, \"kind\": \"NetworkPolicy\"}",
        "- {kind: NetworkPolicy, spec: {podSelector: {}}\n",
        "kind: NetworkPolicy # of the shop\nspec:\n  {{- end }}\n",
        "kind: NetworkPolicyList\nitems:\n  {{- end }}\n",
        "kind: 'NetworkPolicy'\nspec:\n  {{- end }}\n",
        "apiVersion: networking.k8s.io/v1\n",
        // An object beside something else.
        "apiVersion: v1\nkind: List\nitems: [{a: b}]\n",
        "items: [{a: b}, {apiVersion: v1, kind: Pod, metadata: {name: x}}]\n",
        "items: [{spec: {podSelector: {}}}]\n",
        // UTF-16 without its mark.
        "k\0i\0n\0d\0:\0 \0P\0",
    ] {
        let file = scratch.file("z.yaml", text);
        let errors = load(all, mixed()).unwrap_err();
        assert!(errors.shown().iter().all(|error| error.file.ends_with("z.yaml")), "{text}: {errors}");
        fs::remove_file(file).unwrap();
    }
    let nothing = load(&[scratch.0.join("chart")], mixed()).unwrap_err().to_string();
    assert!(nothing.contains("none of the 3 files of the directory holds a Kubernetes object"), "{nothing}");
}

#[test]
fn an_array_of_objects_is_an_error_that_names_its_line_and_the_remedy() {
    let scratch = Scratch::new("arrays");
    scratch.file("a.yaml", pod("a"));
    let policy = policy_text("podSelector: {}");
    let element = format!("- {}", policy.trim_end().replace('\n', "\n  "));
    let json = r#"{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "p"}, "spec": {"podSelector": {}}}"#;
    for (name, text) in [
        ("p.json", format!("[1,\n {json}]\n")),
        ("p.yaml", format!("- 1\n{element}\n")),
        ("q.yaml", "- a: 1\n- spec: {podSelector: {}}\n".to_owned()),
    ] {
        let file = scratch.file(name, text);
        for path in [&scratch.0, &file] {
            let errors = load(std::slice::from_ref(path), mixed()).unwrap_err();
            let told = errors.to_string();
            assert_eq!((errors.total(), errors.shown()[0].line), (1, Some(2)), "{told}");
            assert!(told.contains(&format!("{name}:2: [1]: an array of objects is not read")), "{told}");
            assert!(told.contains("below `items:` of an object with `apiVersion: v1` and `kind: List`"), "{told}");
        }
        fs::remove_file(file).unwrap();
    }
}

#[test]
fn a_document_beside_objects_that_is_none_is_passed_over_with_a_warning() {
    let scratch = Scratch::new("beside");
    let file = scratch.file("a.yaml", format!("{}\n---\na: 1\n---\nb: 1\n", pod("a")));
    let loaded = load(std::slice::from_ref(&scratch.0), mixed()).unwrap();
    assert_eq!((names(&loaded), loaded.passed_over.len()), (vec!["default/a".to_owned()], 0));
    let told = messages(&loaded.warnings);
    assert!(told.len() == 1 && told[0].contains("a.yaml:3: ") && told[0].contains("is passed over"), "{told:?}");
    assert_eq!(load(&[file], mixed()).unwrap_err().total(), 2, "a file that is named holds objects only");
}

#[test]
fn a_file_that_is_not_utf_8_is_passed_over_unless_it_may_hold_a_policy() {
    let scratch = Scratch::new("latin");
    scratch.file("a.yaml", pod("a"));
    let file = scratch.file("b.yaml", b"caf\xe9: 1\n");
    let loaded = load(std::slice::from_ref(&scratch.0), mixed()).unwrap();
    assert_eq!((loaded.files, loaded.passed_over.len()), (1, 1));
    assert!(load(std::slice::from_ref(&scratch.0), Strictness::Strict).is_err());
    assert!(load(std::slice::from_ref(&file), mixed()).is_err(), "it is named");
    fs::write(&file, b"# caf\xe9\nkind: NetworkPolicy\n").unwrap();
    let told = load(std::slice::from_ref(&scratch.0), mixed()).unwrap_err().to_string();
    assert!(told.contains("b.yaml: line 1 is not UTF-8\n  help: convert the file to UTF-8"), "{told}");
}

#[cfg(unix)]
#[test]
fn a_file_to_which_links_lead_is_read_once_and_a_link_to_nothing_is_passed_over() {
    use std::os::unix::fs::symlink;
    let scratch = Scratch::new("links");
    scratch.file("b.yaml", pod("b"));
    scratch.file("d/c.yaml", pod("c"));
    for (to, name) in [("b.yaml", "a.yaml"), ("d", "e"), ("d/c.yaml", "f.yaml"), ("none", "g.yaml")] {
        symlink(scratch.0.join(to), scratch.0.join(name)).unwrap();
    }
    let all = std::slice::from_ref(&scratch.0);
    let loaded = load(all, mixed()).unwrap();
    assert_eq!((names(&loaded), loaded.files), (vec!["default/b".to_owned(), "default/c".to_owned()], 2));
    let dangling = scratch.0.join("g.yaml");
    assert_eq!(loaded.passed_over, [dangling.to_str().unwrap().into()]);
    assert_eq!(load(all, Strictness::Strict).unwrap_err().total(), 1);
    assert!(load(&[dangling], mixed()).unwrap_err().to_string().contains("check the path"));
}

#[cfg(target_os = "linux")]
#[test]
fn a_device_is_refused_instead_of_read_without_an_end() {
    let told = load(&["/dev/zero".into()], Strictness::Strict).unwrap_err().to_string();
    assert!(told.contains("/dev/zero: a device is no file"), "{told}");
}

#[test]
fn compressed_files_and_utf_16_are_read_and_a_small_file_cannot_fill_the_memory() {
    use std::io::Write;
    let scratch = Scratch::new("encodings");
    let gzip = |text: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    };
    scratch.file("a.yaml.gz", gzip(pod("a").as_bytes()));
    let units: Vec<u16> = std::iter::once(0xfeff).chain(pod("b").encode_utf16()).collect();
    scratch.file("b.json", units.iter().flat_map(|unit| unit.to_le_bytes()).collect::<Vec<_>>());
    let loaded = load(std::slice::from_ref(&scratch.0), Strictness::Strict).unwrap();
    assert_eq!(names(&loaded), ["default/a", "default/b"]);
    let big_endian: Vec<u8> = units.iter().flat_map(|unit| unit.to_be_bytes()).collect();
    let file = scratch.file("d", &big_endian);
    assert_eq!(names(&load(std::slice::from_ref(&file), Strictness::Strict).unwrap()), ["default/b"]);
    fs::write(&file, &big_endian[..7]).unwrap();
    assert!(load(std::slice::from_ref(&file), Strictness::Strict).unwrap_err().to_string().contains("not UTF-16"));
    fs::write(&file, gzip(&vec![b'\n'; 20 << 20])).unwrap();
    assert!(load(&[file], Strictness::Strict).unwrap_err().to_string().contains("larger than 16 MiB"));
}

#[test]
fn a_file_without_objects_is_warned_about() {
    for text in ["", "# nothing\n---\n---\n", "null", "~\n---\n", "apiVersion: v1\nkind: List\nitems: []\n"] {
        let loaded = strict(text).unwrap();
        let expected = "t.yaml: the file contains no object\n  help: it enforces nothing; check that it is complete and the right file";
        assert_eq!(messages(&loaded.warnings), [expected], "{text:?}");
    }
}
