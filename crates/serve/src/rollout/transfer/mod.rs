//! How the tensors of a weight update come from a trainer: in bodies of requests, in a folder, by NCCL's broadcasts, or
//! as handles of memory on the same GPU. What is made of them is left to `update`.

mod described;
mod exports;
mod folder;
mod ipc;
mod nccl;
mod received;
mod tcp_store;
mod unique_id;

use serde_json::{Map, Value};

use offshoot_openai::protocol::{BodyFields, Refusal};

pub use described::{bytes_of, described, packing};
pub use exports::UserCounter;
pub use folder::StepFolder;
pub use ipc::{HANDLES, IpcUpdate, Users};
pub use nccl::{InitInfo, NcclSession};
pub use received::ReceivedTensors;

#[cfg(test)]
pub use described::{DescribedTensor, Packing};
#[cfg(test)]
pub use exports::tests as exports_tests;
#[cfg(test)]
pub use ipc::tests as ipc_tests;

/// What a request begins a session with.
pub enum SessionStart {
    Requests,
    Nccl(InitInfo),
}

/// `init_info`: an address or an id for NCCL; empty, or with `packed` alone, for handles of memory.
pub fn session_start(init: &Map<String, Value>) -> Result<SessionStart, Refusal> {
    if init.keys().all(|key| key == "packed") {
        let mut fields = BodyFields::new(init);
        fields.choice("packed")?;
        return Ok(SessionStart::Requests);
    }
    InitInfo::read(init).map(SessionStart::Nccl)
}
