"""Times updates of the bundled model on the CPU: from f32 tensors in memory, and from a folder in its own bf16.

    python cpu.py MODEL FOLDER      # FOLDER is made; ms of ten updates each
"""

import pathlib
import shutil
import struct
import sys
import json
import time

import numpy as np
import offshoot

model, folder = map(pathlib.Path, sys.argv[1:])
raw = (model / "model.safetensors").read_bytes()
end = 8 + struct.unpack("<Q", raw[:8])[0]
tensors = []
for name, entry in json.loads(raw[8:end]).items():
    if name != "__metadata__":
        first, last = entry["data_offsets"]
        bits = np.frombuffer(raw[end:][first:last], dtype=np.uint16).astype(np.uint32) << 16
        tensors.append((name, bits.view(np.float32).reshape(entry["shape"])))
folder.mkdir(exist_ok=True)
shutil.copy(model / "model.safetensors", folder)
llm = offshoot.LLM(str(model), device="cpu", threads=2, kv_memory=128)
for what, weights in (("f32 tensors in memory", tensors), ("a folder, bf16", str(folder))):
    took = []
    for _ in range(10):
        begun = time.perf_counter()
        llm.load_weights(weights, commit=True)
        took.append(round((time.perf_counter() - begun) * 1e3, 1))
    print(what, took)
