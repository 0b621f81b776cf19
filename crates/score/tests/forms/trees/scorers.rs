//! Scorers for the tests: every kind of form, each on a tiny model with random weights.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use offshoot_backend::Dtype;
use offshoot_core::error::Result;
use offshoot_core::ids::NodeId;
use offshoot_cpu::Cpu;
use offshoot_engine::{Engine, EngineConfig, PoolSize};
use offshoot_model::{Decoder, ModelConfig, ModelWeights, OutputHead, ValueHead, ValueLayer};
use offshoot_score::{ResolvedForm, ScoreForm, ScoredTree, ScorerIdentity, ScorerModel, TextScorer, TextScores};
use offshoot_text::{Message, Tokenizer};
use serde_json::{Value, json};

use crate::tokenizers::{CHATML, HEADERS, TestTokenizer, asked, built_in, form, head};

/// Longer than any test takes.
const PATIENCE: Duration = Duration::from_secs(600);

/// Bytes of keys and values of a token: two layers, of two heads of 16, in f32.
const TOKEN_BYTES: usize = 2 * 2 * 2 * 16 * 4;

pub fn question() -> Vec<Message> {
    asked("A boat carries 12 boxes. How many boxes do 3 boats carry?")
}

/// The layers of a model.
#[derive(Clone, Copy, Debug)]
pub enum Body {
    /// They attend to all tokens before.
    Full,
    /// They attend to the last 21 tokens.
    Windowed,
    /// One of each.
    Mixed,
    /// Most of them keep a state in place of keys and values.
    Hybrid,
}

/// A form, and the tokenizer and the body of its model.
pub struct FormCase {
    pub name: &'static str,
    body: Body,
    pub form: ScoreForm,
    pub tokenizer: Arc<Tokenizer>,
    _folder: TestTokenizer,
}

impl FormCase {
    fn new(name: &'static str, form: ScoreForm, template: &str) -> FormCase {
        let folder = TestTokenizer::demo(template);
        FormCase { name, body: Body::Full, form, tokenizer: Arc::clone(&folder.tokenizer), _folder: folder }
    }

    /// Values at the last token of a conversation, behind what its template writes.
    pub fn last_token() -> FormCase {
        FormCase::new("last token", built_in("last-token"), CHATML)
    }

    /// Values at a tag behind each step.
    pub fn step_tag() -> FormCase {
        FormCase::new("step tag", built_in("step-tag"), CHATML)
    }

    /// The same form of a model with another body.
    pub fn with_body(self, body: Body) -> FormCase {
        FormCase { body, ..self }
    }

    /// A form of each kind.
    pub fn all() -> Vec<FormCase> {
        let words = json!({"words": {"good": ["+"], "bad": ["-"]}});
        let tagged = json!({
            "text": {"plain": {"text": "{{question}} {{answer}}", "special_tokens": false,
                "read": {"tags": {"tag": "<extra_0>", "between": "\n", "trims_end": true}}}},
            "output": words
        });
        let asks = json!({
            "text": {"chat": {"read": {"question": {"text": "{{question}}\n{{answer}}\nGood?"}}}},
            "output": words
        });
        vec![
            FormCase::last_token(),
            FormCase::new("last token, trimmed", built_in("last-token"), HEADERS),
            FormCase::step_tag(),
            FormCase::new("separator", built_in("separator"), CHATML),
            FormCase::new("step lines", built_in("step-lines"), CHATML),
            FormCase::new("words at a tag", form(tagged), CHATML),
            FormCase::new("words at turns", built_in("words-at-turn"), HEADERS),
            FormCase::new("logit of a token", built_in("token-logit"), CHATML),
            FormCase::new("a question", form(asks), CHATML),
        ]
    }

    pub fn resolved(&self) -> ResolvedForm {
        let words = self.form.words(&self.tokenizer).unwrap();
        let width = words.map_or_else(|| if self.name.contains("last") { 1 } else { 2 }, |words| words.len());
        ResolvedForm::new(&self.form, Arc::clone(&self.tokenizer), &head(width), UNIX_EPOCH).unwrap()
    }

    /// A scorer whose engine has room for so many tokens.
    pub fn scorer(&self, tokens: usize) -> ScorerModel {
        let pool = PoolSize::Bytes(tokens * TOKEN_BYTES);
        self.scorer_by(EngineConfig { pool, check_plans: true, ..EngineConfig::default() })
    }

    pub fn scorer_by(&self, config: EngineConfig) -> ScorerModel {
        let form = self.resolved();
        let output = match self.form.words(&self.tokenizer).unwrap() {
            Some(words) => OutputHead::TokenLogits(words),
            None => {
                let last = ValueLayer { module: "score".to_owned(), outputs: form.width(), bias: true };
                OutputHead::Values(ValueHead { inner: Vec::new(), last })
            }
        };
        let model = self.model(output);
        let mut backend = Cpu::open().unwrap();
        let decoder = Decoder::of(&mut backend, &ModelWeights::random(model, Dtype::F32, 1)).unwrap();
        let engine = Engine::start(decoder.on(backend), None, config).unwrap();
        let [name, form_name, digest] = ["tiny", "custom", "0"].map(str::to_owned);
        ScorerModel::new(engine, form, ScorerIdentity { name, form: form_name, digest }).unwrap()
    }

    fn model(&self, output: OutputHead) -> ModelConfig {
        let mut config: Value = json!({
            "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 16, "intermediate_size": 96, "eos_token_id": 1, "vocab_size": self.tokenizer.vocab_size(),
            "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "tie_word_embeddings": false
        });
        let own = match self.body {
            Body::Full => json!({"model_type": "llama"}),
            Body::Windowed => json!({"model_type": "mistral", "sliding_window": 21}),
            Body::Mixed => json!({"model_type": "qwen3", "use_sliding_window": true, "sliding_window": 21,
                "layer_types": ["sliding_attention", "full_attention"]}),
            Body::Hybrid => json!({"model_type": "qwen3_5_text", "num_hidden_layers": 3, "linear_num_key_heads": 2,
                "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12,
                "layer_types": ["linear_attention", "full_attention", "linear_attention"]}),
        };
        config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
        ModelConfig { output, ..ModelConfig::from_json(&config.to_string()).unwrap() }
    }
}

/// The scores of the answer that ends at `node`, which is the only one that waits.
pub fn only(tree: &mut dyn ScoredTree, node: NodeId) -> Result<TextScores> {
    let (scored, result) = tree.poll(PATIENCE).expect("it waits");
    assert_eq!(scored, node);
    result
}

/// What becomes of all answers that wait, by their nodes.
pub fn all(tree: &mut dyn ScoredTree) -> Vec<(NodeId, Result<TextScores>)> {
    let mut results: Vec<_> = std::iter::from_fn(|| tree.poll(PATIENCE)).collect();
    assert_eq!(tree.waiting(), 0);
    results.sort_by_key(|(node, _)| *node);
    results
}

/// The scores of a whole answer by a scorer that has scored nothing else.
pub fn whole(scorer: &ScorerModel, steps: &[String]) -> TextScores {
    let mut tree = scorer.begin(&question()).unwrap();
    tree.start(NodeId(0), None, steps).unwrap();
    let scores = only(&mut *tree, NodeId(0)).unwrap();
    drop(tree);
    scores
}

/// Numbers that follow from a seed.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }

    /// A step of so many words.
    pub fn step(&mut self, words: usize) -> String {
        const WORDS: [&str; 16] = [
            "the", "boat", "boxes", "carries", "12", "so", "36", "of", "three", "there", "are", "each", "and", "then",
            "times", "is",
        ];
        let words: Vec<&str> = (0..words).map(|_| WORDS[self.below(WORDS.len())]).collect();
        format!("{}.\n\n", words.join(" "))
    }
}
