//! The grammar of a form, in llguidance's terms, after checks of its size and depth: recursion over what passes ends
//! before the stack does. What a grammar takes to compile is bounded elsewhere.

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use offshoot_core::error::Error;
use serde_json::{Map, Value, json};

use crate::schema::rewritten;
use crate::spec::Form;
use crate::trial::{Refusal, try_schema, try_schema_alone};
use crate::white_space;

/// The longest form, in bytes of its JSON, pattern, grammar or choices.
const MOST_BYTES: usize = 256 << 10;
/// The deepest nesting of objects and lists in a schema, and of brackets in a pattern or grammar.
const MOST_DEPTH: usize = 100;
/// The most choices.
const MOST_CHOICES: usize = 20_000;

impl Form {
    /// A JSON Schema as a grammar in Lark may have it (`%json`): what llguidance does not take is rewritten, where an
    /// equal schema says the same, as it is for [`Form::Json`]; descriptions and other notes are left out. One with
    /// references is tried, which compiles it.
    ///
    /// # Errors
    ///
    /// It is too long or too deep, it cannot be compiled, or its values would go on without end.
    pub fn schema_in_grammar(schema: Value) -> Result<Value, Error> {
        let made = || {
            check_depth(json_depth(&schema))?;
            white_space::check(&schema)?;
            let schema = rewritten(schema)?;
            // Descriptions, which may be long, are left out by now.
            check_bytes(json_bytes(&schema))?;
            try_schema_alone(&schema)?;
            Ok(schema)
        };
        made().map_err(|refusal: Refusal| Error::value("JSON schema", refusal.expected, refusal.found))
    }

    /// As [`schema_in_grammar`](Self::schema_in_grammar), of a schema that the grammar does not have as `%json`: it is
    /// tried, so that what can't be compiled is refused.
    ///
    /// # Errors
    ///
    /// As of [`schema_in_grammar`](Self::schema_in_grammar).
    pub fn schema_in_rules(schema: Value) -> Result<Value, Error> {
        let schema = Form::schema_in_grammar(schema)?;
        let tried = try_schema(&schema);
        tried.map(|()| schema).map_err(|refusal| Error::value("JSON schema", refusal.expected, refusal.found))
    }

    /// The elements by which a rule of a grammar in Lark has this form; `None`: it is a pattern or a grammar of its
    /// own.
    ///
    /// # Errors
    ///
    /// As of the grammar of the form itself, as far as that is found without compiling it.
    pub fn in_rule(&self) -> Result<Option<String>, Error> {
        let json = |schema: Value| with_options(schema).map(|schema| Some(format!("%json {schema}")));
        let made = check_size(self).and_then(|()| match self {
            Form::JsonObject => json(json!({"type": "object"})),
            Form::Json(schema) => {
                let schema = rewritten(schema.clone())?;
                // Beside what else the rule allows, it would not be seen that no text has it.
                try_schema_alone(&schema)?;
                json(schema)
            }
            Form::Choice(choices) => {
                let texts: Vec<String> = choices.iter().map(|text| Value::from(&**text).to_string()).collect();
                Ok(Some(format!("({})", texts.join(" | "))))
            }
            Form::Regex(_) | Form::Lark(_) => Ok(None),
        });
        made.map_err(|refusal| Error::value(self.kind(), refusal.expected, refusal.found))
    }

    /// What messages call a form of its kind.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Form::JsonObject => "JSON object",
            Form::Json(_) => "JSON schema",
            Form::Regex(_) => "regular expression",
            Form::Lark(_) => "Lark grammar",
            Form::Choice(_) => "choice",
        }
    }
}

/// The grammar of `form`.
///
/// # Errors
///
/// The form is too long or too deep, or is not of its kind at all.
pub(crate) fn grammar(form: &Form) -> Result<TopLevelGrammar, Refusal> {
    check_size(form)?;
    let lark = |text: String| TopLevelGrammar::from_grammar(GrammarWithLexer::from_lark(text));
    match form {
        Form::JsonObject => Ok(TopLevelGrammar::from_json_schema(with_options(json!({"type": "object"}))?)),
        Form::Json(schema) => Ok(TopLevelGrammar::from_json_schema(with_options(rewritten(schema.clone())?)?)),
        Form::Regex(pattern) => Ok(TopLevelGrammar::from_regex(&without_anchors(pattern))),
        Form::Lark(text) if text.trim().is_empty() => {
            Err(Refusal::new("rules, of which one is called `start`", "an empty text"))
        }
        Form::Lark(text) => Ok(lark(text.clone())),
        Form::Choice(choices) if choices.is_empty() => Err(Refusal::new("one text or more", "none")),
        Form::Choice(choices) => Ok(lark(choice_grammar(choices))),
    }
}

/// Refuses what is too long or too deep.
pub(crate) fn check_size(form: &Form) -> Result<(), Refusal> {
    let (bytes, depth) = match form {
        Form::JsonObject => (0, 0),
        Form::Json(schema) => (json_bytes(schema), json_depth(schema)),
        Form::Regex(text) => (text.len(), pattern_depth(text.as_bytes())),
        Form::Lark(text) => (text.len(), grammar_depth(text.as_bytes())),
        Form::Choice(choices) => (choices.iter().map(String::len).sum(), 0),
    };
    check_depth(depth)?;
    check_bytes(bytes)?;
    match form {
        Form::Choice(choices) if choices.len() > MOST_CHOICES => {
            Err(Refusal::new(format!("at most {MOST_CHOICES} texts"), choices.len().to_string()))
        }
        _ => Ok(()),
    }
}

fn check_depth(depth: usize) -> Result<(), Refusal> {
    match depth > MOST_DEPTH {
        true => Err(Refusal::new(format!("at most {MOST_DEPTH} levels of nesting"), "more")),
        false => Ok(()),
    }
}

fn check_bytes(bytes: usize) -> Result<(), Refusal> {
    let kib = bytes.div_ceil(1 << 10);
    match bytes > MOST_BYTES {
        true => Err(Refusal::new(format!("at most {} KiB", MOST_BYTES >> 10), format!("{kib} KiB"))),
        false => Ok(()),
    }
}

/// Levels of objects and lists, up to one more than the most allowed.
fn json_depth(value: &Value) -> usize {
    let mut deepest = 0;
    let mut left = vec![(value, 0)];
    while let Some((value, depth)) = left.pop() {
        deepest = deepest.max(depth);
        if depth > MOST_DEPTH {
            break;
        }
        match value {
            Value::Array(items) => left.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(fields) => left.extend(fields.values().map(|field| (field, depth + 1))),
            _ => {}
        }
    }
    deepest
}

/// Bytes of a value's keys and texts, and a few for each value; not much more than the most allowed.
pub(crate) fn json_bytes(value: &Value) -> usize {
    let mut bytes = 0;
    let mut left = vec![value];
    while let Some(value) = left.pop() {
        bytes += 2;
        match value {
            Value::String(text) => bytes += text.len(),
            Value::Array(items) => left.extend(items),
            Value::Object(fields) => {
                bytes += fields.keys().map(|key| key.len() + 3).sum::<usize>();
                left.extend(fields.values());
            }
            _ => bytes += 4,
        }
        if bytes > 2 * MOST_BYTES {
            break;
        }
    }
    bytes
}

/// Brackets that are open at once.
#[derive(Default)]
struct Brackets {
    open: usize,
    deepest: usize,
}

impl Brackets {
    fn count(&mut self, byte: u8) {
        match byte {
            b'(' | b'[' | b'{' => self.open += 1,
            b')' | b']' | b'}' => self.open = self.open.saturating_sub(1),
            _ => {}
        }
        self.deepest = self.deepest.max(self.open);
    }
}

/// The most brackets that are open at once in a pattern, those in its sets of characters included.
fn pattern_depth(pattern: &[u8]) -> usize {
    let mut brackets = Brackets::default();
    let mut bytes = pattern.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'\\' => drop(bytes.next()),
            byte => brackets.count(byte),
        }
    }
    brackets.deepest
}

/// The most brackets that are open at once in a grammar: in its rules, schemas and patterns, not in its texts.
fn grammar_depth(grammar: &[u8]) -> usize {
    let mut brackets = Brackets::default();
    let mut rest = grammar;
    while let Some(&byte) = rest.first() {
        let taken = match (byte, rest.get(1)) {
            (b'"', _) => closed(rest),
            // A comment.
            (b'#', _) | (b'/', Some(b'/')) => rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len()),
            (b'/', _) => {
                let taken = closed(rest);
                brackets.deepest = brackets.deepest.max(brackets.open + pattern_depth(&rest[1..taken]));
                taken
            }
            // The name of a token.
            (b'<', _) => {
                let end = 1 + rest[1..].iter().take_while(|byte| !b"<> \t\r\n".contains(byte)).count();
                if rest.get(end) == Some(&b'>') { end + 1 } else { 1 }
            }
            _ => {
                brackets.count(byte);
                1
            }
        };
        rest = &rest[taken..];
    }
    brackets.deepest
}

/// Bytes up to the sign that closes a text or pattern, which is the sign that opens it; all where none does.
fn closed(text: &[u8]) -> usize {
    let mut at = 1;
    while at < text.len() && text[at] != text[0] {
        at += if text[at] == b'\\' { 2 } else { 1 };
    }
    text.len().min(at + 1)
}

/// The schema with our white space, where it does not choose its own.
fn with_options(schema: Value) -> Result<Value, Refusal> {
    white_space::check(&schema)?;
    let mut schema = match schema {
        Value::Object(fields) => fields,
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => return Err(Refusal::new("one that accepts something", "false")),
        other => {
            let found = match other {
                Value::Null => "null",
                Value::Array(_) => "a list",
                Value::String(_) => "a text",
                _ => "a number",
            };
            return Err(Refusal::new("an object", found));
        }
    };
    white_space::add(&mut schema)?;
    Ok(Value::Object(schema))
}

/// The grammar of one of several texts: an alternative each, which the lexer makes one automaton of.
fn choice_grammar(choices: &[String]) -> String {
    let literal = |text: &String| serde_json::to_string(text).expect("texts are JSON");
    let texts: Vec<String> = choices.iter().filter(|text| !text.is_empty()).map(literal).collect();
    let empty = if texts.len() < choices.len() { r#""""# } else { "" };
    match (texts.is_empty(), empty) {
        (true, _) => format!("start: {empty}"),
        (false, "") => format!("start: CHOICE\nCHOICE: {}", texts.join(" | ")),
        (false, empty) => format!("start: CHOICE | {empty}\nCHOICE: {}", texts.join(" | ")),
    }
}

/// The pattern without anchors where an alternative of the whole begins or ends: the whole text must match anyway.
fn without_anchors(pattern: &str) -> String {
    const BEGINS: [&str; 2] = ["^", r"\A"];
    const ENDS: [&str; 3] = ["$", r"\Z", r"\z"];
    let mut kept = String::with_capacity(pattern.len());
    let (mut depth, mut in_class, mut at_begin) = (0_usize, false, true);
    let mut rest = pattern;
    if let Some(end) = rest.strip_prefix("(?").and_then(|flags| flags.find(|c: char| !c.is_ascii_alphabetic())) {
        // Flags of the whole pattern.
        if rest[2 + end..].starts_with(')') && end > 0 {
            kept.push_str(&rest[..end + 3]);
            rest = &rest[end + 3..];
        }
    }
    while let Some(c) = rest.chars().next() {
        let whole = depth == 0 && !in_class;
        if let Some(anchor) = BEGINS.iter().find(|anchor| whole && at_begin && rest.starts_with(**anchor)) {
            rest = &rest[anchor.len()..];
            continue;
        }
        if let Some(anchor) = ENDS.iter().find(|anchor| whole && rest.starts_with(**anchor)) {
            let behind = &rest[anchor.len()..];
            if behind.is_empty() || behind.starts_with('|') {
                rest = behind;
                continue;
            }
        }
        at_begin = whole && c == '|';
        let escaped = if c == '\\' { rest[1..].chars().next() } else { None };
        match c {
            '[' if !in_class => in_class = true,
            ']' if in_class && !kept.ends_with('[') && !kept.ends_with("[^") => in_class = false,
            '(' if !in_class => depth += 1,
            ')' if !in_class => depth = depth.saturating_sub(1),
            _ => {}
        }
        let taken = c.len_utf8() + escaped.map_or(0, char::len_utf8);
        kept.push_str(&rest[..taken]);
        rest = &rest[taken..];
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_of_the_whole_are_left_out() {
        let cases = [
            ("^a+$", "a+"),
            (r"\Aa\Z", "a"),
            ("^a$|^b$", "a|b"),
            ("^(a|b)$", "(a|b)"),
            (r"a\$", r"a\$"),
            (r"^\^a$", r"\^a"),
            ("[$^]", "[$^]"),
            ("[^$]$", "[^$]"),
            ("[]$]$", "[]$]"),
            ("(?i)^yes$", "(?i)yes"),
            ("(?:^a)$", "(?:^a)"),
            (r"a\\$", r"a\\"),
            ("", ""),
        ];
        for (pattern, expected) in cases {
            assert_eq!(without_anchors(pattern), expected, "{pattern}");
        }
    }

    #[test]
    fn a_schema_in_a_grammar_is_rewritten_and_bounded() {
        let schema = Form::schema_in_grammar(json!({"type": "string", "format": "password"})).expect("a schema");
        assert_eq!(schema, json!({"type": "string"}));
        let refused = Form::schema_in_grammar(json!({"const": "a".repeat(MOST_BYTES)})).unwrap_err().to_string();
        assert_eq!(refused, "JSON schema: expected at most 256 KiB, found 257 KiB");
        let nested = |required: Value| {
            let schema = json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": required});
            Form::schema_in_grammar(schema).map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(nested(json!([])), Ok(()));
        let endless = "JSON schema: expected one that some text has, found one whose texts would go on without end";
        assert_eq!(nested(json!(["a"])), Err(endless.to_owned()));
        let described = json!({"type": "string", "description": "a".repeat(2 * MOST_BYTES)});
        assert_eq!(Form::schema_in_grammar(described).expect("short"), json!({"type": "string"}));
        let mut deep = json!({});
        for _ in 0..MOST_DEPTH + 1 {
            deep = json!({"not": deep});
        }
        let refused = Form::schema_in_grammar(deep).unwrap_err().to_string();
        assert_eq!(refused, "JSON schema: expected at most 100 levels of nesting, found more");
    }

    #[test]
    fn texts_of_grammars_have_no_depth() {
        let smiles = ":(".repeat(200);
        let cases = [
            (format!("start: \"{smiles}\" ((\"a\"))"), 2),
            (format!("start: \"\\\"{smiles}\" (\"a\")"), 1),
            (format!("start: %json {{\"enum\": [\"{smiles}\"]}}"), 2),
            (format!("// {smiles} \"\n# /{smiles}\nstart: (\"a\")"), 1),
            (r#"start: ("a" | /"(\/[a-z])+\(\(\(/ | ["b"]) <[17]> <"> ("c")"#.to_owned(), 3),
        ];
        for (grammar, depth) in cases {
            assert_eq!(grammar_depth(grammar.as_bytes()), depth, "{grammar}");
        }
        let pattern = r"\(".repeat(200);
        assert_eq!((pattern_depth(pattern.as_bytes()), pattern_depth(b"((a)[(])")), (0, 3));
    }

    #[test]
    fn long_and_deep_forms_are_refused() {
        let refused = |form: Form| {
            let refusal = grammar(&form).map(|_| ()).unwrap_err();
            format!("{}: expected {}, found {}", form.kind(), refusal.expected, refusal.found)
        };
        let mut deep = json!({"type": "string"});
        for _ in 0..MOST_DEPTH + 1 {
            deep = json!({"not": deep});
        }
        assert_eq!(refused(Form::Json(deep)), "JSON schema: expected at most 100 levels of nesting, found more");
        let long = json!({"const": "a".repeat(MOST_BYTES)});
        assert_eq!(refused(Form::Json(long)), "JSON schema: expected at most 256 KiB, found 257 KiB");
        let brackets = format!("start: {}\"a\"{}", "(".repeat(101), ")".repeat(101));
        assert_eq!(refused(Form::Lark(brackets)), "Lark grammar: expected at most 100 levels of nesting, found more");
        assert_eq!(refused(Form::Choice(Vec::new())), "choice: expected one text or more, found none");
        assert_eq!(refused(Form::Json(json!(false))), "JSON schema: expected one that accepts something, found false");
        assert_eq!(refused(Form::Json(json!([1]))), "JSON schema: expected an object, found a list");
    }
}
