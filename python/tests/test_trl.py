"""TRL's GRPOTrainer samples by Offshoot: its own options, a rollout function, sleep, and the names of a trainer's
weights. With the bundled model in f32 sampler and trainer agree on log-probabilities."""

import os
import shutil
import subprocess
import sys
import types

import pytest

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("trl", reason="trl is not installed")

import trl.trainer.grpo_trainer as grpo
import trl.trainer.rloo_trainer as rloo
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerState

import offshoot
import offshoot.trl
from offshoot import LLM, SamplingParams

QUESTIONS = [f"Question: Tom has {number} pens and buys 4 more. How many pens does Tom have now?\nAnswer:"
             for number in range(2, 6)]
GROUP, PROBLEMS, STEPS = 4, 2, 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The bundled model in f32, as it is trained."""
    folder = tmp_path_factory.mktemp("f32")
    shutil.copytree(offshoot.demo_model(), folder, dirs_exist_ok=True)
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def exact(folder):
    with LLM(folder, device="cpu", kv_memory=256, logprobs_mode="processed_logprobs") as llm:
        yield llm


def trainer(folder, made=grpo, rollout=None, **options):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.eos_token
    kind, config = (made.GRPOTrainer, made.GRPOConfig) if made is grpo else (made.RLOOTrainer, made.RLOOConfig)
    given = {"use_vllm": True, "vllm_mode": "colocate", "num_generations": GROUP, "max_steps": STEPS,
             "per_device_train_batch_size": GROUP * PROBLEMS, "max_completion_length": 24, "learning_rate": 1e-3,
             "use_cpu": True, "bf16": False, "report_to": [], "save_strategy": "no", "logging_steps": 1,
             "gradient_checkpointing": False, "disable_tqdm": True, "beta": 0.0, **options}
    extra = {"rollout_func": rollout} if rollout else {}
    return kind(model=str(folder), reward_funcs=reward, args=config(str(folder / "out"), **given),
                train_dataset=Dataset.from_dict({"prompt": QUESTIONS}), processing_class=tokenizer, **extra)


def reward(completions, **_):
    return [float(at % 2) for at, _ in enumerate(completions)]


def apart(trained):
    """How far the sampler's and the trainer's log-probabilities were from each other at most, a step each."""
    name = "sampling/sampling_logp_difference/max"
    return [line[name] for line in trained.state.log_history if name in line]


def test_each_step_samples_under_its_own_weights(folder, exact):
    before = exact.weight_version
    with offshoot.trl.use(llm=exact):
        trained = trainer(folder)
    trained.train()
    assert exact.weight_version == before + STEPS
    assert len(apart(trained)) == STEPS and max(apart(trained)) < 1e-4
    # Under other weights than its own, a step would be further apart than that.
    outputs = exact.generate(QUESTIONS[:1], SamplingParams(max_tokens=8, logprobs=0, seed=1), use_tqdm=False)
    old = [next(iter(row.values())).logprob for row in outputs[0].outputs[0].logprobs]
    exact.load_weights(list(offshoot.trl.named_weights(trained.model)), commit=True)
    outputs = exact.generate(QUESTIONS[:1], SamplingParams(max_tokens=8, logprobs=0, seed=1), use_tqdm=False)
    new = [next(iter(row.values())).logprob for row in outputs[0].outputs[0].logprobs]
    assert max(abs(a - b) for a, b in zip(old, new)) > 1e-3


def test_an_engine_of_the_trainers_own_that_sleeps_while_it_trains(folder):
    with offshoot.trl.use(kv_memory=128):
        trained = trainer(folder, vllm_enable_sleep_mode=True, temperature=1.0)
    llm = trained.vllm_generation.llm
    with llm:
        assert llm.is_sleeping
        trained.train()
        assert llm.is_sleeping and max(apart(trained)) < 1e-4
        assert set(trained.vllm_generation.seconds) == {"update", "samples"}


def test_the_options_of_the_trainer_reach_the_samples(folder, exact):
    with offshoot.trl.use(llm=exact):
        trained = trainer(folder, generation_kwargs={"stop": ["####"]}, max_completion_length=80)
    made = trained.vllm_generation
    assert made.sampling_params().stop == ["####"] and made.sampling_params().max_tokens == 80
    ids = [exact.encode(question) for question in QUESTIONS[:2] for _ in range(GROUP * 4)]
    before = exact.metrics()["prompt_tokens_computed"]
    prompts, completions, logprobs, tokens = made.generate(ids, None, GROUP * 4)
    assert exact.metrics()["prompt_tokens_computed"] - before <= len(ids[0]) + len(ids[-1]), "one prompt a group"
    assert prompts == ids and len(completions) == len(ids)
    assert len({tuple(each) for each in completions[:GROUP * 4]}) > 1, "a group's samples are several"
    for own, given, named in zip(completions, logprobs, tokens):
        assert [[token] for token in own] == named and len(given) == len(own)
        assert "####" not in exact.tokenizer.decode(own[:-1])
    with pytest.raises(NotImplementedError, match="images"):
        made.generate(ids, [["an image"]] * len(ids), GROUP)


def test_the_likeliest_tokens_come_in_the_order_of_their_ranks(folder, exact):
    with offshoot.trl.use(llm=exact):
        made = trainer(folder).vllm_generation
    made.logprobs = 3
    _, _, logprobs, tokens = made.generate([exact.encode(QUESTIONS[0])], None, 1)
    for row, named in zip(logprobs[0], tokens[0]):
        assert 3 <= len(row) == len(named) <= 4 and row == sorted(row, reverse=True)


def test_a_rollout_function(folder, exact):
    before = exact.weight_version
    trained = trainer(folder, use_vllm=False, rollout=offshoot.trl.rollout_func(exact))
    trained.train()
    assert exact.weight_version == before + STEPS
    with offshoot.trl.use(llm=exact):
        corrected = trainer(folder, rollout=offshoot.trl.rollout_func(exact))
    corrected.train()
    assert exact.weight_version == before + 2 * STEPS and max(apart(corrected)) < 1e-4


def test_a_rollout_function_of_a_peft_model(folder):
    """The adapter alone goes to the engine, and both agree on log-probabilities."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), peft.LoraConfig(
        r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    with LLM(folder, device="cpu", kv_memory=64, enable_lora=True, logprobs_mode="processed_logprobs") as llm:
        roll = offshoot.trl.rollout_func(llm, SamplingParams(max_tokens=12, logprobs=0, seed=1))
        state = TrainerState(global_step=0)
        of = types.SimpleNamespace(use_vllm=False, model=model, state=state,
                                   processing_class=AutoTokenizer.from_pretrained(folder))
        rolled = roll(QUESTIONS[:2], of)
        version = llm.adapters["policy"].version
        assert llm.weight_version == 0
        for ids, more, logprobs in zip(*(rolled[key] for key in ("prompt_ids", "completion_ids", "logprobs"))):
            with torch.no_grad():
                logits = model(torch.tensor([ids + more])).logits[0, len(ids) - 1:-1]
            own = logits.log_softmax(-1)[range(len(more)), more]
            assert (own - torch.tensor(logprobs)).abs().max() < 1e-4
        roll(QUESTIONS[:2], of)
        assert llm.adapters["policy"].version == version, "it is loaded once a step"
        state.global_step = 1
        roll(QUESTIONS[:2], of)
        assert llm.adapters["policy"].version > version


def logprobs_of(llm):
    (output,) = llm.generate(QUESTIONS[:1], SamplingParams(max_tokens=8, logprobs=0, seed=1), use_tqdm=False)
    return [row[token].logprob for token, row in zip(output.outputs[0].token_ids, output.outputs[0].logprobs)]


def changed(llm, trained):
    """Gives an engine weights that differ from the trainer's."""
    llm.load_weights([(name, weight * 1.25) for name, weight in offshoot.trl.named_weights(trained.model)], commit=True)


@pytest.mark.parametrize("use_vllm", [False, True])
def test_a_trainer_samples_by_its_own_weights_whoever_used_the_engine(folder, exact, use_vllm):
    roll = offshoot.trl.rollout_func(exact)
    prompts = QUESTIONS[:1] * GROUP
    with offshoot.trl.use(llm=exact):
        one, other = (trainer(folder, use_vllm=use_vllm, rollout=roll) for _ in range(2))
    with torch.no_grad():
        other.model.model.norm.weight.mul_(1.5)
    roll(prompts, one)
    own = logprobs_of(exact)
    # Another trainer at the same step; then the first one again.
    assert one.state.global_step == other.state.global_step
    roll(prompts, other)
    assert logprobs_of(exact) != own
    roll(prompts, one)
    assert logprobs_of(exact) == own
    # Somebody's weights that are in force, and such as would be in force with the next sample.
    version = exact.weight_version
    changed(exact, one)
    roll(prompts, one)
    assert logprobs_of(exact) == own and exact.weight_version == version + 2
    exact.load_weights({"model.norm.weight": one.model.model.norm.weight * 2})
    roll(prompts, one)
    assert logprobs_of(exact) == own
    # Nothing has changed: nothing is sent.
    version = exact.weight_version
    roll(prompts, one)
    assert exact.weight_version == version


def test_a_training_that_begins_anew_has_new_weights(folder, exact):
    roll = offshoot.trl.rollout_func(exact)
    trained = trainer(folder, use_vllm=False, rollout=roll, max_steps=1)
    trained.train()
    version = exact.weight_version
    trained.train()  # Its step is again the first one.
    assert exact.weight_version == version + 1


def test_the_engine_of_a_trainer_that_others_used(folder, exact):
    with offshoot.trl.use(llm=exact):
        made = trainer(folder)
    made.vllm_generation.sync_weights()
    own = logprobs_of(exact)
    changed(exact, made)
    made.vllm_generation.generate([exact.encode(QUESTIONS[0])], None, 1)
    assert logprobs_of(exact) == own


def test_conversations(folder, exact):
    roll = offshoot.trl.rollout_func(exact, SamplingParams(max_tokens=4, logprobs=0, seed=1))
    with offshoot.trl.use(llm=exact):
        trained = trainer(folder)
    prompts = [[{"role": "user", "content": "Tom has 3 pens."}]] * 2
    rolled = roll(prompts, trained)
    assert rolled["prompt_ids"][0] == exact.tokenizer.apply_chat_template(prompts[0], add_generation_prompt=True)
    assert [len(each) for each in rolled["logprobs"]] == [len(each) for each in rolled["completion_ids"]]


def test_other_trainers_and_the_class_that_was_there(folder, exact):
    own = grpo.VLLMGeneration
    with offshoot.trl.use(rloo, llm=exact):
        assert rloo.VLLMGeneration is not own and grpo.VLLMGeneration is own
        trainer(folder, rloo).train()
    assert rloo.VLLMGeneration is own
    used = offshoot.trl.use(llm=exact)
    assert issubclass(grpo.VLLMGeneration, offshoot.trl.Generation)
    used.end()
    assert grpo.VLLMGeneration is own


def test_what_is_refused(folder, exact):
    with pytest.raises(ValueError, match=r"llm: expected None with arguments for one \(kv_memory\)"):
        offshoot.trl.use(llm=exact, kv_memory=64)
    with offshoot.trl.use(llm=exact):
        with pytest.raises(ValueError, match="vllm_mode: expected colocate, found 'server'"):
            trainer(folder, vllm_mode="server")
        with pytest.raises(ValueError, match="structured_outputs.regex"):
            trainer(folder, vllm_structured_outputs_regex="(").train()


#: TRL without a change, for which Offshoot has the names of vLLM: what it imports of them, and nothing else.
UNCHANGED = """
import importlib.machinery, sys, types
import offshoot, offshoot.sampling_params

def module(name, **names):
    made = types.ModuleType(name)
    made.__spec__, made.__path__ = importlib.machinery.ModuleSpec(name, None), []
    made.__dict__.update(names)
    sys.modules[name] = made

module("vllm", LLM=offshoot.LLM, RequestOutput=offshoot.RequestOutput, SamplingParams=offshoot.SamplingParams,
       __version__="0.31.0")
sys.modules["vllm.sampling_params"] = offshoot.sampling_params
module("vllm.utils")
module("vllm.utils.network_utils", get_ip=lambda: "127.0.0.1", get_open_port=lambda: 0)
module("vllm.distributed")
module("vllm.distributed.weight_transfer")
module("vllm.distributed.weight_transfer.nccl_common", trainer_init=None)
module("vllm.distributed.weight_transfer.packed_tensor", packed_nccl_broadcast_producer=None)

import pathlib
sys.path.insert(0, sys.argv[2])
import test_trl
trained = test_trl.trainer(pathlib.Path(sys.argv[1]), vllm_enable_sleep_mode=True, vllm_max_model_length=512)
llm = trained.vllm_generation.llm
assert type(llm) is offshoot.LLM and llm.is_sleeping
trained.train()
assert llm.weight_version == test_trl.STEPS and llm.is_sleeping, llm.weight_version
print("apart", max(test_trl.apart(trained)))
llm.close()
"""


def test_trl_itself_finds_what_it_calls_of_vllm(folder):
    ran = subprocess.run([sys.executable, "-c", UNCHANGED, str(folder), os.path.dirname(__file__)],
                         capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout.split("apart ")[1]) < 1e-4
    assert "without a meaning in Offshoot, ignored: distributed_executor_backend" in ran.stderr
