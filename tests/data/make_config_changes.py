"""Writes `config_changes.jsonl`: what transformers computes of a folder when one key of its config.json is removed or
changed. A line is `{"folder": name, "changes": [{"path": [keys], "value": new, "outcome": ...}]}`; `value` is absent
where the key is removed. The outcome is "same" (logits behind the prompt differ by less than 2e-5), `{"logits": [...]}`
of the tokens of `TOKENS`, or "unread": transformers raises an error, misses tensors, or leaves others unread than
before. In float32 with eager attention, as the goldens are.

    python tests/data/make_config_changes.py FOLDER ...
"""

import copy
import json
import pathlib
import sys
import tempfile

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

TOKENS = (0, 63, 127, 191, 255, 319)

# Keys that say nothing about the text model's arithmetic and that a changed value could stop from loading at all.
LEFT_ALONE = ("transformers_version", "torch_dtype", "dtype", "auto_map", "vision_config", "audio_config")

# Another value that is likely to be known.
OTHER_WORDS = {
    "silu": "gelu", "gelu": "silu", "relu2": "silu", "gelu_new": "relu", "gelu_pytorch_tanh": "gelu", "nope": "rope",
    "rope": "nope", "sigmoid": "softmax", "softmax": "sigmoid", "yarn": "linear", "llama3": "linear",
    "default": "linear", "dynamic": "linear", "attention": "mamba", "noaux_tc": "greedy",
    "greedy": "group_limited_greedy", "average": "sum", "sum": "average",
}

# Values of keys that are null or not written.
FOR_NULL = {
    "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "sliding_window": 7, "head_dim": 8, "q_lora_rank": 16,
    "attention_chunk_size": 16, "use_sliding_window": True,
}

# Keys of other families, added to those that do not know them.
FOREIGN = {
    "logit_scale": 0.5, "clip_qkv": 0.1, "use_qk_norm": True, "final_logit_softcapping": 5.0,
    "partial_rotary_factor": 0.5, "residual_multiplier": 0.5, "attention_bias": True, "sliding_window": 7,
    "mup_enabled": True,
}


def other_values(value):
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1] + ([value // 2] if value >= 2 else [])
    if isinstance(value, float):
        return [value * 1.25 if value else 0.5]
    if isinstance(value, str):
        return [OTHER_WORDS.get(value, value + "x")]
    if not isinstance(value, list) or not value:
        return []
    values = [value[:-1]]
    at = next((i for i in range(len(value) - 1) if value[i] != value[i + 1]), None)
    if at is not None:
        values.append(value[:at] + [value[at + 1], value[at]] + value[at + 2:])
    if all(type(item) in (int, float) for item in value):
        values.append([item * 2 for item in value])
    return values


def changes(config, known):
    """`(path, new value)`, or `(path,)` to remove a key. `known`: what transformers assumes of all keys it knows."""
    def walk(at, path):
        for key, value in at.items():
            if key in LEFT_ALONE:
                continue
            own = path + [key]
            yield (own,)
            if value is None and key in FOR_NULL:
                yield own, FOR_NULL[key]
            yield from ((own, other) for other in other_values(value))
            if isinstance(value, dict):
                yield from walk(value, own)

    yield from walk(config, [])
    outer = ["text_config"] if "text_config" in config else []
    written = config["text_config"] if outer else config
    of_library = set(transformers.PreTrainedConfig().to_dict()) | {"rope_parameters", "model_type"}
    for key, value in known.items():
        if key not in written and key not in of_library and not key.startswith("_"):
            others = [FOR_NULL[key]] if value is None and key in FOR_NULL else other_values(value)[:1]
            yield from ((outer + [key], other) for other in others)
    yield from ((outer + [key], value) for key, value in FOREIGN.items() if key not in written and key not in known)


def load(folder):
    named = json.loads((folder / "config.json").read_text()).get("architectures") or [""]
    last = None
    for auto in (AutoModelForCausalLM, AutoModelForImageTextToText, getattr(transformers, named[0], None)):
        try:
            return auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                        output_loading_info=True, trust_remote_code=False)
        except ValueError as error:
            last = error
            if "Unrecognized configuration class" not in str(error):
                break
    raise last


def logits_of(folder, prompt):
    """The last logits, and what loading left over; `None` if the folder is not read."""
    try:
        model, info = load(folder)
        if info["missing_keys"]:
            return None
        with torch.no_grad():
            logits = model(torch.tensor([prompt]), use_cache=False).logits[0, -1]
    except Exception:  # whatever a changed config leads to: it is not read
        return None
    return (logits, {what: len(keys) for what, keys in info.items()}) if logits.isfinite().all() else None


def record(folder):
    prompt = json.loads((folder / "golden.json").read_text())["prompt"]
    config = json.loads((folder / "config.json").read_text())
    unchanged = logits_of(folder, prompt)
    if unchanged is None:
        return None
    known = AutoConfig.from_pretrained(folder, trust_remote_code=False).get_text_config().to_dict()
    found = []
    with tempfile.TemporaryDirectory() as copied:
        copied = pathlib.Path(copied)
        for file in folder.iterdir():
            if file.name not in ("config.json", "golden.json"):
                (copied / file.name).symlink_to(file.resolve())
        for path, *value in changes(config, known):
            if "Infinity" in json.dumps(value):  # which JSON has not
                continue
            changed = copy.deepcopy(config)
            at = changed
            for key in path[:-1]:
                at = at[key]
            if value:
                at[path[-1]] = value[0]
            else:
                del at[path[-1]]
            (copied / "config.json").write_text(json.dumps(changed))
            computed = logits_of(copied, prompt)
            if computed is None or computed[1] != unchanged[1]:
                outcome = "unread"
            elif (computed[0] - unchanged[0]).abs().max() < 2e-5:
                outcome = "same"
            else:
                outcome = {"logits": [float(f"{computed[0][token]:.6g}") for token in TOKENS]}
            found.append({"path": path, **({"value": value[0]} if value else {}), "outcome": outcome})
    return {"folder": folder.name, "changes": found}


transformers.logging.set_verbosity_error()
torch.set_num_threads(1)
with (pathlib.Path(__file__).parent / "config_changes.jsonl").open("w") as file:
    for folder in sys.argv[1:]:
        of_folder = record(pathlib.Path(folder))
        if of_folder:
            file.write(json.dumps(of_folder) + "\n")
        else:
            print(f"{folder}: transformers does not read it", file=sys.stderr)
