"""lm-eval's `local-completions` and `local-chat-completions`: every kind of task, with one and with many requests
open."""

import os
import sys
import tempfile

import checks

checks.skip_without("lm_eval", "aiohttp", "tenacity")
os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
FOLDER = tempfile.TemporaryDirectory()
os.environ["HF_HOME"] = FOLDER.name
import lm_eval  # noqa: E402

import local_tasks  # noqa: E402


def evaluate(model, tasks, path, **more):
    arguments = {"model": MODEL, "base_url": f"{URL}/v1/{path}", "max_length": 512, "max_retries": 1, **more}
    chat = model == "local-chat-completions"
    return lm_eval.simple_evaluate(
        model=model, model_args=arguments, tasks=tasks, task_manager=MANAGER, bootstrap_iters=0,
        apply_chat_template=chat, log_samples=True, verbosity="ERROR")


def check_scores_do_not_depend_on_concurrency():
    tasks = ["local_choices", "local_words", "local_rolling"]
    one = evaluate("local-completions", tasks, "completions", tokenizer_backend="remote", batch_size=8)
    many = evaluate("local-completions", tasks, "completions", tokenizer_backend="remote", num_concurrent=16)
    one, many = local_tasks.metrics(one), local_tasks.metrics(many)
    assert one == many, (one, many)
    assert len(one) == 7, one
    assert 0 < one["local_choices/acc,none"] < 1, one


def check_generations():
    results = evaluate("local-completions", ["local_greedy", "local_repeats"], "completions",
                       tokenizer_backend="remote", tokenized_requests=False, num_concurrent=8)
    for sample in results["samples"]["local_repeats"]:
        assert len(sample["resps"][0]) == 4, sample
        assert all(isinstance(text, str) and "." not in text for text in sample["resps"][0]), sample
    assert any(sample["resps"][0][0] for sample in results["samples"]["local_greedy"])


def check_chats():
    results = evaluate(
        "local-chat-completions", ["local_greedy", "local_repeats"], "chat/completions", num_concurrent=8)
    for sample in results["samples"]["local_repeats"]:
        assert len(sample["resps"][0]) == 4, sample
        assert all(isinstance(text, str) and "." not in text for text in sample["resps"][0]), sample


if __name__ == "__main__":
    given = checks.options()
    URL, MODEL = given.base_url, given.model
    MANAGER = local_tasks.write(FOLDER.name)
    checks.run(sys.modules[__name__])
