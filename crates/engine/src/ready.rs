//! Compiles the forms of extends, on the thread of whoever begins them: an engine gets what it can work with at once,
//! and what is wrong with a form reaches the caller before anything runs.

use std::sync::Arc;
use std::time::Instant;

use crate::handle::EngineHandle;
use crate::path_form::{PathForm, ReadyForm};
use crate::place::RootOptions;
use crate::request::{Continuation, Extend, SamplingParams, Scoring};
use crate::token_path::TokenPath;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{BranchId, TokenId};
use offshoot_form::{COMPILE_WAIT, CompileCall, CompiledForm, Form, FormCompiler, SampleForm};

/// An extend as engines get it.
#[derive(Clone, Debug)]
pub(crate) struct ReadyExtend {
    pub branch: BranchId,
    pub continuation: Continuation,
    /// That of its parameters; also `None` of a scripted engine.
    pub form: Option<ReadyForm>,
}

impl ReadyExtend {
    /// Number of given tokens.
    pub fn tokens_given(&self) -> usize {
        match &self.continuation {
            Continuation::Sampled { .. } => 0,
            Continuation::Given { tokens, .. } => tokens.len(),
        }
    }
}

/// What compiles an engine's forms.
#[derive(Clone)]
pub(crate) enum FormSource {
    Compiler(Arc<FormCompiler>),
    /// The engine has no tokenizer, without which no form can be matched: forms are refused.
    NoTokenizer,
    /// The engine is scripted: any form is accepted, and its replies ignore it.
    Scripted,
}

impl FormSource {
    fn compile_until(&self, form: &Arc<Form>, call: CompileCall) -> Result<Option<Arc<CompiledForm>>> {
        match self {
            FormSource::Compiler(compiler) => compiler.compile_until(form, call).map(Some),
            FormSource::NoTokenizer => Err(Error::value("form", "none, for there is no tokenizer", "one")),
            FormSource::Scripted => Ok(None),
        }
    }

    fn known(&self, form: &Arc<Form>) -> Result<Option<Arc<CompiledForm>>> {
        match self {
            FormSource::Compiler(compiler) => compiler.known_form(form),
            FormSource::NoTokenizer | FormSource::Scripted => Ok(None),
        }
    }

    fn ready(&self, form: &SampleForm) -> Result<Option<ReadyForm>> {
        let compiled = self.compile_until(&form.form, (Instant::now() + COMPILE_WAIT).into())?;
        Ok(compiled.map(|compiled| ReadyForm::of(compiled, form)))
    }
}

impl EngineHandle {
    /// Compiles a form for the engine's model, on the caller's thread: within about a second, or else with an error.
    /// Whoever holds what is returned begins extends under the form without delay. `None` of a scripted engine, which
    /// looks at no form.
    ///
    /// # Errors
    ///
    /// The form is no form of its kind, takes too much, or none of the model's texts has it; or the engine has no
    /// tokenizer. [`Error::Busy`]: too much else is being compiled.
    pub fn compile_form(&self, form: &Arc<Form>) -> Result<Option<Arc<CompiledForm>>> {
        self.compile_form_until(form, (Instant::now() + COMPILE_WAIT).into())
    }

    /// As [`compile_form`](Self::compile_form), which waits five seconds at most, but waiting until the call's
    /// deadline; none begins to be compiled behind it.
    ///
    /// # Errors
    ///
    /// As of [`compile_form`](Self::compile_form).
    pub fn compile_form_until(&self, form: &Arc<Form>, call: CompileCall) -> Result<Option<Arc<CompiledForm>>> {
        self.forms().compile_until(form, call)
    }

    /// The form, if it is compiled already; waits for nobody.
    ///
    /// # Errors
    ///
    /// The form was refused, and would be again.
    pub fn known_form(&self, form: &Arc<Form>) -> Result<Option<Arc<CompiledForm>>> {
        self.forms().known(form)
    }

    /// Makes a branch as [`root_with`](Self::root_with) does, of whose tokens the last `sampled` were sampled under
    /// `form`, from its beginning on: an extend under the same form goes on with it.
    ///
    /// # Errors
    ///
    /// As of [`root_with`](Self::root_with) and [`compile_form`](Self::compile_form); or the tokens are fewer than
    /// `sampled`.
    pub fn root_in_form(
        &self,
        tokens: Vec<TokenId>,
        options: RootOptions,
        form: &SampleForm,
        sampled: usize,
    ) -> Result<BranchId> {
        let Some(from) = tokens.len().checked_sub(sampled) else {
            let expected = format!("at most the {} of the branch", tokens.len());
            return Err(Error::value("tokens sampled under a form", expected, sampled.to_string()));
        };
        let form = self.forms().ready(form)?.map(|ready| PathForm::of(ready, from, &tokens[from..]));
        self.send_root(options, |salt, adapter| TokenPath::of(salt, adapter, tokens).in_form(form))
    }

    /// Checks extends, and compiles their forms.
    pub(crate) fn make_ready(&self, extends: Vec<Extend>) -> Result<Vec<ReadyExtend>> {
        // The form of the last extend: nearly always that of the next one, too.
        let mut last: Option<(Arc<Form>, Option<Arc<CompiledForm>>)> = None;
        let mut ready = |form: &SampleForm| -> Result<Option<ReadyForm>> {
            let compiled = match last.take().filter(|(known, _)| Arc::ptr_eq(known, &form.form)) {
                Some((_, compiled)) => compiled,
                None => self.compile_form(&form.form)?,
            };
            last = Some((form.form.clone(), compiled.clone()));
            Ok(compiled.map(|compiled| ReadyForm::of(compiled, form)))
        };
        let make_ready = |Extend { branch, continuation }: Extend| {
            let form = sampled_by(&continuation).and_then(|params| params.form.as_ref());
            let form = form.map(&mut ready).transpose()?.flatten();
            Ok(ReadyExtend { branch, continuation, form })
        };
        extends.iter().try_for_each(|extend| self.check_extend(&extend.continuation))?;
        extends.into_iter().map(make_ready).collect()
    }

    fn check_extend(&self, continuation: &Continuation) -> Result<()> {
        self.check_kind(continuation)?;
        let (params, stop) = match continuation {
            Continuation::Sampled { params, stop, .. } => (params, stop),
            Continuation::Given { scoring: Some(Scoring::AsSampled { params, stop }), .. } => (&**params, &**stop),
            Continuation::Given { scoring: None | Some(Scoring::Model { .. } | Scoring::Values { .. }), .. } => {
                return Ok(());
            }
        };
        params.check(self.facts().vocab)?;
        stop.check_beside(params, self.facts().vocab, &self.facts().eos)
    }

    /// Refuses to sample, or to score by log-probabilities, with a scorer, and to ask a model that generates for
    /// values.
    fn check_kind(&self, continuation: &Continuation) -> Result<()> {
        let what = "continuation";
        match (self.facts().values, continuation) {
            (None, Continuation::Given { scoring: Some(Scoring::Values { .. }), .. }) => {
                Err(Error::value(what, "tokens without values, for the model generates", "values, which scorers have"))
            }
            (Some(_), Continuation::Sampled { .. }) => {
                let expected = "given tokens, for the model is a scorer: it has values and no logits";
                Err(Error::value(what, expected, "tokens to be sampled"))
            }
            (Some(_), Continuation::Given { scoring: Some(Scoring::Model { .. } | Scoring::AsSampled { .. }), .. }) => {
                let expected = "given tokens with values, for the model is a scorer: it has no logits";
                Err(Error::value(what, expected, "tokens with log-probabilities"))
            }
            (None, _) | (Some(_), Continuation::Given { scoring: None | Some(Scoring::Values { .. }), .. }) => Ok(()),
        }
    }
}

/// How the tokens of an extend are sampled, or scored as if they were.
fn sampled_by(continuation: &Continuation) -> Option<&SamplingParams> {
    match continuation {
        Continuation::Sampled { params, .. } => Some(params),
        Continuation::Given { scoring: Some(Scoring::AsSampled { params, .. }), .. } => Some(params),
        Continuation::Given { scoring: None | Some(Scoring::Model { .. } | Scoring::Values { .. }), .. } => None,
    }
}
