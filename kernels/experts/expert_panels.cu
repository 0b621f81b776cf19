// Copies the matrices of experts to panels (experts/panels.cuh), once, when they are loaded. `alternates`: outputs are
// gates and ups.
//
// Shapes: from ELEMENT [outputs, inner], one expert; to: its panels, [ceil(outputs / 64)][ceil(inner / 64)][64 rows of
// 128 bytes], missing elements zero.
// Grid: x = panels, y = groups of 64 outputs; 256 threads, two chunks of eight elements each.
// Limit: bandwidth, 4 bytes per element.
// Definition: `Backend::experts`.
//
// Defines: ELEMENT, GATED (0).
#include "experts/panels.cuh"

extern "C" __global__ void __launch_bounds__(256)
    expert_panels(ELEMENT* __restrict__ to, const ELEMENT* __restrict__ from, unsigned outputs, unsigned inner,
                  unsigned alternates) {
    ELEMENT* panel = to + (static_cast<unsigned long long>(blockIdx.y) * gridDim.x + blockIdx.x) * (PANEL * PANEL);
    for (unsigned i = threadIdx.x; i < PANEL * 8; i += 256) {
        const unsigned row = i / 8, chunk = i % 8, output = blockIdx.y * PANEL + row;
        const unsigned long long matrix = matrix_row(output, outputs, alternates);
        ELEMENT* place = panel + row * PANEL + (chunk ^ row % 8) * 8;
        for (unsigned k = 0; k < 8; k++) {
            const unsigned input = blockIdx.x * PANEL + chunk * 8 + k;
            const bool exists = output < outputs && input < inner;
            place[k] = exists ? from[matrix * inner + input] : from_f32<ELEMENT>(0.0f);
        }
    }
}
