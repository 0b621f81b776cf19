//! The options that errors and warnings name. They are named by their fields here; the command line has its flags
//! written instead, and Python its keywords.

use std::fmt;
use std::sync::OnceLock;

/// An option that the user sets, by the name of its field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting(&'static str);

/// How settings are written, by their fields' names.
pub type Spelling = fn(&str) -> String;

static SPELLING: OnceLock<Spelling> = OnceLock::new();

/// Has all settings written in this way, in the whole program. The first call counts.
pub fn spell(spelling: Spelling) {
    let _ = SPELLING.set(spelling);
}

impl Setting {
    /// The name of its field.
    pub fn name(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match SPELLING.get() {
            Some(spelling) => f.write_str(&spelling(self.0)),
            None => write!(f, "`{}`", self.0),
        }
    }
}

impl From<Setting> for String {
    fn from(setting: Setting) -> String {
        setting.to_string()
    }
}

macro_rules! settings {
    ($($constant:ident $name:literal,)*) => {
        $(pub const $constant: Setting = Setting($name);)*

        /// All of them.
        pub const ALL: &[Setting] = &[$($constant),*];
    };
}

settings! {
    ACTIVATIONS "activations",
    AGAINST "against",
    AGGREGATE "aggregate",
    ALL_ATTEMPTED "all_attempted",
    API_KEYS "api_keys",
    AS "as",
    CONTEXT "context",
    DATA "data",
    DELIMITER "delimiter",
    DETERMINISTIC "deterministic",
    DEVICE_PROFILE "device_profile",
    DEVICES "devices",
    FORKS "forks",
    HTML "html",
    ID "id",
    ITEM "item",
    JSON "json",
    JUDGE "judge",
    JUDGE_KEY_FILE "judge_key_file",
    JUDGE_MEMORY "judge_memory",
    JUDGE_MODEL "judge_model",
    JUDGE_URL "judge_url",
    KV_DTYPE "kv_dtype",
    KV_MEMORY "kv_memory",
    LATENT_COPIES "latent_copies",
    LIMIT "limit",
    MAX_BRANCHES "max_branches",
    MAX_DATA "max_data",
    MAX_KEPT "max_kept",
    MAX_LORAS "max_loras",
    MAX_LORA_RANK "max_lora_rank",
    MEMORY "memory",
    MODEL "model",
    OUT "out",
    PLAN "plan",
    PREDICT "predict",
    PYTHON "python",
    QUESTION "question",
    RESUME "resume",
    RETURN_ROUTED_EXPERTS "return_routed_experts",
    ROLLOUT "rollout",
    ROLLOUT_KEYS "rollout_keys",
    SAMPLES "samples",
    SCALE "scale",
    SCORER "scorer",
    SCORER_MEMORY "scorer_memory",
    SEED "seed",
    SCORES "scores",
    SET "set",
    SKIP_TOO_LONG "skip_too_long",
    STATE_DTYPE "state_dtype",
    SVG "svg",
    SWAP_MEMORY "swap_memory",
    TASK "task",
    TENSOR_PARALLEL "tensor_parallel",
    TEXT "text",
    TREES "trees",
    WEIGHTS "weights",
    WORKERS "workers",
}

/// The share of a GPU's memory for weights, keys and values. The library and Python have it; no flag of the command is
/// called so, and `ALL` lists flags.
pub const GPU_MEMORY: Setting = Setting("gpu_memory");
