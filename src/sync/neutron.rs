//! `bulkhead sync neutron`: makes the security groups of a Neutron server match the policies.
//!
//! ```text
//!  state --compile--> desired --.
//!                               +--plan--> requests --client--> server
//!  server --lists--> listed ----'                                  |
//!            ^-----------------------------------------------------'  once more, to check that nothing is missing
//! ```
//! **Invariant.** A run can be interrupted and repeated at any point: the next requests follow from what the server lists. The token is
//! sent to the given endpoint only and never logged.

use std::collections::BTreeSet;
use std::io::{BufWriter, Write};
use std::process::ExitCode;

use anyhow::{Context, bail};
use bulkhead_cluster::neutron::{Apply, Client};
use bulkhead_control::renderer::neutron::Desired;
use bulkhead_control::renderer::neutron::plan::{Plan, placeholder, plan};
use serde_json::{Value, json};

use crate::args::SyncNeutron;
use bulkhead_answers::args::Format;
use bulkhead_answers::compile::neutron::{call_value, desired, owner};
use bulkhead_answers::{output, run};

/// Environment variable with the token, as in OpenStack's own client.
const TOKEN: &str = "OS_TOKEN";

pub(crate) fn run(args: &SyncNeutron) -> anyhow::Result<ExitCode> {
    let token = std::env::var(TOKEN).ok().filter(|token| !token.is_empty()).with_context(|| {
        format!(
            "environment variable {TOKEN} is not set\n  help: {TOKEN}=$(openstack token issue -f value -c id) bulkhead sync neutron ..."
        )
    })?;
    let mut pipeline = run::load(&run::Input::open(&args.state)?, None)?;
    run::enforce_all(&mut pipeline, "OpenStack")?;
    run::unlearned(&pipeline, "OpenStack").iter().for_each(output::warn);
    let desired = desired(&mut pipeline, args.state.lenient)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = Client::new(&args.endpoint, &token, args.retries)?;
    if client.is_overheard() {
        let text = "the token is sent unencrypted over http";
        output::warn(&format!("{text}\n  help: use an https endpoint if the server has one"));
    }
    let sync = Sync { args, owner: owner(&args.cluster), desired: &desired, client };
    runtime.block_on(sync.run())
}

struct Sync<'a> {
    args: &'a SyncNeutron,
    owner: String,
    desired: &'a Desired,
    client: Client,
}

impl Sync<'_> {
    async fn plan(&self) -> anyhow::Result<Plan> {
        let listed = self.client.listed(&self.owner, self.args.network.as_deref()).await?;
        // A truncated or wrong file looks like a cluster without pods.
        if self.desired.ports.is_empty() && !listed.groups.is_empty() && !self.args.allow_empty {
            bail!(
                "the state has no pods, so the {} groups of cluster {} on the server would be deleted and their ports closed\n  \
                 help: pass the complete state with --state, or --allow-empty to delete the groups",
                listed.groups.len(),
                self.args.cluster
            );
        }
        let keep: BTreeSet<String> = self.args.keep_groups.iter().cloned().collect();
        let plan = plan(self.desired, &listed, &self.owner, &keep);
        if let Some(older) = plan.older.first().filter(|_| !self.args.allow_older) {
            let count = plan.older.len();
            bail!(
                "the state is older than the server's groups: {older} ({count} such groups)\n  \
                 help: export the state again, or pass --allow-older to go back to it"
            );
        }
        Ok(plan)
    }

    async fn run(self) -> anyhow::Result<ExitCode> {
        let plan = self.plan().await?;
        if self.args.dry_run {
            self.show(&plan)?;
            let is_done = plan.requests.is_empty() && plan.problems.is_empty();
            return Ok(ExitCode::from(u8::from(!is_done)));
        }
        let mut apply = Apply::new(&self.client, self.desired, &self.owner);
        apply.know(&self.client.listed_ids(&self.owner).await?);
        for (at, request) in plan.requests.iter().enumerate() {
            apply.send(request).await.with_context(|| {
                format!("{at} of {} requests succeeded; run the same command again to continue", plan.requests.len())
            })?;
        }
        let left = if plan.requests.is_empty() { 0 } else { self.plan().await?.requests.len() };
        self.tell(&plan, &apply, left)?;
        Ok(ExitCode::from(u8::from(left > 0 || !plan.problems.is_empty())))
    }

    /// Prints the planned requests without sending them.
    fn show(&self, plan: &Plan) -> anyhow::Result<()> {
        let mut out = BufWriter::new(output::stdout());
        let calls = plan.requests.iter().flat_map(|request| request.calls(self.desired, &self.owner, placeholder));
        match self.args.output {
            Format::Text => {
                for call in calls {
                    writeln!(out, "{}", output::printable(&call.to_string()))?;
                }
                warn(plan);
            }
            Format::Json => {
                let calls: Vec<Value> = calls.map(|call| call_value(&call)).collect();
                writeln!(out, "{}", json!({ "requests": calls, "problems": problems(plan) }))?;
            }
        }
        Ok(out.flush()?)
    }

    /// Prints the sent requests, the number of requests that are still missing (`left`), and the problems.
    fn tell(&self, plan: &Plan, apply: &Apply<'_>, left: usize) -> anyhow::Result<()> {
        let Desired { groups, ports } = self.desired;
        let rules: usize = groups.values().map(|group| group.rules.len()).sum();
        let mut out = output::stdout();
        match self.args.output {
            Format::Text => {
                apply.notes.iter().for_each(|note| output::note(note));
                warn(plan);
                if left > 0 {
                    let text = "more requests are needed: another client changes the same groups or ports";
                    output::warn(&format!("{left} {text}\n  help: run the same command again"));
                }
                let (groups, ports, sent) = (groups.len(), ports.len(), apply.sent);
                writeln!(out, "{groups} security groups with {rules} rules for {ports} pods; {sent} requests sent")?;
            }
            Format::Json => {
                let document = json!({
                    "groups": groups.len(), "rules": rules, "pods": ports.len(), "sent": apply.sent, "left": left,
                    "problems": problems(plan), "notes": apply.notes,
                });
                writeln!(out, "{document}")?;
            }
        }
        Ok(())
    }
}

fn problems(plan: &Plan) -> Vec<Value> {
    plan.problems.iter().map(|problem| json!({"text": problem.to_string(), "open": problem.is_open()})).collect()
}

/// Problems printed one by one. The rest is only counted.
const MAX_PROBLEMS: usize = 20;

fn warn(plan: &Plan) {
    plan.problems.iter().take(MAX_PROBLEMS).for_each(output::warn);
    let more = plan.problems.len().saturating_sub(MAX_PROBLEMS);
    if more > 0 {
        output::warn(&format!("{more} more problems of this kind"));
    }
}
