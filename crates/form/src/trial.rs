//! Forms are compiled twice. First a helper process tries the form with a vocabulary of bytes: our own executable run
//! again (in a Python process the command `offshoot`), whose memory and CPU time the system limits, so that no schema,
//! pattern or grammar takes more than [`BOUNDS`] or ends the process with its stack. Only a form that passes is compiled
//! here, with the model's vocabulary. A program that has no helper compiles at once; llguidance's limits of work and a
//! deadline bound it there, and memory is bounded by them alone.

use std::sync::OnceLock;
use std::time::Duration;

use llguidance::TokenParser;
use offshoot_core::bounded::{Bounds, Stopped, Work, is_unbounded};

use crate::grammar::grammar;
use crate::spec::Form;
use crate::vocabulary::FormVocabulary;

/// What a form may take to compile with a vocabulary of bytes.
const BOUNDS: Bounds = Bounds { bytes: 200 << 20, cpu: Duration::from_millis(600) };

/// Tries a form that came as JSON. The answer is JSON, too: null, or what was expected and found.
pub static TRIAL: Work =
    Work::new("form", |request| serde_json::to_vec(&tried(request)).expect("an optional text is JSON"));

fn tried(request: &[u8]) -> Option<(String, String)> {
    static BYTES: OnceLock<FormVocabulary> = OnceLock::new();
    let form: Form = match serde_json::from_slice(request) {
        Ok(form) => form,
        Err(error) => return Some(("a form".to_string(), error.to_string())),
    };
    let refusal = parser(&form, BYTES.get_or_init(FormVocabulary::of_bytes)).err()?;
    Some((refusal.expected, refusal.found))
}

/// Why a form is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub expected: String,
    pub found: String,
    /// Whether it would be refused again.
    pub is_final: bool,
}

impl Refusal {
    pub fn new(expected: impl Into<String>, found: impl Into<String>) -> Refusal {
        Refusal { expected: expected.into(), found: found.into(), is_final: true }
    }

    /// Of a form that is none of its kind, or that cannot be held: the library's message.
    pub fn of(message: &str) -> Refusal {
        Refusal::new("one that can be compiled", plain(message))
    }

    /// Of a form that takes more than it may.
    pub fn too_much(why: impl Into<String>) -> Refusal {
        Refusal::new("one that compiles within a second and 200 MiB", why)
    }

    /// Of a form that there is no room for now.
    pub fn later(why: impl Into<String>) -> Refusal {
        Refusal { is_final: false, ..Refusal::too_much(why) }
    }
}

/// Has a helper process compile the form, where the program has one.
///
/// # Errors
///
/// The form takes more than [`BOUNDS`], or is refused.
pub(crate) fn try_form(form: &Form) -> Result<(), Refusal> {
    if is_unbounded() {
        return Ok(());
    }
    let request = serde_json::to_vec(form).expect("a form is JSON");
    match TRIAL.call(BOUNDS, &request) {
        Ok(answer) => match serde_json::from_slice(&answer).expect("a trial answers in JSON") {
            None::<(String, String)> => Ok(()),
            Some((expected, found)) => Err(Refusal::new(expected, found)),
        },
        Err(stopped @ Stopped::NoHelper(_)) => Err(Refusal::later(stopped.to_string())),
        Err(stopped) => Err(Refusal::too_much(stopped.to_string())),
    }
}

/// The matcher of a form, at its beginning.
pub(crate) fn parser(form: &Form, vocabulary: &FormVocabulary) -> Result<TokenParser, Refusal> {
    let made = vocabulary.factory.create_parser(grammar(form)?);
    let mut parser = made.map_err(|error| Refusal::of(&format!("{error:#}")))?;
    parser.start_without_prompt();
    Ok(parser)
}

/// llguidance's message in one line, without the state of its parser.
pub(crate) fn plain(message: &str) -> String {
    let end = ["<non-verbose/>", "<backtrace>", "<state>"].iter().filter_map(|mark| message.find(mark)).min();
    message[..end.unwrap_or(message.len())].split_whitespace().collect::<Vec<_>>().join(" ")
}
