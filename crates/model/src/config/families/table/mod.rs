//! One [`Description`] for each family, some in a file with those of their kin.

mod afmoe;
mod apertus;
mod arcee;
mod bamba;
mod cohere2;
mod deepseek;
mod dots1;
mod ernie4_5;
mod exaone;
mod falcon_h1;
mod gemma;
mod glm;
mod gpt_neox;
mod gpt_oss;
mod granite;
mod granitemoehybrid;
mod helium;
mod hunyuan;
mod hy_v3;
mod jais2;
mod jamba;
mod kimi_linear;
mod lfm2;
mod llama;
mod longcat_flash;
mod mamba2;
mod minicpm3;
mod minimax_m2;
mod mistral;
mod mistral4;
mod nemotron;
mod nemotron_h;
mod olmo;
mod phi;
mod phimoe;
mod qwen;
mod qwen3_next;
mod sarvam_mla;
mod seed_oss;
mod smollm3;
mod stablelm;
mod starcoder2;

use super::description::Description;
pub use deepseek::KIMI_K2;
pub use gemma::GEMMA4_UNIFIED;

/// All families that are supported, in the order in which errors list them.
pub static FAMILIES: &[Description] = &[
    llama::LLAMA,
    mistral::MISTRAL,
    mistral::MINISTRAL,
    mistral::MINISTRAL3,
    mistral::MIXTRAL,
    qwen::QWEN2,
    qwen::QWEN3,
    qwen::QWEN3_MOE,
    qwen3_next::QWEN3_NEXT,
    qwen3_next::QWEN3_5,
    qwen3_next::QWEN3_5_MOE,
    phi::PHI,
    phi::PHI3,
    smollm3::SMOLLM3,
    olmo::OLMO2,
    olmo::OLMO3,
    gemma::GEMMA2,
    gemma::GEMMA3,
    gemma::GEMMA4,
    gpt_oss::GPT_OSS,
    deepseek::DEEPSEEK_V2,
    deepseek::DEEPSEEK_V3,
    glm::GLM4_MOE_LITE,
    mistral4::MISTRAL4,
    minicpm3::MINICPM3,
    sarvam_mla::SARVAM_MLA,
    longcat_flash::LONGCAT_FLASH,
    dots1::DOTS1,
    ernie4_5::ERNIE4_5,
    ernie4_5::ERNIE4_5_MOE,
    exaone::EXAONE4,
    exaone::EXAONE_MOE,
    glm::GLM4,
    glm::GLM4_MOE,
    glm::SOLAR_OPEN,
    helium::HELIUM,
    hy_v3::HY_V3,
    minimax_m2::MINIMAX_M2,
    qwen::QWEN2_MOE,
    seed_oss::SEED_OSS,
    bamba::BAMBA,
    granitemoehybrid::GRANITEMOEHYBRID,
    nemotron_h::NEMOTRON_H,
    mamba2::MAMBA2,
    falcon_h1::FALCON_H1,
    lfm2::LFM2,
    lfm2::LFM2_MOE,
    kimi_linear::KIMI_LINEAR,
    jamba::JAMBA,
    apertus::APERTUS,
    arcee::ARCEE,
    gpt_neox::GPT_NEOX,
    hunyuan::HUNYUAN_V1_DENSE,
    hunyuan::HUNYUAN_V1_MOE,
    jais2::JAIS2,
    nemotron::NEMOTRON,
    olmo::OLMOE,
    phimoe::PHIMOE,
    stablelm::STABLELM,
    afmoe::AFMOE,
    cohere2::COHERE2,
    cohere2::COHERE2_MOE,
    granite::GRANITE,
    granite::GRANITE_MOE,
    granite::GRANITE_MOE_SHARED,
    olmo::FLEX_OLMO,
    starcoder2::STARCODER2,
    qwen::QWEN2_VL,
    qwen::QWEN3_VL,
    qwen::QWEN3_VL_MOE,
];
