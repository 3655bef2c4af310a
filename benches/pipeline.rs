//! Measures the control plane: a full compile, and single events on a running pipeline.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a bench prints, and may panic")]

mod support;

use std::hint::black_box;
use std::time::Duration;

use bulkhead_control::cache::Event;
use bulkhead_control::object::{IngressIsolation, Object};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::processor::Scope;
use bulkhead_control::renderer::session_rules::SessionTable;
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use support::{Random, Shape, cluster, namespace, node_name, pod, policy};

const SMALL: Shape = Shape { pods: 1_000, namespaces: 10, policies: 50, pods_per_node: 250, broad: 0 };
const MEDIUM: Shape = Shape { pods: 10_000, namespaces: 100, policies: 1_000, pods_per_node: 250, broad: 0 };
const LARGE: Shape = Shape { pods: 100_000, namespaces: 1_000, policies: 5_000, pods_per_node: 250, broad: 0 };

fn compiled(shape: Shape) -> Pipeline {
    let mut pipeline = Pipeline::new(Scope::Node(node_name(0)));
    pipeline.resync(cluster(shape)).expect("the cluster compiles");
    // Checks the result before timing: pods of the node are isolated and their tables have rules.
    let tables = pipeline.node_tables(&node_name(0)).expect("published");
    assert!(tables.interfaces.len() > 200 && tables.tables.iter().any(|table| table.tables.rules().len() > 3));
    pipeline
}

fn compile(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("compile");
    group.sample_size(10).measurement_time(Duration::from_secs(10));
    for (name, shape) in [("1k-pods", SMALL), ("10k-pods-1k-policies", MEDIUM), ("100k-pods-5k-policies", LARGE)] {
        let objects = cluster(shape);
        group.bench_function(name, |bencher| {
            bencher.iter_batched(
                || objects.clone(),
                |objects| {
                    let mut pipeline = Pipeline::new(Scope::Node(node_name(0)));
                    pipeline.resync(objects).expect("the cluster compiles");
                    pipeline
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

fn events(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("event");
    for (name, shape) in [("1k-pods", SMALL), ("100k-pods", LARGE)] {
        let mut pipeline = compiled(shape);
        let remote = pod(shape, shape.pods - 1);
        group.bench_function(format!("remote-pod-goes-and-comes/{name}"), |bencher| {
            bencher.iter(|| {
                pipeline.apply(Event::DeletePod(remote.name.clone())).expect("compiles");
                pipeline.apply(Event::Apply(remote.clone().into())).expect("compiles");
            });
        });
        let mut random = Random(1);
        let versions = [policy(shape, 0, &mut random), policy(shape, 0, &mut random)];
        let mut turn = 0;
        group.bench_function(format!("policy-changes/{name}"), |bencher| {
            bencher.iter(|| {
                turn += 1;
                pipeline.apply(Event::Apply(versions[turn % 2].clone().into())).expect("compiles");
            });
        });
        group.bench_function(format!("namespace-changes-team/{name}"), |bencher| {
            bencher.iter(|| {
                turn += 1;
                let team = u32::try_from(turn % 2).expect("0 or 1");
                pipeline.apply(Event::Apply(Object::Namespace(namespace(0, team)))).expect("compiles");
            });
        });
        black_box(&pipeline);
    }
    group.finish();
}

/// Measures events with enforcement at the source, and the number of requests to the session table per event.
fn at_source(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("event-at-source");
    group.sample_size(20);
    for (name, shape) in [("1k-pods", SMALL), ("10k-pods", MEDIUM)] {
        let mut pipeline = Pipeline::at_source(node_name(0), IngressIsolation::ClusterDefault);
        pipeline.resync(cluster(shape)).expect("the cluster fits session rules");
        let requests = |pipeline: &Pipeline| pipeline.session_table().expect("it enforces at the source").requests();
        let start = requests(&pipeline);
        let rules = pipeline.session_table().map_or(0, SessionTable::len);
        let remote = pod(shape, shape.pods - 1);
        pipeline.apply(Event::DeletePod(remote.name.clone())).expect("compiles");
        let gone = requests(&pipeline) - start;
        println!("{name}: {rules} session rules, {start} requests from scratch, {gone} for a remote pod that goes");
        assert!(rules > 1_000 && gone < start / 10);
        pipeline.apply(Event::Apply(remote.clone().into())).expect("compiles");
        group.bench_function(format!("remote-pod-goes-and-comes/{name}"), |bencher| {
            bencher.iter(|| {
                pipeline.apply(Event::DeletePod(remote.name.clone())).expect("compiles");
                pipeline.apply(Event::Apply(remote.clone().into())).expect("compiles");
            });
        });
        black_box(&pipeline);
    }
    group.finish();
}

criterion_group!(benches, compile, events, at_source);
criterion_main!(benches);
