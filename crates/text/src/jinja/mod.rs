//! Jinja as Python's jinja2 has it, for chat templates and the templates of tasks. minijinja's parser reads a template;
//! what the template does is computed here, with Python's values, so that its text is jinja2's byte for byte. The
//! callers say what the context holds and what an error means.

mod call;
mod characters;
mod fault;
mod filters;
mod format;
mod functions;
mod lower;
mod methods;
mod names;
mod nodes;
mod operators;
mod percent;
mod predicates;
mod print;
mod run;
mod source;
mod strftime;
mod text_methods;
mod value;

use std::collections::BTreeSet;
use std::time::SystemTime;

use minijinja::machinery::{WhitespaceConfig, parse};
use minijinja::syntax::SyntaxConfig;
use serde_json::{Map, Value as Json};

pub(crate) use characters::is_space;
pub use fault::{Fault, FaultKind};
use nodes::Frame;
use run::{Run, Scope};
pub use strftime::strftime;
use value::Value;

/// What a rendering may do.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Undefined values are errors where they are printed, looped over, compared or tested, as jinja2's
    /// `StrictUndefined`; otherwise they are empty there, as its default.
    pub is_strict: bool,
    /// A printed null is an error; otherwise it prints `None`.
    pub refuses_null: bool,
    /// The time of `strftime_now`, in UTC; without one, that function is an error.
    pub now: Option<SystemTime>,
    /// Steps that a rendering may take; as many as it likes without.
    pub steps: Option<u64>,
}

/// How line ends and spaces around tags are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Whitespace {
    /// The template's last line end stays.
    pub keeps_last_line_end: bool,
    /// The line end behind a block's tag goes.
    pub trims_blocks: bool,
    /// Spaces in front of a block's tag go, from the line's begin.
    pub strips_blocks: bool,
}

/// A template that was read.
pub struct Template {
    root: Frame,
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    ///
    /// It is none of jinja2's, or has what is not supported: the error says which.
    pub fn read(source: &str, whitespace: Whitespace) -> Result<Template, Fault> {
        let source = source::prepared(source);
        let config = WhitespaceConfig {
            keep_trailing_newline: whitespace.keeps_last_line_end,
            lstrip_blocks: whitespace.strips_blocks,
            trim_blocks: whitespace.trims_blocks,
        };
        let tree = parse(&source, "template", SyntaxConfig, config).map_err(|error| Fault {
            kind: FaultKind::Other,
            message: error.detail().map_or_else(|| error.kind().to_string(), str::to_string),
            line: error.line().and_then(|line| u32::try_from(line).ok()),
        })?;
        let mut root = lower::lowered(&source, &tree).map_err(|fault| *fault)?;
        names::hide(&mut root);
        Ok(Template { root })
    }

    /// Renders it with these variables. It needs a stack of 16 MiB, as macros may call themselves.
    ///
    /// # Errors
    ///
    /// The template raises one, or does what is an error in Python.
    pub fn render(&self, environment: &Environment, variables: &Map<String, Json>) -> Result<String, Fault> {
        let render = || {
            let context = Scope::new(None);
            for (name, value) in variables {
                context.set(name.as_str().into(), Value::of_json(value)?);
            }
            let mut run = Run::new(environment);
            let mut out = String::new();
            let scope = run.frame(&self.root, &context);
            run.run_all(&self.root.body, &scope, &mut out)?;
            Ok(out)
        };
        render().map_err(|fault: Box<Fault>| *fault)
    }

    /// The names that the variables have to bring, and what is looked up in them, as dotted paths: `a` and `a.b`.
    pub fn asked(&self) -> BTreeSet<String> {
        names::asked_of_context(&self.root)
    }
}
