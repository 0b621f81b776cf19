//! A server's answer as that of a judge: the probabilities of words from those of the likeliest tokens, and JSON from
//! whatever text a model writes it in.

use serde_json::Value;

use crate::question::{Answered, JudgeAnswer, Question, WantedAnswer};
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::shortened;
use offshoot_text::reasoning::answer_part;

use super::body::LIMITS;
use super::json_text::value_in;

/// The most characters of a text in an error.
const MOST_SHOWN: usize = 300;

/// The field of a request that bounds its answer, and its number of tokens; `None`: it has none.
type Limit<'r> = Option<(&'r str, &'r Value)>;

/// The answer to a question. `fields`: of the request that was sent.
///
/// # Errors
///
/// It has none of the words, or no JSON.
pub(super) fn answer(question: &Question, fields: &Value, answer: &Value) -> Result<Answered> {
    let Some(choice) = answer.pointer("/choices/0") else {
        return Err(Error::value("answer of the judge's server", "a field `choices` with a choice", shown(answer)));
    };
    let Usage { tokens, .. } = usage(answer);
    let answer = match &question.answer {
        WantedAnswer::Words(words) => JudgeAnswer::Words(shares(words, choice)?),
        WantedAnswer::Json { .. } => {
            let limit = LIMITS.into_iter().find_map(|name| Some((name, fields.get(name)?)));
            JudgeAnswer::Json(json(choice, limit)?)
        }
    };
    Ok(Answered { answer, tokens })
}

/// What an answer has cost, as the server says; 0 where it does not.
#[derive(Clone, Copy)]
pub(super) struct Usage {
    /// Tokens of the prompt.
    pub tokens: usize,
    /// Tokens that were written.
    pub written: usize,
}

/// What the answer has cost.
pub(super) fn usage(answer: &Value) -> Usage {
    let count = |field: &str| answer.pointer(&format!("/usage/{field}")).and_then(Value::as_u64).unwrap_or(0);
    let [tokens, written] = ["prompt_tokens", "completion_tokens"].map(|field| count(field) as usize);
    Usage { tokens, written }
}

/// The name of the only model that a server lists.
///
/// # Errors
///
/// It lists none, or several, whose names the error has.
pub(super) fn only_model(models: &Value) -> Result<String> {
    let listed = models.get("data").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let names: Vec<&str> = listed.iter().filter_map(|model| model.get("id")?.as_str()).collect();
    match names[..] {
        [name] => Ok(name.to_owned()),
        _ => {
            let found = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            Err(Error::value("models of the judge's server", "one, as none is named", found))
        }
    }
}

/// The probability of each word relative to the others.
fn shares(words: &[String], choice: &Value) -> Result<Vec<f64>> {
    let top = likeliest(choice);
    if top.is_empty() {
        return said(words, choice);
    }
    let mut weights = vec![0.0; words.len()];
    for (token, logprob) in &top {
        if let Some(word) = begun(words, token) {
            weights[word] += logprob.exp();
        }
    }
    let sum: f64 = weights.iter().sum();
    if !(sum > 0.0 && sum.is_finite()) {
        let tokens: Vec<&str> = top.iter().map(|(token, _)| &**token).collect();
        let expected = format!("one of {words:?}, or a beginning of one of them alone, among its likeliest tokens");
        return Err(Error::value("answer of the judge", expected, format!("{tokens:?}")));
    }
    Ok(weights.into_iter().map(|weight| weight / sum).collect())
}

/// The likeliest first tokens of an answer, with their log-probabilities; none where the server does not tell them.
fn likeliest(choice: &Value) -> Vec<(String, f64)> {
    let of_chat = choice.pointer("/logprobs/content/0/top_logprobs").and_then(Value::as_array);
    if let Some(tokens) = of_chat {
        let of = |token: &Value| Some((token.get("token")?.as_str()?.to_owned(), token.get("logprob")?.as_f64()?));
        return tokens.iter().filter_map(of).collect();
    }
    let of_text = choice.pointer("/logprobs/top_logprobs/0").and_then(Value::as_object);
    let tokens = of_text.into_iter().flatten();
    tokens.filter_map(|(token, logprob)| Some((token.clone(), logprob.as_f64()?))).collect()
}

/// The one word that a token begins, spaces before either aside. `None`: it begins none, or several.
fn begun(words: &[String], token: &str) -> Option<usize> {
    let token = token.trim_start();
    let mut begun = (0..words.len()).filter(|&word| words[word].trim_start().starts_with(token));
    let first = begun.next().filter(|_| !token.is_empty())?;
    begun.next().is_none().then_some(first)
}

/// The whole probability for the word that the text says, of a server that tells no probabilities.
fn said(words: &[String], choice: &Value) -> Result<Vec<f64>> {
    let text = text_of(choice).unwrap_or_default();
    let answer = answer_part(text);
    let answer = answer.trim_start();
    let is_whole = |word: &str| {
        let rest = answer.strip_prefix(word.trim_start());
        // A text that goes on is no answer by a word: "A look at both shows that B …".
        rest.is_some_and(|rest| !rest.trim_start().starts_with(char::is_alphanumeric))
    };
    let whole = (0..words.len()).find(|&at| is_whole(&words[at]));
    match whole.or_else(|| begun(words, answer)) {
        Some(word) => Ok((0..words.len()).map(|at| f64::from(u8::from(at == word))).collect()),
        None => Err(Error::value("answer of the judge", format!("one of {words:?}"), shown_text(text))),
    }
}

/// The text of a choice: of a chat, or of a text that goes on.
fn text_of(choice: &Value) -> Option<&str> {
    choice.pointer("/message/content").or_else(|| choice.get("text"))?.as_str()
}

/// The JSON value that a choice's text has.
fn json(choice: &Value, limit: Limit<'_>) -> Result<Value> {
    let Some(text) = text_of(choice) else {
        let refusal = choice.pointer("/message/refusal").and_then(Value::as_str);
        let found = refusal.map_or_else(|| shown(choice), |refusal| format!("a refusal: {}", shown_text(refusal)));
        return Err(Error::value("answer of the judge", "a text with JSON", found));
    };
    let is_cut = choice.get("finish_reason").and_then(Value::as_str) == Some("length");
    value_in(&answer_part(text), is_cut).ok_or_else(|| {
        let expected = match (is_cut, limit) {
            (true, Some((name, most))) => format!("JSON that ends within {most} tokens (`{name}`)"),
            (true, None) => "JSON that ends before it is cut".to_owned(),
            (false, _) => "JSON".to_owned(),
        };
        Error::value("answer of the judge", expected, shown_text(text))
    })
}

fn shown(answer: &Value) -> String {
    shortened(answer.to_string(), MOST_SHOWN)
}

fn shown_text(text: &str) -> String {
    format!("{:?}", shortened(text.to_owned(), MOST_SHOWN))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    fn chat(top: &[(&str, f64)]) -> Value {
        let top: Vec<Value> = top.iter().map(|(token, p)| json!({"token": token, "logprob": p.ln()})).collect();
        json!({"message": {"content": "x"}, "logprobs": {"content": [{"token": "x", "top_logprobs": top}]}})
    }

    fn close(found: &[f64], expected: &[f64]) {
        assert!(
            found.len() == expected.len() && found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9),
            "{found:?}"
        );
    }

    #[test]
    fn tokens_count_for_the_word_that_they_begin() {
        let yes_no = words(&[" yes", " no"]);
        let top = [(" yes", 0.3), ("yes", 0.1), (" ye", 0.05), ("no", 0.1), (" maybe", 0.2), (" ", 0.1), ("", 0.05)];
        close(&shares(&yes_no, &chat(&top)).unwrap(), &[0.45 / 0.55, 0.1 / 0.55]);
        let text =
            json!({"text": " yes", "logprobs": {"top_logprobs": [{" yes": 0.75_f64.ln(), " no": 0.25_f64.ln()}]}});
        close(&shares(&yes_no, &text).unwrap(), &[0.75, 0.25]);
        // "n" begins both, and counts for none.
        close(
            &shares(&words(&["no", "never"]), &chat(&[("n", 0.5), ("nev", 0.1), ("no", 0.3)])).unwrap(),
            &[0.75, 0.25],
        );
        let error = shares(&yes_no, &chat(&[("maybe", 0.9), ("Yes", 0.1)])).unwrap_err().to_string();
        assert!(error.contains(r#"one of [" yes", " no"]"#) && error.contains(r#"["maybe", "Yes"]"#), "{error}");
    }

    #[test]
    fn without_probabilities_the_text_decides() {
        let said = |text: &str, of: &[&str]| {
            let choices = [json!({"message": {"content": text}}), json!({"text": text, "logprobs": null})];
            let found = choices.map(|choice| shares(&words(of), &choice).map_err(|error| error.to_string()));
            assert_eq!(found[0], found[1]);
            found[0].clone()
        };
        assert_eq!(said(" no, it is wrong", &[" yes", " no"]).unwrap(), [0.0, 1.0]);
        assert_eq!(said("10", &["1", "10"]).unwrap(), [0.0, 1.0]);
        assert_eq!(said("<think>no?</think>yes", &[" yes", " no"]).unwrap(), [1.0, 0.0]);
        assert_eq!(said("sat", &["satisfying", "bad"]).unwrap(), [1.0, 0.0], "one token was asked for");
        for text in ["nobody", "I think", "", "yes and no"] {
            let error = said(text, &[" yes", " no"]).unwrap_err();
            assert!(error.contains(&format!("found {text:?}")), "{error}");
        }
    }

    #[test]
    fn json_is_found_in_what_models_write_around_it() {
        let of = |text: &str| json(&json!({"message": {"content": text}}), None);
        let value = json!({"reasoning": "a {b} `c`", "score": 7});
        let written = value.to_string();
        for text in [
            written.clone(),
            format!("  {written}\n"),
            format!("Here it is:\n```json\n{written}\n```\nDone."),
            format!("```\n{written}"),
            format!("<think>{{\"score\": 1}}</think>\n{written}"),
            format!("My verdict {{sic}}: {written}. Good luck!"),
        ] {
            assert_eq!(of(&text).unwrap(), value, "{text}");
        }
        assert_eq!(of("7").unwrap(), json!(7));
        for text in ["", "I won't say.", "{\"score\": 7", "```json\n```", &"{".repeat(100_000)] {
            let error = of(text).unwrap_err().to_string();
            assert!(error.contains("answer of the judge: expected JSON, found") && error.len() < 1000, "{error}");
        }
        let cut = json!({"text": "{\"score\":", "finish_reason": "length"});
        let most = json!(512);
        let error = json(&cut, Some(("max_completion_tokens", &most))).unwrap_err().to_string();
        assert!(error.contains("within 512 tokens (`max_completion_tokens`)"), "{error}");
        let refused = json!({"message": {"content": null, "refusal": "I can't."}});
        assert!(json(&refused, None).unwrap_err().to_string().contains("a refusal: \"I can't.\""));
    }

    #[test]
    fn answers_without_a_choice_are_errors() {
        let prompt = crate::question::JudgePrompt::Text(String::new());
        let question = Question { prompt, answer: WantedAnswer::Words(words(&["a", "b"]).into()) };
        for value in [json!({}), json!([]), json!({"choices": []}), json!(null)] {
            assert!(answer(&question, &json!({}), &value).unwrap_err().to_string().contains("`choices`"));
        }
        let value = json!({"choices": [chat(&[("a", 0.5)])], "usage": {"prompt_tokens": 12}});
        assert_eq!(answer(&question, &json!({}), &value).unwrap().tokens, 12);
    }

    #[test]
    fn a_server_lists_one_model() {
        let listed = |names: &[&str]| json!({"data": names.iter().map(|name| json!({"id": name})).collect::<Vec<_>>()});
        assert_eq!(only_model(&listed(&["m"])).unwrap(), "m");
        assert!(only_model(&listed(&["m", "n"])).unwrap_err().to_string().contains("found m, n"));
        assert!(only_model(&json!({"object": "list"})).unwrap_err().to_string().contains("found none"));
    }
}
