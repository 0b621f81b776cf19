//! Rates of this machine.

use offshoot_cpu::Isa;
use offshoot_cpu::machine::MachineRates;

#[test]
fn rates_are_positive() {
    let isa = Isa::fastest();
    let rates = MachineRates::measure(isa);
    println!("{isa}: {rates:?}");
    assert!(rates.f32_gflops > 0.0 && rates.read_gb_per_s > 0.0 && rates.bf16_gflops() >= rates.f32_gflops);
}
