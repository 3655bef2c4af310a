//! Measures alternatives in turns, so that other load on the machine affects all of them.

use anyhow::Context;

/// The measured values: for each way, one list of metrics per round.
#[derive(Debug)]
pub(crate) struct Rounds<W>(Vec<(W, Vec<Vec<f64>>)>);

impl<W: Copy + PartialEq> Rounds<W> {
    /// Measures all ways in turns, as many times as there are rounds. `name` returns a way's name, for errors.
    ///
    /// # Errors
    /// The first error of `once`.
    pub(crate) fn measure(
        ways: &[W],
        rounds: u32,
        name: fn(W) -> &'static str,
        mut once: impl FnMut(W) -> anyhow::Result<Vec<f64>>,
    ) -> anyhow::Result<Self> {
        let mut all = Self(ways.iter().map(|&way| (way, Vec::new())).collect());
        for round in 0..rounds {
            // The order alternates, so that no way always follows a certain other, and increasing load affects all ways.
            let order: Vec<usize> = (0..ways.len()).collect();
            let order: Vec<usize> = if round % 2 == 0 { order } else { order.into_iter().rev().collect() };
            for at in order {
                let (way, measured) = &mut all.0[at];
                measured.push(once(*way).with_context(|| name(*way))?);
            }
        }
        Ok(all)
    }

    /// Returns the metric with this index of a way, one value per round. Empty if the way was not measured or has no such metric.
    pub(crate) fn of(&self, way: W, metric: usize) -> Vec<f64> {
        let rounds = self.0.iter().filter(|(measured, _)| *measured == way).flat_map(|(_, rounds)| rounds);
        rounds.filter_map(|metrics| metrics.get(metric).copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_ways_alternates_and_values_stay_with_their_way() {
        let mut order = String::new();
        let rounds = Rounds::measure(
            &['a', 'b'],
            3,
            |_| "a way",
            |way| {
                order.push(way);
                Ok(vec![f64::from(u32::try_from(order.len())?), 0.0])
            },
        );
        let rounds = rounds.unwrap();
        assert_eq!(order, "abbaab");
        assert_eq!((rounds.of('a', 0), rounds.of('b', 0)), (vec![1.0, 4.0, 5.0], vec![2.0, 3.0, 6.0]));
        assert!(rounds.of('c', 0).is_empty() && rounds.of('a', 2).is_empty());
    }

    #[test]
    fn an_error_names_the_way() {
        let error = Rounds::measure(&['a'], 1, |_| "a way", |_| anyhow::bail!("it fails")).unwrap_err();
        assert_eq!(format!("{error:#}"), "a way: it fails");
    }
}
