//! `bench allreduce`: times sums over the GPUs of one model by size, by each kernel of kernels/ranks and by NCCL where
//! it is found, beside the floor: a word to another GPU and back, or the bytes at the rate of a large copy. Every sum
//! is compared with the right one.

use std::fmt;

use clap::Args;
use serde::Serialize;

use super::tables::{print, print_json, rounded};
use offshoot_args::words::{DTYPES, one_of};
use offshoot_backend::Dtype;
use offshoot_core::error::{Error, Result};
use offshoot_core::out;
use offshoot_cuda::ranks::measure::{Exchange, LinkLimits, MeasuredRanks};
use offshoot_cuda::ranks::ways::Way;
use offshoot_launch::{DeviceChoice, Devices};

// The options of `bench allreduce`.
#[derive(Clone, Debug, Args)]
pub struct AllreduceOptions {
    /// One JSON object per line instead of a table
    #[arg(long)]
    pub json: bool,
    /// Bytes that each GPU adds up: a number, or KiB or MiB as in 8K and 64M
    #[arg(
        long,
        value_name = "BYTES",
        value_delimiter = ',',
        value_parser = size_in_bytes,
        default_value = "8K,16K,32K,64K,128K,256K,512K,1M,2M,4M,8M,16M,32M,64M"
    )]
    pub bytes: Vec<usize>,
    /// What numbers are rounded to when they are sent
    #[arg(
        long = "dtype",
        value_parser = one_of(DTYPES),
        value_name = "DTYPE",
        value_delimiter = ',',
        default_value = "bf16,f32"
    )]
    pub dtypes: Vec<Dtype>,
}

/// Most bytes of a buffer that is measured.
const MOST_BYTES: usize = 1 << 30;

/// `512`, `8K`, `64M`: from 16 bytes up to a GiB.
fn size_in_bytes(text: &str) -> Result<usize> {
    let (number, unit) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'M') => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    let bytes = number.parse::<usize>().ok().and_then(|number| number.checked_mul(unit));
    bytes
        .filter(|bytes| (16..=MOST_BYTES).contains(bytes))
        .ok_or_else(|| Error::value("value", "a size from 16 to 1024M, as 8K or 64M", text))
}

/// What the links allow, and whether NCCL was found.
#[derive(Debug, Serialize)]
struct MeasuredLink {
    device: String,
    ranks: usize,
    round_trip_us: f64,
    copy_gb_per_s: f64,
    /// NCCL's version, or why it is not used.
    nccl: String,
}

/// Sums of one size, in microseconds; `None`: not made in this way.
#[derive(Debug, Serialize)]
struct MeasuredSum {
    ranks: usize,
    dtype: Dtype,
    bytes: usize,
    one_shot_us: Option<f64>,
    two_shot_us: Option<f64>,
    nccl_us: Option<f64>,
    /// NCCL's, and added to f32 sums as our own are.
    nccl_added_us: Option<f64>,
    floor_us: f64,
    /// What a model's sums of this size use, and its time over the floor's; and NCCL's, added, over its.
    chosen: &'static str,
    over_floor: f64,
    over_nccl: Option<f64>,
}

fn name(way: Way) -> &'static str {
    match way {
        Way::OneShot => "one_shot",
        Way::TwoShot => "two_shot",
    }
}

/// Measures all sizes, printing each result as soon as it is known.
///
/// # Errors
///
/// One sentence: they are not GPUs, cannot be connected, or a sum is wrong.
pub fn main(devices: &Devices, options: &AllreduceOptions) -> Result<()> {
    let ordinals = devices.choices()?.into_iter().map(|choice| match choice {
        DeviceChoice::Cuda { ordinal } => Ok(ordinal),
        DeviceChoice::Auto | DeviceChoice::Cpu => {
            Err(Error::value("--devices", "GPUs, whose links this measures (cuda:0,cuda:1)", choice.to_string()))
        }
    });
    let ordinals = ordinals.collect::<Result<Vec<_>>>()?;
    let ranks = MeasuredRanks::open(&ordinals)?;
    let limits = ranks.limits()?;
    let link = MeasuredLink {
        device: ranks.describe(),
        ranks: ordinals.len(),
        round_trip_us: rounded(limits.round_trip_us, 3),
        copy_gb_per_s: rounded(limits.bytes_per_s / 1e9, 1),
        nccl: ranks.nccl().unwrap_or_else(|why| why),
    };
    match options.json {
        true => print_json(&link)?,
        false => out::line(format_args!("{link}"))?,
    }
    for &dtype in &options.dtypes {
        for &bytes in &options.bytes {
            print(options.json, &measure(&ranks, &limits, ordinals.len(), bytes, dtype)?)?;
        }
    }
    Ok(())
}

fn measure(
    ranks: &MeasuredRanks,
    limits: &LinkLimits,
    count: usize,
    bytes: usize,
    dtype: Dtype,
) -> Result<MeasuredSum> {
    let elements = (bytes / dtype.bytes()).max(1);
    let time = |exchange| Ok(ranks.time(exchange, elements, dtype)?.map(|us| rounded(us, 2)));
    let own = Way::ALL.map(|way| time(Exchange::Own(way)));
    let [one_shot_us, two_shot_us] = own;
    let (one_shot_us, two_shot_us) = (one_shot_us?, two_shot_us?);
    let (nccl_us, nccl_added_us) = (time(Exchange::Nccl)?, time(Exchange::NcclAdded)?);
    let chosen = ranks.chosen(elements, dtype);
    let chosen_us = match chosen {
        Way::OneShot => one_shot_us,
        Way::TwoShot => two_shot_us.or(one_shot_us),
    };
    let chosen_us = chosen_us.expect("the way that is chosen serves its size");
    let floor_us = limits.floor_us(count, bytes);
    Ok(MeasuredSum {
        ranks: count,
        dtype,
        bytes,
        one_shot_us,
        two_shot_us,
        nccl_us,
        nccl_added_us,
        floor_us: rounded(floor_us, 2),
        chosen: name(chosen),
        over_floor: rounded(chosen_us / floor_us, 2),
        over_nccl: nccl_added_us.map(|nccl| rounded(nccl / chosen_us, 2)),
    })
}

impl fmt::Display for MeasuredLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, round_trip_us, copy_gb_per_s, nccl, .. } = self;
        writeln!(f, "{device}: a word and back {round_trip_us} us, copies {copy_gb_per_s} GB/s; NCCL {nccl}")?;
        write!(
            f,
            "{:<5} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}  {:<9} {:>10} {:>9}",
            "dtype",
            "bytes",
            "one shot",
            "two shot",
            "NCCL",
            "and added",
            "floor us",
            "chosen",
            "over floor",
            "over NCCL"
        )
    }
}

impl fmt::Display for MeasuredSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |us: Option<f64>| us.map_or_else(|| "-".to_owned(), |us| format!("{us:.1}"));
        write!(
            f,
            "{:<5} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9.1}  {:<9} {:>10.2} {:>9}",
            self.dtype.to_string(),
            self.bytes,
            us(self.one_shot_us),
            us(self.two_shot_us),
            us(self.nccl_us),
            us(self.nccl_added_us),
            self.floor_us,
            self.chosen,
            self.over_floor,
            self.over_nccl.map_or_else(|| "-".to_owned(), |times| format!("{times:.2}"))
        )
    }
}
