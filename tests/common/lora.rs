//! Adapters of the bundled model, as PEFT writes them: for tests of who may name them.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

/// Layers of the bundled model, and the width of what its attention reads.
const LAYERS: usize = 8;
const WIDTH: usize = 256;

/// An adapter of the queries of all layers; its numbers follow from `seed`.
#[derive(Clone, Copy)]
pub struct TestAdapter {
    pub seed: u64,
    pub rank: usize,
    /// Inputs of its modules; those of the bundled model are 256.
    pub width: usize,
}

impl TestAdapter {
    /// One of rank 4 that fits.
    pub fn new(seed: u64) -> Self {
        TestAdapter { seed, rank: 4, width: WIDTH }
    }

    /// Writes its folder.
    pub fn write(&self, folder: &Path) {
        fs::create_dir_all(folder).expect("the folder is writable");
        let config = json!({"peft_type": "LORA", "r": self.rank, "lora_alpha": 8, "target_modules": ["q_proj"]});
        fs::write(folder.join("adapter_config.json"), config.to_string()).expect("the folder is writable");
        fs::write(folder.join("adapter_model.safetensors"), self.tensors()).expect("the folder is writable");
    }

    /// The file of its tensors.
    fn tensors(&self) -> Vec<u8> {
        let (mut header, mut data) = (Map::new(), Vec::new());
        // xorshift: any numbers do.
        let mut state = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut uniform = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u32 << 24) as f32 - 0.5
        };
        for layer in 0..LAYERS {
            for (side, shape) in [("A", [self.rank, self.width]), ("B", [WIDTH, self.rank])] {
                let begin = data.len();
                data.extend((0..shape[0] * shape[1]).flat_map(|_| (0.2 * uniform()).to_le_bytes()));
                let name = format!("base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{side}.weight");
                let about = json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()]});
                header.insert(name, about);
            }
        }
        let mut header = Value::Object(header).to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
    }
}
