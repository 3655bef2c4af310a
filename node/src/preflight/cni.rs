//! Checks which network plugin the container runtime uses.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{Finding, Severity};

/// The folder from which container runtimes read network configurations.
pub(crate) const FOLDER: &str = "/etc/cni/net.d";

/// The plugin's name in network configurations.
const PLUGIN: &str = "bulkhead-cni";

/// Returns a warning if the runtime uses another network configuration of this folder than the one with the plugin. `None` if no configuration
/// has the plugin, or the folder cannot be read.
pub(crate) fn check(folder: &Path) -> Option<Finding> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| [".conf", ".conflist", ".json"].iter().any(|ending| name.ends_with(ending)))
        .collect();
    names.sort();
    let is_ours = |name: &String| fs::read(folder.join(name)).is_ok_and(|text| has_plugin(&text));
    let at = names.iter().position(is_ours).filter(|&at| at > 0)?;
    let (ours, before) = (&names[at], &names[..at]);
    let (folder, before_names) = (folder.display(), before.join(", "));
    let remove = |name: &String| format!("mv {folder}/{name} {folder}/{name}.unused");
    Some(Finding {
        severity: Severity::Warning,
        what: format!("the container runtime uses {} instead of {ours} in {folder}", before[0]),
        why: format!(
            "it takes the first network configuration in the order of the names; pods that start now are not connected to the vswitch \
             ({before_names} sort before)"
        ),
        remedy: before.iter().map(remove).collect::<Vec<_>>().join("\n"),
        comes_again: false,
    })
}

/// Whether a network configuration, or a list of them, has the plugin.
fn has_plugin(text: &[u8]) -> bool {
    let Ok(conf) = serde_json::from_slice::<Value>(text) else { return false };
    let listed = conf["plugins"].as_array().into_iter().flatten();
    listed.chain([&conf]).any(|plugin| plugin["type"] == PLUGIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_configuration_that_the_runtime_reads_first_is_told_with_what_moves_it_away() {
        let scratch = Scratch::new("cni-order");
        let folder = scratch.path();
        let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
        assert_eq!(check(&folder.join("none")), None);
        write("10-flannel.conflist", r#"{"plugins":[{"type":"flannel"}]}"#);
        assert_eq!(check(folder), None, "the vswitch may be used without the plugin");
        write("05-bulkhead.conflist", r#"{"plugins":[{"type":"bulkhead-cni"}]}"#);
        write("00-note.txt", "");
        write("04-backup.conflist.unused", "{}");
        assert_eq!(check(folder), None);
        write("01-broken.conf", "{");
        write("04-cilium.conflist", r#"{"plugins":[{"type":"cilium-cni"}]}"#);
        let finding = check(folder).unwrap();
        assert!(finding.what.contains("uses 01-broken.conf instead of 05-bulkhead.conflist"), "{finding}");
        assert_eq!(finding.remedy.lines().count(), 2, "{finding}");
        assert!(finding.remedy.contains("/04-cilium.conflist.unused"), "{finding}");
        // Behind another plugin, as the second of a chain.
        write("01-broken.conf", r#"{"type":"bulkhead-cni"}"#);
        assert_eq!(check(folder), None);
    }
}
