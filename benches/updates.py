#!/usr/bin/env python3
"""Times updates of the weights of a server on one GPU, and its sleep:
python3 benches/updates.py OFFSHOOT FOLDER --out OUT

Writes two folders of random bf16 weights of llama3-8b's shape below FOLDER (16 GB each) unless they are there, serves
the first by the binary OFFSHOOT on the first GPU, and updates it to the second and back in turn, each in the page
cache. Then: the first token of a group that waited during an update; the memory that the driver has while the server
sleeps; the same greedy text after a sleep and after updates to and fro. `--by` adds updates from torch, which plays
the trainer: `ipc` lends its tensors on the server's GPU by handles, `packed` passes them through one buffer there,
`nccl` broadcasts them from the second GPU; `python` loads the model in this process, in place of a server, from
tensors on the GPU. One JSON object a line, raw seconds in it. Needs numpy and nvidia-smi; `--by` needs torch, and
`python` the package.
"""

import argparse
import base64
import concurrent.futures
import ctypes
import datetime
import gc
import importlib.util
import json
import os
import pathlib
import pickle
import shutil
import socket
import subprocess
import threading
import time
import urllib.request

import numpy

LAYERS, HIDDEN, FEED_FORWARD, HEADS, KEY_HEADS, HEAD, VOCAB = 32, 4096, 14336, 32, 8, 128, 128256
PORT = 8731


def tensors():
    """Names and shapes of the model's tensors."""
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", (HIDDEN,)
        yield at + "self_attn.q_proj.weight", (HEADS * HEAD, HIDDEN)
        yield at + "self_attn.k_proj.weight", (KEY_HEADS * HEAD, HIDDEN)
        yield at + "self_attn.v_proj.weight", (KEY_HEADS * HEAD, HIDDEN)
        yield at + "self_attn.o_proj.weight", (HIDDEN, HEADS * HEAD)
        yield at + "post_attention_layernorm.weight", (HIDDEN,)
        yield at + "mlp.gate_proj.weight", (FEED_FORWARD, HIDDEN)
        yield at + "mlp.up_proj.weight", (FEED_FORWARD, HIDDEN)
        yield at + "mlp.down_proj.weight", (HIDDEN, FEED_FORWARD)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCAB, HIDDEN)


def write_model(folder, tokenizer, seed):
    """A folder of random weights of about 2^-6; their numbers repeat, which nothing here depends on."""
    folder.mkdir(parents=True)
    config = dict(
        architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=HIDDEN, intermediate_size=FEED_FORWARD,
        num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=KEY_HEADS, head_dim=HEAD,
        vocab_size=VOCAB, max_position_embeddings=8192, rms_norm_eps=1e-5, rope_theta=500000.0, hidden_act="silu",
        tie_word_embeddings=False, torch_dtype="bfloat16", bos_token_id=0, eos_token_id=1)
    (folder / "config.json").write_text(json.dumps(config))
    for file in tokenizer.glob("tokenizer*.json"):
        shutil.copy(file, folder)
    # bf16: sign, an exponent of 2^-8 to 2^-5, mantissa.
    bits = numpy.random.default_rng(seed).integers(0, 1 << 16, 1 << 26, dtype=numpy.uint16)
    numbers = (bits & 0x807F) | ((119 + ((bits >> 7) & 3)) << 7).astype(numpy.uint16)
    header, end = {}, 0
    for name, shape in tensors():
        size = 2 * int(numpy.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for at, (_, shape) in enumerate(tensors()):
            left, begin = int(numpy.prod(shape)), 4099 * at
            while left > 0:
                part = numbers[begin:begin + left]
                part.tofile(file)
                left, begin = left - len(part), 0
    (folder / "STABLE").touch()
    return end


def post(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}{path}", data or b"", {"Content-Type": "application/json"}, method="POST")
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.loads(answer.read())


def sample(ids, tokens, temperature=0.0, n=1):
    """The token ids of the first choice, and the versions of the weights that they were sampled under."""
    params = {"max_tokens": tokens, "min_tokens": tokens, "temperature": temperature, "n": n, "seed": 1}
    choice = post("/inference/v1/generate", {"token_ids": ids, "sampling_params": params})["choices"][0]
    return choice["token_ids"], choice.get("weight_versions")


class Trainer:
    """The tensors of a folder on a GPU, as torch has them, and ways to send them to the server."""

    def __init__(self, folder, device):
        import torch

        self.torch, self.device = torch, torch.device(device)
        file = folder / "model.safetensors"
        with open(file, "rb") as head:
            begin = 8 + int.from_bytes(head.read(8), "little")
        everything = numpy.memmap(file, numpy.uint16, "r", offset=begin)
        self.tensors, end = [], 0
        for name, shape in tensors():
            start, end = end, end + int(numpy.prod(shape))
            part = torch.from_numpy(everything[start:end].copy()).view(torch.bfloat16).view(shape)
            self.tensors.append((name, part.to(self.device)))

    def told(self, part=None):
        part = self.tensors if part is None else part
        return {"names": [name for name, _ in part], "dtype_names": ["bfloat16"] * len(part),
                "shapes": [list(tensor.shape) for _, tensor in part]}

    def handles(self, tensor):
        """What torch exports of a tensor, by the GPU's UUID."""
        from torch.multiprocessing.reductions import reduce_tensor

        return {str(self.torch.cuda.get_device_properties(self.device).uuid): reduce_tensor(tensor)[1]}

    def lend(self):
        post("/start_weight_update", {})
        pickled = pickle.dumps([self.handles(tensor) for _, tensor in self.tensors])
        post("/update_weights", {"update_info": {
            **self.told(), "ipc_handles_pickled": base64.b64encode(pickled).decode()}})
        post("/finish_weight_update", {})

    def pass_through(self, bytes_of_buffer=1 << 30):
        """Parts of the tensors in turn through one buffer."""
        torch = self.torch
        buffer = torch.empty(max(bytes_of_buffer, VOCAB * HIDDEN * 2), dtype=torch.uint8, device=self.device)
        pickled = base64.b64encode(pickle.dumps(self.handles(buffer))).decode()
        post("/start_weight_update", {})
        part, end = [], 0

        def send():
            torch.cuda.current_stream(self.device).synchronize()
            sizes = [tensor.nbytes for _, tensor in part]
            post("/update_weights", {"update_info": {
                **self.told(part), "ipc_handles_pickled": pickled, "tensor_sizes": sizes, "packed": True}})

        for name, tensor in self.tensors:
            if part and end + tensor.nbytes > len(buffer):
                send()
                part, end = [], 0
            buffer[end:end + tensor.nbytes].copy_(tensor.view(-1).view(torch.uint8))
            part.append((name, tensor))
            end += tensor.nbytes
        send()
        post("/finish_weight_update", {})

    def join(self):
        """Meets the server by a TCPStore, as `StatelessProcessGroup` does, in a communicator of NCCL of two."""
        torch = self.torch
        torch.cuda.set_device(self.device)
        torch.cuda.current_stream().synchronize()
        self.nccl = ctypes.CDLL(nccl_of_torch())
        uid, self.comm = ncclUniqueId(), ctypes.c_void_p()
        self.check(self.nccl.ncclGetUniqueId(ctypes.byref(uid)))
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        self.store = torch.distributed.TCPStore(
            "127.0.0.1", port, world_size=2, is_master=True, timeout=datetime.timedelta(seconds=60),
            wait_for_workers=False, use_libuv=False, master_listen_fd=listener.detach())
        self.store.set("broadcast_from/0/0", pickle.dumps(uid, protocol=4))
        init = {"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1, "world_size": 2, "packed": True}
        with concurrent.futures.ThreadPoolExecutor() as pool:
            answer = pool.submit(post, "/init_weight_transfer_engine", {"init_info": init})
            self.check(self.nccl.ncclCommInitRank(ctypes.byref(self.comm), 2, uid, 0))
            one = torch.ones(1, device=self.device)
            at = ctypes.c_void_p(one.data_ptr())
            self.check(self.nccl.ncclAllReduce(at, at, ctypes.c_size_t(1), 7, 0, self.comm, self.stream()))
            answer.result()
            torch.cuda.synchronize()

    def broadcast(self, bytes_of_buffer=1 << 30):
        torch = self.torch
        post("/start_weight_update", {})
        with concurrent.futures.ThreadPoolExecutor() as pool:
            answer = pool.submit(post, "/update_weights", {"update_info": self.told()})
            part, end = [], 0
            for at, (_, tensor) in enumerate(self.tensors):
                part.append(tensor.view(-1).view(torch.uint8))
                end += tensor.nbytes
                if end > bytes_of_buffer or at + 1 == len(self.tensors):
                    block = torch.cat(part)
                    address = ctypes.c_void_p(block.data_ptr())
                    self.check(self.nccl.ncclBroadcast(
                        address, address, ctypes.c_size_t(end), 1, 0, self.comm, self.stream()))
                    torch.cuda.current_stream().synchronize()
                    part, end = [], 0
            answer.result()
        post("/finish_weight_update", {})

    def stream(self):
        return ctypes.c_void_p(self.torch.cuda.current_stream().cuda_stream)

    def check(self, status):
        assert status == 0, f"NCCL says {status}"


class ncclUniqueId(ctypes.Structure):  # noqa: N801 - NCCL's name, by which the server knows its pickle
    _fields_ = [("internal", ctypes.c_byte * 128)]


def updates_in_process(folders, say):
    """Updates of a model in this process from tensors of torch on its GPU."""
    import offshoot

    trainer = Trainer(folders[1], "cuda:0")
    seconds, llm = timed(lambda: offshoot.LLM(folders[0], device="cuda:0", kv_memory=20000))
    say("model loaded", seconds=seconds)
    params = offshoot.SamplingParams(max_tokens=32, min_tokens=32, temperature=0.0, detokenize=False)
    prompt = {"prompt_token_ids": [2 + at % 1000 for at in range(256)]}

    def text():
        return list(llm.generate([prompt], params, use_tqdm=False)[0].outputs[0].token_ids)

    llm.load_weights(folders[1])
    expected = text()
    for turn in range(4):
        llm.load_weights(folders[0])
        seconds, _ = timed(lambda: llm.load_weights(trainer.tensors, commit=True))
        is_same = text() == expected
        say("update from this process's tensors", turn=turn, seconds=seconds, text_is_that_of_the_folder=is_same)
    for turn in range(2):
        llm.load_weights(folders[0])

        def one_by_one():
            for name, tensor in trainer.tensors:
                llm.load_weights([(name, tensor)])
            llm.reset_prefix_cache()

        seconds, _ = timed(one_by_one)
        say("update one tensor a call", turn=turn, seconds=seconds, text_is_that_of_the_folder=text() == expected)


def nccl_of_torch():
    """The file of the NCCL that torch brings or finds: NCCL refuses a communicator of two versions."""
    import torch  # noqa: F401 - it may load NCCL

    place = importlib.util.find_spec("nvidia.nccl")
    for folder in list(place.submodule_search_locations) if place else []:
        if (file := pathlib.Path(folder) / "lib" / "libnccl.so.2").is_file():
            return str(file)
    if not (found := [line.split()[-1] for line in open("/proc/self/maps") if "/libnccl.so" in line]):
        ctypes.CDLL("libnccl.so.2")
        found = [line.split()[-1] for line in open("/proc/self/maps") if "/libnccl.so" in line]
    return found[0]


def used():
    """MiB of the server's GPU that are in use."""
    number = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    query = ["nvidia-smi", f"--id={number}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout)


def timed(act):
    began = time.perf_counter()
    result = act()
    return time.perf_counter() - began, result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("offshoot", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--tokenizer", type=pathlib.Path, default=pathlib.Path("tasks/models/demo"))
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--by", nargs="*", choices=["ipc", "packed", "nccl", "python"], default=[])
    parser.add_argument("--kv-memory", type=int, metavar="MIB", help="as of `offshoot serve`; `--by` needs the rest")
    args = parser.parse_args()
    out = open(args.out, "w")

    def say(what, **fields):
        print(json.dumps({"what": what, **fields}), file=out, flush=True)

    folders = [args.folder / f"step_{number}" for number in (1, 2)]
    for seed, folder in enumerate(folders):
        if (folder / "STABLE").is_file():
            continue
        seconds, size = timed(lambda: write_model(folder, args.tokenizer, seed))
        say("model written", folder=folder.name, bytes=size, seconds=seconds)
    if "python" in args.by:
        return updates_in_process(folders, say)
    before = used()
    log = open(args.out.with_suffix(".log"), "w")
    command = [args.offshoot, "serve", "--model", folders[0], "--rollout", "--port", str(PORT), "--device", "cuda:0"]
    if args.kv_memory:
        command += ["--kv-memory", args.kv_memory]
    began = time.perf_counter()
    nccl = {"OFFSHOOT_NCCL": nccl_of_torch()} if "nccl" in args.by else {}
    server = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log, env={**os.environ, **nccl})
    try:
        while server.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=1).read()
                break
            except OSError:
                time.sleep(0.2)
        say("server started", seconds=time.perf_counter() - began, memory_mib=used() - before)
        ids = [2 + at % 1000 for at in range(256)]
        first, _ = sample(ids, 32)

        def update(folder):
            return post("/update_weights", {"weight_dir": str(folder)})

        for turn in range(6):
            seconds, _ = timed(lambda: update(folders[(turn + 1) % 2]))
            text, _ = sample(ids, 32)
            say("update from a folder", turn=turn, seconds=seconds, text_is_first=text == first)

        for length in (256, 2048):
            prompt = [2 + (7 * at) % 1000 for at in range(length)]
            plain = [timed(lambda: sample(prompt[:-1] + [turn], 1, 1.0, 8))[0] for turn in range(3, 6)]
            post("/pause?mode=keep")
            done = []
            waiting = threading.Thread(target=lambda: done.append((sample(prompt, 1, 1.0, 8), time.perf_counter())))
            waiting.start()
            time.sleep(0.2)
            update(folders[1])
            resumed = time.perf_counter()
            post("/resume")
            waiting.join()
            say("first tokens of a group of 8 that waited", prompt=length, seconds=done[0][1] - resumed,
                seconds_without_update=plain)
            update(folders[0])

        for level in (1, 1, 1, 2):
            taken = used() - before
            asleep_s, _ = timed(lambda: post(f"/sleep?level={level}"))
            asleep = used() - before
            awake_s, _ = timed(lambda: post("/wake_up?tags=weights"))
            if level == 2:
                update(folders[0])
            kv_s, _ = timed(lambda: post("/wake_up?tags=kv_cache"))
            text, _ = sample(ids, 32)
            say("sleep", level=level, seconds=asleep_s, wake_seconds=awake_s + kv_s, memory_mib=taken,
                memory_mib_asleep=asleep, given_back=1 - asleep / taken, memory_mib_after=used() - before,
                text_is_first=text == first)
        update(folders[1])
        expected, _ = sample(ids, 32)

        def updates_by(way, trainer, send, turns=5):
            for turn in range(turns):
                update(folders[0])
                free, _ = trainer.torch.cuda.mem_get_info(0)
                seconds, _ = timed(send)
                text, _ = sample(ids, 32)
                say(f"update by {way}", turn=turn, seconds=seconds, text_is_that_of_the_folder=text == expected,
                    free_bytes=free)

        if {"ipc", "packed"} & set(args.by):
            trainer = Trainer(folders[1], "cuda:0")
            if "ipc" in args.by:
                updates_by("handles", trainer, trainer.lend)
            if "packed" in args.by:
                updates_by("handles of one buffer", trainer, trainer.pass_through)
            cuda, trainer = trainer.torch.cuda, None
            gc.collect()
            cuda.ipc_collect()
            # Nothing, if the server has told torch that nobody uses it any more.
            say("the trainer's tensors are dropped", allocated_bytes=cuda.memory_allocated(0))
            cuda.empty_cache()
        if "nccl" in args.by:
            trainer = Trainer(folders[1], "cuda:1")
            seconds, _ = timed(trainer.join)
            say("the trainer joined", seconds=seconds)
            updates_by("NCCL", trainer, trainer.broadcast)
    finally:
        server.terminate()
        server.wait()
        say("end", code=server.returncode)


if __name__ == "__main__":
    main()
