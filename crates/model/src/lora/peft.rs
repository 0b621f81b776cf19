//! The configuration of an adapter as PEFT writes it (adapter_config.json): ranks, scales and the modules that it
//! names. What changes a model in other ways than by low-rank sums in linear layers is refused.

use std::path::{Path, PathBuf};

use regex::Regex;
use serde_json::Value;

use offshoot_backend::MOST_RANK;
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::shortened;

/// Fields that must be absent, null, false or empty: each would change what is computed.
const REFUSED: [&str; 13] = [
    "use_dora",
    "lora_bias",
    "use_qalora",
    "modules_to_save",
    "target_parameters",
    "trainable_token_indices",
    "layer_replication",
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "use_bdlora",
    "ensure_weight_tying",
];

/// Ways to begin that change the model's own weights, too, so that the adapter does not fit the published ones.
const CHANGES_WEIGHTS: [&str; 5] = ["pissa", "olora", "corda", "loftq", "lora_ga"];

/// What an adapter's configuration says.
pub struct PeftConfig {
    path: PathBuf,
    rank: usize,
    alpha: f64,
    /// Whether scales divide by the root of the rank.
    by_root: bool,
    targets: Targets,
    /// The numbers of the layers that have adapters; `None`: all.
    layers: Option<Vec<usize>>,
    ranks: Vec<(Regex, usize)>,
    alphas: Vec<(Regex, f64)>,
}

/// The modules that have adapters.
enum Targets {
    All,
    /// Whole names, or their last parts.
    Named(Vec<String>),
    Matching(Regex),
}

impl PeftConfig {
    /// `path`: the file that errors name. `fan_in_fan_out` says how a model stores its own weights, not the adapter's:
    /// it changes nothing here.
    pub fn of(path: &Path, json: &Value) -> Result<Self> {
        let config = PeftFields { path, json };
        if !json.is_object() {
            return Err(Error::format(path, format!("expected an object, found {}", shown(json))));
        }
        if config.get("peft_type").as_str() != Some("LORA") {
            return Err(config.wrong("peft_type", "\"LORA\", the kind of adapter that is supported"));
        }
        if let Some(field) = REFUSED.into_iter().find(|field| !is_empty(config.get(field))) {
            return Err(config.wrong(field, "none: adapters are low-rank sums in linear layers"));
        }
        if !matches!(config.get("bias"), Value::Null) && config.get("bias").as_str() != Some("none") {
            return Err(config.wrong("bias", "\"none\": adapters with biases are not supported"));
        }
        let begins = config.get("init_lora_weights").as_str().unwrap_or_default();
        if CHANGES_WEIGHTS.iter().any(|way| begins.starts_with(way)) {
            let expected = "an adapter for the model's published weights (PEFT converts one when it saves it)";
            return Err(config.wrong("init_lora_weights", expected));
        }
        let rank = config.get("r").as_u64().and_then(rank_of).ok_or_else(|| config.wrong("r", RANK))?;
        let alpha = config.get("lora_alpha").as_f64().filter(|alpha| alpha.is_finite());
        Ok(Self {
            path: path.to_path_buf(),
            rank,
            alpha: alpha.ok_or_else(|| config.wrong("lora_alpha", "a number"))?,
            by_root: match config.get("use_rslora") {
                Value::Null => false,
                value => value.as_bool().ok_or_else(|| config.wrong("use_rslora", "true or false"))?,
            },
            targets: config.targets()?,
            layers: config.layers()?,
            ranks: config.patterns("rank_pattern", RANK, |value| value.as_u64().and_then(rank_of))?,
            alphas: config
                .patterns("alpha_pattern", "a number", |value| value.as_f64().filter(|alpha| alpha.is_finite()))?,
        })
    }

    /// The file that errors name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a module has an adapter. `module`: its name in the model that was trained.
    pub fn targets(&self, module: &str) -> bool {
        let is_named = match &self.targets {
            Targets::All => true,
            Targets::Named(names) => names.iter().any(|name| is_or_ends_with(module, name)),
            Targets::Matching(pattern) => pattern.is_match(module),
        };
        let in_layers = |layers: &Vec<usize>| number_of_layer(module).is_none_or(|number| layers.contains(&number));
        is_named && self.layers.as_ref().is_none_or(in_layers)
    }

    /// The rank of a module's adapter.
    pub fn rank(&self, module: &str) -> usize {
        found(&self.ranks, module).unwrap_or(self.rank)
    }

    /// What its sums are multiplied by.
    pub fn scale(&self, module: &str) -> f32 {
        let (rank, alpha) = (self.rank(module) as f64, found(&self.alphas, module).unwrap_or(self.alpha));
        (alpha / if self.by_root { rank.sqrt() } else { rank }) as f32
    }
}

const RANK: &str = "a rank of 1 to 512";
const _: () = assert!(MOST_RANK == 512, "the sentence says so");

fn rank_of(rank: u64) -> Option<usize> {
    usize::try_from(rank).ok().filter(|rank| (1..=MOST_RANK).contains(rank))
}

/// What the first pattern says that matches a module.
fn found<T: Copy>(patterns: &[(Regex, T)], module: &str) -> Option<T> {
    patterns.iter().find(|(pattern, _)| pattern.is_match(module)).map(|&(_, value)| value)
}

fn is_or_ends_with(module: &str, name: &str) -> bool {
    module.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// The first part of a name that is a number.
fn number_of_layer(module: &str) -> Option<usize> {
    module.split('.').find_map(|part| part.parse().ok())
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        value => shortened(value.to_string(), 200),
    }
}

/// The fields of a file.
struct PeftFields<'a> {
    path: &'a Path,
    json: &'a Value,
}

impl PeftFields<'_> {
    fn get(&self, field: &str) -> &Value {
        self.json.get(field).unwrap_or(&Value::Null)
    }

    fn wrong(&self, field: &str, expected: &str) -> Error {
        Error::field(self.path, field, expected, shown(self.get(field)))
    }

    /// A pattern that matches the end of a module's name, from the beginning of one of its parts on.
    fn pattern(&self, field: &str, pattern: &str) -> Result<Regex> {
        Regex::new(pattern).map_err(|_| self.wrong(field, "a regular expression without look-around or references"))
    }

    fn targets(&self) -> Result<Targets> {
        const FIELD: &str = "target_modules";
        Ok(match self.get(FIELD) {
            Value::Null => Targets::All,
            Value::String(text) if text == "all-linear" => Targets::All,
            Value::String(text) => Targets::Matching(self.pattern(FIELD, &format!("^(?:{text})$"))?),
            Value::Array(names) => {
                let names: Option<Vec<_>> = names.iter().map(|name| name.as_str().map(str::to_owned)).collect();
                Targets::Named(names.ok_or_else(|| self.wrong(FIELD, "names of modules"))?)
            }
            _ => return Err(self.wrong(FIELD, "names of modules, a regular expression or \"all-linear\"")),
        })
    }

    fn layers(&self) -> Result<Option<Vec<usize>>> {
        const FIELD: &str = "layers_to_transform";
        let number = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
        let numbers = match self.get(FIELD) {
            Value::Null => return Ok(None),
            Value::Array(numbers) => numbers.iter().map(number).collect(),
            value => number(value).map(|number| vec![number]),
        };
        numbers.map(Some).ok_or_else(|| self.wrong(FIELD, "numbers of layers"))
    }

    /// A value for each pattern of an object.
    fn patterns<T>(
        &self,
        field: &str,
        expected: &str,
        value_of: impl Fn(&Value) -> Option<T>,
    ) -> Result<Vec<(Regex, T)>> {
        let fields = match self.get(field) {
            Value::Null => return Ok(Vec::new()),
            Value::Object(fields) => fields,
            _ => return Err(self.wrong(field, "an object from names of modules to numbers")),
        };
        let pattern = |(name, value): (&String, &Value)| {
            let wrong = || Error::field(self.path, format!("{field}.{name}"), expected, shown(value));
            Ok((self.pattern(field, &format!(r"^(?:.*\.)?(?:{name})$"))?, value_of(value).ok_or_else(wrong)?))
        };
        fields.iter().map(pattern).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const FILE: &str = "adapter_config.json";

    /// A configuration with some fields changed.
    fn config(changes: Value) -> Result<PeftConfig> {
        let mut json = json!({
            "peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "mlp.up_proj"],
            "bias": "none", "use_dora": false, "modules_to_save": null, "fan_in_fan_out": false
        });
        let fields = json.as_object_mut().unwrap();
        for (field, value) in changes.as_object().unwrap() {
            fields.insert(field.clone(), value.clone());
        }
        PeftConfig::of(Path::new(FILE), &json)
    }

    #[test]
    fn scales_and_ranks_follow_patterns() {
        let plain = config(json!({})).unwrap();
        assert_eq!((plain.rank("a.q_proj"), plain.scale("a.q_proj")), (8, 2.0));
        let rooted = config(json!({"use_rslora": true, "r": 16})).unwrap();
        assert_eq!(rooted.scale("a.q_proj"), 4.0);
        let patterns =
            config(json!({"rank_pattern": {r"layers\.1\.self_attn\.q_proj": 4}, "alpha_pattern": {"q_proj": 32}}));
        let patterns = patterns.unwrap();
        let [first, second] = ["model.layers.1.self_attn.q_proj", "model.layers.11.self_attn.q_proj"];
        assert_eq!((patterns.rank(first), patterns.scale(first)), (4, 8.0));
        assert_eq!((patterns.rank(second), patterns.scale(second)), (8, 4.0));
        assert_eq!(patterns.scale("model.layers.1.mlp.up_proj"), 2.0);
    }

    #[test]
    fn modules_are_named_by_list_or_pattern() {
        let named = config(json!({"layers_to_transform": [0, 2]})).unwrap();
        let of = |layer: usize, module: &str| format!("model.layers.{layer}.{module}");
        assert!(named.targets(&of(0, "self_attn.q_proj")) && named.targets(&of(2, "mlp.up_proj")));
        assert!(!named.targets(&of(1, "self_attn.q_proj")) && !named.targets(&of(0, "self_attn.xq_proj")));
        let matching = config(json!({"target_modules": r".*\.(q|k)_proj"})).unwrap();
        assert!(matching.targets("a.k_proj") && !matching.targets("a.k_proj.b") && !matching.targets("k_proj"));
        assert!(config(json!({"target_modules": "all-linear"})).unwrap().targets("anything"));
    }

    #[test]
    fn what_is_not_supported_is_named_with_what_was_found() {
        let cases = [
            (json!({"use_dora": true}), "use_dora", "true"),
            (json!({"bias": "lora_only"}), "bias", "\"lora_only\""),
            (json!({"modules_to_save": ["lm_head"]}), "modules_to_save", "[\"lm_head\"]"),
            (json!({"target_parameters": ["experts.w"]}), "target_parameters", "[\"experts.w\"]"),
            (json!({"peft_type": "IA3"}), "peft_type", "\"IA3\""),
            (json!({"init_lora_weights": "pissa_niter_4"}), "init_lora_weights", "\"pissa_niter_4\""),
            (json!({"r": 0}), "r", "0"),
            (json!({"r": 4096}), "r", "4096"),
            (json!({"lora_alpha": null}), "lora_alpha", "nothing"),
            (json!({"rank_pattern": {"q_proj": "x"}}), "rank_pattern.q_proj", "\"x\""),
            (json!({"target_modules": "(?<=a)b"}), "target_modules", "\"(?<=a)b\""),
            (json!({"layers_to_transform": "0"}), "layers_to_transform", "\"0\""),
        ];
        for (changes, field, found) in cases {
            let error = config(changes).err().expect(field).to_string();
            let ends = error.ends_with(&format!(", found {found}"));
            assert!(error.starts_with(&format!("{FILE}: `{field}`: expected ")) && ends, "{error}");
        }
    }
}
