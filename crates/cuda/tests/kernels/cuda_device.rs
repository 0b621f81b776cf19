//! The device layer on a GPU: memory, copies, launches, graphs, and what it says of mistakes. Without a GPU every test
//! says so and passes.

use offshoot_core::error::Error;
use offshoot_cuda::compile::unit::{Source, Unit};
use offshoot_cuda::driver::args::Args;
use offshoot_cuda::driver::device::Device;
use offshoot_cuda::driver::function::Function;

static ADD: Source = Source {
    name: "add.cu",
    text: r#"
extern "C" __global__ void add(unsigned* x, unsigned count, const unsigned* by, float unused) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) x[i] += *by;
}
extern "C" __global__ void shared_sum(unsigned* out) {
    extern __shared__ unsigned values[];
    for (unsigned i = threadIdx.x; i < COUNT; i += blockDim.x) values[i] = i;
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned sum = 0;
        for (unsigned i = 0; i < COUNT; i++) sum += values[i];
        *out = sum;
    }
}
"#,
};

/// 160 KiB of u32 in shared memory: more than a block gets without asking.
const SHARED_COUNT: u32 = 40 << 10;

fn device() -> Option<Device> {
    match Device::open(0) {
        Ok(device) => Some(device),
        Err(error) => {
            crate::skip::skipped(format_args!("{error}"));
            None
        }
    }
}

fn unit() -> Unit {
    Unit::new(&ADD).define("COUNT", SHARED_COUNT)
}

fn add(device: &Device) -> Function {
    device.function(&unit(), "add").unwrap()
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn facts_are_those_of_a_gpu() {
    let Some(device) = device() else { return };
    let facts = device.facts();
    assert!(facts.major >= 8 && facts.multiprocessors > 0 && facts.shared_optin > 48 << 10, "{facts:?}");
    assert!(device.free_bytes().unwrap() <= facts.total_bytes);
    let last = offshoot_cuda::discovery::probe::probe().unwrap().len();
    let error = Device::open(last).err().expect("there is no such GPU").to_string();
    assert!(error.starts_with(&format!("cuda:{last} cannot be used: the driver shows ")), "{error}");
}

#[test]
fn copies_keep_every_byte() {
    let Some(device) = device() else { return };
    let values: Vec<u8> = (0..100_003u32).map(|i| (i * 31 % 251) as u8).collect();
    let (a, b) = (device.alloc(values.len() + 5).unwrap(), device.alloc(values.len()).unwrap());
    device.zero(&a).unwrap();
    device.upload(&a, 5, &values).unwrap();
    assert_eq!(device.download(&a, 0..5).unwrap(), [0; 5]);
    device.copy(&b, 0, &a, 5..a.bytes()).unwrap();
    assert_eq!(device.download(&b, 0..b.bytes()).unwrap(), values);

    let (mut there, mut back) = (device.pinned(1000).unwrap(), device.pinned(1000).unwrap());
    there.copy_from_slice(&values[..1000]);
    device.upload_pinned(&b, 7, &there, 0..1000).unwrap();
    device.download_pinned(&mut back, 10, &b, 7..997).unwrap();
    let done = device.event().unwrap();
    done.record().unwrap();
    done.wait().unwrap();
    assert_eq!(back[..10], [0; 10]);
    assert_eq!(back[10..], values[..990]);

    device.upload(&b, 0, &there).unwrap();
    there.fill(9);
    assert_eq!(
        device.download(&b, 0..1000).unwrap(),
        values[..1000],
        "page-locked memory given to `upload` may change"
    );
}

#[test]
fn what_does_not_fit_says_how_much_there_is() {
    let Some(device) = device() else { return };
    let total = device.facts().total_bytes;
    match device.alloc(2 * total).err() {
        Some(Error::DeviceMemory { asked, free, .. }) => assert!(asked == Some(2 * total) && free <= total),
        other => panic!("{other:?}"),
    }
    let (nothing, pinned) = (device.alloc(0).unwrap(), device.pinned(0).unwrap());
    device.zero(&nothing).unwrap();
    device.upload(&nothing, 0, &[]).unwrap();
    device.upload_pinned(&nothing, 0, &pinned, 0..0).unwrap();
    assert!(device.download(&nothing, 0..0).unwrap().is_empty());
}

#[test]
fn launches_follow_one_another_from_any_thread() {
    let Some(device) = device() else { return };
    let (x, by) = (device.alloc(4000).unwrap(), device.alloc(8).unwrap());
    device.zero(&x).unwrap();
    device.upload(&by, 0, &bytes(&[7, 3])).unwrap();
    let function = add(&device);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for offset in [0, 4] {
                    let args = Args::new().memory(&x).u32(1000).memory_at(&by, offset).f32(0.0);
                    device.launch(&function, [8, 1, 1], 128, 0, &args);
                }
            });
        }
    });
    assert_eq!(words(&device.download(&x, 0..4000).unwrap()), [40; 1000]);
}

#[test]
fn a_block_may_use_all_shared_memory() {
    let Some(device) = device() else { return };
    let optin = device.facts().shared_optin;
    let shared = 4 * SHARED_COUNT as usize;
    if shared > optin {
        return crate::skip::skipped(format_args!("a block has {optin} bytes of shared memory"));
    }
    let out = device.alloc(4).unwrap();
    let function = device.function(&unit(), "shared_sum").unwrap();
    device.launch(&function, [1, 1, 1], 256, shared, &Args::new().memory(&out));
    let sum = (0..SHARED_COUNT).fold(0u32, u32::wrapping_add);
    assert_eq!(words(&device.download(&out, 0..4).unwrap()), [sum]);
}

#[test]
fn a_graph_does_again_what_was_captured() {
    let Some(device) = device() else { return };
    let (x, by) = (device.alloc(400).unwrap(), device.alloc(4).unwrap());
    let mut step = device.pinned(4).unwrap();
    let function = add(&device);
    device.zero(&x).unwrap();
    let graph = device
        .capture(|| {
            device.upload_pinned(&by, 0, &step, 0..4)?;
            device.launch(&function, [1, 1, 1], 128, 0, &Args::new().memory(&x).u32(100).memory(&by).f32(0.0));
            Ok(())
        })
        .unwrap();
    assert_eq!(words(&device.download(&x, 0..400).unwrap()), [0; 100], "capturing runs nothing");
    for value in 1..=10u32 {
        step.copy_from_slice(&value.to_le_bytes());
        graph.launch().unwrap();
        device.synchronise().unwrap();
    }
    assert_eq!(words(&device.download(&x, 0..400).unwrap()), [55; 100]);

    let failed = device.capture(|| Err(Error::Interrupted)).err();
    assert!(matches!(failed, Some(Error::Interrupted)), "{failed:?}");
    let waits = device.capture(|| device.synchronise()).err();
    assert!(matches!(waits, Some(Error::Cuda { .. })), "{waits:?}");
    graph.launch().unwrap();
    device.synchronise().unwrap();
}

#[test]
fn times_are_taken_on_the_device() {
    let Some(device) = device() else { return };
    let memory = device.alloc(256 << 20).unwrap();
    let (start, end) = (device.event().unwrap(), device.event().unwrap());
    start.record().unwrap();
    device.zero(&memory).unwrap();
    end.record().unwrap();
    end.wait().unwrap();
    // 256 MiB take 13 us at 20 TB/s, faster than any memory.
    let took = start.elapsed_us(&end).unwrap();
    assert!(took > 13.0, "{took} us");
}

#[test]
fn a_launch_that_fails_is_told_by_the_next_call() {
    let Some(device) = device() else { return };
    let x = device.alloc(4).unwrap();
    let args = Args::new().memory(&x).u32(1).memory(&x).f32(0.0);
    device.launch(&add(&device), [1, 1, 1], 4096, 0, &args);
    let error = device.download(&x, 0..4).unwrap_err().to_string();
    assert!(error.contains("cannot launch add with grid [1, 1, 1], 4096 threads"), "{error}");
    device.check().unwrap();
    device.download(&x, 0..4).unwrap();
}

#[test]
fn arguments_that_do_not_fit_are_never_launched() {
    let Some(device) = device() else { return };
    if (device.facts().driver.major, device.facts().driver.minor) < (12, 4) {
        return crate::skip::skipped("this driver cannot tell a kernel's parameters");
    }
    let (x, function) = (device.alloc(4).unwrap(), add(&device));
    for args in [Args::new().memory(&x), Args::new().memory(&x).u64(1).memory(&x).f32(0.0)] {
        let launched = std::panic::catch_unwind(|| device.launch(&function, [1, 1, 1], 1, 0, &args));
        assert!(launched.is_err());
    }
    let missing = device.function(&unit(), "subtract").err().expect("no such kernel").to_string();
    assert!(missing.contains("cannot take kernel subtract from add.cu"), "{missing}");
}
