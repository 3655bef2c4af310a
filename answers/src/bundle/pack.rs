//! Writes a bundle.

use std::collections::BTreeMap;
use std::io::Write;

use bulkhead_control::attachments::Attachment;
use bulkhead_control::object::PodName;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::{FOLDER, FORMAT, MANIFEST, Manifest, Member, Settings, VERSION, digest};

/// Contents of a new bundle.
#[derive(Debug)]
pub struct Contents {
    /// Name of the node.
    pub node: String,
    /// Creation time, RFC 3339.
    pub made: String,
    /// Settings of the state. `None` if the bundle has no state.
    pub settings: Option<Settings>,
    /// Attached pods with their assigned addresses.
    pub attached: Vec<(PodName, Attachment)>,
    /// Bytes of the members without the manifest, by member name.
    pub members: BTreeMap<&'static str, Vec<u8>>,
}

impl Contents {
    /// Writes the manifest, then the other members.
    ///
    /// # Errors
    /// If `out` cannot be written.
    pub fn pack(&self, out: impl Write) -> anyhow::Result<()> {
        let member = |bytes: &[u8]| Member { length: bytes.len() as u64, sha256: digest(bytes) };
        let manifest = Manifest {
            format: FORMAT.into(),
            version: VERSION,
            program: env!("CARGO_PKG_VERSION").into(),
            node: self.node.clone(),
            made: self.made.clone(),
            settings: self.settings.clone(),
            attached: self.attached.clone(),
            members: self.members.iter().map(|(name, bytes)| ((*name).into(), member(bytes))).collect(),
        };
        let manifest = serde_json::to_vec_pretty(&manifest)?;
        let mut archive = tar::Builder::new(GzEncoder::new(out, Compression::fast()));
        let members = self.members.iter().map(|(name, bytes)| (*name, bytes));
        for (name, bytes) in std::iter::once((MANIFEST, &manifest)).chain(members) {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o600);
            archive.append_data(&mut header, format!("{FOLDER}/{name}"), &bytes[..])?;
        }
        archive.into_inner()?.finish()?.flush()?;
        Ok(())
    }
}
