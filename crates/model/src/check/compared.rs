//! Which golden models of each family have been compared with the results of transformers, and on which devices. Tests
//! compare all of them on the CPU, and hold this list to the folders; `offshoot models` prints it.

/// The golden models of a family.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    /// Its `model_type`, as [`Family::name`](crate::config::Family::name).
    pub family: &'static str,
    /// Folders of tests/data/goldens or of the collections in ../shared.
    pub goldens: &'static [&'static str],
    /// The folder of benches/runs that records a comparison of some of them on a GPU; it is named after the date and
    /// the device.
    pub gpu: Option<&'static str>,
}

impl Comparison {
    /// The GPU and the date of the recorded comparison.
    pub fn on_gpu(&self) -> Option<(String, &'static str)> {
        let (date, rest) = self.gpu?.split_at_checked("2026-11-30".len())?;
        let device = rest.trim_start_matches('-').split('-').next()?;
        Some((device.to_uppercase(), date))
    }
}

const BREADTH: Option<&str> = Some("2026-11-26-h200-breadth");
const LATENTS: Option<&str> = Some("2026-11-30-h200-latents");
const FAMILIES: Option<&str> = Some("2026-12-01-h200-families");

const fn compared(family: &'static str, goldens: &'static [&'static str], gpu: Option<&'static str>) -> Comparison {
    Comparison { family, goldens, gpu }
}

/// All that have been compared, by family.
pub static COMPARISONS: &[Comparison] = &[
    compared("afmoe", &["afmoe"], FAMILIES),
    compared("apertus", &["apertus"], FAMILIES),
    compared("arcee", &["arcee"], FAMILIES),
    compared("bamba", &["bamba"], None),
    compared("cohere2", &["cohere2"], FAMILIES),
    compared("cohere2_moe", &["cohere2_moe"], None),
    compared("deepseek_v2", &["deepseek_v2-lite"], LATENTS),
    compared("deepseek_v3", &["deepseek_v3", "deepseek_v3-moonlight", "kimi_k25", "quant-fp8-deepseek_v3"], LATENTS),
    compared("dots1", &["dots1"], None),
    compared("ernie4_5", &["ernie4_5"], None),
    compared("ernie4_5_moe", &["ernie4_5_moe"], None),
    compared("exaone4", &["exaone4-hybrid"], None),
    compared("exaone_moe", &["exaone_moe"], None),
    compared("falcon_h1", &["falcon_h1"], None),
    compared("flex_olmo", &["flex_olmo"], None),
    compared("gemma2", &["gemma2", "gemma2-softcaps"], BREADTH),
    compared("gemma3_text", &["gemma3", "gemma3-tworopes"], BREADTH),
    compared("gemma4_text", &["gemma4", "gemma4-mixture", "gemma4-ple"], BREADTH),
    compared("glm4", &["glm4", "glm4v"], None),
    compared("glm4_moe", &["glm4_moe-air", "glm4v_moe", "quant-fp8-channel-glm4_moe"], FAMILIES),
    compared("glm4_moe_lite", &["glm4_moe_lite"], LATENTS),
    compared("gpt_neox", &["gpt_neox"], FAMILIES),
    compared("gpt_oss", &["gpt-oss", "gpt-oss-sinks", "quant-mxfp4-gpt-oss"], BREADTH),
    compared("granite", &["granite"], None),
    compared("granitemoe", &["granitemoe"], None),
    compared("granitemoehybrid", &["granitemoehybrid-h-tiny"], None),
    compared("granitemoeshared", &["granitemoeshared"], FAMILIES),
    compared("helium", &["helium"], None),
    compared("hunyuan_v1_dense", &["hunyuan_v1_dense"], None),
    compared("hunyuan_v1_moe", &["hunyuan_v1_moe"], FAMILIES),
    compared("hy_v3", &["hy_v3"], None),
    compared("jais2", &["jais2"], None),
    compared("jamba", &["jamba"], None),
    compared("kimi_linear", &["kimi_linear"], None),
    compared("lfm2", &["lfm2"], None),
    compared("lfm2_moe", &["lfm2_moe"], None),
    compared(
        "llama",
        &["llama2-mha", "llama3-gqa-ropescaled", "quant-nvfp4-llama", "quant-nvfp4-modelopt-llama"],
        None,
    ),
    compared("longcat_flash", &["longcat_flash"], LATENTS),
    compared("mamba2", &["mamba2"], None),
    compared("minicpm3", &["minicpm3"], LATENTS),
    compared("minimax_m2", &["minimax_m2"], FAMILIES),
    compared("ministral3", &["ministral3-growth"], None),
    compared("mistral", &["mistral-sliding16"], None),
    compared("mistral4", &["mistral4-text"], LATENTS),
    compared("mixtral", &["mixtral"], BREADTH),
    compared("nemotron", &["nemotron"], FAMILIES),
    compared("nemotron_h", &["nemotron_h-moe", "nemotron_h-nano2"], None),
    compared("olmo2", &["olmo2"], None),
    compared("olmo3", &["olmo3", "olmo3-yarn"], BREADTH),
    compared("olmoe", &["olmoe"], FAMILIES),
    compared("phi", &["phi2"], None),
    compared("phi3", &["phi3", "phi3-longrope60"], BREADTH),
    compared("phimoe", &["phimoe"], FAMILIES),
    compared("qwen2", &["qwen2-tied", "internvl3-qwen2"], None),
    compared("qwen2_moe", &["qwen2_moe"], None),
    compared(
        "qwen3",
        &[
            "qwen3-qknorm",
            "quant-awq-int4",
            "quant-fp8-block",
            "quant-fp8-channel",
            "quant-fp8-tensor",
            "quant-gptq-int4",
        ],
        BREADTH,
    ),
    compared("qwen3_5_moe_text", &["qwen3_5-moe"], BREADTH),
    compared("qwen3_5_text", &["qwen3_5-dense", "qwen3_5-in-vision"], BREADTH),
    compared("qwen3_moe", &["qwen3-moe"], BREADTH),
    compared("qwen3_next", &["qwen3-next"], BREADTH),
    compared("sarvam_mla", &["sarvam-latents", "sarvam_mla-plain"], LATENTS),
    compared("seed_oss", &["seed_oss"], None),
    compared("smollm3", &["smollm3", "smollm3-nope"], BREADTH),
    compared("solar_open", &["solar_open"], None),
    compared("stablelm", &["stablelm"], FAMILIES),
    compared("starcoder2", &["starcoder2"], None),
];
