//! Metrics as OTLP has them, in JSON: sums since the start of the process.
//!
//! They have the names that Prometheus reads at `/metrics`, so that one dashboard is good for both ways.

use std::{fmt, time::SystemTime};

use prometheus_client::{encoding::EncodeLabelValue, metrics::MetricType};
use serde_json::{Value, json};

use crate::telemetry::{
    metrics::Latency,
    otlp::{Attribute, nanoseconds},
};

use super::{MetricName, MetricSink, MetricValue};

/// A sum since the start (`AggregationTemporality`).
const CUMULATIVE: u8 = 2;

/// The metrics of one moment.
pub(super) struct OtlpMetrics {
    metrics: Vec<Value>,
    start: String,
    now: String,
}

impl OtlpMetrics {
    /// None yet, of a process that runs since `start`.
    pub(super) fn new(start: SystemTime) -> Self {
        Self { metrics: Vec::new(), start: nanoseconds(start), now: nanoseconds(SystemTime::now()) }
    }

    /// Those that were added.
    pub(super) fn finish(self) -> Vec<Value> {
        self.metrics
    }

    fn point<L: AsRef<str>>(&self, labels: &[(&'static str, L)], value: MetricValue) -> Value {
        let attributes: Vec<_> = labels.iter().map(|(name, value)| Attribute::text(*name, value.as_ref())).collect();
        let mut point = match value {
            // Integers of 64 bits may be numbers or texts in the JSON of Protocol Buffers. Not every collector takes texts here,
            // or does without the empty fields of a histogram.
            MetricValue::Number(value) => json!({ "asInt": value }),
            MetricValue::Seconds(value) => json!({ "asDouble": value }),
            MetricValue::Latency(Latency { seconds, count, buckets }) => {
                let bounds: Vec<f64> =
                    buckets.iter().map(|(bound, _)| *bound).filter(|bound| *bound < f64::MAX).collect();
                let counts: Vec<u64> = buckets.iter().map(|(_, count)| *count).collect();
                json!({
                    "count": count, "sum": seconds, "bucketCounts": counts, "explicitBounds": bounds,
                    "exemplars": [], "flags": 0,
                })
            }
        };
        point["attributes"] = json!(attributes);
        point["startTimeUnixNano"] = json!(self.start);
        point["timeUnixNano"] = json!(self.now);
        point
    }
}

impl MetricSink for OtlpMetrics {
    fn add<const N: usize, L: EncodeLabelValue + AsRef<str>>(
        &mut self,
        MetricName { kind, name, help }: MetricName<'_>,
        values: impl IntoIterator<Item = ([(&'static str, L); N], MetricValue)>,
    ) -> fmt::Result {
        let points: Vec<Value> = values.into_iter().map(|(labels, value)| self.point(&labels, value)).collect();
        if points.is_empty() {
            return Ok(());
        }
        let mut metric = json!({ "name": format!("weir_{name}"), "description": help });
        if name.ends_with("_seconds") {
            metric["unit"] = json!("s");
        }
        let (key, data) = match kind {
            MetricType::Gauge => ("gauge", json!({ "dataPoints": points })),
            MetricType::Histogram => {
                ("histogram", json!({ "dataPoints": points, "aggregationTemporality": CUMULATIVE }))
            }
            _ => ("sum", json!({ "dataPoints": points, "aggregationTemporality": CUMULATIVE, "isMonotonic": true })),
        };
        metric[key] = data;
        self.metrics.push(metric);
        Ok(())
    }
}
