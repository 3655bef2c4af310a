//! Sends a plan's requests. Each is idempotent: repeating it after an interruption does no harm.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::Context;
use bulkhead_control::renderer::neutron::plan::{Call, ListedRule, Request};
use bulkhead_control::renderer::neutron::{Desired, SecurityRule};
use hyper::{Method, StatusCode};
use serde_json::Value;

use super::client::{Client, told};

/// Sends the requests of a plan.
pub struct Apply<'a> {
    client: &'a Client,
    desired: &'a Desired,
    owner: &'a str,
    /// The server's IDs of existing groups, by the group's tag.
    ids: BTreeMap<String, String>,
    /// Rules that the server created in new groups by default and that the plan wants.
    made: BTreeSet<(Arc<str>, SecurityRule)>,
    /// The number of requests that changed something.
    pub sent: usize,
    /// Differences between the plan and what was done, as text for the user.
    pub notes: Vec<String>,
}

impl<'a> Apply<'a> {
    /// Creates a run that has sent nothing yet.
    pub fn new(client: &'a Client, desired: &'a Desired, owner: &'a str) -> Self {
        let (ids, made, notes) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
        Self { client, desired, owner, ids, made, sent: 0, notes }
    }

    /// Sets the server's IDs of existing groups, by tag.
    pub fn know(&mut self, ids: &BTreeMap<String, String>) {
        self.ids.clone_from(ids);
    }

    /// Sends a request of the plan.
    ///
    /// # Errors
    /// If the server refuses the request, or all retries failed.
    pub async fn send(&mut self, request: &Request) -> anyhow::Result<()> {
        match request {
            Request::CreateGroup { tag } => return self.create_group(tag).await,
            Request::CreateRule { tag, rule } if self.made.contains(&(tag.clone(), rule.clone())) => return Ok(()),
            _ => {}
        }
        let ids = &self.ids;
        let calls =
            request.calls(self.desired, self.owner, |tag| ids.get(tag).cloned().unwrap_or_else(|| tag.to_owned()));
        for call in calls {
            self.call(&call).await?;
        }
        Ok(())
    }

    async fn call(&mut self, call: &Call) -> anyhow::Result<Value> {
        let Call { method, path, body, about } = call;
        let method: Method = method.parse().expect("one of the API's");
        match self.client.send(&method, path, body.as_ref()).await {
            Ok(answer) => {
                self.sent += 1;
                Ok(answer)
            }
            // An earlier attempt succeeded but its answer was lost, or another client did the same.
            Err(fault) if method == Method::DELETE && fault.is(StatusCode::NOT_FOUND, "") => Ok(Value::Null),
            Err(fault) if fault.is(StatusCode::CONFLICT, "SecurityGroupRuleExists") => Ok(Value::Null),
            // The server keeps a group while a port uses it. That is harmless.
            Err(fault) if fault.is(StatusCode::CONFLICT, "SecurityGroupInUse") => {
                self.notes.push(format!("{about} was not deleted: a port has joined it since the plan was made"));
                Ok(Value::Null)
            }
            // The port's pod has ended.
            Err(fault) if fault.is(StatusCode::NOT_FOUND, "PortNotFound") => {
                self.notes.push(format!("the port of {about} no longer exists"));
                Ok(Value::Null)
            }
            Err(fault) => Err(told(&format!("{method} {path} ({about})"), fault)),
        }
    }

    /// Creates and tags a group. Deletes the server's default rules that the plan does not want.
    async fn create_group(&mut self, tag: &Arc<str>) -> anyhow::Result<()> {
        let (desired, owner) = (self.desired, self.owner);
        let wanted = desired.groups.get(tag).context("the plan creates only desired groups")?;
        let made = self.post_group(tag).await?;
        let id = made["id"]
            .as_str()
            .with_context(|| format!("the server returned no ID for the new group {tag}"))?
            .to_owned();
        self.ids.insert(tag.to_string(), id);
        self.sent += 1;
        let tags = Request::SetTags { tag: tag.clone() };
        let ids = self.ids.clone();
        for call in tags.calls(desired, owner, |tag| ids.get(tag).cloned().unwrap_or_else(|| tag.to_owned())) {
            self.call(&call).await?;
        }
        for rule in made["security_group_rules"].as_array().into_iter().flatten().filter_map(ListedRule::of) {
            match rule.rule.filter(|rule| wanted.rules.contains(rule)) {
                Some(rule) => drop(self.made.insert((tag.clone(), rule))),
                None => {
                    let about = format!("group {tag}: a rule of the server");
                    let path = format!("/v2.0/security-group-rules/{}", rule.id);
                    self.call(&Call { method: "DELETE", path, body: None, about }).await?;
                }
            }
        }
        Ok(())
    }

    /// Creates a group. Before a retry it looks for the group, so that a lost answer does not create a second one.
    async fn post_group(&self, tag: &Arc<str>) -> anyhow::Result<Value> {
        let wanted = &self.desired.groups[tag];
        let (path, body) = ("/v2.0/security-groups", wanted.body(self.owner));
        let what = || format!("POST {path} (group {tag})");
        let mut tried = 0;
        loop {
            let fault = match self.client.once(&Method::POST, path, Some(&body)).await {
                Ok(mut answer) => return Ok(answer["security_group"].take()),
                Err(fault) => fault,
            };
            let (again, is_uncertain) = (self.client.wait(&fault, tried).await, fault.is_uncertain());
            if !again {
                return Err(told(&what(), fault));
            }
            tried += 1;
            if is_uncertain && let Some(group) = self.client.left_over(self.owner, &wanted.name).await? {
                return Ok(group);
            }
        }
    }
}
