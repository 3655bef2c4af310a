//! The tables that differ between two states of the cache.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::RendererState;
use crate::object::PodName;
use crate::renderer::contiv::table::{Table, TableChange};

impl RendererState {
    /// Returns the changes from `before` to this state: local tables in table order, then the global table.
    pub(in crate::renderer::contiv) fn changes_since(&self, before: &Self) -> Vec<TableChange> {
        let none = Arc::new(BTreeSet::new());
        let mut locals = Vec::new();
        for (id, old) in &before.tables {
            let now = self.tables.get(id).filter(|now| Arc::ptr_eq(&now.table, &old.table) || now.table == old.table);
            let pods = now.map_or(&none, |now| &now.pods);
            if *pods != old.pods || now.is_none() {
                locals.push((&old.table, &old.pods, pods));
            }
        }
        for (id, new) in &self.tables {
            if before.tables.get(id).is_none_or(|old| old.table != new.table) {
                locals.push((&new.table, &none, &new.pods));
            }
        }
        locals.sort_by(|(a, ..), (b, ..)| in_table_order(a, b));
        let local = |(table, previous, pods): (&Arc<Table>, &Arc<BTreeSet<PodName>>, &Arc<BTreeSet<PodName>>)| {
            TableChange::Local { table: table.clone(), previous: (**previous).clone(), pods: (**pods).clone() }
        };
        let mut changes: Vec<_> = locals.into_iter().map(local).collect();
        if self.global.rules != before.global.rules {
            changes.push(TableChange::Global { table: self.global.clone() });
        }
        changes
    }
}

pub(super) fn in_table_order(a: &Table, b: &Table) -> Ordering {
    a.rules.len().cmp(&b.rules.len()).then_with(|| a.rules.iter().cmp(&b.rules))
}
