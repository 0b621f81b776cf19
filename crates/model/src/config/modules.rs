//! The names that families give to the modules of a checkpoint, and how they store them. `layout` has one name for each
//! module, those of Llama and of its kin in transformers; a table says what a family calls some of them.

/// What a family calls modules: the common name, and its own. Whole parts between dots are compared, and of several
/// that fit the longest counts.
pub type OwnNames = &'static [(&'static str, &'static str)];

/// Names and forms of modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modules {
    /// Modules of a layer, whose names follow `model.layers.N.`. The layout's names of a layer's tensors have them.
    pub in_layer: OwnNames,
    /// Beginnings of the names of other modules, and of all layers: `model.embed_tokens`, `model.layers`, `model.norm`
    /// and `lm_head`. The layout keeps these.
    pub outside: OwnNames,
    /// Whether `self_attn.qkv_proj` holds queries, keys and values.
    pub fused_qkv: bool,
    /// Whether it has the query, key and value of the first head first, then those of the next.
    pub qkv_by_head: bool,
    /// Whether `mlp.gate_up_proj` holds gate and up.
    pub fused_up: bool,
    pub experts: ExpertForm,
    pub delta_rule: DeltaRuleModules,
    /// Whether two layers share a number in the names of tensors.
    pub halves: Halves,
}

impl Modules {
    /// What the family calls the module of a layer.
    pub fn in_layer(&self, module: &str) -> String {
        own_name(self.in_layer, module).unwrap_or_else(|| module.to_owned())
    }

    /// These, with the experts of each matrix in one tensor as transformers 5 stores them where it does not go back to
    /// the published form.
    pub fn with_stacked_experts(self) -> Self {
        let renames_experts = self.in_layer.iter().any(|(module, _)| *module == EXPERTS);
        let in_layer = if renames_experts { LLAMA.in_layer } else { self.in_layer };
        Self { in_layer, experts: ExpertForm::Stacked(StackedForm::Plain), ..self }
    }
}

/// The common name of the module of all experts.
pub const EXPERTS: &str = "mlp.experts";

/// The family's own name of a module or of one of its tensors, if it has one.
pub fn own_name(names: OwnNames, module: &str) -> Option<String> {
    let rest = |known: &str| module.strip_prefix(known).filter(|rest| rest.is_empty() || rest.starts_with('.'));
    let fitting = names.iter().filter_map(|(known, own)| Some((known.len(), own, rest(known)?)));
    fitting.max_by_key(|(length, ..)| *length).map(|(_, own, rest)| format!("{own}{rest}"))
}

/// How the projections of delta-rule layers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeltaRuleModules {
    /// `in_proj_qkv`, `in_proj_z`, `in_proj_b` and `in_proj_a`: each with its heads one after the other.
    Separate,
    /// `in_proj_qkvz` and `in_proj_ba`: of each key head its query, key, values and gates, then of the next.
    ByKeyHead,
}

/// Whether two layers share a number in the names of tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halves {
    None,
    /// What both have has a 0 or 1 behind its name (LongCat).
    Numbered,
    /// Both have names of their own (Falcon-H1).
    Plain,
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
    /// `gate_up_proj` `[experts, hidden, 2 * width]`, whose columns are gate and up in turn if they `alternate`, else
    /// all of gate before up, and `down_proj` `[experts, width, hidden]`.
    Transposed { alternate: bool },
    /// `gate_up_proj` `[experts, 2 * width, hidden]`, whose rows are gate and up in turn, and `down_proj`
    /// `[experts, hidden, width]`, each as `_blocks` and `_scales`.
    Mxfp4,
}

pub const LLAMA: Modules = Modules {
    in_layer: &[],
    outside: &[],
    fused_qkv: false,
    qkv_by_head: false,
    fused_up: false,
    experts: ExpertForm::Separate { gate: "gate_proj", up: "up_proj", down: "down_proj" },
    delta_rule: DeltaRuleModules::Separate,
    halves: Halves::None,
};

type Name = (&'static str, &'static str);

/// The names of both lists; `C`: how many there are.
const fn joined<const A: usize, const B: usize, const C: usize>(first: [Name; A], second: [Name; B]) -> [Name; C] {
    let mut names = [("", ""); C];
    let mut ix = 0;
    while ix < C {
        names[ix] = if ix < A { first[ix] } else { second[ix - A] };
        ix += 1;
    }
    names
}

const GGUF_NAMES: [Name; 12] = [
    ("self_attn.qkv_proj", "attn_qkv"),
    ("self_attn.o_proj", "attn_output"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
    (EXPERTS, "experts"),
    ("mlp.shared_expert", "shared_expert"),
    ("mlp.shared_experts", "shared_expert"),
    ("input_layernorm", "attn_norm"),
];

/// The names in GGUF files; which forms a family has is decided by the file.
pub const GGUF: Modules = Modules {
    in_layer: &joined::<12, 1, 13>(GGUF_NAMES, [("post_attention_layernorm", "ffn_norm")]),
    experts: ExpertForm::Separate { gate: "ffn_gate", up: "ffn_up", down: "ffn_down" },
    ..LLAMA
};

/// Those of files that have norms behind attention, or call the one before the feed-forward block so.
pub const GGUF_BEHIND: Modules = Modules {
    in_layer: &joined::<12, 3, 15>(
        GGUF_NAMES,
        [
            ("post_attention_layernorm", "post_attention_norm"),
            ("pre_feedforward_layernorm", "ffn_norm"),
            ("post_feedforward_layernorm", "post_ffw_norm"),
        ],
    ),
    ..GGUF
};
