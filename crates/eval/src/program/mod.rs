//! Finds the candidate program in a sample's text, for `judge`, `run` and `rescore` alike: behind its reasoning, within
//! its fences or other marks, in an indented block, or between the prose that introduces it and that which follows it.
//! A text that continues its problem's prompt stays as it is. Text only; the judge runs the program.

mod fences;
mod marks;
mod prose;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::benchmark::with_body;
use fences::{Block, blocks};
use offshoot_judge::language::Language;
use offshoot_judge::problem::{Assembly, Problem, TestSuite};
use offshoot_text::reasoning::answer_part;
use prose::{begins_as_code, first_statement, is_prose, string_at_end, unfenced};

/// The part of a sample's text that is its program. Its `Debug` text is part of the fingerprint of a scoring's
/// settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExtractMode {
    /// The program between Markdown fences or behind the prose that introduces it. A text that continues the prompt, or
    /// is nothing but code, is taken whole.
    #[default]
    Auto,
    /// All of it, behind its reasoning.
    #[serde(rename = "completion")]
    None,
    /// The program between Markdown fences; without them, there is no candidate.
    Fence,
}

/// A sample's text as its field names it, or the candidate in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CandidateText {
    /// Continues the problem's prompt, or is complete, as [`Assembly`] defines.
    Completion(String),
    /// A complete program, whatever the assembly.
    Program(String),
}

impl CandidateText {
    pub fn as_str(&self) -> &str {
        match self {
            CandidateText::Completion(text) | CandidateText::Program(text) => text,
        }
    }

    /// A completion or a program, as this one is, with a part of its text.
    fn within(&self, part: fn(&str) -> &str) -> CandidateText {
        match self {
            CandidateText::Completion(text) => CandidateText::Completion(part(text).to_owned()),
            CandidateText::Program(text) => CandidateText::Program(part(text).to_owned()),
        }
    }

    /// The program that is judged, of a candidate that [`candidate`] found.
    pub fn program(self, problem: &Problem, language: &Language) -> String {
        match self {
            CandidateText::Completion(text) if *language == Language::Python => problem.assembly.program(&text),
            CandidateText::Completion(text) | CandidateText::Program(text) => text,
        }
    }
}

/// The candidate in a sample's text. Code without indentation is a program; it follows the prompt's definitions, so
/// that it can use the prompt's imports. Indented code is the body of the prompt's function.
pub fn candidate(problem: &Problem, language: &Language, text: &CandidateText, mode: ExtractMode) -> CandidateText {
    let without_ends;
    let text = match mode {
        ExtractMode::None => text,
        ExtractMode::Auto | ExtractMode::Fence => {
            without_ends = text.within(marks::without_tokens);
            &without_ends
        }
    };
    let prompt = match &problem.assembly {
        Assembly::After(prompt) if *language == Language::Python => Some(prompt.as_str()),
        _ => None,
    };
    if let Some(prompt) = prompt.filter(|_| mode != ExtractMode::Fence)
        && continues(prompt, text)
    {
        let text = text.as_str();
        let end = if mode == ExtractMode::Auto { marks::end_of_body(prompt, text) } else { text.len() };
        return CandidateText::Completion(text[..end].to_owned());
    }
    let answer = answer_part(text.as_str());
    let found = match mode {
        ExtractMode::None => None,
        ExtractMode::Auto => fenced(problem, language, &answer)
            .or_else(|| titled(language, prompt, &answer))
            .or_else(|| best(problem, language, &marks::marked(language, &answer)))
            .or_else(|| indented(problem, prompt, language, &answer))
            .or_else(|| introduced(prompt, language, &answer)),
        ExtractMode::Fence => Some(fenced(problem, language, &answer).unwrap_or_default()),
    };
    // A text without a statement, or with an indented one, continues the prompt whatever its field says.
    let is_continuation = answer.trim().is_empty() || prompt.is_some() && is_body(&answer);
    match (found, text) {
        (Some(code), _) => assembled(problem, language, prompt, code),
        (None, CandidateText::Program(_)) if !is_continuation => {
            CandidateText::Program(whole(problem, language, &answer))
        }
        (None, _) => unintroduced(prompt, answer.into_owned()),
    }
}

/// Whether a text is the continuation of a prompt rather than an answer to it: it begins with an indented statement, or
/// within a string of the prompt's.
fn continues(prompt: &str, text: &CandidateText) -> bool {
    let first = text.as_str().lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let is_indented = first.starts_with('\t') || first.starts_with("  ");
    is_indented && !fences::is_fence(first) && !is_prose(first)
        || matches!(text, CandidateText::Completion(_)) && string_at_end(prompt).is_some()
}

/// Code in indented blocks between prose, as Markdown has them, without their indentation. Where the prompt wants a
/// function's body, it must define the function under test.
fn indented(problem: &Problem, prompt: Option<&str>, language: &Language, answer: &str) -> Option<String> {
    if *language != Language::Python || begins_as_code(answer) || prose::has_statement(answer) {
        return None;
    }
    let code = best(problem, language, &marks::indented(answer))?;
    (prompt.is_none() || defines(problem, &code)).then_some(code)
}

/// Code behind the heading `python` that a copied block has.
fn titled(language: &Language, prompt: Option<&str>, answer: &str) -> Option<String> {
    let code = marks::without_title(answer).filter(|_| *language == Language::Python)?;
    Some(unfenced(code, prompt.is_some()).unwrap_or(code).to_owned())
}

/// Code that stands behind or before prose, in a text without fences. `None`: it is nothing but code.
fn introduced(prompt: Option<&str>, language: &Language, answer: &str) -> Option<String> {
    if *language != Language::Python {
        return None;
    }
    let code = unfenced(answer, prompt.is_some())?;
    let is_all = begins_as_code(answer) && code.len() == answer.len();
    (!is_all).then(|| code.to_owned())
}

/// A text with nothing but code. A prompt that ends in a function's head needs a body before the text can define the
/// function again.
fn unintroduced(prompt: Option<&str>, text: String) -> CandidateText {
    match prompt {
        Some(prompt) if prose::begins_with_definition(&text) && prompt.trim_end().ends_with(':') => {
            CandidateText::Program(format!("{}\n{text}", with_body(prompt)))
        }
        _ => CandidateText::Completion(text),
    }
}

/// Code that was found in a text, as a candidate.
fn assembled(problem: &Problem, language: &Language, prompt: Option<&str>, code: String) -> CandidateText {
    match prompt {
        Some(prompt) if code.trim().is_empty() || is_body(&code) => {
            let between = if prompt.ends_with('\n') || prompt.is_empty() { "" } else { "\n" };
            CandidateText::Completion(format!("{between}{code}"))
        }
        Some(prompt) if !defines(problem, &code) && prose::has_bare_return(&code) => {
            let between = if prompt.ends_with('\n') { "" } else { "\n" };
            CandidateText::Completion(format!("{between}{}", prose::as_body(&code)))
        }
        Some(prompt) => CandidateText::Program(format!("{}\n{code}", with_body(prompt))),
        None => CandidateText::Program(whole(problem, language, &code)),
    }
}

fn whole(problem: &Problem, language: &Language, code: &str) -> String {
    match language {
        Language::Python => problem.assembly.whole(code),
        Language::Cpp | Language::Command(_) => code.to_owned(),
    }
}

/// Whether code is the body of a function: its first statement is indented.
fn is_body(code: &str) -> bool {
    first_statement(code).is_some_and(|line| line.starts_with([' ', '\t']))
}

/// The code of the block that counts: of those that define the function under test the last one, of them rather one
/// with a body, and one that is closed; else the longest in the problem's language, of equals the last. Code that
/// stands before the first fence is a block too: the prompt has opened its fence.
fn fenced(problem: &Problem, language: &Language, answer: &str) -> Option<String> {
    let mut blocks = blocks(answer);
    let begin = blocks.first()?.begin;
    blocks.retain(|block| !block.code.trim().is_empty());
    if *language == Language::Python && begins_as_code(answer) {
        let code = unfenced(&answer[..begin], true).unwrap_or_default().to_owned();
        blocks.insert(0, Block::new(code, String::new(), 0, true));
    }
    best(problem, language, &blocks)
}

/// The code of the block that counts.
fn best(problem: &Problem, language: &Language, blocks: &[Block]) -> Option<String> {
    let defining = |block: &&Block| *language == Language::Python && defines(problem, &block.code);
    let last =
        blocks.iter().filter(defining).max_by_key(|block| (prose::has_body(&block.code), block.is_closed, block.begin));
    // An expected output is no code, whatever its label.
    let is_code = |code: &str| *language != Language::Python || begins_as_code(code);
    let rank =
        |block: &&Block| (is_in(language, &block.label), is_code(&block.code) && !block.is_session, block.code.len());
    let chosen = last.or_else(|| blocks.iter().max_by_key(rank));
    chosen.map(|block| block.code.clone())
}

/// Whether code defines what a problem's tests call.
fn defines(problem: &Problem, code: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    code.lines().any(|line| {
        let statement = line.trim_start();
        let is_inner = statement.len() < line.len();
        let behind = ["def ", "async def ", "class "].iter().find_map(|word| statement.strip_prefix(word));
        let behind = match behind {
            Some(behind) => behind.trim_start(),
            // A name that is bound to a function.
            None if statement
                .split_once('=')
                .is_some_and(|(name, value)| name.trim_end().chars().all(is_word) && !value.starts_with('=')) =>
            {
                statement
            }
            None => return false,
        };
        let name = behind.split(|c| !is_word(c)).next().filter(|name| !name.is_empty());
        name.is_some_and(|name| match &problem.suite {
            TestSuite::Script(script) => match &script.entry {
                Some(entry) => !is_inner && name == entry,
                None => !is_inner && calls(&script.code, name),
            },
            // It may be a method of the class `Solution`.
            TestSuite::Calls(calls) => name == calls.function,
            TestSuite::Reference(reference) => !is_inner && name == reference.entry,
            TestSuite::Streams(_) => false,
        })
    })
}

/// Whether test code calls a function of this name.
fn calls(code: &str, name: &str) -> bool {
    let is_apart = |before: &str| !before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '.');
    code.match_indices(name).any(|(at, _)| code[at + name.len()..].starts_with('(') && is_apart(&code[..at]))
}

/// Whether a block with this label may be a program of the language; one without a label may be.
fn is_in(language: &Language, label: &str) -> bool {
    const DATA: [&str; 16] = [
        "bash",
        "sh",
        "shell",
        "zsh",
        "console",
        "terminal",
        "text",
        "txt",
        "plaintext",
        "output",
        "input",
        "json",
        "yaml",
        "diff",
        "markdown",
        "md",
    ];
    label.is_empty()
        || match language {
            Language::Python => label.starts_with("py") || label == "sage",
            Language::Cpp => matches!(label, "c++" | "cpp" | "cc" | "cxx" | "c" | "hpp" | "h"),
            Language::Command(commands) => commands.file.rsplit('.').next() == Some(label) || !DATA.contains(&label),
        }
}

#[cfg(test)]
mod tests;
