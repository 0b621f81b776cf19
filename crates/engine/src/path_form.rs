//! The form that the last tokens of a path are in. It stays with the path from one extend to the next, so that an
//! extend under the same form goes on where the last one ended. What a state allows is left to `masks`.

use std::sync::Arc;

use offshoot_core::ids::TokenId;
use offshoot_form::{CompiledForm, FormBegin, FormState, SampleForm};

/// A form for the engine's model, and where in a sample it begins.
#[derive(Clone, Debug)]
pub(crate) struct ReadyForm {
    pub form: Arc<CompiledForm>,
    pub begin: FormBegin,
    /// Whether it ends with the extend.
    ends_with_extend: bool,
}

impl ReadyForm {
    /// `form` as a request asks for it.
    pub fn of(compiled: Arc<CompiledForm>, form: &SampleForm) -> Self {
        ReadyForm { form: compiled, begin: form.begin.clone(), ends_with_extend: form.ends_with_extend }
    }

    /// The state behind these tokens, the first of which is the first of a sample.
    pub fn behind(&self, tokens: &[TokenId]) -> FormState {
        let mut state = FormState::begin(self.form.clone(), &self.begin);
        tokens.iter().for_each(|&token| state.push(token));
        state
    }
}

/// The form of the tokens of a path from a position on.
#[derive(Clone, Debug)]
pub(crate) struct PathForm {
    ready: ReadyForm,
    /// The first position.
    from: usize,
    /// Behind all tokens of the path.
    pub state: FormState,
}

impl PathForm {
    /// The form of `tokens`, the last ones of a path, which begin at position `from`.
    pub fn of(ready: ReadyForm, from: usize, tokens: &[TokenId]) -> Self {
        let state = ready.behind(tokens);
        PathForm { ready, from, state }
    }

    /// Whether an extend under `ready` goes on in it: the compiled form is the same. Where the form begins was decided
    /// by the first extend.
    pub fn goes_on_with(&self, ready: &ReadyForm) -> bool {
        Arc::ptr_eq(&self.ready.form, &ready.form)
    }

    /// Whether nothing goes on in it behind the extend that sampled its tokens.
    pub fn ends_with_extend(&self) -> bool {
        self.ready.ends_with_extend
    }

    /// The first position.
    pub fn from(&self) -> usize {
        self.from
    }

    /// Goes back to the state behind `tokens`, those of the path from `from` on.
    pub fn go_back(&mut self, tokens: &[TokenId]) {
        self.state = self.state_behind(tokens);
    }

    /// The state behind `tokens`, those of the path from `from` on.
    pub fn state_behind(&self, tokens: &[TokenId]) -> FormState {
        self.ready.behind(tokens)
    }
}
