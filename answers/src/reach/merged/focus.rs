//! Restricts the matrix to the connections of named ends (`reach --focus`).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::anyhow;
use bulkhead_control::cache::Cache;
use bulkhead_control::object::{Pod, PodName};
use bulkhead_control::source::nearest_word;

use super::{Answer, Cells, End, Merged, Reached};
use crate::args::Focus;
use crate::named::{self, Named};

impl Merged {
    /// Restricts the output to connections of the named ends or namespaces.
    ///
    /// # Errors
    /// If a name matches no end.
    pub(in crate::reach) fn focus(&mut self, cache: &Cache, names: &[Focus]) -> anyhow::Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        let mut in_focus = vec![false; self.ends.len()];
        for name in names {
            let is_meant = self.meant(cache, name).map_err(|problem| anyhow!("--focus {name}: {problem}"))?;
            in_focus.iter_mut().zip(is_meant).for_each(|(in_focus, is_meant)| *in_focus |= is_meant);
        }
        let passes = |from: usize, to: usize| {
            self.cells.cell(from, to).iter().flatten().any(|answer| *answer != Answer::of(Reached::No))
        };
        let talks = |at: usize| (0..self.ends.len()).any(|of| in_focus[of] && (passes(at, of) || passes(of, at)));
        let kept: Vec<usize> = (0..self.ends.len()).filter(|&at| in_focus[at] || talks(at)).collect();
        let cells = Cells::new(kept.len(), |from, to, answers| {
            answers.extend_from_slice(self.cells.cell(kept[from], kept[to]));
        });
        *self = Self {
            ends: kept.iter().map(|&at| self.ends[at].clone()).collect(),
            in_focus: kept.iter().map(|&at| in_focus[at]).collect(),
            cells,
            questions: std::mem::take(&mut self.questions),
        };
        Ok(())
    }

    /// Returns for each end whether the name means it.
    ///
    /// # Errors
    /// The problem and its remedy, if the name means no end.
    fn meant(&self, cache: &Cache, name: &Focus) -> Result<Vec<bool>, String> {
        let all = |is_meant: &dyn Fn(&End) -> bool| -> Vec<bool> { self.ends.iter().map(is_meant).collect() };
        let (meant, help) = match name {
            Focus::Namespace(name) => {
                let known = self.ends.iter().filter_map(|end| end.namespace.as_deref());
                let near = nearest_word(name, known).map(|near| format!("did you mean {near}?"));
                let help = near.unwrap_or_else(|| "write a namespace with pods, or NAMESPACE/NAME".to_owned());
                (all(&|end| end.namespace.as_ref() == Some(name)), help)
            }
            Focus::End(name) => {
                let (pods, outside) = match named::find(cache, name).map_err(|unknown| unknown.to_string())? {
                    Named::Pods(pods) => (pods, Vec::new()),
                    Named::Node(addresses) => (pods_at(cache, &addresses), addresses),
                    Named::Address(address) => (pods_at(cache, &[address]), vec![address]),
                };
                let pods: BTreeSet<&PodName> = pods.into_iter().map(|pod| &pod.name).collect();
                let outside: Vec<String> = outside.iter().map(ToString::to_string).collect();
                let is_outside = |end: &End| end.namespace.is_none() && outside.contains(&end.name);
                let is_meant = |end: &End| is_outside(end) || end.pods.iter().any(|pod| pods.contains(pod));
                (all(&is_meant), "no pod has its address; add it with --external".to_owned())
            }
        };
        if meant.contains(&true) { Ok(meant) } else { Err(format!("it is none of the ends\n  help: {help}")) }
    }
}

/// Returns the pods with any of the addresses.
fn pods_at<'a>(cache: &'a Cache, addresses: &[IpAddr]) -> Vec<&'a Arc<Pod>> {
    let has_one = |pod: &&Arc<Pod>| pod.addresses.iter().any(|address| addresses.contains(address));
    cache.pods().map(|(_, pod)| pod).filter(has_one).collect()
}
