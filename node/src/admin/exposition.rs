//! Metrics with their values, before they are encoded as OpenMetrics text.

use std::fmt;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Unit;

/// Label names and values of a time series.
pub(crate) type Labels = Vec<(&'static str, String)>;

/// One metric with its values.
#[derive(Debug)]
struct Family {
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    kind: Kind,
    values: Vec<(Labels, Value)>,
}

/// A metric's value. Counts are written without a decimal point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    Count(u64),
    Real(f64),
}

/// The OpenMetrics type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
}

impl Kind {
    const fn name(self) -> MetricType {
        match self {
            Self::Counter => MetricType::Counter,
            Self::Gauge => MetricType::Gauge,
        }
    }

    fn encode(self, value: Value, encoder: MetricEncoder<'_>) -> fmt::Result {
        match (self, value) {
            (Self::Counter, Value::Count(count)) => ConstCounter::new(count).encode(encoder),
            (Self::Counter, Value::Real(real)) => ConstCounter::new(real).encode(encoder),
            (Self::Gauge, Value::Count(count)) => ConstGauge::new(count).encode(encoder),
            (Self::Gauge, Value::Real(real)) => ConstGauge::new(real).encode(encoder),
        }
    }
}

/// The metrics of one scrape, with their values.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    families: Vec<Family>,
    /// Name, help text and histogram of each metric of durations, in seconds.
    pub(super) histograms: Vec<(&'static str, &'static str, Histogram)>,
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (name, help, times) in &self.histograms {
            times.encode(encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?)?;
        }
        for family in &self.families {
            let mut written =
                encoder.encode_descriptor(family.name, family.help, family.unit.as_ref(), family.kind.name())?;
            if let [(labels, value)] = &*family.values
                && labels.is_empty()
            {
                family.kind.encode(*value, written)?;
                continue;
            }
            for (labels, value) in &family.values {
                family.kind.encode(*value, written.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

impl Metrics {
    pub(crate) fn add(
        &mut self,
        name: &'static str,
        help: &'static str,
        unit: Option<Unit>,
        kind: Kind,
        values: Vec<(Labels, Value)>,
    ) {
        self.families.push(Family { name, help, unit, kind, values });
    }

    pub(crate) fn counter(&mut self, name: &'static str, help: &'static str, value: u64) {
        self.add(name, help, None, Kind::Counter, vec![(Vec::new(), Value::Count(value))]);
    }

    pub(crate) fn gauge(&mut self, name: &'static str, help: &'static str, value: u64) {
        self.add(name, help, None, Kind::Gauge, vec![(Vec::new(), Value::Count(value))]);
    }

    pub(crate) fn seconds(&mut self, name: &'static str, help: &'static str, time: Duration) {
        let value = Value::Real(time.as_secs_f64());
        self.add(name, help, Some(Unit::Seconds), Kind::Gauge, vec![(Vec::new(), value)]);
    }
}
