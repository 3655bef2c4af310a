//! The texts of all names, as a snapshot that readers keep without a lock.

use std::sync::Arc;

use super::{NameId, memory};

/// Texts per page. If readers keep the previous snapshot, adding a name copies one page and the list of pages. With 64, both have a similar
/// size at the maximum number of names.
const PAGE: usize = 64;

#[derive(Clone, Debug)]
struct Page([Option<(NameId, Arc<str>)>; PAGE]);

/// The texts of names, by the slots of their ids. A clone is a snapshot that never changes, and costs one reference count.
#[derive(Clone, Debug, Default)]
pub(super) struct Texts(Arc<Vec<Arc<Page>>>);

impl Texts {
    /// Returns the text of a name. `None` if the name has been evicted or never existed.
    pub(super) fn get(&self, id: NameId) -> Option<&Arc<str>> {
        let (own, text) = self.0.get(id.slot() / PAGE)?.0[id.slot() % PAGE].as_ref()?;
        (*own == id).then_some(text)
    }

    /// Stores the text of a name, whose slot is either in use or the first unused one.
    pub(super) fn set(&mut self, id: NameId, text: Arc<str>) {
        let pages = Arc::make_mut(&mut self.0);
        if id.slot() / PAGE == pages.len() {
            pages.push(Arc::new(Page([const { None }; PAGE])));
        }
        if let Some(page) = pages.get_mut(id.slot() / PAGE) {
            Arc::make_mut(page).0[id.slot() % PAGE] = Some((id, text));
        }
    }

    /// Returns the estimated heap use in bytes, without the texts themselves.
    pub(super) fn bytes(&self) -> usize {
        memory::vec(&self.0) + self.0.len() * memory::allocation(size_of::<Page>() + 16)
    }
}
