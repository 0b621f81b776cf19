//! Reads the model's judgements: the value that an answer gives to one path, and votes among several paths. Pure
//! functions of texts; the drivers ask the questions.

use regex::Regex;

/// The value of the last of `words` that occurs in `text` as a whole word, ignoring case; 0 if none does.
pub fn value_in(text: &str, words: &[(String, f64)]) -> f64 {
    let text = text.to_lowercase();
    let last = |word: &str| {
        let word = word.trim().to_lowercase();
        text.rmatch_indices(&word)
            .map(|(at, _)| at)
            .find(|&at| stands_alone(&text, at, word.len()))
            .map(|at| at + word.len())
    };
    let said = words.iter().filter_map(|(word, value)| Some((last(word)?, *value)));
    said.reduce(|first, next| if next.0 > first.0 { next } else { first }).map_or(0.0, |(_, value)| value)
}

fn stands_alone(text: &str, at: usize, length: usize) -> bool {
    let outside = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric());
    outside(text[..at].chars().next_back()) && outside(text[at + length..].chars().next())
}

/// The candidate, from 0, that `text` votes for: the first group of `choice` (or the whole match) is its number,
/// counted from 1. `None`: no match, or not the number of a candidate.
pub fn vote_in(text: &str, choice: &Regex, candidates: usize) -> Option<usize> {
    let captures = choice.captures(text)?;
    let number = captures.iter().skip(1).flatten().next().or(captures.get(0))?;
    let number: usize = number.as_str().trim().parse().ok()?;
    number.checked_sub(1).filter(|&at| at < candidates)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Vec<(String, f64)> {
        [("sure", 20.0), ("likely", 1.0), ("impossible", 0.001)].map(|(word, value)| (word.to_string(), value)).to_vec()
    }

    #[test]
    fn the_last_word_that_stands_alone_counts() {
        for (text, value) in [
            ("sure", 20.0),
            ("10 + 14 = 24\nSure.\n", 20.0),
            ("not sure, but likely", 1.0),
            ("unlikely", 0.0),
            ("unlikely; impossible!", 0.001),
            ("surely", 0.0),
            ("perhaps", 0.0),
            ("", 0.0),
            ("très sûre, sureté… sure", 20.0),
        ] {
            assert_eq!(value_in(text, &words()), value, "{text:?}");
        }
    }

    #[test]
    fn votes_name_a_candidate_or_nobody() {
        let choice = Regex::new(r"(?is)best choice is.*?(\d+)").unwrap();
        for (text, vote) in [
            ("Choice 1 is long.\nThe best choice is 2", Some(1)),
            ("the BEST choice is:\n**3**.", Some(2)),
            ("The best choice is 4", None),
            ("The best choice is 0", None),
            ("The best choice is 99999999999999999999999", None),
            ("The best choice is two", None),
            ("2", None),
        ] {
            assert_eq!(vote_in(text, &choice, 3), vote, "{text:?}");
        }
        assert_eq!(vote_in("I take 2", &Regex::new(r"\d+").unwrap(), 3), Some(1), "no group: the whole match");
    }
}
