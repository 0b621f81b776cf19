//! The form of a request's answers: what reading the body finds of it, and what is made of that where forms are
//! compiled. Reading stays quick whatever the schemas are: those of tools are rewritten and tried, which may take long,
//! only once the request has its permit to be compiled. The grammars that come of them are remembered.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use super::form::{RequestedForm, parameters_field, refused};
use super::refusal::Refusal;
use super::request::ProtocolRequest;
use super::tools::in_grammar;
use offshoot_core::error::Error;
use offshoot_engine::EngineHandle;
use offshoot_form::{CompiledForm, Form, FormBegin, SampleForm};
use offshoot_text::Tokenizer;
use offshoot_text::tools::{CallDemand, CallReader, Tool};

/// Parts of a form that are compiled by themselves to find the one that is wrong.
const MOST_TRIED: usize = 16;
/// Grammars of calls that are remembered, and their bytes.
const MOST_GRAMMARS: usize = 64;
const MOST_GRAMMAR_BYTES: usize = 8 << 20;

/// The form of a request's answers.
#[derive(Clone, Debug)]
pub struct AnswerForm {
    begin: FormBegin,
    source: FormSource,
}

#[derive(Clone, Debug)]
enum FormSource {
    /// As a field of the request has it.
    Field { form: Arc<Form>, field: &'static str },
    /// Of answers that must call tools.
    Calls { calls: CallReader, demand: CallDemand },
    /// Of answers that either call tools or have a form of their own, as the model decides.
    Either { calls: CallReader, content: Arc<Form>, field: &'static str },
}

/// A form as samples have it, and compiled; `None` of an engine that has a script in place of a model. Who holds it has
/// each of its samples find the form compiled.
pub struct FoundForm {
    pub form: SampleForm,
    pub compiled: Option<Arc<CompiledForm>>,
}

/// The grammars of calls that were made last, the latest last.
#[derive(Default)]
pub struct CallGrammars {
    last: Mutex<VecDeque<(blake3::Hash, Arc<Form>)>>,
}

/// A form that another one is made of, and the field that has it.
struct FormPart {
    form: Arc<Form>,
    field: String,
}

impl AnswerForm {
    pub fn of_field(requested: RequestedForm, begin: FormBegin) -> AnswerForm {
        let RequestedForm { form, field } = requested;
        AnswerForm { begin, source: FormSource::Field { form: Arc::new(form), field } }
    }

    /// Of an answer that must call tools. In channels it is that of the whole answer.
    pub fn of_calls(calls: CallReader, demand: CallDemand, begin: FormBegin) -> AnswerForm {
        AnswerForm { begin: begin_of(&calls, begin), source: FormSource::Calls { calls, demand } }
    }

    /// Of an answer that either calls tools or has the form that is asked for, as the model decides. In channels it is
    /// that of the whole answer.
    ///
    /// # Errors
    ///
    /// The two do not go together.
    pub fn of_either(
        calls: Option<CallReader>,
        requested: RequestedForm,
        begin: FormBegin,
    ) -> Result<AnswerForm, Refusal> {
        let RequestedForm { form, field } = requested;
        let either = "the model calls a tool or answers in the form";
        let refused = |why: &str| {
            let place = format!("beside `tools`: {why}, where {either}; send `tool_choice`: \"none\" or \"required\"");
            Refusal::out_of_place(field, &place)
        };
        let Some(calls) = calls.filter(|calls| calls.syntax().has_marks()) else {
            return Err(refused("no mark tells this model's calls from its content"));
        };
        if matches!(form, Form::Regex(_) | Form::Lark(_)) {
            return Err(refused("patterns and grammars are not joined with calls"));
        }
        let begin = begin_of(&calls, begin);
        Ok(AnswerForm { begin, source: FormSource::Either { calls, content: Arc::new(form), field } })
    }

    /// Where in a sample it begins.
    pub fn begin(&self) -> &FormBegin {
        &self.begin
    }

    /// The same form, beginning there; one of a whole answer in channels begins with the answer in any case.
    pub fn set_begin(&mut self, begin: FormBegin) {
        self.begin = match &self.source {
            FormSource::Field { .. } => begin,
            FormSource::Calls { calls, .. } | FormSource::Either { calls, .. } => begin_of(calls, begin),
        };
    }

    /// The field that asks for it.
    pub fn field(&self) -> &'static str {
        match &self.source {
            FormSource::Field { field, .. } | FormSource::Either { field, .. } => field,
            FormSource::Calls { .. } => "tool_choice",
        }
    }

    /// The form as samples have it. Where calls are in it, their grammar is the one that `grammars` remember, or it is
    /// made, which may take seconds.
    ///
    /// # Errors
    ///
    /// A schema of a tool, or of the content, cannot stand in a grammar.
    pub fn sample_form(&self, tokenizer: &Tokenizer, grammars: &CallGrammars) -> Result<SampleForm, Refusal> {
        if let Some(form) = self.known_sample_form(grammars) {
            return Ok(form);
        }
        let form = Arc::new(Form::Lark(self.call_grammar(tokenizer)?));
        grammars.insert(self.key(), form.clone());
        Ok(self.sample(form))
    }

    /// The same, if no grammar is to be made for it.
    fn known_sample_form(&self, grammars: &CallGrammars) -> Option<SampleForm> {
        let form = match &self.source {
            FormSource::Field { form, .. } => form.clone(),
            FormSource::Calls { .. } | FormSource::Either { .. } => grammars.get(&self.key())?,
        };
        Some(self.sample(form))
    }

    fn sample(&self, form: Arc<Form>) -> SampleForm {
        SampleForm { form, begin: self.begin.clone(), ends_with_extend: true }
    }

    fn follows_reasoning(&self) -> bool {
        self.begin != FormBegin::AtOnce
    }

    /// The grammar of the calls, and of the content beside them.
    fn call_grammar(&self, tokenizer: &Tokenizer) -> Result<String, Refusal> {
        let follows_reasoning = self.follows_reasoning();
        match &self.source {
            FormSource::Field { .. } => unreachable!("a field's form needs no grammar of calls"),
            FormSource::Calls { calls, demand } => {
                let tools = in_grammar(calls, demand)?;
                Ok(calls.syntax().grammar(&tools, demand, tokenizer, follows_reasoning))
            }
            FormSource::Either { calls, content, field } => {
                let content = content.in_rule().map_err(|error| refused(field, &error))?;
                let content = content.expect("neither a pattern nor a grammar is joined with calls");
                let demand = if calls.is_single() { CallDemand::One } else { CallDemand::Some };
                let tools = in_grammar(calls, &demand)?;
                Ok(calls.syntax().grammar_beside(&tools, &demand, tokenizer, follows_reasoning, &content))
            }
        }
    }

    /// What stands for all that the grammar depends on.
    fn key(&self) -> blake3::Hash {
        let (calls, demand, content) = match &self.source {
            FormSource::Field { form, .. } => return hash(&json!(form)),
            FormSource::Calls { calls, demand } => (calls, Some(demand), None),
            FormSource::Either { calls, content, .. } => (calls, None, Some(content)),
        };
        let tools = calls.tools().tools.iter().map(|tool| json!([tool.name, tool.parameters]));
        hash(&json!([
            calls.syntax().name(),
            calls.is_single(),
            tools.collect::<Vec<_>>(),
            format!("{demand:?}"),
            content,
            self.follows_reasoning(),
        ]))
    }

    /// Compiles it, which may take seconds.
    fn compile(
        &self,
        engine: &EngineHandle,
        tokenizer: &Tokenizer,
        grammars: &CallGrammars,
    ) -> Result<FoundForm, Refusal> {
        let form = self.sample_form(tokenizer, grammars)?;
        let compiled = engine.compile_form(&form.form).map_err(|error| {
            // What is wrong with the whole is most often wrong with one of its parts.
            let wrong = self.parts().into_iter().take(MOST_TRIED).find_map(|part| {
                let error = engine.compile_form(&part.form).err()?;
                Some(part.refusal(&error))
            });
            wrong.filter(|_| matches!(error, Error::Value { .. })).unwrap_or_else(|| refused(self.field(), &error))
        })?;
        Ok(FoundForm { form, compiled })
    }

    /// The parts that it is made of, for the messages of errors.
    fn parts(&self) -> Vec<FormPart> {
        let (calls, demand, content) = match &self.source {
            FormSource::Field { .. } => return Vec::new(),
            FormSource::Calls { calls, demand } => (calls, demand, None),
            FormSource::Either { calls, content, field } => (calls, &CallDemand::Some, Some((content, field))),
        };
        let content = content.map(|(form, field)| FormPart { form: form.clone(), field: (*field).to_owned() });
        let tools = calls.tools().tools.iter().enumerate().filter(|(_, tool)| is_demanded(tool, demand));
        let schema = |(index, tool): (usize, &Tool)| {
            let schema = tool.parameters.clone()?;
            Some(FormPart { form: Arc::new(Form::Json(schema)), field: parameters_field(index) })
        };
        content.into_iter().chain(tools.filter_map(schema)).collect()
    }

    /// The fields of its parts, in the order in which they are looked at for errors.
    #[cfg(test)]
    pub(super) fn part_fields(&self) -> Vec<String> {
        self.parts().into_iter().map(|part| part.field).collect()
    }
}

/// Where a form with calls begins.
fn begin_of(calls: &CallReader, begin: FormBegin) -> FormBegin {
    if calls.syntax().is_in_channels() { FormBegin::AtOnce } else { begin }
}

/// Whether a text of this demand may call the tool.
pub fn is_demanded(tool: &Tool, demand: &CallDemand) -> bool {
    !matches!(demand, CallDemand::Named(name) if *name != tool.name)
}

fn hash(value: &Value) -> blake3::Hash {
    blake3::hash(value.to_string().as_bytes())
}

impl FormPart {
    /// The refusal of a request whose form has this part, which is not one.
    fn refusal(&self, error: &Error) -> Refusal {
        let refusal = refused(&self.field, error);
        if self.field.starts_with("tools[") { refusal.about("tools") } else { refusal }
    }
}

impl CallGrammars {
    fn get(&self, key: &blake3::Hash) -> Option<Arc<Form>> {
        let mut last = self.lock();
        let at = last.iter().position(|(known, _)| known == key)?;
        let known = last.remove(at)?;
        let form = known.1.clone();
        last.push_back(known);
        Some(form)
    }

    fn insert(&self, key: blake3::Hash, form: Arc<Form>) {
        let bytes = |form: &Form| if let Form::Lark(text) = form { text.len() } else { 0 };
        let mut last = self.lock();
        last.push_back((key, form));
        let mut all: usize = last.iter().map(|(_, form)| bytes(form)).sum();
        while last.len() > MOST_GRAMMARS || all > MOST_GRAMMAR_BYTES {
            let Some((_, oldest)) = last.pop_front() else { break };
            all -= bytes(&oldest);
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(blake3::Hash, Arc<Form>)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProtocolRequest {
    /// The request with its form, compiled, if it has one; this may take seconds.
    ///
    /// # Errors
    ///
    /// The form can't be compiled: the refusal names the field that asks for it.
    pub fn compile_form(
        &mut self,
        engine: &EngineHandle,
        tokenizer: &Tokenizer,
        grammars: &CallGrammars,
    ) -> Result<Option<Arc<CompiledForm>>, Refusal> {
        let Some(form) = &self.form else { return Ok(None) };
        let FoundForm { form, compiled } = form.compile(engine, tokenizer, grammars)?;
        self.params.form = Some(form);
        Ok(compiled)
    }

    /// The request with its form, if the engine has compiled an equal one already. Waits for nobody.
    ///
    /// # Errors
    ///
    /// The form was refused, and would be again.
    pub fn find_form(
        &mut self,
        engine: &EngineHandle,
        grammars: &CallGrammars,
    ) -> Result<Option<Arc<CompiledForm>>, Refusal> {
        let Some(form) = &self.form else { return Ok(None) };
        let Some(known) = form.known_sample_form(grammars) else { return Ok(None) };
        let compiled = engine.known_form(&known.form).map_err(|error| refused(form.field(), &error))?;
        if compiled.is_some() {
            self.params.form = Some(known);
        }
        Ok(compiled)
    }
}
