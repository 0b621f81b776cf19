#!/usr/bin/env bash
# Times the tiles of kernels/four_bit that could serve, on a Hopper GPU with nvcc 13: bash benches/four_bit/sweep.sh OUT.
# Builds sweep.cu once for each, in parallel, then runs them one after another; a file OUT/NAME.tsv for each. The best of
# them by rows and shape belong into `FourBitTiles` of src/backend/cuda/compile/four_bit.rs.
set -euo pipefail
out=${1:?the folder for results}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out/bin"

# name fp4 group cap groups splits stages; 'mma' as cap: linear_4bit.
variants='
int4-128-16x4  0 128 16 1 4 20
int4-128-16x3  0 128 16 1 3 22
int4-128-16x2  0 128 16 1 2 22
int4-128-16g2x2 0 128 16 2 2 14
int4-128-64x2  0 128 64 1 2 9
int4-128-64x3  0 128 64 1 3 8
int4-128-64x4  0 128 64 1 4 7
int4-128-64g2  0 128 64 2 1 8
int4-128-128x2 0 128 128 1 2 4
int4-128-128g2 0 128 128 2 1 5
int4-128-mma   0 128 mma 1 1 0
int4-32-16x4   0 32 16 1 4 20
int4-32-64x2   0 32 64 1 2 9
int4-32-128g2  0 32 128 2 1 4
mxfp4-16x4     1 32 16 1 4 20
mxfp4-64x2     1 32 64 1 2 9
mxfp4-128g2    1 32 128 2 1 5
mxfp4-mma      1 32 mma 1 1 0
'
build() {
  read -r name fp4 group cap groups splits stages <<<"$1"
  local more=(-DSWEEP_CAP="$cap")
  [ "$cap" = mma ] && more=(-DSWEEP_CAP=64 -DSWEEP_MMA)
  nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -Xptxas -v -I "$here/../../kernels" -o "$out/bin/$name" \
    -DSWEEP_FP4="$fp4" -DSWEEP_GROUP="$group" -DSWEEP_GROUPS="$groups" -DSWEEP_SPLITS="$splits" -DSWEEP_STAGES="$stages" \
    "${more[@]}" "$here/sweep.cu" -lcublas >"$out/$name.build" 2>&1 || { echo "$name was not built:"; tail -5 "$out/$name.build"; }
}
export -f build
export out here
grep . <<<"$variants" | xargs -d '\n' -P 16 -I LINE bash -c 'build "LINE"'
grep . <<<"$variants" | while read -r name _; do
  [ -x "$out/bin/$name" ] || continue
  timeout 60 "$out/bin/$name" >"$out/$name.tsv" || echo "$name failed: $(tail -1 "$out/$name.tsv")"
done
rm -r "$out/bin"

# The fastest of each shape and number of rows, beside cuBLAS in bf16 and the floor.
for format in int4-128 int4-32 mxfp4; do
  grep -Hv '^#' "$out"/$format-*.tsv | sed 's/^[^:]*\///; s/\.tsv:/\t/' | sort -t "$(printf '\t')" -k2,2n -k3,3n -k4,4n -k5,5g |
    awk -F '\t' -v format=$format 'BEGIN { print format ": outputs, inputs, rows, fastest, us, of cuBLAS, of the floor" }
      { key = $2 FS $3 FS $4 } key != last { printf "%s\t%s\t%.2f\t%.2f\t%.2f\n", key, $1, $5, $5 / $6, $5 / $7; last = key }'
done | tee "$out/fastest.txt"
