//! The output line of a run: one JSON object, with numbers rounded to five digits.

use serde_json::{Map, Value, json};

use super::options::BatchesOptions;
use super::tables::BatchRun;
use offshoot_core::error::Error;
use offshoot_estimate::replay::{JobRecord, Sustained};

/// The fields of a line.
pub struct BatchesLine(Map<String, Value>);

impl BatchesLine {
    /// The fields that identify the run and the device.
    pub fn of(options: &BatchesOptions, device: &str, run: &BatchRun) -> Self {
        Self(Map::new()).with(json!({
            "engine": "offshoot", "device": device, "modelled": options.simulated.is_some(), "shape": options.shape,
            "dtype": options.dtype, "kv_dtype": options.kv, "table": run.table, "job": run.job, "way": run.way.name,
            "policy": run.way.policy.to_string(), "plan": run.way.planner, "step_rows": options.step_rows,
        }))
    }

    /// The line of a finished run; `rate`: requests per second, if they arrived over time.
    pub fn done(self, rate: Option<f64>, record: &JobRecord, step_rows: usize) -> Value {
        let (totals, metrics) = (record.totals(step_rows), &record.metrics);
        let a_step = |seconds: f64| 1e3 * seconds / record.steps.len().max(1) as f64;
        let host = metrics.seconds_scheduling + metrics.seconds_planning + metrics.seconds_committing;
        let in_steps = record.steps.iter().map(|step| step.end - step.begin).sum();
        // Host times of the simulating machine are meaningless for a simulated device.
        let is_simulated = self.0.get("modelled") == Some(&Value::Bool(true));
        let of_host = |seconds: f64| (!is_simulated).then(|| a_step(seconds));
        let requests = record.requests.len();
        let line = self.with(json!({
            "rate": rate, "requests": requests, "requests_per_s": requests as f64 / totals.seconds,
            "ordered_in_s": record.ordered_in.as_secs_f64(),
        }));
        let line = line.with(json!(totals)).with(json!({
            "pool_slots": record.slots(record.pool_pages), "page_tokens": record.page_tokens,
            "steps_replanned": metrics.steps_replanned, "mean_step_ms": a_step(in_steps),
            "host_ms": of_host(host), "submit_ms": of_host(metrics.seconds_forward),
            "wait_ms": of_host(metrics.seconds_waiting),
        }));
        line.rounded()
    }

    /// The line of a search for a sustained rate.
    pub fn found(self, found: &Sustained) -> Value {
        self.with(json!({"sustained_rate": found.rate, "tried": found.tried})).rounded()
    }

    pub fn failed(self, error: &Error) -> Value {
        self.with(json!({"error": error.to_string()})).rounded()
    }

    fn with(mut self, more: Value) -> Self {
        let Value::Object(more) = more else { unreachable!("lines are made of objects") };
        self.0.extend(more);
        self
    }

    fn rounded(self) -> Value {
        five_figures(Value::Object(self.0))
    }
}

/// Rounds all numbers that are not integers to five digits.
fn five_figures(value: Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => {
            let figures = format!("{:.4e}", number.as_f64().expect("it is one"));
            json!(figures.parse::<f64>().expect("it was written as a number"))
        }
        Value::Array(values) => values.into_iter().map(five_figures).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, five_figures(value))).collect(),
        other => other,
    }
}
