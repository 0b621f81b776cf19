//! Quantised checkpoints in every form, made here of codes, scales and zero points: they compute what the same numbers
//! do in f32. And those that are not what they should be: one sentence each, and nothing is read out of bounds.

use crate::model_errors::{Tensor, Tensors, config, folder, refused, save, tensors};

use offshoot_core::dice::Dice;
use offshoot_core::ids::TokenId;
use offshoot_cpu::Cpu;
use offshoot_model::{ActivationChoice, Decoder, MadeFormat, ModelFolder, Sequence, WeightChoice, check};
use safetensors::Dtype;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A form in which the layers' matrices are stored, and its `quantization_config`.
struct Form {
    config: Value,
    /// The tensors of a module, by their suffixes, from its codes.
    pack: fn(&Codes) -> Vec<(&'static str, Tensor)>,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Zero points by group.
    Int4,
    /// The zero point 8.
    Symmetric,
    Int8,
    Fp8,
    /// With one scale for all.
    Fp8Tensor,
    /// Scales of e4m3, in units of 1/32.
    Nvfp4,
}

const GROUP: usize = 16;

/// A matrix as codes.
struct Codes {
    rows: usize,
    cols: usize,
    /// `[rows][cols]`
    codes: Vec<u8>,
    /// `[rows][groups]`
    scales: Vec<f32>,
    zeros: Vec<u8>,
    /// The group of each input.
    group_of: Vec<usize>,
}

/// 24 random bits of place `i`.
fn hash(i: usize, salt: usize) -> usize {
    (Dice::new((salt as u64) << 32 | i as u64).next() >> 40) as usize
}

impl Codes {
    /// `shuffled`: groups are not of neighbouring inputs.
    fn of(rows: usize, cols: usize, salt: usize, kind: Kind, shuffled: bool) -> Self {
        let groups = if matches!(kind, Kind::Int8 | Kind::Fp8 | Kind::Fp8Tensor) { 1 } else { cols / GROUP };
        let code = |i: usize| match kind {
            Kind::Int4 | Kind::Symmetric | Kind::Nvfp4 => (hash(i, salt) % 16) as u8,
            Kind::Int8 => (hash(i, salt) % 256) as u8,
            // Up to 15 of either sign.
            Kind::Fp8 | Kind::Fp8Tensor => {
                (hash(i, salt) % 0x58) as u8 | if hash(i, salt + 7).is_multiple_of(2) { 0x80 } else { 0 }
            }
        };
        let size = match kind {
            Kind::Int8 => 1.0 / 512.0,
            _ => 1.0 / 32.0,
        };
        let scale = |i: usize| match kind {
            Kind::Fp8Tensor => size,
            _ => size * (1.0 + (hash(i, salt + 1) % 8) as f32 / 8.0),
        };
        let zero = |i: usize| if kind == Kind::Int4 { (hash(i, salt + 2) % 16) as u8 } else { 8 };
        let place = |k: usize| if shuffled { (k * 5 + 3) % cols } else { k };
        Self {
            rows,
            cols,
            codes: (0..rows * cols).map(code).collect(),
            scales: (0..rows * groups).map(scale).collect(),
            zeros: (0..rows * groups).map(zero).collect(),
            group_of: (0..cols).map(|k| place(k) * groups / cols).collect(),
        }
    }

    fn groups(&self) -> usize {
        self.scales.len() / self.rows
    }

    /// The numbers that the codes stand for.
    fn dense(&self, kind: Kind) -> Tensor {
        let number = |i: usize| {
            let (row, group) = (i / self.cols, self.group_of[i % self.cols]);
            let at = row * self.groups() + group;
            let code = self.codes[i];
            let number = match kind {
                Kind::Int4 | Kind::Symmetric => f32::from(code) - f32::from(self.zeros[at]),
                Kind::Int8 => f32::from(code.cast_signed()),
                Kind::Nvfp4 => {
                    let size = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
                    if code & 8 == 0 { size } else { -size }
                }
                Kind::Fp8 | Kind::Fp8Tensor => {
                    let (exponent, fraction) = (i32::from(code >> 3 & 15), f32::from(code & 7));
                    let size = match exponent {
                        0 => fraction * 2f32.powi(-9),
                        _ => (8.0 + fraction) * 2f32.powi(exponent - 10),
                    };
                    if code & 0x80 == 0 { size } else { -size }
                }
            };
            number * self.scales[at]
        };
        f32s(&[self.rows, self.cols], (0..self.rows * self.cols).map(number))
    }
}

fn f32s(shape: &[usize], values: impl Iterator<Item = f32>) -> Tensor {
    Tensor { dtype: Dtype::F32, shape: shape.to_vec(), bytes: values.flat_map(f32::to_le_bytes).collect() }
}

/// Words of eight 4-bit codes; `code(word, place)`.
fn words(shape: [usize; 2], code: impl Fn(usize, usize) -> u8) -> Tensor {
    let word = |at: usize| (0..8).fold(0u32, |word, place| word | u32::from(code(at, place) & 15) << (4 * place));
    let bytes = (0..shape[0] * shape[1]).flat_map(|at| word(at).to_le_bytes()).collect();
    Tensor { dtype: Dtype::I32, shape: shape.to_vec(), bytes }
}

fn by_group(c: &Codes) -> Tensor {
    let groups = c.groups();
    f32s(&[groups, c.rows], (0..groups * c.rows).map(|i| c.scales[i % c.rows * groups + i / c.rows]))
}

fn bytes(c: &Codes, dtype: Dtype) -> Vec<(&'static str, Tensor)> {
    let codes = Tensor { dtype, shape: vec![c.rows, c.cols], bytes: c.codes.clone() };
    vec![(".weight", codes), (".weight_scale", f32s(&[c.rows, 1], c.scales.iter().copied()))]
}

fn awq(c: &Codes) -> Vec<(&'static str, Tensor)> {
    const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
    let (across, groups) = (c.rows / 8, c.groups());
    let output = |at: usize, place: usize| at % across * 8 + ORDER[place];
    let codes = words([c.cols, across], |at, place| c.codes[output(at, place) * c.cols + at / across]);
    let zeros = words([groups, across], |at, place| c.zeros[output(at, place) * groups + at / across]);
    vec![(".qweight", codes), (".qzeros", zeros), (".scales", by_group(c))]
}

/// The first version stores words of zero points lower by one in each place, with borrow.
fn gptq(c: &Codes) -> Vec<(&'static str, Tensor)> {
    let mut tensors = gptq_v2(c);
    let zeros = &mut tensors[1].1.bytes;
    for word in zeros.as_chunks_mut::<4>().0 {
        *word = u32::from_le_bytes(*word).wrapping_sub(0x1111_1111).to_le_bytes();
    }
    tensors
}

fn gptq_v2(c: &Codes) -> Vec<(&'static str, Tensor)> {
    let (across, groups) = (c.rows / 8, c.groups());
    let codes = words([c.cols / 8, c.rows], |at, place| c.codes[at % c.rows * c.cols + at / c.rows * 8 + place]);
    let zeros = words([groups, across], |at, place| c.zeros[(at % across * 8 + place) * groups + at / across]);
    let group = c.group_of.iter().flat_map(|&group| (group as i32).to_le_bytes()).collect();
    let group = Tensor { dtype: Dtype::I32, shape: vec![c.cols], bytes: group };
    vec![(".qweight", codes), (".qzeros", zeros), (".scales", by_group(c)), (".g_idx", group)]
}

fn packed(c: &Codes) -> Vec<(&'static str, Tensor)> {
    let groups = c.groups();
    let codes = words([c.rows, c.cols / 8], |at, place| c.codes[at * 8 + place]);
    let zeros = words([c.rows / 8, groups], |at, place| c.zeros[(at / groups * 8 + place) * groups + at % groups]);
    let shape = [c.rows, c.cols].iter().flat_map(|&size| (size as i64).to_le_bytes()).collect();
    vec![
        (".weight_packed", codes),
        (".weight_scale", f32s(&[c.rows, groups], c.scales.iter().copied())),
        (".weight_zero_point", zeros),
        (".weight_shape", Tensor { dtype: Dtype::I64, shape: vec![2], bytes: shape }),
    ]
}

/// ModelOpt's: scales of the tensor and of its activations.
fn by_tensor(c: &Codes) -> Vec<(&'static str, Tensor)> {
    let codes = Tensor { dtype: Dtype::F8_E4M3, shape: vec![c.rows, c.cols], bytes: c.codes.clone() };
    let scale = |value: f32| f32s(&[], std::iter::once(value));
    vec![(".weight", codes), (".weight_scale", scale(c.scales[0])), (".input_scale", scale(0.01))]
}

/// `what`: the names of the codes, of the scale of all and of that of activations, and the scale of all.
fn nvfp4(c: &Codes, what: ([&'static str; 3], f32)) -> Vec<(&'static str, Tensor)> {
    let ([codes_name, all_name, inputs_name], all) = what;
    let codes = c.codes.as_chunks::<2>().0.iter().map(|[low, high]| low | high << 4).collect();
    // 1 to 2 in steps of an eighth, above the code of 1.
    let scales = c.scales.iter().map(|scale| 0x38 + (scale * 256.0) as u8 - 8).collect();
    let scale = |value: f32| f32s(&[1], std::iter::once(value));
    vec![
        (codes_name, Tensor { dtype: Dtype::U8, shape: vec![c.rows, c.cols / 2], bytes: codes }),
        (".weight_scale", Tensor { dtype: Dtype::F8_E4M3, shape: vec![c.rows, c.groups()], bytes: scales }),
        (all_name, scale(all)),
        (inputs_name, scale(300.0)),
    ]
}

fn compressed(format: &str, weights: Value, inputs: Value) -> Value {
    json!({"quant_method": "compressed-tensors", "format": format, "ignore": ["lm_head"], "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}}})
}

fn forms() -> Vec<(&'static str, Form)> {
    let int4 = |symmetric: bool| {
        json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP,
        "symmetric": symmetric})
    };
    let gptq_config = json!({"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": true, "sym": false});
    let mut gptq_v2_config = gptq_config.clone();
    gptq_v2_config["checkpoint_format"] = json!("gptq_v2");
    let awq_config = json!({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"});
    let token = |kind: &str| json!({"num_bits": 8, "type": kind, "strategy": "token", "dynamic": true});
    let channel = |kind: &str| json!({"num_bits": 8, "type": kind, "strategy": "channel"});
    let float4 = |dynamic: Value| {
        let strategy = "tensor_group";
        json!({"num_bits": 4, "type": "float", "strategy": strategy, "group_size": 16, "dynamic": dynamic})
    };
    let without_zeros = |c: &Codes| packed(c).into_iter().filter(|(end, _)| *end != ".weight_zero_point").collect();
    vec![
        ("awq", Form { config: awq_config, pack: awq, kind: Kind::Int4 }),
        ("gptq", Form { config: gptq_config.clone(), pack: gptq, kind: Kind::Int4 }),
        ("gptq_v2", Form { config: gptq_v2_config, pack: gptq_v2, kind: Kind::Int4 }),
        (
            "packed",
            Form { config: compressed("pack-quantized", int4(false), Value::Null), pack: packed, kind: Kind::Int4 },
        ),
        (
            "packed symmetric",
            Form {
                config: compressed("pack-quantized", int4(true), Value::Null),
                pack: without_zeros,
                kind: Kind::Symmetric,
            },
        ),
        (
            "int8",
            Form {
                config: compressed("int-quantized", channel("int"), token("int")),
                pack: |c| bytes(c, Dtype::I8),
                kind: Kind::Int8,
            },
        ),
        (
            "fp8",
            Form {
                config: compressed("float-quantized", channel("float"), token("float")),
                pack: |c| bytes(c, Dtype::F8_E4M3),
                kind: Kind::Fp8,
            },
        ),
        (
            "fbgemm",
            Form {
                config: json!({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}),
                pack: |c| bytes(c, Dtype::F8_E4M3),
                kind: Kind::Fp8,
            },
        ),
        (
            "modelopt",
            Form {
                config: json!({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}),
                pack: by_tensor,
                kind: Kind::Fp8Tensor,
            },
        ),
        (
            "nvfp4",
            Form {
                config: compressed("nvfp4-pack-quantized", float4(json!(false)), float4(json!("local"))),
                pack: |c| nvfp4(c, ([".weight_packed", ".weight_global_scale", ".input_global_scale"], 32.0)),
                kind: Kind::Nvfp4,
            },
        ),
        (
            "modelopt nvfp4",
            Form {
                config: json!({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}),
                pack: |c| nvfp4(c, ([".weight", ".weight_scale_2", ".input_scale"], 1.0 / 32.0)),
                kind: Kind::Nvfp4,
            },
        ),
    ]
}

/// The quantised model, and the same numbers in f32.
fn models(form: &Form, shuffled: bool) -> (Tensors, Tensors) {
    let (mut quantised, mut dense) = (tensors(), tensors());
    let names: Vec<String> = dense.keys().filter(|name| name.contains("_proj")).cloned().collect();
    for (salt, name) in names.iter().enumerate() {
        let shape = dense[name].shape.clone();
        let codes = Codes::of(shape[0], shape[1], salt, form.kind, shuffled);
        quantised.remove(name);
        let module = name.strip_suffix(".weight").unwrap();
        quantised.extend((form.pack)(&codes).into_iter().map(|(end, tensor)| (format!("{module}{end}"), tensor)));
        dense.insert(name.clone(), codes.dense(form.kind));
    }
    (quantised, dense)
}

fn quantised_config(form: &Form) -> Value {
    let mut config = config();
    config["quantization_config"] = form.config.clone();
    config
}

fn logits(folder: &TempDir, choice: WeightChoice) -> Vec<f32> {
    let mut backend = Cpu::open().unwrap();
    let opened = ModelFolder::open(folder.path()).unwrap().with(choice).unwrap();
    let mut model = Decoder::load(&mut backend, &opened).unwrap();
    let tokens: Vec<TokenId> = (0..40).map(|i| TokenId(i * 29 % 64)).collect();
    Sequence::new(&mut backend, &mut model, 40).unwrap().extend(&tokens, 0..40).unwrap()
}

const EXACT: WeightChoice = WeightChoice { weights: None, activations: ActivationChoice::Bf16 };

#[test]
fn every_form_computes_what_its_numbers_do_in_f32() {
    for (name, form) in forms() {
        for shuffled in [false, true].into_iter().filter(|shuffled| !shuffled || name.starts_with("gptq")) {
            let (quantised, dense) = models(&form, shuffled);
            let found = logits(&folder(&quantised_config(&form), &quantised), EXACT);
            let expected = logits(&folder(&config(), &dense), WeightChoice::default());
            let error = found.iter().zip(&expected).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
            // As for goldens: sums in another order.
            assert!(error <= 1e-3, "{name}, groups in order {}: {error}", !shuffled);
            assert!(found.iter().any(|x| x.abs() > 0.1), "{name}");
        }
    }
}

#[test]
fn a_quantised_folder_says_its_size_and_is_not_made_smaller_again() {
    let form = forms().into_iter().find(|(name, _)| *name == "fp8").unwrap().1;
    let folder = folder(&quantised_config(&form), &models(&form, false).0);
    let opened = ModelFolder::open(folder.path()).unwrap();
    let facts = check::facts(&opened).unwrap();
    assert_eq!(facts.stored.bytes, facts.config.weight_bytes(facts.dtype));
    let choice = WeightChoice { weights: Some(MadeFormat::Int8), ..WeightChoice::default() };
    let said = opened.with(choice).unwrap_err().to_string();
    assert!(said.contains("`weights` int8") && said.contains("compressed-tensors"), "{said}");
}

/// ModelOpt writes its own file beside a config.json that says nothing, and scales of keys and values.
#[test]
fn what_modelopt_writes_beside_config_json_is_read() {
    let form = forms().into_iter().find(|(name, _)| *name == "modelopt").unwrap().1;
    let (mut quantised, _) = models(&form, false);
    let expected = logits(&folder(&quantised_config(&form), &quantised), WeightChoice::default());
    for scale in ["k_proj.k_scale", "v_proj.v_scale"] {
        quantised.insert(format!("model.layers.0.self_attn.{scale}"), f32s(&[], std::iter::once(0.5)));
    }
    let folder = folder(&config(), &quantised);
    let written = json!({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8",
        "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}});
    std::fs::write(folder.path().join("hf_quant_config.json"), written.to_string()).unwrap();
    assert!(logits(&folder, WeightChoice::default()) == expected);
    assert!(logits(&folder, EXACT) != expected, "activations are rounded");
}

/// `models` of a form with one tensor changed, or removed.
fn broken(form: &Form, tensor: &str, change: impl FnOnce(Tensor) -> Option<Tensor>) -> TempDir {
    let (mut quantised, _) = models(form, false);
    let before = quantised.remove(tensor).unwrap();
    if let Some(after) = change(before) {
        quantised.insert(tensor.to_owned(), after);
    }
    folder(&quantised_config(form), &quantised)
}

#[test]
fn tensors_that_do_not_fit_are_refused() {
    let form = |name: &str| forms().into_iter().find(|(other, _)| *other == name).unwrap().1;
    let (q, down) = ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj");
    let of = |module: &str, end: &str| format!("{module}{end}");
    let name = of(q, ".weight_scale");
    refused(&broken(&form("fp8"), &name, |_| None), &["q_proj.weight_scale", "a scale for each output", "nothing"]);
    let short = |tensor: Tensor| Some(f32s(&[16, 1], (0..16).map(|_| 1.0)).clone()).filter(|_| tensor.shape[0] != 16);
    refused(&broken(&form("int8"), &name, short), &["q_proj.weight_scale", "[32, 1]", "[16, 1]"]);
    let name = of(down, ".scales");
    refused(&broken(&form("awq"), &name, |_| None), &["down_proj.scales", "[3, 32]", "nothing"]);
    let name = of(down, ".qzeros");
    let flat = |tensor: Tensor| Some(Tensor { shape: vec![12], ..tensor });
    refused(&broken(&form("gptq"), &name, flat), &["down_proj.qzeros", "zero points", "[3, 4]", "[12]"]);
    let mut other = form("awq");
    other.config["group_size"] = json!(24);
    let (tensors, _) = models(&form("awq"), false);
    refused(&folder(&quantised_config(&other), &tensors), &["q_proj.qweight", "groups of 24", "32 inputs"]);
    let name = of(q, ".weight_scale_2");
    refused(
        &broken(&form("modelopt nvfp4"), &name, |_| None),
        &["q_proj.weight_scale_2", "a scale for all", "nothing"],
    );
    let name = of(q, ".weight_packed");
    let flat = |tensor: Tensor| Some(Tensor { shape: vec![512], ..tensor });
    refused(&broken(&form("nvfp4"), &name, flat), &["q_proj.weight_packed", "two in a byte", "[32, 16]", "[512]"]);
    let (tensors, _) = models(&form("int8"), false);
    refused(&folder(&config(), &tensors), &["q_proj", "quantization_config", "codes without one"]);
}

/// fbgemm takes the scale of a row from at most `activation_scale_ub`, 1200 if config.json does not say.
#[test]
fn a_bound_of_scales_is_applied() {
    let form = || forms().into_iter().find(|(name, _)| *name == "fbgemm").unwrap().1;
    let bounded_by = |bound: Option<Value>| {
        let mut form = form();
        if let Some(bound) = bound {
            form.config["activation_scale_ub"] = bound;
        }
        folder(&quantised_config(&form), &models(&form, false).0)
    };
    let logits = |bound: Option<Value>| logits(&bounded_by(bound), WeightChoice::default());
    let (of_default, unbounded, bounded) = (logits(None), logits(Some(Value::Null)), logits(Some(json!(0.5))));
    assert!(of_default == unbounded, "no activation of this model is beyond 1200");
    assert!(bounded != unbounded && bounded.iter().all(|x| x.is_finite()), "activations beyond 0.5 become it");
    for wrong in [json!(0), json!(-3.5), json!("large")] {
        let said = ModelFolder::open(bounded_by(Some(wrong)).path()).unwrap_err().to_string();
        assert!(said.contains("activation_scale_ub") && said.contains("above 0"), "{said}");
    }
}

/// What only reading the values finds, which `check` of the headers does not.
#[test]
fn scales_groups_and_codes_that_are_no_numbers_are_refused() {
    let form = |name: &str| forms().into_iter().find(|(other, _)| *other == name).unwrap().1;
    let q = "model.layers.0.self_attn.q_proj";
    let refused = |folder: &TempDir, parts: &[&str]| {
        let opened = ModelFolder::open(folder.path()).unwrap();
        let said = Decoder::load(&mut Cpu::open().unwrap(), &opened).map(|_| ()).unwrap_err();
        assert_eq!(said.exit_code(), 2, "{said}");
        let said = said.to_string();
        parts.iter().for_each(|part| assert!(said.contains(part), "`{part}` is not in: {said}"));
    };
    for (value, shown) in [(0.0f32, "0 at place 2"), (f32::NAN, "NaN at place 2"), (f32::INFINITY, "inf at place 2")] {
        for (name, end) in [("fp8", ".weight_scale"), ("awq", ".scales"), ("packed", ".weight_scale")] {
            let set = |mut tensor: Tensor| {
                tensor.bytes[8..12].copy_from_slice(&value.to_le_bytes());
                Some(tensor)
            };
            let parts = ["model.safetensors", "q_proj", "finite and not zero", shown];
            refused(&broken(&form(name), &format!("{q}{end}"), set), &parts);
        }
    }
    let nan = |mut tensor: Tensor| {
        tensor.bytes[5] = 0xff;
        Some(tensor)
    };
    refused(&broken(&form("fp8"), &format!("{q}.weight"), nan), &["q_proj.weight", "codes that are numbers", "NaN"]);
    for (value, shown) in [(0.0f32, "found 0"), (-2.0, "found -2"), (f32::NAN, "found NaN"), (1e-38, "found 0.00000")] {
        let set = |tensor: Tensor| Some(Tensor { bytes: value.to_le_bytes().to_vec(), ..tensor });
        let name = format!("{q}.weight_global_scale");
        refused(&broken(&form("nvfp4"), &name, set), &["q_proj.weight_global_scale", "all numbers are finite", shown]);
    }
    for (code, shown) in [(0x7f, "found NaN at place 3"), (0xb8, "found -1 at place 3")] {
        let set = |mut tensor: Tensor| {
            tensor.bytes[3] = code;
            Some(tensor)
        };
        let name = format!("{q}.weight_scale");
        refused(&broken(&form("modelopt nvfp4"), &name, set), &["q_proj.weight_scale", "scales from 0 on", shown]);
    }
    for group in [7i32, -2, i32::MAX] {
        let wrong = |mut tensor: Tensor| {
            tensor.bytes[4..8].copy_from_slice(&group.to_le_bytes());
            Some(tensor)
        };
        let parts = ["q_proj.g_idx", "2 groups from 0 on, each of 16 inputs", "other groups"];
        refused(&broken(&form("gptq"), &format!("{q}.g_idx"), wrong), &parts);
    }
}

/// Headers and values changed at random, and files cut short: loading ends with a model or with one sentence.
#[test]
fn changed_files_end_with_one_sentence() {
    for (name, form) in forms() {
        let (tensors, _) = models(&form, false);
        let folder = folder(&quantised_config(&form), &tensors);
        let path = folder.path().join("model.safetensors");
        let whole = std::fs::read(&path).unwrap();
        let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
        let mut refused = 0;
        for i in 0..120 {
            let mut bytes = whole.clone();
            match i % 4 {
                0 => bytes.truncate(hash(i, 1) % whole.len()),
                1 => bytes[8 + hash(i, 2) % (header - 8)] = b"0123456789[],:\"{}"[hash(i, 3) % 17],
                2 => bytes[header + hash(i, 4) % (whole.len() - header)] ^= 1 << (hash(i, 5) % 8),
                _ => bytes[hash(i, 6) % 8] ^= 1 << (hash(i, 7) % 8),
            }
            std::fs::write(&path, &bytes).unwrap();
            let opened = ModelFolder::open(folder.path()).unwrap();
            if let Err(error) = Decoder::load(&mut Cpu::open().unwrap(), &opened) {
                refused += 1;
                assert!(!error.to_string().contains('\n'), "{name}: {error}");
            }
        }
        assert!(refused > 40, "{name}: only {refused} of 120 changed files were refused");
        save(&path, &tensors);
    }
}
