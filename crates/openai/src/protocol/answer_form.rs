//! The form of a request's answers: what reading the body finds of it, and what is made of that where forms are
//! compiled. Reading stays quick whatever the schemas are: those of tools are rewritten and tried, which may take long,
//! only once the request has its permit to be compiled. The grammars that come of them are remembered.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};

use super::form::{RequestedForm, parameters_field, refused};
use super::refusal::Refusal;
use super::request::ProtocolRequest;
use super::tools::{in_grammar, unwritable};
use offshoot_core::error::Error;
use offshoot_engine::EngineHandle;
use offshoot_form::{COMPILE_WAIT, CompileCall, CompiledForm, Form, FormBegin, SampleForm};
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
    /// Of answers that call tools.
    Calls(CallsForm),
}

#[derive(Clone, Debug)]
struct CallsForm {
    calls: CallReader,
    demand: CallDemand,
    /// What an answer may have instead of calls, as the model decides, and the field that has it; `None`: it must call.
    content: Option<(Arc<Form>, &'static str)>,
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
        CallsForm { calls, demand, content: None }.beginning(begin)
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
        let demand = if calls.is_single() { CallDemand::One } else { CallDemand::Some };
        Ok(CallsForm { calls, demand, content: Some((Arc::new(form), field)) }.beginning(begin))
    }

    /// Where in a sample it begins.
    pub fn begin(&self) -> &FormBegin {
        &self.begin
    }

    /// The same form, beginning there; one of a whole answer in channels begins with the answer in any case.
    pub fn set_begin(&mut self, begin: FormBegin) {
        self.begin = match &self.source {
            FormSource::Field { .. } => begin,
            FormSource::Calls(form) => form.begin(begin),
        };
    }

    /// The field that asks for it.
    pub fn field(&self) -> &'static str {
        match &self.source {
            FormSource::Field { field, .. } => field,
            FormSource::Calls(form) => form.content.as_ref().map_or("tool_choice", |(_, field)| field),
        }
    }

    /// The form as samples have it. Where calls are in it, their grammar is the one that `grammars` remember, or it is
    /// made, which may take seconds.
    ///
    /// # Errors
    ///
    /// A schema of a tool, or of the content, cannot stand in a grammar, or there is no time for it until `deadline`.
    pub fn sample_form(
        &self,
        tokenizer: &Tokenizer,
        grammars: &CallGrammars,
        deadline: Instant,
    ) -> Result<SampleForm, Refusal> {
        let form = match &self.source {
            FormSource::Field { form, .. } => form.clone(),
            FormSource::Calls(calls) => {
                let key = calls.key(self.follows_reasoning());
                match grammars.get(&key) {
                    Some(form) => form,
                    None => {
                        let grammar = calls.grammar(tokenizer, self.follows_reasoning(), deadline)?;
                        grammars.insert(key, Arc::new(Form::Lark(grammar)))
                    }
                }
            }
        };
        Ok(self.sample(form))
    }

    /// The same, if no grammar is to be made for it.
    fn known_sample_form(&self, grammars: &CallGrammars) -> Option<SampleForm> {
        let form = match &self.source {
            FormSource::Field { form, .. } => form.clone(),
            FormSource::Calls(calls) => grammars.get(&calls.key(self.follows_reasoning()))?,
        };
        Some(self.sample(form))
    }

    fn sample(&self, form: Arc<Form>) -> SampleForm {
        SampleForm { form, begin: self.begin.clone(), ends_with_extend: true }
    }

    fn follows_reasoning(&self) -> bool {
        self.begin != FormBegin::AtOnce
    }

    /// Compiles it, which may take until the call's deadline.
    fn compile(
        &self,
        engine: &EngineHandle,
        tokenizer: &Tokenizer,
        grammars: &CallGrammars,
        call: CompileCall,
    ) -> Result<FoundForm, Refusal> {
        let form = self.sample_form(tokenizer, grammars, call.deadline)?;
        let compile = |form: &Arc<Form>| engine.compile_form_until(form, call.clone());
        let compiled = compile(&form.form).map_err(|error| self.refusal(&error, |part| compile(part).map(drop)))?;
        Ok(FoundForm { form, compiled })
    }

    /// It as the engine has compiled it, if it has; waits for nobody. `None` also where it was refused, but which of
    /// its parts is wrong is not known any more.
    fn find(&self, engine: &EngineHandle, grammars: &CallGrammars) -> Result<Option<FoundForm>, Refusal> {
        let Some(form) = self.known_sample_form(grammars) else { return Ok(None) };
        let error = match engine.known_form(&form.form) {
            Ok(compiled) => return Ok(compiled.map(|compiled| FoundForm { form, compiled: Some(compiled) })),
            Err(error) => error,
        };
        let mut are_known = true;
        let refusal = self.refusal(&error, |part| {
            are_known &= engine.known_form(part)?.is_some();
            Ok(())
        });
        if are_known { Err(refusal) } else { Ok(None) }
    }

    /// The refusal of a request whose form is refused with this error. What is wrong with the whole is most often wrong
    /// with one of its parts: the first one of which `compile` says so for good is named.
    pub(super) fn refusal(&self, error: &Error, mut compile: impl FnMut(&Arc<Form>) -> Result<(), Error>) -> Refusal {
        let is_final = |error: &Error| matches!(error, Error::Value { .. });
        let parts = if is_final(error) { self.parts() } else { Vec::new() };
        let wrong = parts.into_iter().take(MOST_TRIED).find_map(|part| {
            let error = compile(&part.form).err().filter(is_final)?;
            Some(part.refusal(&error))
        });
        wrong.unwrap_or_else(|| refused(self.field(), error))
    }

    /// The parts that it is made of, for the messages of errors.
    fn parts(&self) -> Vec<FormPart> {
        match &self.source {
            FormSource::Field { .. } => Vec::new(),
            FormSource::Calls(form) => form.parts(),
        }
    }

    /// The fields of its parts, in the order in which they are looked at for errors.
    #[cfg(test)]
    pub(super) fn part_fields(&self) -> Vec<String> {
        self.parts().into_iter().map(|part| part.field).collect()
    }
}

impl CallsForm {
    fn beginning(self, begin: FormBegin) -> AnswerForm {
        AnswerForm { begin: self.begin(begin), source: FormSource::Calls(self) }
    }

    /// Where it begins in an answer whose content begins there. In channels it is the form of the whole answer.
    fn begin(&self, begin: FormBegin) -> FormBegin {
        if self.calls.syntax().is_in_channels() { FormBegin::AtOnce } else { begin }
    }

    /// The grammar of the calls, and of the content beside them; this may take seconds.
    fn grammar(&self, tokenizer: &Tokenizer, follows_reasoning: bool, deadline: Instant) -> Result<String, Refusal> {
        let CallsForm { calls, demand, content } = self;
        let content = content.as_ref().map(|(form, field)| {
            let rule = form.in_rule().map_err(|error| refused(field, &error))?;
            Ok(rule.expect("neither a pattern nor a grammar is joined with calls"))
        });
        let (content, tools) = (content.transpose()?, in_grammar(calls, demand, deadline)?);
        let syntax = calls.syntax();
        let grammar = match content {
            None => syntax.grammar(&tools, demand, tokenizer, follows_reasoning),
            Some(content) => syntax.grammar_beside(&tools, demand, tokenizer, follows_reasoning, &content),
        };
        grammar.map_err(|tool| unwritable(calls, &tool))
    }

    /// What stands for all that the grammar depends on.
    fn key(&self, follows_reasoning: bool) -> blake3::Hash {
        let CallsForm { calls, demand, content } = self;
        let tools = calls.tools().tools.iter().map(|tool| json!([tool.name, tool.parameters]));
        let tools: Vec<Value> = tools.collect();
        let content = content.as_ref().map(|(form, _)| form);
        let all = json!([calls.syntax().name(), tools, format!("{demand:?}"), content, follows_reasoning]);
        blake3::hash(all.to_string().as_bytes())
    }

    fn parts(&self) -> Vec<FormPart> {
        let content =
            self.content.iter().map(|(form, field)| FormPart { form: form.clone(), field: (*field).to_owned() });
        let schema = |(index, tool): (usize, &Tool)| {
            let schema = tool.parameters.clone().filter(|_| is_demanded(tool, &self.demand))?;
            Some(FormPart { form: Arc::new(Form::Json(schema)), field: parameters_field(index) })
        };
        content.chain(self.calls.tools().tools.iter().enumerate().filter_map(schema)).collect()
    }
}

/// Whether a text of this demand may call the tool.
pub fn is_demanded(tool: &Tool, demand: &CallDemand) -> bool {
    !matches!(demand, CallDemand::Named(name) if *name != tool.name)
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

    fn insert(&self, key: blake3::Hash, form: Arc<Form>) -> Arc<Form> {
        let bytes = |form: &Form| if let Form::Lark(text) = form { text.len() } else { 0 };
        let mut last = self.lock();
        last.push_back((key, form.clone()));
        let mut all: usize = last.iter().map(|(_, form)| bytes(form)).sum();
        while last.len() > MOST_GRAMMARS || all > MOST_GRAMMAR_BYTES {
            let Some((_, oldest)) = last.pop_front() else { break };
            all -= bytes(&oldest);
        }
        form
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(blake3::Hash, Arc<Form>)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProtocolRequest {
    /// The request with its form, compiled, if it has one; this may take [`COMPILE_WAIT`], for all that the form needs.
    /// What is `held` stays so until all that was begun for it is compiled, also behind that time.
    ///
    /// # Errors
    ///
    /// The form can't be compiled: the refusal names the field that asks for it.
    pub fn compile_form(
        &mut self,
        engine: &EngineHandle,
        tokenizer: &Tokenizer,
        grammars: &CallGrammars,
        held: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Option<Arc<CompiledForm>>, Refusal> {
        let Some(form) = &self.form else { return Ok(None) };
        let FoundForm { form, compiled } =
            form.compile(engine, tokenizer, grammars, CompileCall { deadline: Instant::now() + COMPILE_WAIT, held })?;
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
        let Some(FoundForm { form, compiled }) = form.find(engine, grammars)? else { return Ok(None) };
        self.params.form = Some(form);
        Ok(compiled)
    }
}
