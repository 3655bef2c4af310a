//! All integration tests in one program. Separate programs would each link the same libraries again. `cargo test --test all -- golden::`
//! runs the tests of one file. The tests in `e2e_*.rs` run real programs through the vswitch in network namespaces; run them with `cargo
//! xtask e2e`.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and print")]

#[macro_use]
#[path = "support/lab.rs"]
mod lab;
#[path = "../cluster/tests/support/api_server.rs"]
mod api_server;
#[path = "support/cni.rs"]
mod cni;
#[path = "support/control_plane.rs"]
mod control_plane;
#[path = "support/conversation.rs"]
mod conversation;
#[path = "support/fake_vswitch.rs"]
mod fake_vswitch;
#[path = "support/known_states.rs"]
mod known_states;
#[path = "support/machine.rs"]
mod machine;
#[path = "support/manifests.rs"]
mod manifests;
#[path = "support/objects.rs"]
mod objects;
mod support;

mod cli;
mod cluster;
mod conformance;
mod conformance_services;
mod deploy;
mod documentation;
mod fuzz;
mod golden;
mod neutron;
mod replay_services;
mod run;
mod scale;
mod service_sequences;
mod services;

mod e2e_added_ports;
mod e2e_admin;
mod e2e_attacks;
mod e2e_audit;
mod e2e_big_tcp;
mod e2e_bulk;
mod e2e_capabilities;
mod e2e_card_changes;
mod e2e_changes;
mod e2e_cleanup_card;
mod e2e_closed;
mod e2e_cni;
mod e2e_cni_live;
mod e2e_differential;
mod e2e_explain_live;
mod e2e_flow_cache;
mod e2e_frames;
mod e2e_gone;
mod e2e_host_port;
mod e2e_hubble;
mod e2e_hubble_tls;
mod e2e_identity;
mod e2e_idle;
mod e2e_interfaces;
mod e2e_kubernetes;
mod e2e_masquerade;
mod e2e_modes;
mod e2e_monitor;
mod e2e_names;
mod e2e_nftables;
mod e2e_nftables_differential;
mod e2e_nftables_run;
mod e2e_node_checks;
mod e2e_node_mtu;
mod e2e_node_paths;
mod e2e_node_port;
mod e2e_node_ports;
mod e2e_node_probes;
mod e2e_nodes;
mod e2e_pod_host_port;
mod e2e_ports;
mod e2e_progress;
mod e2e_prometheus;
mod e2e_reasons;
mod e2e_redis;
mod e2e_refusals;
mod e2e_remote_nodes;
mod e2e_replay;
mod e2e_service_cases;
mod e2e_service_flood;
mod e2e_service_health;
mod e2e_service_host;
mod e2e_services;
mod e2e_sessions;
mod e2e_source;
mod e2e_standby;
mod e2e_tc;
mod e2e_tc_away;
mod e2e_tc_crash;
mod e2e_tc_filters;
mod e2e_tc_takeover;
mod e2e_top;
mod e2e_traffic;
mod e2e_wait;
mod e2e_why;
