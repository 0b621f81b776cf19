#!/usr/bin/env bash
# Times the tiles of kernels/four_bit that could serve, on a Hopper GPU with nvcc 13: bash benches/four_bit/sweep.sh
# OUT. Builds sweep.cu once for each, in parallel, then runs them one after another; a file OUT/NAME.tsv for each line
# of variants.txt, or of a second argument. The best of them by rows and shape belong into `LayerPlan` of
# crates/cuda/src/compile/four_bit_layers.rs.
set -euo pipefail
out=${1:?the folder for results}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out" /tmp/four-bit-sweep

variants=$(grep -v '^#' "${2:-$here/variants.txt}")
build() {
  read -r name fp4 group cap groups blocks more <<<"$1"
  nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -Xptxas -v -I "$here/../../kernels" \
    -o "/tmp/four-bit-sweep/$name" -DSWEEP_FP4="$fp4" -DSWEEP_GROUP="$group" -DSWEEP_CAP="$cap" \
    -DSWEEP_GROUPS="$groups" -DSWEEP_BLOCKS="$blocks" $more "$here/sweep.cu" -lcublas -lcuda \
    >"/tmp/four-bit-sweep/$name.build" 2>&1 ||
    { echo "$name was not built:"; tail -5 "/tmp/four-bit-sweep/$name.build"; }
}
export -f build
export here
grep . <<<"$variants" | xargs -d '\n' -P 16 -I LINE bash -c 'build "LINE"'
grep -hE "spill|Used|C75" /tmp/four-bit-sweep/*.build | sort | uniq -c >"$out/builds.txt" || true
grep . <<<"$variants" | while read -r name _; do
  [ -x "/tmp/four-bit-sweep/$name" ] || continue
  timeout 30 "/tmp/four-bit-sweep/$name" >"$out/$name.tsv" || echo "$name failed: $(tail -1 "$out/$name.tsv")"
done
grep -l WRONG "$out"/*.tsv || true

# The fastest of each format, shape and number of rows, with its splits and whether kernels overlap.
for format in int4-128 int4-32 mxfp4; do
  ls "$out"/$format-*.tsv >/dev/null 2>&1 || continue
  grep -Hv '^#' "$out"/$format-*.tsv | sed 's/^[^:]*\///; s/\.tsv:/\t/' |
    sort -t "$(printf '\t')" -k6,6n -k2,2n -k3,3n -k4,4n -k7,7g |
    awk -F '\t' -v format=$format 'BEGIN { print format ": outputs, inputs, rows, fastest, splits, overlap, us" }
      { key = $2 FS $3 FS $4 FS $6 }
      key != last { printf "%s\t%s\t%s\t%s\t%s\t%s\t%.2f\n", $2, $3, $4, $1, $5, $6, $7; last = key }'
done | tee "$out/fastest.txt"
