//! How the names of a checkpoint differ from the layout's: by what stands before them, and by how experts are stored.

use std::borrow::Cow;
use std::collections::HashSet;

use super::super::config::{
    ExpertForm::{self, Stacked},
    ExpertModules, Modules, STACKED_EXPERTS, StackedForm, module_of,
};
use super::super::layout::{HEAD, Layout};
use super::value_head::VALUE_MODULES;

/// How the layout's names begin, but for those of the output layer and of a scorer's layers.
pub const PREFIX: &str = "model.";
/// The table by which the prefix of a checkpoint is found.
const EMBED: &str = "embed_tokens.weight";
/// The prefixes of checkpoints: of a causal language model, of a text model in a wrapper (as transformers 5 writes it,
/// and as versions before did), of one in trl's wrapper, of the bare decoder.
const PREFIXES: [&str; 5] = [PREFIX, "model.language_model.", "language_model.model.", "pretrained_model.model.", ""];
/// What may stand before the names of a scorer's layers.
pub const VALUE_PREFIXES: [&str; 4] = ["", "model.", "language_model.", "pretrained_model."];

/// The modules of a checkpoint with these names, of a family that publishes `modules`.
pub fn stored_modules<'a>(modules: Modules, mut names: impl Iterator<Item = &'a str>) -> Modules {
    let (has, form) = match modules.experts.form {
        ExpertForm::Separate { .. } => (".mlp.experts.gate_up_proj", None),
        Stacked(StackedForm::Transposed) => (".mlp.experts.gate_up_proj_blocks", Some(StackedForm::Mxfp4)),
        Stacked(StackedForm::Mxfp4) => (".mlp.experts.gate_up_proj", Some(StackedForm::Transposed)),
        Stacked(StackedForm::Plain) => return modules,
    };
    match (names.any(|name| name.ends_with(has)), form) {
        (false, _) => modules,
        (true, None) => Modules { experts: STACKED_EXPERTS, ..modules },
        (true, Some(form)) => Modules { experts: ExpertModules { form: Stacked(form), ..modules.experts }, ..modules },
    }
}

/// The prefixes of one checkpoint's names.
#[derive(Clone, Copy, Debug)]
pub struct Naming {
    /// What stands in place of `PREFIX`.
    prefix: &'static str,
    /// What stands before names of the output layer.
    head_prefix: &'static str,
    /// What stands before names of a scorer's layers.
    value_prefix: &'static str,
}

impl Naming {
    /// The naming of a checkpoint with these names.
    pub fn of<'a>(names: impl Iterator<Item = &'a String> + Clone) -> Self {
        let has = |name: String| names.clone().any(|other| *other == name);
        let found = PREFIXES.into_iter().find(|prefix| has(format!("{prefix}{EMBED}")));
        let any = || if names.clone().any(|name| name.starts_with(PREFIX)) { PREFIX } else { "" };
        let has_values = |prefix: &&str| {
            let modules =
                VALUE_MODULES.iter().flat_map(|module| ["", ".0"].map(|part| format!("{prefix}{module}{part}")));
            modules.into_iter().any(|module| has(format!("{module}.weight")))
        };
        let value_prefix = VALUE_PREFIXES.into_iter().find(has_values).unwrap_or("");
        Self { value_prefix, ..Self::with_prefix(found.unwrap_or_else(any)) }
    }

    /// The naming by which most of these names, which may be few, are those of tensors of `layout`, and how many are.
    pub fn matching(names: &[&str], layout: &Layout) -> (Self, usize) {
        let known = |prefix: &'static str| {
            let naming = Self::with_prefix(prefix);
            let read: Vec<_> = layout.tensors().map(|spec| naming.in_file(module_of(&spec.name))).collect();
            let modules: HashSet<&str> = read.iter().map(|module| &**module).collect();
            let is_known = |name: &&&str| module_names(name).any(|module| modules.contains(module));
            (naming, names.iter().filter(is_known).count())
        };
        // Of equals the first: the last that `max_by_key` comes to.
        PREFIXES.into_iter().rev().map(known).max_by_key(|(_, count)| *count).expect("there are prefixes")
    }

    fn with_prefix(prefix: &'static str) -> Self {
        let outer = ["language_model.", "pretrained_model."];
        let head_prefix = outer.into_iter().find(|outer| prefix.starts_with(outer)).unwrap_or("");
        Self { prefix, head_prefix, value_prefix: "" }
    }

    /// A name of the layout as the checkpoint has it.
    pub fn in_file<'a>(&self, name: &'a str) -> Cow<'a, str> {
        match (name.strip_prefix(PREFIX), self.prefix) {
            (Some(_), PREFIX) => Cow::Borrowed(name),
            (Some(rest), "") => Cow::Borrowed(rest),
            (Some(rest), prefix) => Cow::Owned(format!("{prefix}{rest}")),
            (None, _) => match if name.starts_with(HEAD) { self.head_prefix } else { self.value_prefix } {
                "" => Cow::Borrowed(name),
                before => Cow::Owned(format!("{before}{name}")),
            },
        }
    }

    /// Whether the model is part of a wrapper, which has other parts.
    pub fn is_wrapped(&self) -> bool {
        self.prefix.contains("language_model")
    }
}

/// What the module of a tensor of this name may be called: the name without what is said of the tensor.
fn module_names(name: &str) -> impl Iterator<Item = &str> {
    let dotted = name.rsplit_once('.').map(|(module, _)| module);
    let ends = ["_blocks", "_scales"].into_iter().filter_map(|end| name.strip_suffix(end));
    std::iter::once(name).chain(dotted).chain(ends)
}
