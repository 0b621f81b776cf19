//! Which form a scorer has: the one that is asked for, the one in its folder, or the one of its class. The table of
//! built-in forms is `built_in.json`: a form for another published model is a row there and perhaps one of
//! [`CLASSES`].

use std::path::Path;
use std::sync::LazyLock;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::form::ScoreForm;
use offshoot_core::error::{Error, Result};
use offshoot_core::input;

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
            other => FormChoice::Own(Box::new(ScoreForm::deserialize(other).map_err(serde::de::Error::custom)?)),
        })
    }
}

impl FormChoice {
    /// What a user names: a file with a form if there is one, else a built-in form.
    ///
    /// # Errors
    ///
    /// The file cannot be read or is no form; or no built-in form has this name.
    pub fn named(text: &str) -> Result<FormChoice> {
        let path = Path::new(text);
        if path.is_file() {
            return Ok(FormChoice::Own(Box::new(read_form(path)?)));
        }
        ScoreForm::built_in(text).map_err(|error| match error {
            Error::Value { what, expected, found } => {
                let expected = expected.replace("or an object that is a form", "or a file with a form");
                Error::Value { what, expected, found }
            }
            other => other,
        })?;
        Ok(FormChoice::Named(text.to_owned()))
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
            return Err(Error::value("form of a scorer", expected, format!("\"{name}\"")));
        };
        Ok(ScoreForm::deserialize(form).expect("the built-in forms are ones"))
    }

    /// The form of a class in config.json's `architectures`, if that tells.
    pub fn of_class(class: &str) -> Option<ScoreForm> {
        let (_, name) = CLASSES.iter().find(|(part, _)| class.contains(part))?;
        Some(ScoreForm::built_in(name).expect("the table has names of built-in forms"))
    }

    /// The form in a model folder's file, if it has one.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is no form.
    pub fn of_folder(folder: &Path) -> Result<Option<ScoreForm>> {
        let path = folder.join(FORM_FILE);
        if !path.is_file() {
            return Ok(None);
        }
        read_form(&path).map(Some)
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

fn read_form(path: &Path) -> Result<ScoreForm> {
    let form = serde_json::from_slice(&input::model_file(path)?);
    form.map_err(|error| Error::format(path, format!("not the form of a scorer: {error}")))
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
        assert!(broken.contains(FORM_FILE) && broken.contains("rad"), "{broken}");
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
        std::fs::write(&path, "{}").unwrap();
        let broken = named().unwrap_err().to_string();
        assert!(broken.contains("own.json") && broken.contains("`text`"), "{broken}");
        let unknown = FormChoice::named("no-such.json").unwrap_err().to_string();
        assert!(unknown.contains("a file with a form") && unknown.contains("step-tag"), "{unknown}");
    }

    #[test]
    fn a_wrong_field_of_a_form_is_named() {
        let choice = |text: &str| serde_json::from_str::<FormChoice>(text).unwrap_err().to_string();
        let tags = r#"{"text": {"chat": {"read": {"tags": {"tagg": "x"}}}}, "output": {"logit": {"token": 0}}}"#;
        assert!(choice(tags).contains("tagg"), "{}", choice(tags));
        assert!(choice("7").contains("ScoreForm"), "{}", choice("7"));
        let FormText::Chat(chat) = ScoreForm::built_in("step-tag").unwrap().text else { panic!("a chat") };
        assert!(matches!(chat.read, ChatRead::Tags(tags) if tags.separator == "\n\n" && !tags.trims_end));
    }
}
