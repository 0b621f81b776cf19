//! Choices among several texts: how texts are drawn into groups, in which orders a group is shown, and the scores that
//! the chosen numbers give. Texts are numbers here.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::answer::{check_tokens, other_kind, schema_of, shown_at};
use crate::draw::Draws;
use crate::question::{JudgeAnswer, WantedAnswer};
use offshoot_core::error::{Error, Result};

/// How many texts of a group a judge chooses, and how it says which. In prompts and answers the texts of a group have
/// numbers from 1 up, in the order in which they are shown.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupRule {
    take: usize,
    size: usize,
    rotations: usize,
    at: String,
    schema: Option<Arc<Value>>,
    max_tokens: usize,
}

impl GroupRule {
    /// `take` texts of each group are chosen, whose numbers are a list at the JSON pointer `at` of the answer (or a
    /// number, where one is chosen). `size`: the most texts of a group. `rotations`: how often a group is asked about,
    /// each time from another text on. `schema`: the schema of the answers; without one an answer is an object of a
    /// text `reasoning` and then the list.
    ///
    /// # Errors
    ///
    /// `take` is 0, or not below `size`; there is no rotation, or no token to answer with; `at` is no JSON pointer, or,
    /// without a schema, not that of a field of the answer.
    pub fn new(
        take: usize,
        size: usize,
        rotations: usize,
        at: impl Into<String>,
        schema: Option<Value>,
        max_tokens: usize,
    ) -> Result<GroupRule> {
        let at = at.into();
        if take == 0 {
            return Err(Error::value("texts that a judge chooses of a group (`take`)", "a number from 1 up", "0"));
        }
        if size <= take {
            let expected = format!("more than `take` ({take})");
            return Err(Error::value("texts of a group (`size`)", expected, size.to_string()));
        }
        if rotations == 0 {
            return Err(Error::value("rotations of a group", "a number from 1 up", "0"));
        }
        check_tokens(max_tokens)?;
        let is_given = schema.is_some();
        let schema = schema_of(&at, schema, || Value::Null)?;
        // The default schema depends on the number of texts.
        let schema = is_given.then_some(schema);
        Ok(GroupRule { take, size, rotations, at, schema, max_tokens })
    }

    /// How many texts of a group are chosen.
    pub fn take(&self) -> usize {
        self.take
    }

    /// What the judge may answer about a group of `count` texts.
    pub(crate) fn wanted(&self, count: usize) -> Result<WantedAnswer> {
        let number = || json!({"type": "integer", "minimum": 1, "maximum": count});
        let list = || json!({"type": "array", "items": number(), "minItems": self.take, "maxItems": self.take});
        let schema = match &self.schema {
            Some(schema) => Arc::clone(schema),
            None => schema_of(&self.at, None, list)?,
        };
        Ok(WantedAnswer::Json { schema, max_tokens: self.max_tokens })
    }

    /// How many questions are asked about `texts` texts: those of their plan, whatever its key.
    pub(crate) fn questions(&self, texts: usize) -> usize {
        let groups = texts.div_ceil(self.size);
        let of_group = |texts: usize| if texts > self.take { self.rotations.min(texts) } else { 0 };
        let Some(each) = texts.checked_div(groups) else { return 0 };
        let larger = texts % groups;
        larger * of_group(each + 1) + (groups - larger) * of_group(each)
    }

    /// The questions about `texts` texts, by the draws of `key`. A group of which all are chosen is not asked about.
    pub(crate) fn plan(&self, texts: usize, key: u64) -> GroupPlan {
        let order = Draws::new(key, GROUPS).order(texts);
        let count = texts.div_ceil(self.size);
        let mut groups: Vec<Vec<usize>> = vec![Vec::new(); count];
        for (at, text) in order.into_iter().enumerate() {
            groups[at % count].push(text);
        }
        let mut questions = Vec::new();
        for (group, texts) in groups.iter().enumerate().filter(|(_, texts)| texts.len() > self.take) {
            // More rotations than texts would ask the same again.
            let rotations = self.rotations.min(texts.len());
            questions.extend((0..rotations).map(|rotation| {
                let mut shown = texts.clone();
                shown.rotate_left(rotation * texts.len() / rotations);
                GroupQuestion { group, shown }
            }));
        }
        GroupPlan { texts, groups, questions }
    }

    /// The places of the chosen ones among `count` shown texts, from 0.
    pub(crate) fn chosen(&self, answer: &JudgeAnswer, count: usize) -> Result<Vec<usize>> {
        let JudgeAnswer::Json(answer) = answer else { return Err(other_kind(answer)) };
        let found = answer.pointer(&self.at);
        let numbers = match found {
            Some(Value::Array(numbers)) => numbers.as_slice(),
            Some(number @ Value::Number(_)) => std::slice::from_ref(number),
            _ => &[],
        };
        let place = |number: &Value| {
            let number = number.as_u64().or_else(|| whole(number.as_f64()?))?;
            usize::try_from(number).ok()?.checked_sub(1).filter(|&place| place < count)
        };
        let places: Option<HashSet<usize>> = numbers.iter().map(place).collect();
        match places.filter(|places| places.len() == self.take && numbers.len() == self.take) {
            Some(places) => {
                let mut places: Vec<usize> = places.into_iter().collect();
                places.sort_unstable();
                Ok(places)
            }
            None => {
                let what =
                    if self.take == 1 { "one number".to_owned() } else { format!("{} different numbers", self.take) };
                let expected = format!("{what} from 1 to {count} at {:?}", self.at);
                Err(Error::value("answer of the judge", expected, shown_at(found, answer)))
            }
        }
    }
}

/// What the draws of a key are for.
const GROUPS: u64 = 3;

/// A number without a fraction, such as 2.0.
fn whole(number: f64) -> Option<u64> {
    (number.fract() == 0.0 && (0.0..=1e9).contains(&number)).then_some(number as u64)
}

/// The groups of some texts, and the questions about them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupPlan {
    texts: usize,
    groups: Vec<Vec<usize>>,
    /// In the order in which they are asked.
    pub questions: Vec<GroupQuestion>,
}

/// A question about a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupQuestion {
    /// The number of the group.
    group: usize,
    /// The texts in the order in which they are shown.
    pub shown: Vec<usize>,
}

/// How often a text was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupScore {
    /// So often.
    pub chosen: usize,
    /// Of so many answers.
    pub of: usize,
    /// By answer: the number of the question, and the text's place in it, from 0.
    pub places: Vec<(usize, usize)>,
    /// The number of the first question about it that has no answer.
    pub lacking: Option<usize>,
}

impl GroupScore {
    /// The score: the share of the answers that choose the text; 1 of a text that no other one was to be chosen before.
    pub fn score(&self) -> f64 {
        match self.of {
            0 => 1.0,
            of => self.chosen as f64 / of as f64,
        }
    }

    /// As records have it. `answer`: the answer to a question as records have it.
    pub fn recorded(&self, answer: impl Fn(usize) -> Value) -> Value {
        let answers =
            self.places.iter().map(|&(question, place)| json!({"number": place + 1, "answer": answer(question)}));
        json!({"chosen": self.chosen, "of": self.of, "answers": answers.collect::<Vec<_>>()})
    }
}

impl GroupPlan {
    /// The score of each text. `chosen`: by question, the places of the chosen texts among those shown, `None` where
    /// there is no answer. `Err`: a text without any answer, with the number of the first question about it that has
    /// none.
    pub fn scores(&self, chosen: &[Option<Vec<usize>>]) -> Vec<Result<GroupScore, usize>> {
        let mut scores = vec![GroupScore { chosen: 0, of: 0, places: Vec::new(), lacking: None }; self.texts];
        for (at, (question, chosen)) in self.questions.iter().zip(chosen).enumerate() {
            for (place, &text) in question.shown.iter().enumerate() {
                let score = &mut scores[text];
                match chosen {
                    Some(chosen) => {
                        score.of += 1;
                        score.chosen += usize::from(chosen.contains(&place));
                        score.places.push((at, place));
                    }
                    None => _ = score.lacking.get_or_insert(at),
                }
            }
        }
        let of = |score: GroupScore| match score.lacking {
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

    fn rule(take: usize, size: usize, rotations: usize) -> GroupRule {
        GroupRule::new(take, size, rotations, "/selected", None, 64).unwrap()
    }

    #[test]
    fn a_group_is_shown_from_other_texts_on() {
        let plan = rule(1, 8, 2).plan(4, 7);
        let group = &plan.groups[0];
        assert_eq!(plan.questions[0].shown, *group);
        assert_eq!(plan.questions[1].shown, [group[2], group[3], group[0], group[1]]);
        assert_eq!(rule(1, 8, 9).plan(3, 7).questions.len(), 3, "a group of three is asked about thrice at most");
    }

    #[test]
    fn the_score_is_the_share_of_answers_that_choose_a_text() {
        let plan = rule(2, 8, 2).plan(4, 7);
        let group = plan.groups[0].clone();
        // The first answer takes the group's texts 0 and 1, the second one, whose places 2 and 3 are texts 0 and 1,
        // takes text 0 (place 2) and text 2 (place 0).
        let scores = plan.scores(&[Some(vec![0, 1]), Some(vec![0, 2])]);
        let score = |at: usize| scores[group[at]].as_ref().unwrap().score();
        assert_eq!([score(0), score(1), score(2), score(3)], [1.0, 0.5, 0.5, 0.0]);
        let recorded = scores[group[0]].as_ref().unwrap().recorded(|question| json!(format!("answer {question}")));
        let answers = json!([{"number": 1, "answer": "answer 0"}, {"number": 3, "answer": "answer 1"}]);
        assert_eq!(recorded, json!({"chosen": 2, "of": 2, "answers": answers}));
        // One rotation answered.
        let scores = plan.scores(&[None, Some(vec![0, 1])]);
        assert_eq!(scores[group[2]].as_ref().unwrap().score(), 1.0);
        assert_eq!(plan.scores(&[None, None])[group[3]], Err(0));
    }

    #[test]
    fn chosen_numbers_are_checked() {
        let chosen = |take: usize, answer: Value| rule(take, 8, 1).chosen(&JudgeAnswer::Json(answer), 3);
        assert_eq!(chosen(2, json!({"selected": [3, 1]})).unwrap(), [0, 2]);
        assert_eq!(chosen(1, json!({"selected": 2})).unwrap(), [1]);
        assert_eq!(chosen(1, json!({"selected": [2.0]})).unwrap(), [1]);
        for (answer, found) in [
            (json!({"selected": [1]}), "[1]"),
            (json!({"selected": [1, 1]}), "[1,1]"),
            (json!({"selected": [0, 1]}), "[0,1]"),
            (json!({"selected": [1, 4]}), "[1,4]"),
            (json!({"selected": [1, 2, 3]}), "[1,2,3]"),
            (json!({"selected": [1, -1]}), "[1,-1]"),
            (json!({"selected": ["1", 2]}), "[\"1\",2]"),
            (json!({"selected": [1, 1.5]}), "[1,1.5]"),
            (json!({"picked": [1, 2]}), "nothing there"),
            (json!([1, 2]), "nothing there"),
        ] {
            let error = chosen(2, answer).unwrap_err().to_string();
            assert!(
                error.contains("2 different numbers from 1 to 3 at \"/selected\"") && error.contains(found),
                "{error}"
            );
        }
    }

    #[test]
    fn rules_that_ask_nothing_are_refused() {
        let rule = |take, size, rotations, at: &str, schema| GroupRule::new(take, size, rotations, at, schema, 8);
        for (rule, named) in [
            (rule(0, 8, 1, "/selected", None), "`take`"),
            (rule(2, 2, 1, "/selected", None), "more than `take` (2)"),
            (rule(1, 8, 0, "/selected", None), "rotations"),
            (rule(1, 8, 1, "selected", None), "JSON pointer"),
            (rule(1, 8, 1, "selected", Some(json!({}))), "JSON pointer"),
            (rule(1, 8, 1, "/a/b", None), "no schema is given"),
        ] {
            let error = rule.unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
        assert!(rule(1, 8, 1, "/a/b", Some(json!({}))).is_ok());
        let WantedAnswer::Json { schema, .. } =
            super::GroupRule::new(2, 8, 1, "/s", None, 8).unwrap().wanted(5).unwrap()
        else {
            panic!("it asks for JSON");
        };
        let items = r#""items":{"type":"integer","minimum":1,"maximum":5},"minItems":2,"maxItems":2"#;
        assert!(schema.to_string().contains(items), "{schema}");
    }

    proptest! {
        #[test]
        fn every_text_is_in_one_group_of_fair_size(
            texts in 0_usize..40,
            take in 1_usize..4,
            more in 1_usize..6,
            rotations in 1_usize..4,
            key in any::<u64>(),
        ) {
            let rule = rule(take, take + more, rotations);
            let plan = rule.plan(texts, key);
            let mut all: Vec<usize> = plan.groups.concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..texts).collect::<Vec<_>>());
            let sizes: Vec<usize> = plan.groups.iter().map(Vec::len).collect();
            prop_assert_eq!(sizes.len(), texts.div_ceil(take + more));
            if let (Some(least), Some(most)) = (sizes.iter().min(), sizes.iter().max()) {
                prop_assert!(most - least <= 1 && *most <= take + more);
            }
            prop_assert_eq!(rule.plan(texts, key), plan.clone());
            prop_assert_eq!(rule.questions(texts), plan.questions.len());
            // A judge that always takes the first ones shown: of a group all rotations together take as often as asked.
            let first: Vec<usize> = (0..take).collect();
            let scores = plan.scores(&vec![Some(first); plan.questions.len()]);
            for group in plan.groups.iter().filter(|group| group.len() > take) {
                let sum: f64 = group.iter().map(|&text| scores[text].as_ref().unwrap().score()).sum();
                prop_assert!((sum - take as f64).abs() < 1e-9);
            }
            for group in plan.groups.iter().filter(|group| group.len() <= take) {
                prop_assert!(group.iter().all(|&text| scores[text].as_ref().unwrap().score() == 1.0));
            }
        }
    }
}
