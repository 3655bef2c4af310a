//! `bulkhead cni install` and `uninstall`.
//!
//! The address ranges of a node's pods are written into the network configuration. `host-local` reads them there, because an IPAM plugin
//! gets the configuration unchanged. `DEL` needs them even while the vswitch is down. A node's podCIDRs never change.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use bulkhead_cluster::kubernetes::{Access, node_blocks};
use ipnet::IpNet;
use serde_json::{Value, json};

use super::NAME;
use super::version::Version;
use crate::args::{CniInstall, CniPlace, CniVersion};
use bulkhead_answers::output;
use bulkhead_observe::admin::{DEFAULT_SOCKET, Request, exchange};

/// Name of the network, under which `host-local` stores its leases.
const NETWORK: &str = "bulkhead";

/// Name of the IPAM plugin, which assigns addresses to pods.
const IPAM: &str = "host-local";

/// Folder of the leases. Below /run, because no lease is valid after a reboot.
const LEASES: &str = "/run/bulkhead/ipam";

/// Interval between requests for podCIDRs that are not known yet.
const INTERVAL: Duration = Duration::from_millis(200);

/// Timeout of one request to the vswitch.
const PATIENCE: Duration = Duration::from_secs(10);

/// `bulkhead cni install`: writes the plugin and the network configuration.
///
/// # Errors
/// If a file cannot be written, or the podCIDRs remain unknown.
pub fn install(args: &CniInstall) -> anyhow::Result<ExitCode> {
    let place = &args.place;
    let conflist = conflist_path(place)?;
    if !args.socket.is_absolute() {
        // The runtime chooses the plugin's working directory.
        bail!(
            "--socket: {} is not an absolute path\n  help: give a path such as {DEFAULT_SOCKET}",
            args.socket.display()
        );
    }
    let ranges = match &args.node {
        _ if !args.ranges.is_empty() => args.ranges.clone(),
        Some(node) => asked(args.timeout, "the API server", || blocks_by_server(args, node))?,
        None => asked(args.timeout, "the vswitch", || blocks_by_vswitch(args))?,
    };
    let ipam = place.bin_dir.join(IPAM);
    if !ipam.is_file() {
        output::warn(&format!(
            "{} is missing, and no pod can be added without it\n  help: it is one of the containernetworking plugins, \
             which distributions and Kubernetes' packages bring",
            ipam.display()
        ));
    }
    let version = args.cni_version.map_or_else(
        || version_of(&ipam),
        |version| match version {
            CniVersion::V1_0 => Version::V1_0,
            CniVersion::V1_1 => Version::V1_1,
        },
    );
    let program = place.bin_dir.join(NAME);
    copy_program(&program, "--bin-dir")?;
    let text = format!("{:#}\n", configuration(&ranges, version, &args.socket, args.mtu));
    replace(&conflist, "--conf-dir", 0o644, |file| file.write_all(text.as_bytes()))?;
    say(&format!("installed {} and {}", program.display(), conflist.display()))
}

/// `bulkhead cni uninstall`: removes the network configuration first, so that the runtime starts no pod without a plugin.
///
/// # Errors
/// If a file cannot be removed, or the network configuration belongs to another plugin.
pub fn uninstall(place: &CniPlace) -> anyhow::Result<ExitCode> {
    let conflist = conflist_path(place)?;
    if let Some(text) = read(&conflist)? {
        let plugins = serde_json::from_slice::<Value>(&text).ok();
        let plugins = plugins.as_ref().and_then(|conf| conf["plugins"].as_array());
        if !plugins.is_some_and(|plugins| plugins.iter().any(|plugin| plugin["type"] == NAME)) {
            bail!("{} belongs to another plugin\n  help: name the file with --conflist-name", conflist.display());
        }
    }
    for path in [conflist, place.bin_dir.join(NAME)] {
        match fs::remove_file(&path) {
            Ok(()) => say(&format!("removed {}", path.display()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => ExitCode::SUCCESS,
            Err(error) => bail!(
                "cannot remove {}: {error}\n  help: run as root, with the folder mounted writable",
                path.display()
            ),
        };
    }
    Ok(ExitCode::SUCCESS)
}

fn say(text: &str) -> anyhow::Result<ExitCode> {
    writeln!(output::stdout(), "{text}")?;
    Ok(ExitCode::SUCCESS)
}

fn conflist_path(place: &CniPlace) -> anyhow::Result<PathBuf> {
    let name = &place.conflist_name;
    // Runtimes ignore hidden files, and read files without this ending as a single plugin's configuration.
    if name.contains('/') || !name.ends_with(".conflist") || name.starts_with('.') {
        bail!("--conflist-name: `{name}` is not a file name that ends in .conflist");
    }
    Ok(place.conf_dir.join(name))
}

/// Returns the network configuration list to install, as JSON.
fn configuration(ranges: &[IpNet], version: Version, socket: &Path, mtu: Option<u32>) -> Value {
    // `host-local` assigns one address from each set, so each family has one set.
    let set = |is_v4: bool| {
        let of = ranges.iter().filter(|range| range.addr().is_ipv4() == is_v4);
        of.map(|range| json!({"subnet": range.trunc()})).collect::<Vec<_>>()
    };
    let sets: Vec<_> = [set(true), set(false)].into_iter().filter(|set| !set.is_empty()).collect();
    let mut plugin = json!({
        "type": NAME,
        "socket": socket,
        "ipam": {"type": IPAM, "dataDir": LEASES, "ranges": sets},
    });
    if let Some(mtu) = mtu {
        plugin["mtu"] = mtu.into();
    }
    json!({"cniVersion": version.name(), "name": NETWORK, "plugins": [plugin]})
}

/// Returns the newest CNI version that the IPAM plugin supports too, since it gets the same configuration. 1.0.0 if the plugin does not
/// report its versions.
fn version_of(ipam: &Path) -> Version {
    let ask = || {
        let mut command = Command::new(ipam);
        let output = command.env("CNI_COMMAND", "VERSION").stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
        let answer: Value = serde_json::from_slice(&output.stdout).ok()?;
        let spoken =
            answer["supportedVersions"].as_array()?.iter().filter_map(|version| Version::named(version.as_str()?));
        spoken.max()
    };
    ask().unwrap_or(Version::V1_0)
}

/// Requests the node's podCIDRs repeatedly until they are known or `patience` has passed. `whom` names the source in errors.
fn asked(
    patience: Duration,
    whom: &str,
    mut ask: impl FnMut() -> Result<Vec<IpNet>, String>,
) -> anyhow::Result<Vec<IpNet>> {
    let deadline = Instant::now() + patience;
    loop {
        let why = match ask() {
            Ok(known) if !known.is_empty() => return Ok(known),
            Ok(_) => "it has no Node of that name with podCIDRs".to_owned(),
            Err(error) => error,
        };
        if Instant::now() >= deadline {
            bail!(
                "{whom} did not report the node's podCIDRs: {why}\n  help: give the pods' address ranges with --range"
            );
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Requests the podCIDRs of the vswitch's Node from the vswitch. The error says why it does not know them.
fn blocks_by_vswitch(args: &CniInstall) -> Result<Vec<IpNet>, String> {
    let status = exchange(&args.socket, &Request::Status, PATIENCE).map_err(|error| error.to_string())?;
    let known: Vec<IpNet> = serde_json::from_value(status["pod_networks"].clone()).unwrap_or_default();
    if known.is_empty() {
        let node = status["node"].as_str().unwrap_or("of its own");
        return Err(format!("it has no Node {node} with podCIDRs"));
    }
    Ok(known)
}

/// Requests the podCIDRs of a Node from the API server. Empty if it has none yet.
fn blocks_by_server(args: &CniInstall, node: &str) -> Result<Vec<IpNet>, String> {
    let access = match &args.kubeconfig {
        Some(path) => Access::Kubeconfig { path: path.clone(), context: None },
        None => Access::InCluster,
    };
    node_blocks(access, node)
}

/// Copies the running program. `option` names the target folder's option, for errors.
fn copy_program(to: &Path, option: &str) -> anyhow::Result<()> {
    let own = "/proc/self/exe";
    let mut from = File::open(own).with_context(|| format!("cannot read {own}"))?;
    replace(to, option, 0o755, |file| io::copy(&mut from, file).map(drop))
}

/// Replaces a file atomically: writes a hidden file beside it and renames that. `option` names the folder's option, for errors.
fn replace(
    path: &Path,
    option: &str,
    mode: u32,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> anyhow::Result<()> {
    let mut hidden = OsString::from(".");
    hidden.push(path.file_name().unwrap_or_default());
    hidden.push(format!(".{}", std::process::id()));
    let hidden = path.with_file_name(hidden);
    let make = || {
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
        let _ = fs::remove_file(&hidden);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&hidden)?;
        // Independent of the umask: the runtime may be another user's process.
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(mode))?;
        write(&mut file)?;
        file.sync_all()?;
        drop(file);
        fs::rename(&hidden, path)
    };
    make().inspect_err(|_| drop(fs::remove_file(&hidden))).map_err(|error| {
        anyhow!(
            "cannot write {}: {error}\n  help: run as root and name a writable folder of the node with {option}",
            path.display()
        )
    })
}

fn read(path: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => bail!("cannot read {}: {error}\n  help: --conf-dir names the folder", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_has_a_set_of_ranges_for_each_family() {
        let ranges = ["10.244.1.0/24", "fd00:244:1::/64", "10.245.1.0/24"].map(|range| range.parse().unwrap());
        let conf = configuration(&ranges, Version::V1_1, Path::new("/run/bulkhead/admin.sock"), Some(9000));
        let expected = r#"{
  "cniVersion": "1.1.0",
  "name": "bulkhead",
  "plugins": [
    {
      "type": "bulkhead-cni",
      "socket": "/run/bulkhead/admin.sock",
      "ipam": {
        "type": "host-local",
        "dataDir": "/run/bulkhead/ipam",
        "ranges": [
          [
            {
              "subnet": "10.244.1.0/24"
            },
            {
              "subnet": "10.245.1.0/24"
            }
          ],
          [
            {
              "subnet": "fd00:244:1::/64"
            }
          ]
        ]
      },
      "mtu": 9000
    }
  ]
}"#;
        assert_eq!(format!("{conf:#}"), expected);
        let one = configuration(&ranges[..1], Version::V1_0, Path::new("/x"), None);
        assert!(
            one["plugins"][0].get("mtu").is_none()
                && one["plugins"][0]["ipam"]["ranges"].as_array().unwrap().len() == 1
        );
    }

    #[test]
    fn a_plugin_that_does_not_say_its_versions_is_taken_for_an_old_one() {
        assert_eq!(version_of(Path::new("/no/such/plugin")), Version::V1_0);
        assert_eq!(version_of(Path::new("/bin/true")), Version::V1_0);
    }
}
