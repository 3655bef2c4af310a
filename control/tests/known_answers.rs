//! Tests the pipeline with known answers: the truth tables of the cyclonus generator's cases and of the trap cases. Each step runs in a
//! running pipeline and from scratch, also with ingress or egress alone.

use crate::cases::{Compared, QUESTIONS};
use crate::vswitch::Vswitches;

fn run_file(file: &str) -> Option<[Compared; 3]> {
    let all = crate::cases::load(file)?;
    Some(QUESTIONS.map(|question| crate::cases::run(&all, question)))
}

#[test]
fn every_cyclonus_case_is_right_step_by_step_and_from_scratch() {
    let Some(compared) = run_file("cyclonus_cases.json") else { return };
    for Compared { cases, steps, cells } in compared {
        println!("{cases} cases, {steps} steps, {cells} cells");
        assert_eq!((cases, steps), (230, 256));
        // All 123,669 except the diagonal.
        assert_eq!(cells, 123_669 - 13_713);
    }
}

#[test]
fn every_trap_case_is_right_step_by_step_and_from_scratch() {
    let Some(compared) = run_file("trap_cases.json") else { return };
    for Compared { cases, steps, cells } in compared {
        println!("{cases} cases, {steps} steps, {cells} cells");
        assert_eq!(cases, 29);
        assert!(cells > 10_000, "only {cells} cells were compared");
    }
}

#[test]
fn every_case_is_right_where_policy_is_enforced_at_the_source() {
    for (file, cases) in [("cyclonus_cases.json", 230), ("trap_cases.json", 29)] {
        let Some(all) = crate::cases::load(file) else { return };
        for question in QUESTIONS {
            let compared = crate::cases::run_on(&all, question, Vswitches::nodes_at_source);
            println!("{file} {question:?}: {compared:?}");
            assert_eq!(compared.cases, cases);
            assert!(compared.cells > 10_000, "only {} cells were compared", compared.cells);
        }
    }
}
