//! The CNI environment variables that the runtime sets.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use super::error::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Add,
    Del,
    Check,
    Gc,
    Status,
    Version,
}

impl Command {
    const ALL: [(&'static str, Self); 6] = [
        ("ADD", Self::Add),
        ("DEL", Self::Del),
        ("CHECK", Self::Check),
        ("GC", Self::Gc),
        ("STATUS", Self::Status),
        ("VERSION", Self::Version),
    ];

    /// Returns the command's name in the specification.
    pub(super) fn name(self) -> &'static str {
        Self::ALL.into_iter().find_map(|(name, command)| (command == self).then_some(name)).expect("all are listed")
    }

    /// Returns the variables that the command requires.
    const fn needs(self) -> &'static [&'static str] {
        match self {
            Self::Add | Self::Check => &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"],
            Self::Del => &["CNI_CONTAINERID", "CNI_IFNAME"],
            Self::Gc | Self::Status | Self::Version => &[],
        }
    }
}

/// The values of the variables. Those that the command does not require may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Environment {
    pub(super) command: Command,
    /// `CNI_CONTAINERID`: the ID of the pod's sandbox.
    pub(super) container: String,
    /// `CNI_IFNAME`: the interface's name in the container.
    pub(super) interface: String,
    /// `CNI_NETNS`: the path of the container's network namespace. `None` if the runtime does not pass it.
    pub(super) netns: Option<PathBuf>,
    /// `CNI_PATH`: folders of plugins.
    pub(super) path: Vec<PathBuf>,
    /// `CNI_ARGS`, unparsed. Only `ADD` parses it, so that malformed arguments do not fail a `DEL`.
    arguments: OsString,
}

impl Environment {
    /// Reads the variables.
    ///
    /// # Errors
    /// [`Error`] that names all missing variables, or the first malformed one.
    pub(super) fn read(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, Error> {
        let text = |name: &str| match variable(name) {
            None => Ok(String::new()),
            Some(value) => value.into_string().map_err(|_| Error::environment(format!("{name}: not UTF-8 text"))),
        };
        let command = text("CNI_COMMAND")?;
        let names = || Command::ALL.map(|(name, _)| name).join(", ");
        let known = Command::ALL.into_iter().find_map(|(name, known)| (name == command).then_some(known));
        let command = known.ok_or_else(|| {
            Error::environment(match command.as_str() {
                "" => format!(
                    "CNI_COMMAND: missing; a container runtime runs this plugin and sets it to one of {}",
                    names()
                ),
                other => format!("CNI_COMMAND: `{other}` is not one of {}", names()),
            })
        })?;
        let missing: Vec<_> = command
            .needs()
            .iter()
            .filter(|name| variable(name).is_none_or(|value| value.is_empty()))
            .copied()
            .collect();
        if !missing.is_empty() {
            return Err(Error::environment(format!("{}: missing; {} requires it", missing.join(", "), command.name())));
        }
        let (container, interface) = (text("CNI_CONTAINERID")?, text("CNI_IFNAME")?);
        if command.needs().contains(&"CNI_CONTAINERID") {
            check_identifier(&container).map_err(|why| Error::environment(format!("CNI_CONTAINERID: {why}")))?;
            check_interface(&interface).map_err(|why| Error::environment(format!("CNI_IFNAME: {why}")))?;
        }
        Ok(Self {
            command,
            container,
            interface,
            netns: variable("CNI_NETNS").filter(|path| !path.is_empty()).map(PathBuf::from),
            path: std::env::split_paths(&variable("CNI_PATH").unwrap_or_default())
                .filter(|folder| !folder.as_os_str().is_empty())
                .collect(),
            arguments: variable("CNI_ARGS").unwrap_or_default(),
        })
    }

    /// Returns the pod of the container.
    ///
    /// # Errors
    /// [`Error`] if `CNI_ARGS` does not name a pod or is malformed.
    pub(super) fn pod(&self) -> Result<Pod, Error> {
        Pod::read(&self.arguments).map_err(|why| Error::environment(format!("CNI_ARGS: {why}")))
    }
}

/// A pod as the runtime names it in `CNI_ARGS`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pod {
    pub(super) namespace: String,
    pub(super) name: String,
    /// UID of the pod. `None` with older runtimes, which do not pass it.
    pub(super) uid: Option<String>,
}

impl Pod {
    /// Parses the pod from `CNI_ARGS`: `KEY=VALUE;KEY=VALUE`. The error says what is missing or malformed.
    fn read(arguments: &OsStr) -> Result<Self, String> {
        let arguments = arguments.to_str().ok_or("not UTF-8 text")?;
        let (mut pod, mut unknown, mut ignores_unknown) = (Self::default(), None, false);
        for pair in arguments.split(';').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| format!("`{pair}` is not KEY=VALUE"))?;
            match key {
                "K8S_POD_NAMESPACE" => pod.namespace = value.to_owned(),
                "K8S_POD_NAME" => pod.name = value.to_owned(),
                "K8S_POD_UID" => pod.uid = Some(value.to_owned()).filter(|uid| !uid.is_empty()),
                // Same as `CNI_CONTAINERID`.
                "K8S_POD_INFRA_CONTAINER_ID" => {}
                // The spellings of true in the CNI library.
                "IgnoreUnknown" => ignores_unknown = ["1", "t", "T", "true", "TRUE", "True"].contains(&value),
                _ => unknown = Some(key),
            }
        }
        if let Some(key) = unknown.filter(|_| !ignores_unknown) {
            return Err(format!("`{key}` is unknown and IgnoreUnknown=1 is not set"));
        }
        let missing = [("K8S_POD_NAMESPACE", &pod.namespace), ("K8S_POD_NAME", &pod.name)];
        let missing = missing.into_iter().filter(|(_, value)| value.is_empty()).map(|(key, _)| key);
        let missing = missing.collect::<Vec<_>>().join(" and ");
        if !missing.is_empty() {
            return Err(format!("{missing} missing; the runtime must name the pod, whose policy applies"));
        }
        Ok(pod)
    }
}

/// Checks a container ID or a network's name, which becomes part of file names.
pub(super) fn check_identifier(text: &str) -> Result<(), String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    match text.chars().next() {
        None => Err("empty".to_owned()),
        Some(first) if first.is_ascii_alphanumeric() && text.chars().all(is_plain) => Ok(()),
        Some(_) => Err(format!(
            "`{text}` must start with a letter or digit and contain only letters, digits, `_`, `.` and `-`"
        )),
    }
}

/// Checks that Linux accepts the interface's name.
fn check_interface(name: &str) -> Result<(), String> {
    /// `IFNAMSIZ` less the terminating zero.
    const LONGEST: usize = 15;
    let is_bad = |c: char| c == '/' || c == ':' || c.is_whitespace();
    if name.len() > LONGEST || name == "." || name == ".." || name.contains(is_bad) {
        return Err(format!(
            "`{name}` is not a valid interface name: use at most {LONGEST} bytes without `/`, `:` and spaces"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARGUMENTS: &str =
        "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=db-0;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=u-1;NEW=x";

    fn read(variables: &[(&str, &str)]) -> Result<Environment, Error> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        Environment::read(find)
    }

    fn details(variables: &[(&str, &str)]) -> String {
        let error = read(variables).unwrap_err();
        assert!(error.to_json(super::super::version::Version::V1_0).contains("\"code\": 4"), "{error}");
        error.details
    }

    #[test]
    fn the_variables_of_an_add_are_read() {
        let add = read(&[
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_NETNS", "/run/netns/x"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/opt/cni/bin:/usr/lib/cni"),
            ("CNI_ARGS", ARGUMENTS),
        ])
        .unwrap();
        assert_eq!((add.command, &*add.container, &*add.interface), (Command::Add, "c1", "eth0"));
        assert_eq!(add.netns, Some("/run/netns/x".into()));
        assert_eq!(add.path, [PathBuf::from("/opt/cni/bin"), "/usr/lib/cni".into()]);
        let pod = Pod { namespace: "shop".into(), name: "db-0".into(), uid: Some("u-1".into()) };
        assert_eq!(add.pod(), Ok(pod));
    }

    #[test]
    fn what_is_missing_is_named_all_at_once() {
        assert!(details(&[]).starts_with("CNI_COMMAND: missing"));
        assert!(details(&[("CNI_COMMAND", "add")]).starts_with("CNI_COMMAND: `add` is not one of ADD, DEL"));
        let add = details(&[("CNI_COMMAND", "ADD"), ("CNI_IFNAME", "")]);
        assert!(add.starts_with("CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME: missing"), "{add}");
        let del = details(&[("CNI_COMMAND", "DEL"), ("CNI_CONTAINERID", "c")]);
        assert!(del.starts_with("CNI_IFNAME: missing"), "{del}");
        for command in ["GC", "STATUS", "VERSION"] {
            assert_eq!(read(&[("CNI_COMMAND", command)]).unwrap().command.name(), command);
        }
    }

    #[test]
    fn identifiers_that_could_be_paths_are_refused() {
        for container in ["../x", ".x", "a/b", "a b", "-x", "\u{e9}"] {
            let says = details(&[("CNI_COMMAND", "DEL"), ("CNI_CONTAINERID", container), ("CNI_IFNAME", "eth0")]);
            assert!(says.starts_with("CNI_CONTAINERID: `"), "{says}");
        }
        for interface in ["..", ".", "a/b", "a:b", "a b", "sixteen-letters-"] {
            let says = details(&[("CNI_COMMAND", "DEL"), ("CNI_CONTAINERID", "c"), ("CNI_IFNAME", interface)]);
            assert!(says.starts_with("CNI_IFNAME: `"), "{says}");
        }
    }

    #[test]
    fn arguments_without_a_pod_are_refused_where_a_pod_is_needed_and_nowhere_else() {
        let of = |arguments: &str| {
            let variables =
                [("CNI_COMMAND", "DEL"), ("CNI_CONTAINERID", "c"), ("CNI_IFNAME", "e"), ("CNI_ARGS", arguments)];
            read(&variables).unwrap().pod().unwrap_err().details
        };
        assert!(of("").starts_with("CNI_ARGS: K8S_POD_NAMESPACE and K8S_POD_NAME missing"));
        assert!(of("IgnoreUnknown=1;K8S_POD_NAME=a").starts_with("CNI_ARGS: K8S_POD_NAMESPACE missing"));
        assert!(of("K8S_POD_NAME=a;K8S_POD_NAMESPACE=b;X=1").contains("`X` is unknown"));
        assert!(of("K8S_POD_NAME").contains("`K8S_POD_NAME` is not KEY=VALUE"));
    }
}
