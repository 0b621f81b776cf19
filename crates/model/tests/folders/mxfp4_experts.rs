//! Experts of gpt-oss in MXFP4, made here of codes and scales: they compute what the same numbers do in f32, and what
//! is wrong with them is said in one sentence. And dense experts that become codes when they are loaded.

use crate::model_errors::{Tensor, Tensors, folder, refused};

use offshoot_core::dice::Dice;
use offshoot_core::ids::TokenId;
use offshoot_cpu::Cpu;
use offshoot_model::{Decoder, MadeFormat, ModelFolder, Sequence, WeightChoice};
use safetensors::Dtype;
use serde_json::{Value, json};
use tempfile::TempDir;

const EXPERTS: usize = 4;
const HIDDEN: usize = 64;
const WIDTH: usize = 32;
/// Inputs that share a scale.
const GROUP: usize = 32;
/// The numbers of the codes 0 to 7; 8 to 15 are their negatives.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// A gpt-oss of two layers.
fn config() -> Value {
    json!({
        "model_type": "gpt_oss", "hidden_size": HIDDEN, "intermediate_size": WIDTH, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 64,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "num_local_experts": EXPERTS, "num_experts_per_tok": 2,
        "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16, "attention_bias": true,
        "tie_word_embeddings": false, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}
    })
}

fn quantised_config() -> Value {
    let mut config = config();
    config["quantization_config"] = json!({"quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]});
    config
}

/// 24 random bits of place `i`.
fn hash(i: usize, salt: usize) -> usize {
    (Dice::new((salt as u64) << 32 | i as u64).next() >> 40) as usize
}

fn f32s(shape: &[usize], value: impl Fn(usize) -> f32) -> Tensor {
    let bytes = (0..shape.iter().product()).flat_map(|i| value(i).to_le_bytes()).collect();
    Tensor { dtype: Dtype::F32, shape: shape.to_vec(), bytes }
}

/// Everything but the matrices of experts.
fn others() -> Tensors {
    let mut shapes: Vec<(String, Vec<usize>)> = vec![
        ("model.embed_tokens.weight".into(), vec![64, HIDDEN]),
        ("model.norm.weight".into(), vec![HIDDEN]),
        ("lm_head.weight".into(), vec![64, HIDDEN]),
    ];
    for layer in 0..2 {
        let parts: [(&str, &[usize]); 15] = [
            ("input_layernorm.weight", &[HIDDEN]),
            ("post_attention_layernorm.weight", &[HIDDEN]),
            ("self_attn.q_proj.weight", &[64, HIDDEN]),
            ("self_attn.q_proj.bias", &[64]),
            ("self_attn.k_proj.weight", &[32, HIDDEN]),
            ("self_attn.k_proj.bias", &[32]),
            ("self_attn.v_proj.weight", &[32, HIDDEN]),
            ("self_attn.v_proj.bias", &[32]),
            ("self_attn.o_proj.weight", &[HIDDEN, 64]),
            ("self_attn.o_proj.bias", &[HIDDEN]),
            ("self_attn.sinks", &[4]),
            ("mlp.router.weight", &[EXPERTS, HIDDEN]),
            ("mlp.router.bias", &[EXPERTS]),
            ("mlp.experts.gate_up_proj_bias", &[EXPERTS, 2 * WIDTH]),
            ("mlp.experts.down_proj_bias", &[EXPERTS, HIDDEN]),
        ];
        shapes.extend(parts.map(|(part, shape)| (format!("model.layers.{layer}.{part}"), shape.to_vec())));
    }
    let named = shapes.into_iter().enumerate().map(|(salt, (name, shape))| {
        let centre = if name.ends_with("norm.weight") { 1.0 } else { 0.0 };
        let tensor = f32s(&shape, |i| centre + (hash(i, salt) % 1000) as f32 / 1000.0 * 0.4 - 0.2);
        (name, tensor)
    });
    named.collect()
}

/// The model in MXFP4, and the same numbers in f32, where experts are `[experts, in, out]`.
fn models() -> (Tensors, Tensors) {
    let (mut quantised, mut dense) = (others(), others());
    for layer in 0..2 {
        for (salt, (part, out, inputs)) in
            [("gate_up_proj", 2 * WIDTH, HIDDEN), ("down_proj", HIDDEN, WIDTH)].into_iter().enumerate()
        {
            let salt = 100 + 2 * layer + salt;
            let groups = inputs / GROUP;
            // Of output `row` of all experts' outputs, and input `k`.
            let code = |row: usize, k: usize| (hash(row * inputs + k, salt) % 16) as u8;
            let scale = |row: usize, group: usize| 122 + (hash(row * groups + group, salt + 50) % 3) as u8;
            let blocks = (0..EXPERTS * out * inputs / 2)
                .map(|i| {
                    let (row, k) = (2 * i / inputs, 2 * i % inputs);
                    code(row, k) | code(row, k + 1) << 4
                })
                .collect();
            let scales = (0..EXPERTS * out * groups).map(|i| scale(i / groups, i % groups)).collect();
            let name = format!("model.layers.{layer}.mlp.experts.{part}");
            let bytes = |shape: &[usize], bytes: Vec<u8>| Tensor { dtype: Dtype::U8, shape: shape.to_vec(), bytes };
            quantised.insert(format!("{name}_blocks"), bytes(&[EXPERTS, out, groups, GROUP / 2], blocks));
            quantised.insert(format!("{name}_scales"), bytes(&[EXPERTS, out, groups], scales));
            let number = |i: usize| {
                let (expert, k, output) = (i / (inputs * out), i / out % inputs, i % out);
                let row = expert * out + output;
                let (code, scale) = (code(row, k), scale(row, k / GROUP));
                let size = E2M1[usize::from(code & 7)] * 2f32.powi(i32::from(scale) - 127);
                if code & 8 == 0 { size } else { -size }
            };
            dense.insert(name, f32s(&[EXPERTS, inputs, out], number));
        }
    }
    (quantised, dense)
}

fn load(folder: &TempDir, choice: WeightChoice) -> offshoot_core::Result<(Cpu, Decoder<Cpu>)> {
    let mut backend = Cpu::open()?;
    let model = Decoder::load(&mut backend, &ModelFolder::open(folder.path())?.with(choice)?)?;
    Ok((backend, model))
}

fn logits(folder: &TempDir, choice: WeightChoice) -> Vec<f32> {
    let (mut backend, mut model) = load(folder, choice).unwrap();
    let tokens: Vec<TokenId> = (0..40).map(|i| TokenId(i * 29 % 64)).collect();
    Sequence::new(&mut backend, &mut model, 40).unwrap().extend(&tokens, 0..40).unwrap()
}

#[test]
fn experts_in_blocks_compute_what_their_numbers_do_in_f32() {
    let (quantised, dense) = models();
    let found = logits(&folder(&quantised_config(), &quantised), WeightChoice::default());
    let expected = logits(&folder(&config(), &dense), WeightChoice::default());
    let error = found.iter().zip(&expected).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
    // As for goldens: sums in another order.
    assert!(error <= 1e-3, "{error}");
    assert!(found.iter().any(|x| x.abs() > 0.1));
}

#[test]
fn blocks_and_scales_that_do_not_fit_are_refused() {
    let experts = "model.layers.1.mlp.experts";
    let broken = |name: &str, change: &dyn Fn(&mut Tensor)| {
        let (mut quantised, _) = models();
        change(quantised.get_mut(&format!("{experts}.{name}")).unwrap());
        folder(&quantised_config(), &quantised)
    };
    let shapes = |name: &str, shape: &[usize], parts: &[&str]| {
        let change = |tensor: &mut Tensor| {
            tensor.shape = shape.to_vec();
            tensor.bytes.resize(shape.iter().product(), 120);
        };
        refused(&broken(name, &change), parts);
    };
    shapes("gate_up_proj_scales", &[4, 64, 1], &["gate_up_proj_scales", "U8", "[4, 64, 2]", "[4, 64, 1]"]);
    shapes("gate_up_proj_scales", &[4, 64, 3], &["gate_up_proj_scales", "[4, 64, 2]", "[4, 64, 3]"]);
    shapes("down_proj_scales", &[4, 64], &["down_proj_scales", "[4, 64, 1]", "[4, 64]"]);
    shapes("down_proj_blocks", &[4, 64, 1, 15], &["down_proj_blocks", "[4, 64, 1, 16]", "[4, 64, 1, 15]"]);
    shapes("down_proj_blocks", &[3, 64, 1, 16], &["down_proj_blocks", "[4, 64, 1, 16]", "[3, 64, 1, 16]"]);
    let (mut quantised, _) = models();
    quantised.remove(&format!("{experts}.down_proj_scales")).unwrap();
    refused(&folder(&quantised_config(), &quantised), &["down_proj_scales", "[4, 64, 1]", "nothing"]);
    let as_f32 = broken("down_proj_scales", &|tensor| *tensor = f32s(&[4, 64, 1], |_| 1.0));
    refused(&as_f32, &["down_proj_scales", "U8 or F8_E8M0", "F32"]);

    let (mut quantised, dense) = models();
    for end in ["blocks", "scales"] {
        quantised.remove(&format!("{experts}.down_proj_{end}")).unwrap();
    }
    let name = format!("{experts}.down_proj");
    let (inputs, outputs) = (dense[&name].shape[1], dense[&name].shape[2]);
    quantised.insert(name, f32s(&[EXPERTS, outputs, inputs], |_| 1.0));
    let half = folder(&quantised_config(), &quantised);
    refused(&half, &["down_proj_blocks", "codes", "nothing"]);
    let said = load(&half, WeightChoice::default()).map(|_| ()).unwrap_err().to_string();
    assert!(said.contains("down_proj_blocks"), "{said}");

    // What only reading the values finds.
    for scale in [253, 255] {
        let large = broken("gate_up_proj_scales", &|tensor| tensor.bytes[77] = scale);
        let said = load(&large, WeightChoice::default()).map(|_| ()).unwrap_err().to_string();
        for part in ["gate_up_proj_scales", "0 to 252", &format!("{scale} at place 77")] {
            assert!(said.contains(part), "`{part}` is not in: {said}");
        }
    }
}

/// Stacked experts are made into codes expert by expert, after their numbers have been checked.
#[test]
fn dense_experts_become_codes_unless_a_number_is_none() {
    let (_, mut dense) = models();
    let made = |weights| WeightChoice { weights: Some(weights), ..WeightChoice::default() };
    let whole = folder(&config(), &dense);
    let (exact, int8) = (logits(&whole, WeightChoice::default()), logits(&whole, made(MadeFormat::Int8)));
    assert!(exact != int8 && int8.iter().all(|x| x.is_finite()));
    for (bits, shown) in [(f32::NAN, "NaN"), (f32::INFINITY, "infinite")] {
        let name = "model.layers.1.mlp.experts.down_proj";
        // Expert 2, input 3, output 5.
        let at = ((2 * WIDTH + 3) * HIDDEN + 5) * 4;
        dense.get_mut(name).unwrap().bytes[at..at + 4].copy_from_slice(&bits.to_le_bytes());
        let broken = folder(&config(), &dense);
        assert!(load(&broken, WeightChoice::default()).is_ok(), "{shown}: dense weights stay as they are");
        let said = load(&broken, made(MadeFormat::Int4)).map(|_| ()).unwrap_err().to_string();
        for part in ["model.safetensors", name, "finite numbers", "row 67"] {
            assert!(said.contains(part), "{shown}: `{part}` is not in: {said}");
        }
    }
}
