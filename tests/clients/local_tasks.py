"""Small tasks of lm-eval's every kind, whose data is made here: no hub is asked, and short contexts suffice."""

import json
import random
from pathlib import Path

NAMES = [("Lily", "She", "her"), ("Tom", "He", "his"), ("Mia", "She", "her"), ("Ben", "He", "his"),
         ("Sue", "She", "her")]
TOYS = ["ball", "doll", "car", "kite", "book", "boat", "drum", "hat"]
PLACES = ["park", "garden", "house", "sea", "forest", "school"]


def stories(count, seed):
    """Beginnings of stories with their parts."""
    dice = random.Random(seed)
    for number in range(count):
        (name, who, whose), toy, place = dice.choice(NAMES), dice.choice(TOYS), dice.choice(PLACES)
        others = dice.sample([one for one in TOYS if one != toy], 3)
        text = f"One day, {name} went to the {place} with {whose} {toy}. {who} was very happy."
        yield number, dice, text, name, who, whose, toy, place, others


def questions(count=120):
    for number, dice, text, name, who, whose, toy, place, others in stories(count, 1):
        choices = [f"{who} played with the {one} all day." for one in [toy, *others]]
        order = list(range(len(choices)))
        dice.shuffle(order)
        yield {"question": text, "choices": [choices[at] for at in order], "answer": order.index(0)}


def last_words(count=120):
    for number, dice, text, name, who, whose, toy, place, others in stories(count, 2):
        yield {"text": f"{text} {who} liked to play with {whose}", "word": toy}


def texts(count=24):
    for number, dice, text, name, who, whose, toy, place, others in stories(count, 3):
        yield {"text": f"Once upon a time, there was a {others[0]}. {text}"}


def prompts(count=24):
    for number, dice, text, name, who, whose, toy, place, others in stories(count, 4):
        yield {"text": f"{text} Then {name}", "answer": f" played with the {toy}."}


TASKS = {
    "local_choices": (questions, """
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list:
  - metric: acc
  - metric: acc_norm
"""),
    "local_words": (last_words, """
output_type: loglikelihood
doc_to_text: "{{text}}"
doc_to_target: " {{word}}"
metric_list:
  - metric: perplexity
  - metric: acc
"""),
    "local_rolling": (texts, """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - metric: word_perplexity
  - metric: byte_perplexity
  - metric: bits_per_byte
"""),
    "local_greedy": (prompts, """
output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: "{{answer}}"
generation_kwargs:
  until: ["\\n", "."]
  do_sample: false
  temperature: 0
  max_gen_toks: 24
metric_list:
  - metric: exact_match
"""),
    "local_repeats": (prompts, """
output_type: generate_until
repeats: 4
doc_to_text: "{{text}}"
doc_to_target: "{{answer}}"
generation_kwargs:
  until: ["\\n", "."]
  do_sample: true
  temperature: 0.8
  max_gen_toks: 16
filter_list:
  - name: voted
    filter:
      - function: majority_vote
      - function: take_first
metric_list:
  - metric: exact_match
"""),
}


def write(folder):
    """Writes the tasks; returns lm-eval's manager of them."""
    from lm_eval.tasks import TaskManager

    folder = Path(folder)
    for name, (items, yaml) in TASKS.items():
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(item) + "\n" for item in items()))
        files = f"dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {data}\ntest_split: test\n"
        (folder / f"{name}.yaml").write_text(f"task: {name}\n{files}{yaml}")
    return TaskManager(include_path=str(folder), include_defaults=False)


def metrics(results):
    """The tasks' figures by `task/metric`, without errors and names."""
    kept = {}
    for task, figures in results["results"].items():
        for metric, value in figures.items():
            if isinstance(value, float) and "stderr" not in metric:
                kept[f"{task}/{metric}"] = value
    return kept
