//! Refuses fields of a config.json that nobody reads: what they would change is not computed. Some change nothing;
//! these are listed with the reason, here those of all families.

use std::fmt;

use serde_json::Value;

use offshoot_core::error::Result;

use super::super::fields::{Fields, UsedKeys, shown};
use super::description::{Beside, Bias, Description, ExpertLayers, Factor, ImpliedKinds, KeyRule, Rotated, ScoreRule};
use super::family::Family;

/// Why a field changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It concerns training.
    Training,
    /// It concerns how tokens are chosen, or which ones have a meaning.
    Generation,
    /// It concerns parts of a model that read pictures or sound, which are left out.
    Pictures,
    /// It says what made or reads the files.
    Library,
    /// It says how something is computed, not what.
    Kernel,
    /// It concerns layers that predict further tokens, which are left out.
    Further,
    /// Models that have what it switches on are not computed: it must be off.
    Off,
    /// It says once more what this field says, and must say the same.
    Repeats(&'static str),
    /// Neither transformers nor the published code reads it.
    Unread,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Training => "training",
            Self::Generation => "choice and meaning of tokens",
            Self::Pictures => "pictures and sound, which are left out",
            Self::Library => "what made or reads the files",
            Self::Kernel => "how something is computed, not what",
            Self::Further => "layers that predict further tokens, which are left out",
            Self::Off => "must be off",
            Self::Repeats(other) => return write!(f, "must say what `{other}` says"),
            Self::Unread => "read by nobody",
        })
    }
}

/// Fields of all families that change nothing, and why. A `*` stands for any text.
const IGNORED: &[(&str, Why)] = &[
    ("*dropout*", Why::Training),
    ("*_pdrop", Why::Training),
    ("*loss_coef", Why::Training),
    ("*loss_alpha", Why::Training),
    ("initializer*", Why::Training),
    ("init_*", Why::Training),
    ("seq_aux", Why::Training),
    ("output_router_logits", Why::Training),
    ("load_balance_coeff", Why::Training),
    ("*_jitter_noise", Why::Training),
    ("moe_capacity", Why::Training),
    ("moe_drop_tokens", Why::Training),
    ("rescale_prenorm_residual", Why::Training),
    ("gradient_checkpointing", Why::Training),
    ("time_step_max", Why::Training),
    ("time_step_floor", Why::Training),
    ("time_step_rank", Why::Training),
    ("time_step_init_scheme", Why::Training),
    ("time_step_scale", Why::Training),
    ("multi_token_pred_lambda", Why::Training),
    ("block_*_init_scale", Why::Training),
    ("*_use_xavier_init", Why::Training),
    ("*_token_id", Why::Generation),
    ("*_token_ids", Why::Generation),
    ("*_token_index", Why::Generation),
    ("pad_id", Why::Generation),
    ("use_cache", Why::Generation),
    ("cache_implementation", Why::Generation),
    ("num_logits_to_keep", Why::Generation),
    ("bad_words_ids", Why::Generation),
    ("*suppress_tokens", Why::Generation),
    ("*_penalty", Why::Generation),
    ("do_sample", Why::Generation),
    ("early_stopping", Why::Generation),
    ("*no_repeat_ngram_size", Why::Generation),
    ("max_length", Why::Generation),
    ("min_length", Why::Generation),
    ("num_beam*", Why::Generation),
    ("num_return_sequences", Why::Generation),
    ("remove_invalid_values", Why::Generation),
    ("temperature", Why::Generation),
    ("top_k", Why::Generation),
    ("top_p", Why::Generation),
    ("typical_p", Why::Generation),
    ("task_specific_params", Why::Generation),
    ("prefix", Why::Generation),
    ("num_labels", Why::Generation),
    ("id2label", Why::Generation),
    ("label2id", Why::Generation),
    ("problem_type", Why::Generation),
    ("summary_*", Why::Generation),
    ("image_*", Why::Pictures),
    ("video_*", Why::Pictures),
    ("vision_*", Why::Pictures),
    ("audio_*", Why::Pictures),
    ("mm_*", Why::Pictures),
    ("projector*", Why::Pictures),
    ("multimodal_projector_bias", Why::Pictures),
    ("spatial_merge_size", Why::Pictures),
    ("use_mrope", Why::Pictures),
    ("_*", Why::Library),
    ("architectures", Why::Library),
    ("auto_map", Why::Library),
    ("auto_class", Why::Library),
    ("base_model", Why::Library),
    ("custom_pipelines", Why::Library),
    ("device_map", Why::Library),
    ("finetuning_task", Why::Library),
    ("for_llm_compressor", Why::Library),
    ("keys_to_ignore_at_inference", Why::Library),
    ("language", Why::Library),
    ("license", Why::Library),
    ("low_cpu_mem_usage", Why::Library),
    ("model_max_length", Why::Library),
    ("model_type", Why::Library),
    ("name_or_path", Why::Library),
    ("org_vocab_size", Why::Library),
    ("output_attentions", Why::Library),
    ("output_hidden_states", Why::Library),
    ("output_scores", Why::Library),
    ("return_dict*", Why::Library),
    ("tf_legacy_loss", Why::Library),
    ("tokenizer*", Why::Library),
    ("torchscript", Why::Library),
    ("transformers.js*", Why::Library),
    ("transformers_version", Why::Library),
    ("trust_remote_code", Why::Library),
    ("unsloth_*", Why::Library),
    ("use_bfloat16", Why::Library),
    ("attn_implementation", Why::Kernel),
    ("attention_softmax_in_fp32", Why::Kernel),
    ("chunk_size", Why::Kernel),
    ("chunk_size_feed_forward", Why::Kernel),
    ("enable_moe_fp32_combine", Why::Kernel),
    ("ep_size", Why::Kernel),
    ("flash_attn*", Why::Kernel),
    ("mamba_chunk_size", Why::Kernel),
    ("mamba_ssm_*", Why::Kernel),
    ("pretraining_tp", Why::Kernel),
    ("residual_in_fp32", Why::Kernel),
    ("scale_attention_softmax_in_fp32", Why::Kernel),
    ("use_flash_att*", Why::Kernel),
    ("use_grouped_mm", Why::Kernel),
    ("use_mamba_kernels", Why::Kernel),
    ("mtp_*", Why::Further),
    ("num_mtp_*", Why::Further),
    ("num_nextn_predict_layers", Why::Further),
    ("use_mtp", Why::Further),
    ("add_classification_head", Why::Off),
    ("add_cross_attention", Why::Off),
    ("cross_attention_hidden_size", Why::Off),
    ("is_encoder_decoder", Why::Off),
    ("load_in_4bit", Why::Off),
    ("load_in_8bit", Why::Off),
    ("pruned_heads", Why::Off),
    ("rope_interleaved", Why::Off),
    ("tie_encoder_decoder", Why::Off),
    ("attention_head_dim", Why::Repeats("head_dim")),
    ("kv_channels", Why::Repeats("head_dim")),
    ("n_ctx", Why::Repeats("max_position_embeddings")),
    ("num_heads", Why::Repeats("num_attention_heads")),
    ("is_llama_config", Why::Unread),
    ("mask_value", Why::Unread),
    ("matryoshka_dims", Why::Unread),
    // Of training; the context is `max_position_embeddings`.
    ("max_seq_len", Why::Unread),
    ("max_seq_length", Why::Unread),
    ("max_sequence_length", Why::Unread),
    ("seq_length", Why::Unread),
    ("q_head_dim", Why::Unread),
    ("qk_head_dim", Why::Unread),
    // A decoder that stands alone may say so.
    ("is_decoder", Why::Unread),
];

/// All fields that change nothing: the family, if it is of one, the field, and why.
pub fn ignored() -> impl Iterator<Item = (Option<Family>, &'static str, Why)> {
    let of_families = Family::all()
        .flat_map(|family| family.description().ignored.iter().map(move |(field, why)| (Some(family), *field, *why)));
    IGNORED.iter().map(|(field, why)| (None, *field, *why)).chain(of_families)
}

/// The words of ropes, in either notation; what a kind of rope does not use changes nothing.
const OF_ROPES: &[&str] = &[
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "partial_rotary_factor",
    "original_max_position_embeddings",
    "max_position_embeddings",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "truncate",
    "short_factor",
    "long_factor",
    "short_mscale",
    "long_mscale",
    "low_freq_factor",
    "high_freq_factor",
    "llama_4_scaling_beta",
    "alpha",
    // Of pictures: in a text all three positions of a token are the same.
    "mrope_section",
    "mrope_interleaved",
    // Said of the rope, and read by nobody.
    "finetuned",
    "attn_factor",
    "extrapolation_factor",
];

/// Refuses what a config says beyond what the family's readers know. `written`: as the file has it; `read`: as it was
/// read, by names some of which the file has otherwise; `used`: names of both that were asked for.
///
/// # Errors
///
/// A field that nobody reads, and that is not listed as one that changes nothing.
pub fn refuse_unknown(family: &Description, written: &Fields<'_>, read: &Fields<'_>, used: &UsedKeys) -> Result<()> {
    if written.is_metadata() {
        return Ok(());
    }
    // What another family's readers know, this family's models do not read, here as in transformers.
    let words: Vec<&str> = Family::all().flat_map(|family| words(family.description())).collect();
    for (name, value) in written.all() {
        let canonical = family.renamed.iter().find(|(own, _)| own == name).map_or(name.as_str(), |(_, read)| read);
        let is_known = says_nothing(value)
            || used.has(written, name)
            || used.has(written, canonical)
            || words.contains(&canonical);
        let is_known = is_known || family.fixed.iter().any(|(fixed, _)| *fixed == canonical);
        if is_known {
            continue;
        }
        let listed = family.ignored.iter().chain(IGNORED).find(|(pattern, _)| matches(pattern, name));
        let expected = match listed.map(|(_, why)| *why) {
            None => "a field that is known: what this one would change is not computed".to_owned(),
            Some(Why::Off) if is_off(value) => continue,
            Some(Why::Off) => "nothing, or what switches it off".to_owned(),
            Some(Why::Repeats(other)) => match read.value(other) {
                Some(said) if !is_same(said, value) => format!("{}, as `{other}` says", shown(said)),
                _ => continue,
            },
            Some(_) => continue,
        };
        return Err(written.error(name, expected, shown(value)));
    }
    for rope in ["rope_scaling", "rope_parameters"] {
        if let Some(fields) = written.object(rope)? {
            refuse_unknown_of_rope(&fields)?;
        }
    }
    Ok(())
}

/// Nothing is switched on by what is `null` or `false`, unless a reader knows the field.
fn says_nothing(value: &Value) -> bool {
    matches!(value, Value::Null | Value::Bool(false))
}

/// Of a rope, or of one for each kind of layers.
fn refuse_unknown_of_rope(fields: &Fields<'_>) -> Result<()> {
    for (name, value) in fields.all() {
        match value {
            Value::Object(_) => refuse_unknown_of_rope(&fields.required_object(name, "a rope")?)?,
            _ if value.is_null() || OF_ROPES.contains(&name.as_str()) => {}
            _ => {
                let expected = "a field of ropes that is known: what this one would change is not computed";
                return Err(fields.error(name, expected, shown(value)));
            }
        }
    }
    Ok(())
}

/// Fields that the family's readers know, though a config may be such that they do not ask for them.
fn words(family: &Description) -> Vec<&'static str> {
    let mut words = vec!["intermediate_size", "head_dim", "num_key_value_heads", "partial_rotary_factor", "rope_theta"];
    words.extend(["original_max_position_embeddings", "torch_dtype"]);
    words.extend(["layer_types", "sliding_window", "use_sliding_window", family.eps.0, family.activation.field]);
    words.extend(family.dense_width);
    // Models whose layers all have a state may say how many heads others would have.
    words.extend(family.recurrent.map(|_| "num_attention_heads"));
    let biases = family.biases;
    let flag = |bias| if let Bias::Flag(name) = bias { Some(name) } else { None };
    words.extend([biases.qkv, biases.out, biases.mlp, biases.head].into_iter().filter_map(flag));
    words.extend(match family.kinds.otherwise {
        ImpliedKinds::Every { field, .. } => field,
        ImpliedKinds::Behind(_) | ImpliedKinds::EvenBelow(_) => Some("max_window_layers"),
        ImpliedKinds::Unrotated => Some("no_rope_layer_interval"),
        ImpliedKinds::All(_) => None,
    });
    if let Rotated::Listed = family.rope.rotated {
        words.push("no_rope_layers");
    }
    let scales = family.scales;
    let field = |factor| match factor {
        Factor::Field(name)
        | Factor::OneOver(name)
        | Factor::OneOverRoot(name)
        | Factor::OverRootOfLayers(name)
        | Factor::OverHidden(name) => Some(name),
        Factor::RootOfHiddenIf(name) => Some(name),
        Factor::None | Factor::Fixed(_) | Factor::RootOfHidden => None,
    };
    words.extend([scales.embeddings, scales.scores, scales.branches, scales.logits].into_iter().filter_map(field));
    if family.keys == KeyRule::Gemma4 {
        words.extend(["global_head_dim", "num_global_key_value_heads", "use_double_wide_mlp", "attention_k_eq_v"]);
        words.extend(["vocab_size_per_layer_input", "per_layer_config", "num_kv_shared_layers"]);
    }
    if let Some(experts) = family.experts {
        words.extend(experts.count);
        words.extend([experts.chosen, experts.width.name(), "norm_topk_prob", "routed_scaling_factor"]);
        words.extend(["n_group", "topk_group", "topk_method", "scoring_func", "first_k_dense_replace"]);
        words.extend(match experts.layers {
            ExpertLayers::Stepped => &["decoder_sparse_step", "mlp_only_layers"][..],
            ExpertLayers::Listed => &["mlp_layer_types"],
            _ => &[],
        });
        words.extend(experts.average.into_iter().chain(experts.latent));
        words.extend(match experts.scores {
            ScoreRule::OfChosen(name) => Some(name),
            _ => None,
        });
        words.extend(match experts.beside {
            Beside::Gated(name) | Beside::Shared(name) | Beside::Ungated(name) => Some(name),
            _ => None,
        });
    }
    words
}

/// Whether a name is one of a pattern.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((before, rest)) => name.strip_prefix(before).is_some_and(|name| {
            rest.is_empty() || (0..=name.len()).any(|at| name.is_char_boundary(at) && matches(rest, &name[at..]))
        }),
    }
}

fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Object(object) => object.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Bool(true) | Value::String(_) => false,
    }
}

/// Whether two values say the same; numbers may be written with a point or without.
pub fn is_same(a: &Value, b: &Value) -> bool {
    a == b || a.as_f64().is_some_and(|a| b.as_f64() == Some(a))
}
