//! The unit tests of Contiv's policy plugin, as enforced by this pipeline: those of its configurator, ACL renderer, VPPTCP renderer and
//! cache, and tests of the processor, for which Contiv had none.
//! ```text
//!  manifests --load_text--> objects --> pipeline of node-1 --+--> published tables: interface -> table -> lookup
//!                                                            `--> a registered renderer: the rule lists of each pod
//! ```
//! Contiv takes the vswitch's side: its `ingress` enters the vswitch from a pod, and is the pod's egress here. Policies replace Contiv's
//! rule lists. A probe is one first packet, looked up at the interface where it leaves the vswitch. An expectation names all services that
//! pass; all other probed services must not pass.
//!
//! Omitted, because Bulkhead has no equivalent:
//!
//! * The NAT-loopback permit, with which a pod reaches itself through a Service.
//! * Reflective ACLs with their outcome "reply denied": the dataplane's sessions handle replies.
//! * The number of ACL messages per change. Tests check instead which interfaces share a table, and that a repeated event publishes
//!   nothing.
//! * Contiv's exact tables, which the tests of `renderer::contiv` check, except those that VPPTCP derives from them.

#[path = "contiv_scenarios/acl.rs"]
mod acl;
#[path = "contiv_scenarios/cache.rs"]
mod cache;
#[path = "contiv_scenarios/configurator.rs"]
mod configurator;
#[path = "contiv_scenarios/manifest.rs"]
mod manifest;
#[path = "contiv_scenarios/probe.rs"]
mod probe;
#[path = "contiv_scenarios/processor.rs"]
mod processor;
#[path = "contiv_scenarios/session_rules.rs"]
mod session_rules;
#[path = "contiv_scenarios/source.rs"]
mod source;
