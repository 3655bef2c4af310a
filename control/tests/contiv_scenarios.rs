//! The unit tests of Contiv's policy plugin, retold as what this pipeline enforces: its configurator's, its ACL renderer's,
//! its VPPTCP renderer's and those of its cache; with the processor, for which Contiv had none.
//!
//! ```text
//!  manifests --load_text--> objects --> pipeline of node-1 --+--> published tables: interface -> table -> lookup
//!                                                            `--> a registered renderer: the rule lists of each pod
//! ```
//! Contiv speaks from the vswitch's side: its `ingress` is what enters the vswitch from a pod, here the pod's egress. Its
//! rule lists are written here as the policies that make them. A probe is one first packet, looked up where it leaves the
//! vswitch; an expectation names all services that pass, so that every other probed service must not.
//!
//! Left out, because the product has nothing of the kind:
//!
//! * The NAT-loopback permit, under which a pod reaches itself through a service: there are no services yet.
//! * Reflective ACLs, and so the outcome "reply denied": replies belong to sessions, which the dataplane keeps.
//! * How many ACL messages a change costs: instead, which interfaces share a table, and that a repeat publishes nothing.
//! * Contiv's exact tables: they are the business of the renderer that reproduces them. What VPPTCP made of them is not.

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
