//! Starts enforcement by nftables: takes over or creates the table, and loads the state.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::Context;
use bulkhead_control::renderer::nftables::{Epoch, NftRenderer};

use super::nobodys::Nobodys;
use super::status::Told;
use crate::args::Run;
use crate::config::{Config, WhenRefused};
use crate::log;
use crate::names::Names;
use crate::own_addresses;
use crate::state::LiveState;
use crate::watch::Watch;

use super::{Enforcer, admin, kernel, places};

impl Enforcer {
    /// Loads the state and starts the admin thread.
    ///
    /// # Errors
    /// If another process enforces here, the state cannot be loaded, or the system refuses a resource.
    pub(super) fn start(config: Config, args: &Run) -> anyhow::Result<Self> {
        let ownership = kernel::Ownership::take()?;
        let config_watch = Watch::new(std::slice::from_ref(&args.config));
        let addresses = own_addresses::read().unwrap_or_else(|error| {
            log::error(&format!(
                "cannot read the node's addresses from the kernel; only those in the state are used: {error}"
            ));
            BTreeSet::new()
        });
        let suspects = config.nftables.suspects();
        // Connections may carry the epoch of the previous process, whose policy may differ.
        let (epoch, has_earlier) = match kernel::epoch()? {
            Some(epoch) => {
                log::info("taking over the table of the previous process");
                (epoch, true)
            }
            None => {
                let epoch = Epoch::any(std::hash::RandomState::new().build_hasher().finish());
                // Addresses that may belong to pods are closed until the state is loaded.
                kernel::run(&NftRenderer::closed(config.node.clone(), suspects, epoch))?;
                (epoch, false)
            }
        };
        let mut state =
            LiveState::load(&config.state, None, &config.node, config.judging(), addresses, BTreeMap::new())?;
        // The kernel does not report verdicts, so there is no journal.
        state.record(None, config.enforcement);
        let handle =
            state.nft_renderer().context("no renderer of the kernel's ruleset exists: this is a bug in bulkhead")?;
        let mut told = Told::new(&config, &state);
        // Without a state, the ruleset of the previous process is the last valid one.
        told.is_kept = has_earlier && state.is_denying() && config.state.when_refused == WhenRefused::Keep;
        if told.is_kept {
            told.is_denying = false;
            log::warn("the table of the previous process stays in force until a state is loaded");
        }
        let settles = told.is_kept.then(Instant::now);
        let told = Arc::new(Mutex::new(told));
        let (ask, asked) = crossbeam_channel::bounded(1);
        let (names, lookups) = Names::new();
        let admin = admin::start(&config.admin, Arc::clone(&told), ask, names)?;
        Ok(Self {
            _ownership: ownership,
            config,
            config_path: args.config.clone(),
            node: args.node.clone(),
            config_watch,
            state,
            handle,
            epoch,
            settles,
            again: None,
            looked: Instant::now(),
            routes: places::host_routes().unwrap_or_default(),
            unplaced: BTreeSet::new(),
            nobodys: Nobodys::default(),
            is_to_be_told: false,
            lookups,
            failed: None,
            told,
            ready_file: args.ready_file.clone(),
            format: args.output,
            _admin: admin,
            asked,
        })
    }
}
