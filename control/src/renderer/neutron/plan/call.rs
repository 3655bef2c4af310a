//! Requests in the API's form.

use std::fmt;

use serde_json::{Value, json};

use super::super::{Desired, SecurityGroup};
use super::{GroupRef, Listed, ListedGroup, ListedPort, ListedRule, Request, tags};
use crate::renderer::neutron::{Remote, SecurityRule};

/// One API call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// `POST`, `PUT` or `DELETE`.
    pub method: &'static str,
    /// The path, starting with `/v2.0`.
    pub path: String,
    /// The body. `None` if the call has none.
    pub body: Option<Value>,
    /// The purpose of the call, as printed for users.
    pub about: String,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { method, path, body, about } = self;
        write!(f, "{method} {path}")?;
        body.as_ref().map_or(Ok(()), |body| write!(f, " {body}"))?;
        write!(f, "  # {about}")
    }
}

/// Returns the text that printed calls contain instead of the ID of a group that does not exist yet.
pub fn placeholder(tag: &str) -> String {
    format!("[{tag}]")
}

impl SecurityGroup {
    /// Returns the body of the request that creates the group. Its description identifies the group if setting its tags failed.
    pub fn body(&self, owner: &str) -> Value {
        json!({ "security_group": { "name": self.name, "description": owner } })
    }
}

impl Request {
    /// Returns the API calls of this request. `id_of` returns the ID of a group by its tag.
    pub fn calls(&self, desired: &Desired, owner: &str, id_of: impl Fn(&str) -> String) -> Vec<Call> {
        let of = |tag: &str| desired.groups.get(tag);
        let set_tags = |tag: &str| {
            let tags = tags(owner, tag, of(tag).and_then(|group| group.generation));
            let path = format!("/v2.0/security-groups/{}/tags", id_of(tag));
            Call { method: "PUT", path, body: Some(json!({ "tags": tags })), about: format!("group {tag}") }
        };
        match self {
            Self::CreateGroup { tag } => {
                let body = of(tag).map(|group| group.body(owner));
                let about = format!("group {tag}; its default rules are deleted");
                vec![Call { method: "POST", path: "/v2.0/security-groups".into(), body, about }, set_tags(tag)]
            }
            Self::SetTags { tag } => vec![set_tags(tag)],
            Self::CreateRule { tag, rule } => {
                let (body, about) = (Some(rule.body(tag, &id_of)), format!("group {tag}: {rule}"));
                vec![Call { method: "POST", path: "/v2.0/security-group-rules".into(), body, about }]
            }
            Self::DeleteRule { id, group, rule } => {
                let rule = rule.as_ref().map_or_else(|| "an unknown rule".to_owned(), ToString::to_string);
                let group = match group {
                    GroupRef::Tag(name) => name.to_string(),
                    GroupRef::Id(id) => id.clone(),
                };
                let (path, about) = (format!("/v2.0/security-group-rules/{id}"), format!("group {group}: {rule}"));
                vec![Call { method: "DELETE", path, body: None, about }]
            }
            Self::SetPort { id, pod, groups } => {
                let groups = groups.iter().map(|group| match group {
                    GroupRef::Tag(tag) => id_of(tag),
                    GroupRef::Id(id) => id.clone(),
                });
                let body = json!({ "port": { "security_groups": groups.collect::<Vec<_>>() } });
                let about = pod.as_ref().map_or_else(|| "no longer a pod's".to_owned(), |pod| format!("pod {pod}"));
                vec![Call { method: "PUT", path: format!("/v2.0/ports/{id}"), body: Some(body), about }]
            }
            Self::DeleteGroup { id, tag } => {
                let about = tag.as_ref().map_or_else(|| "left over".to_owned(), |tag| format!("group {tag}"));
                vec![Call { method: "DELETE", path: format!("/v2.0/security-groups/{id}"), body: None, about }]
            }
        }
    }
}

impl Listed {
    /// Returns the listing of a server that has `before` in force and the ports of `now`.
    pub fn with_in_force(before: &Desired, now: &Desired, owner: &str) -> Self {
        let rule = |(at, tag, rule): (usize, &str, &SecurityRule)| {
            let remote = match &rule.remote {
                Remote::Group(tag) => Remote::Group(placeholder(tag).into()),
                other => other.clone(),
            };
            ListedRule { id: format!("[{tag}/{at}]"), rule: Some(SecurityRule { remote, ..rule.clone() }) }
        };
        let groups = before.groups.iter().map(|(tag, group)| ListedGroup {
            id: placeholder(tag),
            tags: tags(owner, tag, group.generation),
            rules: group.rules.iter().enumerate().map(|(at, of)| rule((at, tag, of))).collect(),
        });
        let ports = now.ports.iter().map(|(pod, port)| {
            let same = before.ports.get(pod).filter(|before| before.addresses == port.addresses);
            ListedPort {
                id: placeholder(&pod.to_string()),
                addresses: port.addresses.clone(),
                pairs: Vec::new(),
                secured: true,
                groups: same.iter().flat_map(|before| &before.groups).map(|tag| placeholder(tag)).collect(),
            }
        });
        Self { groups: groups.collect(), ports: ports.collect() }
    }
}
