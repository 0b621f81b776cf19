//! `offshoot-lab forms` compiles forms that come as lines of JSON, and says whether texts have them, token by token, as
//! if each had been sampled. What forms are and how they are held is the crate `offshoot-form`'s.

use std::io::BufRead;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use serde::{Deserialize, Serialize};

use offshoot_core::dice::Dice;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;
use offshoot_core::out;
use offshoot_form::{CompiledForm, Form, FormBegin, FormCompiler, FormState, Forms};
use offshoot_text::{AddSpecial, Tokenizer};

// No doc comment: clap would print it as the command's.
#[derive(Clone, Debug, Args)]
pub struct FormsArgs {
    /// Folder of a model or a tokenizer, whose tokens spell the texts
    #[arg(long, value_name = "DIR")]
    tokenizer: PathBuf,
}

/// A form, and texts that may have it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    name: String,
    form: Form,
    #[serde(default)]
    texts: Vec<String>,
    /// Tokens to draw at most, each one of those that are allowed, all alike.
    #[serde(default)]
    draw: usize,
}

/// What becomes of a form and its texts.
#[derive(Debug, Serialize)]
struct Answer {
    name: String,
    /// Why the form is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Of each text: `accepted`, `unfinished`, or where it is refused.
    texts: Vec<String>,
    /// To compile the form, and to compute its first mask.
    seconds: f64,
    /// Memory that this process took more at its highest, also for the texts, in MB; only Linux tells it.
    peak_mb: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    drawn: Option<Drawn>,
}

/// A text of tokens that were drawn.
#[derive(Debug, Serialize)]
struct Drawn {
    text: String,
    tokens: usize,
    /// `stop`: it ended where it may; `length`; `dead_end`; or why there was no mask.
    finish: String,
    /// For the mask that took longest.
    slowest_seconds: f64,
}

impl FormsArgs {
    /// Answers each line of stdin, `{"name": …, "form": …, "texts": […], "draw": …}`, with a line.
    ///
    /// # Errors
    ///
    /// There is no tokenizer, or stdin or stdout fails. A line that is no question has an answer that says so.
    pub fn run(&self) -> Result<()> {
        let tokenizer = Arc::new(Tokenizer::load(&self.tokenizer)?);
        let ends = tokenizer.eos().into_iter().collect();
        let compiler = FormCompiler::new(Arc::clone(&tokenizer), ends, tokenizer.vocab_size());
        let mut forms = Forms::new(1);
        // What all forms share is made before the first one's time and memory are measured.
        compiler.compile(&Arc::new(Form::Choice(vec!["a".to_owned()])))?;
        for line in std::io::stdin().lock().lines() {
            let line = line.map_err(|error| Error::value("stdin", "lines of UTF-8", error.to_string()))?;
            let answer = answer(&line, &tokenizer, &compiler, &mut forms);
            out::line(serde_json::to_string(&answer).expect("texts and numbers are JSON"))?;
        }
        Ok(())
    }
}

fn answer(line: &str, tokenizer: &Tokenizer, compiler: &FormCompiler, forms: &mut Forms) -> Answer {
    let before = memory::restart_peak();
    let start = Instant::now();
    let (mut name, mut texts, mut draw) = (String::new(), Vec::new(), 0);
    let compiled =
        serde_json::from_str(line).map_err(|error| format!("no form: {error}")).and_then(|asked: Question| {
            (name, texts, draw) = (asked.name, asked.texts, asked.draw);
            let compiled = compiler.compile(&Arc::new(asked.form)).map_err(|error| error.to_string())?;
            first_mask(&compiled, forms).map(|()| compiled)
        });
    let seconds = start.elapsed().as_secs_f64();
    let (error, texts, drawn) = match compiled {
        Ok(form) => {
            let drawn = (draw > 0).then(|| drawn(&form, draw, tokenizer, forms));
            (None, texts.iter().map(|text| verdict(text, &form, tokenizer, forms)).collect(), drawn)
        }
        Err(error) => (Some(error), Vec::new(), None),
    };
    let peak_mb = before.and_then(|before| Some(memory::peak()?.saturating_sub(before) as f64 / 1e6));
    Answer { name, error, texts, seconds, peak_mb, drawn }
}

/// Computes what may come first, which shows what a form costs that compiles.
fn first_mask(form: &Arc<CompiledForm>, forms: &mut Forms) -> Result<(), String> {
    let mut state = FormState::begin(Arc::clone(form), &FormBegin::AtOnce);
    let masks = forms.masks(&mut [&mut state]);
    masks.into_iter().try_for_each(|mask| mask.map(drop)).map_err(|error| error.to_string())
}

/// Draws at most `most` tokens from the masks, each token of a mask alike; an end that is drawn ends the text.
fn drawn(form: &Arc<CompiledForm>, most: usize, tokenizer: &Tokenizer, forms: &mut Forms) -> Drawn {
    let mut state = FormState::begin(Arc::clone(form), &FormBegin::AtOnce);
    let (mut dice, mut tokens, mut slowest_seconds) = (Dice::new(most as u64), Vec::new(), 0.0_f64);
    let finish = loop {
        let start = Instant::now();
        let mask = forms.masks(&mut [&mut state]).pop().expect("a mask for each state");
        slowest_seconds = slowest_seconds.max(start.elapsed().as_secs_f64());
        let mask = match mask {
            Ok(mask) => mask,
            Err(error) => break error.to_string(),
        };
        let allowed: Vec<TokenId> = (0..tokenizer.vocab_size() as u32)
            .map(TokenId)
            .filter(|&token| mask.allowed.as_ref().is_none_or(|allowed| allowed.contains(token)))
            .collect();
        if allowed.is_empty() {
            break if mask.may_end { "stop" } else { "dead_end" }.to_owned();
        }
        let token = dice.pick(&allowed);
        if Some(token) == tokenizer.eos() {
            break "stop".to_owned();
        }
        if tokens.len() == most {
            break "length".to_owned();
        }
        tokens.push(token);
        state.push(token);
    };
    Drawn { text: tokenizer.decode(&tokens), tokens: tokens.len(), finish, slowest_seconds }
}

/// Whether a text has the form: each of its tokens is allowed behind those before it, and the text may end.
fn verdict(text: &str, form: &Arc<CompiledForm>, tokenizer: &Tokenizer, forms: &mut Forms) -> String {
    let tokens = match tokenizer.encode(text, AddSpecial::No) {
        Ok(tokens) => tokens,
        Err(error) => return error.to_string(),
    };
    // The states at all tokens, so that their masks are computed in one call.
    let mut state = FormState::begin(Arc::clone(form), &FormBegin::AtOnce);
    let mut states = vec![state.clone()];
    for &token in &tokens {
        state.push(token);
        states.push(state.clone());
    }
    let masks = forms.masks(&mut states.iter_mut().collect::<Vec<_>>());
    let mut bytes = 0;
    let next = tokens.iter().map(Some).chain([None]);
    for (mask, token) in masks.into_iter().zip(next) {
        let mask = match mask {
            Ok(mask) => mask,
            Err(error) => return error.to_string(),
        };
        let is_allowed = |token: TokenId| mask.allowed.as_ref().is_none_or(|allowed| allowed.contains(token));
        match token {
            Some(&token) if is_allowed(token) => bytes += tokenizer.token_bytes(token).len(),
            Some(_) => return format!("refused at byte {bytes}"),
            None if mask.may_end => return "accepted".to_owned(),
            None => return "unfinished".to_owned(),
        }
    }
    unreachable!("the last state has no token, which returns")
}

/// The memory of this process.
mod memory {
    /// Forgets the highest memory that was used, and returns what is used now, in bytes.
    pub fn restart_peak() -> Option<u64> {
        // Linux: 5 sets the peak to what is used.
        std::fs::write("/proc/self/clear_refs", "5").ok()?;
        field("VmRSS:")
    }

    /// The most bytes that were used since the peak was forgotten.
    pub fn peak() -> Option<u64> {
        field("VmHWM:")
    }

    fn field(name: &str) -> Option<u64> {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let value = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
    }
}

#[cfg(test)]
mod tests {
    use offshoot_fixtures::REPOSITORY;

    use super::*;

    fn answers(lines: &[&str]) -> Vec<Answer> {
        let folder = PathBuf::from(REPOSITORY).join("tasks/models/demo");
        let tokenizer = Arc::new(Tokenizer::load(&folder).expect("the bundled tokenizer"));
        let ends = tokenizer.eos().into_iter().collect();
        let compiler = FormCompiler::new(Arc::clone(&tokenizer), ends, tokenizer.vocab_size());
        let mut forms = Forms::new(1);
        lines.iter().map(|line| answer(line, &tokenizer, &compiler, &mut forms)).collect()
    }

    #[test]
    fn texts_are_accepted_unfinished_or_refused() {
        let [answer] = &answers(&[r#"{"name": "a", "form": {"json": {"type": "object", "properties": {"é": {"enum":
            ["x", 7]}}, "required": ["é"]}}, "texts": ["{\"é\": \"x\"}", "{\"é\": 7", "{\"é\": 8}", ""]}"#])[..]
        else {
            panic!("one answer to one line")
        };
        assert_eq!((answer.name.as_str(), &answer.error), ("a", &None));
        assert_eq!(answer.texts[0], "accepted");
        assert_eq!(answer.texts[1], "unfinished");
        assert!(answer.texts[2].starts_with("refused at byte "), "{}", answer.texts[2]);
        assert_eq!(answer.texts[3], "unfinished");
    }

    #[test]
    fn texts_that_are_drawn_have_the_form_or_begin_it() {
        let [answer] = &answers(&[r#"{"name": "a", "form": {"choice": ["one", "two"]}, "draw": 9}"#])[..] else {
            panic!("one answer to one line")
        };
        let drawn = answer.drawn.as_ref().expect("tokens were to be drawn");
        assert!(["one", "two"].contains(&drawn.text.as_str()) && drawn.finish == "stop", "{drawn:?}");
        let [answer] = &answers(&[r#"{"name": "a", "form": {"regex": "a{50}"}, "draw": 3}"#])[..] else {
            panic!("one answer to one line")
        };
        let drawn = answer.drawn.as_ref().expect("tokens were to be drawn");
        assert!(drawn.text.bytes().all(|byte| byte == b'a') && drawn.finish == "length", "{drawn:?}");
    }

    #[test]
    fn a_form_that_is_refused_and_a_line_that_is_none_have_an_error() {
        let answers = answers(&[r#"{"name": "a", "form": {"regex": "(a"}}"#, r#"{"name": "b", "form": {"xml": 1}}"#]);
        assert!(answers[0].error.as_ref().is_some_and(|error| !error.starts_with("no form")), "{answers:?}");
        assert!(answers[1].error.as_ref().is_some_and(|error| error.starts_with("no form")), "{answers:?}");
    }
}
