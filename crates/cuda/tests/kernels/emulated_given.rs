//! The kernels that check and round given tensors, on the CPU, instruction by instruction (`emulator`): at every
//! address, in every dtype, they find and write what the host's definitions do.

use crate::emulator;

use std::ffi::c_void;

use emulator::{Emulated, Schedule, When};
use offshoot_backend::{Dtype, WeightView};
use offshoot_core::dice::Dice;
use offshoot_cuda::compile::unit::Unit;
use offshoot_cuda::compile::units;

const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];
const ANY: Schedule = Schedule { copies: When::AtOnce, products: When::AtOnce, seed: 0, held: None };

fn at<T>(argument: &mut T) -> *mut c_void {
    std::ptr::from_mut(argument).cast()
}

/// Bytes at an address that is `skew` behind a multiple of 16.
struct Skewed {
    words: Vec<u128>,
    skew: usize,
}

impl Skewed {
    fn new(bytes: &[u8], skew: usize) -> Self {
        let mut words = vec![0u128; (bytes.len() + skew).div_ceil(16) + 1];
        bytemuck::cast_slice_mut::<_, u8>(&mut words)[skew..skew + bytes.len()].copy_from_slice(bytes);
        Self { words, skew }
    }

    fn address(&self) -> *const u8 {
        bytemuck::cast_slice::<_, u8>(&self.words)[self.skew..].as_ptr()
    }
}

/// The chunk in which the kernel finds an element, of `elements` ones that are 1 but for `bad` at these places.
fn found(dtype: Dtype, becomes: Dtype, elements: usize, bad: f32, places: &[usize], skew: usize) -> Option<u32> {
    let name = if dtype.bytes() == 2 { "not_finite_2" } else { "not_finite_4" };
    let kernel = Emulated::compile(&Unit::new(&units::NOT_FINITE), name)?;
    let mut numbers = vec![1.0; elements];
    places.iter().for_each(|&place| numbers[place] = bad);
    let x = Skewed::new(&dtype.encode(&numbers), skew);
    let (mut x_at, mut count, mut too_large) = (x.address(), elements as u64, dtype.not_finite_from(becomes));
    let mut first = u32::MAX;
    let mut first_at = std::ptr::from_mut(&mut first);
    let args = [at(&mut x_at), at(&mut count), at(&mut too_large), at(&mut first_at)];
    // SAFETY: the arguments of the kernel, with memory for as many elements, and one place.
    unsafe { kernel.launch(2, 32, 0, ANY, &args) };
    Some(first)
}

#[test]
fn the_first_number_that_is_not_finite_is_found() {
    for (dtype, skew) in DTYPES.into_iter().flat_map(|dtype| [0, 2, 3].map(|skew| (dtype, skew))) {
        for (bad, places) in [
            (f32::NAN, &[4097, 8195][..]),
            (f32::INFINITY, &[0]),
            (f32::NEG_INFINITY, &[4095]),
            (f32::NEG_INFINITY, &[8195]),
            (2.0, &[5]),
        ] {
            let Some(first) = found(dtype, dtype, 8196, bad, places, skew) else { return };
            let expected = if bad.is_finite() { u32::MAX } else { places[0] as u32 / 4096 };
            assert_eq!(first, expected, "{dtype:?}, {bad} at {places:?}, {skew} behind");
        }
    }
    for (from, to, bad, is_found) in [
        (Dtype::F32, Dtype::F16, 65520.0, true),
        (Dtype::F32, Dtype::F16, 65519.0, false),
        (Dtype::F32, Dtype::Bf16, f32::MAX, true),
        (Dtype::F32, Dtype::F32, f32::MAX, false),
        (Dtype::Bf16, Dtype::F16, -65536.0, true),
        (Dtype::Bf16, Dtype::F16, 65280.0, false),
    ] {
        let Some(first) = found(from, to, 40, bad, &[33], 0) else { return };
        assert_eq!(first == 0, is_found, "{bad} of {from:?} as {to:?}");
        assert!(is_found != to.round(bad).is_finite(), "the definition: it is infinite when it is rounded");
    }
}

#[test]
fn given_numbers_are_rounded_as_on_the_host() {
    let mut dice = Dice::new(5);
    let numbers: Vec<f32> = (0..203).map(|_| dice.number() * 2f32.powi(dice.within(0, 30) as i32 - 18)).collect();
    let pairs = DTYPES.into_iter().flat_map(|from| DTYPES.map(|to| (from, to))).filter(|(from, to)| from != to);
    for ((from, to), skew) in pairs.flat_map(|pair| [0, 1].map(|skew| (pair, skew))) {
        let Some(kernel) = Emulated::compile(&units::cast(from, to), "cast") else { return };
        let bytes = from.encode(&numbers);
        let view = WeightView { dtype: from, rows: 1, cols: numbers.len(), bytes: &bytes };
        let expected = to.encode(&(0..view.cols).map(|i| view.get(i)).collect::<Vec<_>>());
        let x = Skewed::new(&bytes, skew);
        let mut out = vec![0u128; expected.len().div_ceil(16)];
        let (mut x_at, mut out_at, mut count) = (x.address(), out.as_mut_ptr(), numbers.len() as u64);
        // SAFETY: the arguments of the kernel, each with memory for as many elements.
        unsafe { kernel.launch(2, 32, 0, ANY, &[at(&mut x_at), at(&mut out_at), at(&mut count)]) };
        let found = &bytemuck::cast_slice::<_, u8>(&out)[..expected.len()];
        assert!(found == expected, "{from:?} to {to:?}, {skew} behind");
    }
}
