//! Calls as Gemma 4 writes them: `call:NAME{key:value,…}`, where a string stands between two marks and keys stand as
//! they are. They become JSON.

use serde_json::{Map, Value};

use super::head::{Cursor, Head, Next};

/// What stands at both ends of a string.
pub(super) const QUOTE: &str = "<|\"|>";
/// Objects and lists within each other.
const DEEPEST: usize = 64;

/// Whether a key is read again though it stands without the marks of a string.
pub(super) fn is_plain_key(key: &str) -> bool {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    !key.is_empty() && key.chars().all(is_plain)
}

/// Reads the call with which `text` begins, whole.
pub(super) fn head(text: &str) -> Head {
    let mut cursor = Cursor { text, at: 0 };
    cursor.skip_space();
    match cursor.eat("call:") {
        Next::Found => {}
        Next::More => return Head::More,
        Next::Other => return Head::No,
    }
    let Some(name) = cursor.name() else { return Head::More };
    if name.is_empty() || !cursor.rest().starts_with('{') {
        return if cursor.rest().is_empty() { Head::More } else { Head::No };
    }
    let Some(end) = braces_end(cursor.rest()) else { return Head::More };
    let (object, bytes) = (&cursor.rest()[..end], cursor.at + end);
    let mut reader = GemmaReader { text: object, at: 0 };
    match reader.value(0) {
        Some(arguments) if reader.at == object.len() => {
            Head::Whole { name: name.to_owned(), bytes, arguments: arguments.to_string(), in_list: false }
        }
        _ => Head::No,
    }
}

/// Where the braces end with which `text` begins; `None`: not in this text.
fn braces_end(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        if let Some(string) = rest.strip_prefix(QUOTE) {
            at += QUOTE.len() + string.find(QUOTE)? + QUOTE.len();
            continue;
        }
        match rest.as_bytes()[0] {
            b'{' => depth += 1,
            b'}' if depth == 1 => return Some(at + 1),
            b'}' => depth -= 1,
            _ => {}
        }
        at += rest.chars().next().map_or(1, char::len_utf8);
    }
    None
}

/// Reads values.
struct GemmaReader<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> GemmaReader<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn skip_space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn eat(&mut self, word: &str) -> bool {
        let is_here = self.rest().starts_with(word);
        if is_here {
            self.at += word.len();
        }
        is_here
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        self.skip_space();
        if depth > DEEPEST {
            return None;
        }
        if let Some(text) = self.string() {
            return Some(text.into());
        }
        if self.eat("{") {
            return self.fields(depth).map(Value::from);
        }
        if self.eat("[") {
            return self.items(depth).map(Value::from);
        }
        let rest = self.rest();
        let word = &rest[..rest.find([',', '}', ']']).unwrap_or(rest.len())];
        self.at += word.len();
        Some(match word.trim() {
            "null" | "none" | "None" => Value::Null,
            "True" => true.into(),
            "False" => false.into(),
            // A string without its marks.
            word => serde_json::from_str(word).unwrap_or_else(|_| word.into()),
        })
    }

    /// The string here, between its marks.
    fn string(&mut self) -> Option<&'t str> {
        let (text, _) = self.rest().strip_prefix(QUOTE)?.split_once(QUOTE)?;
        self.at += 2 * QUOTE.len() + text.len();
        Some(text)
    }

    fn fields(&mut self, depth: usize) -> Option<Map<String, Value>> {
        let mut fields = Map::new();
        loop {
            self.skip_space();
            if self.eat("}") {
                return Some(fields);
            }
            let key = match self.string() {
                Some(key) => key,
                None => {
                    let (key, _) = self.rest().split_once(':')?;
                    self.at += key.len();
                    key.trim()
                }
            };
            self.skip_space();
            if key.is_empty() || !self.eat(":") {
                return None;
            }
            let value = self.value(depth + 1)?;
            fields.insert(key.to_owned(), value);
            self.skip_space();
            if !self.eat(",") && !self.rest().starts_with('}') {
                return None;
            }
        }
    }

    fn items(&mut self, depth: usize) -> Option<Vec<Value>> {
        let mut items = Vec::new();
        loop {
            self.skip_space();
            if self.eat("]") {
                return Some(items);
            }
            items.push(self.value(depth + 1)?);
            self.skip_space();
            if !self.eat(",") && !self.rest().starts_with(']') {
                return None;
            }
        }
    }
}
