"""Trains the demo model: python train.py --minutes 16 --out DIR

Makes the tokenizer, starts workers that write training rows without end, and
trains for the given time. The schedule is a function of elapsed time: warm-up,
constant, linear decay over the last half; short rows first, long rows at the
end. One seed fixes the data streams and the initial weights, but not their
interleaving, so two runs give two models of the same kind, not the same bits.
"""

import argparse
import json
import multiprocessing
import os
import random
import threading
import time
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch

import llama
import rows
import tokenizer
from mixture import LONG_ROW, SHORT_ROW
from optimizer import Muon

GIVEN_WEIGHT = 0.1
MATRIX_RATE, VECTOR_RATE = 5e-3, 3e-3
WEIGHT_DECAY = 0.05
WARM_UP_STEPS = 100
DECAY_SHARE = 0.5
LAST_FACTOR = 0.01
EARLY_LONG_SHARE = 0.03
POOL_TOKENS = {SHORT_ROW: 900_000_000, LONG_ROW: 500_000_000}
LOG_EVERY = 250


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, required=True, help="training time, start and compilation excluded")
    parser.add_argument("--out", type=Path, required=True, help="folder for the model, train.json and a checkpoint")
    parser.add_argument("--seed", type=int, default=24)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--batch-tokens", type=int, default=131072)
    parser.add_argument("--long-from", type=float, default=0.65, help="share of the time after which all rows are long")
    parser.add_argument("--checkpoint-minutes", type=float, default=2.0)
    return parser.parse_args()


class Pool:
    """All rows made so far, on the training device; old ones are overwritten when it is full."""

    def __init__(self, device: str, queue, processes):
        share = 1 if device == "cuda" else 0.002
        self.buffers = {
            length: torch.zeros(int(tokens * share) // length, length + 1, dtype=torch.int16, device=device)
            for length, tokens in POOL_TOKENS.items()
        }
        self.made = dict.fromkeys(self.buffers, 0)
        self.queue, self.processes = queue, processes
        self.failure: str | None = None
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self) -> None:
        try:
            while True:
                item = self.queue.get()
                if isinstance(item, rows.WorkerError):
                    raise RuntimeError(f"worker {item.worker} failed\n{item.trace}")
                self._store(item)
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"

    def _store(self, shard: rows.Shard) -> None:
        buffer = self.buffers[shard.length]
        start = self.made[shard.length] % len(buffer)
        count = min(len(shard.rows), len(buffer) - start)
        buffer[start : start + count] = torch.from_numpy(shard.rows[:count]).to(buffer.device)
        self.made[shard.length] += count

    def check(self) -> None:
        """Raises if a worker failed or died."""
        dead = [p.exitcode for p in self.processes if not p.is_alive()]
        if self.failure or dead:
            time.sleep(1)  # lets a dead worker's last words arrive
            raise RuntimeError(self.failure or f"workers died with exit codes {dead}")

    def wait_for_rows(self) -> None:
        while not all(self.made.values()):
            self.check()
            time.sleep(0.1)

    def draw(self, length: int, batch_tokens: int):
        """Tokens, targets and weights of a random batch."""
        buffer = self.buffers[length]
        available = min(self.made[length], len(buffer))
        picked = torch.randint(available, (max(1, batch_tokens // length),), device=buffer.device)
        batch = buffer[picked].int()
        kinds = batch[:, 1:] >> rows.KIND_SHIFT
        weights = (kinds == rows.PRODUCED).float() + (kinds == rows.GIVEN).float() * GIVEN_WEIGHT
        tokens = batch & rows.TOKEN_MASK
        return tokens[:, :-1], tokens[:, 1:].long(), weights


class Trainer:
    def __init__(self, arguments, device: str):
        self.arguments, self.device = arguments, device
        torch.manual_seed(arguments.seed)
        self.random = random.Random(arguments.seed)
        self.model = llama.Llama().to(device)
        self.tables = llama.rotary_tables(self.model.shape, LONG_ROW, device)
        matrices = [p for block in self.model.blocks for p in block.parameters() if p.ndim == 2]
        others = [p for name, p in self.model.named_parameters() if p.ndim == 1 or name == "embedding"]
        self.muon = Muon(matrices, MATRIX_RATE, WEIGHT_DECAY)
        self.adam = torch.optim.AdamW(
            others, lr=VECTOR_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=device == "cuda"
        )
        self.loss = torch.compile(self.model.loss, dynamic=False) if device == "cuda" else self.model.loss
        self.steps = self.tokens = 0

    def backward(self, pool: Pool, length: int) -> torch.Tensor:
        cos, sin = (table[:length] for table in self.tables)
        batch = pool.draw(length, self.arguments.batch_tokens)
        loss, produced_loss = self.loss(*batch, cos, sin)
        loss.backward()
        self.tokens += batch[0].numel()
        return produced_loss.detach()

    def compile(self, pool: Pool) -> None:
        for length in (LONG_ROW, SHORT_ROW):
            self.backward(pool, length)
        self.model.zero_grad(set_to_none=True)
        self.tokens = 0

    def step(self, pool: Pool, progress: float) -> torch.Tensor:
        """One update at `progress` (0 to 1) of the training time."""
        late = progress > self.arguments.long_from
        length = LONG_ROW if late or self.random.random() < EARLY_LONG_SHARE else SHORT_ROW
        produced_loss = self.backward(pool, length)
        factor = min(1.0, (self.steps + 1) / WARM_UP_STEPS) * min(1.0, (1 - progress) / DECAY_SHARE)
        factor = max(factor, LAST_FACTOR)
        self.muon.step(factor)
        for group in self.adam.param_groups:
            group["lr"] = VECTOR_RATE * factor
        self.adam.step()
        self.model.zero_grad(set_to_none=True)
        self.steps += 1
        return produced_loss


def start_workers(arguments, tokenizer_json: str):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue(maxsize=64)
    processes = [
        context.Process(target=rows.work, args=(i, arguments.seed, tokenizer_json, queue), daemon=True)
        for i in range(arguments.workers)
    ]
    for process in processes:
        process.start()
    return queue, processes


def run(trainer: Trainer, pool: Pool, vocabulary) -> list[dict]:
    """Trains until the time is over; returns the log."""
    arguments = trainer.arguments
    log, losses = [], []
    start = time.time()
    next_checkpoint = arguments.checkpoint_minutes
    while (minutes := (time.time() - start) / 60) < arguments.minutes:
        losses.append(trainer.step(pool, minutes / arguments.minutes))
        if trainer.steps % LOG_EVERY == 0:
            pool.check()
            log.append(
                {
                    "step": trainer.steps,
                    "minutes": round(minutes, 2),
                    "tokens": trainer.tokens,
                    "loss": round(torch.stack(losses).mean().item(), 4),
                    "made": sum(length * count for length, count in pool.made.items()),
                }
            )
            losses.clear()
            print(log[-1], flush=True)
        if minutes > next_checkpoint:
            llama.save(trainer.model, vocabulary, arguments.out / "checkpoint")
            next_checkpoint += arguments.checkpoint_minutes
    return log


def main() -> None:
    arguments = parse_arguments()
    begun = time.time()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    vocabulary = tokenizer.train(arguments.seed)
    queue, processes = start_workers(arguments, vocabulary.to_str())
    pool = Pool(device, queue, processes)
    trainer = Trainer(arguments, device)
    pool.wait_for_rows()
    trainer.compile(pool)
    started = time.time() - begun
    print(f"started in {started:.0f} s", flush=True)
    log = run(trainer, pool, vocabulary)
    for process in processes:
        process.terminate()
    llama.save(trainer.model, vocabulary, arguments.out)
    record = {
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "date": time.strftime("%Y-%m-%d", time.gmtime(begun)),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "seed": arguments.seed,
        "minutes": arguments.minutes,
        "start_seconds": round(started, 1),
        "steps": trainer.steps,
        "tokens": trainer.tokens,
        "log": log,
    }
    (arguments.out / "train.json").write_text(json.dumps(record) + "\n")
    print(f"{trainer.steps} steps, {trainer.tokens / 1e6:.0f} M tokens, saved in {arguments.out}", flush=True)


if __name__ == "__main__":
    main()
