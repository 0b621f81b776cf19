#!/usr/bin/env bash
# FP8 weights on Hopper, from first check to whole jobs, bf16 beside them on the same machine.
#
#   benches/fp8.sh OUT [GOLDENS]
#
# OUT: a folder for what is measured. GOLDENS: a folder of model folders with golden.json; those named quant-fp8-* are
# checked. `offshoot` and `offshoot-lab` are on the path, or OFFSHOOT and OFFSHOOT_LAB name them. A part that fails does
# not stop the next; the last line counts failures.
# Parts take about 1, 2, 1, 2, 1 and 6 minutes on an H100; PARTS="check gemm" runs some of them.
set -uo pipefail
out=${1:?"benches/fp8.sh OUT [GOLDENS]"}
goldens=${2:-}
offshoot=${OFFSHOOT:-offshoot}
lab=${OFFSHOOT_LAB:-offshoot-lab}
parts=${PARTS:-"kernels check goldens gemm experts workloads"}
shape=${SHAPE:-llama3-8b}
rows=1,2,4,8,16,32,64,96,128,129,192,256,384,512,1024,2048,4096
mkdir -p "$out"
failed=0

# Runs a command, keeps what it prints, and says how it ended.
keep() {
    local name=$1
    shift
    local begun=$SECONDS
    "$@" >"$out/$name" 2>"$out/$name.log"
    local code=$?
    echo "$name: exit status $code, $((SECONDS - begun)) s"
    [ $code -eq 0 ] || { failed=$((failed + 1)); tail -n 5 "$out/$name" "$out/$name.log"; }
}

nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,power.limit --format=csv >"$out/gpu.csv" 2>/dev/null
for part in $parts; do
    case $part in
    kernels) keep kernels.txt "$lab" check --kernels --arch sm_90a ;;
    check)
        keep check.txt "$lab" check --device cuda
        keep check-deterministic.txt "$lab" check --device cuda --deterministic
        ;;
    goldens)
        for folder in "$goldens"/quant-fp8-*; do
            [ -d "$folder" ] || continue
            name=$(basename "$folder")
            golden=("$offshoot" check --device cuda --model "$folder" --golden "$folder/golden.json")
            keep "golden-$name.txt" "${golden[@]}"
            keep "golden-$name-bf16.txt" "${golden[@]}" --activations bf16
        done
        ;;
    gemm)
        gemm=("$lab" bench gemm --shape "$shape" --rows "$rows" --json)
        keep gemm-bf16.jsonl "${gemm[@]}"
        keep gemm-fp8.jsonl "${gemm[@]}" --weights fp8
        # Our kernel at all numbers of rows: where does the library become faster?
        keep gemm-fp8-kernel.jsonl "${gemm[@]}" --weights fp8 --deterministic
        ;;
    experts)
        experts=("$lab" bench gemm --shape qwen3-30b-a3b --rows 1,16,64,256,1024 --json)
        keep gemm-moe-bf16.jsonl "${experts[@]}"
        keep gemm-moe-fp8.jsonl "${experts[@]}" --weights fp8
        ;;
    workloads)
        keep workloads-bf16.jsonl "$lab" bench workloads --shape "$shape"
        keep workloads-fp8.jsonl "$lab" bench workloads --shape "$shape" --weights fp8
        ;;
    *)
        echo "$part is none of: kernels check goldens gemm experts workloads" >&2
        exit 2
        ;;
    esac
done
echo "$failed failed"
[ "$failed" -eq 0 ]
