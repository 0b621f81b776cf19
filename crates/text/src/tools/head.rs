//! Reads the beginning of a call: the tool's name, up to the arguments. What is read is certain: more text does not
//! change it.

use super::ToolSet;
use super::gemma;
use super::json::{End, value_end};
use super::python;
use super::syntax::{CallStyle, CallSyntax, NamedCall, Opening, Tagged};

/// What a text behind a call's mark is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Head {
    /// More text decides it.
    More,
    /// No call.
    No,
    /// A call whose arguments begin behind `bytes` bytes.
    Begun { name: String, bytes: usize, body: Body, in_list: bool },
    /// A call of `bytes` bytes.
    Whole { name: String, bytes: usize, arguments: String, in_list: bool },
}

/// Why a text is no head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoHead {
    /// More text decides it.
    More,
    /// It is no call.
    No,
}

impl From<NoHead> for Head {
    fn from(none: NoHead) -> Self {
        match none {
            NoHead::More => Head::More,
            NoHead::No => Head::No,
        }
    }
}

/// How the arguments of a call that has begun are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// As an object of JSON within so many brackets.
    Json {
        within: usize,
    },
    Tagged(Tagged),
}

/// Longest name of a tool, in bytes. OpenAI's have 64.
const LONGEST_NAME: usize = 256;

/// Reads the call with which `text` begins behind its mark.
pub(super) fn read(syntax: &CallSyntax, styles: &[CallStyle], tools: &ToolSet, text: &str, is_bare: bool) -> Head {
    if styles.is_empty() {
        return in_section(syntax, tools, text);
    }
    for style in styles {
        let head = match style {
            CallStyle::Object => object(text, tools, is_bare),
            CallStyle::Named(named) => name_and_json(named, text).unwrap_or_else(Head::from),
            CallStyle::Tagged(tags) => name_and_tags(tags, syntax.closes, text).unwrap_or_else(Head::from),
            CallStyle::Gemma => gemma::head(text),
            CallStyle::Python => python::head(text),
        };
        if head != Head::No {
            return head;
        }
    }
    Head::No
}

/// Behind the mark of a section, whose calls have marks of their own.
fn in_section(syntax: &CallSyntax, tools: &ToolSet, text: &str) -> Head {
    let mut cursor = Cursor { text, at: 0 };
    cursor.skip_space();
    let calls = || syntax.openings.iter().filter(|opening| !opening.styles.is_empty());
    if let Some(Opening { mark, styles, is_within }) = calls().find(|opening| cursor.rest().starts_with(opening.mark)) {
        cursor.at += if *is_within { 0 } else { mark.len() };
        return match read(syntax, styles, tools, cursor.rest(), false) {
            Head::Begun { name, bytes, body, in_list } => Head::Begun { name, bytes: cursor.at + bytes, body, in_list },
            Head::Whole { name, bytes, arguments, in_list } => {
                Head::Whole { name, bytes: cursor.at + bytes, arguments, in_list }
            }
            other => other,
        };
    }
    if calls().any(|opening| opening.mark.starts_with(cursor.rest())) { Head::More } else { Head::No }
}

/// A place in a text.
pub(super) struct Cursor<'t> {
    pub text: &'t str,
    pub at: usize,
}

/// What a cursor finds in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Found,
    Other,
    More,
}

impl<'t> Cursor<'t> {
    pub fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    pub fn skip_space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    /// Passes over `word`, if it stands here.
    pub fn eat(&mut self, word: &str) -> Next {
        if self.rest().starts_with(word) {
            self.at += word.len();
            return Next::Found;
        }
        if word.starts_with(self.rest()) { Next::More } else { Next::Other }
    }

    /// Passes over `word`, which must stand here.
    fn pass(&mut self, word: &str) -> Result<(), NoHead> {
        match self.eat(word) {
            Next::Found => Ok(()),
            Next::More => Err(NoHead::More),
            Next::Other => Err(NoHead::No),
        }
    }

    /// Passes over a name, which is empty if there is none; `None`: it may go on.
    pub fn name(&mut self) -> Option<&'t str> {
        let rest = self.rest();
        let is_of_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
        let end = rest.find(|c| !is_of_name(c)).unwrap_or(rest.len());
        if end > LONGEST_NAME {
            return Some("");
        }
        if end == rest.len() {
            return None;
        }
        self.at += end;
        Some(&rest[..end])
    }
}

/// What the fields of an object tell, so far.
#[derive(Default)]
struct CallFields {
    name: Option<String>,
    arguments: Option<String>,
}

/// `{"name": …, "arguments": …}` or other keys of both, `{"type": "function", "function": {…}}` or a list of such
/// objects, of which the first.
fn object(text: &str, tools: &ToolSet, is_bare: bool) -> Head {
    let mut cursor = Cursor { text, at: 0 };
    cursor.skip_space();
    let in_list = match cursor.eat("[") {
        Next::Found if is_bare => return Head::No,
        Next::More => return Head::More,
        next => next == Next::Found,
    };
    cursor.skip_space();
    match cursor.eat("{") {
        Next::Found => {}
        Next::More => return Head::More,
        Next::Other => return Head::No,
    }
    let is_known = |name: &str| !is_bare || tools.tools.is_empty() || tools.get(name).is_some();
    let mut fields = CallFields::default();
    // Braces that are open.
    let mut depth = 1;
    loop {
        cursor.skip_space();
        let Some(sign) = cursor.rest().chars().next() else { return Head::More };
        match sign {
            ',' => cursor.at += 1,
            '}' => {
                cursor.at += 1;
                depth -= 1;
                if depth == 0 {
                    let CallFields { name, arguments } = fields;
                    return match (name.filter(|name| is_known(name)), arguments) {
                        (None, _) => Head::No,
                        (Some(_), None) if is_bare => Head::No,
                        (Some(name), arguments) => {
                            let arguments = arguments.unwrap_or_else(|| "{}".to_owned());
                            Head::Whole { name, bytes: cursor.at, arguments, in_list }
                        }
                    };
                }
            }
            '"' => match field(&mut cursor, &mut depth, &mut fields, is_bare) {
                Field::Read => {}
                Field::More => return Head::More,
                Field::No => return Head::No,
                Field::Arguments => {
                    return match fields.name {
                        Some(name) if is_known(&name) => {
                            Head::Begun { name, bytes: cursor.at, body: Body::Json { within: depth }, in_list }
                        }
                        _ => Head::No,
                    };
                }
            },
            _ => return Head::No,
        }
    }
}

/// What reading a field has shown.
enum Field {
    Read,
    More,
    No,
    /// The name is known, and the arguments begin here.
    Arguments,
}

/// The fields of calls. An object without a mark that has another one is content, which need not be held back.
const FIELDS: [&str; 6] = ["name", "arguments", "parameters", "function", "type", "id"];

/// Reads the key here and its value, or enters it.
fn field(cursor: &mut Cursor<'_>, depth: &mut usize, fields: &mut CallFields, is_bare: bool) -> Field {
    let End::At(end) = value_end(cursor.rest()) else { return Field::More };
    let Some(key) = string_of(&cursor.rest()[..end]) else { return Field::No };
    if is_bare && !FIELDS.contains(&&*key) {
        return Field::No;
    }
    cursor.at += end;
    cursor.skip_space();
    match cursor.eat(":") {
        Next::Found => {}
        Next::More => return Field::More,
        Next::Other => return Field::No,
    }
    cursor.skip_space();
    let Some(sign) = cursor.rest().chars().next() else { return Field::More };
    let is_arguments = key == "arguments" || key == "parameters";
    if sign == '{' {
        match &*key {
            "function" if *depth == 1 && fields.name.is_none() => {
                cursor.at += 1;
                *depth += 1;
                return Field::Read;
            }
            _ if is_arguments && fields.name.is_some() => return Field::Arguments,
            _ => {}
        }
    }
    let End::At(end) = value_end(cursor.rest()) else { return Field::More };
    let value = &cursor.rest()[..end];
    if end == 0 {
        return Field::No;
    }
    cursor.at += end;
    if is_arguments {
        fields.arguments = Some(arguments_of(value));
    } else if matches!(&*key, "name" | "function" | "tool_name") {
        let Some(name) = string_of(value).filter(|name| !name.is_empty()) else { return Field::No };
        fields.name.get_or_insert(name);
    }
    Field::Read
}

fn string_of(json: &str) -> Option<String> {
    serde_json::from_str(json).ok()
}

/// Arguments as an object: some models write it as a string of JSON, or nothing as `null`.
fn arguments_of(value: &str) -> String {
    match string_of(value).filter(|text| text.trim_start().starts_with('{')) {
        Some(text) => text,
        None if value == "null" => "{}".to_owned(),
        None => value.to_owned(),
    }
}

/// Behind `before` and a name, and the name; `Err`: what the text is otherwise.
fn named<'t>(before: &str, text: &'t str) -> Result<(Cursor<'t>, &'t str), NoHead> {
    let mut cursor = Cursor { text, at: 0 };
    cursor.skip_space();
    cursor.pass(before)?;
    match cursor.name() {
        None => Err(NoHead::More),
        Some("") => Err(NoHead::No),
        Some(name) => Ok((cursor, name)),
    }
}

/// `NAME` and `{…}`.
fn name_and_json(call: &NamedCall, text: &str) -> Result<Head, NoHead> {
    let (mut cursor, name) = named(call.before, text)?;
    if let Some(skipped) = call.skips {
        match cursor.eat(skipped) {
            Next::More => return Err(NoHead::More),
            Next::Found => match cursor.rest().find(call.after) {
                Some(at) if at <= LONGEST_NAME => cursor.at += at,
                None if cursor.rest().len() < LONGEST_NAME + call.after.len() => return Err(NoHead::More),
                _ => return Err(NoHead::No),
            },
            Next::Other => {}
        }
    }
    cursor.pass(call.after)?;
    cursor.skip_space();
    match cursor.rest().chars().next() {
        Some('{') => {
            let body = Body::Json { within: 0 };
            Ok(Head::Begun { name: name.to_owned(), bytes: cursor.at, body, in_list: false })
        }
        Some(_) => Err(NoHead::No),
        None => Err(NoHead::More),
    }
}

/// `NAME` and tags.
fn name_and_tags(tags: &Tagged, closes: &[&str], text: &str) -> Result<Head, NoHead> {
    let (mut cursor, name) = named(tags.before_name, text)?;
    cursor.pass(tags.after_name)?;
    let begun = Head::Begun { name: name.to_owned(), bytes: cursor.at, body: Body::Tagged(*tags), in_list: false };
    if !tags.after_name.is_empty() {
        return Ok(begun);
    }
    // Nothing but what follows tells the name from any word.
    cursor.skip_space();
    let follows = || std::iter::once(tags.before_key).chain(closes.iter().copied());
    match () {
        () if follows().any(|mark| cursor.rest().starts_with(mark)) => Ok(begun),
        () if follows().any(|mark| mark.starts_with(cursor.rest())) => Err(NoHead::More),
        () => Err(NoHead::No),
    }
}
