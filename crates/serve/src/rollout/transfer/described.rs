//! What a trainer says of the tensors that it is about to send: names, dtypes and shapes, and how they are cut into
//! broadcasts. Whether a model has such tensors is checked when they are put in force.

use std::ops::Range;

use serde_json::Value;

use offshoot_model::TensorDtype;
use offshoot_openai::protocol::{BodyFields, Refusal};

/// A tensor that will come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedTensor {
    pub name: String,
    pub dtype: TensorDtype,
    pub shape: Vec<usize>,
    pub bytes: usize,
}

/// Bytes of all of these tensors, or the most there can be.
pub fn bytes_of(tensors: &[DescribedTensor]) -> usize {
    tensors.iter().fold(0, |sum, tensor| sum.saturating_add(tensor.bytes))
}

/// How tensors are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// Each in a broadcast of its own.
    Single,
    /// One behind the other, in buffers that each end with the first tensor that makes them larger than `buffer` bytes.
    Packed { buffer: usize },
}

impl Packing {
    /// The buffer's size where a trainer does not say.
    pub const USUAL_BUFFER: usize = 1 << 30;
}

/// One broadcast: whole tensors, one behind the other without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broadcast {
    /// Which of the described tensors.
    pub tensors: Range<usize>,
    pub bytes: usize,
}

/// The broadcasts in which these tensors come.
pub fn broadcasts(tensors: &[DescribedTensor], packing: Packing) -> Vec<Broadcast> {
    let limit = match packing {
        Packing::Single => None,
        Packing::Packed { buffer } => Some(buffer),
    };
    let (mut cut, mut begin, mut bytes) = (Vec::new(), 0, 0);
    for (at, tensor) in tensors.iter().enumerate() {
        bytes += tensor.bytes;
        if limit.is_none_or(|limit| bytes > limit) || at + 1 == tensors.len() {
            cut.push(Broadcast { tensors: begin..at + 1, bytes });
            (begin, bytes) = (at + 1, 0);
        }
    }
    cut
}

/// `names`, `dtype_names` and `shapes`. `None`: all three are empty, which means the tensors of the update before.
pub fn described(fields: &mut BodyFields) -> Result<Option<Vec<DescribedTensor>>, Refusal> {
    let names = strings(fields, "names")?;
    let dtypes = strings(fields, "dtype_names")?;
    let expected = "a list of lists of sizes";
    let shapes = fields.take("shapes").unwrap_or(Value::Array(Vec::new()));
    let sizes = |shape: &Value| shape.as_array()?.iter().map(|size| usize::try_from(size.as_u64()?).ok()).collect();
    let shapes: Option<Vec<Vec<usize>>> = shapes.as_array().and_then(|list| list.iter().map(sizes).collect());
    let shapes = shapes.ok_or_else(|| Refusal::value("shapes", expected, "something else"))?;
    for (field, found) in [("dtype_names", dtypes.len()), ("shapes", shapes.len())] {
        if found != names.len() {
            let expected = format!("one for each of the {} `names`", names.len());
            return Err(Refusal::value(field, &expected, &found.to_string()));
        }
    }
    if names.is_empty() {
        return Ok(None);
    }
    let tensor = |((name, dtype), shape): ((String, String), Vec<usize>)| {
        let dtype = dtype_of(&dtype)?;
        let elements = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
        let bytes = elements.and_then(|elements| elements.checked_mul(dtype.bitsize())).map(|bits| bits / 8);
        let bytes =
            bytes.ok_or_else(|| Refusal::value("shapes", "sizes that memory can hold", &format!("{shape:?}")))?;
        Ok(DescribedTensor { name, dtype, shape, bytes })
    };
    names.into_iter().zip(dtypes).zip(shapes).map(tensor).collect::<Result<Vec<_>, _>>().map(Some)
}

/// How tensors are sent, by `packed` and `packed_buffer_size_bytes`; `usual`: what holds where they are not there.
pub fn packing(fields: &mut BodyFields, usual: Packing) -> Result<Packing, Refusal> {
    let buffer = fields.count("packed_buffer_size_bytes", 1, 1 << 40)?;
    // How many buffers the sender fills in turn; the order of the broadcasts is that of the buffers.
    fields.count("packed_num_buffers", 1, 1 << 20)?;
    Ok(match (fields.choice("packed")?, usual, buffer) {
        (Some(false), ..) | (None, Packing::Single, _) => Packing::Single,
        (Some(true), Packing::Single, buffer) => Packing::Packed { buffer: buffer.unwrap_or(Packing::USUAL_BUFFER) },
        (_, Packing::Packed { buffer: usual }, buffer) => Packing::Packed { buffer: buffer.unwrap_or(usual) },
    })
}

fn strings(fields: &mut BodyFields, key: &str) -> Result<Vec<String>, Refusal> {
    let Some(list) = fields.take(key) else { return Ok(Vec::new()) };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let texts: Option<Vec<String>> = list.as_array().and_then(|list| list.iter().map(text).collect());
    texts.ok_or_else(|| Refusal::value(key, "a list of strings", "something else"))
}

/// A dtype by torch's name, with or without `torch.` before it.
pub(super) fn dtype_of(name: &str) -> Result<TensorDtype, Refusal> {
    Ok(match name.strip_prefix("torch.").unwrap_or(name) {
        "float32" => TensorDtype::F32,
        "float16" => TensorDtype::F16,
        "bfloat16" => TensorDtype::BF16,
        "float64" => TensorDtype::F64,
        "int8" => TensorDtype::I8,
        "uint8" => TensorDtype::U8,
        "int32" => TensorDtype::I32,
        "int64" => TensorDtype::I64,
        "float8_e4m3fn" => TensorDtype::F8_E4M3,
        _ => return Err(Refusal::value("dtype_names", "dtypes that weights have, such as bfloat16", name)),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: &Value) -> BodyFields {
        BodyFields::new(value.as_object().expect("an object"))
    }

    fn tensor(bytes: usize) -> DescribedTensor {
        DescribedTensor { name: String::new(), dtype: TensorDtype::U8, shape: vec![bytes], bytes }
    }

    #[test]
    fn buffers_end_with_the_tensor_that_exceeds_them() {
        let cut = |sizes: &[usize], packing| {
            let tensors: Vec<_> = sizes.iter().map(|&bytes| tensor(bytes)).collect();
            let cut = broadcasts(&tensors, packing);
            cut.into_iter().map(|one| (one.tensors, one.bytes)).collect::<Vec<_>>()
        };
        let packed = Packing::Packed { buffer: 10 };
        assert_eq!(cut(&[4, 6, 1, 20, 3, 3], packed), [(0..3, 11), (3..4, 20), (4..6, 6)]);
        assert_eq!(cut(&[11], packed), [(0..1, 11)]);
        assert_eq!(cut(&[], packed), []);
        assert_eq!(cut(&[4, 6], Packing::Single), [(0..1, 4), (1..2, 6)]);
    }

    #[test]
    fn tensors_are_described_as_trainers_do() {
        let told = json!({"names": ["a", "b"], "dtype_names": ["bfloat16", "torch.float32"], "shapes": [[2, 3], []]});
        let tensors = described(&mut fields(&told)).expect("it is right").expect("there are some");
        let of = |tensor: &DescribedTensor| (tensor.name.clone(), tensor.dtype, tensor.bytes);
        assert_eq!(of(&tensors[0]), ("a".to_owned(), TensorDtype::BF16, 12));
        assert_eq!(of(&tensors[1]), ("b".to_owned(), TensorDtype::F32, 4));
        assert!(described(&mut fields(&json!({"names": []}))).expect("nothing new").is_none());
        for (wrong, field) in [
            (json!({"names": ["a"], "dtype_names": [], "shapes": [[1]]}), "dtype_names"),
            (json!({"names": ["a"], "dtype_names": ["float32"], "shapes": []}), "shapes"),
            (json!({"names": ["a"], "dtype_names": ["complex64"], "shapes": [[1]]}), "dtype_names"),
            (json!({"names": ["a"], "dtype_names": ["int8"], "shapes": [[1u64 << 40, 1u64 << 40]]}), "shapes"),
            (json!({"names": ["a"], "dtype_names": ["int8"], "shapes": [[-1]]}), "shapes"),
            (json!({"names": "a", "dtype_names": ["int8"], "shapes": [[1]]}), "names"),
        ] {
            let refused = described(&mut fields(&wrong)).expect_err("it is wrong");
            assert_eq!(refused.param.as_deref(), Some(field), "{}", refused.message);
        }
    }

    #[test]
    fn packing_is_said_once_or_with_each_update() {
        let read = |told: Value, usual| packing(&mut fields(&told), usual).expect("it is right");
        let usual = Packing::Packed { buffer: Packing::USUAL_BUFFER };
        assert_eq!(read(json!({}), Packing::Single), Packing::Single);
        assert_eq!(read(json!({"packed": true}), Packing::Single), usual);
        assert_eq!(read(json!({}), usual), usual);
        assert_eq!(read(json!({"packed": false}), usual), Packing::Single);
        let told = json!({"packed": true, "packed_buffer_size_bytes": 7, "packed_num_buffers": 2});
        assert_eq!(read(told, usual), Packing::Packed { buffer: 7 });
    }
}
