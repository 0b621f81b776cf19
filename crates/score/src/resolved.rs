//! A form with a tokenizer and what is known of the head: it turns a question and an answer into tokens, and values
//! into scores. What a form needs and the tokenizer or the head lacks is an error when it is made, before anything is
//! scored.

use std::sync::Arc;
use std::time::SystemTime;

use crate::aggregate::Aggregate;
use crate::form::{ChatRead, FormText, PlainRead, ScoreForm, StepParts, StepTags};
use crate::frame::{ChatFrame, Frame};
use crate::marked::{MARK, MarkedTokens, encode, hidden, marked_end};
use crate::output::{HeadFacts, ValueReading};
use crate::parts::{Part, parts};
use crate::rendered::{ReadPlace, Rendered, StepScore, StepScores};
use crate::scale::Scale;
use crate::step_end::StepEnd;
use crate::words::{check_special, field, one_token};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;
use offshoot_text::{AddSpecial, HiddenEncoding, Message, Speaker, Tokenizer};

/// A form that is known to fit its tokenizer and its head.
pub struct ResolvedForm {
    tokenizer: Arc<Tokenizer>,
    layout: Layout,
    values: ValueReading,
    aggregate: Aggregate,
}

/// An answer in a scorer's form, and what an answer that goes on from it needs to be written with little work.
pub(crate) struct WrittenAnswer {
    /// The tokens.
    pub rendered: Rendered,
    /// The text with question and answer; of a form whose parts are encoded alone, the text before them.
    whole: HiddenEncoding,
    /// Parts that are encoded alone.
    parts: Vec<WrittenPart>,
}

/// A part that is encoded alone.
#[derive(Clone)]
struct WrittenPart {
    text: Arc<str>,
    /// Its tokens, and those of its end.
    tokens: Arc<[TokenId]>,
}

/// An answer that every form can have.
const SOME_ANSWER: &str = "It is 2.";

/// Where values are read.
enum Layout {
    /// At the last token that is not `padding`.
    End { frame: Frame, generation_prompt: bool, append: Option<String>, padding: Option<TokenId> },
    /// At `token`, the tag's, behind each step.
    Tags { frame: Frame, tags: StepTags, token: TokenId },
    /// Before each reply.
    Turns { chat: ChatFrame, reply: String, separator: String },
    /// At the last token of `end` behind each part.
    Parts { frame: Frame, separator: String, keeps_empty: bool, end: PartEnd },
}

/// What stands behind each part of an answer, encoded alone.
struct PartEnd {
    text: String,
    /// At least one.
    tokens: Vec<TokenId>,
}

impl ResolvedForm {
    /// Checks a form against the tokenizer and the head, and renders a short question and answer by it. `now`: the time
    /// that chat templates see.
    ///
    /// # Errors
    ///
    /// A tag or a word is not one token, nor is what looks like a special token; there is no chat template, or it loses
    /// steps; the head has no such column; a text lacks the place of question or answer; the form multiplies logits.
    pub fn new(form: &ScoreForm, tokenizer: Arc<Tokenizer>, head: &HeadFacts, now: SystemTime) -> Result<ResolvedForm> {
        let words = form.words(&tokenizer)?.map(|words| words.len());
        let values = ValueReading::new(&form.output, words, head)?;
        if !form.aggregate.fits(values.scale()) {
            let expected = "`last`, `min` or `mean`, as scores that are no probabilities have no product; or an \
                            `activation`";
            return Err(Error::value(field("aggregate"), expected, "`product`"));
        }
        let padding = head.padding.filter(|_| !form.reads_words());
        let layout = Layout::new(form, &tokenizer, padding, now)?;
        let resolved = ResolvedForm { tokenizer, layout, values, aggregate: form.aggregate };
        resolved.render(&[Message::user("What is 1 + 1?")], &["1 + 1 = 2.\n\n", SOME_ANSWER])?;
        Ok(resolved)
    }

    /// How many values the head gives at a token.
    pub fn width(&self) -> usize {
        self.values.width()
    }

    /// What the scores are.
    pub fn scale(&self) -> Scale {
        self.values.scale()
    }

    /// How the scores of an answer's steps become the answer's.
    pub fn aggregate(&self) -> Aggregate {
        self.aggregate
    }

    /// Whether it has a value for each step of an answer, and not one for all of it.
    pub fn values_steps(&self) -> bool {
        !matches!(self.layout, Layout::End { .. })
    }

    /// What stands behind each step where values are read; `None`: the form reads a whole text, or before what stands
    /// behind a step.
    pub fn step_end(&self) -> Option<StepEnd> {
        match &self.layout {
            Layout::Tags { token, .. } => Some(StepEnd::Token(*token)),
            Layout::Parts { end, keeps_empty, .. } => Some(match &*end.tokens {
                [token] if self.tokenizer.is_special(*token) => StepEnd::Token(*token),
                _ => StepEnd::Text { text: end.text.clone(), keeps_empty: *keeps_empty },
            }),
            Layout::End { .. } | Layout::Turns { .. } => None,
        }
    }

    /// Of values that are logits of words, how many are those of good ones: these come first.
    pub fn good_words(&self) -> Option<usize> {
        self.values.good_words()
    }

    /// The tokenizer of its texts.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The tokens of a question and an answer, and where values are read. `steps`: the whole answer, cut where a search
    /// has cut it; the form cuts these further at its separator. One step is right for an answer that nothing has cut.
    ///
    /// # Errors
    ///
    /// The form has values for steps, and none has text; the chat template loses steps; a tag is not the same token
    /// behind some step; a text has characters that mark places here.
    pub fn render<S: AsRef<str>>(&self, question: &[Message], steps: &[S]) -> Result<Rendered> {
        self.write(question, steps, None).map(|written| written.rendered)
    }

    /// As [`render`](Self::render), and what an answer that goes on from this one needs to be written with little work.
    /// `before`: that of an answer to the same question. The tokens are the same with it and without.
    ///
    /// # Errors
    ///
    /// Those of [`render`](Self::render).
    pub(crate) fn write<S: AsRef<str>>(
        &self,
        question: &[Message],
        steps: &[S],
        before: Option<&WrittenAnswer>,
    ) -> Result<WrittenAnswer> {
        let whole = before.map(|before| &before.whole);
        let (rendered, whole, parts) = match &self.layout {
            Layout::End { frame, generation_prompt, append, padding } => {
                let answer: String = steps.iter().map(AsRef::as_ref).collect();
                let answer = marked_end(&hidden(&self.tokenizer, &answer, Speaker::Assistant)?);
                let mut text = frame.around(&self.tokenizer, question, &answer, *generation_prompt)?;
                if let Some(append) = append.as_ref().filter(|append| !text.ends_with(append.as_str())) {
                    text.push_str(append);
                }
                let marks = usize::from(answer.contains(MARK));
                let (marked, whole) = self.encode(&text, frame.special(), marks, whole)?;
                (read_at_end(marked, *padding, steps.len())?, whole, Vec::new())
            }
            Layout::Tags { frame, tags, token } => {
                let cut = some_parts(parts(steps, &tags.separator, false))?;
                let answer = self.tagged(&cut, tags)?;
                let text = frame.around(&self.tokenizer, question, &answer, false)?;
                let (marked, whole) = self.encode(&text, frame.special(), cut.len(), whole)?;
                (self.read_at_tags(marked, &cut, tags, *token)?, whole, Vec::new())
            }
            Layout::Turns { chat, reply, separator } => {
                let cut = some_parts(parts(steps, separator, false))?;
                let turns = self.turns(chat, question, &cut, reply)?;
                let text = chat.text(&self.tokenizer, &turns, false)?;
                let (marked, whole) = self.encode(&text, AddSpecial::No, 2 * cut.len(), whole)?;
                (self.read_before_replies(marked, &cut, reply)?, whole, Vec::new())
            }
            Layout::Parts { frame, separator, keeps_empty, end } => {
                let cut = some_parts(parts(steps, separator, *keeps_empty))?;
                let text = frame.before(&self.tokenizer, question)?;
                let (marked, whole) = self.encode(&text, frame.special(), 0, whole)?;
                let parts = self.parts(&cut, &end.tokens, before)?;
                let mut tokens = marked.tokens;
                let mut reads = Vec::with_capacity(parts.len());
                for (part, written) in cut.iter().zip(&parts) {
                    tokens.extend(&*written.tokens);
                    reads.push(ReadPlace { at: tokens.len() - 1, step: part.step });
                }
                (Rendered { trunk: tokens.len(), tokens, reads }, whole, parts)
            }
        };
        Ok(WrittenAnswer { rendered, whole, parts })
    }

    /// Some answer to a question, as those to come are written.
    ///
    /// # Errors
    ///
    /// Those of [`render`](Self::render) that the question is to blame for.
    pub(crate) fn begin(&self, question: &[Message]) -> Result<WrittenAnswer> {
        self.write(question, &[SOME_ANSWER], None)
    }

    /// The scores of a rendered answer. `values`: for each place at which values are read, what the head gives there.
    ///
    /// # Errors
    ///
    /// A value is no finite number.
    pub fn scores<V: AsRef<[f32]>>(&self, rendered: &Rendered, values: &[V]) -> Result<StepScores> {
        if values.len() != rendered.reads.len() {
            let why = format!("values of {} tokens for {} places", values.len(), rendered.reads.len());
            return Err(Error::Internal(why));
        }
        let score = |(place, values): (&ReadPlace, &V)| {
            Ok(StepScore { step: place.step, score: self.values.score(values.as_ref())? })
        };
        Ok(StepScores { scores: rendered.reads.iter().zip(values).map(score).collect::<Result<_>>()? })
    }

    /// The parts of an answer, each encoded alone, and with the tokens `end` behind it.
    fn parts(&self, cut: &[Part<'_>], end: &[TokenId], before: Option<&WrittenAnswer>) -> Result<Vec<WrittenPart>> {
        let written = |(ix, part): (usize, &Part<'_>)| {
            let known = before.and_then(|before| before.parts.get(ix)).filter(|known| &*known.text == part.text);
            if let Some(known) = known {
                return Ok(known.clone());
            }
            let text = hidden(&self.tokenizer, part.text, Speaker::Assistant)?;
            let mut tokens = self.tokenizer.encode_hidden(&text, AddSpecial::No)?;
            tokens.extend(end);
            Ok(WrittenPart { text: part.text.into(), tokens: tokens.into() })
        };
        cut.iter().enumerate().map(written).collect()
    }

    /// The tokens of a rendered text that must have `marks` marks.
    fn encode(
        &self,
        text: &str,
        special: AddSpecial,
        marks: usize,
        before: Option<&HiddenEncoding>,
    ) -> Result<(MarkedTokens, HiddenEncoding)> {
        let (marked, encoding) = encode(&self.tokenizer, text, special, before)?;
        if marked.marks.len() != marks {
            let what = format!(
                "the chat template leaves out or repeats what the scorer reads: of {marks} places in the answer it \
                 writes {}",
                marked.marks.len()
            );
            return Err(Error::format(self.tokenizer.folder(), what));
        }
        Ok((marked, encoding))
    }

    /// An answer with a tag and a mark behind each part.
    fn tagged(&self, cut: &[Part<'_>], tags: &StepTags) -> Result<String> {
        let mut answer = String::new();
        for (ix, part) in cut.iter().enumerate() {
            if ix > 0 {
                answer.push_str(&tags.between);
            }
            let text = if tags.trims_end { part.text.trim_end() } else { part.text };
            answer.push_str(&hidden(&self.tokenizer, text, Speaker::Assistant)?);
            answer.push_str(&tags.tag);
            answer.push(MARK);
        }
        Ok(answer)
    }

    fn read_at_tags(
        &self,
        marked: MarkedTokens,
        cut: &[Part<'_>],
        tags: &StepTags,
        token: TokenId,
    ) -> Result<Rendered> {
        let MarkedTokens { mut tokens, marks } = marked;
        let mut reads = Vec::with_capacity(cut.len());
        for (part, mark) in cut.iter().zip(&marks) {
            let at = mark.checked_sub(1).filter(|&at| tokens[at] == token).ok_or_else(|| {
                let expected = format!("its tag `{}` as token {token} behind it", tags.tag);
                let before = mark.checked_sub(1).map(|at| tokens[at]);
                let found = before.map_or_else(|| "nothing".to_owned(), |token| self.shown(token));
                Error::value(format!("step {} of an answer to score", part.step + 1), expected, found)
            })?;
            reads.push(ReadPlace { at, step: part.step });
        }
        tokens.truncate(marks.last().copied().unwrap_or_default());
        Ok(Rendered { trunk: tokens.len(), tokens, reads })
    }

    /// A conversation with a turn for each part, and the reply to each between two marks.
    fn turns(&self, chat: &ChatFrame, question: &[Message], cut: &[Part<'_>], reply: &str) -> Result<Vec<Message>> {
        let mut turns = chat.turns(&self.tokenizer, question)?;
        for (ix, part) in cut.iter().enumerate() {
            let text = hidden(&self.tokenizer, part.text, Speaker::Assistant)?;
            match ix {
                0 => {
                    let asked = turns.last_mut().filter(|turn| turn.role() == Some("user"));
                    if !asked.is_some_and(|turn| turn.append(&format!(" {text}"))) {
                        let expected =
                            "a conversation that ends with a user's text, behind which the first step stands";
                        return Err(Error::value("question to score answers to", expected, "another end"));
                    }
                }
                _ => turns.push(Message::user(text)),
            }
            turns.push(Message::assistant(format!("{MARK}{reply}{MARK}")));
        }
        Ok(turns)
    }

    fn read_before_replies(&self, marked: MarkedTokens, cut: &[Part<'_>], reply: &str) -> Result<Rendered> {
        let MarkedTokens { mut tokens, marks } = marked;
        let mut reads = Vec::with_capacity(cut.len());
        for (part, around) in cut.iter().zip(marks.chunks_exact(2)) {
            let said = tokens.get(around[0]..around[1]).unwrap_or_default();
            let is_reply = matches!(said, [token] if self.text_of(*token).trim() == reply.trim());
            let Some(at) = around[0].checked_sub(1).filter(|_| is_reply) else {
                let found: Vec<String> = said.iter().map(|token| self.shown(*token)).collect();
                let expected = format!("the reply `{reply}` as one token behind the start of the assistant's turn");
                let what = format!("step {} of an answer to score", part.step + 1);
                return Err(Error::value(what, expected, format!("[{}]", found.join(", "))));
            };
            reads.push(ReadPlace { at, step: part.step });
        }
        tokens.truncate(reads.last().map_or(0, |place| place.at + 1));
        Ok(Rendered { trunk: tokens.len(), tokens, reads })
    }

    fn text_of(&self, token: TokenId) -> String {
        String::from_utf8_lossy(self.tokenizer.token_bytes(token)).into_owned()
    }

    fn shown(&self, token: TokenId) -> String {
        format!("token {token} `{}`", self.text_of(token).escape_debug())
    }
}

impl Layout {
    fn new(form: &ScoreForm, tokenizer: &Tokenizer, padding: Option<TokenId>, now: SystemTime) -> Result<Layout> {
        let token = |tags: &StepTags| {
            check_special(tokenizer, "between", &tags.between)?;
            one_token(tokenizer, "tag", &tags.tag)
        };
        let parts_in = |frame: Frame, parts: &StepParts| -> Result<Layout> {
            let (name, end) = match &parts.end {
                Some(end) => ("end", end),
                None => ("separator", &parts.separator),
            };
            check_special(tokenizer, name, end)?;
            let tokens = tokenizer.encode(end, AddSpecial::No)?;
            if tokens.is_empty() {
                return Err(Error::value(field("end"), "a text behind each part, where values are read", "none"));
            }
            let (separator, keeps_empty) = (parts.separator.clone(), parts.keeps_empty);
            let end = PartEnd { text: end.clone(), tokens };
            Ok(Layout::Parts { frame, separator, keeps_empty, end })
        };
        let chat = match &form.text {
            FormText::Plain(plain) => {
                check_special(tokenizer, "text", &plain.text)?;
                return match &plain.read {
                    PlainRead::End {} => {
                        let frame = Frame::plain(plain, false)?;
                        Ok(Layout::End { frame, generation_prompt: false, append: None, padding })
                    }
                    PlainRead::Tags(tags) => {
                        Ok(Layout::Tags { frame: Frame::plain(plain, true)?, tags: tags.clone(), token: token(tags)? })
                    }
                    PlainRead::Parts(parts) => parts_in(Frame::plain(plain, true)?, parts),
                };
            }
            FormText::Chat(chat) => chat,
        };
        let frame = ChatFrame::new(tokenizer, chat, now)?;
        match &chat.read {
            ChatRead::End { generation_prompt, append } => {
                check_special(tokenizer, "append", append.as_deref().unwrap_or_default())?;
                let (generation_prompt, append) = (*generation_prompt, append.clone());
                Ok(Layout::End { frame: Frame::Chat(frame), generation_prompt, append, padding })
            }
            ChatRead::Tags(tags) => {
                Ok(Layout::Tags { frame: Frame::Chat(frame), tags: tags.clone(), token: token(tags)? })
            }
            ChatRead::Turns { reply, separator } => {
                one_token(tokenizer, "reply", reply)?;
                Ok(Layout::Turns { chat: frame, reply: reply.clone(), separator: separator.clone() })
            }
            ChatRead::Parts(parts) => parts_in(Frame::Chat(frame), parts),
            ChatRead::Question { text } => {
                check_special(tokenizer, "text", text)?;
                let frame = Frame::Question(frame, crate::plain::TextTemplate::read(text, false)?);
                Ok(Layout::End { frame, generation_prompt: true, append: None, padding })
            }
        }
    }
}

/// Reads the one value of a whole answer, which is that of its last step.
fn read_at_end(marked: MarkedTokens, padding: Option<TokenId>, steps: usize) -> Result<Rendered> {
    let MarkedTokens { mut tokens, marks } = marked;
    let Some(at) = tokens.iter().rposition(|token| Some(*token) != padding) else {
        return Err(Error::value("text to score", "at least one token that is not the padding token", "none"));
    };
    tokens.truncate(at + 1);
    let trunk = marks.first().map_or(1, |mark| *mark.min(&tokens.len())).max(1);
    Ok(Rendered { tokens, trunk, reads: vec![ReadPlace { at, step: steps.saturating_sub(1) }] })
}

/// A form with values for steps needs one.
fn some_parts(cut: Vec<Part<'_>>) -> Result<Vec<Part<'_>>> {
    match cut.is_empty() {
        true => Err(Error::value("answer to score", "at least one step with text", "none")),
        false => Ok(cut),
    }
}
