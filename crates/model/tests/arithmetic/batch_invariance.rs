//! A row's logits have the same bits whether its text runs alone in one step, or in odd chunks, forked inside pages,
//! with siblings of other lengths in the same steps; under every planner, instruction set and dtype.

use offshoot_backend::{Backend, Dtype, KvDtype, RowToken, StepBatch, StepRequests};
use offshoot_core::ids::{SegmentId, TokenId};
use offshoot_cpu::kv::PAGE_TOKENS;
use offshoot_cpu::{Cpu, CpuStep, Isa, KvStore};
use offshoot_kv::plan::{CopyRoom, FormPlans, LatentFormChoice, Planner};
use offshoot_kv::{PagePool, PrefixTree, StepRow};
use offshoot_model::{Decoder, ModelConfig, Sequence};
use serde_json::{Value, json};

use crate::full::some_or_full;

const VOCAB: u32 = 97;
const PAGES: usize = 200;

fn text(tokens: usize, salt: u32) -> Vec<TokenId> {
    (0..tokens as u32).map(|i| TokenId((i * i + 31 * i + 17 * salt) % VOCAB)).collect()
}

/// The tree of this test: a trunk that is longer than a tile and ends inside a page, three continuations, and one
/// branch from the middle of the trunk.
struct Texts {
    trunk: Vec<TokenId>,
    from_end: [Vec<TokenId>; 3],
    fork: u32,
    from_middle: Vec<TokenId>,
}

impl Texts {
    fn new() -> Self {
        let from_end = [text(70, 1), text(9, 2), text(45, 3)];
        Self { trunk: text(150, 0), from_end, fork: 77, from_middle: text(30, 4) }
    }

    fn leaves(&self) -> Vec<Vec<TokenId>> {
        let middle = &self.trunk[..self.fork as usize];
        let from_end = self.from_end.iter().map(|tail| [self.trunk.as_slice(), tail].concat());
        from_end.chain([[middle, self.from_middle.as_slice()].concat()]).collect()
    }
}

/// The logits by position of a text that ran alone in one step.
struct AloneLogits {
    text: Vec<TokenId>,
    logits: Vec<f32>,
}

/// Runs the tree and compares every row with `alone`.
struct TreeRun<'a> {
    backend: &'a mut Cpu,
    model: &'a mut Decoder<Cpu>,
    planner: Planner,
    kv: KvStore,
    loaded: CpuStep,
    pool: PagePool,
    tree: PrefixTree,
    alone: &'a [AloneLogits],
    rows_seen: usize,
}

impl<'a> TreeRun<'a> {
    fn new(backend: &'a mut Cpu, model: &'a mut Decoder<Cpu>, planner: Planner, alone: &'a [AloneLogits]) -> Self {
        let kv = backend.kv(&model.kv_shape(PAGES)).unwrap();
        let groups = model.config().page_groups(backend);
        let (pool, tree) = (PagePool::new(PAGES), PrefixTree::with_groups(PAGE_TOKENS, groups));
        Self { backend, model, planner, kv, pool, tree, alone, rows_seen: 0, loaded: CpuStep::default() }
    }

    fn append(&mut self, segment: SegmentId, tokens: &[TokenId]) -> Vec<StepRow> {
        let first = self.tree.end(segment);
        self.tree.append(&mut self.pool, segment, tokens).unwrap();
        (first..self.tree.end(segment)).map(|position| StepRow { segment, position }).collect()
    }

    /// Runs the rows in one step and compares their logits with those of the texts alone.
    fn step(&mut self, mut rows: Vec<StepRow>) {
        self.tree.depth_first(&mut rows);
        let mut forest = self.tree.forest(&rows);
        let (mut plans, mut of_copies) = (Vec::new(), Vec::new());
        for hints in self.model.plan_hints() {
            self.tree.list_pages(&mut forest, hints.group);
            // Latents are read absorbed.
            let FormPlans { absorbed, copied } =
                self.planner.plan_forms(&forest, hints, LatentFormChoice::Cheapest, &CopyRoom::NONE);
            absorbed.check(&forest).unwrap();
            plans.push(absorbed);
            of_copies.extend(hints.latents.map(|_| copied).into_iter().flatten());
        }
        let expansions = (!of_copies.is_empty()).then(Default::default);
        plans.extend(of_copies);
        let slots = |group| rows.iter().map(|row| self.tree.slot_in(group, row.segment, row.position)).collect();
        let batch = StepBatch {
            tokens: rows.iter().map(|row| RowToken::Known(self.tree.token_at(row.segment, row.position))).collect(),
            positions: rows.iter().map(|row| row.position).collect(),
            slots: self.tree.groups().iter().map(slots).collect(),
            logit_rows: (0..rows.len() as u32).collect(),
            plans,
            state_runs: Vec::new(),
            adapters: Vec::new(),
            requests: StepRequests::None,
            expansions,
        };
        let logits = self.model.forward(self.backend, &mut self.kv, &mut self.loaded, batch).unwrap();
        let logits = self.backend.read(logits, rows.len()).unwrap();
        for (row, logits) in rows.iter().zip(logits.chunks_exact(VOCAB as usize)) {
            self.tree.mark_computed(row.segment, row.position + 1);
            let position = row.position as usize;
            let context = &self.tree.context(row.segment)[..=position];
            let alone = self.alone.iter().find(|alone| alone.text.starts_with(context)).unwrap();
            let expected = &alone.logits[position * VOCAB as usize..][..VOCAB as usize];
            let same = logits.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{:?}: {} rows in the step, position {position}", self.planner, rows.len());
            self.rows_seen += 1;
        }
    }

    /// `trunk_chunks`: chunk sizes of the trunk, repeated. `paces`: tokens per step of each continuation.
    fn run(&mut self, texts: &Texts, trunk_chunks: &[usize], paces: [usize; 3]) {
        let trunk = self.tree.admit(&mut self.pool, &texts.trunk).unwrap();
        let mut chunks = trunk_chunks.iter().cycle();
        let mut position = 0;
        while position < self.tree.end(trunk) {
            let next = (position + *chunks.next().unwrap() as u32).min(self.tree.end(trunk));
            self.tree.lay_upto(&mut self.pool, trunk, next).unwrap();
            self.step((position..next).map(|position| StepRow { segment: trunk, position }).collect());
            position = next;
        }
        let branches = [(); 3].map(|()| self.tree.fork(trunk));
        let middle = self.tree.fork_at(&mut self.pool, trunk, texts.fork);
        let tails = texts.from_end.iter().zip(paces);
        let mut work: Vec<_> =
            branches.into_iter().zip(tails).map(|(at, (tail, pace))| (at, tail.chunks(pace))).collect();
        work.push((middle, texts.from_middle.chunks(4)));
        loop {
            let mut rows = Vec::new();
            for (segment, chunks) in &mut work {
                if let Some(chunk) = chunks.next() {
                    rows.extend(self.append(*segment, chunk));
                }
            }
            if rows.is_empty() {
                break;
            }
            self.step(rows);
        }
        self.tree.check_integrity(&self.pool).unwrap();
    }
}

fn config(changes: Value) -> ModelConfig {
    let mut config = json!({
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCAB, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5
    });
    config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    ModelConfig::from_file(path).unwrap()
}

fn check(config: &ModelConfig) {
    let (texts, chosen) = (Texts::new(), Isa::chosen().unwrap());
    for (number, isa) in Isa::available().into_iter().enumerate() {
        for (at, dtype) in [Dtype::F32, Dtype::F16, Dtype::Bf16].into_iter().enumerate() {
            let mut backend = Cpu::with_isa(isa);
            // One of the dtypes with fp8 keys and values.
            backend.set_kv_dtype(if dtype == Dtype::F16 { KvDtype::Fp8 } else { KvDtype::Model });
            let mut model = Decoder::random(&mut backend, config.clone(), dtype, 5).unwrap();
            let mut alone = |text: Vec<TokenId>| {
                let mut sequence = Sequence::new(&mut backend, &mut model, text.len()).unwrap();
                let logits = sequence.extend(&text, 0..text.len() as u32).unwrap();
                AloneLogits { text, logits }
            };
            let alone: Vec<AloneLogits> = texts.leaves().into_iter().map(&mut alone).collect();
            let text = &alone[0].text;
            let some = Sequence::new(&mut backend, &mut model, text.len()).unwrap().extend(text, 100..103).unwrap();
            assert_eq!(some, alone[0].logits[100 * VOCAB as usize..103 * VOCAB as usize], "logits of some rows only");
            // All planners on the chosen path, and one by turns on each other, or all.
            let by_turns = (number + at) % Planner::ALL.len();
            let planners = some_or_full(isa == chosen, true).then_some(&Planner::ALL[..]);
            for &planner in planners.unwrap_or(&Planner::ALL[by_turns..][..1]) {
                println!("{isa}, {dtype:?}, {planner:?}");
                let mut tree_run = TreeRun::new(&mut backend, &mut model, planner, &alone);
                tree_run.run(&texts, &[150], [1, 9, 16]);
                assert_eq!(tree_run.rows_seen, 150 + 70 + 9 + 45 + 30);
            }
            // Other chunk sizes, each with one planner only.
            let mut tree_run = TreeRun::new(&mut backend, &mut model, Planner::Balanced, &alone);
            tree_run.run(&texts, &[1, 2, 5, 3, 17, 7], [3, 1, 45]);
            let mut tree_run = TreeRun::new(&mut backend, &mut model, Planner::Tree, &alone);
            tree_run.run(&texts, &[64, 13], [70, 2, 1]);
        }
    }
}

#[test]
fn grouped_queries() {
    check(&config(json!({})));
}

#[test]
fn two_kinds_of_windows() {
    let qwen = json!({
        "model_type": "qwen2", "sliding_window": 40, "use_sliding_window": true, "max_window_layers": 1,
        "tie_word_embeddings": true
    });
    let config = config(qwen);
    let windows: Vec<_> = config.attention_kinds().iter().map(|kind| kind.window).collect();
    assert_eq!(windows, [None, Some(40)]);
    check(&config);
}

#[test]
fn normalised_heads_wider_than_the_hidden_state() {
    check(&config(json!({"model_type": "qwen3", "head_dim": 32})));
}

#[test]
fn parallel_residual_and_biases() {
    check(&config(json!({"model_type": "phi", "num_key_value_heads": 4, "hidden_act": "gelu_new"})));
}

#[test]
fn experts_in_some_layers() {
    check(&config(json!({
        "model_type": "qwen3_moe", "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
        "mlp_only_layers": [0], "head_dim": 32
    })));
}

#[test]
fn sinks_windows_and_experts_with_biases() {
    check(&config(json!({
        "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 40, "head_dim": 16
    })));
}

#[test]
fn capped_scores_and_norms_around_blocks() {
    check(&config(
        json!({"model_type": "gemma2", "sliding_window": 40, "head_dim": 24, "attn_logit_softcapping": 5.0}),
    ));
}

#[test]
fn two_head_sizes_shared_keys_and_inputs_by_layer() {
    check(&config(json!({
        "model_type": "gemma4_text", "num_hidden_layers": 4, "sliding_window": 40, "head_dim": 16,
        "global_head_dim": 32,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB,
        "enable_moe_block": true, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 24
    })));
}

#[test]
fn latents() {
    check(&config(json!({
        "model_type": "deepseek_v3", "kv_lora_rank": 32, "q_lora_rank": 24, "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 4, "v_head_dim": 20, "first_k_dense_replace": 1, "n_routed_experts": 8, "n_group": 4,
        "topk_group": 2, "num_experts_per_tok": 3, "moe_intermediate_size": 24
    })));
}
