//! A trainer for one test: it changes the demo model's weights and sends them to a server for rollouts, as the trainers
//! outside do.

use std::path::Path;

use serde_json::{Value, json};

use crate::served::{Answer, QUESTION, Served, demo};

/// The tensors of a model, as a safetensors file has them: what the file says of each, and its bytes.
#[derive(Clone)]
pub struct Tensors(Vec<(String, Value, Vec<u8>)>);

impl Tensors {
    /// Those of the demo model.
    pub fn demo() -> Tensors {
        let file = std::fs::read(demo().join("model.safetensors")).expect("the demo model is there");
        let (length, rest) = file.split_at(8);
        let length = u64::from_le_bytes(length.try_into().expect("8 bytes")) as usize;
        let (header, data) = rest.split_at(length);
        let header: Value = serde_json::from_slice(header).expect("the header is JSON");
        let tensors = header.as_object().expect("an object").iter().filter(|(name, _)| *name != "__metadata__");
        let tensor = |(name, about): (&String, &Value)| {
            let [begin, end] = [0, 1].map(|at| about["data_offsets"][at].as_u64().expect("an offset") as usize);
            (name.clone(), about.clone(), data[begin..end].to_vec())
        };
        Tensors(tensors.map(tensor).collect())
    }

    /// The same with other numbers: those of each matrix that `is_changed` names, scaled.
    pub fn scaled(&self, by: f32, is_changed: impl Fn(&str) -> bool) -> Tensors {
        let mut changed = self.clone();
        for (_, _, bytes) in changed.0.iter_mut().filter(|(name, ..)| is_changed(name)) {
            for number in bytes.chunks_exact_mut(2) {
                // bf16 is the upper half of f32.
                let value = f32::from_bits(u32::from(u16::from_le_bytes([number[0], number[1]])) << 16) * by;
                number.copy_from_slice(&((value.to_bits() >> 16) as u16).to_le_bytes());
            }
        }
        changed
    }

    /// Those whose names fit.
    pub fn only(&self, fits: impl Fn(&str) -> bool) -> Tensors {
        Tensors(self.0.iter().filter(|(name, ..)| fits(name)).cloned().collect())
    }

    /// With another tensor of this name, or the same one changed by `change`.
    pub fn with(&self, name: &str, change: impl Fn(&mut Value, &mut Vec<u8>)) -> Tensors {
        let mut changed = self.clone();
        if !changed.0.iter().any(|(known, ..)| known == name) {
            changed.0.push((name.to_owned(), json!({"dtype": "BF16", "shape": [2]}), vec![0; 4]));
        }
        let tensor = changed.0.iter_mut().find(|(known, ..)| known == name).expect("it was added");
        change(&mut tensor.1, &mut tensor.2);
        changed
    }

    /// The bytes of a safetensors file.
    pub fn file(&self) -> Vec<u8> {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        for (name, about, bytes) in &self.0 {
            let offsets = [data.len(), data.len() + bytes.len()];
            let about = json!({"dtype": about["dtype"], "shape": about["shape"], "data_offsets": offsets});
            header.insert(name.clone(), about);
            data.extend(bytes);
        }
        let mut header = Value::Object(header).to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
    }

    /// Writes the folder of a step, and then the file that says that it is complete.
    pub fn write_step(&self, folder: &Path) {
        std::fs::create_dir(folder).expect("a new folder");
        std::fs::write(folder.join("model.safetensors"), self.file()).expect("the folder is writable");
        std::fs::write(folder.join("STABLE"), "").expect("the folder is writable");
    }
}

/// A server for rollouts.
pub fn rollout(options: &[&str]) -> Served {
    Served::start(&[&["--rollout"], options].concat())
}

/// Sends a file with tensors of the update that is open.
pub fn send(served: &Served, tensors: &Tensors) -> Answer {
    served.post_bytes("/update_weights", "application/octet-stream", &tensors.file())
}

/// A whole update in bodies, as it must go; what the weights are called then.
pub fn update(served: &Served, tensors: &Tensors) -> String {
    served.post("/start_weight_update", &json!({})).succeeds();
    send(served, tensors).succeeds();
    let finished = served.post_nothing("/finish_weight_update").succeeds();
    finished["weight_version"].as_str().expect("a text").to_owned()
}

/// A request whose answer depends on every weight, and on nothing else.
pub fn question() -> Value {
    json!({"prompt": QUESTION, "max_tokens": 24, "ignore_eos": true, "seed": 5, "logprobs": 0,
        "return_token_ids": true, "return_weight_versions": true})
}

/// The log-probabilities of the answer to `question`.
pub fn logprobs(served: &Served) -> Vec<Value> {
    let answer = served.complete(&question());
    answer["choices"][0]["logprobs"]["token_logprobs"].as_array().expect("a list").clone()
}

/// What the weights in force are called.
pub fn version(served: &Served) -> String {
    served.get("/weight_info").succeeds()["weight_version"].as_str().expect("a text").to_owned()
}
