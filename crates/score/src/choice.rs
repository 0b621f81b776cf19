//! Which form a scorer has: the one that is asked for, the one in its folder, or the one of its class. The table of
//! built-in forms is `built_in.json`: a form for another published model is a row there and perhaps one of
//! [`CLASSES`].

use std::path::Path;
use std::sync::LazyLock;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::form::ScoreForm;
use offshoot_core::error::{Error, Result};
use offshoot_core::{input, json};

/// The file of a model folder that has the model's form.
pub const FORM_FILE: &str = "scorer.json";

static BUILT_IN: LazyLock<Map<String, Value>> =
    LazyLock::new(|| serde_json::from_str(include_str!("built_in.json")).expect("an object of the project's own"));

/// Parts of the names of classes in config.json's `architectures`, and their forms: the first one counts.
const CLASSES: [(&str, &str); 8] = [
    ("ForProcessRewardModel", "step-tag"),
    ("PrmModel", "step-lines"),
    ("ForTokenClassification", "separator"),
    ("ForSequenceClassification", "last-token"),
    ("RewardModel", "last-token"),
    ("ForReward", "last-token"),
    ("ForScore", "last-token"),
    ("WithValueHead", "last-token"),
];

/// The names of the built-in forms.
pub fn built_in_names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.keys().map(String::as_str)
}

/// The names of the built-in forms that read words, or of those that read the values of a head.
pub fn names_that_fit(reads_words: bool) -> String {
    let fits = |name: &&str| ScoreForm::built_in(name).is_ok_and(|form| form.reads_words() == reads_words);
    built_in_names().filter(fits).map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
}

/// A form that is asked for: the name of a built-in one, or a whole one.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum FormChoice {
    /// A built-in form's name.
    Named(String),
    /// A form of one's own.
    Own(Box<ScoreForm>),
}

impl<'de> Deserialize<'de> for FormChoice {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<FormChoice, D::Error> {
        // Not by trying one after the other: an error is to name the wrong field.
        Ok(match Value::deserialize(from)? {
            Value::String(name) => FormChoice::Named(name),
            other => FormChoice::Own(Box::new(form_of(other).map_err(serde::de::Error::custom)?)),
        })
    }
}

impl FormChoice {
    /// What a user names: a file with a form if there is one, else a built-in form.
    ///
    /// # Errors
    ///
    /// The file cannot be read or is no form; or there is no such file, and no built-in form has this name.
    pub fn named(text: &str) -> Result<FormChoice> {
        let path = Path::new(text);
        if path.is_file() {
            return read_choice(path);
        }
        if BUILT_IN.contains_key(text) {
            return Ok(FormChoice::Named(text.to_owned()));
        }
        let there_is = if path.is_dir() { "this is a folder" } else { "there is no file of this name" };
        let expected = format!("{}, or a file with a form ({there_is})", names());
        Err(Error::value(WHAT, expected, format!("\"{text}\"")))
    }

    /// The form itself.
    ///
    /// # Errors
    ///
    /// No built-in form has this name.
    pub fn form(&self) -> Result<ScoreForm> {
        match self {
            FormChoice::Named(name) => ScoreForm::built_in(name),
            FormChoice::Own(form) => Ok((**form).clone()),
        }
    }
}

impl ScoreForm {
    /// The built-in form of this name.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn built_in(name: &str) -> Result<ScoreForm> {
        let Some(form) = BUILT_IN.get(name) else {
            let expected = format!("{}, or an object that is a form", names());
            return Err(Error::value(WHAT, expected, format!("\"{name}\"")));
        };
        Ok(ScoreForm::deserialize(form).expect("the built-in forms are ones"))
    }

    /// The name of the built-in form that it is; `None`: it is one of its own.
    pub fn built_in_name(&self) -> Option<&'static str> {
        built_in_names().find(|name| ScoreForm::built_in(name).is_ok_and(|built_in| built_in == *self))
    }

    /// The form of a class in config.json's `architectures`, if that tells.
    pub fn of_class(class: &str) -> Option<ScoreForm> {
        let (_, name) = CLASSES.iter().find(|(part, _)| class.contains(part))?;
        Some(ScoreForm::built_in(name).expect("the table has names of built-in forms"))
    }

    /// The form in a model folder's file, if it has one: a whole form, or the name of a built-in one.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is no form.
    pub fn of_folder(folder: &Path) -> Result<Option<ScoreForm>> {
        let path = folder.join(FORM_FILE);
        if !path.is_file() {
            return Ok(None);
        }
        read_choice(&path)?.form().map(Some)
    }

    /// The form of the model in `folder`: the one that is asked for, else the one in the folder's file, else the one of
    /// the model's class. `class`: the first of config.json's `architectures`.
    ///
    /// # Errors
    ///
    /// The form that is asked for or in the file is none; or neither is there, and the class does not tell.
    pub fn of_model(asked: Option<&FormChoice>, folder: &Path, class: &str) -> Result<ScoreForm> {
        if let Some(asked) = asked {
            return asked.form();
        }
        if let Some(own) = ScoreForm::of_folder(folder)? {
            return Ok(own);
        }
        ScoreForm::of_class(class).ok_or_else(|| {
            let expected = format!(
                "the class of a reward model, or else the scorer's form: {}, or one in a file {FORM_FILE} beside it",
                names()
            );
            Error::field(folder.join("config.json"), "architectures", expected, format!("\"{class}\""))
        })
    }
}

/// What errors call a form.
const WHAT: &str = "form of a scorer";

/// The form in a file, or the built-in one that it names.
fn read_choice(path: &Path) -> Result<FormChoice> {
    let wrong = |why: String| Error::format(path, format!("not the form of a scorer: {why}"));
    let choice: FormChoice =
        serde_json::from_slice(&input::model_file(path)?).map_err(|error| wrong(error.to_string()))?;
    choice.form().map_err(|error| wrong(error.to_string()))?;
    Ok(choice)
}

/// The form that an object is. The error says where in it something is wrong, in the words of JSON.
fn form_of(mut form: Value) -> Result<ScoreForm, String> {
    let Some(keys) = form.as_object() else {
        return Err(format!("expected a form's name or an object that is one, found {}", json::cut_json(&form, 60)));
    };
    let missing: Vec<&str> = ["text", "output"].into_iter().filter(|key| !keys.contains_key(*key)).collect();
    if !missing.is_empty() {
        let missing: Vec<String> = missing.iter().map(|key| format!("`{key}`")).collect();
        return Err(format!("a form has `text` and `output`; this one lacks {}", missing.join(" and ")));
    }
    // What has no keys that must be given may be written as its name alone.
    for pointer in ["/text", "/text/chat/read", "/text/plain/read", "/output"] {
        if let Some(Value::String(name)) = form.pointer(pointer) {
            let named = Value::Object(Map::from_iter([(name.clone(), Value::Object(Map::new()))]));
            *form.pointer_mut(pointer).expect("it was found") = named;
        }
    }
    serde_path_to_error::deserialize(form).map_err(|error| {
        let said = in_words_of_json(&error.inner().to_string());
        match error.path().iter().next() {
            Some(_) => format!("`{}`: {said}", error.path()),
            None => said,
        }
    })
}

/// What serde says of a value, without the words for types of Rust.
fn in_words_of_json(said: &str) -> String {
    let word = |of_rust: &str| match of_rust {
        "map" | "a map" => "an object".to_owned(),
        "sequence" | "a sequence" => "a list".to_owned(),
        "map with a single key" | "string or map" => "a name, or an object with one key".to_owned(),
        "unit" | "unit variant" => "its name alone".to_owned(),
        "f64" | "usize" | "u32" => "a number".to_owned(),
        other if other.starts_with("struct ") => "an object".to_owned(),
        other => other.to_owned(),
    };
    let (found, expected) = said.split_once(", expected ").unwrap_or((said, ""));
    let found = match found.split_once(": ") {
        Some((kind @ ("invalid type" | "invalid value"), found)) => format!("{kind}: {}", word(found)),
        _ => found.replace("unknown variant ", "unknown name "),
    };
    if expected.is_empty() { found } else { format!("{found}, expected {}", word(expected)) }
}

fn names() -> String {
    built_in_names().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::form::{ChatRead, FormText};

    #[test]
    fn every_built_in_form_is_one_and_survives_being_written() {
        for name in built_in_names() {
            let form = ScoreForm::built_in(name).unwrap();
            let written = serde_json::to_string(&form).unwrap();
            assert_eq!(serde_json::from_str::<ScoreForm>(&written).unwrap(), form, "{name}");
            let choice: FormChoice = serde_json::from_str(&written).unwrap();
            assert_eq!(choice.form().unwrap(), form, "{name}");
        }
        assert!(CLASSES.iter().all(|(_, name)| ScoreForm::built_in(name).is_ok()));
    }

    #[test]
    fn classes_of_published_models_tell_their_forms() {
        let classes = [
            ("Qwen2ForProcessRewardModel", "step-tag"),
            ("Qwen2ForPrmModel", "step-lines"),
            ("Qwen2ForTokenClassification", "separator"),
            ("Qwen3ForSequenceClassification", "last-token"),
            ("Qwen2ForRewardModel", "last-token"),
            ("LlamaForRewardModel", "last-token"),
            ("LlamaRewardModel", "last-token"),
            ("LlamaForScore", "last-token"),
            ("AutoModelForCausalLMWithValueHead", "last-token"),
        ];
        for (class, name) in classes {
            assert_eq!(ScoreForm::of_class(class), Some(ScoreForm::built_in(name).unwrap()), "{class}");
        }
        assert_eq!(ScoreForm::of_class("MistralForCausalLM"), None);
    }

    #[test]
    fn the_form_asked_for_comes_before_the_folder_s_and_that_before_the_class_s() {
        let folder = tempfile::TempDir::new().unwrap();
        let of = |asked: Option<&str>, class: &str| {
            let asked = asked.map(|name| FormChoice::Named(name.to_owned()));
            ScoreForm::of_model(asked.as_ref(), folder.path(), class)
        };
        let built_in = |name: &str| ScoreForm::built_in(name).unwrap();
        assert_eq!(of(None, "Qwen2ForPrmModel").unwrap(), built_in("step-lines"));
        let unnamed = of(None, "MistralForCausalLM").unwrap_err().to_string();
        for part in ["config.json", "architectures", "MistralForCausalLM", "words-at-tag", "scorer.json"] {
            assert!(unnamed.contains(part), "{unnamed}");
        }
        let own = serde_json::to_string(&built_in("words-at-turn")).unwrap();
        std::fs::write(folder.path().join(FORM_FILE), own).unwrap();
        assert_eq!(of(None, "Qwen2ForPrmModel").unwrap(), built_in("words-at-turn"));
        assert_eq!(of(Some("yes-no"), "Qwen2ForPrmModel").unwrap(), built_in("yes-no"));
        let unknown = of(Some("rlhflow"), "Qwen2ForPrmModel").unwrap_err().to_string();
        assert!(unknown.contains("rlhflow") && unknown.contains("words-at-turn"), "{unknown}");
        std::fs::write(folder.path().join(FORM_FILE), r#"{"text": {"chat": {"read": {"end": {}}, "rad": 1}}}"#)
            .unwrap();
        let broken = of(None, "Qwen2ForPrmModel").unwrap_err().to_string();
        assert!(broken.contains(FORM_FILE) && broken.contains("`output`"), "{broken}");
        std::fs::write(folder.path().join(FORM_FILE), r#""yes-no""#).unwrap();
        assert_eq!(of(None, "Qwen2ForPrmModel").unwrap(), built_in("yes-no"));
    }

    #[test]
    fn forms_read_a_head_or_words() {
        assert_eq!(names_that_fit(true), r#""words-at-tag", "words-at-turn", "token-logit", "yes-no""#);
        assert_eq!(names_that_fit(false), r#""last-token", "step-tag", "step-lines", "separator""#);
    }

    #[test]
    fn users_name_a_built_in_form_or_a_file() {
        assert_eq!(FormChoice::named("step-tag").unwrap(), FormChoice::Named("step-tag".to_owned()));
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("own.json");
        let form = ScoreForm::built_in("step-lines").unwrap();
        std::fs::write(&path, serde_json::to_string(&form).unwrap()).unwrap();
        let named = || FormChoice::named(&path.display().to_string());
        assert_eq!(named().unwrap().form().unwrap(), form);
        std::fs::write(&path, r#""step-tag""#).unwrap();
        assert_eq!(named().unwrap(), FormChoice::Named("step-tag".to_owned()));
        for (broken, part) in [("{}", "`text` and `output`"), (r#""step-tagg""#, "\"step-tagg\""), ("{", "line 1")] {
            std::fs::write(&path, broken).unwrap();
            let said = named().unwrap_err().to_string();
            assert!(said.contains("own.json") && said.contains(part), "{said}");
        }
        let unknown = FormChoice::named("no-such.json").unwrap_err().to_string();
        assert!(unknown.contains("no file of this name") && unknown.contains("step-tag"), "{unknown}");
        let folder = FormChoice::named(&folder.path().display().to_string()).unwrap_err().to_string();
        assert!(folder.contains("this is a folder"), "{folder}");
    }

    fn wrong(text: &str) -> String {
        serde_json::from_str::<FormChoice>(text).unwrap_err().to_string()
    }

    #[test]
    fn what_has_only_defaults_may_be_written_as_its_name() {
        let [short, long] = [r#""end""#, r#"{"end": {}}"#].map(|read| {
            let form = format!(r#"{{"text": {{"chat": {{"read": {read}}}}}, "output": {{"logit": {{"token": 0}}}}}}"#);
            serde_json::from_str::<FormChoice>(&form).unwrap()
        });
        assert_eq!(short, long);
        let parts = r#"{"text": {"plain": {"text": "{{question}}{{answer}}", "special_tokens": false,
            "read": "parts"}}, "output": {"column": {"activation": "none"}}}"#;
        assert!(serde_json::from_str::<FormChoice>(parts).is_ok());
        let column = r#"{"text": {"chat": {"read": "end"}}, "output": "column"}"#;
        assert!(wrong(column).contains("`output.column`: missing field `activation`"), "{}", wrong(column));
    }

    /// The place, what is wrong there, and no word for a type of Rust.
    #[test]
    fn a_wrong_field_of_a_form_is_named() {
        let read = |read: &str| {
            format!(r#"{{"text": {{"chat": {{"read": {read}}}}}, "output": {{"logit": {{"token": 0}}}}}}"#)
        };
        let output = |output: &str| format!(r#"{{"text": {{"chat": {{"read": "end"}}}}, "output": {output}}}"#);
        let text = |text: &str| format!(r#"{{"text": {text}, "output": {{"logit": {{"token": 0}}}}}}"#);
        let cases = [
            ("7".to_owned(), &["a form's name or an object", "7"][..]),
            ("[]".to_owned(), &["a form's name or an object"]),
            ("{}".to_owned(), &["lacks `text` and `output`"]),
            (r#"{"name": "a", "text": {}}"#.to_owned(), &["lacks `output`"]),
            (read(r#"{"tags": {"tagg": "x"}}"#), &["text.chat.read.tags", "`tagg`", "`tag`"]),
            (read(r#"{"tags": 7}"#), &["text.chat.read.tags", "7", "an object"]),
            (read(r#"{"end": [1]}"#), &["text.chat.read.end", "an object"]),
            (read(r#""tags""#), &["text.chat.read.tags", "missing field `tag`"]),
            (read(r#""lines""#), &["text.chat.read", "unknown name `lines`", "`parts`"]),
            (read(r#"{"end": {}, "tags": {}}"#), &["text.chat.read", "an object with one key"]),
            (read("7"), &["text.chat.read", "a name, or an object"]),
            (text("{}"), &["`text`"]),
            (text(r#""chat""#), &["text.chat", "missing field `read`"]),
            (text(r#"{"plain": "x"}"#), &["text.plain", "\"x\"", "an object"]),
            (text(r#"{"chat": {"read": "end", "variables": []}}"#), &["text.chat.variables", "an object"]),
            (output(r#"{"column": {"activation": {}}}"#), &["output.column.activation", "a name"]),
            (output(r#"{"column": {"activation": "relu"}}"#), &["activation", "unknown name `relu`", "`sigmoid`"]),
            (
                output(r#"{"column": {"column": 0.5, "activation": "none"}}"#),
                &["output.column.column", "number or the name"],
            ),
            (output(r#"{"weighted": {"weights": 1, "activation": "none"}}"#), &["output.weighted.weights", "a list"]),
            (output(r#"{"weighted": {"weights": ["a"], "activation": "none"}}"#), &["weights[0]", "a number"]),
            (
                output(r#"{"words": {"good": [true], "bad": []}}"#),
                &["output.words.good[0]", "text of a token or its id"],
            ),
        ];
        for (form, parts) in cases {
            let said = wrong(&form);
            assert!(parts.iter().all(|part| said.contains(part)), "{form}: {said}");
            let words: Vec<&str> = said.split(|c: char| !c.is_alphanumeric()).collect();
            let of_rust = ["struct", "enum", "variant", "map", "unit", "sequence", "untagged", "f64", "usize"];
            assert!(!of_rust.iter().any(|word| words.contains(word)), "{form}: {said}");
        }
        let FormText::Chat(chat) = ScoreForm::built_in("step-tag").unwrap().text else { panic!("a chat") };
        assert!(matches!(chat.read, ChatRead::Tags(tags) if tags.separator == "\n\n" && !tags.trims_end));
    }
}
