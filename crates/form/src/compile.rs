//! Compiles forms for a model's vocabulary. Equal forms are compiled once while one is in use or was lately. What a
//! form may take is bounded: by checks of its size, by a trial in a helper process ([`crate::trial`]), by llguidance's
//! limits of work, and by a deadline; a few threads at most compile at once, so that bad forms do not hold up others
//! for long.

use std::any::Any;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use llguidance::TokenParser;
use offshoot_core::bounded::{caught, is_unbounded};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;
use offshoot_text::Tokenizer;

use crate::endless::grammar_bytes;
use crate::grammar::check_size;
use crate::lanes::{Lane, Matcher};
use crate::spec::Form;
use crate::trial::{Refusal, Verdict, parser, try_form};
use crate::vocabulary::FormVocabulary;

/// Forms that a compiler compiles at once; others wait.
pub const FORMS_AT_ONCE: usize = 4;
/// How long a caller usually waits in all: for an equal form that another caller compiles, for a permit, for the trial,
/// and for the form itself, whose work is known to be little then, on a machine that may be busy.
pub const COMPILE_WAIT: Duration = Duration::from_secs(5);
/// How long a caller that has a permit waits for a form where there is no helper to try it.
const MOST_UNTRIED_WAIT: Duration = Duration::from_secs(1);
/// Stack of a thread that compiles; what is not touched takes no memory.
const STACK_BYTES: usize = 64 << 20;
/// Refused forms that are remembered, so that each is not tried again.
const MOST_REFUSED: usize = 64;
/// Bytes of recently used compiled forms, at most; beyond it those unused longest are dropped.
const MOST_RECENT_BYTES: usize = 64 << 20;

/// A form for a model's vocabulary. Immutable, and shared by all that sample under it.
pub struct CompiledForm {
    id: u64,
    key: FormKey,
    vocabulary: Arc<FormVocabulary>,
    tokenizer: Arc<Tokenizer>,
    /// At the form's beginning; never moved on.
    start: TokenParser,
    /// Bytes of its grammar and lexer, about.
    bytes: usize,
}

impl std::fmt::Debug for CompiledForm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompiledForm").field("id", &self.id).finish_non_exhaustive()
    }
}

impl CompiledForm {
    fn new(
        form: &Form,
        key: FormKey,
        vocabulary: Arc<FormVocabulary>,
        tokenizer: Arc<Tokenizer>,
    ) -> Result<CompiledForm, Refusal> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let start = parser(form, &vocabulary)?;
        let bytes = start.parser.lexer_stats().num_bytes + grammar_bytes(start.parser.grammar());
        Ok(CompiledForm { id: NEXT.fetch_add(1, Ordering::Relaxed), key, vocabulary, tokenizer, start, bytes })
    }

    /// What equal forms of one compiler have in common, and no others.
    pub fn key(&self) -> FormKey {
        self.key
    }

    /// A number that no other form of this process has.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn vocabulary(&self) -> &FormVocabulary {
        &self.vocabulary
    }

    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// A parser at the form's beginning, with a lexer of its own.
    pub(crate) fn fresh_parser(&self) -> TokenParser {
        self.start.deep_clone()
    }

    /// An error if the form allows no first token and no empty text.
    fn check_beginning(self) -> Result<CompiledForm, Refusal> {
        let mut matcher = Matcher::new(Lane::new(&self), Arc::default());
        let mask = matcher.compute(&[], &self.vocabulary).map_err(|fault| Refusal::of(&fault.to_string()))?;
        match mask.may_end || mask.words.iter().any(|&word| word != 0) {
            true => Ok(self),
            false => Err(Refusal::of("no text has it, or none of the model's tokens begins one")),
        }
    }
}

/// Compiles forms for one model. Shared by all replicas, and by all threads that accept requests.
pub struct FormCompiler {
    tokenizer: Arc<Tokenizer>,
    ends: Vec<TokenId>,
    vocab: usize,
    /// Made when the first form comes.
    vocabulary: OnceLock<Result<Arc<FormVocabulary>, Refusal>>,
    hashers: [RandomState; 2],
    outcomes: Arc<Outcomes>,
    permits: Arc<CompilePermits>,
}

/// What became of the forms that were compiled, shared with the threads that compile.
#[derive(Default)]
struct Outcomes {
    known: Mutex<Known>,
    /// Signalled when a form leaves `Known::pending`: it was compiled or refused.
    is_done: Condvar,
}

/// A form that is being compiled. Dropped, it is so no longer: equal ones may be compiled anew.
struct PendingForm {
    outcomes: Arc<Outcomes>,
    key: FormKey,
}

impl Outcomes {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingForm {
    /// Notes what became of the form, for all that wait for it or have an equal one later.
    fn end(self, outcome: &Result<Arc<CompiledForm>, Refusal>) {
        self.outcomes.known().insert(self.key, outcome);
    }
}

impl Drop for PendingForm {
    fn drop(&mut self) {
        self.outcomes.known().pending.remove(&self.key);
        self.outcomes.is_done.notify_all();
    }
}

/// Two hashes of a form's JSON, which stand for it as long as its compiler lives. (Schemas that differ in the order of
/// their fields are different forms, though their values are equal.)
pub type FormKey = [u64; 2];

/// The forms that were compiled or refused.
#[derive(Default)]
struct Known {
    forms: HashMap<FormKey, Weak<CompiledForm>>,
    /// The forms that are being compiled.
    pending: HashSet<FormKey>,
    /// The compiled forms that were used last, the latest last, with their bytes.
    recent: VecDeque<(Arc<CompiledForm>, usize)>,
    /// The forms that were refused last, and why.
    refused: VecDeque<(FormKey, Refusal)>,
}

impl Known {
    fn get(&mut self, key: &FormKey) -> Option<Result<Arc<CompiledForm>, Refusal>> {
        if let Some((_, refusal)) = self.refused.iter().find(|(refused, _)| refused == key) {
            return Some(Err(refusal.clone()));
        }
        let form = self.forms.get(key)?.upgrade()?;
        self.use_form(&form);
        Some(Ok(form))
    }

    fn insert(&mut self, key: FormKey, outcome: &Result<Arc<CompiledForm>, Refusal>) {
        match outcome {
            Ok(form) => {
                self.forms.retain(|_, form| form.strong_count() > 0);
                self.forms.insert(key, Arc::downgrade(form));
                self.use_form(form);
            }
            // Where there was no time for it, it may be compiled later.
            Err(refusal) if refusal.verdict == Verdict::Final => {
                self.refused.push_back((key, refusal.clone()));
                if self.refused.len() > MOST_REFUSED {
                    self.refused.pop_front();
                }
            }
            Err(_) => {}
        }
    }

    fn use_form(&mut self, form: &Arc<CompiledForm>) {
        self.recent.retain(|(other, _)| !Arc::ptr_eq(other, form));
        self.recent.push_back((form.clone(), form.bytes));
        let mut bytes: usize = self.recent.iter().map(|(_, bytes)| bytes).sum();
        while bytes > MOST_RECENT_BYTES && self.recent.len() > 1 {
            bytes -= self.recent.pop_front().map_or(0, |(_, bytes)| bytes);
        }
    }
}

impl FormCompiler {
    /// A compiler for a model of `vocab` tokens, of which `ends` end a text.
    pub fn new(tokenizer: Arc<Tokenizer>, ends: Vec<TokenId>, vocab: usize) -> FormCompiler {
        FormCompiler {
            tokenizer,
            ends,
            vocab,
            vocabulary: OnceLock::new(),
            hashers: Default::default(),
            outcomes: Arc::default(),
            permits: Arc::default(),
        }
    }

    /// The form for this model: the one that others use, if they use an equal one. Waits at most five seconds, where
    /// many are compiled at once. (The first call also makes the vocabulary.)
    ///
    /// # Errors
    ///
    /// It is not a valid form of its kind, no text has it, or it takes more than a second or 200 MiB. [`Error::Busy`]:
    /// too much else is being compiled.
    pub fn compile(&self, form: &Arc<Form>) -> Result<Arc<CompiledForm>> {
        self.compile_until(form, Instant::now() + COMPILE_WAIT)
    }

    /// As [`compile`](Self::compile), waiting until `deadline`. A form whose compiling has begun by then is compiled to
    /// its end, and known to whoever has an equal one later. Behind the deadline none begins.
    ///
    /// # Errors
    ///
    /// As of [`compile`](Self::compile).
    pub fn compile_until(&self, form: &Arc<Form>, call: impl Into<CompileCall>) -> Result<Arc<CompiledForm>> {
        let call = call.into();
        let deadline = call.deadline;
        let error = |refusal: Refusal| refusal.error(form);
        check_size(form).map_err(error)?;
        let key = self.key(form);
        {
            let mut known = self.outcomes.known();
            loop {
                if let Some(outcome) = known.get(&key) {
                    return outcome.map_err(error);
                }
                if known.pending.insert(key) {
                    break;
                }
                let waited = self.outcomes.is_done.wait_timeout(known, left_until(deadline));
                let (locked, waited) = waited.unwrap_or_else(PoisonError::into_inner);
                known = locked;
                if waited.timed_out() && known.pending.contains(&key) {
                    return Err(error(Refusal::later("an equal form is being compiled")));
                }
            }
        }
        let pending = PendingForm { outcomes: self.outcomes.clone(), key };
        let outcome = caught(|| self.compile_anew(form, pending, call));
        outcome.unwrap_or_else(|panic| Err(Refusal::of(&panic))).map_err(error)
    }

    /// What is known of a form without compiling it: it was compiled, or refused, and is not forgotten yet. Waits for
    /// nobody.
    ///
    /// # Errors
    ///
    /// As of [`compile`](Self::compile), but for [`Error::Busy`].
    pub fn known_form(&self, form: &Arc<Form>) -> Result<Option<Arc<CompiledForm>>> {
        let error = |refusal: Refusal| refusal.error(form);
        check_size(form).map_err(error)?;
        self.outcomes.known().get(&self.key(form)).transpose().map_err(error)
    }

    fn key(&self, form: &Form) -> FormKey {
        let text = serde_json::to_vec(form).expect("a form is JSON");
        self.hashers.each_ref().map(|hasher| hasher.hash_one(&text))
    }

    /// The model's tokens as grammars are matched with them; made by the first call.
    ///
    /// # Errors
    ///
    /// The tokenizer's tokens make no trie.
    pub fn vocabulary(&self) -> Result<Arc<FormVocabulary>> {
        self.made_vocabulary().map_err(|refusal| Error::value("the tokenizer", refusal.expected, refusal.found))
    }

    fn made_vocabulary(&self) -> Result<Arc<FormVocabulary>, Refusal> {
        let make = || FormVocabulary::new(&self.tokenizer, &self.ends, self.vocab).map(Arc::new);
        self.vocabulary.get_or_init(|| make().map_err(|error| Refusal::of(&error.to_string()))).clone()
    }

    fn compile_anew(
        &self,
        form: &Arc<Form>,
        pending: PendingForm,
        CompileCall { deadline, held }: CompileCall,
    ) -> Result<Arc<CompiledForm>, Refusal> {
        let vocabulary = self.made_vocabulary()?;
        if let Form::Choice(choices) = &**form
            && let Some(choice) = choices.iter().find(|choice| !vocabulary.spells(choice))
        {
            let refused = Err(Refusal::new("texts that the model's tokens spell", format!("{choice:?}")));
            pending.end(&refused);
            return refused;
        }
        if left_until(deadline).is_zero() {
            return Err(Refusal::later("its time is over"));
        }
        let permit = CompilePermit::take(&self.permits, deadline)?;
        let (most, verdict) = match is_unbounded() {
            false => (left_until(deadline), Verdict::Busy),
            true => (MOST_UNTRIED_WAIT.min(left_until(deadline)), Verdict::Slow),
        };
        let (sender, receiver) = mpsc::channel();
        let (form, tokenizer) = (form.clone(), self.tokenizer.clone());
        let work = move || {
            let key = pending.key;
            let compiled = caught(|| {
                try_form(&form, &vocabulary)?;
                CompiledForm::new(&form, key, vocabulary, tokenizer)?.check_beginning()
            });
            let outcome = compiled.unwrap_or_else(|panic| Err(Refusal::of(&panic))).map(Arc::new);
            pending.end(&outcome);
            // The receiver is gone if the form took too long; whoever has an equal one finds it.
            let _ = sender.send(outcome);
            drop((permit, held));
        };
        let thread = thread::Builder::new().name("form".to_string()).stack_size(STACK_BYTES).spawn(work);
        thread.map_err(|error| Refusal::later(format!("no thread starts for it: {error}")))?;
        receiver.recv_timeout(most).unwrap_or_else(|_| {
            let refusal = Refusal::too_much(format!("it takes more than {:.1} s", most.as_secs_f32()));
            Err(Refusal { verdict, ..refusal })
        })
    }
}

/// A call to compile a form: how long its caller waits, and what it holds until the form is compiled or refused, also
/// where the caller waits no more.
#[derive(Clone)]
pub struct CompileCall {
    pub deadline: Instant,
    /// As a permit in an order of the caller's own.
    pub held: Option<Arc<dyn Any + Send + Sync>>,
}

impl From<Instant> for CompileCall {
    fn from(deadline: Instant) -> CompileCall {
        CompileCall { deadline, held: None }
    }
}

/// The permits to compile, [`FORMS_AT_ONCE`] in all. One stays taken until its form is compiled or refused, even if the
/// caller has stopped waiting.
#[derive(Default)]
struct CompilePermits {
    taken: Mutex<usize>,
    is_free: Condvar,
}

/// A permit to compile a form, given back when it is dropped.
struct CompilePermit(Arc<CompilePermits>);

impl CompilePermit {
    fn take(permits: &Arc<CompilePermits>, deadline: Instant) -> Result<CompilePermit, Refusal> {
        let taken = permits.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = permits.is_free.wait_timeout_while(taken, left_until(deadline), |taken| *taken >= FORMS_AT_ONCE);
        let (mut taken, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return Err(Refusal::later(format!("{FORMS_AT_ONCE} other forms are being compiled")));
        }
        *taken += 1;
        Ok(CompilePermit(permits.clone()))
    }
}

impl Drop for CompilePermit {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.is_free.notify_one();
    }
}

fn left_until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Where others' forms take all permits, a form that is known is found at once, and another may be sent again.
    #[test]
    fn known_forms_wait_for_no_permit() {
        let folder = Path::new(offshoot_fixtures::REPOSITORY).join("tasks/models/demo");
        let tokenizer = Arc::new(Tokenizer::load(&folder).expect("the bundled model has a tokenizer"));
        let vocab = tokenizer.vocab_size();
        let compiler = FormCompiler::new(tokenizer, Vec::new(), vocab);
        let soon = || Instant::now() + Duration::from_millis(200);
        let known = Arc::new(Form::Regex("[ab]+".to_owned()));
        assert!(compiler.known_form(&known).expect("it is not refused").is_none());
        let compiled = compiler.compile(&known).expect("it compiles");
        assert!(compiled.bytes > 0);
        let bad = Arc::new(Form::Regex("(".to_owned()));
        assert!(compiler.compile(&bad).is_err());
        // The last one to compile gives its permit back in a moment.
        let permit = |_| CompilePermit::take(&compiler.permits, Instant::now() + COMPILE_WAIT).expect("it is free");
        let permits: Vec<CompilePermit> = (0..FORMS_AT_ONCE).map(permit).collect();
        let found = compiler.known_form(&Arc::new(Form::clone(&known))).expect("it is not refused");
        assert!(found.is_some_and(|found| Arc::ptr_eq(&found, &compiled)));
        assert!(matches!(compiler.known_form(&bad), Err(Error::Value { .. })));
        let other = Arc::new(Form::Regex("[cd]+".to_owned()));
        let busy = compiler.compile_until(&other, soon()).expect_err("there is no permit");
        assert!(matches!(busy, Error::Busy { .. }), "{busy}");
        drop(permits);
        // An equal form that another caller compiles is not waited for without end.
        compiler.outcomes.known().pending.insert(compiler.key(&other));
        let busy = compiler.compile_until(&other, soon()).expect_err("it is not compiled yet");
        assert!(matches!(busy, Error::Busy { .. }) && busy.to_string().contains("an equal form"), "{busy}");
        compiler.outcomes.known().pending.clear();
        assert!(compiler.compile(&other).is_ok());
    }

    /// A caller that does not wait gets no form; the next one finds it compiled, or compiles nothing anew.
    #[test]
    fn a_form_that_comes_too_late_is_kept_for_the_next_caller() {
        let folder = Path::new(offshoot_fixtures::REPOSITORY).join("tasks/models/demo");
        let tokenizer = Arc::new(Tokenizer::load(&folder).expect("the bundled model has a tokenizer"));
        let vocab = tokenizer.vocab_size();
        let compiler = FormCompiler::new(tokenizer, Vec::new(), vocab);
        compiler.vocabulary().expect("it has tokens");
        // Far more than a moment's work.
        let text = |number| serde_json::json!({"type": "string", "pattern": format!("^(f{number}|[a-z]{{2,40}})+$")});
        let texts: serde_json::Map<_, _> = (0..300).map(|number| (format!("f{number}"), text(number))).collect();
        let late = Arc::new(Form::Json(serde_json::json!({"type": "object", "properties": texts})));
        let over = compiler.compile_until(&late, Instant::now()).expect_err("no form begins behind its deadline");
        assert!(matches!(over, Error::Busy { .. }) && compiler.outcomes.known().pending.is_empty(), "{over}");
        let is_known = || compiler.known_form(&late).expect("it is not refused").is_some();
        let mut wait = Duration::from_millis(1);
        let held: Arc<dyn Any + Send + Sync> = Arc::new("a permit of the caller's");
        while compiler.outcomes.known().pending.is_empty() && !is_known() {
            let call = CompileCall { deadline: Instant::now() + wait, held: Some(held.clone()) };
            let _ = compiler.compile_until(&late, call);
            wait *= 2;
        }
        assert!(is_known() || Arc::strong_count(&held) > 1, "nothing is held while the form is being compiled");
        // Without another call to compile it.
        let patience = Instant::now() + Duration::from_secs(60);
        while !is_known() {
            assert!(Instant::now() < patience, "what the thread has compiled is lost");
            thread::sleep(Duration::from_millis(1));
        }
        while Arc::strong_count(&held) > 1 {
            assert!(Instant::now() < patience, "it is held though the form is compiled");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
