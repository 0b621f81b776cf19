//! Tensors that lie on a GPU when they are given, on the GPU: checked, rounded, divided, copied and loaded where they
//! lie.

use offshoot_backend::{DeviceBytes, DeviceLender, DeviceView, Dtype, MatrixPart, MemoryBlock};
use offshoot_cuda::memory::lent::Lender;
use offshoot_cuda::memory::weights::WeightLoader;

/// Numbers of a matrix whose rows differ.
fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * 0.37).sin() * 3.0).collect()
}

#[test]
fn given_tensors_are_checked_rounded_divided_and_loaded_where_they_lie() {
    let lender = match Lender::open(0) {
        Ok(lender) => lender,
        Err(why) => return crate::skip::skipped(why),
    };
    let (rows, cols) = (301, 1024);
    let numbers = numbers(rows * cols);
    for (dtype, skew) in [(Dtype::F32, 0), (Dtype::Bf16, 0), (Dtype::Bf16, 1)] {
        let bytes = dtype.encode(&numbers);
        let memory = lender.device().uploaded(&[&vec![0; skew][..], &bytes].concat()).expect("there is room");
        lender.device().synchronise().expect("the device works");
        // Lent by its address, as another library of the process does.
        let owner = lender.given(memory);
        let address = owner.address() + skew as u64;
        let lent = lender.lent(address, bytes.len(), Box::new(owner)).expect("it is the device's memory");
        let whole = DeviceBytes::whole(&*lent);
        assert_eq!((whole.ordinal(), whole.address()), (0, address));
        assert!(whole.download().expect("the device works") == bytes);
        assert_eq!(whole.not_finite(dtype, dtype).expect("the device works"), None);
        let rounded = whole.cast(dtype, Dtype::F16).expect("there is room");
        let values: Vec<f32> = numbers.iter().map(|&x| dtype.round(x)).collect();
        assert!(rounded.download(0..rounded.bytes()).expect("the device works") == Dtype::F16.encode(&values));
        let size = dtype.bytes();
        let part = whole.columns(cols * size, 128 * size..640 * size).expect("there is room");
        let expected: Vec<u8> =
            bytes.chunks(cols * size).flat_map(|row| &row[128 * size..640 * size]).copied().collect();
        assert!(part.download(0..part.bytes()).expect("the device works") == expected);
        let MemoryBlock::Device(copy) = lender.copied(whole).expect("there is room") else {
            panic!("an idle GPU has memory to spare")
        };
        assert!(copy.download(0..copy.bytes()).expect("the device works") == bytes);
        let view = DeviceView { dtype, rows, cols, bytes: whole };
        let parts = [view.rows(100..301), view.rows(0..100)].map(MatrixPart::Device);
        let matrix = WeightLoader::new(lender.device()).and_then(|mut loader| loader.matrix(&parts, None));
        let matrix = matrix.expect("there is room");
        let found = lender.device().download(&matrix.memory, 0..bytes.len()).expect("the device works");
        assert!(found == [&bytes[100 * cols * size..], &bytes[..100 * cols * size]].concat());
    }
    let mut bad = numbers;
    for (place, value) in [(200_001, f32::NAN), (300_000, f32::INFINITY), (77, f32::NEG_INFINITY)] {
        bad[place] = value;
        let memory = lender.device().uploaded(&bad).expect("there is room");
        let given = lender.given(memory);
        let first = bad.iter().position(|x| !x.is_finite());
        assert_eq!(DeviceBytes::whole(&*given).not_finite(Dtype::F32, Dtype::Bf16).expect("the device works"), first);
    }
    let nowhere = lender.lent(16, 4096, Box::new(())).expect_err("nothing lies there").to_string();
    assert!(!nowhere.contains('\n'), "{nowhere}");
    // Memory that ends before the tensor does, and a tensor that ends behind all addresses.
    let owner = lender.given(lender.device().alloc(4096).expect("there is room"));
    let address = DeviceBytes::whole(&*owner).address();
    for bytes in [1 << 46, usize::MAX] {
        lender.lent(address, bytes, Box::new(())).expect_err("no GPU has so much memory");
    }
    assert_eq!(lender.uuid().expect("the driver knows it").len(), 36);
}
