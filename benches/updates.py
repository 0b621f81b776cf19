#!/usr/bin/env python3
"""Times updates of the weights of a server on one GPU, and its sleep:
python3 benches/updates.py OFFSHOOT FOLDER --out OUT

Writes two folders of random bf16 weights of llama3-8b's shape below FOLDER (16 GB each), serves the first by the binary
OFFSHOOT, and updates it to the second and back in turn, each in the page cache. Then: the first token of a group that
waited during an update; the memory that the driver has while the server sleeps; the same greedy text after a sleep and
after updates to and fro. One JSON object a line, raw seconds in it. Needs numpy and nvidia-smi.
"""

import argparse
import json
import os
import pathlib
import shutil
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


def used():
    """MiB of the server's GPU that are in use."""
    number = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
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
    args = parser.parse_args()
    out = open(args.out, "w")

    def say(what, **fields):
        print(json.dumps({"what": what, **fields}), file=out, flush=True)

    folders = [args.folder / f"step_{number}" for number in (1, 2)]
    for seed, folder in enumerate(folders):
        seconds, size = timed(lambda: write_model(folder, args.tokenizer, seed))
        say("model written", folder=folder.name, bytes=size, seconds=seconds)
    before = used()
    log = open(args.out.with_suffix(".log"), "w")
    command = [args.offshoot, "serve", "--model", folders[0], "--rollout", "--port", str(PORT), "--device", "cuda"]
    began = time.perf_counter()
    server = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log)
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

        for level in (1, 2):
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
    finally:
        server.terminate()
        server.wait()
        say("end", code=server.returncode)


if __name__ == "__main__":
    main()
