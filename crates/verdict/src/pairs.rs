//! Comparisons of two texts: which pairs are asked about, in which order the texts are shown, and the scores that the
//! answers give. Texts are numbers here.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::answer::{check_shares, check_tokens, check_words, other_kind, schema_of, shown_at};
use crate::draw::Draws;
use crate::question::{JudgeAnswer, WantedAnswer};
use offshoot_core::error::{Error, Result};

/// Which pairs of texts a judge is asked about, and what it answers.
#[derive(Clone, Debug, PartialEq)]
pub struct PairRule {
    answer: PairAnswer,
    both_orders: bool,
    opponents: Option<usize>,
}

/// What is answered about two texts.
#[derive(Clone, Debug, PartialEq)]
pub enum PairAnswer {
    /// One of two words, for the first text and for the second: the words' probabilities are those of winning.
    Words([String; 2]),
    /// JSON that names the winner.
    Winner(WinnerField),
}

/// The place in a JSON answer that names the better one of two texts.
#[derive(Clone, Debug, PartialEq)]
pub struct WinnerField {
    at: String,
    /// The names of the first text, the second one, and a tie, in this order; without the last there are no ties.
    names: Vec<String>,
    schema: Arc<Value>,
    max_tokens: usize,
}

/// How often the text with each name wins against the second one.
const WON: [f64; 3] = [1.0, 0.0, 0.5];

impl PairAnswer {
    /// One of two words.
    ///
    /// # Errors
    ///
    /// They are equal, or one is empty.
    pub fn words(first: impl Into<String>, second: impl Into<String>) -> Result<PairAnswer> {
        let words = [first.into(), second.into()];
        check_words(&words)?;
        Ok(PairAnswer::Words(words))
    }

    fn wanted(&self) -> WantedAnswer {
        match self {
            PairAnswer::Words(words) => WantedAnswer::Words(words.clone().into()),
            PairAnswer::Winner(field) => {
                WantedAnswer::Json { schema: Arc::clone(&field.schema), max_tokens: field.max_tokens }
            }
        }
    }

    /// The probability that the first text wins.
    fn first_wins(&self, answer: &JudgeAnswer) -> Result<f64> {
        match (self, answer) {
            (PairAnswer::Words(words), JudgeAnswer::Words(shares)) => {
                check_shares(shares, words.len())?;
                Ok((shares[0] / (shares[0] + shares[1])).clamp(0.0, 1.0))
            }
            (PairAnswer::Winner(field), JudgeAnswer::Json(value)) => field.first_wins(value),
            (_, answer) => Err(other_kind(answer)),
        }
    }
}

impl WinnerField {
    /// The name of the winner at the JSON pointer `at` of the answer: `first` or `second` for the texts in the order in
    /// which they are shown, `tie` for neither. `schema`: the schema of the answer; without one it is an object of a
    /// text `reasoning` and then the name.
    ///
    /// # Errors
    ///
    /// `at` is no JSON pointer, or, without a schema, not that of a field of the answer; two names are equal or one is
    /// empty; there is no token to answer with.
    pub fn new(
        at: impl Into<String>,
        (first, second, tie): (String, String, Option<String>),
        schema: Option<Value>,
        max_tokens: usize,
    ) -> Result<WinnerField> {
        let (at, names): (String, Vec<String>) = (at.into(), [first, second].into_iter().chain(tie).collect());
        if let Some((_, name)) =
            names.iter().enumerate().find(|(ix, name)| name.is_empty() || names[..*ix].contains(name))
        {
            let expected = "different texts for `first`, `second` and `tie`, none of them empty";
            return Err(Error::value("names of a comparison's winner", expected, format!("{name:?}")));
        }
        let schema = schema_of(&at, schema, || json!({"type": "string", "enum": &names}))?;
        check_tokens(max_tokens)?;
        Ok(WinnerField { at, names, schema, max_tokens })
    }

    fn first_wins(&self, answer: &Value) -> Result<f64> {
        let found = answer.pointer(&self.at);
        let name = found.and_then(Value::as_str);
        let won = self.names.iter().zip(WON).find(|(own, _)| name == Some(own)).map(|(_, won)| won);
        won.ok_or_else(|| {
            let expected = format!("one of {:?} at {:?}", self.names, self.at);
            Error::value("answer of the judge", expected, shown_at(found, answer))
        })
    }
}

impl PairRule {
    /// Pairs of texts. `both_orders`: each pair is asked about twice, with either text first; otherwise once, in a
    /// drawn order. `opponents`: how many others each text meets, or one more where so many pairs do not exist; `None`:
    /// all.
    ///
    /// # Errors
    ///
    /// It meets none.
    pub fn new(answer: PairAnswer, both_orders: bool, opponents: Option<usize>) -> Result<PairRule> {
        match opponents {
            Some(0) => Err(Error::value("opponents of a text", "a number from 1 up", "0")),
            _ => Ok(PairRule { answer, both_orders, opponents }),
        }
    }

    /// What the judge may answer to each question.
    pub(crate) fn wanted(&self) -> WantedAnswer {
        self.answer.wanted()
    }

    /// How many questions are asked about `texts` texts: those of their plan, whatever its key.
    pub(crate) fn questions(&self, texts: usize) -> usize {
        let others = texts.saturating_sub(1);
        let pairs = match self.opponents {
            Some(opponents) if opponents < others => match texts.is_multiple_of(2) {
                true => texts / 2 * opponents,
                false => texts * opponents.div_ceil(2),
            },
            _ => texts * others / 2,
        };
        pairs * (1 + usize::from(self.both_orders))
    }

    /// The questions about `texts` texts, by the draws of `key`.
    pub(crate) fn plan(&self, texts: usize, key: u64) -> PairPlan {
        let pairs = match self.opponents {
            Some(opponents) if opponents < texts.saturating_sub(1) => {
                ring(&Draws::new(key, ORDER).order(texts), opponents)
            }
            _ => (0..texts).flat_map(|a| (a + 1..texts).map(move |b| [a, b])).collect(),
        };
        let mut sides = Draws::new(key, SIDES);
        let mut questions = Vec::new();
        for (pair, &[a, b]) in pairs.iter().enumerate() {
            let drawn = if self.both_orders || sides.is_heads() { [a, b] } else { [b, a] };
            questions.push(PairQuestion { pair, shown: drawn });
            questions.extend(self.both_orders.then_some(PairQuestion { pair, shown: [b, a] }));
        }
        PairPlan { texts, pairs, questions }
    }

    /// The probability that the first of the two shown texts wins.
    pub(crate) fn first_wins(&self, answer: &JudgeAnswer) -> Result<f64> {
        self.answer.first_wins(answer)
    }
}

/// What the draws of a key are for.
const ORDER: u64 = 1;
const SIDES: u64 = 2;

/// The pairs in which each of the texts in `order` meets its nearest ones in a ring, `opponents` of them; one more
/// where both numbers are odd. There are more than `opponents + 1` texts.
fn ring(order: &[usize], opponents: usize) -> Vec<[usize; 2]> {
    let n = order.len();
    let near = if n.is_multiple_of(2) { opponents / 2 } else { opponents.div_ceil(2) };
    let meet = |at: usize, ahead: usize| [order[at], order[(at + ahead) % n]];
    let mut pairs: Vec<[usize; 2]> =
        (1..=near).flat_map(|ahead| (0..n).map(move |at| (at, ahead))).map(|(at, ahead)| meet(at, ahead)).collect();
    if !opponents.is_multiple_of(2) && n.is_multiple_of(2) {
        // The one across.
        pairs.extend((0..n / 2).map(|at| meet(at, n / 2)));
    }
    pairs
}

/// The pairs of some texts, and the questions about them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PairPlan {
    texts: usize,
    pairs: Vec<[usize; 2]>,
    /// In the order in which they are asked.
    pub questions: Vec<PairQuestion>,
}

/// A question about a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PairQuestion {
    /// The number of the pair.
    pair: usize,
    /// The texts in the order in which they are shown.
    pub shown: [usize; 2],
}

/// What a text has won.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PairScore {
    /// The sum of its probabilities of winning.
    pub won: f64,
    /// In so many pairs.
    pub of: usize,
    /// The number of the first question of its pairs that has no answer.
    pub lacking: Option<usize>,
}

impl PairScore {
    /// The score: the mean of the text's probabilities of winning; 1/2 of a text that has met nobody.
    pub fn score(&self) -> f64 {
        match self.of {
            0 => 0.5,
            of => self.won / of as f64,
        }
    }

    /// As records have it.
    pub fn recorded(&self) -> Value {
        json!({"won": self.won, "of": self.of})
    }
}

impl PairPlan {
    /// The score of each text. `first_wins`: by question, the probability that the first of its texts wins, `None`
    /// where there is no answer. A pair without one of its answers counts for neither text. `Err`: a text whose pairs
    /// all lack one, with the number of the first question that has none.
    pub fn scores(&self, first_wins: &[Option<f64>]) -> Vec<Result<PairScore, usize>> {
        // By pair: how likely its first text wins, by each of its questions.
        let mut won: Vec<Vec<f64>> = vec![Vec::new(); self.pairs.len()];
        let mut unanswered: Vec<Option<usize>> = vec![None; self.pairs.len()];
        for (at, (question, first)) in self.questions.iter().zip(first_wins).enumerate() {
            match first {
                Some(first) if question.shown == self.pairs[question.pair] => won[question.pair].push(*first),
                Some(first) => won[question.pair].push(1.0 - first),
                None => _ = unanswered[question.pair].get_or_insert(at),
            }
        }
        let mut scores = vec![PairScore { won: 0.0, of: 0, lacking: None }; self.texts];
        for ((&[a, b], won), unanswered) in self.pairs.iter().zip(&won).zip(&unanswered) {
            if let Some(question) = unanswered {
                for text in [a, b] {
                    let first = scores[text].lacking.get_or_insert(*question);
                    *first = (*first).min(*question);
                }
                continue;
            }
            let share = won.iter().sum::<f64>() / won.len() as f64;
            for (text, share) in [(a, share), (b, 1.0 - share)] {
                scores[text].won += share;
                scores[text].of += 1;
            }
        }
        let of = |score: PairScore| match score.lacking {
            Some(question) if score.of == 0 => Err(question),
            _ => Ok(score),
        };
        scores.into_iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rule(both_orders: bool, opponents: Option<usize>) -> PairRule {
        PairRule::new(PairAnswer::words(" A", " B").unwrap(), both_orders, opponents).unwrap()
    }

    /// How many others each text meets.
    fn met(plan: &PairPlan) -> Vec<usize> {
        (0..plan.texts).map(|text| plan.pairs.iter().filter(|pair| pair.contains(&text)).count()).collect()
    }

    #[test]
    fn every_two_texts_meet_in_both_orders() {
        let plan = rule(true, None).plan(3, 0);
        let shown: Vec<[usize; 2]> = plan.questions.iter().map(|question| question.shown).collect();
        assert_eq!(shown, [[0, 1], [1, 0], [0, 2], [2, 0], [1, 2], [2, 1]]);
        assert_eq!(rule(true, Some(usize::MAX)).plan(3, 0), rule(true, None).plan(3, 0));
        assert!(rule(true, None).plan(1, 0).questions.is_empty() && rule(true, None).plan(0, 0).questions.is_empty());
    }

    #[test]
    fn scores_are_means_over_opponents() {
        let plan = rule(true, None).plan(3, 0);
        // 0 against 1: (0.9 + 1 - 0.3)/2 = 0.8. 0 against 2: (0.5 + 1 - 0.7)/2 = 0.4. 1 against 2: (1 + 1)/2 = 1.
        let scores = plan.scores(&[0.9, 0.3, 0.5, 0.7, 1.0, 0.0].map(Some));
        let expected = [(0.8 + 0.4, 2), (0.2 + 1.0, 2), (0.6 + 0.0, 2)];
        for (score, (won, of)) in scores.into_iter().zip(expected) {
            let score = score.unwrap();
            assert!((score.won - won).abs() < 1e-12 && score.of == of, "{score:?}");
            assert!((score.score() - won / 2.0).abs() < 1e-12);
        }
        assert_eq!(rule(true, None).plan(1, 0).scores(&[])[0].as_ref().unwrap().score(), 0.5);
    }

    #[test]
    fn a_pair_without_one_of_its_answers_counts_for_nobody() {
        let plan = rule(true, None).plan(3, 0);
        // 0 against 1 has one answer only: 0 and 1 are scored by their pairs with 2.
        let scores = plan.scores(&[Some(1.0), None, Some(1.0), Some(0.0), Some(0.5), Some(0.5)]);
        let scores: Vec<(f64, usize)> =
            scores.into_iter().map(|score| score.map(|score| (score.score(), score.of)).unwrap()).collect();
        assert_eq!(scores, [(1.0, 1), (0.5, 1), (0.25, 2)]);
        // 1 has no pair left; its first question without an answer is that with the number 1.
        let scores = plan.scores(&[Some(1.0), None, Some(1.0), Some(0.0), None, None]);
        assert_eq!(scores[1], Err(1));
        assert_eq!(scores.iter().filter(|score| score.is_ok()).count(), 2);
    }

    #[test]
    fn winners_are_named() {
        let names = |tie: Option<&str>| ("A".to_owned(), "B".to_owned(), tie.map(str::to_owned));
        let field = WinnerField::new("/winner", names(Some("tie")), None, 64).unwrap();
        let answer = PairAnswer::Winner(field.clone());
        let won = |value: Value| answer.first_wins(&JudgeAnswer::Json(value));
        for (name, share) in [("A", 1.0), ("B", 0.0), ("tie", 0.5)] {
            assert_eq!(won(json!({"winner": name})).unwrap(), share);
        }
        let error = won(json!({"winner": "C"})).unwrap_err().to_string();
        assert!(error.contains(r#"one of ["A", "B", "tie"] at "/winner", found "C""#), "{error}");
        assert!(field.schema.to_string().contains(r#""winner":{"type":"string","enum":["A","B","tie"]}"#));
        let strict = WinnerField::new("/winner", names(None), None, 64).unwrap();
        assert!(strict.first_wins(&json!({"winner": "tie"})).is_err());
        assert!(WinnerField::new("/winner", names(Some("A")), None, 64).is_err());
        assert!(PairAnswer::words("A", "A").is_err() && PairRule::new(answer, true, Some(0)).is_err());
    }

    proptest! {
        #[test]
        fn each_text_meets_as_many_as_asked_for(texts in 2_usize..24, opponents in 1_usize..24, key in any::<u64>()) {
            let plan = rule(false, Some(opponents)).plan(texts, key);
            let asked = opponents.min(texts - 1);
            let expected = if asked * texts % 2 == 1 { asked + 1 } else { asked };
            prop_assert!(met(&plan).iter().all(|&met| met == expected), "{:?}", met(&plan));
            let mut pairs: Vec<[usize; 2]> = plan.pairs.clone();
            pairs.iter_mut().for_each(|pair| pair.sort_unstable());
            pairs.sort_unstable();
            pairs.dedup();
            prop_assert_eq!(pairs.len(), plan.pairs.len(), "no two meet twice");
            prop_assert!(pairs.iter().all(|[a, b]| a != b));
            prop_assert_eq!(plan.questions.len(), plan.pairs.len());
            prop_assert_eq!(rule(false, Some(opponents)).plan(texts, key), plan);
            for rule in [rule(false, Some(opponents)), rule(true, Some(opponents)), rule(true, None)] {
                prop_assert_eq!(rule.questions(texts), rule.plan(texts, key).questions.len());
            }
        }

        #[test]
        fn all_pairs_share_half_of_their_number(
            texts in 2_usize..10,
            shares in prop::collection::vec(0.0_f64..=1.0, 90),
        ) {
            let plan = rule(true, None).plan(texts, 0);
            let answers: Vec<Option<f64>> = shares[..plan.questions.len()].iter().copied().map(Some).collect();
            let scores: Vec<f64> = plan.scores(&answers).into_iter().map(|score| score.unwrap().score()).collect();
            prop_assert!((scores.iter().sum::<f64>() - texts as f64 / 2.0).abs() < 1e-9);
            prop_assert!(scores.iter().all(|score| (-1e-12..=1.0 + 1e-12).contains(score)));
        }

        #[test]
        fn a_judge_that_looks_at_the_place_alone_tells_nothing(
            texts in 2_usize..10,
            first in 0.0_f64..=1.0,
            key in any::<u64>(),
            opponents in prop::option::of(1_usize..6),
        ) {
            let plan = rule(true, opponents).plan(texts, key);
            for score in plan.scores(&vec![Some(first); plan.questions.len()]) {
                prop_assert!((score.unwrap().score() - 0.5).abs() < 1e-12);
            }
        }
    }
}
