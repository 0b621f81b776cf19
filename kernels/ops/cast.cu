// out[i] = x[i] rounded to nearest even: tensors that lie on the device when they are given, in the dtype of the model.
//
// Shapes: x FROM [elements], at any address; out TO [elements].
// Grid: a grid-stride loop over the elements.
// Limit: bandwidth, sizeof(FROM) + sizeof(TO) bytes per element.
// Definition: `DeviceMemory::cast` of crates/backend/src/device_memory.rs; on the CPU `MatrixPart::dense_bytes`.
#include "element.cuh"

extern "C" __global__ void cast(const unsigned char* x, TO* out, unsigned long long elements) {
    const unsigned long long stride = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    const unsigned long long begin = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    const bool is_aligned = reinterpret_cast<unsigned long long>(x) % sizeof(FROM) == 0;
    for (unsigned long long i = begin; i < elements; i += stride) {
        FROM value;
        if (is_aligned) {
            value = reinterpret_cast<const FROM*>(x)[i];
        } else {
            for (unsigned byte = 0; byte < sizeof(FROM); ++byte) {
                reinterpret_cast<unsigned char*>(&value)[byte] = x[i * sizeof(FROM) + byte];
            }
        }
        out[i] = from_f32<TO>(to_f32(value));
    }
}
