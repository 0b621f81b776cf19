//! What the assembler says of a kernel in NVRTC's log: registers, spills, shared memory.

use std::sync::LazyLock;

use regex::Regex;

/// One kernel of a compiled unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelUsage {
    pub kernel: String,
    pub registers: u32,
    /// Bytes stored and loaded because registers ran out.
    pub spill_bytes: u32,
    /// Shared memory of fixed size, bytes a block.
    pub shared_bytes: u32,
}

static ENTRY: LazyLock<Regex> = LazyLock::new(|| pattern(r"Compiling entry function '([^']+)'"));
static SPILLS: LazyLock<Regex> = LazyLock::new(|| pattern(r"(\d+) bytes spill stores, (\d+) bytes spill loads"));
static REGISTERS: LazyLock<Regex> = LazyLock::new(|| pattern(r"Used (\d+) registers"));
static SHARED: LazyLock<Regex> = LazyLock::new(|| pattern(r"(\d+) bytes smem"));

fn pattern(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a fixed pattern")
}

/// The kernels of a log, in its order. Lines of other kinds (warnings, device functions) are passed over.
pub fn usage(log: &str) -> Vec<KernelUsage> {
    let mut kernels: Vec<KernelUsage> = Vec::new();
    for line in log.lines() {
        if let Some(entry) = ENTRY.captures(line) {
            kernels.push(KernelUsage { kernel: entry[1].to_string(), ..KernelUsage::default() });
        }
        let Some(kernel) = kernels.last_mut() else { continue };
        let number = |digits: &str| digits.parse::<u32>().unwrap_or(u32::MAX);
        if let Some(spills) = SPILLS.captures(line) {
            kernel.spill_bytes = number(&spills[1]).saturating_add(number(&spills[2]));
        }
        if let Some(registers) = REGISTERS.captures(line) {
            kernel.registers = number(&registers[1]);
        }
        if let Some(shared) = SHARED.captures(line) {
            kernel.shared_bytes = number(&shared[1]);
        }
    }
    kernels
}
