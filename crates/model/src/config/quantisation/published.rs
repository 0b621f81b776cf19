//! Reads the `quantization_config` of a published config.json. Every scheme becomes the same data: a packing, a format,
//! and the modules it holds for. What is not supported is refused by its name, with what is.

use serde_json::Value;

use super::super::fields::{Fields, shown};
use super::patterns::{PatternStyle, Patterns};
use offshoot_backend::quantised::NVFP4_GROUP;
use offshoot_backend::{CodeFormat, QuantFormat, Rounding, RoundingKind};
use offshoot_core::error::Result;
use offshoot_core::named;

/// How the matrices of a checkpoint are quantised.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    pub method: Method,
    /// The first whose targets match a module is its scheme; `None`: all linear layers.
    pub schemes: Vec<(Option<Patterns>, Scheme)>,
    /// Modules that stay dense.
    pub skipped: Patterns,
    /// Whether the output layer can be quantised too.
    pub head: bool,
}

/// The tool or library whose form a checkpoint has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Fp8,
    Fbgemm,
    ModelOpt,
    CompressedTensors,
    Awq,
    Gptq,
    Mxfp4,
}

/// How the matrix of a module is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scheme {
    pub packing: CodePacking,
    pub format: QuantFormat,
    /// The largest activation that a scale is taken from; see `ActivationScale`.
    pub most: Option<f32>,
}

/// The tensors of a quantised matrix; see `QuantSource`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodePacking {
    /// One byte each. Outputs and inputs that share a scale; `None`: each output has its own, or all have one.
    Bytes {
        block: Option<[usize; 2]>,
    },
    Awq,
    /// Stored zero points are lower by this.
    Gptq {
        zero_offset: u8,
    },
    Packed,
    Mxfp4,
    Nvfp4(Nvfp4Form),
}

/// Whose NVFP4: the names of its tensors, and what its scales are multiplied by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nvfp4Form {
    /// `weight_packed`; scales are divided by `weight_global_scale`.
    CompressedTensors,
    /// `weight`; scales are multiplied by `weight_scale_2`.
    ModelOpt,
}

named!(Method {
    Fp8 = "fp8",
    Fbgemm = "fbgemm_fp8",
    ModelOpt = "modelopt",
    CompressedTensors = "compressed-tensors",
    Awq = "awq",
    Gptq = "gptq",
    Mxfp4 = "mxfp4",
});

impl Published {
    /// The scheme of a module; `None`: it stays dense.
    pub fn scheme(&self, module: &str) -> Option<&Scheme> {
        if self.skipped.matches(module) { None } else { self.scheme_of(&[module]) }
    }

    /// The scheme of a module that has codes, whatever config.json says of modules that stay dense. It may have several
    /// names: the layout's, and the one in its file.
    pub fn scheme_of(&self, names: &[&str]) -> Option<&Scheme> {
        let mut schemes = self.schemes.iter();
        let holds = |targets: &Option<Patterns>| {
            targets.as_ref().is_none_or(|targets| names.iter().any(|name| targets.matches(name)))
        };
        schemes.find(|(targets, _)| holds(targets)).map(|(_, scheme)| scheme)
    }

    /// Whether experts are stored in OpenAI's form.
    pub fn has_mxfp4_experts(&self) -> bool {
        self.method == Method::Mxfp4
    }
}

/// Largest group of inputs, and largest side of a block.
const LARGEST_GROUP: usize = 1 << 20;

/// The default of `activation_scale_ub` in transformers' FbgemmFp8Config.
const FBGEMM_MOST: f32 = 1200.0;

/// Reads `quantization_config`; `None` if the file has none.
pub fn read(fields: &Fields<'_>) -> Result<Option<Published>> {
    const NAME: &str = "quantization_config";
    let Some(quantised) = fields.object(NAME)? else { return Ok(None) };
    let name = quantised.text("quant_method")?;
    let Some(method) = name.and_then(Method::named) else {
        let names: Vec<&str> = Method::ALL.iter().map(|method| method.name()).collect();
        let found = name.map_or_else(|| "nothing".to_owned(), |name| format!("\"{name}\""));
        return Err(quantised.error("quant_method", format!("one of {}", names.join(", ")), found));
    };
    let read = MethodReader { fields: &quantised, method };
    let published = match method {
        Method::Fp8 => read.fp8()?,
        Method::Fbgemm => {
            let most = match quantised.is_written("activation_scale_ub") {
                true => quantised.positive("activation_scale_ub")?.map(|most| most as f32),
                false => Some(FBGEMM_MOST),
            };
            let scheme = Scheme { most, ..fp8(CodePacking::Bytes { block: None }, dynamic_fp8()) };
            read.skipping("modules_to_not_convert", scheme)?
        }
        Method::ModelOpt => read.model_opt("ignore")?,
        Method::CompressedTensors => match read.compressed_tensors()? {
            Some(published) => published,
            None => return Ok(None),
        },
        Method::Awq => read.awq()?,
        Method::Gptq => read.gptq()?,
        Method::Mxfp4 => read.skipping("modules_to_not_convert", mxfp4())?,
    };
    Ok(Some(published))
}

/// Reads the hf_quant_config.json that ModelOpt writes beside a config.json without `quantization_config`.
pub fn read_model_opt(fields: &Fields<'_>) -> Result<Option<Published>> {
    let Some(quantised) = fields.object("quantization")? else { return Ok(None) };
    if quantised.value("quant_algo").is_none() {
        return Ok(None);
    }
    let reader = MethodReader { fields: &quantised, method: Method::ModelOpt };
    reader.model_opt("exclude_modules").map(Some)
}

fn dynamic_fp8() -> Rounding {
    Rounding::Dynamic { to: RoundingKind::Fp8, group: None }
}

/// With scales for each output or all of them.
fn fp8(packing: CodePacking, rounding: Rounding) -> Scheme {
    let group = match packing {
        CodePacking::Bytes { block: Some([_, cols]) } => Some(cols as u32),
        _ => None,
    };
    Scheme { packing, format: QuantFormat { codes: CodeFormat::Fp8, group, zeros: false, rounding }, most: None }
}

fn int4(packing: CodePacking, group: Option<u32>, zeros: bool) -> Scheme {
    let format = QuantFormat { codes: CodeFormat::Int4, group, zeros, rounding: Rounding::Exact };
    Scheme { packing, format, most: None }
}

fn mxfp4() -> Scheme {
    let format = QuantFormat { codes: CodeFormat::Fp4, group: Some(32), zeros: false, rounding: Rounding::Exact };
    Scheme { packing: CodePacking::Mxfp4, format, most: None }
}

fn nvfp4(form: Nvfp4Form) -> Scheme {
    let format =
        QuantFormat { codes: CodeFormat::Fp4, group: Some(NVFP4_GROUP), zeros: false, rounding: Rounding::Exact };
    Scheme { packing: CodePacking::Nvfp4(form), format, most: None }
}

struct MethodReader<'a> {
    fields: &'a Fields<'a>,
    method: Method,
}

impl MethodReader<'_> {
    /// One scheme for all linear layers but those that the list `name` has.
    fn skipping(&self, name: &str, scheme: Scheme) -> Result<Published> {
        let style = match self.method {
            Method::ModelOpt => PatternStyle::Glob,
            Method::CompressedTensors => PatternStyle::CompressedTensors,
            _ => PatternStyle::Transformers,
        };
        let skipped = self.skipped(self.fields, name, style)?;
        Ok(Published { method: self.method, schemes: vec![(None, scheme)], skipped, head: false })
    }

    fn patterns(&self, fields: &Fields<'_>, name: &str, style: PatternStyle) -> Result<Patterns> {
        let texts = self.names(fields, name)?;
        Patterns::of(style, &texts).map_err(|fault| fields.error(name, "names or regular expressions", fault))
    }

    /// Patterns of modules that stay dense. As the files decide which those are, one that cannot be read (Python's
    /// look-arounds) is left out with a warning.
    fn skipped(&self, fields: &Fields<'_>, name: &str, style: PatternStyle) -> Result<Patterns> {
        let mut texts = self.names(fields, name)?;
        texts.retain(|text| {
            let is_read = Patterns::of(style, &[text]).is_ok();
            if !is_read {
                log::warn!(
                    "{name}: \"{text}\" is no regular expression here; estimates may count too few dense weights"
                );
            }
            is_read
        });
        Patterns::of(style, &texts).map_err(|fault| fields.error(name, "names or regular expressions", fault))
    }

    fn names<'f>(&self, fields: &Fields<'f>, name: &str) -> Result<Vec<&'f str>> {
        let list = fields.list(name)?.unwrap_or_default();
        let texts: Option<Vec<&str>> = list.iter().map(Value::as_str).collect();
        texts.ok_or_else(|| fields.error(name, "a list of names of modules", "other values"))
    }

    /// Expects `name` to be `expected`, if it is there at all.
    fn expect(&self, fields: &Fields<'_>, name: &str, expected: &[Value]) -> Result<()> {
        match fields.value(name) {
            Some(value) if !expected.contains(value) => {
                let names: Vec<String> = expected.iter().map(Value::to_string).collect();
                Err(fields.error(name, names.join(" or "), shown(value)))
            }
            _ => Ok(()),
        }
    }

    /// A group size: `None` for -1, which is all inputs.
    fn group(&self, fields: &Fields<'_>, name: &str) -> Result<Option<u32>> {
        if fields.value(name).and_then(Value::as_i64) == Some(-1) {
            return Ok(None);
        }
        let value = fields.value(name);
        let size = value.and_then(Value::as_u64).and_then(|size| u32::try_from(size).ok());
        let fits = |size: &u32| (1..=LARGEST_GROUP).contains(&(*size as usize)) && size.is_multiple_of(8);
        size.filter(fits).map(Some).ok_or_else(|| {
            let expected = "a multiple of 8 up to 1048576, or -1 for all inputs";
            fields.error(name, expected, value.map_or_else(|| "nothing".to_owned(), shown))
        })
    }

    fn block(&self, fields: &Fields<'_>, name: &str) -> Result<Option<[usize; 2]>> {
        let Some(sides) = fields.list(name)? else { return Ok(None) };
        let side = |value: &Value| {
            value.as_u64().and_then(|side| usize::try_from(side).ok()).filter(|side| (1..=LARGEST_GROUP).contains(side))
        };
        match sides.iter().map(side).collect::<Option<Vec<usize>>>().as_deref() {
            Some(&[rows, cols]) if cols % 8 == 0 => Ok(Some([rows, cols])),
            _ => {
                let found = fields.value(name).map_or_else(String::new, shown);
                Err(fields.error(
                    name,
                    "two sizes up to 1048576, outputs and inputs, the second a multiple of 8",
                    found,
                ))
            }
        }
    }

    fn fp8(&self) -> Result<Published> {
        let fields = self.fields;
        self.expect(fields, "fmt", &["e4m3".into(), "float8_e4m3fn".into()])?;
        if fields.text("scale_fmt")? == Some("ue8m0") {
            log::warn!("scale_fmt \"ue8m0\": scales of activations are not rounded to powers of two here");
        }
        let block = self.block(fields, "weight_block_size")?;
        let rounding = match fields.text("activation_scheme")?.unwrap_or("dynamic") {
            "static" => Rounding::Static { to: RoundingKind::Fp8 },
            "dynamic" => Rounding::Dynamic { to: RoundingKind::Fp8, group: block.map(|[_, cols]| cols as u32) },
            other => {
                return Err(fields.error("activation_scheme", "\"dynamic\" or \"static\"", format!("\"{other}\"")));
            }
        };
        let skipped =
            if fields.value("modules_to_not_convert").is_none() { "ignored_layers" } else { "modules_to_not_convert" };
        self.skipping(skipped, fp8(CodePacking::Bytes { block }, rounding))
    }

    /// ModelOpt's "FP8", a scale for the tensor and one for its activations, and its "NVFP4".
    fn model_opt(&self, skipped: &str) -> Result<Published> {
        let fields = self.fields;
        let scheme = match fields.text("quant_algo")? {
            Some("FP8") => fp8(CodePacking::Bytes { block: None }, Rounding::Static { to: RoundingKind::Fp8 }),
            Some("NVFP4") => {
                self.expect(fields, "group_size", &[NVFP4_GROUP.into()])?;
                if let Some(groups) = fields.object("config_groups")? {
                    for name in groups.all().keys() {
                        let group = groups.required_object(name, "a scheme of ModelOpt")?;
                        self.expect_nvfp4(&group)?;
                    }
                }
                nvfp4(Nvfp4Form::ModelOpt)
            }
            other => {
                let found = other.map_or_else(|| "nothing".to_owned(), |name| format!("\"{name}\""));
                return Err(fields.error("quant_algo", "\"FP8\" or \"NVFP4\"", found));
            }
        };
        let skipped = if fields.value(skipped).is_none() { "exclude_modules" } else { skipped };
        self.skipping(skipped, scheme)
    }

    /// Checks that a group's weights are NVFP4. Activations stay as they are, whatever it says of them, so that weights
    /// of 4 bits lose no more than their own rounding.
    fn expect_nvfp4(&self, group: &Fields<'_>) -> Result<()> {
        for name in ["weights", "input_activations"] {
            let Some(scheme) = group.object(name)? else { continue };
            self.expect(&scheme, "num_bits", &[4.into()])?;
            self.expect(&scheme, "type", &["float".into()])?;
            self.expect(&scheme, "strategy", &["tensor_group".into()])?;
            self.expect(&scheme, "group_size", &[NVFP4_GROUP.into()])?;
            self.expect(&scheme, "symmetric", &[true.into()])?;
            if name == "weights" {
                self.expect(&scheme, "dynamic", &[false.into()])?;
            } else {
                log::info!("NVFP4: activations are not rounded to 4 bits, as its input_activations would have it");
            }
        }
        Ok(())
    }

    fn awq(&self) -> Result<Published> {
        let fields = self.fields;
        self.expect(fields, "bits", &[4.into()])?;
        self.expect(fields, "version", &["gemm".into(), "GEMM".into()])?;
        // The tensors say whether there are zero points; a value of another kind is a broken file all the same.
        fields.flag("zero_point")?;
        let group = self.group(fields, "group_size")?;
        self.skipping("modules_to_not_convert", int4(CodePacking::Awq, group, true))
    }

    fn gptq(&self) -> Result<Published> {
        let fields = self.fields;
        self.expect(fields, "bits", &[4.into()])?;
        // The tensors say in which order inputs lie and where zero is; a value of another kind is a broken file all the
        // same.
        for name in ["desc_act", "sym", "static_groups", "true_sequential"] {
            fields.flag(name)?;
        }
        let zero_offset = match fields.text("checkpoint_format")?.unwrap_or("gptq") {
            "gptq" => 1,
            "gptq_v2" => 0,
            other => {
                return Err(fields.error("checkpoint_format", "\"gptq\" or \"gptq_v2\"", format!("\"{other}\"")));
            }
        };
        let mut dense = Vec::new();
        for name in fields.object("dynamic")?.iter().flat_map(|overrides| overrides.all().keys()) {
            match name.strip_prefix("-:") {
                Some(regex) => dense.push(format!("re:{regex}")),
                None => {
                    return Err(fields.error("dynamic", "only modules left out (\"-:\")", format!("\"{name}\"")));
                }
            }
        }
        dense.retain(|text| Patterns::of(PatternStyle::CompressedTensors, &[text]).is_ok());
        let dense: Vec<&str> = dense.iter().map(String::as_str).collect();
        let dense = Patterns::of(PatternStyle::CompressedTensors, &dense)
            .map_err(|fault| fields.error("dynamic", "regular expressions", fault))?;
        let group = self.group(fields, "group_size")?;
        let published =
            self.skipping("modules_to_not_convert", int4(CodePacking::Gptq { zero_offset }, group, true))?;
        let skipped = published.skipped.and(&dense);
        Ok(Published { head: fields.flag("lm_head")?.unwrap_or(false), skipped, ..published })
    }

    /// `None`: no group has weights, so all matrices are dense.
    fn compressed_tensors(&self) -> Result<Option<Published>> {
        let fields = self.fields;
        for (name, inner) in [("sparsity_config", "format"), ("transform_config", "config_groups")] {
            let Some(object) = fields.object(name)? else { continue };
            match object.value(inner) {
                None => {}
                Some(value) if value == "dense" || value.as_object().is_some_and(serde_json::Map::is_empty) => {}
                Some(value) => return Err(object.error(inner, "nothing, or \"dense\"", shown(value))),
            }
        }
        let groups = fields.required_object("config_groups", "the schemes of compressed-tensors")?;
        let whole = fields.text("format")?;
        let mut schemes = Vec::new();
        for name in groups.all().keys() {
            let group = groups.required_object(name, "a scheme of compressed-tensors")?;
            let format = group.text("format")?.or(whole).unwrap_or("an unnamed format");
            if let Some(scheme) = self.group_scheme(&group, format)? {
                let list = group.list("targets")?.unwrap_or_default();
                let targets = match list.iter().any(|target| target == "Linear") {
                    true => None,
                    false => Some(self.patterns(&group, "targets", PatternStyle::CompressedTensors)?),
                };
                let is_pattern = list.iter().any(|target| target.as_str().is_some_and(|text| text.starts_with("re:")));
                schemes.push((is_pattern, targets, scheme));
            }
        }
        // The most specific first, as compressed-tensors merges them: names, regular expressions, kinds of modules.
        schemes.sort_by_key(|(is_pattern, targets, _)| (targets.is_none(), *is_pattern));
        let schemes: Vec<_> = schemes.into_iter().map(|(_, targets, scheme)| (targets, scheme)).collect();
        if schemes.is_empty() {
            return Ok(None);
        }
        let skipped = self.skipped(fields, "ignore", PatternStyle::CompressedTensors)?;
        Ok(Some(Published { method: self.method, schemes, skipped, head: true }))
    }

    /// One of `config_groups`; `None` if it has no weights.
    fn group_scheme(&self, group: &Fields<'_>, format: &str) -> Result<Option<Scheme>> {
        let Some(weights) = group.object("weights")? else { return Ok(None) };
        let kind = weights.text("type")?.unwrap_or("int");
        let bits = weights.count("num_bits")?.unwrap_or(8);
        let strategy = weights.text("strategy")?;
        let symmetric = weights.flag("symmetric")?.unwrap_or(true);
        self.expect(&weights, "dynamic", &[false.into()])?;
        if group.object("output_activations")?.is_some() {
            return Err(group.error("output_activations", "null: outputs are not rounded", "a scheme"));
        }
        if format == "nvfp4-pack-quantized" {
            self.expect_nvfp4(group)?;
            return Ok(Some(nvfp4(Nvfp4Form::CompressedTensors)));
        }
        let block = self.block(&weights, "block_structure")?;
        let inputs = self.input_activations(group, kind, block)?;
        let scheme = match (format, kind, bits, strategy) {
            ("float-quantized" | "naive-quantized", "float", 8, Some("tensor" | "channel")) => {
                fp8(CodePacking::Bytes { block: None }, inputs)
            }
            ("float-quantized" | "naive-quantized", "float", 8, Some("block")) if block.is_some() => {
                fp8(CodePacking::Bytes { block }, inputs)
            }
            ("int-quantized" | "naive-quantized", "int", 8, Some("tensor" | "channel")) if symmetric => {
                let format = QuantFormat { codes: CodeFormat::Int8, group: None, zeros: false, rounding: inputs };
                Scheme { packing: CodePacking::Bytes { block: None }, format, most: None }
            }
            ("pack-quantized", "int", 4, Some("group")) if inputs == Rounding::Exact => {
                let group = self.group(&weights, "group_size")?;
                int4(CodePacking::Packed, group, !symmetric)
            }
            ("pack-quantized", "int", 4, Some("channel")) if inputs == Rounding::Exact => {
                int4(CodePacking::Packed, None, !symmetric)
            }
            _ => {
                let strategy = strategy.unwrap_or("no strategy");
                let symmetry = if symmetric { "symmetric" } else { "asymmetric" };
                let expected = "float-quantized of 8 bits (tensor, channel, block), int-quantized of 8 bits \
                                (symmetric; tensor, channel), pack-quantized of 4-bit integers (group, channel; \
                                weights only) or nvfp4-pack-quantized";
                let found = format!("{format}, {symmetry} {kind} of {bits} bits by {strategy}");
                return Err(group.error("weights", expected, found));
            }
        };
        Ok(Some(scheme))
    }

    fn input_activations(&self, group: &Fields<'_>, weights: &str, block: Option<[usize; 2]>) -> Result<Rounding> {
        let Some(inputs) = group.object("input_activations")? else { return Ok(Rounding::Exact) };
        self.expect(&inputs, "num_bits", &[8.into()])?;
        self.expect(&inputs, "type", &[weights.into()])?;
        self.expect(&inputs, "symmetric", &[true.into()])?;
        let to = if weights == "float" { RoundingKind::Fp8 } else { RoundingKind::Int8 };
        let dynamic = inputs.flag("dynamic")?.unwrap_or(false);
        match (dynamic, inputs.text("strategy")?) {
            (true, Some("token") | None) => Ok(Rounding::Dynamic { to, group: None }),
            // A scale for all rows of a step would let rows depend on one another; each row has its own.
            (true, Some("tensor")) => Ok(Rounding::Dynamic { to, group: None }),
            (true, Some("group")) => {
                let group = match (self.group(&inputs, "group_size")?, block) {
                    (Some(group), _) => Some(group),
                    (None, block) => block.map(|[_, cols]| cols as u32),
                };
                Ok(Rounding::Dynamic { to, group })
            }
            (false, Some("tensor") | None) => Ok(Rounding::Static { to }),
            (_, Some(other)) => {
                let expected = "\"token\", \"tensor\" or \"group\" (dynamic), or \"tensor\" (static)";
                Err(inputs.error("strategy", expected, format!("\"{other}\"")))
            }
        }
    }
}
