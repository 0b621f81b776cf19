//! `cargo bench -p offshoot-lab --bench prompts`: how long it takes to know what a job's prompts share: 3,000 prompts
//! of about 1,500 tokens, of several kinds, as they arrive in no order. Medians of 21. With `-- million`: 1,000,000
//! prompts of 1,450 tokens on average, once, and the most memory that was taken beside that of their tokens.

use std::hint::black_box;
use std::time::{Duration, Instant};

use offshoot_core::dice::Dice;
use offshoot_core::ids::TokenId;
use offshoot_kv::{PackedPrompts, PromptTree, Prompts};

const REPETITIONS: usize = 21;
const VOCAB: u32 = 128_000;
const PAGE_TOKENS: u32 = 16;
/// Tokens of the cache that `lru` is asked about: as many as fit an H200 beside a model of 8 billion parameters.
const CACHE: u64 = 900_000;

fn main() {
    if std::env::args().any(|argument| argument == "million") {
        return million();
    }
    let kinds = [
        ("all different", Kind { group: 1, shared: 0, own: 1500 }),
        ("all equal", Kind { group: 3000, shared: 1500, own: 0 }),
        ("all share 1,000", Kind { group: 3000, shared: 1000, own: 500 }),
        ("16 share 1,000", Kind { group: 16, shared: 1000, own: 500 }),
        ("7 share 1,100", Kind { group: 7, shared: 1100, own: 400 }),
    ];
    println!(
        "{:>16} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "3,000 prompts", "nodes", "tree", "one level", "lru", "order"
    );
    for (name, kind) in kinds {
        let prompts = kind.prompts(3000);
        let tree = PromptTree::new(&prompts);
        let draws = vec![256; prompts.count()];
        println!(
            "{name:>16} {:>10} {:>10.1?} {:>10.1?} {:>10.1?} {:>10.1?}",
            tree.nodes().len(),
            median(|| PromptTree::new(&prompts)),
            median(|| tree.single_level()),
            median(|| tree.lru(CACHE, PAGE_TOKENS)),
            median(|| tree.order_by(&draws)),
        );
    }
}

fn million() {
    let prompts = Kind { group: 16, shared: 1000, own: 500 }.prompts(1_000_000);
    let tokens: usize = (0..prompts.count()).map(|prompt| prompts.tokens(prompt).len()).sum();
    println!(
        "{} prompts, {tokens} tokens: {} as u32",
        prompts.count(),
        offshoot_core::figures::bytes(4 * tokens as u64)
    );
    let tree = timed("tree", || PromptTree::new(&prompts));
    println!("{:>12} {}", "nodes", tree.nodes().len());
    for (name, saving) in [
        ("one level", timed("one level", || tree.single_level())),
        ("lru", timed("lru", || tree.lru(CACHE, PAGE_TOKENS))),
        ("all levels", timed("all levels", || tree.all_levels())),
    ] {
        println!("{name:>12} saves {:.2} %", 100.0 * saving.ratio());
    }
    let draws = vec![256; prompts.count()];
    timed("order", || tree.order_by(&draws));
    if let Some(peak) = peak_bytes() {
        println!("{:>12} {:.3} x the tokens' bytes", "peak memory", peak as f64 / (4 * tokens) as f64);
    }
}

/// Groups of prompts that begin with the same tokens.
struct Kind {
    group: u32,
    shared: usize,
    own: usize,
}

impl Kind {
    /// The prompts, in no order; each differs by up to 100 tokens in length where it has that many of its own.
    fn prompts(&self, count: u32) -> PackedPrompts {
        let mut dice = Dice::new(7);
        let mut places: Vec<u32> = (0..count).collect();
        for at in (1..count).rev() {
            places.swap(at as usize, dice.within(0, at) as usize);
        }
        let mut prompts = PackedPrompts::with_capacity(count as usize, count as usize * (self.shared + self.own));
        for place in places {
            let shared = words(u64::from(place / self.group) << 32, self.shared);
            let shorter = if self.own > 100 { place as usize % 101 } else { 0 };
            prompts.push(shared.chain(words(u64::from(place) << 32 | 1 << 63, self.own - shorter)));
        }
        prompts
    }
}

fn words(seed: u64, count: usize) -> impl Iterator<Item = TokenId> {
    let mut dice = Dice::new(seed);
    (0..count).map(move |_| TokenId(dice.within(0, VOCAB - 1)))
}

fn median<T>(run: impl Fn() -> T) -> Duration {
    let mut times: Vec<Duration> = (0..REPETITIONS)
        .map(|_| {
            let start = Instant::now();
            drop(black_box(run()));
            start.elapsed()
        })
        .collect();
    times.sort();
    times[REPETITIONS / 2]
}

fn timed<T>(what: &str, run: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = run();
    println!("{what:>12} in {:.2?}", start.elapsed());
    result
}

/// The most memory that this process has held, as Linux counts it.
fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}
