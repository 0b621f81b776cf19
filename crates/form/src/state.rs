//! A branch's place in its form. Plain data of the host: what was sampled since the form began, and a matcher that may
//! lag behind, be shared with the branches that forked from it, or be missing; `forms` brings it up to date.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use offshoot_core::ids::TokenId;

use crate::compile::CompiledForm;
use crate::lanes::Slot;
use crate::mask::StateMask;
use crate::reasoning::{MarkFinder, Opened, Opening, OpeningMark};
use crate::spec::FormBegin;

/// The texts before a form in harmony's final channel. The type of the message may stand between the two.
const FINAL_CHANNEL: [&str; 2] = ["<|channel|>final", "<|message|>"];

/// Where a sample stands before and in its form.
#[derive(Clone, Debug)]
enum Phase {
    /// The sample may open its reasoning, or be in its form from the first token.
    Opening { opening: Opening, close: MarkFinder },
    /// Before the mark behind which the form begins.
    Before { marks: MarkFinder },
    /// In the form.
    Form,
}

/// A branch's place in its form. Cloned when the branch forks: the clone has its tokens, and shares the matcher until
/// one of both goes on.
#[derive(Clone, Debug)]
pub struct FormState {
    form: Arc<CompiledForm>,
    phase: Phase,
    /// The tokens since the form's beginning.
    tokens: Vec<TokenId>,
    /// A keyed hash of `tokens`.
    hash: [u64; 2],
    pub(crate) slot: Arc<Slot>,
}

/// What two states of equal masks have in common: the form, the tokens since its beginning, and what may be before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateKey {
    pub form: u64,
    tokens: [u64; 2],
    /// A hash of the mark that the sample may begin with, and of how much of it has come; 0 if there is none.
    opening: u64,
}

impl Hash for StateKey {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        // Tokens are a keyed hash already, but for those at a form's beginning.
        hasher.write_u64(self.tokens[0] ^ self.opening ^ self.form.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
}

/// A table by states.
pub(crate) type ByState<V> = HashMap<StateKey, V, BuildHasherDefault<KeyHasher>>;

/// Takes the number that a key writes for its hash.
#[derive(Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes
            .iter()
            .for_each(|byte| self.0 = (self.0.rotate_left(8) ^ u64::from(*byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

impl FormState {
    /// The state of a sample of which no token is sampled yet.
    pub fn begin(form: Arc<CompiledForm>, begin: &FormBegin) -> FormState {
        let phase = match begin {
            FormBegin::AtOnce => Phase::Form,
            FormBegin::BehindReasoning { open: None, close } => Phase::Before { marks: MarkFinder::new(&[close]) },
            FormBegin::FinalChannel => Phase::Before { marks: MarkFinder::new(&FINAL_CHANNEL) },
            FormBegin::BehindReasoning { open: Some(open), close } => {
                let mark = OpeningMark::new(open, form.tokenizer());
                Phase::Opening { opening: Opening::new(mark), close: MarkFinder::new(&[close]) }
            }
        };
        FormState { form, phase, tokens: Vec::new(), hash: [0; 2], slot: Arc::default() }
    }

    /// The state behind one more token, sampled or given.
    pub fn push(&mut self, token: TokenId) {
        let bytes = self.form.tokenizer().token_bytes(token);
        match std::mem::replace(&mut self.phase, Phase::Form) {
            Phase::Form => self.append(token),
            Phase::Before { mut marks } => {
                if !marks.push(bytes) {
                    self.phase = Phase::Before { marks };
                }
            }
            Phase::Opening { opening, close } => match opening.push(token, bytes) {
                Opened::Reasoning => {
                    self.phase = Phase::Before { marks: close };
                    (self.tokens, self.hash, self.slot) = (Vec::new(), [0; 2], Arc::default());
                }
                Opened::Open(opening) => {
                    self.phase = Phase::Opening { opening, close };
                    self.append(token);
                }
                Opened::Otherwise => self.append(token),
            },
        }
    }

    fn append(&mut self, token: TokenId) {
        self.tokens.push(token);
        for (seed, hash) in self.hash.iter_mut().enumerate() {
            // Keyed hashes of the whole sequence so far: two, as their pair stands for the sequence.
            let mut hasher = DefaultHasher::new();
            (seed, *hash, token).hash(&mut hasher);
            *hash = hasher.finish();
        }
    }

    /// The form.
    pub fn form(&self) -> &Arc<CompiledForm> {
        &self.form
    }

    /// Whether the form has begun, so that the next token is one of it: not while reasoning comes before it.
    pub fn has_begun(&self) -> bool {
        matches!(self.phase, Phase::Form)
    }

    /// The tokens since the form's beginning.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// What is allowed before the form begins.
    pub(crate) fn free_mask(&self) -> Arc<StateMask> {
        self.form.vocabulary().free.clone()
    }

    /// What states of equal masks have in common; `None` before the form begins, where all tokens are free.
    pub(crate) fn key(&self) -> Option<StateKey> {
        let opening = match &self.phase {
            Phase::Before { .. } => return None,
            Phase::Form => 0,
            Phase::Opening { opening, .. } => {
                let mut hasher = DefaultHasher::new();
                opening.tag().hash(&mut hasher);
                hasher.finish().max(1)
            }
        };
        Some(StateKey { form: self.form.id(), tokens: self.hash, opening })
    }

    /// What the sample may begin with instead of its form.
    pub(crate) fn opening(&self) -> Option<&Opening> {
        match &self.phase {
            Phase::Opening { opening, .. } => Some(opening),
            _ => None,
        }
    }
}
