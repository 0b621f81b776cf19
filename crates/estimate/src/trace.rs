//! `offshoot plan --replay`: replays a recorded trace through the scheduler on a simulated device, once per policy, and
//! reports latency for the requests and throughput and memory for the device.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use super::device::DescribedDevice;
use super::plan_model::PlanModel;
use super::report::ModelSizes;
use crate::replay::{Policy, ReplaySettings, Totals, TraceReplay, replay_trace};
use offshoot_backend::Dtype;
use offshoot_core::error::Result;
use offshoot_core::figures::{bytes, count, counted, saved};
use offshoot_core::json;
use offshoot_core::out;
use offshoot_launch::EngineBudget;

/// The options of `offshoot plan --replay`.
#[derive(Clone, Debug)]
pub struct TraceOptions {
    pub replay: TraceReplay,
    /// A model folder or a config.json.
    pub model: PathBuf,
    pub dtype: Option<Dtype>,
    /// A built-in profile's name or a file; `None`: the default, and the output says so.
    pub device_profile: Option<String>,
    pub budget: EngineBudget,
    pub policies: Vec<Policy>,
    pub json: bool,
}

#[derive(Debug, Serialize)]
struct Replayed {
    trace: String,
    requests: usize,
    model: ModelSizes,
    device: String,
    policies: Vec<ByPolicy>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ByPolicy {
    policy: String,
    #[serde(flatten)]
    totals: Totals,
}

/// Replays the trace and prints the result.
pub fn main(options: &TraceOptions) -> Result<()> {
    let model = PlanModel::open(&options.model, options.dtype, options.budget.weights)?;
    let profile = options.device_profile.as_deref();
    let device = DescribedDevice::open(profile, None, &options.budget, &model)?;
    let mut replayed = Replayed {
        trace: options.replay.trace.display().to_string(),
        requests: 0,
        model: ModelSizes::of(&model, &device),
        device: device.described.clone(),
        policies: Vec::new(),
        notes: device.note.iter().cloned().collect(),
    };
    for &policy in &options.policies {
        let settings = ReplaySettings { policy: policy.capped(device.branches), ..device.settings };
        let record = replay_trace(&device.machine, &settings, &options.replay)?;
        replayed.requests = record.requests.len();
        let totals = record.totals(settings.step_rows);
        replayed.policies.push(ByPolicy { policy: policy.to_string(), totals });
    }
    match options.json {
        true => out::line(json::pretty("the replay", &replayed)?),
        false => out::text(replayed),
    }
}

impl fmt::Display for Replayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, text: String| writeln!(f, "{name:<13}{text}");
        line("trace", format!("{}: {}", self.trace, counted(self.requests as u64, "request")))?;
        line("model", self.model.to_string())?;
        line("device", self.device.clone())?;
        for ByPolicy { policy, totals } in &self.policies {
            let Totals { seconds, steps, .. } = *totals;
            let drawn = format!("{} tokens sampled, {:.0} per second", count(totals.drawn), totals.tokens_per_s);
            line(policy, format!("{seconds:.1} s in {} steps; {drawn}", count(steps as u64)))?;
            let (computed, asked) = (totals.prompt_tokens_computed, totals.prompt_tokens_logical);
            let saved = saved(computed, asked);
            line("", format!("{} of {} prompt tokens computed: {saved} saved", count(computed), count(asked)))?;
            let (latency, first) = (1e3 * totals.normalised_latency, totals.first_token);
            line("", format!("{latency:.1} ms a token of latency, {first:.2} s to the first, on average"))?;
            let (peak, unshared) = (bytes(totals.kv_bytes_peak), bytes(totals.kv_bytes_peak_unshared));
            line("", format!("{peak} of keys and values at most, {unshared} without sharing"))?;
        }
        self.notes.iter().try_for_each(|note| line("note", note.clone()))
    }
}
