//! Runs of jobs, on a modelled device and on this machine's: every request ends with exactly its tokens, the same job
//! gives the same records, steps' times add up, memory stays within the pool, and traces that others recorded are read,
//! or refused in one sentence.

use std::sync::Arc;
use std::time::Duration;

use offshoot_backend::{Dtype, KvDtype, StateDtype};
use offshoot_cpu::Cpu;
use offshoot_engine::Metrics;
use offshoot_estimate::replay::{
    BranchLimit, JobRecord, LoadedModel, Policy, PromptSharing, RateSearch, ReplayJob, ReplayRequest, ReplaySettings,
    RequestLengths, RequestOrder, SimulatedMachine, StepRecord, TextRun, TracePrompt, TraceReplay, WallClock, industry,
    micro, nested, poisson, read_trace, replay, replay_trace, shared_prompts, sustainable_rate, warm_up,
    with_system_prompt,
};
use offshoot_kv::PromptTree;
use offshoot_kv::plan::Planner;
use offshoot_model::ModelConfig;
use offshoot_sim::{DeviceProfile, Sim};
use tempfile::TempDir;

use crate::shared::shared;

/// An H200 with Llama-3 8B's shape.
fn machine() -> SimulatedMachine {
    let model = ModelConfig::from_json(
        r#"{ "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "rope_theta": 500000.0,
            "rms_norm_eps": 1e-5, "max_position_embeddings": 32768, "tie_word_embeddings": false }"#,
    );
    let model = model.expect("a sound shape");
    let profile = Arc::new(DeviceProfile::named("h200").expect("built in"));
    SimulatedMachine { model, dtype: Dtype::Bf16, kv: KvDtype::Model, states: StateDtype::F32, profile }
}

/// Pages of 32 tokens of llama3-8b.
fn pages(count: usize) -> Option<usize> {
    Some(count * 32 * 131_072)
}

fn distinct(job: &ReplayJob) -> u64 {
    let prompts: Vec<_> = job.requests.iter().map(|request| request.prompt.tokens(128_256)).collect();
    PromptTree::new(prompts.as_slice()).distinct_tokens()
}

/// What must hold of a modelled run.
fn check(simulation: &JobRecord, job: &ReplayJob, settings: &ReplaySettings) {
    let last = simulation.steps.last().expect("there were steps").end;
    assert!(simulation.requests.iter().all(|request| request.end <= last));
    check_any(simulation, job, settings);
}

/// What must hold of any run.
fn check_any(simulation: &JobRecord, job: &ReplayJob, settings: &ReplaySettings) {
    let drawn: Vec<u64> = simulation.requests.iter().map(|request| request.drawn).collect();
    assert_eq!(drawn.iter().sum::<u64>(), job.output_tokens());
    assert_eq!(simulation.metrics.tokens_sampled, job.output_tokens());
    assert_eq!(simulation.requests.len(), job.requests.len());
    for request in &simulation.requests {
        assert!(request.arrival < request.first_token && request.first_token <= request.end, "{request:?}");
    }
    for pair in simulation.steps.windows(2) {
        assert!(pair[0].begin < pair[0].end && pair[0].end <= pair[1].begin, "{pair:?}");
    }
    let rows: u64 = simulation.steps.iter().map(|step| step.rows).sum();
    assert_eq!(rows, simulation.metrics.rows);
    assert_eq!(simulation.steps.len() as u64, simulation.metrics.steps);
    if let Some(bytes) = settings.pool_bytes {
        let pool = bytes / simulation.page_bytes;
        assert!(simulation.steps.iter().all(|step| step.pages <= pool), "more pages than {pool}");
    }
    for step in &simulation.steps {
        assert!(step.live_tokens <= step.pages * simulation.page_tokens, "{step:?}");
    }
}

#[test]
fn every_request_ends_with_its_tokens_whatever_the_policy_and_the_pool() {
    let (machine, job) = (machine(), micro(300, 50, 5, 6, 40));
    for policy in [Policy::FCFS, Policy::BATCHLLM, Policy::OURS] {
        for pool_bytes in [None, pages(14), pages(40)] {
            let settings = ReplaySettings { policy, step_rows: 128, pool_bytes, ..ReplaySettings::default() };
            let simulation = replay(&machine, &settings, &job).expect("every path fits");
            check(&simulation, &job, &settings);
            assert_eq!(
                simulation,
                replay(&machine, &settings, &job).map(|again| with_times(again, &simulation)).unwrap()
            );
            if pool_bytes.is_none() {
                assert_eq!(simulation.metrics.prompt_tokens_computed, distinct(&job), "{policy}");
            }
        }
    }
}

/// This machine's own time is measured too, which is no part of what must be the same.
fn with_times(mut again: JobRecord, first: &JobRecord) -> JobRecord {
    let times = &first.metrics;
    again.metrics.seconds_scheduling = times.seconds_scheduling;
    again.metrics.seconds_planning = times.seconds_planning;
    again.metrics.seconds_forward = times.seconds_forward;
    again.metrics.seconds_idle = times.seconds_idle;
    again.metrics.seconds_waiting = times.seconds_waiting;
    again.metrics.seconds_committing = times.seconds_committing;
    again.ordered_in = first.ordered_in;
    again
}

#[test]
fn samples_share_their_prompt() {
    let prompt = TracePrompt::Runs(vec![TextRun { text: 0, tokens: 1000 }]);
    let job = ReplayJob::new(vec![ReplayRequest { prompt, arrival: Duration::ZERO, samples: 9, output: 20 }]);
    let settings = ReplaySettings::default();
    let simulation = replay(&machine(), &settings, &job).unwrap();
    check(&simulation, &job, &settings);
    assert_eq!((simulation.metrics.prompt_tokens_computed, simulation.metrics.prompt_tokens_logical), (1000, 9000));
    assert_eq!(simulation.requests[0].samples, 9);
}

#[test]
fn policies_differ_in_what_they_share_and_in_their_limit() {
    let run = |text, tokens| TextRun { text, tokens };
    // Two levels: all begin alike, halves of them go on alike.
    let requests = (0..16u64).map(|number| ReplayRequest {
        prompt: TracePrompt::Runs(vec![run(0, 200), run(1 + number % 2, 200), run(10 + number, 50)]),
        arrival: Duration::ZERO,
        samples: 1,
        output: 30,
    });
    let job = ReplayJob::new(requests.collect());
    let computed = |sharing| {
        let policy = Policy { sharing, order: RequestOrder::Arrival, branches: BranchLimit::AtMost(4) };
        let settings = ReplaySettings { policy, ..ReplaySettings::default() };
        let simulation = replay(&machine(), &settings, &job).unwrap();
        check(&simulation, &job, &settings);
        assert_eq!(simulation.totals(settings.step_rows).most_running, 4);
        simulation.metrics.prompt_tokens_computed
    };
    assert_eq!(computed(PromptSharing::None), 16 * 450);
    assert_eq!(computed(PromptSharing::SingleLevel), 2 * 400 + 16 * 50);
    assert_eq!(computed(PromptSharing::AllLevels), 200 + 2 * 200 + 16 * 50);
}

#[test]
fn groups_come_together_where_order_says_so() {
    let job = micro(400, 20, 8, 8, 50);
    // Room for two groups: prompts in the order in which they arrive would bring back every group for each of its
    // prompts.
    let settings = |order| {
        let policy = Policy { order, ..Policy::OURS };
        ReplaySettings { policy, pool_bytes: pages(70), step_rows: 256, ..ReplaySettings::default() }
    };
    let computed = |order| replay(&machine(), &settings(order), &job).unwrap().metrics.prompt_tokens_computed;
    assert_eq!(computed(RequestOrder::ByRatio), distinct(&job));
    assert!(computed(RequestOrder::Arrival) > 2 * distinct(&job));
}

#[test]
fn a_warm_up_repeats_decode_steps_of_any_number_of_rows() {
    for requests in [8, 100, 256, 400] {
        let (job, settings) = (warm_up(requests), ReplaySettings { step_rows: 2048, ..ReplaySettings::default() });
        let record = replay(&machine(), &settings, &job).unwrap();
        check(&record, &job, &settings);
        let decoding = |step: &&StepRecord| step.prompt_rows == 0;
        let rows: Vec<u64> = record.steps.iter().filter(decoding).map(|step| step.rows.div_ceil(8)).collect();
        for eights in 1..=requests.min(256).div_ceil(8) as u64 {
            assert!(
                rows.iter().filter(|&&rows| rows == eights).count() >= 2,
                "{requests} requests, {eights}: {rows:?}"
            );
        }
        let advanced = record.metrics.steps - record.metrics.steps_replanned;
        assert!(advanced >= requests.min(256).div_ceil(8) as u64, "{requests} requests: {advanced} advanced");
    }
}

#[test]
fn requests_wait_for_their_time() {
    let job = shared_prompts(256, 128, 10, 30, 2.0, 7);
    let settings = ReplaySettings::default();
    let simulation = replay(&machine(), &settings, &job).unwrap();
    check(&simulation, &job, &settings);
    let arrivals: Vec<f64> = poisson(2.0, 7).take(30).map(|at| at.as_secs_f64()).collect();
    assert_eq!(simulation.requests.iter().map(|request| request.arrival).collect::<Vec<_>>(), arrivals);
    let totals = simulation.totals(settings.step_rows);
    assert!(totals.seconds > arrivals[29] && totals.normalised_latency < 0.05, "{totals:?}");
}

#[test]
fn reading_a_shared_prompt_again_costs_time_and_no_memory() {
    let lengths = [RequestLengths { prompt: 50, output: 100 }];
    let job = with_system_prompt(2048, &lengths, 200.0, 1.0, 1);
    let totals = [Planner::Flat, Planner::Balanced].map(|planner| {
        let settings = ReplaySettings { planner, ..ReplaySettings::default() };
        let simulation = replay(&machine(), &settings, &job).unwrap();
        check(&simulation, &job, &settings);
        simulation.totals(settings.step_rows)
    });
    assert!(totals[0].seconds > 1.1 * totals[1].seconds, "{totals:?}");
    assert_eq!(totals[0].prompt_tokens_computed, totals[1].prompt_tokens_computed);
}

fn tiny() -> ModelConfig {
    let config = serde_json::json!({
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 320, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 2048, "tie_word_embeddings": false,
    });
    ModelConfig::from_json(&config.to_string()).unwrap()
}

/// What no clock and no size of pages changes, step by step.
fn counts(record: &JobRecord) -> Vec<[u64; 5]> {
    let step = |step: &StepRecord| {
        [step.rows, step.prompt_rows, step.running as u64, step.waiting as u64, step.live_tokens as u64]
    };
    record.steps.iter().map(step).collect()
}

#[test]
fn a_computed_run_by_the_wall_clock_counts_what_a_modelled_one_does() {
    let machine = SimulatedMachine { model: tiny(), dtype: Dtype::F32, ..machine() };
    let mut loaded =
        LoadedModel::random(Cpu::open().unwrap(), tiny(), Dtype::F32, KvDtype::Model, StateDtype::F32).unwrap();
    let mut computed = |settings: &ReplaySettings, job: &ReplayJob| {
        let record = loaded.run(WallClock::beside::<Cpu>(), settings, job).unwrap();
        check_any(&record, job, settings);
        record
    };
    let jobs = [micro(100, 20, 5, 4, 12), industry(60, 30, 5.0, 40, 10, 3), nested(&[(40, 1), (30, 3), (9, 4)], 8)];
    for job in &jobs {
        for policy in [Policy::FCFS, Policy::BATCHLLM, Policy::OURS, Policy::OURS.capped(7)] {
            let settings = ReplaySettings { policy, step_rows: 256, ..ReplaySettings::default() };
            let (computed, modelled) = (computed(&settings, job), replay(&machine, &settings, job).unwrap());
            assert_eq!(counts(&computed), counts(&modelled), "{policy}");
            let totals = [&computed, &modelled].map(|record| {
                let Metrics { prompt_tokens_logical, prompt_tokens_computed, tokens_sampled, .. } = record.metrics;
                (prompt_tokens_logical, prompt_tokens_computed, tokens_sampled)
            });
            assert_eq!(totals[0], totals[1], "{policy}");
        }
    }
    // In pools of 400 slots, whatever the size of their pages, nothing is computed twice.
    let bytes = |page_tokens: usize| Some(400 / page_tokens * page_tokens * 2 * 2 * 2 * 16 * 4);
    let settings =
        |page_tokens| ReplaySettings { pool_bytes: bytes(page_tokens), step_rows: 128, ..ReplaySettings::default() };
    let pools = [computed(&settings(16), &jobs[0]), replay(&machine, &settings(32), &jobs[0]).unwrap()];
    for record in pools {
        assert!((384..=400).contains(&(record.pool_pages * record.page_tokens)), "{} pages", record.pool_pages);
        let distinct: u64 = 5 * 100 + 20 * 20;
        assert_eq!((record.metrics.prompt_tokens_computed, record.metrics.tokens_sampled), (distinct, 20 * 12));
    }
}

#[test]
fn the_clock_changes_no_step_of_a_job_that_comes_at_once() {
    let (machine, job) = (machine(), micro(300, 50, 5, 6, 40));
    for policy in [Policy::FCFS, Policy::OURS] {
        for pool_bytes in [None, pages(14), pages(40)] {
            let settings = ReplaySettings { policy, step_rows: 128, pool_bytes, ..ReplaySettings::default() };
            let modelled = Sim::new(machine.profile.clone());
            let mut loaded =
                LoadedModel::random(modelled, machine.model.clone(), machine.dtype, machine.kv, machine.states)
                    .unwrap();
            let record = loaded.run(WallClock::beside::<Sim>(), &settings, &job).unwrap();
            check_any(&record, &job, &settings);
            assert_eq!(counts(&record), counts(&replay(&machine, &settings, &job).unwrap()), "{policy}");
        }
    }
}

#[test]
fn a_model_outlives_the_jobs_that_it_cannot_serve() {
    let mut loaded =
        LoadedModel::random(Cpu::open().unwrap(), tiny(), Dtype::F32, KvDtype::Model, StateDtype::F32).unwrap();
    let mut run = |prompt| {
        let settings = ReplaySettings { pool_bytes: Some(100 * 512), ..ReplaySettings::default() };
        loaded.run(WallClock::beside::<Cpu>(), &settings, &shared_prompts(prompt, 0, 5, 3, 200.0, 1))
    };
    let first = run(40).unwrap();
    assert!(run(3000).unwrap_err().to_string().contains("2048"), "more than the context");
    assert!(run(1500).unwrap_err().to_string().contains("pages"), "more than the pool");
    // Nothing is left of the runs before.
    let again = run(40).unwrap();
    assert_eq!(again.metrics.prompt_tokens_computed, first.metrics.prompt_tokens_computed);
    assert!(again.requests.iter().all(|request| request.arrival < request.first_token), "{:?}", again.requests);
}

#[test]
fn a_sustained_rate_lies_between_what_held_and_what_did_not() {
    let lengths = [RequestLengths { prompt: 100, output: 20 }];
    let job = |rate| with_system_prompt(64, &lengths, rate, 2.0, 3);
    let search = RateSearch { limit: 0.05, ..RateSearch::default() };
    let latency = |rate| {
        let settings = ReplaySettings::default();
        Ok(replay(&machine(), &settings, &job(rate))?.totals(settings.step_rows).normalised_latency)
    };
    let found = sustainable_rate(search, latency).unwrap();
    let held = found.tried.iter().filter(|(_, latency)| *latency <= 0.05).map(|(rate, _)| *rate).fold(0.0, f64::max);
    let not = found.tried.iter().filter(|(_, latency)| *latency > 0.05).map(|(rate, _)| *rate).fold(1e9, f64::min);
    assert_eq!(found.rate, held);
    assert!(held < not && not < 1.05 * held, "{:?}", found.tried);
}

#[test]
fn what_cannot_be_served_is_named() {
    let request = |tokens| ReplayRequest {
        prompt: TracePrompt::Runs(vec![TextRun { text: 0, tokens }]),
        arrival: Duration::ZERO,
        samples: 1,
        output: 8,
    };
    let settings = ReplaySettings { pool_bytes: pages(4), ..ReplaySettings::default() };
    let refused = |tokens| {
        let job = ReplayJob::new(vec![request(10), request(tokens)]);
        let error = replay(&machine(), &settings, &job).expect_err("it is no request");
        assert_eq!(error.exit_code(), 2);
        error.to_string()
    };
    assert!(refused(0).contains("request 2") && refused(0).contains("at least one token"), "{}", refused(0));
    assert!(refused(1000).contains("request 2") && refused(1000).contains("pages"), "{}", refused(1000));
}

#[test]
fn industry_shapes_have_their_means() {
    let job = industry(1100, 400, 7.0, 3000, 100, 1);
    assert_eq!(job.requests.len(), 3000);
    let own: usize = job.requests.iter().map(|request| request.prompt.len() - 1100).sum();
    assert!((own as f64 / 3000.0 / 400.0 - 1.0).abs() < 0.1);
    let saved =
        1.0 - distinct(&job) as f64 / job.requests.iter().map(|request| request.prompt.len() as f64).sum::<f64>();
    assert!((0.5..0.7).contains(&saved), "{saved}");
}

#[test]
fn nested_prompts_have_their_levels() {
    let job = nested(&[(100, 1), (50, 3), (20, 4), (7, 5)], 10);
    assert_eq!(job.requests.len(), 60);
    assert_eq!(distinct(&job), 100 + 3 * 50 + 12 * 20 + 60 * 7);
}

fn refused(name: &str, content: &str) -> String {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, content).unwrap();
    let error = read_trace(&path).expect_err(content);
    assert_eq!(error.exit_code(), 2);
    let said = error.to_string();
    assert!(!said.contains('\n') && said.contains(name), "{said}");
    said
}

#[test]
fn traces_that_are_none_are_refused_with_line_and_field() {
    let good = r#"{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}"#;
    for (from, to, expected) in [
        ("600", "0", "line 2: input_length"),
        ("600", "1600", "line 2: hash_ids"),
        ("5,", "0,", "line 2: output_length"),
        ("5,", "\"x\",", "line 2"),
        (": 0", ": -1", "line 2: timestamp"),
        ("\"hash_ids\"", "\"ids\"", "hash_ids"),
    ] {
        let said = refused("t.jsonl", &format!("\u{feff}{good}\n{}\n", good.replacen(from, to, 1)));
        assert!(said.contains(expected), "{said}");
    }
    assert!(refused("t.jsonl", "\n\n").contains("none"));
    for (line, expected) in [("1", "line 3"), ("1,0", "line 3: answer"), ("x,1", "line 3: prompt"), ("-1,1", "\"-1\"")]
    {
        let said = refused("t.csv", &format!("3,4\n\n{line}\n"));
        assert!(said.contains(expected), "{said}");
    }
    assert!(refused("t.json", "[3, 0]").contains("[1]"));
    assert!(refused("t.json", "{}").contains("t.json"));
    assert!(refused("t.txt", "").contains(".jsonl"));
}

#[test]
fn recorded_traces_are_read_whole() {
    let (Some(conversation), Some(synthetic), Some(share_gpt), Some(mmlu)) = (
        shared("data/traces/mooncake/conversation_trace.jsonl"),
        shared("data/traces/mooncake/synthetic_trace.jsonl"),
        shared("data/traces/relay_attention/ShareGPT_stat.csv"),
        shared("data/traces/relay_attention/mmlu_prompt_stat.json"),
    ) else {
        return;
    };
    let counts = [&conversation, &synthetic, &share_gpt, &mmlu].map(|path| read_trace(path).unwrap().requests.len());
    assert_eq!(counts, [12_031, 3_993, 82_780, 14_042]);
    let what = TraceReplay { trace: conversation, rate: None, requests: Some(60), seed: 1 };
    let settings = ReplaySettings::default();
    let simulation = replay_trace(&machine(), &settings, &what).unwrap();
    let mut job = read_trace(&what.trace).unwrap();
    job.requests.truncate(60);
    check(&simulation, &job, &settings);
    assert_eq!(simulation.metrics.prompt_tokens_computed, distinct(&job));
    assert!(replay_trace(&machine(), &settings, &TraceReplay { rate: Some(0.0), ..what }).is_err());
}
