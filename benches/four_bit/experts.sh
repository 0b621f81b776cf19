#!/usr/bin/env bash
# Times the tiles of expert_linear_4bit_wgmma that could serve, on a Hopper GPU with nvcc 13: bash
# benches/four_bit/experts.sh OUT. A file OUT/NAME.tsv for each line of experts.txt. The best of them by rows belong
# into `FourBitTiles` of crates/cuda/src/compile/four_bit.rs.
set -euo pipefail
out=${1:?the folder for results}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out" /tmp/four-bit-experts

build() {
  read -r name fp4 group cap groups splits more <<<"$1"
  nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -Xptxas -v -I "$here/../../kernels" \
    -o "/tmp/four-bit-experts/$name" -DSWEEP_FP4="$fp4" -DSWEEP_GROUP="$group" -DSWEEP_CAP="$cap" \
    -DSWEEP_GROUPS="$groups" -DSWEEP_SPLITS="$splits" $more "$here/experts.cu" -lcuda \
    >"/tmp/four-bit-experts/$name.build" 2>&1 ||
    { echo "$name was not built:"; tail -5 "/tmp/four-bit-experts/$name.build"; }
}
export -f build
export here
variants=$(grep -v '^#' "$here/experts.txt")
xargs -d '\n' -P 16 -I LINE bash -c 'build "LINE"' <<<"$variants"
grep -E "spill|C75" /tmp/four-bit-experts/*.build | grep -v " 0 bytes spill stores" >"$out/builds.txt" || true
while read -r name _; do
  [ -x "/tmp/four-bit-experts/$name" ] || continue
  timeout 30 "/tmp/four-bit-experts/$name" >"$out/$name.tsv" || echo "$name failed: $(tail -1 "$out/$name.tsv")"
done <<<"$variants"
grep WRONG "$out"/*.tsv || true
