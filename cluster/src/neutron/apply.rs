//! Sends a plan's requests, each until it is done: what was done already is done.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::Context;
use bulkhead_control::renderer::neutron::plan::{Call, ListedRule, Request};
use bulkhead_control::renderer::neutron::{Desired, SecurityRule};
use hyper::{Method, StatusCode};
use serde_json::Value;

use super::client::{Client, told};

/// See the module.
pub struct Apply<'a> {
    client: &'a Client,
    desired: &'a Desired,
    owner: &'a str,
    /// By their tags.
    ids: BTreeMap<String, String>,
    /// Rules that the server has put into a new group and that are wanted there.
    made: BTreeSet<(Arc<str>, SecurityRule)>,
    /// How many requests changed something.
    pub sent: usize,
    /// What was other than planned.
    pub notes: Vec<String>,
}

impl<'a> Apply<'a> {
    /// Nothing is sent yet.
    pub fn new(client: &'a Client, desired: &'a Desired, owner: &'a str) -> Self {
        let (ids, made, notes) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
        Self { client, desired, owner, ids, made, sent: 0, notes }
    }

    /// Takes in the IDs of groups that there are.
    pub fn know(&mut self, ids: &BTreeMap<String, String>) {
        self.ids.clone_from(ids);
    }

    /// Sends a request.
    ///
    /// # Errors
    /// When the server refuses it, or does not answer as often as it is repeated.
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
            // It was done, and the answer was lost; or somebody else has done it.
            Err(fault) if method == Method::DELETE && fault.is(StatusCode::NOT_FOUND, "") => Ok(Value::Null),
            Err(fault) if fault.is(StatusCode::CONFLICT, "SecurityGroupRuleExists") => Ok(Value::Null),
            // Not to be deleted while a port is in it; nor is that urgent.
            Err(fault) if fault.is(StatusCode::CONFLICT, "SecurityGroupInUse") => {
                self.notes.push(format!("{about} stays: a port is in it that it was not in before"));
                Ok(Value::Null)
            }
            // Its pod has ended.
            Err(fault) if fault.is(StatusCode::NOT_FOUND, "PortNotFound") => {
                self.notes.push(format!("the port of {about} is gone"));
                Ok(Value::Null)
            }
            Err(fault) => Err(told(&format!("{method} {path} ({about})"), fault)),
        }
    }

    /// Creates a group, tags it, and takes out the rules that the server has put into it.
    async fn create_group(&mut self, tag: &Arc<str>) -> anyhow::Result<()> {
        let (desired, owner) = (self.desired, self.owner);
        let wanted = desired.groups.get(tag).context("a group is created that is wanted")?;
        let made = self.post_group(tag).await?;
        let id = made["id"].as_str().with_context(|| format!("the server gives group {tag} no ID"))?.to_owned();
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

    /// A group is not created twice when an answer is lost: before the request is repeated, the group is looked for.
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
