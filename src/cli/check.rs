//! The options of `offshoot check`, of model folders; devices are checked by `offshoot-lab check`.

use std::path::PathBuf;

use clap::Args;

use offshoot_args::whole;
use offshoot_args::words::{ACTIVATIONS, KV_DTYPES, MADE_FORMATS, STATE_DTYPES, one_of};
use offshoot_backend::{KvDtype, StateDtype};
use offshoot_inspect::{Against, ModelCheck};
use offshoot_model::{ActivationChoice, MadeFormat, WeightChoice};

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Model folder in Hugging Face form, or GGUF file
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// Golden file for that model: transformers' logits, log-probabilities and greedy tokens; for a reward model its
    /// scores at tokens of a prompt
    #[arg(long, value_name = "FILE")]
    pub golden: Option<PathBuf>,
    /// Use the device's deterministic mode for the model's arithmetic
    #[arg(long)]
    pub deterministic: bool,
    /// Also report the error of log-probabilities with keys and values in this format
    #[arg(long, value_parser = one_of(KV_DTYPES), default_value = "model", value_name = "DTYPE")]
    pub kv_dtype: KvDtype,
    /// Also report the error of log-probabilities with states of delta-rule layers in this format
    #[arg(long, value_parser = one_of(STATE_DTYPES), default_value = "f32", value_name = "DTYPE")]
    pub state_dtype: StateDtype,
    /// Also fork a text at every token offset by so many scripts, each in five engines, with random steps, pools,
    /// swaps, evictions and resumes, and compare every bit with fresh computations. On a GPU with --deterministic
    #[arg(long, value_name = "SCRIPTS", value_parser = whole::<u64>(1..=1000))]
    pub forks: Option<u64>,
    /// What dense weights become when they are loaded, as in `run`
    #[arg(long, value_parser = one_of(MADE_FORMATS), value_name = "FORMAT")]
    pub weights: Option<MadeFormat>,
    /// What the activations of quantised weights are rounded to
    #[arg(long, value_parser = one_of(ACTIVATIONS), default_value = "format", value_name = "FORMAT")]
    pub activations: ActivationChoice,
    /// Also compare with this model, as it is stored: perplexity, log-probabilities and likeliest tokens on a text, and
    /// in each layer the matrix that differs most
    #[arg(long, value_name = "DIR", requires = "text")]
    pub against: Option<PathBuf>,
    /// The text
    #[arg(long, value_name = "FILE", requires = "against")]
    pub text: Option<PathBuf>,
}

impl From<CheckArgs> for (PathBuf, ModelCheck) {
    fn from(args: CheckArgs) -> Self {
        let CheckArgs { model, golden, deterministic, forks, .. } = args;
        let (kv, states) = (args.kv_dtype, args.state_dtype);
        let weights = WeightChoice { weights: args.weights, activations: args.activations };
        let against = args.against.zip(args.text).map(|(model, text)| Against { model, text });
        (model, ModelCheck { golden, deterministic, kv, states, forks, weights, against })
    }
}
