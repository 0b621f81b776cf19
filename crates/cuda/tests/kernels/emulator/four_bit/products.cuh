// In place of kernels/four_bit/products.cuh: its function, by the emulator.
#pragma once

#include "attention/wgmma.cuh"

using emulated::multiply_codes;
