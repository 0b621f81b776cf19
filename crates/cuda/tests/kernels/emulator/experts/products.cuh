// In place of kernels/experts/products.cuh: its function, by the emulator.
#pragma once

#include "attention/wgmma.cuh"

using emulated::multiply_panels;
