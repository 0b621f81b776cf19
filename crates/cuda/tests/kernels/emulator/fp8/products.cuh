// In place of kernels/fp8/products.cuh: its function, by the emulator.
#pragma once

#include "attention/wgmma.cuh"

using emulated::multiply_fp8;
