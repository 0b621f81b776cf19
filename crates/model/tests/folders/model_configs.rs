//! config.json files of real models, and what small changes to one make of it: every fact where families differ, and
//! one clear sentence where something is not supported.

use crate::shared;

use offshoot_backend::{Dtype, Gate};
use offshoot_core::ids::{GroupIx, TokenId};
use offshoot_model::config::{
    Activation, AttentionKind, BlockNorms, DenseSpec, FeedForward, HeadNorm, HeadNormSpan, LayerNorms, Norm,
    RopeConfig, RopeScaling,
};
use offshoot_model::{ModelConfig, ModelFolder};
use serde_json::{Value, json};
use shared::shared;

/// Facts that anyone can look up: layers, query heads, key heads, head_dim, vocabulary, context, parameters (by the
/// tensors of the published checkpoint).
type Known = (&'static str, &'static str, [usize; 6], usize);

#[test]
fn real_configs_say_what_their_models_are() {
    let Some(root) = shared("data/hf_configs") else { return };
    let known: [Known; 11] = [
        ("Llama-2-7b-hf", "llama", [32, 32, 32, 128, 32000, 4096], 6_738_415_616),
        ("CodeLlama-7b-hf", "llama", [32, 32, 32, 128, 32016, 16384], 6_738_546_688),
        ("Mistral-7B", "mistral", [32, 32, 8, 128, 32000, 32768], 7_241_732_096),
        ("executorch/Llama-3.2-1B-Instruct", "llama", [16, 32, 8, 64, 128256, 131072], 1_235_814_400),
        ("executorch/Llama-3.2-3B-Instruct", "llama", [28, 24, 8, 128, 128256, 131072], 3_212_749_824),
        ("executorch/llama3-8B-instruct", "llama", [32, 32, 8, 128, 128256, 8192], 8_030_261_248),
        ("executorch/Qwen2-1.5B-Instruct", "qwen2", [28, 12, 2, 128, 151936, 32768], 1_543_714_304),
        ("executorch/Qwen2-7B-Instruct", "qwen2", [28, 28, 4, 128, 152064, 32768], 7_615_616_512),
        ("executorch/Qwen2.5-0.5B-Instruct", "qwen2", [24, 14, 2, 64, 151936, 32768], 494_032_768),
        ("executorch/Qwen3-1.7B", "qwen3", [28, 16, 8, 128, 151936, 40960], 1_720_574_976),
        ("executorch/phi3.5-mini-instruct", "phi3", [32, 32, 32, 96, 32064, 4096], 3_821_079_552),
    ];
    for (name, family, shape, parameters) in known {
        let config = ModelFolder::open(root.join(name)).unwrap().config;
        let heads = config.layers[0].attention().unwrap().heads;
        assert!(config.heads().all(|other| other == heads), "{name}");
        let found = [config.layers.len(), heads.q_heads, heads.kv_heads, heads.head_dim, config.vocab, config.context];
        assert_eq!((config.family.name(), found, config.parameters()), (family, shape, parameters), "{name}");
        assert!(windows(&config).iter().all(Option::is_none), "{name}: no window hides anything");
    }
}

#[test]
fn published_checkpoints_have_the_bytes_we_expect() {
    let Some(root) = shared("data/hf_configs") else { return };
    for name in
        ["Llama-2-7b-hf", "CodeLlama-7b-hf", "Mistral-7B", "executorch/Qwen2-7B-Instruct", "executorch/Qwen2.5-3B"]
    {
        let index = std::fs::read(root.join(name).join("model.safetensors.index.json")).unwrap();
        let index: Value = serde_json::from_slice(&index).unwrap();
        let config = ModelFolder::open(root.join(name)).unwrap().config;
        let total = index["metadata"]["total_size"].as_u64().unwrap() as usize;
        let rest = total - config.weight_bytes(config.dtype.unwrap());
        // Llama's index counts its (computed) inverse frequencies: 64 f32 a layer.
        assert!(rest == 0 || rest == 32 * 64 * 4, "{name}: {rest} bytes more");
    }
}

fn base() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300, "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2
    })
}

/// `base` with `changes` laid over it.
pub fn with(changes: Value) -> Value {
    let mut config = base();
    let (object, changes) = (config.as_object_mut().unwrap(), changes.as_object().unwrap().clone());
    object.extend(changes);
    config
}

pub fn read(config: &Value, generation: Option<&Value>) -> offshoot_core::Result<ModelConfig> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    if let Some(generation) = generation {
        std::fs::write(folder.path().join("generation_config.json"), generation.to_string()).unwrap();
    }
    ModelConfig::from_file(path)
}

pub fn good(changes: Value) -> ModelConfig {
    read(&with(changes), None).unwrap()
}

#[track_caller]
pub fn bad(changes: Value, said: &[&str]) {
    let error = read(&with(changes), None).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    let text = error.to_string();
    assert!(!text.contains('\n') && text.contains("config.json"), "{text}");
    for said in said {
        assert!(text.contains(said), "`{said}` is not in: {text}");
    }
}

#[test]
fn families_differ_by_facts() {
    let llama = good(json!({"attention_bias": true, "mlp_bias": true}));
    let norm = Norm::Rms { eps: 1e-5 };
    for layer in &llama.layers {
        assert!(
            layer.attention().unwrap().qkv_bias
                && layer.attention().unwrap().out_bias
                && layer.attention().unwrap().head_norm.is_none()
        );
        let dense = DenseSpec { activation: Activation::Gated(Gate::Silu), width: 96, bias: true, gate_factor: None };
        assert_eq!(layer.feed_forward, FeedForward::Dense(dense));
        let before = BlockNorms::Before(norm);
        assert_eq!(layer.norms, LayerNorms::Sequential { attention: before, feed_forward: before });
        assert_eq!((layer.attention().unwrap().heads.head_dim, layer.attention().unwrap().scale), (16, 0.25));
    }
    assert!(!llama.head_bias && llama.final_norm == norm);
    assert_eq!((llama.dtype, llama.layers.len()), (Some(Dtype::Bf16), 4));

    let qwen2 = good(json!({"model_type": "qwen2", "tie_word_embeddings": true}));
    let attention = qwen2.layers[0].attention().unwrap();
    assert!(attention.qkv_bias && !attention.out_bias && qwen2.tied_embeddings && attention.head_norm.is_none());

    let qwen3 = good(json!({"model_type": "qwen3", "head_dim": 32, "dtype": "float16"}));
    let attention = qwen3.layers[0].attention().unwrap();
    assert!(
        attention.head_norm
            == Some(HeadNorm { norm, span: HeadNormSpan::Head, values: false, weights: true, after_rope: false })
            && !attention.qkv_bias
    );
    assert_eq!((attention.heads.head_dim, qwen3.dtype), (32, Some(Dtype::F16)), "dtype goes before torch_dtype");

    let phi = good(json!({"model_type": "phi", "hidden_act": "gelu_new", "layer_norm_eps": 1e-4, "head_dim": null}));
    let (layer, norm) = (&phi.layers[0], Norm::Layer { eps: 1e-4 });
    assert!(phi.head_bias && layer.attention().unwrap().out_bias && phi.final_norm == norm);
    assert_eq!((layer.norms, rope(&phi).rotary), (LayerNorms::Parallel(norm), 8));
    let dense = DenseSpec { activation: Activation::Gelu, width: 96, bias: true, gate_factor: None };
    assert_eq!(layer.feed_forward, FeedForward::Dense(dense));

    let mut nameless = with(json!({"architectures": ["MistralForCausalLM"]}));
    nameless.as_object_mut().unwrap().remove("model_type");
    assert_eq!(read(&nameless, None).unwrap().family.name(), "mistral");
}

fn windows(config: &ModelConfig) -> Vec<Option<u32>> {
    config.layers.iter().map(|layer| layer.attention().unwrap().window).collect()
}

/// Of all layers.
fn rope(config: &ModelConfig) -> &RopeConfig {
    let rope = config.layers[0].attention().unwrap().rope.as_ref().unwrap();
    assert!(config.layers.iter().all(|layer| layer.attention().unwrap().rope.as_ref() == Some(rope)));
    rope
}

#[test]
fn windows_are_facts_of_layers() {
    let windows = |changes: Value| windows(&good(changes));
    let all = vec![Some(100); 4];
    assert_eq!(windows(json!({"model_type": "mistral", "sliding_window": 100})), all);
    assert_eq!(windows(json!({"model_type": "mistral", "sliding_window": null})), [None; 4]);
    let absent = json!({"model_type": "mistral", "max_position_embeddings": 8192});
    assert_eq!(windows(absent), [Some(4096); 4], "transformers' default");
    assert_eq!(windows(json!({"model_type": "mistral", "sliding_window": 1024})), [None; 4], "as long as the context");

    let qwen = |more: Value| {
        let mut changes = json!({"model_type": "qwen2", "sliding_window": 100, "max_window_layers": 1});
        changes.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        windows(changes)
    };
    let upper = vec![None, Some(100), Some(100), Some(100)];
    assert_eq!(qwen(json!({})), [None; 4]);
    assert_eq!(qwen(json!({"use_sliding_window": true})), upper);
    let types = json!(["sliding_attention", "full_attention", "full_attention", "sliding_attention"]);
    let listed =
        good(json!({"model_type": "qwen3", "sliding_window": 100, "use_sliding_window": true, "layer_types": types}));
    let heads = listed.layers[0].attention().unwrap().heads;
    assert_eq!(
        listed.layers.iter().map(|layer| layer.attention().unwrap().window).collect::<Vec<_>>(),
        [Some(100), None, None, Some(100)]
    );
    // Layers without a window are in the first page group.
    let kinds = [(Some(100), GroupIx(1)), (None, GroupIx(0))];
    let kinds = kinds.map(|(window, group)| AttentionKind { heads, window, group });
    assert_eq!(listed.attention_kinds(), kinds);
    assert_eq!(kinds.map(|kind| listed.layers_of(kind)), [2, 2]);

    bad(json!({"layer_types": ["full_attention"]}), &["`layer_types`", "num_hidden_layers (4)", "found 1"]);
    let linear = json!({"layer_types": ["full_attention", "linear_attention", "full_attention", "full_attention"]});
    bad(linear, &["`layer_types[1]`", "linear_attention"]);
}

/// SmolLM3's layers have windows where `layer_types` says so; `use_sliding_window` counts where it says nothing.
#[test]
fn windows_of_smollm3_are_those_of_its_layer_types() {
    let smollm3 = |more: Value| {
        let mut changes = json!({"model_type": "smollm3", "sliding_window": 100, "no_rope_layers": [1, 0, 1, 0]});
        changes.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        windows(&good(changes))
    };
    let types = json!(["full_attention", "full_attention", "full_attention", "sliding_attention"]);
    let last = [None, None, None, Some(100)];
    for used in [json!(false), json!(true), json!(null)] {
        assert_eq!(smollm3(json!({"use_sliding_window": used, "layer_types": types})), last, "{used}");
    }
    assert_eq!(smollm3(json!({"use_sliding_window": true})), [None, Some(100), None, Some(100)]);
    assert_eq!(smollm3(json!({"use_sliding_window": false})), [None; 4]);
    assert_eq!(smollm3(json!({})), [None; 4]);
    // transformers cannot make the mask of such a layer.
    let kinds = json!(["full_attention", "sliding_attention", "full_attention", "full_attention"]);
    for (family, field) in [("smollm3", "sliding_window"), ("gemma2", "sliding_window"), ("qwen3", "sliding_window")] {
        let silent = json!({"model_type": family, "layer_types": kinds, "sliding_window": null});
        bad(silent, &[&format!("`{field}`"), "layer_types[1] is \"sliding_attention\"", "found nothing"]);
    }
    let off = json!({"model_type": "qwen2", "layer_types": kinds, "sliding_window": 8, "use_sliding_window": false});
    bad(off, &["`use_sliding_window`", "true, as layer_types[1]", "found false"]);
    assert_eq!(windows(&good(json!({"model_type": "llama", "layer_types": kinds}))), [None; 4], "ignored");
}

/// Only some families rotate a part of each head. transformers ignores the field elsewhere where the rope is plain, and
/// fails where it is stretched.
#[test]
fn a_part_of_each_head_is_rotated_where_the_family_does_so() {
    let rotary = |changes: Value| rope(&good(changes)).rotary;
    let experts = |family: &str| {
        json!({"model_type": family, "partial_rotary_factor": 0.5, "num_experts": 4, "num_local_experts": 4,
            "num_experts_per_tok": 2, "moe_intermediate_size": 8})
    };
    for family in
        ["llama", "mistral", "ministral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "olmo2", "smollm3", "gemma2"]
    {
        let changes = json!({"rope_scaling": null, "no_rope_layers": [1, 1, 1, 1], "head_dim": 16});
        let mut plain = experts(family);
        plain.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        assert_eq!(rotary(plain.clone()), 16, "{family}");
        plain["partial_rotary_factor"] = json!(1.0);
        plain["rope_scaling"] = json!({"type": "linear", "factor": 2.0});
        assert_eq!(rotary(plain.clone()), 16, "{family}");
        plain["partial_rotary_factor"] = json!(0.5);
        bad(plain, &["`partial_rotary_factor`", "a linear rope", "found 0.5"]);
    }
    let inside = json!({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "partial_rotary_factor": 0.5}});
    bad(inside, &["`partial_rotary_factor`", "a yarn rope", "found 0.5"]);
    let gpt_oss = json!({"model_type": "gpt_oss", "partial_rotary_factor": 0.5, "num_experts": 4});
    bad(gpt_oss, &["`partial_rotary_factor`", "a yarn rope", "found 0.5"]);
    assert_eq!(rotary(json!({"model_type": "phi3", "partial_rotary_factor": 0.5})), 8);
    assert_eq!(rotary(json!({"model_type": "phi", "partial_rotary_factor": 0.75})), 12);
    let stretched = json!({"model_type": "phi", "partial_rotary_factor": 0.75,
        "rope_scaling": {"type": "linear", "factor": 2.0}});
    assert_eq!(rotary(stretched), 12);
}

/// transformers pads the keys of `per_layer_config` with zeros from ten layers on.
#[test]
fn layers_of_gemma4_are_named_by_their_numbers() {
    let gemma4 = |own: Value| {
        let kind = |layer: usize| if layer % 6 == 5 { "full_attention" } else { "sliding_attention" };
        let kinds: Vec<&str> = (0..12).map(kind).collect();
        json!({"model_type": "gemma4_text", "num_hidden_layers": 12, "head_dim": 16, "layer_types": kinds,
            "sliding_window": 8, "per_layer_config": own})
    };
    let dims = |own: Value| good(gemma4(own)).heads().map(|heads| heads.head_dim).collect::<Vec<_>>();
    let wide = json!({"head_dim": 32});
    let padded = dims(json!({"05": wide, "11": wide}));
    assert_eq!(padded, [16, 16, 16, 16, 16, 32, 16, 16, 16, 16, 16, 32]);
    assert_eq!(dims(json!({"5": wide, "011": wide})), padded);
    bad(gemma4(json!({"05": wide, "5": wide, "11": wide})), &["`per_layer_config`", "one entry for layer 5", "\"05\""]);
    bad(gemma4(json!({"05": wide, "12": wide})), &["`per_layer_config`", "num_hidden_layers (12)", "\"12\""]);
    for key in ["-1", "+5", " 5", "5.0", "", "five", "99999999999999999999"] {
        let said = format!("found \"{key}\"");
        bad(gemma4(json!({key: wide})), &["`per_layer_config`", "num_hidden_layers (12)", &said]);
    }
    bad(gemma4(json!({"05": wide, "11": {"head_dim": 64}})), &["`per_layer_config.11.head_dim`", "32, as layer 5 has"]);
    bad(gemma4(json!({"05": {"head_dim": 7}, "11": wide})), &["`per_layer_config.05.head_dim`", "even", "found 7"]);
}

/// Classes that share a `model_type` with generators are refused as what they are.
#[test]
fn classes_that_predict_no_tokens_are_named() {
    for (class, what) in [
        ("Qwen3ForSequenceClassification", "classifies or scores whole texts"),
        ("Qwen2ForTokenClassification", "classifies tokens"),
        ("Qwen2ForRewardModel", "scores texts"),
        ("Qwen2ForProcessRewardModel", "scores texts"),
        ("Qwen2ForPrmModel", "scores the steps of a text"),
        ("LlamaForQuestionAnswering", "marks answers in texts"),
        ("LlamaForMaskedLM", "reads in both directions"),
        ("MistralModel", "without an output layer"),
        ("Gemma3TextModel", "without an output layer"),
        ("LlamaForCausalLMEagle3", "drafts for another model"),
    ] {
        let said = format!("found \"{class}\", which ");
        for changes in [json!({"architectures": [class]}), json!({"architectures": class})] {
            bad(changes, &["`architectures`", "predicts tokens", &said, what]);
        }
        bad(json!({"architectures": [class], "tie_word_embeddings": true}), &["`architectures`", what]);
    }
    for class in ["LlamaForCausalLM", "GPT2LMHeadModel", "Mistral3ForConditionalGeneration", "Unheard"] {
        good(json!({"architectures": [class]}));
    }
    for none in [json!([]), json!(null), json!([null]), json!(["MistralModel", "MistralForCausalLM"])] {
        good(json!({"architectures": none}));
    }
    for other in [json!(5), json!({"class": "LlamaForCausalLM"}), json!(true)] {
        bad(json!({"architectures": other}), &["`architectures`", "a list of names"]);
    }
    let wrapped = json!({"model_type": "gemma3", "architectures": ["Gemma3Model"], "text_config": base()});
    bad(wrapped, &["`architectures`", "without an output layer"]);
}

/// Fields of `quantization_config` that only say what the tensors say too are still what they must be.
#[test]
fn switches_of_quantised_checkpoints_are_true_or_false() {
    let awq = json!({"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm", "zero_point": true});
    let gptq = json!({"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": false, "sym": true,
        "static_groups": false, "true_sequential": true, "lm_head": false});
    let switches =
        [(&awq, &["zero_point"][..]), (&gptq, &["desc_act", "sym", "static_groups", "true_sequential", "lm_head"])];
    for (config, names) in switches {
        for name in names {
            for wrong in [json!([]), json!("0"), json!(0), json!({}), json!("false")] {
                let mut config = config.clone();
                config[*name] = wrong.clone();
                let said = format!("found {wrong}");
                let place = format!("`quantization_config.{name}`");
                bad(json!({"quantization_config": config}), &[&place, "true or false", &said]);
            }
            for right in [json!(true), json!(false), json!(null)] {
                let mut config = config.clone();
                config[*name] = right;
                good(json!({"quantization_config": config}));
            }
        }
    }
}

/// Some programs write a byte order mark before JSON.
#[test]
fn a_byte_order_mark_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, value: &Value| {
        std::fs::write(folder.path().join(name), format!("\u{feff}{value}")).unwrap();
    };
    write("config.json", &base());
    write("generation_config.json", &json!({"eos_token_id": [5, 6]}));
    let config = ModelFolder::open(folder.path()).unwrap().config;
    assert_eq!(config.eos, [TokenId(5), TokenId(6)]);
}

#[test]
fn rope_is_read_in_both_ways_of_writing() {
    let old = json!({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}});
    let new = json!({"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}});
    assert_eq!(good(old.clone()), good(new));
    let linear = good(old);
    assert_eq!((rope(&linear).theta, &rope(&linear).scaling), (5e5, &RopeScaling::Linear { factor: 4.0 }));
    assert_eq!(linear.context, 4096, "linear scaling reaches beyond max_position_embeddings");

    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512});
    let yarn = good(json!({"rope_scaling": yarn}));
    let RopeScaling::Yarn { attention_factor, original_context, truncate, .. } = rope(&yarn).scaling else { panic!() };
    assert_eq!((original_context, truncate, yarn.context), (512, true, 2048));
    // 0.1 ln 4 + 1
    assert!((attention_factor - 1.138_629_436_111_989).abs() < 1e-12);

    let deepseek =
        json!({"rope_type": "yarn", "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.5, "truncate": false});
    let deepseek = good(json!({"rope_scaling": deepseek}));
    let RopeScaling::Yarn { attention_factor, original_context, truncate, .. } = rope(&deepseek).scaling else {
        panic!()
    };
    assert_eq!((original_context, truncate), (1024, false));
    assert!((attention_factor - 1.064_468_903_941_252).abs() < 1e-12);

    let half = json!({"model_type": "phi3", "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}});
    let half = good(half);
    assert_eq!(rope(&half).rotary, 8);
    assert_eq!(rope(&good(json!({"rope_scaling": null}))).scaling, RopeScaling::Plain);
}

#[test]
fn special_tokens_come_from_generation_config_where_it_has_them() {
    let config = with(json!({"eos_token_id": [2, 9]}));
    let ids = |generation: Option<Value>| {
        let config = read(&config, generation.as_ref()).unwrap();
        (config.bos, config.eos)
    };
    let t = TokenId;
    assert_eq!(ids(None), (Some(t(1)), vec![t(2), t(9)]));
    assert_eq!(ids(Some(json!({"eos_token_id": [7, 8, 5000]}))), (Some(t(1)), vec![t(7), t(8)]));
    assert_eq!(ids(Some(json!({"eos_token_id": 3, "bos_token_id": 4}))), (Some(t(4)), vec![t(3)]));
    assert_eq!(ids(Some(json!({"temperature": 0.6}))), (Some(t(1)), vec![t(2), t(9)]));
}

#[test]
fn what_is_not_supported_is_said_in_one_sentence() {
    let supported = "one of llama, mistral, ministral, ministral3, mixtral, qwen2, qwen3, qwen3_moe, qwen3_next, \
                     qwen3_5, qwen3_5_moe, phi, phi3, smollm3, olmo2, olmo3, gemma2, gemma3, gemma4, gpt_oss, \
                     deepseek_v2, deepseek_v3, glm4_moe_lite, mistral4, minicpm3, sarvam_mla, longcat_flash";
    bad(json!({"model_type": "mamba2"}), &["`model_type`", supported, "\"mamba2\""]);
    bad(
        json!({"model_type": null, "architectures": ["GPT2LMHeadModel"]}),
        &["`architectures`", supported, "GPT2LMHeadModel"],
    );
    bad(json!({"model_type": null}), &["`model_type`", supported, "nothing"]);
    let ropes = "one of default, linear, dynamic, llama3, yarn, longrope, proportional";
    bad(json!({"rope_scaling": {"type": "spiral", "factor": 2.0}}), &["`rope_scaling.type`", ropes, "\"spiral\""]);
    let long = json!({"rope_parameters": {"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0]}});
    bad(long, &["`rope_parameters.short_factor`", "8 numbers", "found 1 of 1 values"]);
    let quantised = |config: Value| json!({"quantization_config": config});
    let methods = "one of fp8, fbgemm_fp8, modelopt, compressed-tensors, awq, gptq, mxfp4";
    bad(
        quantised(json!({"quant_method": "bitsandbytes"})),
        &["`quantization_config.quant_method`", methods, "bitsand"],
    );
    bad(quantised(json!({"load_in_4bit": true})), &["`quantization_config.quant_method`", methods, "nothing"]);
    bad(
        quantised(json!({"quant_method": "gptq", "bits": 3, "group_size": 128})),
        &["`quantization_config.bits`", "4", "3"],
    );
    bad(quantised(json!({"quant_method": "gptq", "bits": 4})), &["`quantization_config.group_size`", "nothing"]);
    bad(
        quantised(json!({"quant_method": "awq", "bits": 4, "group_size": 12})),
        &["`quantization_config.group_size`", "12"],
    );
    let gemv = json!({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv"});
    bad(quantised(gemv), &["`quantization_config.version`", "gemm", "gemv"]);
    let marlin = json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "marlin"});
    bad(quantised(marlin), &["`quantization_config.checkpoint_format`", "gptq_v2", "marlin"]);
    let awq = json!({"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"});
    bad(quantised(awq), &["`quantization_config.quant_algo`", "\"FP8\" or \"NVFP4\"", "NVFP4_AWQ"]);
    let nvfp4 = json!({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32});
    bad(quantised(nvfp4), &["`quantization_config.group_size`", "16", "32"]);
    let rounded = json!({"quant_method": "compressed-tensors", "config_groups": {"group_0": {
        "targets": ["Linear"], "format": "nvfp4-pack-quantized",
        "weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
        "input_activations": {"num_bits": 8, "type": "float"}}}});
    bad(quantised(rounded), &["`quantization_config.config_groups.group_0.input_activations.num_bits`", "4", "8"]);
    let packed = json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {
        "targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "group", "group_size": 128}}}});
    bad(quantised(packed), &["`quantization_config.config_groups.group_0.weights`", "pack-quantized", "8 bits"]);
    bad(json!({"hidden_act": "relu"}), &["`hidden_act`", "silu", "\"relu\""]);
    bad(json!({"model_type": "phi", "hidden_act": "silu"}), &["`hidden_act`", "gelu_new"]);
    bad(json!({"model_type": "phi", "hidden_act": "gelu_new", "qk_layernorm": true}), &["`qk_layernorm`"]);
}

#[test]
fn values_that_cannot_be_are_named() {
    bad(json!({"hidden_size": null}), &["`hidden_size`", "nothing"]);
    bad(json!({"hidden_size": 0}), &["`hidden_size`", "from 1", "found 0"]);
    bad(json!({"num_hidden_layers": -3}), &["`num_hidden_layers`", "found -3"]);
    bad(json!({"vocab_size": "300"}), &["`vocab_size`", "found \"300\""]);
    bad(json!({"intermediate_size": 1e18}), &["`intermediate_size`"]);
    bad(json!({"num_key_value_heads": 3}), &["`num_key_value_heads`", "num_attention_heads (4)", "found 3"]);
    bad(json!({"num_attention_heads": 5, "num_key_value_heads": 5}), &["`num_attention_heads`", "hidden_size (64)"]);
    bad(json!({"head_dim": 4_000_000}), &["`head_dim`"]);
    bad(
        json!({"model_type": "phi", "partial_rotary_factor": 0.2}),
        &["`partial_rotary_factor`", "head_dim (16)", "0.2"],
    );
    bad(json!({"rms_norm_eps": 0}), &["`rms_norm_eps`", "above 0"]);
    bad(json!({"rope_theta": 1.0}), &["`rope_theta`"]);
    bad(json!({"rope_scaling": {"type": "linear"}}), &["`rope_scaling.factor`", "linear"]);
    bad(json!({"rope_scaling": {"type": "linear", "factor": 0.5}}), &["`rope_scaling.factor`", "0.5"]);
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0});
    bad(json!({"rope_scaling": llama3}), &["`rope_scaling.high_freq_factor`"]);
    bad(json!({"rope_scaling": "linear"}), &["`rope_scaling`", "an object"]);
    bad(json!({"eos_token_id": "</s>"}), &["`eos_token_id`", "</s>"]);
    bad(json!({"tie_word_embeddings": "yes"}), &["`tie_word_embeddings`", "true or false"]);
}

#[test]
fn wrappers_and_mixtures_that_do_not_fit_are_named() {
    bad(json!({"model_type": "gemma3"}), &["`text_config`", "an object", "gemma3", "nothing"]);
    let nested = json!({"model_type": "gemma4", "text_config": {"model_type": "gemma4_audio"}});
    bad(nested, &["`text_config.model_type`", "gemma4", "\"gemma4_audio\""]);
    let nested = json!({"model_type": "gemma3", "text_config": {"hidden_size": 64, "head_dim": 7}});
    bad(nested, &["`text_config.head_dim`", "an even number", "found 7"]);
    let mixtral = |changes: Value| {
        let mut all = json!({"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2});
        all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        all
    };
    bad(mixtral(json!({"num_experts_per_tok": 5})), &["`num_experts_per_tok`", "num_local_experts (4)", "found 5"]);
    bad(mixtral(json!({"num_local_experts": 0})), &["`num_local_experts`", "from 1", "found 0"]);
    bad(
        json!({"model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "swiglu_limit": 8.0}),
        &["`swiglu_limit`", "7", "8"],
    );
    bad(
        json!({"model_type": "gemma2", "hidden_activation": "gelu"}),
        &["`hidden_activation`", "gelu_pytorch_tanh", "\"gelu\""],
    );
    bad(
        json!({"model_type": "gemma3_text", "use_bidirectional_attention": true}),
        &["`use_bidirectional_attention`", "false"],
    );
    let kinds = json!(["full_attention", "full_attention", "sliding_attention", "full_attention"]);
    let shared = json!({"model_type": "gemma4_text", "layer_types": kinds, "num_kv_shared_layers": 2});
    bad(shared, &["`num_kv_shared_layers`", "sliding_attention", "found 2"]);
    bad(
        json!({"model_type": "smollm3", "no_rope_layers": [1, 0]}),
        &["`no_rope_layers`", "num_hidden_layers (4)", "2 values"],
    );
    bad(
        json!({"model_type": "smollm3", "no_rope_layers": [1, 1, "x", 0]}),
        &["`no_rope_layers[2]`", "0 or 1", "found \"x\""],
    );
    bad(
        json!({"model_type": "qwen3_moe", "mlp_only_layers": [1, "2"]}),
        &["`mlp_only_layers[1]`", "the number of a layer", "found \"2\""],
    );
    let own = |own: Value| json!({"model_type": "gemma4_text", "per_layer_config": own});
    let same = own(json!({"3": {"head_dim": 32}, "1": {"head_dim": 24}}));
    bad(same, &["`per_layer_config.1.head_dim`", "256, as layer 0 has", "found 24"]);
    let shared = json!({"model_type": "gemma4_text", "layer_types": ["full_attention", "full_attention",
        "sliding_attention", "full_attention"], "num_kv_shared_layers": 1,
        "per_layer_config": {"3": {"num_key_value_heads": 1}}});
    bad(shared, &["`per_layer_config.3`", "4 / 2 x 256, as layer 1 has", "found 4 / 1 x 256"]);
    let prefix = json!({"model_type": "paligemma", "text_config": {"model_type": "gemma2"}});
    bad(prefix, &["`model_type`", "gemma2", "\"paligemma\", which reads its prompt in both directions"]);
    bad(own(json!({"4": {"head_dim": 32}})), &["`per_layer_config`", "num_hidden_layers (4)", "\"4\""]);
    bad(own(json!({"3": {"intermediate_size": 32}})), &["`per_layer_config.3.intermediate_size`", "head_dim"]);
    bad(json!({"per_layer_config": {"1": {"head_dim": 32}}}), &["`per_layer_config`", "gemma4", "\"1\""]);
    let by_kind =
        json!({"model_type": "gemma4_text", "rope_parameters": {"sliding_attention": {"rope_type": "default"}}});
    bad(by_kind, &["`rope_parameters.full_attention`", "the rope of these layers", "nothing"]);
}

/// Where a config is silent, transformers' configuration classes speak.
#[test]
fn defaults_are_those_of_transformers() {
    let gpt_oss = good(json!({"model_type": "gpt_oss", "num_experts": 4, "num_experts_per_tok": 2}));
    let RopeScaling::Yarn { factor, original_context, truncate, .. } = rope(&gpt_oss).scaling else { panic!() };
    assert_eq!((factor, original_context, truncate, rope(&gpt_oss).theta), (32.0, 4096, false, 150_000.0));
    let experts = gpt_oss.layers[0].feed_forward.experts().unwrap();
    assert_eq!(
        (experts.count, experts.router.chosen, gpt_oss.layers[0].attention().unwrap().window),
        (4, 2, Some(128))
    );
    let silent = json!({"model_type": "gpt_oss", "num_experts": 4, "num_experts_per_tok": 2, "rope_parameters": null});
    assert_eq!(good(silent), gpt_oss);

    let gemma4 = good(json!({"model_type": "gemma4_text", "head_dim": 16, "global_head_dim": 32, "sliding_window": 8,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]}));
    let of = |layer: usize| gemma4.layers[layer].attention().unwrap().rope.as_ref().unwrap();
    assert_eq!((of(0).theta, &of(0).scaling), (1e4, &RopeScaling::Plain));
    let whole = RopeScaling::Proportional { factor: 1.0, head_dim: 32 };
    assert_eq!((of(3).theta, of(3).rotary, &of(3).scaling), (1e6, 8, &whole));

    let ministral3 = good(json!({"model_type": "ministral3"}));
    let growth = ministral3.layers[0].attention().unwrap().growth.unwrap();
    assert_eq!((growth.beta, growth.original_context, ministral3.context), (0.1, 16_384, 262_144));

    let old = json!({"model_type": "ministral3", "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
        "original_max_position_embeddings": 8192, "llama_4_scaling_beta": 0.3}});
    let growth = good(old).layers[0].attention().unwrap().growth.unwrap();
    assert_eq!((growth.beta, growth.original_context), (0.3, 8192), "of the rope that counts");

    let llama = read(
        &json!({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
        "num_attention_heads": 4, "vocab_size": 300, "max_position_embeddings": 1024}),
        None,
    );
    let llama = llama.unwrap();
    assert_eq!((llama.bos, llama.eos), (Some(TokenId(1)), vec![TokenId(2)]));

    // transformers gives the full layers `rope_theta` and has none left for those with windows.
    let flat = good(json!({"model_type": "olmo3", "rope_theta": 1e4}));
    let thetas: Vec<f64> =
        flat.layers.iter().map(|layer| layer.attention().unwrap().rope.as_ref().unwrap().theta).collect();
    assert_eq!(thetas, [5e5, 5e5, 5e5, 1e4]);

    let one_kind = json!({"model_type": "olmo3", "rope_parameters": {"sliding_attention": {"rope_theta": 7e3}}});
    let olmo3 = good(one_kind);
    let thetas: Vec<f64> =
        olmo3.layers.iter().map(|layer| layer.attention().unwrap().rope.as_ref().unwrap().theta).collect();
    assert_eq!(thetas, [7e3, 7e3, 7e3, 5e5]);

    // The original context of Phi-3 stands beside the rope.
    let factors = [1.0; 8];
    let long = json!({"type": "su", "short_factor": factors, "long_factor": factors,
        "original_max_position_embeddings": 77});
    let phi3 = good(json!({"model_type": "phi3", "rope_scaling": long, "max_position_embeddings": 8192}));
    let RopeScaling::Long { original_context, .. } = rope(&phi3).scaling else { panic!() };
    assert_eq!(original_context, 4096);

    let both = json!({"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_parameters": {"rope_type": "default"}});
    assert_eq!(rope(&good(both)).scaling, RopeScaling::Linear { factor: 4.0 }, "the older notation goes first");
}

/// `tie_word_embeddings` is the wrapper's: what it says, or else its own default.
#[test]
fn wrappers_decide_what_is_tied() {
    let tied = |wrapper: &str, outer: Option<bool>, inner: Option<bool>| {
        let mut text = base();
        text["model_type"] = match wrapper {
            "gemma3" => "gemma3_text".into(),
            _ => "mistral".into(),
        };
        text["tie_word_embeddings"] = json!(inner);
        let whole = json!({"model_type": wrapper, "text_config": text, "tie_word_embeddings": outer});
        read(&whole, None).unwrap().tied_embeddings
    };
    for wrapper in ["gemma3", "mistral3"] {
        for inner in [None, Some(false), Some(true)] {
            assert!(tied(wrapper, Some(true), inner) && tied(wrapper, None, inner), "{wrapper} {inner:?}");
            assert!(!tied(wrapper, Some(false), inner), "{wrapper} {inner:?}");
        }
    }
    assert!(tied("llava", Some(false), Some(true)) && tied("llava", Some(true), Some(false)));
    assert!(!tied("llava", None, None));
}

#[test]
fn gemma4_unified_is_gemma4_with_other_defaults() {
    let text = json!({"model_type": "gemma4_unified_text", "head_dim": 16, "global_head_dim": 32,
        "max_position_embeddings": null, "num_hidden_layers": 6});
    let config = with(text);
    let mut silent = config.as_object().unwrap().clone();
    silent.remove("max_position_embeddings");
    let wrapped = read(&json!({"model_type": "gemma4_unified", "text_config": silent}), None).unwrap();
    assert_eq!((wrapped.family.name(), wrapped.context), ("gemma4_text", 262_144));
    assert_eq!(windows(&wrapped), [Some(1024), Some(1024), Some(1024), Some(1024), Some(1024), None]);
    assert!(wrapped.per_layer_inputs.is_none() && wrapped.tied_embeddings);
}

#[test]
fn some_families_have_one_window_for_all_layers_or_none() {
    let types = json!(["full_attention", "full_attention", "sliding_attention", "full_attention"]);
    let of_family = |model_type: &str, more: Value| {
        let mut changes = json!({"model_type": model_type, "sliding_window": 100, "layer_types": types});
        changes.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        windows(&good(changes))
    };
    assert_eq!(of_family("mixtral", json!({})), [Some(100); 4]);
    assert_eq!(of_family("phi3", json!({})), [Some(100); 4]);
    assert_eq!(of_family("ministral3", json!({})), [Some(100); 4]);
    let qwen = |used: bool| json!({"use_sliding_window": used, "max_window_layers": 3});
    assert_eq!(of_family("qwen3_moe", qwen(true)), [Some(100); 4]);
    assert_eq!(of_family("qwen3_moe", qwen(false)), [None; 4]);
    assert_eq!(of_family("olmo2", json!({})), [None; 4]);
    // transformers takes a Mistral with `layer_types` for a Ministral.
    assert_eq!(of_family("mistral", json!({})), [None, None, Some(100), None]);
    assert_eq!(of_family("ministral", json!({})), [None, None, Some(100), None]);
    // Within a wrapper it does not.
    let text = with(json!({"model_type": "mistral", "sliding_window": 100, "layer_types": types}));
    let wrapped = read(&json!({"model_type": "llava", "text_config": text}), None).unwrap();
    assert_eq!(windows(&wrapped), [Some(100); 4]);
}

#[test]
fn layers_of_qwen3_moe_have_experts_or_not() {
    let experts = |more: Value| {
        let mut changes = json!({"model_type": "qwen3_moe", "moe_intermediate_size": 8});
        changes.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let config = good(changes);
        config.layers.iter().map(|layer| layer.feed_forward.experts().is_some()).collect::<Vec<_>>()
    };
    assert_eq!(experts(json!({})), [true; 4]);
    assert_eq!(experts(json!({"mlp_only_layers": [0, 3]})), [false, true, true, false]);
    assert_eq!(experts(json!({"decoder_sparse_step": 2})), [false, true, false, true]);
    assert_eq!(experts(json!({"decoder_sparse_step": 2, "mlp_only_layers": [1]})), [false, false, false, true]);
    assert_eq!(experts(json!({"num_experts": 0})), [false; 4]);
}

/// Shapes as published; parameters by the tensors of the checkpoints.
#[test]
fn published_shapes_have_the_parameters_they_are_named_for() {
    let qwen3_30b = json!({
        "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
        "max_position_embeddings": 40960, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
        "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [], "rope_theta": 1e6
    });
    let gpt_oss_20b = json!({
        "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
        "max_position_embeddings": 131072, "num_local_experts": 32, "num_experts_per_tok": 4, "attention_bias": true,
        "swiglu_limit": 7.0, "sliding_window": 128, "rope_theta": 150000,
        "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096,
            "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false}
    });
    // Gemma 3 4B names few of its sizes.
    let gemma3_4b = json!({
        "model_type": "gemma3", "eos_token_id": [1, 106], "vision_config": {"hidden_size": 1152},
        "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
            "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}
    });
    let mixtral_8x7b = json!({"model_type": "mixtral", "rope_theta": 1e6});
    let phi_4 = json!({
        "model_type": "phi3", "hidden_size": 5120, "intermediate_size": 17920, "num_hidden_layers": 40,
        "num_attention_heads": 40, "num_key_value_heads": 10, "vocab_size": 100352, "max_position_embeddings": 16384,
        "rope_theta": 250000, "original_max_position_embeddings": 16384
    });
    let smollm3 = json!({"model_type": "smollm3", "rope_theta": 5e6, "max_position_embeddings": 65536});
    let gemma2_2b = json!({"model_type": "gemma2"});
    let known = [
        (mixtral_8x7b, 46_702_792_704, 12_879_925_248),
        (phi_4, 14_659_507_200, 14_659_507_200),
        (smollm3, 3_075_098_624, 3_075_098_624),
        (gemma2_2b, 2_614_341_888, 2_614_341_888),
        (qwen3_30b, 30_532_122_624, 3_353_032_704),
        (gpt_oss_20b, 20_914_757_184, 4_187_440_704),
        (gemma3_4b, 3_880_263_168, 3_880_263_168_usize),
    ];
    for (config, parameters, active) in known {
        let config = read(&config, None).unwrap();
        assert_eq!((config.parameters(), config.active_parameters()), (parameters, active), "{}", config.family);
    }
}
