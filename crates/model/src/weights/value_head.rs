//! Finds the layers of a scorer among the tensors of its checkpoint: their names and shapes decide, as the published
//! classes have names that say little of them. What their values mean is not decided here.

use offshoot_core::error::{Error, Result};

use super::super::config::{ModelConfig, ValueHead, ValueLayer};
use super::naming::VALUE_PREFIXES;
use super::tensor_source::{TensorSource, TensorView};

/// The modules that published scorers have for their values: of transformers' classifiers and of Qwen's reward models
/// (`score`), of trl's models and Skywork's PRMs (`v_head.summary`), of Athene and Starling (`v_head`), of Eurus and
/// UltraRM (`regression_head`), of Beaver (`score_head`), and of others.
pub const VALUE_MODULES: [&str; 9] = [
    "score",
    "v_head.summary",
    "v_head",
    "regression_head",
    "score_head",
    "classifier",
    "reward_head",
    "value_head",
    "rm_head",
];

/// A module under one of the prefixes, of which the checkpoint has tensors.
struct FoundModule {
    prefix: &'static str,
    module: &'static str,
    /// The layers' names behind the prefix: the module itself, or its parts 0, 2, 4, ... with a ReLU between each two.
    layers: Vec<String>,
}

impl FoundModule {
    fn of(tensors: &dyn TensorSource, prefix: &'static str, module: &'static str) -> Option<Self> {
        let has = |layer: &str| tensors.tensor(&format!("{prefix}{layer}.weight")).is_some();
        let layers = match has(module) {
            true => vec![module.to_owned()],
            false => (0..).step_by(2).map(|part| format!("{module}.{part}")).take_while(|layer| has(layer)).collect(),
        };
        (!layers.is_empty()).then_some(Self { prefix, module, layers })
    }

    fn name(&self) -> String {
        format!("{}{}", self.prefix, self.module)
    }
}

/// The value head that a checkpoint has. `labels`: the number of values, where config.json says it.
///
/// # Errors
///
/// There is no such module or more than one, or a shape does not fit the model, the layer before, or `labels`.
pub fn value_head(tensors: &dyn TensorSource, config: &ModelConfig, labels: Option<usize>) -> Result<ValueHead> {
    let of_prefix = |prefix: &'static str| VALUE_MODULES.map(|module| FoundModule::of(tensors, prefix, module));
    let mut found: Vec<FoundModule> = VALUE_PREFIXES.into_iter().flat_map(of_prefix).flatten().collect();
    let (Some(head), rest) = (found.pop(), found) else {
        let expected =
            format!("tensors of one of {}, by which a reward model computes its values", list(&VALUE_MODULES));
        return Err(Error::format(tensors.place(None), format!("expected {expected}, found none of them")));
    };
    if let Some(other) = rest.first() {
        let found = format!("both {} and {}", other.name(), head.name());
        let what = format!("expected one module by which a reward model computes its values, found {found}");
        return Err(Error::format(tensors.place(None), what));
    }
    let mut inputs = config.hidden;
    let mut layers = Vec::new();
    for module in &head.layers {
        let layer = layer(tensors, head.prefix, module, inputs)?;
        inputs = layer.outputs;
        layers.push(layer);
    }
    let last = layers.pop().expect("a module that is found has a layer");
    match labels {
        Some(labels) if labels != last.outputs => {
            let name = format!("{}{}.weight", head.prefix, last.module);
            let expected = format!("[{labels}, ...] by num_labels of config.json");
            Err(Error::tensor(tensors.place(Some(&name)), &name, expected, format!("[{}, ...]", last.outputs)))
        }
        _ => Ok(ValueHead { inner: layers, last }),
    }
}

/// A layer that reads `inputs` numbers.
fn layer(tensors: &dyn TensorSource, prefix: &str, module: &str, inputs: usize) -> Result<ValueLayer> {
    let named = |end: &str| format!("{prefix}{module}.{end}");
    let wrong = |tensor: &TensorView<'_>, expected: String| {
        Error::tensor(tensors.place(Some(tensor.name)), tensor.name, expected, format!("{:?}", tensor.shape))
    };
    let weight = tensors.tensor(&named("weight")).expect("a layer is found by its weight");
    let &[outputs, columns] = weight.shape else {
        return Err(wrong(&weight, format!("[values, {inputs}]")));
    };
    if outputs == 0 || columns != inputs {
        return Err(wrong(&weight, format!("[values, {inputs}], as the layer reads {inputs} numbers")));
    }
    let bias = tensors.tensor(&named("bias"));
    match bias {
        Some(bias) if bias.shape != [outputs] => Err(wrong(&bias, format!("[{outputs}]"))),
        _ => Ok(ValueLayer { module: module.to_owned(), outputs, bias: bias.is_some() }),
    }
}

fn list(modules: &[&str]) -> String {
    modules.iter().map(|module| format!("`{module}`")).collect::<Vec<_>>().join(", ")
}
