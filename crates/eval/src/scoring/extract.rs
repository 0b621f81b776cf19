//! Extracts the program from a sample's text: the whole text, or the code between a chat model's fences.

use crate::benchmark::with_body;
use crate::task::candidate::{CandidateText, fenced as fenced_block};
use offshoot_judge::language::Language;
use offshoot_judge::problem::{Assembly, Problem};

/// The part of a sample's text that is its program; without a fenced block, the whole text is. Its `Debug` text is part
/// of the fingerprint of a scoring's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtractMode {
    /// A fenced block if there is one and the text should be a complete program.
    Auto,
    /// The whole text.
    None,
    /// A fenced block, even if samples continue a prompt.
    Fence,
}

/// The program to judge.
pub fn program(problem: &Problem, language: &Language, text: &CandidateText, extract: ExtractMode) -> String {
    let fenced = |text: &str| match extract {
        ExtractMode::None => None,
        ExtractMode::Auto | ExtractMode::Fence => fenced_block(text).map(str::to_string),
    };
    if *language != Language::Python {
        return fenced(text.as_str()).unwrap_or_else(|| text.as_str().to_string());
    }
    match (text, &problem.assembly) {
        (CandidateText::Completion(text), Assembly::After(prompt)) => {
            match fenced(text).filter(|_| extract == ExtractMode::Fence) {
                // The block redefines the function; the prompt's imports and helpers precede it.
                Some(block) => format!("{}\n{block}", with_body(prompt)),
                None => problem.assembly.program(text),
            }
        }
        (CandidateText::Completion(text), Assembly::Whole | Assembly::WithImports)
        | (CandidateText::Program(text), _) => problem.assembly.whole(&fenced(text).unwrap_or_else(|| text.clone())),
    }
}
