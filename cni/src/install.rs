//! `bulkhead cni install` and `uninstall`.
//!
//! The address ranges of a node's pods are written into the network configuration. An `ADD` then does not depend on another answer of the
//! vswitch, and another IPAM plugin can take the place of the plugin's own allocator. A node's podCIDRs never change.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use bulkhead_cluster::kubernetes::{Access, node_blocks};
use ipnet::IpNet;
use serde_json::{Value, json};

use super::version::Version;
use super::{NAME, ipam};
use crate::args::{CniInstall, CniPlace, CniVersion, NodeRange};
use bulkhead_answers::output;
use bulkhead_observe::admin::{DEFAULT_SOCKET, Request, exchange};

/// Name of the network, and of the folder with its reserved addresses.
const NETWORK: &str = "bulkhead";

/// Folder of the reserved addresses. Below /run, because no pod survives a reboot. Earlier versions gave it to `host-local`: their pods'
/// addresses stay reserved.
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
    let conf = configuration(&ranges(args)?, args.cni_version, &args.socket, args.mtu);
    ipam::check(&conf["plugins"][0]["ipam"]).map_err(|why| {
        anyhow!("the pods' address ranges cannot be used: {why}\n  help: give others with --range or --node-range")
    })?;
    let program = place.bin_dir.join(NAME);
    copy_program(&program, "--bin-dir")?;
    replace(&conflist, "--conf-dir", 0o644, |file| file.write_all(format!("{conf:#}\n").as_bytes()))?;
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

/// Returns the address ranges of the node's pods: of the arguments, else the node's podCIDRs.
///
/// Ranges of the arguments come first, so that a node that is named there does not depend on podCIDRs that another program may add later.
fn ranges(args: &CniInstall) -> anyhow::Result<Vec<IpNet>> {
    check_overlaps(&args.node_ranges)?;
    let Some(node) = &args.node else {
        return match args.ranges.is_empty() {
            true => asked(args.timeout, "the vswitch", "--range CIDR", || blocks_by_vswitch(args)),
            false => Ok(args.ranges.clone()),
        };
    };
    let own: Vec<IpNet> = args.node_ranges.iter().filter(|one| one.node == *node).map(|one| one.range).collect();
    match own.is_empty() {
        true => {
            let option = format!("--node-range {node}=CIDR");
            asked(args.timeout, "the API server", &option, || blocks_by_server(args, node))
        }
        false => Ok(own),
    }
}

/// Refuses ranges that two nodes share: pods of both would get the same addresses.
fn check_overlaps(ranges: &[NodeRange]) -> anyhow::Result<()> {
    for (at, NodeRange { node, range }) in ranges.iter().enumerate() {
        let overlaps = |other: &&NodeRange| other.range.contains(range) || range.contains(&other.range);
        if let Some(other) = ranges[..at].iter().filter(|other| other.node != *node).find(overlaps) {
            bail!(
                "--node-range: {range} of {node} overlaps with {} of {}\n  help: give each node its own range",
                other.range,
                other.node
            );
        }
    }
    Ok(())
}

/// Returns the network configuration list to install, as JSON.
///
/// `cniVersions` lists all versions, of which a runtime uses the newest that it knows. Runtimes older than 1.1.0 know only `cniVersion`.
fn configuration(ranges: &[IpNet], version: Option<CniVersion>, socket: &Path, mtu: Option<u32>) -> Value {
    // A pod gets one address from each set, so each family has one set.
    let set = |is_v4: bool| {
        let of = ranges.iter().filter(|range| range.addr().is_ipv4() == is_v4);
        of.map(|range| json!({"subnet": range.trunc()})).collect::<Vec<_>>()
    };
    let sets: Vec<_> = [set(true), set(false)].into_iter().filter(|set| !set.is_empty()).collect();
    let mut plugin = json!({
        "type": NAME,
        "socket": socket,
        "ipam": {"type": NAME, "dataDir": LEASES, "ranges": sets},
    });
    if let Some(mtu) = mtu {
        plugin["mtu"] = mtu.into();
    }
    let versions: &[Version] = match version {
        Some(CniVersion::V1_0) => &[Version::V1_0],
        Some(CniVersion::V1_1) => &[Version::V1_1],
        None => &[Version::V1_0, Version::V1_1],
    };
    let names: Vec<_> = versions.iter().map(|version| version.name()).collect();
    json!({"cniVersion": names[0], "cniVersions": names, "name": NETWORK, "plugins": [plugin]})
}

/// Requests the node's podCIDRs repeatedly until they are known or `patience` has passed. Errors name the source `whom`, and the option that
/// replaces it.
fn asked(
    patience: Duration,
    whom: &str,
    option: &str,
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
                "{whom} did not report the node's podCIDRs: {why}\n  help: give the pods' address ranges with {option}, or have \
                 kube-controller-manager assign podCIDRs (--allocate-node-cidrs)"
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
        let conf = configuration(&ranges, None, Path::new("/run/bulkhead/admin.sock"), Some(9000));
        let expected = r#"{
  "cniVersion": "1.0.0",
  "cniVersions": [
    "1.0.0",
    "1.1.0"
  ],
  "name": "bulkhead",
  "plugins": [
    {
      "type": "bulkhead-cni",
      "socket": "/run/bulkhead/admin.sock",
      "ipam": {
        "type": "bulkhead-cni",
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
        ipam::check(&conf["plugins"][0]["ipam"]).unwrap();
        let one = configuration(&ranges[..1], Some(CniVersion::V1_1), Path::new("/x"), None);
        assert!(
            one["plugins"][0].get("mtu").is_none()
                && one["plugins"][0]["ipam"]["ranges"].as_array().unwrap().len() == 1
        );
        assert_eq!((&one["cniVersion"], &one["cniVersions"]), (&json!("1.1.0"), &json!(["1.1.0"])));
    }

    #[test]
    fn ranges_that_two_nodes_share_are_refused() {
        let check = |ranges: &[&str]| {
            check_overlaps(&ranges.iter().map(|range| range.parse().unwrap()).collect::<Vec<_>>())
                .map_err(|error| error.to_string())
        };
        assert_eq!(check(&["n1=10.1.0.0/24", "n1=10.1.0.0/25", "n2=10.2.0.0/24", "n2=fd00::/64"]), Ok(()));
        for wider in ["n2=10.1.0.0/16", "n2=10.1.0.0/24", "n2=10.1.0.128/25"] {
            let error = check(&["n1=10.1.0.0/24", wider]).unwrap_err();
            assert!(error.contains("of n2 overlaps with 10.1.0.0/24 of n1\n  help: "), "{error}");
        }
        for (text, says) in
            [("10.1.0.0/24", "write NODE=CIDR"), ("=10.1.0.0/24", "write NODE"), ("n1=10.1", "`10.1` is no")]
        {
            assert!(text.parse::<NodeRange>().unwrap_err().starts_with(says));
        }
    }
}
