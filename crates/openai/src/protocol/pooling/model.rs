//! What is known of a model whose values are asked for: at which tokens they are read where a request has no form, and
//! what becomes of them. Both follow from the model's class and form, as vLLM has it.

use offshoot_core::ids::TokenId;
use offshoot_score::{Activation, ResolvedForm, ScorerConfig, StepEnd};

/// A model that computes values.
#[derive(Clone, Copy)]
pub enum PoolingModel<'a> {
    /// A reward model or classifier, and how it reads a question and an answer.
    Scorer(&'a ScorerValues, &'a ResolvedForm),
    /// A model whose values are a text's vector.
    Embedder(EmbedderValues),
}

/// What a scorer's values are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScorerValues {
    /// The names of the classes in config.json's `id2label`; there may be more or fewer than classes.
    pub(super) labels: Vec<String>,
    /// Trailing tokens that a classifier does not read.
    pub(super) padding: Option<TokenId>,
    pub(super) reads: UsualReads,
    pub(super) columns: Columns,
}

/// What an embedder's values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmbedderValues {
    /// Whether vectors are brought to length 1, if a request does not say.
    pub normalises: bool,
}

/// Where values of a text are read that no form has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsualReads {
    /// At its last token.
    End,
    /// At every token.
    EachToken,
    /// At the end of each step.
    EachStep(StepEnd),
}

/// What becomes of the values at a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    pub activation: Activation,
    /// Whether the activation is applied, if a request does not say.
    pub activates: bool,
    /// The values are logits of words, the first ones of good words: two classes, bad and good, are made of them.
    good_words: Option<usize>,
    /// Classes of a text.
    pub count: usize,
}

impl ScorerValues {
    /// `width`: the numbers that the head gives at a token.
    pub fn new(form: &ResolvedForm, config: &ScorerConfig, width: usize) -> ScorerValues {
        let class = config.class();
        let good_words = form.good_words();
        let is_reward = class.contains("ForRewardModel");
        let reads = match form.step_end() {
            Some(end) => UsualReads::EachStep(end),
            None if form.values_steps() || is_reward || class.contains("ForTokenClassification") => {
                UsualReads::EachToken
            }
            None => UsualReads::End,
        };
        // A logit of the output layer is no probability of anything.
        let is_logit = good_words.is_none() && class.ends_with("ForCausalLM");
        let columns = Columns {
            activation: if good_words.is_some() { Activation::Softmax } else { config.activation(width) },
            activates: !is_reward && !is_logit,
            good_words,
            count: if good_words.is_some() { 2 } else { width },
        };
        let head = config.head(width);
        let labels = match good_words {
            Some(_) => ["bad", "good"].map(str::to_owned).to_vec(),
            None => head.labels,
        };
        ScorerValues { labels, padding: head.padding, reads, columns }
    }
}

impl Columns {
    /// The classes of a text by the values at one of its tokens.
    pub fn classes(&self, values: &[f32], activates: bool) -> Vec<f64> {
        let of_words = self.good_words.map(|good| {
            let (good, bad) = values.split_at(good);
            [log_sum(bad) as f32, log_sum(good) as f32]
        });
        let values = of_words.as_ref().map_or(values, |both| &both[..]);
        if activates { self.activation.of(values) } else { Activation::None.of(values) }
    }
}

/// ln Σ e^value.
fn log_sum(values: &[f32]) -> f64 {
    let values = values.iter().map(|&value| f64::from(value));
    let largest = values.clone().fold(f64::NEG_INFINITY, f64::max);
    largest + values.map(|value| (value - largest).exp()).sum::<f64>().ln()
}

impl PoolingModel<'_> {
    /// What it answers to the task of a request that names none, in vLLM's words.
    pub(super) fn usual_task(&self) -> PoolingTask {
        match self {
            PoolingModel::Scorer(ScorerValues { reads: UsualReads::End, .. }, _) => PoolingTask::Classify,
            PoolingModel::Scorer(..) => PoolingTask::TokenClassify,
            PoolingModel::Embedder(_) => PoolingTask::Embed,
        }
    }
}

/// What `/pooling` answers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolingTask {
    /// A vector.
    Embed,
    /// The classes of a text.
    Classify,
    /// Those of its tokens or steps.
    TokenClassify,
}

impl PoolingTask {
    pub const WORDS: [(&str, PoolingTask); 3] = [
        ("embed", PoolingTask::Embed),
        ("classify", PoolingTask::Classify),
        ("token_classify", PoolingTask::TokenClassify),
    ];

    pub fn word(self) -> &'static str {
        let (word, _) = Self::WORDS.iter().find(|(_, task)| *task == self).expect("every task has a word");
        word
    }
}
