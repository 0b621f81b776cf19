//! Device profiles: the constants of the time model, read from JSON. Two are built in, `h200` and `cpu`, each with the
//! sources of its constants; profiles of other devices are files. The inputs of planning (page size, tile, cost model)
//! come from the backend that the profile names.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use offshoot_backend::WeightFormat;
use offshoot_backend::ranks::Ranked;
use offshoot_core::error::{Error, Result};
use offshoot_core::input;
use offshoot_core::setting::DEVICE_PROFILE;
use offshoot_cpu as cpu;
use offshoot_cuda as cuda;
use offshoot_cuda::compile::elements::Fp8Scaling;
use offshoot_kv::plan::{CostModel, LatentRates, Split, Tiles};

/// The constants of one device. Times are in nanoseconds (`_ns`), rates in bytes or floating-point operations per
/// second (`_per_s`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceProfile {
    pub name: String,
    #[serde(default)]
    pub backend: BackendKind,
    /// Memory for weights, activations, keys and values together.
    pub memory_bytes: f64,
    /// The device's fixed time per step.
    pub step_ns: f64,
    /// The host's time per step and per row: scheduling, planning, reporting samples. Overlaps with the device's time
    /// when steps run ahead.
    pub host_step_ns: f64,
    pub host_row_ns: f64,
    pub linear: LinearTimes,
    /// Norms, ropes, activations and copies, by the bytes they read and write.
    pub small_op: CallTimes,
    /// Sampling, by the bytes of the logits.
    pub sample: CallTimes,
    pub attention: AttentionTimes,
    /// Rate of copies between device and host memory, one way.
    pub host_link_bytes_per_s: f64,
    /// What several devices exchange that compute one model together, by the bytes that leave each of them. Absent: it
    /// takes no time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<CallTimes>,
    /// So many devices, described as one ([`DeviceProfile::together`]).
    #[serde(skip, default = "one")]
    pub devices: usize,
    /// How many of them share each key head and divide its positions.
    #[serde(skip, default = "one")]
    pub sharing: usize,
    /// Where constants came from, by name.
    #[serde(default)]
    pub sources: BTreeMap<String, String>,
}

/// The backend that runs on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendKind {
    Cpu,
    #[default]
    Cuda,
}

impl BackendKind {
    /// Slots per page.
    pub fn page_tokens(self) -> u32 {
        match self {
            BackendKind::Cpu => cpu::kv::PAGE_TOKENS,
            BackendKind::Cuda => cuda::memory::kv::PAGE_TOKENS,
        }
    }

    /// The backend's default tile.
    pub fn tile(self) -> u32 {
        match self {
            BackendKind::Cpu => cpu::attention::TILE,
            BackendKind::Cuda => cuda::attention::tile(false),
        }
    }

    /// Whether several of the backend that compute together divide positions.
    pub fn divides_positions(self) -> bool {
        match self {
            BackendKind::Cpu => cpu::Cpu::DIVIDES_POSITIONS,
            BackendKind::Cuda => cuda::Cuda::DIVIDES_POSITIONS,
        }
    }

    /// As [`Backend::latent_map_copies`](offshoot_backend::Backend::latent_map_copies).
    pub fn latent_map_copies(self) -> usize {
        match self {
            BackendKind::Cpu => cpu::LATENT_MAP_COPIES,
            BackendKind::Cuda => 1,
        }
    }

    fn cost_model(self) -> CostModel {
        match self {
            BackendKind::Cpu => CostModel::CPU,
            BackendKind::Cuda => CostModel::CUDA,
        }
    }
}

/// A linear layer: a fixed time, plus about the longer of reading the weights and multiplying.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinearTimes {
    pub call_ns: f64,
    pub bytes_per_s: f64,
    pub flops_per_s: f64,
}

/// A call: a fixed time, plus the bytes it moves.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallTimes {
    pub call_ns: f64,
    pub bytes_per_s: f64,
}

/// The value of `devices` and `sharing` in a profile as it is read.
fn one() -> usize {
    1
}

/// Attention of one layer. The optional constants are also the planner's (see [`CostModel`]) and default to the
/// backend's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionTimes {
    pub launch_ns: f64,
    /// Once per call in which any row has several partial states.
    pub merge_ns: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item_ns: Option<f64>,
    /// The planner's cost per byte of keys and values that an item reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_byte_ns: Option<f64>,
    /// Per byte of keys and values: the first read in a step, and later ones.
    pub first_byte_ns: f64,
    pub again_byte_ns: f64,
    /// Per byte of a partial state that is written and merged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_byte_ns: Option<f64>,
    /// The share of the shorter of reads and products that the longer one does not hide, 0 to 1.
    pub unhidden: f64,
    /// Absent: by the tiles of the backend's cost model or, if it has none, at the rate of linear layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub products: Option<ProductTimes>,
    /// When the planner splits long items.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<Split>,
    /// Latent attention, for planners.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latents: Option<LatentRates>,
}

/// How products are timed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ProductTimes {
    FlopsPerS(f64),
    /// Timed by tiles, for each key head. Items of up to `narrow_rows` packed rows take no time beyond their reads.
    Tiles(Tiles),
}

/// Hopper's compute capability.
pub const HOPPER: u32 = 9;

const BUILT_IN: [(&str, &str); 2] = [("h200", include_str!("h200.json")), ("cpu", include_str!("cpu.json"))];

impl DeviceProfile {
    /// The built-in profile `name`, or the profile in the `.json` file at path `name`.
    pub fn named(name: &str) -> Result<Self> {
        match BUILT_IN.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => Self::read(Path::new(&format!("the built-in profile {name}")), text),
            None if Path::new(name).extension().is_some_and(|extension| extension == "json") => {
                Self::load(name.as_ref())
            }
            None => {
                let known: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
                Err(Error::value(DEVICE_PROFILE, format!("{} or a .json file", known.join(", ")), name))
            }
        }
    }

    /// So many of these devices that compute one model together, whose weights take `repeated` bytes more than one
    /// device's. `sharing`: how many share each key head and divide its positions. Rates and memory are those of all.
    #[must_use]
    pub fn together(mut self, devices: usize, repeated: usize, sharing: usize) -> Self {
        let all = devices as f64;
        self.memory_bytes = all * self.memory_bytes - repeated as f64;
        (self.devices, self.sharing) = (devices, sharing);
        self.linear.bytes_per_s *= all;
        self.linear.flops_per_s *= all;
        let attention = &mut self.attention;
        attention.first_byte_ns /= all;
        attention.again_byte_ns /= all;
        let own = self.backend.cost_model();
        attention.kv_byte_ns = Some(attention.kv_byte_ns.unwrap_or(own.kv_byte) / all);
        attention.state_byte_ns = Some(attention.state_byte_ns.unwrap_or(own.state_byte) / all);
        match &mut attention.products {
            Some(ProductTimes::FlopsPerS(rate)) => *rate *= all,
            Some(ProductTimes::Tiles(Tiles { start, token, half_token, .. })) => {
                [start, token, half_token].into_iter().for_each(|ns| *ns /= all);
            }
            None => {}
        }
        self.name = format!("{devices} x {}", self.name);
        self
    }

    /// The time in which all devices add up buffers of `bytes` bytes each: two halves of an exchange, in each of which
    /// a device's share of the bytes goes to all others.
    pub fn all_reduce_ns(&self, bytes: usize) -> f64 {
        self.exchange_ns(2.0 * self.of_others() * bytes as f64)
    }

    /// The time until all devices have all of a buffer of `bytes` bytes of which each has a share.
    pub fn all_gather_ns(&self, bytes: usize) -> f64 {
        self.exchange_ns(self.of_others() * bytes as f64)
    }

    /// The time in which devices that share key heads merge partial results of attention, `bytes` bytes of all devices'
    /// heads over all positions.
    pub fn merge_members_ns(&self, bytes: usize) -> f64 {
        if self.sharing > 1 {
            self.exchange_ns((self.sharing - 1) as f64 * bytes as f64 / self.devices as f64)
        } else {
            0.0
        }
    }

    fn of_others(&self) -> f64 {
        (self.devices - 1) as f64 / self.devices as f64
    }

    fn exchange_ns(&self, sent: f64) -> f64 {
        self.link.filter(|_| self.devices > 1).map_or(0.0, |link| link.ns(sent as usize))
    }

    fn load(path: &Path) -> Result<Self> {
        Self::read(path, &input::text(path)?)
    }

    fn read(path: &Path, text: &str) -> Result<Self> {
        let profile: Self = serde_json::from_str(text).map_err(|fault| Error::format(path, fault.to_string()))?;
        match profile.fault() {
            Some((field, expected, found)) => Err(Error::field(path, field, expected, found.to_string())),
            None => Ok(profile),
        }
    }

    /// The first constant out of range: its name, the expected range, the value found.
    fn fault(&self) -> Option<(&'static str, &'static str, f64)> {
        let Self { linear, small_op, sample, attention, .. } = self;
        let mut rates = vec![
            ("memory_bytes", self.memory_bytes),
            ("linear.bytes_per_s", linear.bytes_per_s),
            ("linear.flops_per_s", linear.flops_per_s),
            ("small_op.bytes_per_s", small_op.bytes_per_s),
            ("sample.bytes_per_s", sample.bytes_per_s),
            ("host_link_bytes_per_s", self.host_link_bytes_per_s),
        ];
        let mut costs = vec![
            ("step_ns", self.step_ns),
            ("host_step_ns", self.host_step_ns),
            ("host_row_ns", self.host_row_ns),
            ("linear.call_ns", linear.call_ns),
            ("small_op.call_ns", small_op.call_ns),
            ("sample.call_ns", sample.call_ns),
            ("attention.launch_ns", attention.launch_ns),
            ("attention.merge_ns", attention.merge_ns),
            ("attention.item_ns", attention.item_ns.unwrap_or(0.0)),
            ("attention.kv_byte_ns", attention.kv_byte_ns.unwrap_or(0.0)),
            ("attention.first_byte_ns", attention.first_byte_ns),
            ("attention.again_byte_ns", attention.again_byte_ns),
            ("attention.state_byte_ns", attention.state_byte_ns.unwrap_or(0.0)),
            ("attention.unhidden", attention.unhidden),
        ];
        if let Some(link) = self.link {
            rates.push(("link.bytes_per_s", link.bytes_per_s));
            costs.push(("link.call_ns", link.call_ns));
        }
        match attention.products {
            None => {}
            Some(ProductTimes::FlopsPerS(rate)) => rates.push(("attention.products.flops_per_s", rate)),
            Some(ProductTimes::Tiles(Tiles { rows, start, token, half_token, .. })) => {
                rates.push(("attention.products.tiles.rows", f64::from(rows)));
                costs.push(("attention.products.tiles.start_ns", start));
                costs.push(("attention.products.tiles.token_ns", token));
                costs.push(("attention.products.tiles.half_token_ns", half_token));
            }
        }
        let rate = rates.into_iter().find(|&(_, rate)| rate <= 0.0);
        let cost = costs.into_iter().find(|&(_, cost)| cost < 0.0);
        let rate = rate.map(|(field, found)| (field, "a number above 0", found));
        rate.or(cost.map(|(field, found)| (field, "a number from 0 up", found)))
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        self.memory_bytes as usize
    }
}

impl LinearTimes {
    /// Nanoseconds of `rows` rows times a matrix `[outputs, inputs]` of `weight_bytes`. Reads and products of similar
    /// length slow each other down: the cube root of the sum of their cubes is within 6 % of `bench gemm` at 1 to 256
    /// rows, while their maximum is up to 18 % too short.
    /// `speed`: how many times `flops_per_s` products have.
    pub(super) fn ns(&self, weight_bytes: usize, outputs: usize, inputs: usize, rows: usize, speed: f64) -> f64 {
        let reads = weight_bytes as f64 / self.bytes_per_s;
        let products = 2.0 * outputs as f64 * inputs as f64 * rows as f64 / (speed * self.flops_per_s);
        self.call_ns + (reads.powi(3) + products.powi(3)).cbrt() * 1e9
    }
}

impl CallTimes {
    pub(super) fn ns(&self, bytes: usize) -> f64 {
        self.call_ns + bytes as f64 / self.bytes_per_s * 1e9
    }
}

/// Whether GPUs multiply matrices of this format from 4-bit codes.
fn is_four_bit(format: WeightFormat) -> bool {
    matches!(format, WeightFormat::Quantised(format) if format.four_bit_group().is_some())
}

impl DeviceProfile {
    /// Whether the device multiplies matrices of this format; it makes others dense.
    pub fn multiplies(&self, format: WeightFormat) -> bool {
        self.backend == BackendKind::Cpu || format.dense().is_some() || is_four_bit(format) || self.scales(format)
    }

    /// Whether the device multiplies experts of this format; it makes others dense.
    pub fn multiplies_experts(&self, format: WeightFormat) -> bool {
        let is_fp8 = self.is_hopper() && Fp8Scaling::of_experts(format, HOPPER).is_some();
        self.backend == BackendKind::Cpu || format.dense().is_some() || is_four_bit(format) || is_fp8
    }

    /// Whether it is a GPU that multiplies matrices of this format in e4m3, at twice the rate of 16 bits.
    pub fn scales(&self, format: WeightFormat) -> bool {
        self.is_hopper() && Fp8Scaling::of(format, HOPPER).is_some()
    }

    /// Profiles whose cost model has tiles describe Hopper's kernels.
    pub fn is_hopper(&self) -> bool {
        self.backend == BackendKind::Cuda && self.cost_model().tiles.is_some()
    }

    /// The cost model for planners: the backend's, with the profile's constants in place of its own where given.
    pub fn cost_model(&self) -> CostModel {
        let backend = self.backend.cost_model();
        let AttentionTimes { item_ns, kv_byte_ns, state_byte_ns, products, split, latents, .. } = self.attention;
        let tiles = match products {
            None => backend.tiles,
            Some(ProductTimes::FlopsPerS(_)) => None,
            Some(ProductTimes::Tiles(tiles)) => Some(tiles),
        };
        CostModel {
            item: item_ns.unwrap_or(backend.item),
            kv_byte: kv_byte_ns.unwrap_or(backend.kv_byte),
            state_byte: state_byte_ns.unwrap_or(backend.state_byte),
            split: split.or(backend.split),
            tiles,
            latents: latents.unwrap_or(backend.latents),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offshoot_backend::Backend;
    use offshoot_cpu::{Cpu, Isa};

    #[test]
    fn a_built_in_profile_has_the_pages_tile_and_costs_of_its_backend() {
        let (cpu, device) = (Cpu::with_isa(Isa::Portable), DeviceProfile::named("cpu").expect("it is built in"));
        let simulated = (device.backend.page_tokens(), device.backend.tile(), device.cost_model());
        assert_eq!(simulated, (cpu.page_tokens(), cpu.tile(), cpu.cost_model()));
        let device = DeviceProfile::named("h200").expect("it is built in");
        let simulated = (device.backend.page_tokens(), device.backend.tile(), device.cost_model());
        assert_eq!(simulated, (cuda::memory::kv::PAGE_TOKENS, cuda::attention::tile(false), CostModel::of_gpu(9, 0)));
    }

    #[test]
    fn constants_of_a_file_stand_before_the_backends() {
        let own = BUILT_IN[1].1.replace("\"launch_ns\"", "\"kv_byte_ns\": 0.25, \"launch_ns\"");
        let profile = DeviceProfile::read(Path::new("own.json"), &own).expect("a good profile");
        assert_eq!(profile.cost_model(), CostModel { kv_byte: 0.25, ..CostModel::CPU });
        let (tiles, rate) = (BUILT_IN[0].1, "\"products\": {\"flops_per_s\": 1e14}, \"launch_ns\"");
        let profile = DeviceProfile::read(Path::new("own.json"), &tiles.replace("\"launch_ns\"", rate));
        assert_eq!(profile.expect("a good profile").cost_model().tiles, None);
    }

    #[test]
    fn what_is_no_profile_is_said_with_file_and_field() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("slow.json");
        let said = |text: &str| {
            std::fs::write(&path, text).expect("it is written");
            let error = DeviceProfile::named(path.to_str().expect("a plain path")).expect_err(text);
            assert_eq!(error.exit_code(), 2);
            error.to_string()
        };
        let good = BUILT_IN[0].1;
        let zero = said(&good.replace("\"flops_per_s\": 7.0e14", "\"flops_per_s\": 0"));
        assert!(zero.contains("slow.json: `linear.flops_per_s`: expected a number above 0, found 0"), "{zero}");
        let negative = said(&good.replace("\"step_ns\": 20000", "\"step_ns\": -1"));
        assert!(negative.contains("`step_ns`") && negative.contains("-1"), "{negative}");
        assert!(said(&good.replace("host_row_ns", "host_rows_ns")).contains("host_rows_ns"));
        assert!(said("").contains("slow.json"));
        let unknown = DeviceProfile::named("h300").expect_err("there is none").to_string();
        assert_eq!(unknown, "`device_profile`: expected h200, cpu or a .json file, found h300");
    }
}
