//! Sampling on the device, in five launches over fixed grids: values that vary from step to step are read from device
//! memory, so that a graph can hold the launches. The kernels are in `kernels/sampling/`; `requests` packs their
//! inputs, `allowed` holds sets of allowed tokens, `results` reads their outputs, and `cpu::sampling` is the
//! definition. For requests with penalties the device counts sampled tokens itself ([`SamplerKernels::count`]), so that
//! a step with penalties can be advanced.

mod allowed;
mod requests;
mod results;

pub use allowed::{AllowedMemory, Places, place_bytes};
pub use requests::{SEEN_BYTES, pack};
pub use results::ResultLayout;

use crate::compile::unit::Unit;
use crate::compile::units;
use crate::driver::args::Args;
use crate::driver::device::Device;
use crate::driver::function::Function;
use crate::driver::memory::Memory;
use offshoot_backend::MOST_COUNTED;
use offshoot_core::error::{Error, Result};

/// As in sampling/sample.cuh: tokens of one warp.
const CHUNK: usize = 512;
/// As in sampling/select.cuh: chunks that a histogram can count.
const MOST_CHUNKS: usize = 2048;
/// As in sample_chunks.cu: chunks of one block.
const WARPS: usize = 8;

/// The kernels for one vocabulary.
pub struct SamplerKernels {
    chunks: Function,
    edit: Function,
    filter: Function,
    token: Function,
    top: Function,
    count: Function,
    vocab: usize,
}

/// Operands of `sample`, at fixed addresses. Offsets are multiples of 16.
pub struct SampleBuffers<'a> {
    /// f32 `[requests, vocab]`. Changed while tokens are sampled, then restored.
    pub logits: &'a Memory,
    /// The output of [`pack`]; the kernels save logits in its lists.
    pub requests: (&'a Memory, usize),
    /// [`AllowedMemory::memory`], with the sets of all requests.
    pub allowed: &'a Memory,
    /// f64 `[requests]`.
    pub uniforms: (&'a Memory, usize),
    /// [`SamplerKernels::scratch_bytes`].
    pub scratch: &'a Memory,
    /// [`ResultLayout::bytes`].
    pub results: (&'a Memory, usize),
    /// u32 `[requests]`: in, the tokens sampled by the step before (read by requests with `unseen`); out, those sampled
    /// now.
    pub sampled: &'a Memory,
    /// [`SamplerKernels::counted_bytes`].
    pub counted: &'a Memory,
}

impl SamplerKernels {
    /// Compiles or finds the kernels. An error for a vocabulary of none or of more than 2^20 tokens.
    pub fn load(device: &Device, vocab: usize) -> Result<Self> {
        if vocab == 0 || vocab > CHUNK * MOST_CHUNKS {
            let expected = format!("1 to {} tokens", CHUNK * MOST_CHUNKS);
            return Err(Error::value("the vocabulary sampled from on a GPU", expected, vocab.to_string()));
        }
        let [chunks, edit, filter, token, top] = &units::SAMPLE;
        Ok(Self {
            chunks: device.function(&Unit::new(chunks), "sample_chunks")?,
            edit: device.function(&Unit::new(edit), "sample_edit")?,
            filter: device.function(&Unit::new(filter), "sample_filter")?,
            token: device.function(&Unit::new(token), "sample_token")?,
            top: device.function(&Unit::new(top), "sample_top")?,
            count: device.function(&Unit::new(&units::SAMPLE_COUNT), "sample_count")?,
            vocab,
        })
    }

    /// Bytes of scratch memory that up to `padded` rows need.
    pub fn scratch_bytes(padded: usize, vocab: usize) -> usize {
        SamplerScratch::of(padded, vocab.div_ceil(CHUNK)).bytes
    }

    /// Bytes of the tokens that up to `padded` requests count between two loads, a list of [`MOST_COUNTED`] entries
    /// each.
    pub fn counted_bytes(padded: usize) -> usize {
        padded.saturating_mul(MOST_COUNTED * SEEN_BYTES)
    }

    /// Counts what the step before sampled, for all `padded` requests with penalties: they are as many as when that
    /// step was sampled, and `scratch` is its own. At most [`MOST_COUNTED`] times between two loads of requests.
    pub fn count(&self, device: &Device, padded: usize, requests: &Memory, scratch: &Memory, counted: &Memory) {
        let at = SamplerScratch::of(padded, self.vocab.div_ceil(CHUNK));
        assert!(counted.bytes() >= Self::counted_bytes(padded), "sample_count: memory for {padded} requests");
        let args = Args::new().memory(requests).memory_at(scratch, at.newest).memory(counted);
        device.launch(&self.count, [narrow(padded), 1, 1], 32, 0, &args);
    }

    /// Samples one token for each of `padded` requests, padding included.
    pub fn sample(&self, device: &Device, padded: usize, buffers: &SampleBuffers<'_>) {
        let SampleBuffers { logits, requests, allowed, uniforms, scratch, results, sampled, counted } = *buffers;
        let chunks = self.vocab.div_ceil(CHUNK);
        let at = SamplerScratch::of(padded, chunks);
        assert!(padded > 0 && logits.bytes() >= padded * self.vocab * 4, "sample: logits of {padded} rows");
        assert!(scratch.bytes() >= at.bytes && sampled.bytes() >= padded * 4, "sample: memory for {padded} rows");
        assert!(counted.bytes() >= Self::counted_bytes(padded), "sample: lists of {padded} requests");
        let row = || Args::new().memory(logits).u32(narrow(self.vocab)).u32(narrow(chunks));
        let scratch =
            |args: Args, offsets: &[usize]| offsets.iter().fold(args, |args, &at| args.memory_at(scratch, at));

        let args = scratch(
            row().memory_at(requests.0, requests.1).memory(allowed),
            &[at.model_max, at.model_sum, at.model_products, at.draw_max, at.draw_sum, at.draw_min],
        );
        let blocks = padded * chunks.div_ceil(WARPS);
        device.launch(&self.chunks, [narrow(blocks), 1, 1], 32 * narrow(WARPS), 0, &args);

        // Few rows: more threads per row.
        let many = padded >= device.facts().multiprocessors as usize;
        let (grid, block) = ([narrow(padded), 1, 1], if many { 256 } else { 1024 });

        let args = row().memory_at(requests.0, requests.1).memory(sampled);
        let args = scratch(args, &[at.draw_max, at.draw_sum, at.draw_min, at.newest]).memory(counted).memory(allowed);
        device.launch(&self.edit, grid, block, shared(chunks), &args);

        let args = row().memory_at(requests.0, requests.1).memory(allowed);
        device.launch(
            &self.filter,
            grid,
            block,
            shared(chunks * 4),
            &scratch(args, &[at.draw_max, at.draw_sum, at.cuts]),
        );

        let padded_row = || row().u32(narrow(padded)).memory_at(requests.0, requests.1).memory(allowed);
        let args = scratch(
            padded_row().memory_at(uniforms.0, uniforms.1),
            &[
                at.model_max,
                at.model_sum,
                at.model_products,
                at.draw_max,
                at.draw_sum,
                at.newest,
                at.cuts,
                at.log_totals,
            ],
        );
        let args = args.memory_at(results.0, results.1).memory(sampled).memory(counted);
        device.launch(&self.token, grid, 32, shared(chunks * 8), &args);

        let args = scratch(
            padded_row(),
            &[at.model_max, at.model_sum, at.draw_max, at.draw_min, at.newest, at.cuts, at.log_totals],
        );
        let args = args.memory_at(results.0, results.1).memory(counted);
        device.launch(&self.top, grid, block, shared(chunks * 8), &args);
    }
}

/// Offsets into the scratch memory: six arrays f32 `[padded, chunks]`, then the unseen token of each request with its
/// logit, the cut of each request's filters, and the logarithm of the weights that it keeps, 8 bytes each.
struct SamplerScratch {
    model_max: usize,
    model_sum: usize,
    model_products: usize,
    draw_max: usize,
    draw_sum: usize,
    draw_min: usize,
    newest: usize,
    cuts: usize,
    log_totals: usize,
    bytes: usize,
}

impl SamplerScratch {
    fn of(padded: usize, chunks: usize) -> Self {
        let array = (padded * chunks * 4).next_multiple_of(16);
        Self {
            model_max: 0,
            model_sum: array,
            model_products: 2 * array,
            draw_max: 3 * array,
            draw_sum: 4 * array,
            draw_min: 5 * array,
            newest: 6 * array,
            cuts: 6 * array + padded * 8,
            log_totals: 6 * array + padded * 16,
            bytes: 6 * array + padded * 24,
        }
    }
}

/// Bytes of shared memory for `bytes`: the compiler fetches 16 at once, also where fewer are used.
fn shared(bytes: usize) -> usize {
    bytes.next_multiple_of(16)
}

fn narrow(count: usize) -> u32 {
    u32::try_from(count).expect("counts of rows and of tokens fit u32")
}
