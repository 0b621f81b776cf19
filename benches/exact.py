"""What Offshoot records of sampled tokens, beside what transformers computes for the same tokens. Needs offshoot, torch
and transformers.

    exact.py OUT                          # the bundled model on the bundled word problems and documents
    OFFSHOOT_CPU=avx2 exact.py OUT        # on another path of the CPU

Both compute in f32, from an f32 copy of the model's folder. Offshoot samples; transformers then computes the logits of
prompt and sample (eager attention; the prompt once, each sample at once) and puts them through its own processors in
Offshoot's order: repetition penalty, temperature, top-k, top-p, min-p. Compared are the log-probabilities of both
modes, kept sets and entropies; and `LLM.rescore` with the samples' own records, bit by bit.

Differences beyond `TOLERANCE` are counted, and the model is computed in f64 there, which says whose rounding it is. The
smallest kept score, a logit and often that of a very unlikely token, is compared without a bound. Of some samples the
records are also computed by transformers' processors from Offshoot's own log-probabilities of all tokens, so that only
the sampler is compared: a difference beyond `TOLERANCE` is a fault there, as is one of `rescore` in any bit.

Kept sets may differ in tokens within `TOLERANCE` of the border of a filter: those are counted apart, and their
log-probability is compared with that of transformers over Offshoot's set. Any other difference of a set is a fault.

OUT gets `summary.json`, a row for each setting, and `differences.jsonl`, a line for each difference beyond the
tolerance, kept set that differs, and fault.
"""

import argparse
import dataclasses
import functools
import json
import math
import os
import pathlib
import platform
import shutil
import sys
import tempfile
import time

import torch
import transformers
from transformers.generation import logits_process
from transformers.models.llama import modeling_llama as llama

import offshoot
from offshoot import LLM, SamplingParams

ROOT = pathlib.Path(__file__).resolve().parents[1]
#: Of log-probabilities, entropies and the border of top-k and min-p, in nats; of top-p's, as a probability.
TOLERANCE = 1e-5
FILTERS = {"top_k": 20, "top_p": 0.95, "min_p": 0.1}
#: What is measured of each token, and of which a difference can be a fault.
QUANTITIES = ("raw", "processed", "entropy", "lowest")
BOUNDED = QUANTITIES[:3]


def settings():
    """What is sampled with, by name: each filter alone, none, all, and all with a repetition penalty."""
    filters = {"none": {}, **{name: {name: value} for name, value in FILTERS.items()}, "all": FILTERS,
               "all, repetition": {**FILTERS, "repetition_penalty": 1.2}}
    return {f"{temperature}, {name}": {"temperature": temperature, **given}
            for temperature in (1.0, 0.6) for name, given in filters.items()}


def f32_copy(folder, to):
    """A copy of a model's folder with its weights in f32."""
    shutil.copytree(folder, to, dirs_exist_ok=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.save_pretrained(to)
    return to


class Reference:
    """A model in transformers, with eager attention."""

    def __init__(self, folder, dtype=torch.float32):
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager").eval()
        #: By prompt: its keys and values, and the logits in the place of the next token.
        self.prompts = {}

    @property
    def vocabulary(self):
        return self.model.config.vocab_size

    @torch.inference_mode()
    def logits(self, prompt, sample):
        """The logits in the place of each of a sample's tokens: [tokens, vocabulary]."""
        if tuple(prompt) not in self.prompts:
            made = self.model(torch.tensor([prompt]), use_cache=True)
            self.prompts[tuple(prompt)] = made.past_key_values, made.logits[0, -1:]
        cache, first = self.prompts[tuple(prompt)]
        if len(sample) == 1:
            return first
        made = self.model(torch.tensor([sample[:-1]]), past_key_values=cache, use_cache=True)
        cache.crop(-(len(sample) - 1))
        return torch.cat([first, made.logits[0]])

    @torch.inference_mode()
    def at_once(self, prompt, sample):
        """The same logits, by one call for prompt and sample."""
        return self.model(torch.tensor([prompt + sample[:-1]]), use_cache=False).logits[0, len(prompt) - 1:]


class Exact(Reference):
    """A Llama in f64 throughout: transformers itself computes norms, angles and softmax in f32 whatever the weights'
    dtype. It says whose rounding a difference between two f32 computations is."""

    def __init__(self, folder):
        super().__init__(folder, torch.float64)
        config = self.model.config
        self.width = config.hidden_size // config.num_attention_heads
        self.theta = json.loads((pathlib.Path(folder) / "config.json").read_text()).get("rope_theta", 10000.0)
        rotary = self.model.model.rotary_emb
        rotary.forward = self.angles
        for module in self.model.modules():
            if isinstance(module, llama.LlamaRMSNorm):
                module.forward = functools.partial(self.norm, module)

    def angles(self, x, position_ids):
        each = self.theta ** (-torch.arange(0, self.width, 2, dtype=torch.float64) / self.width)
        angles = position_ids[..., None].double() * each
        both = torch.cat([angles, angles], dim=-1)
        return both.cos(), both.sin()

    @staticmethod
    def norm(module, x):
        return module.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)

    def logits(self, prompt, sample):
        softmax = torch.nn.functional.softmax
        torch.nn.functional.softmax = lambda x, dim, dtype: softmax(x, dim=dim)
        try:
            return super().logits(prompt, sample)
        finally:
            torch.nn.functional.softmax = softmax


def penalised(logits, prompt, sample, given):
    """The scores before the temperature."""
    penalty = given.get("repetition_penalty", 1.0)
    if penalty == 1.0:
        return logits
    process = logits_process.RepetitionPenaltyLogitsProcessor(penalty)
    rows = [process(torch.tensor([prompt + sample[:at]]), row[None].clone()) for at, row in enumerate(logits)]
    return torch.cat(rows)


def filtered(scores, given):
    """The scores after temperature and filters: -inf where a token is not kept. `given`: as `SamplingParams`
    name it."""
    warpers = [("temperature", logits_process.TemperatureLogitsWarper), ("top_k", logits_process.TopKLogitsWarper),
               ("top_p", logits_process.TopPLogitsWarper), ("min_p", logits_process.MinPLogitsWarper)]
    for name, warper in warpers:
        if name in given:
            scores = warper(given[name])(None, scores)
    return scores


def from_border(scores, kept, token, given):
    """How far a token is from the border of the filter that is nearest to it. `scores`: of one place, over the
    temperature, [vocabulary]; `kept`: those that transformers keeps. Top-p: in probability; else in nats."""
    scores = scores.double()
    order = torch.sort(scores, descending=True, stable=True).indices
    # The border lies between the kept tokens and the others: a token's distance is that to the other side.
    other = scores[~kept].max() if kept[token] else scores[kept].min()
    found = [abs(scores[token] - other)]
    if "top_k" in given:
        order = order[:given["top_k"]]
    if "top_p" in given and token in order:
        before = scores[order].softmax(0).cumsum(0) - scores[order].softmax(0)
        found.append(abs(before[order == token][0] - given["top_p"]))
    if "min_p" in given:
        found.append(abs(scores[token] - scores.max() - math.log(given["min_p"])))
    return float(min(found))


def kept_tokens(output, vocabulary):
    """The kept sets of a sample: [tokens, vocabulary], bool."""
    kept = torch.zeros(len(output.token_ids), vocabulary, dtype=torch.bool)
    for at, ids in enumerate(output.kept.ids):
        kept[at, ids] = True
    return kept


def expected(logits, given, prompt, sample, own):
    """What records should hold, from logits [tokens, vocabulary]: a list of each quantity, one a token; the scores over
    the temperature, and which are kept. `own`: the kept sets of the sample's records."""
    scores = penalised(logits, prompt, sample, given)
    tempered = scores / given["temperature"]
    result = filtered(scores, given)
    kept = result > -math.inf
    places = torch.arange(len(sample))
    # Where the sets differ, the distribution over the sample's own set.
    over_own = tempered.masked_fill(~own, -math.inf).log_softmax(1)
    drawn = torch.where((own == kept).all(1)[:, None], result.log_softmax(1), over_own)[places, sample]
    logprobs = logits.log_softmax(1)
    values = {"raw": logprobs[places, sample], "processed": drawn, "entropy": -(logprobs.exp() * logprobs).sum(1),
              "lowest": scores.masked_fill(~own, math.inf).amin(1)}
    return {name: value.double() for name, value in values.items()}, tempered, kept


def recorded(raw, processed):
    """The same quantities of a sample's records in both modes."""
    def taken(output):
        return [row[token].logprob for row, token in zip(output.logprobs, output.token_ids)]

    values = {"raw": taken(raw), "processed": taken(processed), "entropy": processed.entropies,
              "lowest": processed.kept.lowest}
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}


def kept_apart(own, kept, tempered, given):
    """The places where kept sets differ."""
    for at in (own != kept).any(1).nonzero().flatten().tolist():
        tokens = (own[at] != kept[at]).nonzero().flatten().tolist()
        border = max(from_border(tempered[at], kept[at], token, given) for token in tokens)
        yield {**({} if border <= TOLERANCE else {"fault": "kept"}), "place": at, "offshoot": int(own[at].sum()),
               "transformers": int(kept[at].sum()), "tokens": tokens, "from_border": border}


def own_logprobs(output, vocabulary):
    """The model's log-probabilities of all tokens, as a sample's records list them: [tokens, vocabulary]."""
    made = torch.full((len(output.token_ids), vocabulary), -math.inf)
    for at, row in enumerate(output.logprobs):
        made[at, list(row)] = torch.tensor([each.logprob for each in row.values()])
    return made


def records(output):
    """All that is recorded of a sample."""
    return output.token_ids, output.logprobs, output.cumulative_logprob, output.kept, output.entropies


class Tally:
    """Differences by quantity."""

    def __init__(self):
        self.values = {}

    def add(self, name, found, wanted):
        self.values.setdefault(name, []).extend((found - wanted).abs().tolist())

    def row(self):
        return {name: {"max": max(values), "mean": sum(values) / len(values), "tokens": len(values),
                       "beyond": sum(not value <= TOLERANCE for value in values)}
                for name, values in self.values.items()}


def run(llm, reference, exact, given, prompts, samples, max_tokens, seed, listed=0):
    """A setting: its row, and the lines of what differs. `prompts`: by name; `exact`: the model in f64, which samples
    with a difference beyond the tolerance are computed by, too, or None. The first samples of `listed` prompts are
    also put through transformers' processors from Offshoot's own log-probabilities of all tokens; and, with `exact`,
    all their tokens are compared with f64, and transformers with itself where prompt and sample are one call."""
    def params(mode, logprobs=0):
        return SamplingParams(n=samples, max_tokens=max_tokens, logprobs=logprobs, logprobs_mode=f"{mode}_logprobs",
                              return_kept="ids", return_entropy=True, seed=seed, **given)

    vocabulary = reference.vocabulary
    raws, draws = (llm.generate(list(prompts.values()), params(mode), use_tqdm=False) for mode in ("raw", "processed"))
    # Scored anew, not read from what is cached of the samples; each from the samples of the other mode.
    llm.reset_prefix_cache()
    again_raw, again_drawn = llm.rescore(draws, params("raw")), llm.rescore(raws, params("processed"))
    row = {"tokens": 0, "cut": 0, "kept_at_border": 0, "faults": 0}
    tally, lines = Tally(), []
    for number, (name, raw, drawn) in enumerate(zip(prompts, raws, draws)):
        prompt = list(drawn.prompt_token_ids)
        is_listed = listed > 0 and number % -(-len(prompts) // listed) == 0
        for at, (one, other) in enumerate(zip(raw.outputs, drawn.outputs)):
            sample, place = list(other.token_ids), {"prompt": name, "sample": at}
            if list(one.token_ids) != sample:
                lines.append({"fault": "the modes drew other tokens", **place})
                continue
            for sampled, scored in ((one, again_raw[number].outputs[at]), (other, again_drawn[number].outputs[at])):
                if records(sampled) != records(scored):
                    lines.append({"fault": "rescored", **place})
            row["tokens"] += len(sample)
            row["cut"] += sum(count < vocabulary for count in other.kept.counts)
            own, found = kept_tokens(other, vocabulary), recorded(one, other)
            wanted, tempered, kept = expected(reference.logits(prompt, sample), given, prompt, sample, own)
            lines += [{**place, **line} for line in kept_apart(own, kept, tempered, given)]
            beyond = [(quantity, token) for quantity in BOUNDED
                      for token in (~((found[quantity] - wanted[quantity]).abs() <= TOLERANCE)).nonzero().flatten()]
            for quantity in QUANTITIES:
                tally.add(quantity, found[quantity], wanted[quantity])
            if exact is not None and (beyond or is_listed and at == 0):
                precise, _, _ = expected(exact.logits(prompt, sample), given, prompt, sample, own)
                if is_listed and at == 0:
                    at_once, _, _ = expected(reference.at_once(prompt, sample), given, prompt, sample, own)
                    for quantity in BOUNDED:
                        tally.add(f"{quantity}, offshoot from f64", found[quantity], precise[quantity])
                        tally.add(f"{quantity}, transformers from f64", wanted[quantity], precise[quantity])
                        tally.add(f"{quantity}, transformers at once", wanted[quantity], at_once[quantity])
            for quantity, token in beyond:
                line = {"beyond": quantity, **place, "place": int(token), "offshoot": float(found[quantity][token]),
                        "transformers": float(wanted[quantity][token])}
                lines.append(line if exact is None else {**line, "f64": float(precise[quantity][token])})
        # A repetition penalty depends on the logits themselves, which log-probabilities do not tell.
        if is_listed and "repetition_penalty" not in given:
            first = dataclasses.replace(raw, outputs=raw.outputs[:1])
            (full,) = llm.rescore([first], params("raw", vocabulary))
            other, sample = drawn.outputs[0], list(drawn.outputs[0].token_ids)
            own, found = kept_tokens(other, vocabulary), recorded(full.outputs[0], other)
            wanted, tempered, kept = expected(own_logprobs(full.outputs[0], vocabulary), given, prompt, sample, own)
            lines += [{"of": "own logits", "prompt": name, **line} for line in kept_apart(own, kept, tempered, given)]
            for quantity in ("processed", "entropy"):
                tally.add(f"{quantity}, own logits", found[quantity], wanted[quantity])
                if not bool(((found[quantity] - wanted[quantity]).abs() <= TOLERANCE).all()):
                    lines.append({"fault": f"{quantity}, own logits", "prompt": name})
    row["faults"] = sum("fault" in line for line in lines)
    row["kept_at_border"] = sum("from_border" in line and "fault" not in line for line in lines)
    return {**row, **tally.row()}, lines


def bundled_prompts(words, facts):
    """The first word problems, each after the examples, and the first documents of 500 tokens with a question."""
    tasks = ROOT / "tasks"
    shared = (tasks / "words_fewshot.txt").read_text()
    problems = [json.loads(line) for line in (tasks / "words.jsonl").read_text().splitlines()[:words]]
    prompts = {each["id"]: f"{shared}Question: {each['question']}\nAnswer:" for each in problems}
    documents = [json.loads(line) for line in (tasks / "facts.jsonl").read_text().splitlines()]
    for each in [each for each in documents if each["length"] == 500][:facts]:
        prompts[each["id"]] = f"{each['document']}\n\nQuestion: {each['questions'][0]['question']}\nAnswer:"
    return prompts


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--model", default=ROOT / "tasks" / "models" / "demo", help="a folder of safetensors")
    parser.add_argument("--words", type=int, default=12, help="word problems")
    parser.add_argument("--facts", type=int, default=6, help="documents of 500 tokens")
    parser.add_argument("--samples", type=int, default=2, help="of each prompt")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--listed", type=int, default=6, help="prompts that are compared by all tokens, and with f64")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    prompts = bundled_prompts(options.words, options.facts)
    rows, lines, began = {}, [], time.time()
    with tempfile.TemporaryDirectory() as folder:
        f32_copy(options.model, folder)
        reference, exact = Reference(folder), Exact(folder)
        with LLM(folder, device="cpu", kv_memory=512) as llm:
            device = llm._engine.facts()["device"]
            for seed, (name, given) in enumerate(settings().items(), start=1):
                row, own = run(llm, reference, exact, given, prompts, options.samples, options.max_tokens, seed,
                               options.listed)
                rows[name] = row
                lines += [{"setting": name, **line} for line in own]
                shown = "  ".join(f"{quantity} {row[quantity]['max']:.1e}" for quantity in QUANTITIES)
                print(f"{name:22} {row['tokens']:5} tokens  {shown}  at the border {row['kept_at_border']}  "
                      f"faults {row['faults']}", flush=True)
    total = {name: sum(row[name] for row in rows.values()) for name in ("tokens", "cut", "kept_at_border", "faults")}
    for quantity in sorted({name for row in rows.values() for name in row if isinstance(row[name], dict)}):
        measured = [row[quantity] for row in rows.values() if quantity in row]
        tokens = sum(each["tokens"] for each in measured)
        total[quantity] = {
            "max": max(each["max"] for each in measured), "tokens": tokens,
            "mean": sum(each["mean"] * each["tokens"] for each in measured) / tokens,
            "beyond": sum(each["beyond"] for each in measured)}
    summary = {
        "device": device, "prompts": len(prompts), "samples": options.samples, "max_tokens": options.max_tokens,
        "tolerance": TOLERANCE, "seconds": round(time.time() - began, 1),
        "versions": {"offshoot": offshoot.__version__, "torch": torch.__version__,
                     "transformers": transformers.__version__, "python": platform.python_version()},
        "path": os.environ.get("OFFSHOOT_CPU"), "total": total, "settings": rows}
    (options.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    (options.out / "differences.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(json.dumps(total, indent=1))
    return 1 if total["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
