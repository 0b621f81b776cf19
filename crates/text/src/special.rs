//! Special tokens in texts of users. transformers makes a token of `<|im_end|>` wherever a prompt has it, so that a
//! user can end the turn and begin another role's. This module finds such texts, and encodes them as plain text while
//! the special tokens of a chat template stay tokens. Tokens that are not called special but that the template writes
//! (`<tool_response>`, DeepSeek's roles) are treated alike in everybody's texts but the assistant's and the system's.
//! The callers decide which texts are whose.
//!
//! A chat is rendered from texts in which each special token's text is hidden behind a mark. A text that ends with the
//! beginning of a special token's text, or begins with the end of one, has an empty mark there, so that no texts side
//! by side make a special token. Empty marks stand around each sign with which special tokens begin, too, so that none
//! arises where a template takes a piece out of a text, joins pieces of it or changes its case. In the rendered text
//! what looks like a special token is the template's: it becomes an alias, a token that only a copy of the tokenizer
//! knows, which reads no special tokens otherwise. Then the hidden texts are shown again, and the copy encodes
//! everything at once, so that the tokens around are those of the tokenizer itself. A template that writes the first
//! sign of a special token itself and takes the rest from a text (`'<|' + role + '|>'`) makes the token.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use regex::Regex;
use tokenizers::AddedToken;

use super::chat::ChatOptions;
use super::jinja::is_space;
use super::message::{Message, ROLES, TextPlace, map_texts};
use super::shared::{continued, shared_bytes};
use super::tokenizer::{AddSpecial, Encoded, LevelTokens, Tokenizer};
use super::tokens_of;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;

/// Whose words a text of a chat is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaker {
    /// The user's, a tool's or anyone else's. The other tokens that chat templates write, such as `<tool_response>` or
    /// the roles of some models, are plain text in it, too.
    Anyone,
    /// The assistant's or the system's, which may have such tokens.
    Assistant,
}

/// What becomes of special tokens' texts in the text of users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpecialText {
    /// They become the tokens, as in transformers.
    #[default]
    Allow,
    /// They are encoded as any other text.
    Escape,
    /// The text is refused.
    Refuse,
}

/// Why a text of a user is no part of a prompt.
#[derive(Debug)]
pub enum TextFault {
    /// It has this text of a special token, and they are refused.
    Special(String),
    /// It cannot be hidden.
    Marks(Box<Error>),
}

/// A place among what a chat template sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChatPlace {
    /// A field of a message.
    Message(usize, String),
    Tool(usize),
    Variable(String),
}

/// How a text that may have special tokens' texts is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextKind {
    /// They become the tokens.
    Written,
    /// All of it is plain text, as in [`Tokenizer::encode_plain`].
    Plain,
    /// Rendered of hidden texts, as in [`Tokenizer::encode_hidden`].
    Hidden,
}

/// A rendered text of hidden texts and its tokens, from which those of a longer text follow.
pub struct HiddenEncoding {
    /// The text with the special tokens' aliases.
    text: String,
    /// Its tokens, without special ones around it.
    bare: Encoded,
}

/// Bytes of such a text that are encoded again before what a longer one adds, and fewest shared bytes behind them.
const MARGIN: usize = 64;

/// What begins and ends the marks of hidden texts, and the aliases of special tokens: characters that Unicode keeps for
/// programs' own use and that are in no text.
const HIDDEN: [char; 2] = ['\u{FDD0}', '\u{FDD1}'];
const ALIAS: [char; 2] = ['\u{FDD2}', '\u{FDD3}'];

/// The special tokens of a tokenizer and the other added tokens that its chat templates write, by their texts, and the
/// tokenizer that takes them for text.
pub(super) struct SpecialTexts {
    /// Finds the longest special token's text at each place; `None`: there are no special tokens.
    special: Option<Regex>,
    /// Finds the texts of the others, too.
    control: Option<Regex>,
    ids: HashMap<String, u32>,
    /// What a hidden text's mark holds: the token's id.
    texts: HashMap<u32, String>,
    edges: Edges,
    starts: Starts,
    /// Reads none of these tokens but the aliases.
    plain: tokenizers::Tokenizer,
    /// The special token of each alias.
    aliased: HashMap<u32, TokenId>,
}

impl SpecialTexts {
    /// `templates`: the sources of the chat templates.
    pub fn of(inner: &tokenizers::Tokenizer, templates: &str) -> SpecialTexts {
        // White space is no mark of a template's.
        let is_written = |text: &str| templates.contains(text) && !text.chars().all(is_space);
        let counts = |token: &AddedToken| !token.content.is_empty() && (token.special || is_written(&token.content));
        let added = inner.get_added_tokens_decoder().into_iter();
        let mut control: Vec<(u32, AddedToken)> = added.filter(|(_, token)| counts(token)).collect();
        control.sort_by(|(a, of_a), (b, of_b)| (of_b.content.len(), a).cmp(&(of_a.content.len(), b)));
        let mut plain = inner.clone();
        // The library takes for text what is special.
        let as_special = |(_, token): &(u32, AddedToken)| AddedToken { special: true, ..token.clone() };
        plain.add_special_tokens(&control.iter().map(as_special).collect::<Vec<_>>());
        plain.set_encode_special_tokens(true);
        let alias_token = |(id, token): &(u32, AddedToken)| AddedToken {
            content: alias(*id),
            single_word: false,
            normalized: false,
            special: false,
            ..token.clone()
        };
        plain.add_tokens(&control.iter().map(alias_token).collect::<Vec<_>>());
        let alias_id = |id: u32| plain.token_to_id(&alias(id)).expect("it was added");
        let aliased = control.iter().map(|&(id, _)| (alias_id(id), TokenId(id))).collect();
        let ids = control.iter().map(|(id, token)| (token.content.clone(), *id)).collect();
        let edges = Edges::of(control.iter().map(|(_, token)| &*token.content));
        let starts = Starts::of(control.iter().map(|(_, token)| &*token.content), templates);
        let special = pattern(control.iter().map(|(_, token)| token).filter(|token| token.special));
        let all = pattern(control.iter().map(|(_, token)| token));
        let texts = control.into_iter().map(|(id, token)| (id, token.content)).collect();
        SpecialTexts { special, control: all, ids, texts, edges, starts, plain, aliased }
    }

    /// `text` with each text that `pattern` finds replaced.
    fn replace<'t>(&self, pattern: Option<&Regex>, text: &'t str, by: impl Fn(u32) -> String) -> Cow<'t, str> {
        match pattern {
            None => text.into(),
            Some(pattern) => pattern.replace_all(text, |found: &regex::Captures<'_>| {
                by(*self.ids.get(&found[0]).expect("the pattern finds these texts alone"))
            }),
        }
    }

    /// `text` with the hidden texts in their places. What a template left of a mark that it cut in two is dropped.
    fn shown<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if !text.contains(HIDDEN) {
            return text.into();
        }
        let mut pieces = text.split(HIDDEN[0]);
        let mut out = pieces.next().unwrap_or_default().replace(HIDDEN[1], "");
        for piece in pieces {
            let (digits, after) = split_digits(piece);
            out.push_str(self.hidden(digits, after).unwrap_or_default());
            out.extend(after.split(HIDDEN[1]));
        }
        out.into()
    }

    /// The text that a mark hides; `digits`: what follows the mark's beginning, `after`: what follows those.
    fn hidden(&self, digits: &str, after: &str) -> Option<&str> {
        let id = digits.parse().ok().filter(|_| after.starts_with(HIDDEN[1]))?;
        self.texts.get(&id).map(String::as_str)
    }
}

/// A text's digits at its beginning, and the rest.
fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len())
}

/// The pieces into which special tokens' texts can be cut. A text that begins or ends with one may make a special token
/// with the text beside it.
struct Edges {
    /// Proper beginnings of special tokens' texts, and proper ends.
    beginnings: HashSet<String>,
    ends: HashSet<String>,
    /// Length of the longest of them, in bytes.
    longest: usize,
}

impl Edges {
    fn of<'t>(special: impl Iterator<Item = &'t str>) -> Edges {
        let mut edges = Edges { beginnings: HashSet::new(), ends: HashSet::new(), longest: 0 };
        for text in special {
            for (at, _) in text.char_indices().skip(1) {
                edges.beginnings.insert(text[..at].to_owned());
                edges.ends.insert(text[at..].to_owned());
                edges.longest = edges.longest.max(at).max(text.len() - at);
            }
        }
        edges
    }

    /// Whether `text` ends with the beginning of a special token's text.
    fn opens(&self, text: &str) -> bool {
        let from = text.len().saturating_sub(self.longest);
        (from..text.len()).any(|at| text.get(at..).is_some_and(|end| self.beginnings.contains(end)))
    }

    /// Whether `text` begins with the end of a special token's text.
    fn closes(&self, text: &str) -> bool {
        let to = text.len().min(self.longest);
        (1..=to).any(|at| text.get(..at).is_some_and(|beginning| self.ends.contains(beginning)))
    }

    /// `text` with empty marks at its ends where a text beside it could make a special token of them. A template may
    /// trim the text: white space at its ends does not count.
    fn marked(&self, text: String) -> String {
        let trimmed = text.trim_matches(is_space);
        let start = text.len() - text.trim_start_matches(is_space).len();
        let end = start + trimmed.len();
        let marks = [
            (0, self.closes(&text)),
            (start, start > 0 && self.closes(trimmed)),
            (end, end < text.len() && self.opens(trimmed)),
            (text.len(), self.opens(&text)),
        ];
        let mut out = text;
        // From the end, so that the places before it stay.
        for (at, _) in marks.into_iter().rev().filter(|&(_, is_needed)| is_needed) {
            out.insert_str(at, &empty_mark());
        }
        out
    }
}

/// The signs with which special tokens begin: characters that are neither letters, digits nor white space.
struct Starts {
    signs: HashSet<char>,
    /// Texts such as `</think>` that templates name whole: they look for them in the texts of messages.
    named: HashSet<String>,
}

/// Finds what looks like the name of a token.
static NAME: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r#"<[^<>\s'"]{1,64}>|\[[^\[\]\s'"]{1,64}\]"#).expect("the pattern is one"));

impl Starts {
    fn of<'t>(special: impl Iterator<Item = &'t str>, templates: &str) -> Starts {
        let is_sign = |c: &char| !c.is_alphanumeric() && !is_space(*c);
        let signs = special.filter_map(|text| text.chars().next().filter(is_sign)).collect();
        Starts { signs, named: NAME.find_iter(templates).map(|found| found.as_str().to_owned()).collect() }
    }

    /// `text` with empty marks around each sign that begins no text which templates name.
    fn marked(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find(|c| self.signs.contains(&c)) {
            let (before, from) = rest.split_at(at);
            let sign = from.chars().next().map_or(0, char::len_utf8);
            let named = NAME.find_at(from, 0).filter(|found| found.start() == 0 && self.named.contains(found.as_str()));
            let end = named.map_or(sign, |found| found.end());
            out.push_str(before);
            match named {
                Some(found) => out.push_str(found.as_str()),
                None => out.extend([&empty_mark(), &from[..sign], &empty_mark()]),
            }
            rest = &from[end..];
        }
        out + rest
    }
}

fn empty_mark() -> String {
    HIDDEN.iter().collect()
}

/// Finds the first of these tokens' texts at each place; `None`: there are none.
fn pattern<'t>(tokens: impl Iterator<Item = &'t AddedToken>) -> Option<Regex> {
    let alternatives: Vec<String> = tokens.map(|token| regex::escape(&token.content)).collect();
    (!alternatives.is_empty()).then(|| {
        let built = regex::RegexBuilder::new(&alternatives.join("|")).size_limit(1 << 28).build();
        built.expect("alternatives of plain texts are a pattern")
    })
}

fn alias(id: u32) -> String {
    format!("{}{id}{}", ALIAS[0], ALIAS[1])
}

impl Tokenizer {
    /// The first special token's text in `text`.
    pub fn special_in<'t>(&self, text: &'t str) -> Option<&'t str> {
        Some(self.special_texts().special.as_ref()?.find(text)?.as_str())
    }

    /// A user's text as the part of a prompt: as it is where special tokens are allowed in it, otherwise hidden or
    /// refused.
    ///
    /// # Errors
    ///
    /// It is refused, or has one of the characters that mark hidden texts.
    pub fn guard_text(&self, how: SpecialText, text: &str, of: Speaker) -> Result<String, TextFault> {
        let refused = || self.special_in(text).filter(|_| how == SpecialText::Refuse);
        match how {
            SpecialText::Allow => Ok(text.to_owned()),
            SpecialText::Escape | SpecialText::Refuse => match refused() {
                Some(found) => Err(TextFault::Special(found.to_owned())),
                None => self.hide_special(text, of).map_err(|error| TextFault::Marks(Box::new(error))),
            },
        }
    }

    /// Guards everything that a template sees but itself. Roles, names of fields and values of fields `type` stay as
    /// they are where a template must find them by their words.
    ///
    /// # Errors
    ///
    /// The first of [`Tokenizer::guard_text`], with its place.
    pub fn guard_chat(
        &self,
        how: SpecialText,
        messages: &mut [Message],
        options: &mut ChatOptions,
    ) -> Result<(), (ChatPlace, TextFault)> {
        if how == SpecialText::Allow {
            return Ok(());
        }
        let template = self.chosen_template(options).unwrap_or_default().to_owned();
        let guard = |text: &str, place: TextPlace, of: Speaker| match place {
            TextPlace::Role if ROLES.contains(&text) => Ok(text.to_owned()),
            TextPlace::Role => self.guard_role(how, text),
            TextPlace::Name => match self.guard_text(how, text, of) {
                Ok(guarded) if guarded != text && self.is_looked_for(text, &template) => Ok(text.to_owned()),
                guarded => guarded,
            },
            TextPlace::Value => self.guard_text(how, text, of),
        };
        for (index, message) in messages.iter_mut().enumerate() {
            let speaker = match message.role() {
                Some("assistant" | "system" | "developer") => Speaker::Assistant,
                _ => Speaker::Anyone,
            };
            let guarded = message.map_texts(&mut |text: &str, place| guard(text, place, speaker));
            guarded.map_err(|(field, fault)| (ChatPlace::Message(index, field), fault))?;
        }
        let mut guard = |text: &str, place: TextPlace| guard(text, place, Speaker::Anyone);
        // Every field is named, so that none is forgotten.
        let ChatOptions { tools, variables, source: _, template: _, add_generation_prompt: _, now: _ } = options;
        for (index, tool) in tools.iter_mut().enumerate() {
            map_texts(tool, &mut guard).map_err(|fault| (ChatPlace::Tool(index), fault))?;
        }
        for (name, value) in variables.iter_mut() {
            map_texts(value, &mut guard).map_err(|fault| (ChatPlace::Variable(name.clone()), fault))?;
        }
        Ok(())
    }

    /// A role as the part of a prompt. A word without a token's text has no marks at its ends, for it may make a token
    /// with what the template writes around it (`<|` and `|>`), and it stays a role that the template knows.
    fn guard_role(&self, how: SpecialText, role: &str) -> Result<String, TextFault> {
        let guarded = self.guard_text(how, role, Speaker::Anyone)?;
        let has_token = || self.special_texts().control.as_ref().is_some_and(|control| control.is_match(role));
        let is_word = role.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
        Ok(if is_word && !has_token() { role.to_owned() } else { guarded })
    }

    /// Whether a template names this word between quotes or behind a dot, and so may look for it. No word with a
    /// special token's text is looked for.
    fn is_looked_for(&self, word: &str, template: &str) -> bool {
        let is_word = word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let is_named = || ['\'', '"', '.'].iter().any(|before| template.contains(&format!("{before}{word}")));
        is_word && is_named() && self.special_in(word).is_none()
    }

    /// A user's text with the texts of special tokens hidden, and an empty mark where it and a text beside it could
    /// make one, for a template to render and [`Tokenizer::encode_hidden`] to encode.
    ///
    /// # Errors
    ///
    /// The text has one of the characters that mark hidden texts.
    pub fn hide_special(&self, text: &str, of: Speaker) -> Result<String> {
        check_unmarked(text)?;
        let texts = self.special_texts();
        let pattern = match of {
            Speaker::Anyone => &texts.control,
            Speaker::Assistant => &texts.special,
        };
        let hidden = texts.replace(pattern.as_ref(), text, |id| format!("{}{id}{}", HIDDEN[0], HIDDEN[1]));
        Ok(texts.edges.marked(texts.starts.marked(&hidden)))
    }

    /// The first special token's text in a rendered text that texts of users make together, or with the template's;
    /// `rendered`: of hidden texts that have none themselves.
    pub fn special_joined(&self, rendered: &str) -> Option<String> {
        let pattern = self.special_texts().special.as_ref()?;
        let shown = self.show_special(rendered);
        let mut own = pattern.find_iter(rendered);
        // Before the first joined one, both have the template's.
        let mut all = pattern.find_iter(&shown).map(|found| found.as_str());
        all.find(|found| own.next().is_none_or(|own| own.as_str() != *found)).map(str::to_owned)
    }

    /// A rendered text with its hidden texts in their places.
    pub fn show_special<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match text.contains(HIDDEN) {
            true => self.special_texts().shown(text),
            false => text.into(),
        }
    }

    /// What follows the first `bytes` bytes of a rendered text, counted as [`Tokenizer::show_special`] shows it.
    /// `None`: the place is behind the text's end, or within a text that a mark hides.
    pub fn hidden_behind<'t>(&self, text: &'t str, bytes: usize) -> Option<&'t str> {
        let texts = self.special_texts();
        let (mut rest, mut seen) = (text, 0);
        while seen < bytes {
            let first = rest.chars().next()?;
            let mut behind = &rest[first.len_utf8()..];
            seen += match first {
                first if first == HIDDEN[0] => {
                    let (digits, after) = split_digits(behind);
                    behind = after.strip_prefix(HIDDEN[1]).unwrap_or(after);
                    texts.hidden(digits, after).map_or(0, str::len)
                }
                first if first == HIDDEN[1] => 0,
                first => first.len_utf8(),
            };
            rest = behind;
        }
        (seen == bytes).then_some(rest)
    }

    /// The tokens of a rendered text: its special tokens, and hidden texts as plain text.
    ///
    /// # Errors
    ///
    /// The tokenizer makes a special token of plain text.
    pub fn encode_hidden(&self, text: &str, special: AddSpecial) -> Result<Vec<TokenId>> {
        let texts = self.special_texts();
        let aliased = texts.replace(texts.control.as_ref(), text, alias);
        self.encode_aliased(&texts.shown(&aliased), special)
    }

    /// Like [`Tokenizer::encode_levels`], of hidden levels.
    ///
    /// # Errors
    ///
    /// The tokenizer makes a special token of plain text; a character without a token.
    pub fn encode_hidden_levels(&self, levels: &[String], special: AddSpecial) -> Result<LevelTokens> {
        self.encode_hidden_behind(levels, special, None).map(|(tokens, _)| tokens)
    }

    /// As [`encode_hidden_levels`](Self::encode_hidden_levels), and what a longer text that begins alike needs to be
    /// encoded with little work. `before`: that of such a text. The tokens are the same with it and without.
    ///
    /// # Errors
    ///
    /// Those of [`encode_hidden_levels`](Self::encode_hidden_levels).
    pub fn encode_hidden_behind(
        &self,
        levels: &[String],
        special: AddSpecial,
        before: Option<&HiddenEncoding>,
    ) -> Result<(LevelTokens, HiddenEncoding)> {
        let texts = self.special_texts();
        let aliased = |level: &String| texts.shown(&texts.replace(texts.control.as_ref(), level, alias)).into_owned();
        let levels: Vec<String> = levels.iter().map(aliased).collect();
        let text = levels.concat();
        let continued = match before.filter(|_| self.can_cut()) {
            None => None,
            Some(before) => {
                let shared = shared_bytes(&before.text, &text);
                let continued = continued(&before.bare, &text, shared, MARGIN, |rest| self.encode_named(rest))?;
                continued.map(|continued| continued.behind(&before.bare))
            }
        };
        let bare = continued.map_or_else(|| self.encode_named(&text), Ok)?;
        let (tokens, ahead) = self.surrounded(&bare.tokens, special)?;
        let mut offsets = vec![(0, 0); tokens.len()];
        offsets[ahead..ahead + bare.offsets.len()].copy_from_slice(&bare.offsets);
        let tokens = Encoded { tokens, offsets }.levels(&levels);
        Ok((tokens, HiddenEncoding { text, bare }))
    }

    /// The tokens of a user's text: special tokens' texts in it are plain text, as with transformers'
    /// `split_special_tokens`.
    ///
    /// # Errors
    ///
    /// The tokenizer makes a special token of plain text; the text has one of the characters that mark hidden texts.
    pub fn encode_plain(&self, text: &str, special: AddSpecial) -> Result<Vec<TokenId>> {
        // Hides the special ones alone.
        self.encode_hidden(&self.hide_special(text, Speaker::Assistant)?, special)
    }

    fn encode_aliased(&self, text: &str, special: AddSpecial) -> Result<Vec<TokenId>> {
        // Special tokens around the text are the tokenizer's own.
        let tokens = self.encode_with(&self.special_texts().plain, text, false)?;
        self.surrounded(&self.named(tokens)?, special).map(|(tokens, _)| tokens)
    }

    /// The tokens of an aliased text, without special ones around it, and their places.
    fn encode_named(&self, text: &str) -> Result<Encoded> {
        let (tokens, mut offsets) = self.checked(|| {
            let encoding = self.special_texts().plain.encode(text, false)?;
            Ok((tokens_of(&encoding), encoding.get_offsets().to_vec()))
        })?;
        self.cover_all(text, &mut offsets)?;
        Encoded::new(self.named(tokens)?, offsets)
    }

    /// Tokens of an aliased text with the special tokens in place of their aliases.
    fn named(&self, mut tokens: Vec<TokenId>) -> Result<Vec<TokenId>> {
        let texts = self.special_texts();
        // The unknown token stands for a character without one, as ever.
        let unknown = self.named_token("unk_token").and_then(|text| self.token(text));
        let is_control = |token: TokenId| self.is_special(token) || texts.texts.contains_key(&token.0);
        if let Some(&token) = tokens.iter().find(|token| is_control(**token) && Some(**token) != unknown) {
            let found = String::from_utf8_lossy(self.token_bytes(token)).into_owned();
            let what = format!("the tokenizer has no other tokens for the text {found:?} than this one");
            return Err(Error::format(&self.folder, what));
        }
        for token in &mut tokens {
            *token = texts.aliased.get(&token.0).copied().unwrap_or(*token);
        }
        Ok(tokens)
    }

    /// Tokens with the special ones around a text; and the number of those before it.
    fn surrounded(&self, tokens: &[TokenId], special: AddSpecial) -> Result<(Vec<TokenId>, usize)> {
        let around = self.encode("", special)?;
        let (ahead, behind) = self.around_text(&around, special)?;
        Ok(([ahead, tokens, behind].concat(), ahead.len()))
    }

    /// The special tokens around a text, parted into those before and those behind it. `around`: all of them.
    fn around_text<'a>(&self, around: &'a [TokenId], special: AddSpecial) -> Result<(&'a [TokenId], &'a [TokenId])> {
        if around.is_empty() {
            return Ok((around, around));
        }
        const PROBE: &str = "a";
        let (bare, whole) = (self.encode(PROBE, AddSpecial::No)?, self.encode(PROBE, special)?);
        let ahead = (0..=around.len()).find(|&ahead| whole[ahead..].starts_with(&bare)).unwrap_or(around.len());
        Ok(around.split_at(ahead))
    }

    /// The tokens of the end of a text: its last `most`, with the special tokens around it among them, or all of them
    /// if there are fewer. Encodes not much more than is needed, however long the text is.
    pub fn encode_end(&self, text: &str, special: AddSpecial, most: usize, kind: TextKind) -> Result<Vec<TokenId>> {
        let whole = self.encode_side(text, special, most, kind, TextSide::End)?;
        Ok(whole[whole.len().saturating_sub(most)..].to_vec())
    }

    /// The tokens of the beginning of a text: its first `most`, with the special tokens around it among them, those
    /// behind it too, or all of them if there are fewer. Encodes not much more than is needed.
    pub fn encode_beginning(
        &self,
        text: &str,
        special: AddSpecial,
        most: usize,
        kind: TextKind,
    ) -> Result<Vec<TokenId>> {
        let mut whole = self.encode_side(text, special, most, kind, TextSide::Beginning)?;
        whole.truncate(most);
        Ok(whole)
    }

    /// The special tokens around a text, and of its own as many on this side as have room beside them.
    fn encode_side(
        &self,
        text: &str,
        special: AddSpecial,
        most: usize,
        kind: TextKind,
        side: TextSide,
    ) -> Result<Vec<TokenId>> {
        /// Bytes of a token in most texts, and a margin.
        const TOKEN_BYTES: usize = 8;
        const LEAST_BYTES: usize = 64 << 10;
        // What stands beside a part can change the tokens of its edge only.
        const EDGE_TOKENS: usize = 256;
        let encode = |text: &str| match kind {
            TextKind::Written => self.encode(text, AddSpecial::No),
            TextKind::Plain => self.encode_plain(text, AddSpecial::No),
            TextKind::Hidden => self.encode_hidden(text, AddSpecial::No),
        };
        let around = self.encode("", special)?;
        let (ahead, behind) = self.around_text(&around, special)?;
        let room = most.saturating_sub(around.len());
        let mut bytes = most.saturating_mul(TOKEN_BYTES).max(LEAST_BYTES);
        let tokens = loop {
            let part = side.part(text, bytes);
            let tokens = encode(part)?;
            if part.len() == text.len() || tokens.len() > room + EDGE_TOKENS {
                break tokens;
            }
            bytes = bytes.saturating_mul(2);
        };
        let kept = match side {
            TextSide::Beginning => &tokens[..room.min(tokens.len())],
            TextSide::End => &tokens[tokens.len().saturating_sub(room)..],
        };
        Ok([ahead, kept, behind].concat())
    }
}

/// Which part of a text is encoded.
#[derive(Clone, Copy)]
enum TextSide {
    Beginning,
    End,
}

impl TextSide {
    /// At most so many bytes of this side, cut between characters.
    fn part(self, text: &str, bytes: usize) -> &str {
        match self {
            TextSide::Beginning => {
                let most = bytes.min(text.len());
                &text[..(0..=most).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)]
            }
            TextSide::End => {
                let from = text.len().saturating_sub(bytes);
                &text[(from..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len())..]
            }
        }
    }
}

/// Refuses the characters that mark hidden texts.
fn check_unmarked(text: &str) -> Result<()> {
    match text.chars().find(|char| HIDDEN.contains(char) || ALIAS.contains(char)) {
        Some(found) => Err(Error::value(
            "text with special tokens escaped",
            "characters other than U+FDD0 to U+FDD3, which Unicode assigns to none",
            format!("U+{:04X}", u32::from(found)),
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn of_a_text_that_grows_little_is_encoded_again() {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tasks/models/demo"));
        let tokenizer = Tokenizer::load(folder).unwrap();
        let answer = "The warm boat was described in a book every summer. ".repeat(100);
        let levels = |more: &str| [format!("{answer}{more}"), "<|im_end|>".to_owned()];
        let (_, before) = tokenizer.encode_hidden_behind(&levels(""), AddSpecial::No, None).unwrap();
        let text = levels("And then another boat came. ").concat();
        let shared = shared_bytes(&before.text, &text);
        let encode = |rest: &str| tokenizer.encode_named(rest);
        let found = continued(&before.bare, &text, shared, MARGIN, encode).unwrap().expect("words stand side by side");
        let whole = tokenizer.encode_hidden(&text, AddSpecial::No).unwrap();
        assert_eq!(found.taken + found.rest.tokens.len(), whole.len());
        assert!(found.rest.tokens.len() * 10 < whole.len(), "{} of {}", found.rest.tokens.len(), whole.len());
    }
}
