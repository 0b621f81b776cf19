//! `offshoot plan`: estimates a job without running it. Reads the job's prompts, finds their shared prefixes, and
//! reports for each sharing policy the tokens computed, the memory for keys and values, and how often the memory is
//! filled; then the real scheduler runs the job on a simulated device. No weights are read and no device is needed.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.

mod decode_step;
mod device;
mod drawing;
mod explain;
mod job;
mod options;
mod parts;
mod plan_model;
mod pool;
mod predict;
pub mod replay;
mod replicas;
mod report;
mod rows;
mod second;
mod sharing;
mod source;
pub mod trace;

use std::io::Write;

use offshoot_core::error::{Error, Result};
use offshoot_core::figures::count;
use offshoot_core::json;
use offshoot_core::out;
use offshoot_core::out::files::{check_output, write_whole};
use offshoot_core::setting::{PREDICT, SVG};
use offshoot_kv::PromptTree;

use decode_step::DecodeStep;
use device::DescribedDevice;
pub use options::{PlanOptions, Predict};
use pool::PageDemand;
use predict::predict;
use replicas::JobReplicas;
use report::{JobEstimate, JobSizes};
use sharing::SamplePrompts;

/// Most samples of a job.
const MOST_SAMPLES: u64 = 100_000_000;

/// Limits of jobs that `Predict::Auto` predicts: samples, and tokens sampled.
pub const FEW_SAMPLES: u64 = 20_000;
pub const FEW_TOKENS: u64 = 5_000_000;

/// Prints the estimate.
pub fn main(options: &PlanOptions) -> Result<()> {
    if let (Some(svg), Ok(input)) = (&options.svg, options.input.canonicalize())
        && svg.canonicalize().is_ok_and(|svg| svg == input)
    {
        return Err(Error::value(SVG, "another file than the input", svg.display().to_string()));
    }
    options.svg.iter().try_for_each(|path| check_output(path))?;
    let (model, mut job) = source::read(options)?;
    if job.samples() > MOST_SAMPLES {
        let expected = format!("at most {}", count(MOST_SAMPLES));
        return Err(Error::value("samples of the job", expected, count(job.samples())));
    }
    let profile = options.device_profile.as_deref();
    let device = DescribedDevice::beside(profile, options, &job, &model)?;
    let tree = PromptTree::new(&job.prompts);
    let draws = job.draws();
    let need = PageDemand::new(&job, &tree, device.pool);
    let waves = need.waves(&tree.order_by(&draws))?;
    let (kv, kv_unshared) = need.at_once();
    let nothing = || Error::value(options.input.display().to_string(), "at least one prompt", "none");
    let first = waves.first().ok_or_else(nothing)?;
    let step = DecodeStep::of(&job, &tree, first, &device.pool, device.branches);
    let sample_tree = PromptTree::new(&SamplePrompts::of(&job));
    let drawn: u64 = draws.iter().sum();
    let wanted = match options.predict {
        Predict::Always => true,
        Predict::Never => false,
        Predict::Auto => job.samples() <= FEW_SAMPLES && drawn <= FEW_TOKENS,
    };
    if device.ranks.is_some_and(|sizes| sizes.ranks > 1) && wanted && device.machine.profile.link.is_none() {
        job.notes.push("what devices exchange takes no time in predictions: the profile has no `link`".to_owned());
    }
    let predictions = match wanted {
        true => predict(&job, &sample_tree, &device)?,
        false => Vec::new(),
    };
    if !wanted && options.predict == Predict::Auto {
        let sizes = format!("{} samples of {} tokens in all", count(job.samples()), count(drawn));
        job.notes.push(format!("time is not predicted for {sizes} unless {PREDICT} always requests it"));
    }
    job.notes.extend(device.note.clone());
    let sizes = JobSizes::of(&options.input, &job, &tree);
    let estimate = JobEstimate {
        model: report::ModelSizes::of(&model, &device),
        device: device.described.clone(),
        branches: device.branches,
        pool: device.pool,
        states: device.states,
        copies: device.copies,
        ranks: device.ranks,
        second: device.second.as_ref().map(|second| second.estimate(sizes.distinct_prompt_tokens + sizes.drawn_tokens)),
        levels: sharing::levels(&sample_tree),
        sharing: sharing::policies(&sample_tree, &device.pool),
        kv_bytes: kv * device.pool.page_bytes,
        kv_bytes_unshared: kv_unshared * device.pool.page_bytes,
        waves: waves.iter().map(|wave| report::WaveSizes::of(wave, &device.pool)).collect(),
        decode_step: decode_step::reads(&step.forest, &device.hints, &device.copy_room()),
        parts: options.parts.map(|parts| parts::JobParts::of(&job, &tree, parts)),
        replicas: options.replicas.map(|replicas| JobReplicas::of(&job, &tree, &sample_tree, replicas, device.copying)),
        nodes: options.explain.then(|| explain::explain(&tree, &step, &device.hints, &device.copy_room())),
        predictions,
        notes: job.notes.clone(),
        job: sizes,
    };
    if let Some(path) = &options.svg {
        let drawing = drawing::draw(&estimate, &job, &tree);
        write_whole(path, |file| file.write_all(drawing.as_bytes()))?;
    }
    match options.json {
        true => out::line(json::pretty("the estimate", &estimate)?)?,
        false => out::text(&estimate)?,
    }
    Ok(())
}
