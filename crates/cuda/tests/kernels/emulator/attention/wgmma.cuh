// In place of kernels/attention/wgmma.cuh: its functions, by the emulator.
#pragma once

#include "element.cuh"

constexpr unsigned ATOM_BYTES = 1024;

inline unsigned long long descriptor(unsigned address) {
    return 1ull << 62 | static_cast<unsigned long long>(ATOM_BYTES / 16) << 32 | (address & 0x3ffff) >> 4;
}

inline unsigned long long descriptor(unsigned address, unsigned panel_bytes) {
    return descriptor(address) | static_cast<unsigned long long>(panel_bytes / 16) << 16;
}

using emulated::begin_products;
using emulated::multiply_keys;
using emulated::multiply_shared;
using emulated::multiply_values;
using emulated::multiply_values_shared;
using emulated::products_issued;
using emulated::settled;
using emulated::wait_products;
