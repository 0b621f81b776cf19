"""Ray Data on this machine: two actors give one process' samples, compute what one process computes, and may die."""

import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("ray.data", reason="ray[data] is not installed")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Ray's workers are as nice as this process: a busy machine would starve them.
os.environ.setdefault("RAY_worker_niceness", "0")

import pyarrow as pa
import ray
import ray.cloudpickle
import ray.data

import offshoot
import offshoot.ray as offray
from offshoot import LLM, SamplingParams
from offshoot.ray.journal import Journal
from offshoot.ray.rows import Result
from offshoot.ray.worker import Worker

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENGINE = {"device": "cpu", "seed": 5, "kv_memory": 256}
WORDS = "pens nuts books cards coins shells stamps stones apples plums".split()


def config(engine=ENGINE, **more):
    return offray.OffshootConfig(model=offshoot.demo_model(), engine_kwargs=engine, **more)


def two_actors(**more):
    """Two actors of one thread each. (Of the tests' own process another test may have chosen the threads.)"""
    return config(ENGINE | {"threads": 1}, concurrency=2, **more)


# Ray starts processes for each of these, which takes minutes of two cores.
in_full = pytest.mark.skipif(os.environ.get("OFFSHOOT_FULL") != "1", reason="longer: OFFSHOOT_FULL=1, as in .ci/full")


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=4, num_gpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
    # Ray's workers cannot import this file.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    # Otherwise the first of two actors could do all parts before the second one has started.
    context.wait_for_min_actors_s = 120
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def one_process():
    """What one process draws, and what it computes for that."""
    def draw(prompts, params):
        with LLM(offshoot.demo_model(), **ENGINE) as llm:
            outputs = llm.generate(prompts, params, use_tqdm=False)
            return outputs, llm.metrics()["prompt_tokens_computed"]
    return draw


def by_number(dataset):
    return sorted(dataset.take_all(), key=lambda row: row["row_number"])


def texts_of(outputs):
    return [[sample.text for sample in request.outputs] for request in outputs]


def texts_in(rows):
    return [[sample["text"] for sample in row["outputs"]] for row in rows]


def question(count, thing):
    return f"Question: Mia has {count} {thing} and buys 4 more. How many {thing} does Mia have now?\nAnswer:"


def tokens_of(texts):
    with LLM(offshoot.demo_model(), **ENGINE) as llm:
        return llm.tokenizer(texts)["input_ids"]


def distinct(prompts):
    return len({tuple(prompt[:end]) for prompt in prompts for end in range(1, len(prompt) + 1)})


# Results.

def test_two_actors_draw_what_one_process_draws(cluster, one_process):
    things = [(count, thing) for count in range(2, 5) for thing in WORDS[:4]]
    dataset = ray.data.from_items([{"count": count, "thing": thing} for count, thing in things], override_num_blocks=5)
    processor = offray.build_processor(
        two_actors(),
        preprocess=lambda row: {"prompt": question(row["count"], row["thing"]), "n": 2 if row["count"] < 4 else 1,
                                "sampling_params": {"max_tokens": 8} | ({"seed": 9} if row["thing"] == "nuts" else {})},
        postprocess=lambda row: {**row, "first": row["generated_text"]})
    rows = by_number(processor(dataset))
    params = [SamplingParams(n=2 if count < 4 else 1, max_tokens=8, seed=9 if thing == "nuts" else None)
              for count, thing in things]
    expected, _ = one_process([question(*each) for each in things], params)
    assert [(row["count"], row["thing"]) for row in rows] == things
    assert texts_in(rows) == texts_of(expected)
    assert [row["first"] for row in rows] == [request.outputs[0].text for request in expected]
    assert [list(row["generated_tokens"]) for row in rows] == [request.outputs[0].token_ids for request in expected]
    assert [row["num_input_tokens"] for row in rows] == [len(request.prompt_token_ids) for request in expected]
    assert [row["num_generated_tokens"] for row in rows] == [
        sum(len(sample.token_ids) for sample in request.outputs) for request in expected]
    assert [sample["cumulative_logprob"] for row in rows for sample in row["outputs"]] == [
        sample.cumulative_logprob for request in expected for sample in request.outputs]
    assert all(row["error"] is None for row in rows)
    assert processor.metrics()["rows"] == len(things)


def prefixes_times_prompts():
    """16 prefixes of 16 prompts each, in random order."""
    prefixes = [f"{prefix}: " + " ".join(f"{WORDS[(prefix * 7 + at * 3) % 10]} {prefix * at}" for at in range(12))
                for prefix in range(16)]
    made = [f"{prefix}\n{tail} {WORDS[tail % 10]}:" for prefix in prefixes for tail in range(16)]
    random.Random(1).shuffle(made)
    return made


def documents_times_questions():
    """2,000 questions to 40 documents, in random order."""
    documents = [f"{at}. " + " ".join(f"{WORDS[(at * 3 + word) % 10]} {at * word % 97}" for word in range(20))
                 for at in range(40)]
    made = [f"{documents[at % 40]}\nQuestion {at // 40}: {WORDS[at % 7]}?" for at in range(2000)]
    random.Random(2).shuffle(made)
    return made


@in_full
@pytest.mark.parametrize("prompts, parts, tokens", [
    (prefixes_times_prompts(), 4, 4), (documents_times_questions(), 8, 1)], ids=["16 prefixes", "40 documents"])
def test_two_actors_compute_what_one_process_computes(cluster, one_process, prompts, parts, tokens):
    dataset = offray.by_prefix(ray.data.from_items([{"prompt": prompt} for prompt in prompts]), parts,
                               tokenizer=tokens_of, n=1, max_tokens=tokens)
    processor = offray.build_processor(two_actors(sampling_params={"max_tokens": tokens}))
    rows = by_number(processor(dataset))
    expected, computed = one_process(prompts, SamplingParams(max_tokens=tokens))
    counted = processor.metrics()
    print(f"prompt tokens computed: one process {computed:,}, {counted['actors']} actors "
          f"{counted['prompt_tokens_computed']:,}, batches of 32 in order of arrival {dataset.cut.in_batches:,}")
    assert texts_in(rows) == texts_of(expected)
    assert counted["actors"] == 2 and counted["rows"] == len(prompts)
    assert counted["prompt_tokens_computed"] <= 1.03 * computed
    assert dataset.cut.in_batches > 2 * computed


# Cuts.

def test_a_cut_is_one_block_a_part_depth_first(cluster, capsys):
    prompts = [[1, 2, 3, 10 + row % 3] + [20 + row % 2] * 4 + [row] for row in range(24)]
    dataset = ray.data.from_items([{"ids": prompt, "kept": str(row)} for row, prompt in enumerate(prompts)],
                                  override_num_blocks=4)
    parts = offray.by_prefix(dataset, 3, prompt="ids", n=1, max_tokens=1)
    assert parts.num_blocks() == 3
    blocks = [ray.get(ref).to_pylist() for ref in parts.to_arrow_refs()]
    assert sorted(row["row_number"] for block in blocks for row in block) == list(range(24))
    assert all(row["kept"] == str(row["row_number"]) and row["ids"] == prompts[row["row_number"]]
               for block in blocks for row in block)
    cut = parts.cut
    assert cut.unit == "tokens" and cut.rows == 24 and cut.prompt_tokens == sum(map(len, prompts))
    assert cut.distinct == distinct(prompts)
    assert [part.prompt_tokens for part in cut.parts] == [distinct([row["ids"] for row in block]) for block in blocks]
    assert cut.by_parts == sum(part.prompt_tokens for part in cut.parts)
    assert cut.twice == cut.by_parts - cut.distinct > 0
    assert cut.in_batches == distinct(prompts)  # All rows are one batch.
    # Depth-first: prompts with a common beginning are next to each other.
    heads = [tuple(row["ids"][:4]) for block in blocks for row in block]
    assert sum(here != before for here, before in zip(heads[1:], heads)) == 2
    assert f"{cut.twice:,} of them twice" in capsys.readouterr().err


def test_a_cut_reads_texts_messages_and_folders(cluster):
    texts = [f"{'ab' * 40}{row % 2}\n{row}" for row in range(8)]
    dataset = ray.data.from_items([{"prompt": text, "chat": [{"role": "user", "content": text}]} for text in texts])
    assert offray.by_prefix(dataset, 2, show=False).cut.unit == "pieces of text"
    chats = offray.by_prefix(dataset, 2, prompt="chat", show=False).cut
    assert chats.distinct < chats.prompt_tokens
    tokens = offray.by_prefix(dataset, 2, tokenizer=tokens_of, show=False).cut
    assert (tokens.unit, tokens.distinct) == ("tokens", distinct(tokens_of(texts)))
    with pytest.raises(ValueError, match="text: expected a column of prompts"):
        offray.by_prefix(dataset, 2, prompt="text")
    with pytest.raises(ValueError, match="parts: expected a whole number from 1 up, found 0"):
        offray.by_prefix(dataset, 0)
    with pytest.raises(FileNotFoundError, match="/nowhere: cannot open the model folder"):
        offray.by_prefix(dataset, 2, model="/nowhere")
    assert offray.by_prefix(dataset, 2, model=offshoot.demo_model(), show=False).cut == tokens


@in_full
def test_actors_with_gpus_get_whole_parts(cluster, one_process):
    # Ray counts GPUs and does not look for them: these engines compute on the CPU.
    prompts = [question(count, thing) for thing in WORDS[:3] for count in range(2, 6)]
    parts = offray.by_prefix(ray.data.from_items([{"prompt": prompt} for prompt in prompts]), 3,
                             model=offshoot.demo_model(), show=False)
    processor = offray.build_processor(two_actors(num_gpus=1, sampling_params={"max_tokens": 6}))
    rows = by_number(processor(parts))
    expected, computed = one_process(prompts, SamplingParams(max_tokens=6))
    assert texts_in(rows) == texts_of(expected)
    # A part that was divided would be computed again in part.
    assert processor.metrics()["prompt_tokens_computed"] <= computed + parts.cut.twice


# Failures.

def lines_of(folder):
    """The keys of finished rows by the file that has them."""
    return {file: [json.loads(line)["key"] for line in file.read_bytes().split(b"\n")[:-1]]
            for file in pathlib.Path(folder).glob("*.jsonl")}


def kill_a_writer(folder, killed):
    """Kills the first process that has kept three rows."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        for file, keys in lines_of(folder).items():
            if len(keys) >= 3:
                os.kill(int(re.search(r"-(\d+)-\d+\.jsonl$", file.name)[1]), signal.SIGKILL)
                killed.append(file)
                return
        time.sleep(0.002)


def test_a_killed_actor_s_rows_are_not_drawn_again(cluster, one_process, tmp_path):
    prompts = [question(row, WORDS[row % 10]) for row in range(48)]
    # Rows end one after another, the last ones late.
    lengths = [4 if row % 24 < 6 else 30 * (row % 24) for row in range(48)]
    given = [{"prompt": prompt, "sampling_params": {"max_tokens": length, "ignore_eos": True}}
             for prompt, length in zip(prompts, lengths)]
    journal, killed = tmp_path / "journal", []
    processor = offray.build_processor(two_actors(journal=journal))
    killer = threading.Thread(target=kill_a_writer, args=(journal, killed))
    killer.start()
    rows = by_number(processor(ray.data.from_items(given, override_num_blocks=2)))
    killer.join()
    expected, _ = one_process(prompts, [SamplingParams(**row["sampling_params"]) for row in given])
    assert texts_in(rows) == texts_of(expected)
    kept = lines_of(journal)
    assert killed and 3 <= len(kept[killed[0]]) < 24, "an actor died in the midst of its part"
    keys = [key for keys in kept.values() for key in keys]
    assert len(keys) == len(set(keys)) == 48, "no row was drawn twice"
    assert processor.metrics()["rows_from_journal"] == len(kept[killed[0]])


class NoTotals:
    """In place of the actor that adds up counters, where the test is its own actor."""

    class set:
        @staticmethod
        def remote(actor, counters):
            pass


def table(*prompts, **columns):
    return pa.table({"prompt": list(prompts), "row_number": list(range(len(prompts))), **columns})


def test_half_a_line_is_ignored_and_a_spoilt_one_is_not(tmp_path):
    journal = Journal(str(tmp_path), {"seed": 1})
    keys = ["a", "b", "c"]
    with journal.part(keys) as part:
        part.add("a", Result([{"text": "x"}], 3))
        part.add("b", Result([{"text": "y"}], 4))
    (file,) = tmp_path.glob("*.jsonl")
    whole = file.read_bytes()
    file.write_bytes(whole[:-9])
    with journal.part(keys) as part:
        assert part.found == {"a": Result([{"text": "x"}], 3)}
        part.add("b", Result([{"text": "y"}], 4))
    assert journal.part(keys).found == {"a": Result([{"text": "x"}], 3), "b": Result([{"text": "y"}], 4)}
    file.write_bytes(b"?" + whole)
    with pytest.raises(ValueError, match=rf"{file.name}: line 1: expected a finished row"):
        journal.part(keys)


def test_a_journal_of_another_job_is_refused_by_name(tmp_path):
    Worker(config(journal=tmp_path), NoTotals).llm.close()
    other = config(ENGINE | {"seed": 6}, journal=tmp_path)
    with pytest.raises(ValueError, match=f"journal {tmp_path}: is of another job, seed: expected 6, found 5"):
        Worker(other, NoTotals)


def test_a_job_goes_on_from_its_journal(tmp_path):
    prompts = [question(row, "pens") for row in range(4)]
    given = config(journal=tmp_path, sampling_params={"max_tokens": 6, "n": 2, "logprobs": 1})
    first = Worker(given, NoTotals)
    drawn = first(table(*prompts))
    assert first.rows == {"rows": 4, "rows_from_journal": 0, "rows_failed": 0}
    again = Worker(given, NoTotals)
    assert again(table(*prompts)) == drawn
    assert again.rows["rows_from_journal"] == 4 and again.llm.metrics()["tokens_sampled"] == 0
    # Another prompt, parameter or number is another row.
    for other in (table(*prompts[:3], "Other"), table(*prompts, n=[3] * 4),
                  table(*prompts).set_column(1, "row_number", pa.array([7, 8, 9, 10]))):
        again(other)
    assert again.rows["rows_from_journal"] == 4
    for worker in (first, again):
        worker.llm.close()


def test_rows_say_what_is_wrong_with_them():
    prompts = ["Fine", "x " * 9000, "", "Fine"]
    params = [{"max_tokens": 2, "n": 1}, {"max_tokens": 2}, None, {"temperature": -1.0}]
    given = table(*prompts, sampling_params=params)
    worker = Worker(config(should_continue_on_error=True), NoTotals)
    rows = worker(given).to_pylist()
    assert rows[0]["error"] is None and rows[0]["num_generated_tokens"] == 2
    assert "prompt: expected fewer tokens than the context's 4096, found" in rows[1]["error"]
    assert rows[3]["error"].startswith("ValueError: temperature: expected")
    assert rows[1]["outputs"] is None and rows[1]["generated_text"] is None
    both = given.append_column("prompt_token_ids", [[[1], None, None, None]])
    said = worker(both).to_pylist()[0]["error"]
    assert "expected one of prompt, messages, prompt_token_ids, found prompt, prompt_token_ids" in said
    worker.llm.close()
    strict = Worker(config(), NoTotals)
    with pytest.raises(ValueError, match="row 1: prompt: expected fewer tokens"):
        strict(given)
    strict.llm.close()


def test_configurations_that_cannot_be():
    for wrong, sentence in (({"concurrency": 0}, "concurrency"), ({"concurrency": (3, 2)}, "concurrency"),
                            ({"batch_size": 0}, "batch_size"), ({"sampling_params": {"n": 0}}, "n:")):
        with pytest.raises(ValueError, match=sentence):
            config(**wrong)
    with pytest.raises(ValueError, match="tensor_parallel_size"):
        offray.OffshootConfig(model="m", engine_kwargs={"tensor_parallel_size": 2})
    later = config()
    later.batch_size = 0
    with pytest.raises(ValueError, match="batch_size"):
        offray.build_processor(later)(None)
    with pytest.raises(AttributeError):
        later.batchsize = 5
    with pytest.raises(TypeError, match="expected an OffshootConfig"):
        offray.build_processor({"model": "m"})


def test_without_ray_the_import_says_what_to_install():
    program = "import sys; sys.modules['ray'] = None; import offshoot.ray"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "ImportError: offshoot.ray needs Ray Data: pip install 'ray[data]'" in ran.stderr


# Verdicts and examples.

def test_verdicts(cluster):
    problem = {"task_id": "T/0", "prompt": "def add(a, b):\n", "entry_point": "add",
               "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n"}
    dataset = ray.data.from_items([
        {"problem": problem, "program": ["    return a + b\n", "    return a - b\n"]},
        {"problem": problem, "program": ["    return b + a\n"]}])
    rows = offray.judge(dataset, problem="problem", program="program").take_all()
    assert sorted(list(row["verdict"]) for row in rows) == [["AC"], ["AC", "WA"]]
    assert all(len(row["judgement"]) == len(row["program"]) for row in rows)


def test_rows_without_a_program_have_no_verdict(cluster):
    problem = {"task_id": "T/0", "prompt": "def add(a, b):\n", "entry_point": "add",
               "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n"}
    right = "    return a + b\n"
    rows = [{"at": 0, "problem": problem, "program": [right, None]}, {"at": 1, "problem": problem, "program": None},
            {"at": 2, "problem": None, "program": None}, {"at": 3, "problem": problem, "program": []}]
    table = pa.Table.from_pylist(rows)
    judged = sorted(
        offray.judge(ray.data.from_arrow(table), "problem", "program").take_all(), key=lambda row: row["at"])
    assert [row["verdict"] if row["verdict"] is None else list(row["verdict"]) for row in judged] == [
        ["AC", None], None, None, []]
    one = pa.Table.from_pylist([{"problem": problem, "program": right}, {"problem": problem, "program": None}])
    assert [row["verdict"] for row in offray.judge(ray.data.from_arrow(one), "problem", "program").take_all()] == [
        "AC", None]


def test_what_is_no_dataset_is_named():
    for use in (lambda rows: offray.by_prefix(rows, 2), lambda rows: offray.judge(rows, "problem", "program"),
                offray.build_processor(config())):
        with pytest.raises(TypeError, match="dataset: expected a ray.data.Dataset, found list"):
            use([{"prompt": "a"}])


@in_full
@pytest.mark.parametrize("name, needs", [("ray_pipeline.py", ()), ("ray_http.py", ("pydantic", "aiohttp"))])
def test_an_example_with_ray(name, needs):
    for module in needs:
        pytest.importorskip(module, reason=f"ray.data.llm needs {module}")
    ran = subprocess.run([sys.executable, str(ROOT / "examples" / "python" / name)], cwd=ROOT, capture_output=True,
                         text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    found = re.search(r"(\d+) of 12 right", ran.stdout)
    assert found and int(found[1]) >= 6, ran.stdout
