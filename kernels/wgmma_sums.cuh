// Sums of products of a Hopper warpgroup, as the operands of inline assembly: REGISTERS_N names the N / 2 registers of
// a sum of 64 x N, from %0 on, and SUMS_N(sum, n) binds them to sum[n] and those behind it.
#pragma once

#define REGISTERS_8 "%0, %1, %2, %3"
#define REGISTERS_16 REGISTERS_8 ", %4, %5, %6, %7"
#define REGISTERS_32 REGISTERS_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define REGISTERS_48 REGISTERS_32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define REGISTERS_64 REGISTERS_48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_80 REGISTERS_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define REGISTERS_96 REGISTERS_80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define REGISTERS_112 REGISTERS_96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define REGISTERS_128 REGISTERS_112 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define REGISTERS_144 REGISTERS_128 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define REGISTERS_160 REGISTERS_144 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define REGISTERS_176 REGISTERS_160 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define REGISTERS_192 REGISTERS_176 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define REGISTERS_256 REGISTERS_192 \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, " \
    "%115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SUMS_8(sum, n) "+f"(sum[n][0]), "+f"(sum[n][1]), "+f"(sum[n][2]), "+f"(sum[n][3])
#define SUMS_16(sum, n) SUMS_8(sum, n), SUMS_8(sum, n + 1)
#define SUMS_32(sum, n) SUMS_16(sum, n), SUMS_16(sum, n + 2)
#define SUMS_48(sum, n) SUMS_32(sum, n), SUMS_16(sum, n + 4)
#define SUMS_64(sum, n) SUMS_48(sum, n), SUMS_16(sum, n + 6)
#define SUMS_80(sum, n) SUMS_64(sum, n), SUMS_16(sum, n + 8)
#define SUMS_96(sum, n) SUMS_80(sum, n), SUMS_16(sum, n + 10)
#define SUMS_112(sum, n) SUMS_96(sum, n), SUMS_16(sum, n + 12)
#define SUMS_128(sum, n) SUMS_112(sum, n), SUMS_16(sum, n + 14)
#define SUMS_144(sum, n) SUMS_128(sum, n), SUMS_16(sum, n + 16)
#define SUMS_160(sum, n) SUMS_144(sum, n), SUMS_16(sum, n + 18)
#define SUMS_176(sum, n) SUMS_160(sum, n), SUMS_16(sum, n + 20)
#define SUMS_192(sum, n) SUMS_176(sum, n), SUMS_16(sum, n + 22)
#define SUMS_256(sum, n) SUMS_192(sum, n), SUMS_64(sum, n + 24)
