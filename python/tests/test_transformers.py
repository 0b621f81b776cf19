"""What is recorded of sampled tokens is what transformers computes for them, in f32 on the bundled model: their
log-probabilities under the model and under the distribution drawn from, the sets that filters keep, and entropies.
`benches/exact.py` does the same at length."""

import importlib.util
import pathlib

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import offshoot
from offshoot import LLM

FILE = pathlib.Path(__file__).resolve().parents[2] / "benches" / "exact.py"
described = importlib.util.spec_from_file_location("exact", FILE)
exact = importlib.util.module_from_spec(described)
described.loader.exec_module(exact)

#: Two f32 computations of the model differ by up to this, by either's rounding; the sampler alone by less than
#: `exact.TOLERANCE`.
OF_THE_MODEL = 1e-4


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = exact.f32_copy(offshoot.demo_model(), tmp_path_factory.mktemp("f32"))
    with LLM(folder, device="cpu", kv_memory=64) as llm:
        yield llm, exact.Reference(folder)


@pytest.mark.parametrize("name", exact.settings())
def test_records_are_those_of_transformers(pair, question, name):
    llm, reference = pair
    given = exact.settings()[name]
    row, lines = exact.run(llm, reference, None, given, {"question": question}, 3, 24, seed=5, listed=1)
    assert row["faults"] == 0, [line for line in lines if "fault" in line]
    assert row["tokens"] >= 36
    assert (row["cut"] == row["tokens"]) if "top_k" in given else ((row["cut"] > 0) == (len(given) > 1))
    assert all(row[quantity]["max"] < OF_THE_MODEL for quantity in exact.QUANTITIES)
    assert sum(row[quantity]["beyond"] for quantity in exact.BOUNDED) <= row["tokens"] // 20


def test_other_filters_than_the_samples_own_would_be_found(pair, question):
    llm, reference = pair
    made = [llm.generate([question], exact.SamplingParams(
        max_tokens=24, logprobs=0, logprobs_mode=mode, return_kept="ids", return_entropy=True, seed=1,
        temperature=0.6), use_tqdm=False)[0] for mode in ("raw_logprobs", "processed_logprobs")]
    raw, drawn = (each.outputs[0] for each in made)
    prompt, sample = list(made[0].prompt_token_ids), list(drawn.token_ids)
    own, found = exact.kept_tokens(drawn, reference.vocabulary), exact.recorded(raw, drawn)
    given = {"temperature": 1.0, "top_k": 20}
    wanted, tempered, kept = exact.expected(reference.logits(prompt, sample), given, prompt, sample, own)
    assert len(sample) == sum("fault" in line for line in exact.kept_apart(own, kept, tempered, given))
    assert float((found["processed"] - wanted["processed"]).abs().max()) > 1e-3
    assert float((found["raw"] - wanted["raw"]).abs().max()) < OF_THE_MODEL
