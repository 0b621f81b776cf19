//! What the values at one token say: the score, and what kind of number it is.

use crate::form::{Activation, Column, Output};
use crate::scale::{Scale, sigmoid};
use crate::words::field;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;

/// What is known of a scorer's head and config when its form is resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadFacts {
    /// Numbers that the head gives at a token.
    pub width: usize,
    /// The names of the columns in config.json's `id2label`, in the order of their numbers. Those that are not `width`
    /// many say nothing.
    pub labels: Vec<String>,
    /// The padding token in config.json.
    pub padding: Option<TokenId>,
}

/// How a score follows from the values at one token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ValueReading {
    width: usize,
    how: Reading,
}

#[derive(Clone, Debug, PartialEq)]
enum Reading {
    Column {
        column: usize,
        activation: Activation,
    },
    Weighted {
        weights: Vec<f64>,
        activation: Activation,
    },
    /// The first `good` values are those of good words.
    Words {
        good: usize,
    },
}

impl ValueReading {
    /// `words`: how many tokens the form names.
    pub fn new(output: &Output, words: Option<usize>, head: &HeadFacts) -> Result<ValueReading> {
        if let Some(words) = words.filter(|words| *words != head.width) {
            let why = format!("a head of {} values for the {words} words of a form", head.width);
            return Err(Error::Internal(why));
        }
        let width = head.width;
        let how = match output {
            Output::Column { column, activation } => {
                check_activation(*activation, width)?;
                Reading::Column { column: chosen(column.as_ref(), head)?, activation: *activation }
            }
            Output::Weighted { weights, activation } => {
                check_activation(*activation, width)?;
                if weights.len() != width || weights.iter().any(|weight| !weight.is_finite()) {
                    let expected = format!("a number for each of the head's {width} columns");
                    return Err(Error::value(field("weights"), expected, format!("{weights:?}")));
                }
                Reading::Weighted { weights: weights.clone(), activation: *activation }
            }
            Output::Words { good, .. } => Reading::Words { good: good.len() },
            Output::Logit { .. } => Reading::Column { column: 0, activation: Activation::None },
        };
        Ok(ValueReading { width, how })
    }

    /// Numbers that the head gives at a token.
    pub fn width(&self) -> usize {
        self.width
    }

    pub fn scale(&self) -> Scale {
        let is_probability = match &self.how {
            Reading::Column { activation, .. } => *activation != Activation::None,
            Reading::Weighted { weights, activation } => {
                // Shares that are 1 together may be a little more by rounding.
                let most = 1.0 + weights.len() as f64 * f64::EPSILON;
                let is_share = weights.iter().all(|&weight| weight >= 0.0) && weights.iter().sum::<f64>() <= most;
                *activation != Activation::None && is_share
            }
            Reading::Words { .. } => true,
        };
        if is_probability { Scale::Probability } else { Scale::Logit }
    }

    /// Of values that are logits of words, how many are those of good ones.
    pub fn good_words(&self) -> Option<usize> {
        match &self.how {
            Reading::Words { good } => Some(*good),
            Reading::Column { .. } | Reading::Weighted { .. } => None,
        }
    }

    /// The score that the values at one token give.
    ///
    /// # Errors
    ///
    /// A value is no finite number.
    pub fn score(&self, values: &[f32]) -> Result<f64> {
        if values.len() != self.width {
            let why = format!("{} values at a token, of a head of {}", values.len(), self.width);
            return Err(Error::Internal(why));
        }
        if let Some(wrong) = values.iter().find(|value| !value.is_finite()) {
            return Err(Error::value("a value of the scorer", "a finite number", format!("{wrong}")));
        }
        let score: f64 = match &self.how {
            Reading::Column { column, activation } => activation.of(values)[*column],
            Reading::Weighted { weights, activation } => {
                activation.of(values).iter().zip(weights).map(|(value, weight)| value * weight).sum()
            }
            Reading::Words { good } => Activation::Softmax.of(values)[..*good].iter().sum(),
        };
        // A sum of shares may be above 1 by rounding.
        Ok(if self.scale() == Scale::Probability { score.clamp(0.0, 1.0) } else { score })
    }
}

/// A softmax over one value is 1 whatever it is.
fn check_activation(activation: Activation, width: usize) -> Result<()> {
    match activation == Activation::Softmax && width == 1 {
        true => {
            let expected = "`sigmoid` or `none`, as the head has one column";
            Err(Error::value(field("activation"), expected, "`softmax`, which would make every score 1"))
        }
        false => Ok(()),
    }
}

impl Activation {
    /// What becomes of the values at one token.
    pub fn of(self, values: &[f32]) -> Vec<f64> {
        let values = values.iter().map(|&value| f64::from(value));
        match self {
            Activation::None => values.collect(),
            Activation::Sigmoid => values.map(sigmoid).collect(),
            Activation::Softmax => {
                let largest = values.clone().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = values.map(|value| (value - largest).exp()).collect();
                let sum: f64 = weights.iter().sum();
                weights.into_iter().map(|weight| weight / sum).collect()
            }
        }
    }
}

/// The number of the column that a form means.
fn chosen(column: Option<&Column>, head: &HeadFacts) -> Result<usize> {
    let labels = Some(&*head.labels).filter(|labels| labels.len() == head.width).unwrap_or_default();
    let known = || match labels.is_empty() {
        true => format!("a number below {}", head.width),
        false => format!("a number below {} or one of {}", head.width, labels.join(", ")),
    };
    match (column, head.width) {
        (Some(Column::Index(ix)), width) if *ix < width => Ok(*ix),
        (Some(Column::Index(ix)), _) => Err(Error::value(field("column"), known(), ix.to_string())),
        (Some(Column::Label(label)), _) => {
            let at = labels.iter().position(|known| known == label);
            at.ok_or_else(|| Error::value(field("column"), known(), format!("\"{label}\"")))
        }
        (None, 1) => Ok(0),
        (None, 2) => Ok(usize::from(!labels.first().is_some_and(|first| is_good(first)))),
        (None, _) => {
            let expected = format!("{}, or `weights`, as the head has several columns", known());
            Err(Error::value(field("column"), expected, "none"))
        }
    }
}

/// Whether a label is one of good texts. transformers' own, LABEL_0 and so on, say nothing.
fn is_good(label: &str) -> bool {
    const GOOD: [&str; 9] = ["good", "positive", "correct", "right", "true", "yes", "accepted", "chosen", "+"];
    GOOD.iter().any(|good| good.eq_ignore_ascii_case(label))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::form::TokenName;

    fn head(width: usize, labels: &[&str]) -> HeadFacts {
        HeadFacts { width, labels: labels.iter().map(|&label| label.to_owned()).collect(), padding: None }
    }

    fn column(column: Option<Column>, activation: Activation) -> Output {
        Output::Column { column, activation }
    }

    fn score(output: &Output, head: &HeadFacts, values: &[f32]) -> f64 {
        ValueReading::new(output, None, head).unwrap().score(values).unwrap()
    }

    #[test]
    fn probabilities_are_at_most_1_however_their_shares_are_rounded() {
        let words = |n: usize| Output::Words { good: vec![TokenName::Id(1); n], bad: vec![TokenName::Id(2)] };
        for n in 2..9 {
            let mut values: Vec<f32> = (0..n).map(|ix| ix as f32 * 0.37).collect();
            values.push(-200.0);
            let output = words(n);
            let reading = ValueReading::new(&output, Some(n + 1), &head(n + 1, &[])).unwrap();
            assert!(reading.score(&values).unwrap() <= 1.0);
        }
        let tenths = Output::Weighted { weights: vec![0.1; 10], activation: Activation::Sigmoid };
        let thirds = Output::Weighted { weights: vec![0.7, 0.1, 0.2 + f64::EPSILON], activation: Activation::Sigmoid };
        for (output, width) in [(tenths, 10), (thirds, 3)] {
            let reading = ValueReading::new(&output, None, &head(width, &[])).unwrap();
            assert_eq!(reading.scale(), Scale::Probability);
            assert!(reading.score(&vec![90.0; width]).unwrap() <= 1.0);
        }
    }

    #[test]
    fn values_become_scores_by_their_definitions() {
        let e = |x: f64| x.exp();
        let softmax = column(None, Activation::Softmax);
        assert!((score(&softmax, &head(2, &[]), &[0.5, 1.25]) - e(1.25) / (e(0.5) + e(1.25))).abs() < 1e-15);
        // No number is lost where an exponential has no room.
        assert_eq!(score(&softmax, &head(2, &[]), &[-1e30, 1e30]), 1.0);
        assert_eq!(score(&column(None, Activation::None), &head(1, &[]), &[-3.5]), -3.5);
        let sigmoid = score(&column(None, Activation::Sigmoid), &head(1, &[]), &[2.0]);
        assert!((sigmoid - 1.0 / (1.0 + e(-2.0))).abs() < 1e-15);
        let weighted = Output::Weighted { weights: vec![-1.0, 1.0], activation: Activation::Softmax };
        let (bad, good) = (e(0.5) / (e(0.5) + e(1.25)), e(1.25) / (e(0.5) + e(1.25)));
        assert!((score(&weighted, &head(2, &[]), &[0.5, 1.25]) - (good - bad)).abs() < 1e-15);
        let names = |ids: &[u32]| ids.iter().map(|&id| TokenName::Id(id)).collect::<Vec<_>>();
        let words = Output::Words { good: names(&[1, 2]), bad: names(&[3]) };
        let reading = ValueReading::new(&words, Some(3), &head(3, &[])).unwrap();
        let all = e(0.0) + e(1.0) + e(2.0);
        assert!((reading.score(&[0.0, 1.0, 2.0]).unwrap() - (e(0.0) + e(1.0)) / all).abs() < 1e-15);
        assert_eq!(reading.scale(), Scale::Probability);
    }

    #[test]
    fn the_column_follows_from_labels_that_say_something() {
        let of = |asked: Option<Column>, head: &HeadFacts| chosen(asked.as_ref(), head);
        let label = |text: &str| Some(Column::Label(text.to_owned()));
        assert_eq!(of(None, &head(1, &["LABEL_0", "LABEL_1"])).unwrap(), 0);
        assert_eq!(of(None, &head(2, &["LABEL_0", "LABEL_1"])).unwrap(), 1);
        assert_eq!(of(None, &head(2, &["LABEL_0"])).unwrap(), 1);
        assert_eq!(of(None, &head(2, &["Correct", "wrong"])).unwrap(), 0);
        assert_eq!(of(None, &head(2, &["negative", "positive"])).unwrap(), 1);
        assert_eq!(of(label("helpful"), &head(3, &["safe", "helpful", "true"])).unwrap(), 1);
        assert_eq!(of(Some(Column::Index(2)), &head(3, &[])).unwrap(), 2);
        let wrong = [
            (None, head(3, &[]), "weights"),
            (Some(Column::Index(3)), head(3, &["a", "b", "c"]), "a, b, c"),
            (label("d"), head(3, &["a", "b", "c"]), "\"d\""),
        ];
        for (asked, head, part) in wrong {
            let error = of(asked, &head).unwrap_err().to_string();
            assert!(error.contains("`column`") && error.contains(part), "{error}");
        }
    }

    #[test]
    fn what_no_head_can_give_is_refused() {
        let softmax = ValueReading::new(&column(None, Activation::Softmax), None, &head(1, &[]));
        assert!(softmax.unwrap_err().to_string().contains("`sigmoid`"));
        let weighted = Output::Weighted { weights: vec![1.0], activation: Activation::None };
        let short = ValueReading::new(&weighted, None, &head(2, &[])).unwrap_err().to_string();
        assert!(short.contains("2 columns") && short.contains("`weights`"), "{short}");
        let reading = ValueReading::new(&column(None, Activation::None), None, &head(1, &[])).unwrap();
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(reading.score(&[value]).unwrap_err().to_string().contains("a finite number"));
        }
    }

    #[test]
    fn scales_follow_from_activations() {
        let of = |output: &Output, width| ValueReading::new(output, None, &head(width, &[])).unwrap().scale();
        assert_eq!(of(&column(None, Activation::None), 1), Scale::Logit);
        assert_eq!(of(&column(None, Activation::Sigmoid), 1), Scale::Probability);
        assert_eq!(of(&column(None, Activation::Softmax), 2), Scale::Probability);
        let weighted =
            |weights: [f64; 2]| Output::Weighted { weights: weights.to_vec(), activation: Activation::Softmax };
        assert_eq!(of(&weighted([0.0, 0.5]), 2), Scale::Probability);
        assert_eq!(of(&weighted([-1.0, 1.0]), 2), Scale::Logit);
    }

    /// Particles refuse a probability above 1.
    #[test]
    fn sums_of_shares_stay_probabilities_however_they_round() {
        let words = |count: u32| (0..count).map(TokenName::Id).collect::<Vec<_>>();
        let score = |good: u32, values: &[f32]| {
            let output = Output::Words { good: words(good), bad: vec![TokenName::Id(good)] };
            ValueReading::new(&output, Some(values.len()), &head(values.len(), &[])).unwrap().score(values).unwrap()
        };
        // The bad word has no share, and the shares of the good ones are rounded.
        let mut values = Vec::new();
        let sums = (2..40).flat_map(|good| (1..20).map(move |step| (good, step)));
        for (good, step) in sums {
            values.clear();
            values.extend((0..good).map(|ix| (ix * step) as f32 * 0.37).chain([-200.0]));
            let sum: f64 = Activation::Softmax.of(&values)[..good as usize].iter().sum();
            let found = score(good, &values);
            assert!(found <= 1.0 && (found - sum).abs() < 1e-12, "{found}");
        }
        let third = Output::Weighted { weights: vec![0.1; 10], activation: Activation::Sigmoid };
        let above = Output::Weighted { weights: vec![0.7, 0.1, 0.2000000000000001], activation: Activation::Sigmoid };
        for (output, width) in [(third, 10), (above, 3)] {
            let reading = ValueReading::new(&output, None, &head(width, &[])).unwrap();
            assert_eq!(reading.scale(), Scale::Probability);
            let found = reading.score(&vec![500.0; width]).unwrap();
            assert!(found <= 1.0 && found > 1.0 - 1e-12, "{found}");
        }
    }
}
