//! Writes the answer to a request for values. A value that is no number is an error, as JSON has none.

use serde::Serialize;
use serde_json::Value;

use super::super::answer::Usage;
use super::super::refusal::{Refusal, RefusalKind};
use super::encoding::Written;
use super::model::{PoolingModel, ScorerValues};
use super::request::{PairScores, PoolingRequest, Ranking, TextValues, VectorKind, Wish};

/// What an answer has whatever is asked for.
#[derive(Clone, Debug)]
pub struct PoolingHead {
    pub id: String,
    /// In seconds since 1970.
    pub created: u64,
}

#[derive(Serialize)]
struct List<'a, T> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    data: Vec<T>,
    usage: Usage,
}

#[derive(Serialize)]
struct PooledEntry {
    index: usize,
    object: &'static str,
    data: Written,
}

#[derive(Serialize)]
struct EmbeddingEntry {
    index: usize,
    object: &'static str,
    embedding: Written,
}

#[derive(Serialize)]
struct ClassEntry<'a> {
    index: usize,
    label: Option<&'a str>,
    probs: Vec<f64>,
    num_classes: usize,
}

#[derive(Serialize)]
struct ScoreEntry {
    index: usize,
    object: &'static str,
    score: f64,
}

#[derive(Serialize)]
struct Ranked<'a> {
    id: &'a str,
    model: &'a str,
    usage: Usage,
    results: Vec<RankedEntry<'a>>,
}

#[derive(Serialize)]
struct RankedEntry<'a> {
    index: usize,
    document: RankedDocument<'a>,
    relevance_score: f64,
}

#[derive(Serialize)]
struct RankedDocument<'a> {
    text: &'a str,
    multi_modal: Option<Value>,
}

impl PoolingRequest {
    /// The body of the answer. `model`: the one that the request was read for. `values`: those of each text.
    ///
    /// # Errors
    ///
    /// A value is no finite number.
    pub fn answer(
        &self,
        model: PoolingModel<'_>,
        values: &[TextValues],
        head: &PoolingHead,
    ) -> Result<Vec<u8>, Refusal> {
        self.check_values(values)?;
        let list = Answer { request: self, head, usage: self.usage(values) };
        Ok(match (&self.wish, model) {
            (Wish::Rows { each, activates, encoding }, PoolingModel::Scorer(scorer, _)) => {
                list.pooled(values, |text| {
                    let mut rows = text.rows.iter().map(|row| scorer.columns.classes(row, *activates));
                    match each {
                        true => encoding.rows(rows.collect()),
                        false => encoding.one(rows.next_back().unwrap_or_default()),
                    }
                })
            }
            (Wish::Classes { activates }, PoolingModel::Scorer(scorer, _)) => list.classes(values, scorer, *activates),
            (Wish::Vectors { kind, normalises, encoding }, PoolingModel::Embedder(_)) => {
                let written = |text: &TextValues| encoding.one(vector(text, *normalises));
                match kind {
                    VectorKind::Pooling => list.pooled(values, written),
                    VectorKind::Embedding => list.embeddings(values, written),
                }
            }
            (Wish::Scores { pairs, ranking }, model) => {
                let scores = scores(pairs, model, values)?;
                match ranking {
                    None => list.scores(&scores),
                    Some(ranking) => list.ranked(&scores, ranking),
                }
            }
            _ => return Err(other_model()),
        })
    }

    fn usage(&self, values: &[TextValues]) -> Usage {
        let tokens = self.texts.iter().map(|text| text.tokens.len()).sum();
        Usage::new(tokens, 0, values.iter().map(|text| text.cached).sum())
    }

    fn check_values(&self, values: &[TextValues]) -> Result<(), Refusal> {
        let found = values.iter().enumerate().find_map(|(text, values)| {
            let mut all = values
                .rows
                .iter()
                .zip(&self.texts[text].at)
                .flat_map(|(row, at)| row.iter().map(move |value| (at, value)));
            all.find(|(_, value)| !value.is_finite()).map(|(at, value)| (text, at, value))
        });
        match found {
            None => Ok(()),
            Some((text, at, value)) => {
                let what = format!(
                    "the model's values of text {text} at its token {at}: expected finite numbers, \
                                    found {value}"
                );
                Err(Refusal::of_kind(RefusalKind::Internal, "not_finite", what))
            }
        }
    }
}

fn other_model() -> Refusal {
    Refusal::of_kind(RefusalKind::Internal, "internal_error", "the values are those of another model")
}

/// What entries are written into.
struct Answer<'a> {
    request: &'a PoolingRequest,
    head: &'a PoolingHead,
    usage: Usage,
}

impl<'a> Answer<'a> {
    fn list<T: Serialize>(&self, data: Vec<T>) -> Vec<u8> {
        let PoolingHead { id, created } = self.head;
        json(&List { id, object: "list", created: *created, model: &self.request.model, data, usage: self.usage })
    }

    fn pooled(&self, values: &[TextValues], written: impl Fn(&TextValues) -> Written) -> Vec<u8> {
        let entry = |(index, text)| PooledEntry { index, object: "pooling", data: written(text) };
        self.list(values.iter().enumerate().map(entry).collect())
    }

    fn embeddings(&self, values: &[TextValues], written: impl Fn(&TextValues) -> Written) -> Vec<u8> {
        let entry = |(index, text)| EmbeddingEntry { index, object: "embedding", embedding: written(text) };
        self.list(values.iter().enumerate().map(entry).collect())
    }

    fn classes(&self, values: &[TextValues], scorer: &ScorerValues, activates: bool) -> Vec<u8> {
        let entry = |(index, text): (usize, &TextValues)| {
            let row = text.rows.last().map_or(&[][..], |row| row);
            let probs = scorer.columns.classes(row, activates);
            // The first of equal ones.
            let best = (0..probs.len()).rev().max_by(|&a, &b| probs[a].total_cmp(&probs[b]));
            let label = best.and_then(|best| scorer.labels.get(best)).map(String::as_str);
            ClassEntry { index, label, num_classes: probs.len(), probs }
        };
        self.list(values.iter().enumerate().map(entry).collect())
    }

    fn scores(&self, scores: &[f64]) -> Vec<u8> {
        let entry = |(index, &score)| ScoreEntry { index, object: "score", score };
        self.list(scores.iter().enumerate().map(entry).collect())
    }

    /// The best documents; of equal ones, the first.
    fn ranked(&self, scores: &[f64], ranking: &'a Ranking) -> Vec<u8> {
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        order.truncate(ranking.most);
        let entry = |index| RankedEntry {
            index,
            document: RankedDocument { text: &ranking.documents[index], multi_modal: None },
            relevance_score: scores[index],
        };
        let results = order.into_iter().map(entry).collect();
        json(&Ranked { id: &self.head.id, model: &self.request.model, usage: self.usage, results })
    }
}

fn json(answer: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(answer).expect("keys are strings")
}

/// The scores of all pairs.
fn scores(pairs: &PairScores, model: PoolingModel<'_>, values: &[TextValues]) -> Result<Vec<f64>, Refusal> {
    match (pairs, model) {
        (PairScores::Value { activates }, PoolingModel::Scorer(scorer, _)) => {
            let value = |text: &TextValues| {
                let row = text.rows.last().map_or(&[][..], |row| row);
                scorer.columns.classes(row, *activates).first().copied().ok_or_else(other_model)
            };
            values.iter().map(value).collect()
        }
        (PairScores::Form(rendered), PoolingModel::Scorer(_, form)) => {
            let score = |(pair, text): (&offshoot_score::Rendered, &TextValues)| {
                let scores = form.scores(pair, &text.rows).map_err(|error| Refusal::of(&error))?;
                // A form has at least one value for an answer.
                scores.aggregated(form.aggregate()).ok_or_else(other_model)
            };
            rendered.iter().zip(values).map(score).collect()
        }
        (PairScores::Cosine { queries }, PoolingModel::Embedder(_)) => {
            let (queries, documents) = values.split_at(*queries);
            let pairs = queries.iter().cycle().zip(documents);
            Ok(pairs.map(|(query, document)| cosine(&vector(query, true), &vector(document, true))).collect())
        }
        _ => Err(other_model()),
    }
}

/// The vector of a text, of length 1 if it `normalises`.
fn vector(text: &TextValues, normalises: bool) -> Vec<f64> {
    let vector: Vec<f64> = text.rows.last().into_iter().flat_map(|row| row.iter()).map(|&x| f64::from(x)).collect();
    let length = vector.iter().map(|x| x * x).sum::<f64>().sqrt();
    // As torch has it: a vector of zeros stays.
    if normalises { vector.into_iter().map(|x| x / length.max(1e-12)).collect() } else { vector }
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
