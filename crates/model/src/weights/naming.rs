//! How the names of a checkpoint differ from the layout's: by what stands before them, and by how experts are stored.

use std::borrow::Cow;
use std::collections::HashSet;

use super::super::config::{
    EXPERTS,
    ExpertForm::{self, Stacked},
    Modules, OwnNames, StackedForm, module_of, own_name,
};
use super::super::layout::{HEAD, Layout};
use super::value_head::VALUE_MODULES;

/// How the layout's names begin, but for those of the output layer and of a scorer's layers.
pub const PREFIX: &str = "model.";
/// The module by whose name the prefix of a checkpoint is found.
const EMBED: &str = "model.embed_tokens";
/// The prefixes of checkpoints of a text model in a wrapper (as transformers 5 writes it, and as versions before did),
/// and of one in trl's wrapper.
const WRAPPED: [&str; 3] = ["model.language_model.", "language_model.model.", "pretrained_model.model."];
/// What may stand before the names of a scorer's layers.
pub const VALUE_PREFIXES: [&str; 4] = ["", "model.", "language_model.", "pretrained_model."];

/// The modules of a checkpoint with these names, of a family that publishes `modules`.
pub fn stored_modules<'a>(modules: Modules, mut names: impl Iterator<Item = &'a str>) -> Modules {
    let stacked = format!(".{EXPERTS}.gate_up_proj");
    let blocks = format!("{stacked}_blocks");
    let (has, form) = match modules.experts {
        ExpertForm::Separate { .. } => (stacked, None),
        Stacked(StackedForm::Transposed { alternate: true }) => (blocks, Some(StackedForm::Mxfp4)),
        Stacked(StackedForm::Mxfp4) => (stacked, Some(StackedForm::Transposed { alternate: true })),
        Stacked(StackedForm::Plain | StackedForm::Transposed { alternate: false }) => return modules,
    };
    match (names.any(|name| name.ends_with(&has)), form) {
        (false, _) => modules,
        (true, None) => modules.with_stacked_experts(),
        (true, Some(form)) => Modules { experts: Stacked(form), ..modules },
    }
}

/// How one checkpoint's names begin.
#[derive(Clone, Copy, Debug)]
pub struct Naming {
    /// What the family calls modules outside layers, and all layers.
    own: OwnNames,
    /// How the family begins these names, but for that of the output layer.
    root: &'static str,
    /// What stands in place of it.
    prefix: &'static str,
    /// What stands before names of the output layer.
    head_prefix: &'static str,
    /// What stands before names of a scorer's layers.
    value_prefix: &'static str,
}

impl Naming {
    /// The naming of a checkpoint with these names, of a family that calls modules outside layers as `own` says.
    pub fn of<'a>(names: impl Iterator<Item = &'a String> + Clone, own: OwnNames) -> Self {
        let has = |name: String| names.clone().any(|other| *other == name);
        let root = root(own);
        let with = |prefix: &'static str| Self::with_prefix(own, prefix);
        let found = prefixes(root).find(|prefix| has(format!("{}.weight", with(prefix).in_file(EMBED))));
        let any = || if names.clone().any(|name| name.starts_with(root)) { root } else { "" };
        let has_values = |prefix: &&str| {
            let modules =
                VALUE_MODULES.iter().flat_map(|module| ["", ".0"].map(|part| format!("{prefix}{module}{part}")));
            modules.into_iter().any(|module| has(format!("{module}.weight")))
        };
        let value_prefix = VALUE_PREFIXES.into_iter().find(has_values).unwrap_or("");
        Self { value_prefix, ..with(found.unwrap_or_else(any)) }
    }

    /// The naming by which most of these names, which may be few, are those of tensors of `layout`, and how many are.
    pub fn matching(names: &[&str], layout: &Layout, own: OwnNames) -> (Self, usize) {
        let known = |prefix: &'static str| {
            let naming = Self::with_prefix(own, prefix);
            let read: Vec<_> = layout.tensors().map(|spec| naming.in_file(module_of(&spec.name))).collect();
            let modules: HashSet<&str> = read.iter().map(|module| &**module).collect();
            let is_known = |name: &&&str| module_names(name).any(|module| modules.contains(module));
            (naming, names.iter().filter(is_known).count())
        };
        // Of equals the first: the last that `max_by_key` comes to.
        let known = prefixes(root(own)).rev().map(known).max_by_key(|(_, count)| *count);
        known.expect("there are prefixes")
    }

    fn with_prefix(own: OwnNames, prefix: &'static str) -> Self {
        let outer = ["language_model.", "pretrained_model."];
        let head_prefix = outer.into_iter().find(|outer| prefix.starts_with(outer)).unwrap_or("");
        Self { own, root: root(own), prefix, head_prefix, value_prefix: "" }
    }

    /// A name of the layout as the checkpoint has it.
    pub fn in_file<'a>(&self, name: &'a str) -> Cow<'a, str> {
        let own = own_name(self.own, name).map_or(Cow::Borrowed(name), Cow::Owned);
        if name.starts_with(PREFIX) {
            return match own.strip_prefix(self.root) {
                Some(rest) if self.prefix != self.root => Cow::Owned(format!("{}{rest}", self.prefix)),
                _ => own,
            };
        }
        match if name.starts_with(HEAD) { self.head_prefix } else { self.value_prefix } {
            "" => own,
            before => Cow::Owned(format!("{before}{own}")),
        }
    }

    /// Whether the model is part of a wrapper, which has other parts.
    pub fn is_wrapped(&self) -> bool {
        self.prefix.contains("language_model")
    }
}

/// How a family begins names outside layers: the first part of what it calls the table of embeddings.
fn root(own: OwnNames) -> &'static str {
    let embed = own.iter().find(|(module, _)| *module == EMBED).map(|(_, own)| *own);
    embed.and_then(|embed| Some(&embed[..=embed.find('.')?])).unwrap_or(PREFIX)
}

/// What may stand in place of `root`: it itself in a causal language model, a wrapper's, nothing in a bare decoder.
fn prefixes(root: &'static str) -> impl DoubleEndedIterator<Item = &'static str> {
    std::iter::once(root).chain(WRAPPED).chain([""])
}

/// What the module of a tensor of this name may be called: the name without what is said of the tensor.
fn module_names(name: &str) -> impl Iterator<Item = &str> {
    let dotted = name.rsplit_once('.').map(|(module, _)| module);
    let ends = ["_blocks", "_scales"].into_iter().filter_map(|end| name.strip_suffix(end));
    std::iter::once(name).chain(dotted).chain(ends)
}
