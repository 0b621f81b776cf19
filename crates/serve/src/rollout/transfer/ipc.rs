//! Handles of memory on the same GPU, by which a trainer could hand over tensors without a copy (CUDA IPC). What is
//! said of the tensors is read and checked; the handles, which are pickles of Python, are not opened.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use offshoot_openai::protocol::{BodyFields, Refusal};

use super::described::Packing;
use super::described::{DescribedTensor, described, packing};

/// The field with the handles.
pub const HANDLES: &str = "ipc_handles_pickled";

/// An update by handles.
pub struct IpcUpdate {
    pub tensors: Vec<DescribedTensor>,
    /// The pickle of the handles.
    pub handles: Vec<u8>,
}

impl IpcUpdate {
    /// # Errors
    ///
    /// The tensors are not described, their sizes contradict their shapes, or the handles are no base64.
    pub fn read(fields: &mut BodyFields) -> Result<IpcUpdate, Refusal> {
        let handles = fields.text(HANDLES)?.unwrap_or_default();
        let handles = STANDARD.decode(handles).map_err(|_| Refusal::value(HANDLES, "base64", "something else"))?;
        let tensors = described(fields)?.ok_or_else(|| Refusal::value("names", "at least one tensor", "none"))?;
        packing(fields, Packing::Single)?;
        // In bytes, or in elements, as the sender has it.
        let sizes = [fields.take("tensor_sizes"), fields.take("sizes")].into_iter().flatten().next();
        if let Some(sizes) = sizes {
            let list = sizes.as_array().filter(|list| list.len() == tensors.len());
            let fits = |tensor: &DescribedTensor, size: u64| {
                let elements = tensor.shape.iter().product::<usize>() as u64;
                size == tensor.bytes as u64 || size == elements
            };
            let fit = list.is_some_and(|list| {
                tensors.iter().zip(list).all(|(tensor, size)| size.as_u64().is_some_and(|size| fits(tensor, size)))
            });
            if !fit {
                return Err(Refusal::value("tensor_sizes", "the size of each tensor, as its shape says", "others"));
            }
        }
        Ok(IpcUpdate { tensors, handles })
    }

    /// What is answered to an update by handles.
    pub fn refusal(&self, has_gpu: bool) -> Refusal {
        let (tensors, bytes) = (self.tensors.len(), self.handles.len());
        let why = match has_gpu {
            true => "this server opens no handles of CUDA's memory",
            false => "the engine computes on the CPU, which has no handles of CUDA's memory",
        };
        let what = format!(
            "{why} ({tensors} tensors, {bytes} bytes of handles): send the tensors in bodies, in a folder or by NCCL"
        );
        Refusal::new("unsupported_transfer", what)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn handles_are_read_as_trainers_send_them() {
        let whole = |more: Value| {
            let mut told = json!({"names": ["a"], "dtype_names": ["bfloat16"], "shapes": [[2, 3]],
                "ipc_handles_pickled": "gAQu"});
            told.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            let mut fields = BodyFields::new(told.as_object().expect("an object"));
            let read = IpcUpdate::read(&mut fields)?;
            fields.finish().map(|()| read)
        };
        for right in [json!({}), json!({"tensor_sizes": [12]}), json!({"sizes": [6]}), json!({"packed": true})] {
            let update = whole(right).expect("it is right");
            assert_eq!((&update.handles[..], update.tensors.len()), (&[0x80, 4, b'.'][..], 1));
            assert!(update.refusal(false).message.contains("CPU"));
        }
        for (wrong, field) in [
            (json!({"tensor_sizes": [13]}), "tensor_sizes"),
            (json!({"tensor_sizes": []}), "tensor_sizes"),
            (json!({"ipc_handles_pickled": "?"}), HANDLES),
            (json!({"names": [], "dtype_names": [], "shapes": []}), "names"),
            (json!({"other": 1}), "other"),
        ] {
            assert_eq!(whole(wrong).err().and_then(|refusal| refusal.param).as_deref(), Some(field));
        }
    }
}
