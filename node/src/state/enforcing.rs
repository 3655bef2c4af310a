//! Takes over what the pipeline has compiled, and tells what is in force.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bulkhead_answers::{contests, run};
use bulkhead_control::attachments::Attachment;
use bulkhead_control::object::{Denied, PodName};

use super::LiveState;
use super::masquerade::Masquerading;
use crate::composer::Policy;
use crate::{log, remote_nodes};

impl LiveState {
    /// Takes over the compiled tables and logs new warnings. Returns whether anything in force changed.
    pub(super) fn enforce(
        &mut self,
        mut warnings: BTreeSet<String>,
        unenforced: BTreeSet<String>,
        faulty: usize,
        unenforced_kinds: usize,
    ) -> anyhow::Result<bool> {
        let contests = self.pipeline.contests();
        warnings.extend(contests.iter().map(contests::told));
        warnings.extend(run::left_open(&self.pipeline));
        if self.kernel_revision().is_some() {
            warnings.extend(run::unlearned(&self.pipeline, "the node's kernel"));
        }
        warnings.extend(run::refusals(&self.pipeline));
        warnings.extend(run::unaudited(&self.pipeline));
        self.tell(&warnings, log::warn);
        self.told = warnings.into_iter().chain(unenforced).collect();
        let is_other = self.take_tables(contests.len())?;
        let has_changed = std::mem::take(&mut self.denied) || is_other;
        self.counts.applied.fetch_add(u64::from(has_changed || self.api.is_none()), Ordering::Relaxed);
        self.counts.faulty.store(faulty as u64, Ordering::Relaxed);
        self.counts.unenforced_kinds.store(unenforced_kinds as u64, Ordering::Relaxed);
        Ok(has_changed)
    }

    /// Takes over the tables that the pipeline has compiled. Returns whether they differ from those in force.
    pub(super) fn take_tables(&mut self, contests: usize) -> anyhow::Result<bool> {
        self.tell_nodes();
        let (tables, is_other_kernel) = match self.kernel_revision() {
            None => (run::node_tables(&self.pipeline, &self.node)?, false),
            // The kernel gets changes instead of tables.
            Some(revision) => {
                run::check_node(&self.pipeline, &self.node)?;
                let before = std::mem::replace(&mut self.kernel.revision, revision);
                (Arc::clone(&self.tables), before != revision)
            }
        };
        run::check_addresses(&tables)?;
        self.kernel.is_held = false;
        self.tell_judging();
        let (audit, audited) = (self.pipeline.audit_tables(&self.node), self.pipeline.audited_policies());
        self.origins.follow(self.pipeline.origins());
        let remote_nodes = remote_nodes::remote_nodes(&self.pipeline, &self.node);
        let refusing = [Denied::Drop, Denied::Refuse].map(|default| self.pipeline.refusing_origins(default).into());
        let blocks = run::pod_networks(&self.pipeline, &self.node).to_vec();
        let (has_other_primary, is_masqueraded_otherwise) = (self.find_primary(), self.follow_masquerade());
        let is_same = Arc::ptr_eq(&tables, &self.tables)
            && !is_other_kernel
            && !is_masqueraded_otherwise
            && *remote_nodes == *self.remote_nodes
            && *blocks == *self.pod_networks
            && !has_other_primary
            && refusing == self.refusing
            && audit.as_ref() == self.audit.as_deref()
            && audited == *self.audited;
        (self.audit, self.audited) = (audit.map(Arc::new), Arc::new(audited));
        (self.tables, self.remote_nodes, self.refusing) = (tables, remote_nodes.into(), refusing);
        self.pod_networks = blocks.into();
        self.follow_host_ports();
        self.counts.contested_addresses.store(contests as u64, Ordering::Relaxed);
        self.counts.refused_tables.store(self.pipeline.refusals().len() as u64, Ordering::Relaxed);
        Ok(!is_same)
    }

    /// Replaces the attached pods. Returns whether anything in force changed.
    pub(crate) fn attach(&mut self, pods: BTreeMap<PodName, Attachment>) -> bool {
        self.changes.note_attached(&pods);
        let taken = self.pipeline.attach(pods).map_err(anyhow::Error::from);
        if self.counts.applied.load(Ordering::Relaxed) == 0 {
            // The first state will include them.
            return false;
        }
        let contests = self.pipeline.contests();
        match taken.and_then(|()| self.take_tables(contests.len())) {
            Ok(has_changed) => {
                let findings = contests.iter().map(contests::told).chain(run::refusals(&self.pipeline)).collect();
                self.tell(&findings, log::warn);
                has_changed
            }
            Err(error) => {
                log::error(&format!(
                    "cannot enforce policy for the attached pods; the previous state stays in force\n{error:#}"
                ));
                false
            }
        }
    }

    /// Returns the policy to enforce: that of the last good state, or one that denies all pod traffic.
    pub(crate) fn policy(&self) -> Policy {
        let in_force = Policy {
            tables: Arc::clone(&self.tables),
            audit: self.audit.clone(),
            audited: Arc::clone(&self.audited),
            remote_nodes: Arc::clone(&self.remote_nodes),
            pod_networks: Arc::clone(&self.pod_networks),
            node_addresses: Arc::clone(&self.primary),
            masquerade: self.masquerading.as_ref().map(Masquerading::value),
            names: self.names.clone(),
            refusing: self.refusing.clone(),
            denied: false,
            is_told: self.api.is_none() || self.counts.applied.load(Ordering::Relaxed) <= 1,
        };
        if !self.denied {
            return in_force;
        }
        Policy {
            tables: Arc::clone(&self.without),
            audit: None,
            audited: Arc::default(),
            remote_nodes: [].into(),
            pod_networks: [].into(),
            names: None,
            refusing: [[].into(), [].into()],
            denied: true,
            ..in_force
        }
    }
}
