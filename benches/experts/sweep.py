"""Times kernels/experts/expert_linear_wgmma.cu of one or more source trees in turn on a Hopper GPU, and checks their
results: python3 benches/experts/sweep.py OUT NAME=KERNELS ... Needs nvcc 13, PyTorch and CuPy.

Grouped products of qwen3-30b-a3b: rows choose 8 of 128 experts, evenly at random or (`skewed`) by popularities of which
the logarithms vary with a standard deviation of 0.5. A line of OUT/sweep.tsv: name, routing with the most places of an
expert, rows, microseconds of `up` with its gate, of `down`, and of both in turn (medians of three rounds in turn, each
the median of replays of a CUDA graph), the spread of the last over the rounds, and the largest relative error.
With ONCE=ROWS each kernel is launched once, for a profiler.
"""

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import cupy
import torch

EXPERTS, CHOSEN, WIDTH, EXPERT_WIDTH = 128, 8, 2048, 768
ROWS = [16, 64, 256, 512, 1024, 1280, 2560, 8192]
# As `ExpertTiles` of crates/cuda/src/compile/elements.rs: warpgroups with the one that copies; more shared memory than
# some trees ask for does no harm.
THREADS, SHARED = {64: 384, 192: 512}, {64: 9 * 192 * 128 + 1024, 192: 4 * 384 * 128 + 3 * 2 * 4096 + 1024}


def compile_one(task):
    kernels, cap, gated, cubin = task
    flags = ["-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-Xptxas", "-v", "-I", kernels]
    defines = ["-DELEMENT=bf16", f"-DCAP={cap}", f"-DGATED={gated}"]
    source = os.path.join(kernels, "experts", "expert_linear_wgmma.cu")
    done = subprocess.run(["nvcc", "-cubin", *flags, *defines, "-o", cubin, source], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return " ".join(line for line in done.stderr.splitlines() if "spill" in line or "Used" in line)


class Kernel:
    """The kernels of one source tree, by places of a tile and gate."""

    def __init__(self, name, cubins):
        self.name, self.functions = name, {}
        for (cap, gated), cubin in cubins.items():
            function = cupy.RawModule(path=cubin).get_function("expert_linear_wgmma")
            function.max_dynamic_shared_size_bytes = SHARED[cap]
            self.functions[cap, gated] = function

    def launch(self, gated, out, x, weights, routes, gathers):
        cap = 64 if routes[2] <= 64 else 192
        outputs, inner = (2 * EXPERT_WIDTH, WIDTH) if gated else (WIDTH, EXPERT_WIDTH)
        pointers = [cupy.uint64(t.data_ptr()) for t in (out, x, weights, weights, routes[0], routes[1])]
        numbers = [cupy.uint32(n) for n in (EXPERTS, outputs, inner, gathers, 0, 0, 0)]
        blocks = torch.cuda.get_device_properties(0).multi_processor_count
        self.functions[cap, gated]((blocks,), (THREADS[cap],), (*pointers, *numbers), shared_mem=SHARED[cap])


def load(trees, out):
    """Compiles the kernels of all trees at once."""
    folder = tempfile.mkdtemp()
    tasks = []
    for tree in trees:
        name, kernels = tree.split("=", 1)
        for cap, gated in itertools.product(THREADS, (0, 1)):
            tasks.append((name, cap, gated, kernels, os.path.join(folder, f"{name}-{cap}-{gated}.cubin")))
    with ThreadPoolExecutor(os.cpu_count()) as pool, open(os.path.join(out, "build.txt"), "w") as log:
        words = pool.map(compile_one, [(kernels, cap, gated, cubin) for _, cap, gated, kernels, cubin in tasks])
        for (name, cap, gated, _, _), told in zip(tasks, words):
            print(name, cap, gated, told, file=log)
    names = dict.fromkeys(task[0] for task in tasks)
    return [Kernel(name, {(cap, gated): cubin for n, cap, gated, _, cubin in tasks if n == name}) for name in names]


def panels(weights, alternates):
    """[experts, outputs, inner] as kernels/experts/panels.cuh has it."""
    experts, outputs, inner = weights.shape
    if alternates:
        row = torch.arange(outputs)
        weights = weights[:, row // 16 * 8 + row % 8 + row // 8 % 2 * (outputs // 2)]
    cut = weights.view(experts, outputs // 64, 64, inner // 64, 8, 8).permute(0, 1, 3, 2, 4, 5).contiguous()
    chunks = torch.arange(8)[None, :] ^ torch.arange(64)[:, None] % 8
    index = chunks.to(cut.device)[None, None, None, :, :, None].expand(experts, outputs // 64, inner // 64, 64, 8, 8)
    return torch.gather(cut, 4, index).contiguous()


def routing(rows, skewed):
    """The first place of each expert, the row of each place, and the number of rows."""
    scores = torch.rand(rows, EXPERTS, device="cuda").log().neg().log().neg()
    if skewed:
        scores += torch.randn(EXPERTS, device="cuda") * 0.5
    chosen = scores.topk(CHOSEN, dim=1).indices.flatten()
    order = torch.sort(chosen, stable=True).indices
    firsts = torch.zeros(EXPERTS + 1, dtype=torch.int32, device="cuda")
    firsts[1:] = torch.bincount(chosen, minlength=EXPERTS).cumsum(0)
    return firsts, (order // CHOSEN).to(torch.int32), rows


def results_of(x, up, down, routes):
    """What both products should give, from sums in f32."""
    places, firsts = routes[2] * CHOSEN, routes[0].tolist()
    middle, out = (torch.empty(places, width, device="cuda") for width in (EXPERT_WIDTH, WIDTH))
    for expert in range(EXPERTS):
        own = slice(firsts[expert], firsts[expert + 1])
        both = x[routes[1][own].long()].float() @ up[expert].float().T
        middle[own] = torch.nn.functional.silu(both[:, :EXPERT_WIDTH]) * both[:, EXPERT_WIDTH:]
        out[own] = middle[own].bfloat16().float() @ down[expert].float().T
    return middle, out


def time_of(stream, launch, turns=4):
    """Median microseconds of one call."""
    with stream:
        launch()
        stream.synchronize()
        stream.begin_capture()
        for _ in range(turns):
            launch()
        graph = stream.end_capture()
        times = []
        for _ in range(9):
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            begin.record(stream)
            graph.launch(stream)
            end.record(stream)
            end.synchronize()
            times.append(cupy.cuda.get_elapsed_time(begin, end) * 1e3 / turns)
    return statistics.median(times[2:])


def main():
    out, once = sys.argv[1], os.environ.get("ONCE")
    os.makedirs(out, exist_ok=True)
    kernels = load(sys.argv[2:], out)
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = False

    def matrices(outputs, inner):
        return torch.randn(EXPERTS, outputs, inner, device="cuda", dtype=torch.bfloat16) * 0.03

    up, down = matrices(2 * EXPERT_WIDTH, WIDTH), matrices(WIDTH, EXPERT_WIDTH)
    up_panels, down_panels = panels(up, True), panels(down, False)
    stream = cupy.cuda.Stream(non_blocking=True)
    table = open(os.path.join(out, "sweep.tsv"), "a")
    heads = "name, routing, rows, up us, down us, both us, spread us, error"
    print(f"# {torch.cuda.get_device_name(0)}: {heads}", file=table)
    cases = [(rows, False) for rows in ROWS] + [(rows, True) for rows in (1024, 2560)]
    for rows, skewed in [(int(once), False)] if once else cases:
        routes = routing(rows, skewed)
        most = int((routes[0][1:] - routes[0][:-1]).max())
        x = torch.randn(rows, WIDTH, device="cuda", dtype=torch.bfloat16)
        expected = results_of(x, up, down, routes)
        middle = expected[0].bfloat16()
        h, y = (torch.empty_like(e, dtype=torch.bfloat16) for e in expected)
        times = {kernel.name: ([], [], [], []) for kernel in kernels}
        for _ in range(1 if once else 3):
            for kernel in kernels:

                def first():
                    kernel.launch(1, h, x, up_panels, routes, 1)

                def second():
                    kernel.launch(0, y, middle, down_panels, routes, 0)

                def both():
                    first()
                    second()

                h.fill_(float("nan"))
                y.fill_(float("nan"))
                torch.cuda.synchronize()
                if once:
                    with stream:
                        both()
                    stream.synchronize()
                    continue
                own = times[kernel.name]
                for i, op in enumerate((first, second, both)):
                    own[i].append(time_of(stream, op))
                errors = [((o.float() - e).norm() / e.norm()).item() for o, e in zip((h, y), expected)]
                own[3].append(max(errors))
        for name, own in times.items():
            if own[0]:
                medians = [f"{statistics.median(t):.1f}" for t in own[:3]]
                words = [name, f"{'skewed' if skewed else 'even'}<={most}", str(rows), *medians]
                words += [f"{max(own[2]) - min(own[2]):.1f}", f"{max(own[3]):.1e}"]
                print("\t".join(words), file=table, flush=True)


main()
