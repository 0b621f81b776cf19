//! The papers' jobs on a modelled H200: `cargo bench --bench simulated -- batchllm|chunk|relay|mmlu|mooncake [SHAPE]`, JSON lines
//! on standard output. Modelled times, not measured ones.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use offshoot::backend::Dtype;
use offshoot::backend::modelled::DeviceProfile;
use offshoot::bench::workload_file::read_jobs;
use offshoot::plan::Planner;
use offshoot::simulate::{
    Branches, Job, Lengths, Machine, Order, Policy, Replay, Settings, Sharing, industry, micro, nested, read_lengths,
    replay, shared_prompts, simulate, sustainable_rate, with_system_prompt,
};
use serde_json::{Value, json};

const SHARED: &str = "../shared/data/traces";
const SEED: u64 = 1;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let table = words.first().map_or("batchllm", String::as_str);
    let shapes = words.get(1).map_or(vec!["llama3-8b", "codellama-7b"], |shape| vec![shape.as_str()]);
    for shape in shapes {
        let (model, _) = read_jobs(None, shape, &[]).expect("a shape of benches/workloads.json");
        let profile = Arc::new(DeviceProfile::named("h200").expect("built in"));
        let bench = Bench { shape: shape.to_owned(), machine: Machine { model, dtype: Dtype::Bf16, profile } };
        match table {
            "batchllm" => bench.batchllm(),
            "chunk" => bench.chunk(),
            "relay" => bench.relay(),
            "mmlu" => bench.mmlu(),
            "mooncake" => bench.mooncake(),
            other => panic!("no table {other}: batchllm, chunk, relay, mmlu or mooncake"),
        }
    }
}

struct Bench {
    shape: String,
    machine: Machine,
}

impl Bench {
    fn run(&self, name: &str, job: &Job, settings: &Settings) {
        let began = Instant::now();
        match simulate(&self.machine, settings, job) {
            Ok(simulation) => {
                self.print(name, settings, json!(simulation.totals(settings.step_rows)), began);
            }
            Err(error) => self.print(name, settings, json!({"error": error.to_string()}), began),
        }
    }

    fn print(&self, name: &str, settings: &Settings, what: Value, began: Instant) {
        let mut line = json!({
            "modelled": self.machine.profile.name, "shape": self.shape, "job": name,
            "policy": settings.policy.to_string(), "plan": settings.planner, "step_rows": settings.step_rows,
            "simulated_in_s": began.elapsed().as_secs_f64(),
        });
        let fields = what.as_object().expect("an object").clone();
        line.as_object_mut().expect("an object").extend(fields);
        println!("{}", rounded(line));
    }

    /// BatchLLM's microbenchmarks and industry shapes under three policies, and what each part of ours is worth.
    fn batchllm(&self) {
        let mut jobs = Vec::new();
        for sharing in [4, 16] {
            for (prefix, distinct) in [(2000, 200), (1000, 1000), (200, 2000)] {
                let name = format!("{prefix}/{distinct} x{sharing}");
                jobs.push((name, micro(prefix, distinct, 1024 / sharing, sharing, 100)));
            }
        }
        jobs.push(("industry 1100/400 x7".to_owned(), industry(1100, 400, 7.0, 3000, 100, SEED)));
        jobs.push(("industry 770/978 x11.4".to_owned(), industry(770, 978, 11.4, 1000, 100, SEED)));
        // A job with more than one level, as tasks with few-shot prompts and several questions on each text are.
        jobs.push((
            "levels 1000 x1, 800 x16, 400 x8, 100 x8".to_owned(),
            nested(&[(1000, 1), (800, 16), (400, 8), (100, 8)], 100),
        ));
        let arrival = Policy { order: Order::Arrival, ..Policy::OURS };
        let counted = Policy { branches: Branches::AtMost(256), ..Policy::OURS };
        let unshared = Policy { sharing: Sharing::None, ..Policy::OURS };
        for (name, job) in &jobs {
            for policy in [Policy::FCFS, Policy::BATCHLLM, Policy::OURS, arrival, counted, unshared] {
                self.run(name, job, &Settings { policy, ..Settings::default() });
            }
            self.run(name, job, &Settings { planner: Planner::Flat, ..Settings::default() });
        }
    }

    /// ChunkAttention's end-to-end table: prompts of so many tokens, all of them shared or none; 512 tokens drawn.
    fn chunk(&self) {
        for (prompt, shared) in [(1024, 0), (1024, 1024), (2048, 0), (2048, 2048), (4096, 0), (4096, 4096)] {
            for rate in [1.0, 4.0] {
                let job = shared_prompts(prompt, shared, 512, 400, rate, SEED);
                let name = format!("prompt {prompt}, shared {shared}, {rate}/s");
                self.run(&name, &job, &Settings::default());
            }
        }
    }

    /// Rates at which requests of ShareGPT's lengths behind a system prompt can come, for a plan that reads it once and one that
    /// reads it for every request.
    fn relay(&self) {
        let lengths = read_lengths(&Path::new(SHARED).join("relay_attention/ShareGPT_stat.csv"));
        let lengths: Vec<Lengths> = lengths.expect("../shared has the trace");
        for system in [64, 128, 256, 512, 1024, 2048] {
            for planner in [Planner::Balanced, Planner::Flat] {
                let (began, settings) = (Instant::now(), Settings { planner, ..Settings::default() });
                let job = |rate| with_system_prompt(system, &lengths, rate, SPAN, SEED);
                let found = sustainable_rate(&self.machine, &settings, 0.5, job).expect("some rate is sustained");
                let what = json!({"rate": found.rate, "tried": found.tried, "span_s": SPAN});
                self.print(&format!("system prompt {system}"), &settings, what, began);
            }
        }
    }

    /// RelayAttention's few-shot timing: MMLU's prompts behind so many tokens of examples, one token drawn.
    fn mmlu(&self) {
        let lengths = read_lengths(&Path::new(SHARED).join("relay_attention/mmlu_prompt_stat.json"));
        let lengths: Vec<Lengths> = lengths.expect("../shared has the trace");
        for system in [0, 500, 1000, 2000] {
            let job = with_system_prompt(system, &lengths, 1e9, lengths.len() as f64 / 1e9, SEED);
            for (policy, planner) in [
                (Policy { sharing: Sharing::None, ..Policy::OURS }, Planner::Flat),
                (Policy::OURS, Planner::Flat),
                (Policy::OURS, Planner::Balanced),
            ] {
                let settings = Settings { policy, planner, ..Settings::default() };
                self.run(&format!("{} questions behind {system}", job.requests.len()), &job, &settings);
            }
        }
    }

    /// Mooncake's conversations as they came, and at other rates.
    fn mooncake(&self) {
        for (file, requests) in [("conversation_trace", 2000), ("synthetic_trace", 1000)] {
            let trace = Path::new(SHARED).join(format!("mooncake/{file}.jsonl"));
            for policy in [Policy::FCFS, Policy::OURS] {
                for planner in [Planner::Balanced, Planner::Flat] {
                    let (began, settings) = (Instant::now(), Settings { policy, planner, ..Settings::default() });
                    let what = Replay { trace: trace.clone(), rate: None, requests: Some(requests), seed: SEED };
                    let simulation = replay(&self.machine, &settings, &what).expect("the trace is whole");
                    let totals = json!(simulation.totals(settings.step_rows));
                    self.print(&format!("{file}, first {requests}"), &settings, totals, began);
                }
            }
        }
    }
}

/// Every number that is not whole with five figures: more would say nothing.
fn rounded(value: Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => {
            let figures = format!("{:.4e}", number.as_f64().expect("it is one"));
            json!(figures.parse::<f64>().expect("it was written as a number"))
        }
        Value::Array(values) => values.into_iter().map(rounded).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, rounded(value))).collect(),
        other => other,
    }
}

/// Seconds of arrivals that a sustained rate is found for.
const SPAN: f64 = 120.0;
