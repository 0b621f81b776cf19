//! A step of the CPU backend that advances a dense model allocates nothing but the list of samples that it hands out. A
//! test target of its own: it counts what the whole process allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use offshoot_backend::{Backend, Dtype, Filters, Pick, RowToken, SampleRequest, StepBatch};
use offshoot_core::ids::TokenId;
use offshoot_cpu::{Cpu, Isa};
use offshoot_kv::plan::Planner;
use offshoot_kv::{PagePool, PrefixTree, StepRow};
use offshoot_model::{Decoder, ModelConfig};

/// The system's allocator, which counts.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: promised by the caller.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: promised by the caller.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Tokens of a prompt and the rows below it: many rows; few rows of a context of two sections, which threads share.
const SHAPES: [(usize, usize); 2] = [(64, 40), (1088, 2)];
/// Steps before the counted ones: buffers reach their sizes.
const WARM: usize = 3;
/// All within the rows' first own page.
const COUNTED: usize = 8;

fn model() -> ModelConfig {
    let config = r#"{ "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "vocab_size": 500, "eos_token_id": 1,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "tie_word_embeddings": false }"#;
    ModelConfig::from_json(config).unwrap()
}

#[test]
fn a_step_that_advances_allocates_only_its_samples() {
    // The clear loops, and what stands in for them, may allocate: they define the ops as plainly as they can.
    let fast = Isa::available().into_iter().filter(|isa| *isa != Isa::Portable);
    let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    for isa in fast {
        for (dtype, shape) in [Dtype::F32, Dtype::Bf16].into_iter().flat_map(|dtype| SHAPES.map(|shape| (dtype, shape)))
        {
            let allocated = alone.install(|| allocated_by_steps(isa, dtype, shape));
            assert_eq!(allocated, vec![1; COUNTED], "{isa}, {dtype:?}, {shape:?}: allocations by step");
            // A worker that takes its first part late, as others keep it from running, makes its buffers then.
            let allocated = allocated_by_steps(isa, dtype, shape);
            assert_eq!(allocated.iter().min(), Some(&1), "{isa}, {dtype:?}, {shape:?}, a team: {allocated:?}");
        }
    }
}

/// Runs a prompt, forks it into `samples` rows and advances them; returns the allocations of each counted step.
fn allocated_by_steps(isa: Isa, dtype: Dtype, (prompt, samples): (usize, usize)) -> Vec<usize> {
    let mut backend = Cpu::with_isa(isa);
    let mut model = Decoder::random(&mut backend, model(), dtype, 7).unwrap();
    let pages = 2 * (prompt / backend.page_tokens() as usize + samples + 2);
    let mut kv = backend.kv(&model.kv_shape(pages)).unwrap();
    let mut step = model.step(&mut backend).unwrap();
    let (mut pool, mut tree) = (PagePool::new(pages), PrefixTree::new(backend.page_tokens()));
    let prompt: Vec<TokenId> = (0..prompt).map(|i| TokenId::new(i * 7 % 500)).collect();
    let trunk = tree.admit(&mut pool, &prompt).unwrap();
    let rows: Vec<StepRow> = (0..tree.end(trunk)).map(|position| StepRow { segment: trunk, position }).collect();
    let batch = batch(&model, &tree, &rows, Vec::new());
    model.forward(&mut backend, &mut kv, &mut step, batch).unwrap();
    backend.collect(&mut step).unwrap();
    tree.mark_computed(trunk, tree.end(trunk));

    let leaves: Vec<_> = (0..samples).map(|_| tree.fork(trunk)).collect();
    let mut rows: Vec<StepRow> = Vec::new();
    for (i, &leaf) in leaves.iter().enumerate() {
        tree.append(&mut pool, leaf, &[TokenId::new(i)]).unwrap();
        rows.push(StepRow { segment: leaf, position: tree.end(leaf) - 1 });
    }
    tree.depth_first(&mut rows);
    let pick = Pick::Random { filters: Filters::default(), uniform: 0.3 };
    let requests = rows.iter().map(|_| SampleRequest::of(pick)).collect();
    let batch = self::batch(&model, &tree, &rows, requests);
    assert!(batch.can_advance());
    model.forward(&mut backend, &mut kv, &mut step, batch).unwrap();
    backend.collect(&mut step).unwrap();

    let uniforms = vec![0.6; samples];
    let mut advance = || {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        let shape = model.load_advanced(&mut backend, &mut step, &uniforms, &[]).unwrap();
        model.enqueue(&mut backend, &mut kv, &mut step, shape).unwrap();
        let after = ALLOCATIONS.load(Ordering::Relaxed);
        assert_eq!(backend.collect(&mut step).unwrap().len(), samples);
        after - before
    };
    (0..WARM).for_each(|_| {
        advance();
    });
    (0..COUNTED).map(|_| advance()).collect()
}

fn batch(model: &Decoder<Cpu>, tree: &PrefixTree, rows: &[StepRow], requests: Vec<SampleRequest>) -> StepBatch {
    let forest = tree.forest(rows);
    StepBatch {
        tokens: rows.iter().map(|row| RowToken::Known(tree.token_at(row.segment, row.position))).collect(),
        positions: rows.iter().map(|row| row.position).collect(),
        slots: vec![rows.iter().map(|row| tree.slot(row.segment, row.position)).collect()],
        logit_rows: if requests.is_empty() { Vec::new() } else { (0..rows.len() as u32).collect() },
        plans: model.plan_hints().iter().map(|hints| Planner::Balanced.plan(&forest, hints)).collect(),
        state_runs: Vec::new(),
        adapters: Vec::new(),
        requests: requests.into(),
        expansions: None,
    }
}
