//! The names that families give to the modules of a checkpoint, as in transformers. `layout` makes tensor names of
//! them.

/// Names of modules; those of a layer follow `model.layers.N.`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modules {
    /// One module for queries, keys and values, or `None`: `self_attn.{q,k,v}_proj`.
    pub fused_qkv: Option<&'static str>,
    pub out: &'static str,
    /// Stacked in this order: gate and up, or one module that holds both.
    pub up: &'static [&'static str],
    pub down: &'static str,
    pub before_attention: &'static str,
    pub after_attention: &'static str,
    pub before_feed_forward: &'static str,
    pub after_feed_forward: &'static str,
    pub final_norm: &'static str,
    pub experts: ExpertModules,
    /// The expert that all rows share.
    pub shared_expert: &'static str,
    /// The bias by which a router chooses.
    pub choosing_bias: &'static str,
    pub delta_rule: DeltaRuleModules,
    /// Whether two layers share a number in the names of tensors: what both have has a 0 or 1 behind its name.
    pub halves: bool,
}

/// How the projections of delta-rule layers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeltaRuleModules {
    /// `in_proj_qkv`, `in_proj_z`, `in_proj_b` and `in_proj_a`: each with its heads one after the other.
    Separate,
    /// `in_proj_qkvz` and `in_proj_ba`: of each key head its query, key, values and gates, then of the next.
    ByKeyHead,
}

/// Names of the modules of a mixture of experts, and how the experts' weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertModules {
    pub router: &'static str,
    /// The folder of the experts.
    pub experts: &'static str,
    pub form: ExpertForm,
}

/// How the weights of experts are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertForm {
    /// A module for each expert and matrix: the names of gate, up and down.
    Separate { gate: &'static str, up: &'static str, down: &'static str },
    /// One `gate_up_proj` and one `down_proj` of all experts.
    Stacked(StackedForm),
}

/// How the weights of all experts lie in one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackedForm {
    /// `gate_up_proj` `[experts, 2 * width, hidden]` and `down_proj` `[experts, hidden, width]`.
    Plain,
    /// `gate_up_proj` `[experts, hidden, 2 * width]`, whose columns are gate and up in turn, and `down_proj`
    /// `[experts, width, hidden]`.
    Transposed,
    /// `gate_up_proj` `[experts, 2 * width, hidden]`, whose rows are gate and up in turn, and `down_proj`
    /// `[experts, hidden, width]`, each as `_blocks` and `_scales`.
    Mxfp4,
}

/// How transformers 5 stores the experts of Mixtral and Qwen3-MoE where it does not go back to the published form.
pub const STACKED_EXPERTS: ExpertModules =
    ExpertModules { router: "mlp.gate", experts: "mlp.experts", form: ExpertForm::Stacked(StackedForm::Plain) };

const QWEN_EXPERTS: ExpertModules = ExpertModules {
    router: "mlp.gate",
    experts: "mlp.experts",
    form: ExpertForm::Separate { gate: "gate_proj", up: "up_proj", down: "down_proj" },
};

pub const LLAMA: Modules = Modules {
    fused_qkv: None,
    out: "self_attn.o_proj",
    up: &["mlp.gate_proj", "mlp.up_proj"],
    down: "mlp.down_proj",
    before_attention: "input_layernorm",
    after_attention: "post_attention_layernorm",
    before_feed_forward: "post_attention_layernorm",
    after_feed_forward: "post_feedforward_layernorm",
    final_norm: "model.norm",
    experts: QWEN_EXPERTS,
    shared_expert: "mlp.shared_expert",
    choosing_bias: "mlp.gate.e_score_correction_bias",
    delta_rule: DeltaRuleModules::Separate,
    halves: false,
};

pub const DEEPSEEK: Modules = Modules { shared_expert: "mlp.shared_experts", ..LLAMA };

pub const LONGCAT: Modules = Modules {
    up: &["mlps.gate_proj", "mlps.up_proj"],
    down: "mlps.down_proj",
    experts: ExpertModules { router: "mlp.router.classifier", ..QWEN_EXPERTS },
    choosing_bias: "mlp.router.e_score_correction_bias",
    halves: true,
    ..LLAMA
};

pub const QWEN3_NEXT: Modules = Modules { delta_rule: DeltaRuleModules::ByKeyHead, ..LLAMA };

pub const PHI: Modules =
    Modules { out: "self_attn.dense", up: &["mlp.fc1"], down: "mlp.fc2", final_norm: "model.final_layernorm", ..LLAMA };

pub const PHI3: Modules = Modules { fused_qkv: Some("self_attn.qkv_proj"), up: &["mlp.gate_up_proj"], ..LLAMA };

pub const GEMMA: Modules = Modules {
    before_feed_forward: "pre_feedforward_layernorm",
    experts: ExpertModules { router: "router.proj", experts: "experts", form: ExpertForm::Stacked(StackedForm::Plain) },
    ..LLAMA
};

pub const MIXTRAL: Modules = Modules {
    experts: ExpertModules {
        router: "block_sparse_moe.gate",
        experts: "block_sparse_moe.experts",
        form: ExpertForm::Separate { gate: "w1", up: "w3", down: "w2" },
    },
    ..LLAMA
};

pub const GPT_OSS: Modules = Modules {
    experts: ExpertModules {
        router: "mlp.router",
        experts: "mlp.experts",
        form: ExpertForm::Stacked(StackedForm::Transposed),
    },
    ..LLAMA
};

/// The names in GGUF files; which of some a family has is decided by the file.
pub const GGUF: Modules = Modules {
    fused_qkv: None,
    out: "attn_output",
    up: &["ffn_gate", "ffn_up"],
    down: "ffn_down",
    before_attention: "attn_norm",
    after_attention: "post_attention_norm",
    before_feed_forward: "ffn_norm",
    after_feed_forward: "post_ffw_norm",
    final_norm: "output_norm",
    shared_expert: "shared_expert",
    choosing_bias: "exp_probs_b.bias",
    delta_rule: DeltaRuleModules::Separate,
    halves: false,
    experts: ExpertModules {
        router: "ffn_gate_inp",
        experts: "experts",
        form: ExpertForm::Separate { gate: "ffn_gate", up: "ffn_up", down: "ffn_down" },
    },
};
