//! Prefixes that real engines lend each other: what two engines need is computed once, with the same bits, and nothing
//! hangs whatever becomes of lender and borrower.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use offshoot_backend::Dtype;
use offshoot_core::ids::{BranchId, TokenId};
use offshoot_cpu::Cpu;
use offshoot_engine::replicas;
use offshoot_engine::{
    CopySize, Engine, EngineConfig, EngineHandle, Event, FinishReason, Hear, Metrics, PoolSize, RootOptions, Stop, Turn,
};
use offshoot_kv::plan::{LatentForm, LatentFormChoice, Planner};
use offshoot_model::Decoder;

use crate::patience::within_a_minute;
use crate::real::bench::{
    Shape, draw, finishes, key, length, mislead, model, pages, params, prompt, roomy, tokenizer, unsure,
};

const CONTEXT: usize = 2048;

/// Engines that copy whatever they can: the tiny model computes a token faster than a real one's could be copied.
fn config() -> EngineConfig {
    EngineConfig { max_branches: 8, step_rows: 64, swap_at_any_cost: true, check_plans: true, ..roomy() }
}

fn build(shape: Shape, config: &EngineConfig) -> (Engine, EngineHandle) {
    let mut backend = Cpu::open().expect("the CPU is there");
    let decoder = Decoder::random(&mut backend, model(shape, CONTEXT), Dtype::F32, 7).expect("it fits");
    Engine::build(decoder.on(backend), Some(tokenizer()), config.clone()).expect("it fits")
}

fn start(shape: Shape, config: &EngineConfig) -> EngineHandle {
    let (engine, handle) = build(shape, config);
    engine.spawn().expect("a thread starts");
    handle
}

/// An engine that makes turns while `goes_on` says so, and ends when it has made so many steps.
fn turning(shape: Shape, goes_on: impl Fn() -> bool + Send + 'static, steps: usize) -> EngineHandle {
    let (mut engine, handle) = build(shape, &config());
    std::thread::spawn(move || {
        let mut stepped = 0;
        while stepped < steps {
            let turn = if goes_on() { engine.turn().expect("nothing is wrong with it") } else { Turn::Idle };
            match turn {
                Turn::Stepped => stepped += 1,
                Turn::Idle => std::thread::sleep(Duration::from_millis(1)),
                Turn::Abandoned => return,
            }
        }
    });
    handle
}

fn join(engines: Vec<EngineHandle>) -> EngineHandle {
    replicas::join(engines).expect("they are alike")
}

/// A header, problems below it, samples of each.
#[derive(Clone, Copy)]
struct Tree {
    header: usize,
    problems: usize,
    problem: usize,
    samples: usize,
}

/// apps_2level and self_consistency of `bench workloads`, a fifth as long and with fewer samples.
const TWO_LEVELS: Tree = Tree { header: 480, problems: 20, problem: 100, samples: 3 };
const SELF_CONSISTENCY: Tree = Tree { header: 200, problems: 64, problem: 20, samples: 2 };

impl Tree {
    fn tokens(self) -> usize {
        self.header + self.problems * self.problem
    }

    fn prompt(self, problem: usize) -> Vec<TokenId> {
        [prompt(1, self.header), prompt(100 + problem as u64, self.problem)].concat()
    }

    /// The branches of all samples, each replica of so many having its part of the problems.
    fn branches(self, engine: &EngineHandle, replicas: usize) -> Vec<BranchId> {
        let mut all = Vec::new();
        for problem in 0..self.problems {
            let home = Some(problem * replicas / self.problems);
            let root = engine.root_with(self.prompt(problem), RootOptions { home, ..RootOptions::default() });
            let root = root.expect("a prompt");
            all.extend(engine.fork(root, self.samples).expect("it rests"));
            engine.release(&[root]);
        }
        all
    }

    /// What was sampled, in order.
    fn grow(self, engine: &EngineHandle, replicas: usize) -> Vec<String> {
        self.grow_until(engine, replicas, &length(9))
    }

    fn grow_until(self, engine: &EngineHandle, replicas: usize, stop: &Stop) -> Vec<String> {
        let branches = self.branches(engine, replicas);
        let extends =
            (0u64..).zip(&branches).map(|(at, &branch)| draw(branch, key("tree", at), params(), stop.clone()));
        finishes(engine, extends.collect()).iter().map(|finish| format!("{finish:?}")).collect()
    }
}

/// The most prompt tokens that several engines may compute, over those of one: the header's last tokens, which fill no
/// page, and those of problems that are divided at the end.
fn most_times(shape: Shape) -> f64 {
    match shape {
        // A divided problem is computed again from the header on, as no state is kept where its last page ends. Headers
        // alone would be 1.13 times and more.
        Shape::Hybrid => 1.10,
        _ => 1.03,
    }
}

#[test]
fn what_replicas_share_is_computed_once() {
    for shape in [Shape::Full, Shape::LongWindowed, Shape::LongMixed, Shape::Hybrid, Shape::Latent] {
        for tree in [TWO_LEVELS, SELF_CONSISTENCY] {
            within_a_minute(move || {
                let one = start(shape, &config());
                let expected = tree.grow(&one, 1);
                let computed = one.metrics().expect("it runs").prompt_tokens_computed;
                // Some problems begin with the same letters.
                assert!((tree.tokens() - tree.problems..=tree.tokens()).contains(&(computed as usize)));
                for replicas in [2, 3] {
                    let several = join((0..replicas).map(|_| start(shape, &config())).collect());
                    assert_eq!(tree.grow(&several, replicas), expected, "{shape:?} on {replicas}");
                    let metrics = several.metrics().expect("it runs");
                    let times = metrics.prompt_tokens_computed as f64 / computed as f64;
                    assert!(times <= most_times(shape), "{shape:?} on {replicas}: {times}, {metrics:?}");
                }
            });
        }
    }
}

#[test]
fn where_copying_does_not_pay_both_compute() {
    within_a_minute(|| {
        let config = EngineConfig { swap_at_any_cost: false, ..config() };
        let engine = start(Shape::Full, &config);
        let costs = engine.facts().prefix_costs;
        assert!(!costs.copying_pays(TWO_LEVELS.header), "{costs:?}");
        let several = join(vec![engine, start(Shape::Full, &config)]);
        TWO_LEVELS.grow(&several, 2);
        let metrics = several.metrics().expect("it runs");
        assert_eq!(metrics.prompt_tokens_copied, 0);
        // Some problems begin with the same letters.
        let least = TWO_LEVELS.tokens() - TWO_LEVELS.problems + TWO_LEVELS.header;
        assert!(metrics.prompt_tokens_computed as usize >= least, "{metrics:?}");
    });
}

#[test]
fn a_group_that_is_taken_over_finds_its_beginning_copied() {
    within_a_minute(|| {
        // All of it is for the first replica, and more than its share: the second one takes some of it over.
        let tree = Tree { header: 640, problems: 1, problem: 16, samples: 200 };
        let expected = tree.grow(&start(Shape::Full, &config()), 1);
        let several = join(vec![start(Shape::Full, &config()), start(Shape::Full, &config())]);
        assert_eq!(tree.grow(&several, 1), expected);
        let metrics = several.metrics().expect("it runs");
        assert!(metrics.prompt_tokens_copied >= 640, "{metrics:?}");
        assert!(metrics.prompt_tokens_computed as usize <= tree.tokens() + 16, "{metrics:?}");
    });
}

/// Each engine makes copies of its own of the latents that it is lent.
#[test]
fn latents_are_lent_without_their_copies() {
    within_a_minute(|| {
        let tree = Tree { header: 640, problems: 1, problem: 16, samples: 200 };
        let run = |copies: usize| {
            let config = EngineConfig {
                pool: PoolSize::Bytes(16 << 20),
                copies: CopySize::Bytes(copies),
                latent_forms: LatentFormChoice::All(LatentForm::Kept),
                planner: Planner::Tree,
                ..config()
            };
            let several = join(vec![start(Shape::Latent, &config), start(Shape::Latent, &config)]);
            let branches = tree.branches(&several, 1);
            let extends =
                (0u64..).zip(&branches).map(|(at, &branch)| draw(branch, key("tree", at), params(), length(9)));
            let tokens: Vec<_> =
                finishes(&several, extends.collect()).into_iter().map(|finish| finish.tokens).collect();
            (tokens, several.metrics().expect("it runs"))
        };
        let (expected, alone) = run(0);
        let (found, with) = run(8 << 20);
        assert_eq!(found, expected);
        assert_eq!(alone.latent_tokens_expanded, 0);
        // A tile is 64 tokens; both engines expand all tiles of the header.
        assert_eq!(with.latent_tokens_expanded, 2 * 640, "{with:?}");
        for metrics in [alone, with] {
            assert!(metrics.prompt_tokens_copied >= 640, "{metrics:?}");
            assert!(metrics.prompt_tokens_computed as usize <= tree.tokens() + 16, "{metrics:?}");
        }
    });
}

#[test]
fn a_lender_or_a_borrower_that_ends_changes_nothing() {
    for shape in [Shape::Full, Shape::Hybrid] {
        let tree = Tree { header: 320, problems: 6, problem: 40, samples: 2 };
        let expected = within_a_minute(move || tree.grow(&start(shape, &config()), 1));
        // The header takes five steps; what is lent follows them.
        for steps in [0, 1, 3, 4, 5, 6, 7, 8, 10, 14] {
            let ends = move || turning(shape, || true, steps);
            let lives = move || start(shape, &config());
            let found = within_a_minute(move || tree.grow(&join(vec![ends(), lives()]), 2));
            assert_eq!(found, expected, "{shape:?}: the lender ends after {steps} steps");
            let found = within_a_minute(move || tree.grow(&join(vec![lives(), ends()]), 2));
            assert_eq!(found, expected, "{shape:?}: the borrower ends after {steps} steps");
            let found = within_a_minute(move || tree.grow(&join(vec![ends(), lives(), ends()]), 3));
            assert_eq!(found, expected, "{shape:?}: two end after {steps} steps");
        }
    }
}

/// Two replicas of which the first, the lender, makes turns only once it is let.
fn held() -> (EngineHandle, Arc<AtomicBool>) {
    let may_go_on = Arc::new(AtomicBool::new(false));
    let goes_on = may_go_on.clone();
    let lender = turning(Shape::Full, move || goes_on.load(Ordering::SeqCst), usize::MAX);
    (join(vec![lender, start(Shape::Full, &config())]), may_go_on)
}

#[test]
fn what_waits_for_a_prefix_can_be_cancelled_and_other_work_goes_before_it() {
    within_a_minute(|| {
        let (engine, lender_may_go_on) = held();
        let tree = Tree { header: 320, problems: 4, problem: 40, samples: 2 };
        let branches = tree.branches(&engine, 2);
        let (of_lender, of_borrower) = branches.split_at(4);
        let start = |branches: &[BranchId]| {
            let mut receiver = engine.receiver(Hear::Finishes);
            let drawn = branches.iter().map(|&branch| draw(branch, key("held", branch.0), params(), length(9)));
            receiver.start(drawn.collect()).expect("it runs");
            receiver
        };
        let mut lenders = start(of_lender);
        let mut waiting = start(of_borrower);
        // Another prompt, placed there behind them, does not wait.
        let place = RootOptions { home: Some(1), ..RootOptions::default() };
        let other = engine.root_with(prompt(7, 50), place).expect("a prompt");
        let mut of_other = start(&[other]);
        assert!(matches!(of_other.next(), Some(Event::Finished { finish, .. }) if finish.tokens.len() == 9));
        assert!(waiting.poll(Duration::ZERO).is_pending(), "they wait for the header");
        waiting.cancel_all();
        for _ in of_borrower {
            let Some(Event::Finished { finish, .. }) = waiting.next() else { panic!("it was cancelled") };
            assert_eq!(finish.reason, FinishReason::Cancelled);
        }
        assert!(waiting.next().is_none());
        lender_may_go_on.store(true, Ordering::SeqCst);
        for _ in of_lender {
            assert!(matches!(lenders.next(), Some(Event::Finished { .. })));
        }
        // They can go on, and find the header.
        let mut again = start(of_borrower);
        for _ in of_borrower {
            let Some(Event::Finished { finish, .. }) = again.next() else { panic!("it runs") };
            assert_eq!(finish.tokens.len(), 9);
        }
        let metrics = engine.metrics().expect("it runs");
        assert_eq!(metrics.prompt_tokens_computed as usize, tree.tokens() + 50, "{metrics:?}");
    });
}

#[test]
fn a_lender_that_never_answers_is_not_waited_for() {
    within_a_minute(|| {
        let (engine, lender_may_go_on) = held();
        let tree = Tree { header: 320, problems: 4, problem: 40, samples: 2 };
        let branches = tree.branches(&engine, 2);
        let (of_lender, of_borrower) = branches.split_at(4);
        let drawn = |branch: BranchId, tokens: usize| draw(branch, key("held", branch.0), params(), length(tokens));
        let mut lenders = engine.receiver(Hear::Finishes);
        lenders.start(of_lender.iter().map(|&branch| drawn(branch, 9)).collect()).expect("it runs");
        let mut borrower = engine.receiver(Hear::Finishes);
        borrower.start(vec![drawn(of_borrower[0], 9)]).expect("it runs");
        // A longer sample, placed there behind it: the borrower's would end first if it did not wait.
        let place = RootOptions { home: Some(1), ..RootOptions::default() };
        let other = engine.root_with(prompt(7, 50), place).expect("a prompt");
        assert_eq!(finishes(&engine, vec![drawn(other, 40)])[0].tokens.len(), 40);
        assert!(borrower.poll(Duration::ZERO).is_pending(), "it waits for a while");
        assert!(matches!(borrower.next(), Some(Event::Finished { finish, .. }) if finish.tokens.len() == 9));
        lender_may_go_on.store(true, Ordering::SeqCst);
        for _ in of_lender {
            assert!(matches!(lenders.next(), Some(Event::Finished { .. })));
        }
        assert_eq!(engine.metrics().expect("it runs").prompt_tokens_copied, 0);
    });
}

/// Samples of `prompts` on the first replica, one after the other. Then, while that one has as many branches as it
/// runs, a sample of `last` on the second one, which is returned.
fn beside_a_busy_one(engine: &EngineHandle, prompts: &[Vec<TokenId>], last: Vec<TokenId>) -> String {
    let root = |prompt: Vec<TokenId>, home: usize| {
        engine.root_with(prompt, RootOptions { home: Some(home), ..RootOptions::default() }).expect("a prompt")
    };
    let drawn = |branch: BranchId, tokens: usize| draw(branch, key("busy", 1), params(), length(tokens));
    for prompt in prompts {
        let root = root(prompt.clone(), 0);
        finishes(engine, vec![drawn(root, 9)]);
        engine.release(&[root]);
    }
    let busy = engine.fork(root(prompt(50, 20), 0), 8).expect("it rests");
    let mut receiver = engine.receiver(Hear::Finishes);
    receiver.start(busy.iter().map(|&branch| drawn(branch, 900)).collect()).expect("it runs");
    let finish = finishes(engine, vec![drawn(root(last, 1), 9)]).remove(0);
    receiver.cancel_all();
    while receiver.next().is_some() {}
    format!("{finish:?}")
}

#[test]
fn a_prefix_that_the_lender_has_evicted_is_computed() {
    within_a_minute(|| {
        let header = || prompt(1, 320);
        let last = || [header(), prompt(3, 9)].concat();
        let mut prompts = vec![[header(), prompt(2, 9)].concat()];
        let expected = beside_a_busy_one(&start(Shape::Full, &config()), &prompts, last());
        let several = join(vec![start(Shape::Full, &config()), start(Shape::Full, &config())]);
        assert_eq!(beside_a_busy_one(&several, &prompts, last()), expected);
        assert_eq!(several.metrics().expect("it runs").prompt_tokens_copied, 320, "a busy engine lends what it has");
        // The header's 20 pages, then others that need 60, in 60.
        prompts.extend((0..6).map(|at| prompt(10 + at, 400)));
        let small = EngineConfig { pool: pages(60).pool, ..config() };
        let several = join(vec![start(Shape::Full, &small), start(Shape::Full, &small)]);
        assert_eq!(beside_a_busy_one(&several, &prompts, last()), expected);
        assert_eq!(several.metrics().expect("it runs").prompt_tokens_copied, 0, "nobody has it any more");
    });
}

#[test]
fn full_pools_preempt_and_lend_and_sample_the_same() {
    for shape in [Shape::Full, Shape::LongMixed, Shape::Hybrid] {
        let tree = Tree { header: 160, problems: 12, problem: 40, samples: 5 };
        let expected = within_a_minute(move || tree.grow_until(&start(shape, &config()), 1, &unsure(60)));
        for room in [26, 40] {
            // States leave more room for pages.
            let must_preempt = room == 26 && !matches!(shape, Shape::Hybrid);
            let expected = expected.clone();
            within_a_minute(move || {
                let facts = start(shape, &config()).facts().clone();
                let states = 24 * facts.state_bytes;
                let pool = PoolSize::Bytes((room * facts.page_groups.count() * facts.page_bytes).max(states) + states);
                let small = EngineConfig { pool, swap_bytes: 1 << 20, ..config() };
                let round = || {
                    let several = join((0..3).map(|_| start(shape, &small)).collect());
                    // The first one lets in more branches than fit.
                    mislead(&several);
                    assert_eq!(tree.grow_until(&several, 3, &unsure(60)), expected, "{shape:?} in {room} pages");
                    several.metrics().expect("it runs")
                };
                // What is asked for may be gone from a full pool already, if the engine that has it was much faster
                // than the one that asks. One of several rounds lends and preempts.
                let lends =
                    |metrics: Metrics| metrics.prompt_tokens_copied > 0 && (!must_preempt || metrics.preemptions > 0);
                assert!(std::iter::repeat_with(round).take(10).any(lends), "{shape:?} in {room} pages: no round lends");
            });
        }
    }
}

#[test]
fn handles_that_are_dropped_in_mid_copy_end_all_engines() {
    within_a_minute(|| {
        for delay in [0, 1, 5, 20] {
            let (alive, gone) = mpsc::channel::<()>();
            let turns = move || {
                let _ = &alive;
                true
            };
            let lender = turning(Shape::Full, turns, usize::MAX);
            let engine = join(vec![lender, start(Shape::Full, &config())]);
            let branches = TWO_LEVELS.branches(&engine, 2);
            let mut receiver = engine.receiver(Hear::Finishes);
            let drawn = branches.iter().map(|&branch| draw(branch, key("held", branch.0), params(), length(9)));
            receiver.start(drawn.collect()).expect("it runs");
            // Likely in mid copy with one of the delays. What is asserted holds wherever it is.
            std::thread::sleep(Duration::from_millis(delay));
            drop((receiver, engine));
            assert_eq!(gone.recv(), Err(mpsc::RecvError), "the lender is dropped");
        }
    });
}
