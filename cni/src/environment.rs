//! What the runtime says in environment variables.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use super::error::Error;

/// What shall be done.
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

    /// As the specification has it.
    pub(super) fn name(self) -> &'static str {
        Self::ALL.into_iter().find_map(|(name, command)| (command == self).then_some(name)).expect("all are listed")
    }

    /// The variables that it cannot do without.
    const fn needs(self) -> &'static [&'static str] {
        match self {
            Self::Add | Self::Check => &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"],
            Self::Del => &["CNI_CONTAINERID", "CNI_IFNAME"],
            Self::Gc | Self::Status | Self::Version => &[],
        }
    }
}

/// The variables. What a command does not need is empty when it is not said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Environment {
    pub(super) command: Command,
    /// `CNI_CONTAINERID`: of a pod's sandbox.
    pub(super) container: String,
    /// `CNI_IFNAME`: the interface in the container.
    pub(super) interface: String,
    /// `CNI_NETNS`: the path of the container's network namespace.
    pub(super) netns: Option<PathBuf>,
    /// `CNI_PATH`: where plugins are.
    pub(super) path: Vec<PathBuf>,
    /// `CNI_ARGS` as it is: only `ADD` looks into it, so that nothing that is wrong with it keeps a `DEL` from succeeding.
    arguments: OsString,
}

impl Environment {
    /// Reads the variables.
    ///
    /// # Errors
    /// Which are missing, or wrong.
    pub(super) fn read(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, Error> {
        let text = |name: &str| match variable(name) {
            None => Ok(String::new()),
            Some(value) => value.into_string().map_err(|_| Error::environment(format!("{name}: it is not UTF-8 text"))),
        };
        let command = text("CNI_COMMAND")?;
        let names = || Command::ALL.map(|(name, _)| name).join(", ");
        let known = Command::ALL.into_iter().find_map(|(name, known)| (name == command).then_some(known));
        let command = known.ok_or_else(|| {
            Error::environment(match command.as_str() {
                "" => format!("CNI_COMMAND: it is missing; a container runtime runs this plugin and says {}", names()),
                other => format!("CNI_COMMAND: `{other}` is none of {}", names()),
            })
        })?;
        let missing: Vec<_> = command
            .needs()
            .iter()
            .filter(|name| variable(name).is_none_or(|value| value.is_empty()))
            .copied()
            .collect();
        if !missing.is_empty() {
            return Err(Error::environment(format!("{}: missing, {} needs it", missing.join(", "), command.name())));
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

    /// Which pod the container is.
    ///
    /// # Errors
    /// When `CNI_ARGS` does not say, or is malformed.
    pub(super) fn pod(&self) -> Result<Pod, Error> {
        Pod::read(&self.arguments).map_err(|why| Error::environment(format!("CNI_ARGS: {why}")))
    }
}

/// A pod as the runtime names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pod {
    pub(super) namespace: String,
    pub(super) name: String,
    /// Older runtimes do not say it.
    pub(super) uid: Option<String>,
}

impl Pod {
    /// Reads `KEY=VALUE;KEY=VALUE`.
    fn read(arguments: &OsStr) -> Result<Self, String> {
        let arguments = arguments.to_str().ok_or("it is not UTF-8 text")?;
        let (mut pod, mut unknown, mut ignores_unknown) = (Self::default(), None, false);
        for pair in arguments.split(';').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| format!("`{pair}` is not KEY=VALUE"))?;
            match key {
                "K8S_POD_NAMESPACE" => pod.namespace = value.to_owned(),
                "K8S_POD_NAME" => pod.name = value.to_owned(),
                "K8S_POD_UID" => pod.uid = Some(value.to_owned()).filter(|uid| !uid.is_empty()),
                // The same as CNI_CONTAINERID.
                "K8S_POD_INFRA_CONTAINER_ID" => {}
                // As the runtimes' own library reads it.
                "IgnoreUnknown" => ignores_unknown = ["1", "t", "T", "true", "TRUE", "True"].contains(&value),
                _ => unknown = Some(key),
            }
        }
        if let Some(key) = unknown.filter(|_| !ignores_unknown) {
            return Err(format!("`{key}` is unknown, and there is no IgnoreUnknown=1"));
        }
        let missing = [("K8S_POD_NAMESPACE", &pod.namespace), ("K8S_POD_NAME", &pod.name)];
        let missing = missing.into_iter().filter(|(_, value)| value.is_empty()).map(|(key, _)| key);
        let missing = missing.collect::<Vec<_>>().join(" and ");
        if !missing.is_empty() {
            return Err(format!("{missing} missing; policy is a pod's, so the runtime has to say which pod it is"));
        }
        Ok(pod)
    }
}

/// A container ID or a network's name: it becomes part of file names.
pub(super) fn check_identifier(text: &str) -> Result<(), String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    match text.chars().next() {
        None => Err("it is empty".to_owned()),
        Some(first) if first.is_ascii_alphanumeric() && text.chars().all(is_plain) => Ok(()),
        Some(_) => Err(format!("`{text}` is not a letter or digit followed by letters, digits, `_`, `.` and `-`")),
    }
}

/// An interface's name, as Linux has it.
fn check_interface(name: &str) -> Result<(), String> {
    /// `IFNAMSIZ` with the zero at its end.
    const LONGEST: usize = 15;
    let is_bad = |c: char| c == '/' || c == ':' || c.is_whitespace();
    if name.len() > LONGEST || name == "." || name == ".." || name.contains(is_bad) {
        return Err(format!(
            "`{name}` is not the name of an interface: at most {LONGEST} bytes without `/`, `:` and spaces"
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
        assert!(details(&[]).starts_with("CNI_COMMAND: it is missing"));
        assert!(details(&[("CNI_COMMAND", "add")]).starts_with("CNI_COMMAND: `add` is none of ADD, DEL"));
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
