"""Trains the reward model: python train.py --samples DIR --minutes 4 --out DIR

Half of each batch are the demo's samples (train.jsonl of sample.py), half are
answers that worker processes make without end. The loss is that of the values at
line breaks plus a part of the next tokens' in right answers. The schedule is a
function of elapsed time: warm-up, constant, linear decay over the last half.
"""

import argparse
import json
import multiprocessing
import os
import threading
import time
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import llama
import rows
import torch
from optimizer import Muon
from tokenizers import Tokenizer

import answers
import questions
import reward
from answers import ROW

GIVEN_WEIGHT = 0.05
TEXT_SHARE = 0.3
MATRIX_RATE, VECTOR_RATE = 5e-3, 3e-3
WEIGHT_DECAY = 0.05
WARM_UP_STEPS = 100
DECAY_SHARE = 0.5
LAST_FACTOR = 0.01
MADE_ROWS = 600_000
FEWEST_MADE_ROWS = 8_000
LOG_EVERY = 250


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=Path, required=True, help="folder written by sample.py")
    parser.add_argument("--minutes", type=float, required=True, help="training time, start and compilation excluded")
    parser.add_argument("--out", type=Path, required=True, help="folder for the model and train.json")
    parser.add_argument("--seed", type=int, default=51)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--batch-rows", type=int, default=256)
    return parser.parse_args()


class Made:
    """The rows that workers have made so far, on the training device; old ones are overwritten when it is full."""

    def __init__(self, device: str, arguments, tokenizer_json: str):
        self.buffer = torch.zeros(MADE_ROWS if device == "cuda" else 20_000, ROW + 1, dtype=torch.int16, device=device)
        self.made, self.failure = 0, None
        context = multiprocessing.get_context("spawn")
        self.queue = context.Queue(maxsize=64)
        self.processes = [
            context.Process(target=answers.work, args=(i, arguments.seed, tokenizer_json, self.queue), daemon=True)
            for i in range(arguments.workers)
        ]
        for process in self.processes:
            process.start()
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self) -> None:
        while True:
            item = self.queue.get()
            if isinstance(item, rows.WorkerError):
                self.failure = f"worker {item.worker} failed\n{item.trace}"
                return
            start = self.made % len(self.buffer)
            count = min(len(item.rows), len(self.buffer) - start)
            self.buffer[start : start + count] = torch.from_numpy(item.rows[:count]).to(self.buffer.device)
            self.made += count

    def check(self) -> None:
        """Raises if a worker failed or died."""
        dead = [process.exitcode for process in self.processes if not process.is_alive()]
        if self.failure or dead:
            time.sleep(1)  # lets a dead worker's last words arrive
            raise RuntimeError(self.failure or f"workers died with exit codes {dead}")

    def wait(self, fewest: int) -> None:
        while self.made < fewest:
            self.check()
            time.sleep(0.1)

    def there(self) -> torch.Tensor:
        return self.buffer[: min(self.made, len(self.buffer))]

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()


def drawn(pool: torch.Tensor, count: int) -> torch.Tensor:
    return pool[torch.randint(len(pool), (count,), device=pool.device)]


def read(batch: torch.Tensor):
    """Tokens, next tokens, their weights, and labels (-1 where there is none)."""
    batch = batch.int()
    kinds, tokens = batch >> rows.KIND_SHIFT, batch & rows.TOKEN_MASK
    next_kinds = kinds[:, 1:]
    taught = (next_kinds == rows.PRODUCED) | (next_kinds == answers.RIGHT)
    weights = taught.float() + (next_kinds == rows.GIVEN).float() * GIVEN_WEIGHT
    labels = torch.where(kinds >= answers.WRONG, kinds - answers.WRONG, -1)[:, :-1]
    return tokens[:, :-1], tokens[:, 1:].long(), weights, labels


class Trainer:
    def __init__(self, arguments, device: str, samples: torch.Tensor, made: Made):
        self.arguments, self.samples, self.made = arguments, samples, made
        torch.manual_seed(arguments.seed)
        self.model = reward.Reward().to(device)
        self.tables = llama.rotary_tables(self.model.shape, ROW, device)
        matrices = [p for block in self.model.blocks for p in block.parameters() if p.ndim == 2]
        others = [p for name, p in self.model.named_parameters() if p.ndim == 1 or name in ("embedding", "score")]
        self.muon = Muon(matrices, MATRIX_RATE, WEIGHT_DECAY)
        self.adam = torch.optim.AdamW(
            others, lr=VECTOR_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=device == "cuda"
        )
        self.losses = torch.compile(self.model.losses, dynamic=False) if device == "cuda" else self.model.losses
        self.steps = 0

    def backward(self) -> torch.Tensor:
        count = self.arguments.batch_rows
        batch = torch.cat([drawn(self.samples, count // 2), drawn(self.made.there(), count - count // 2)])
        of_values, of_text = self.losses(*read(batch), *self.tables)
        (of_values + TEXT_SHARE * of_text).backward()
        return torch.stack([of_values, of_text]).detach()

    def compile(self) -> None:
        self.backward()
        self.model.zero_grad(set_to_none=True)

    def step(self, progress: float) -> torch.Tensor:
        """One update at `progress` (0 to 1) of the training time."""
        losses = self.backward()
        factor = min(1.0, (self.steps + 1) / WARM_UP_STEPS) * min(1.0, (1 - progress) / DECAY_SHARE)
        factor = max(factor, LAST_FACTOR)
        self.muon.step(factor)
        for group in self.adam.param_groups:
            group["lr"] = VECTOR_RATE * factor
        self.adam.step()
        self.model.zero_grad(set_to_none=True)
        self.steps += 1
        return losses

    def run(self) -> list[dict]:
        """Trains until the time is over; returns the log."""
        log, losses, start = [], [], time.time()
        while (minutes := (time.time() - start) / 60) < self.arguments.minutes:
            losses.append(self.step(minutes / self.arguments.minutes))
            if self.steps % LOG_EVERY == 0:
                self.made.check()
                of_values, of_text = torch.stack(losses).mean(0).tolist()
                losses.clear()
                entry = {"step": self.steps, "minutes": round(minutes, 2), "made_rows": self.made.made}
                log.append({**entry, "values": round(of_values, 4), "text": round(of_text, 4)})
                print(log[-1], flush=True)
        return log


def main() -> None:
    arguments = parse_arguments()
    begun = time.time()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    vocabulary = Tokenizer.from_file(str(questions.DEMO / "tokenizer.json"))
    made = Made(device, arguments, vocabulary.to_str())
    sampled = answers.sampled(arguments.samples / "train.jsonl")
    samples = torch.from_numpy(answers.pack(vocabulary, sampled)).to(device)
    made.wait(FEWEST_MADE_ROWS if device == "cuda" else arguments.batch_rows)
    trainer = Trainer(arguments, device, samples, made)
    trainer.compile()
    started = time.time() - begun
    print(f"started in {started:.0f} s with {len(sampled)} sampled answers", flush=True)
    log = trainer.run()
    made.stop()
    reward.save(trainer.model, vocabulary, arguments.out)
    record = {
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "date": time.strftime("%Y-%m-%d", time.gmtime(begun)),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "seed": arguments.seed,
        "minutes": arguments.minutes,
        "start_seconds": round(started, 1),
        "sampled_answers": len(sampled),
        "right_share": round(sum(one.right for one in sampled) / len(sampled), 3),
        "steps": trainer.steps,
        "tokens": trainer.steps * arguments.batch_rows * ROW,
        "log": log,
    }
    (arguments.out / "train.json").write_text(json.dumps(record) + "\n")
    print(f"{trainer.steps} steps, saved in {arguments.out}", flush=True)


if __name__ == "__main__":
    main()
