"""Batched sampling with a key-value cache; each prompt is computed once for all its samples."""

import torch
import torch.nn.functional as F

import llama
from tokenizer import END

KEYS_ROUNDED_TO = 32
STOP_CHECK_EVERY = 8


class Sampler:
    def __init__(self, model: llama.Llama, tokenizer, seed: int = 0):
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for every key length
        torch.manual_seed(seed)
        self.model, self.tokenizer = model.to(self.device, self.dtype).requires_grad_(False), tokenizer
        cos, sin = llama.rotary_tables(model.shape, model.shape.context, self.device)
        self.cos, self.sin = cos.to(self.dtype), sin.to(self.dtype)

    def encode(self, prompts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self.tokenizer.encode_batch(prompts)]

    @torch.no_grad()
    def prefill(self, prompts: list[list[int]]):
        """Logits after each prompt, the padded caches, and the prompts' lengths."""
        longest = max(map(len, prompts))
        tokens = torch.tensor([ids + [END] * (longest - len(ids)) for ids in prompts], device=self.device)
        lengths = torch.tensor([len(ids) for ids in prompts], device=self.device)
        x = self.model.embedding[tokens]
        caches = []
        for block in self.model.blocks:
            x, k, v = block(x, self.cos[:longest], self.sin[:longest])
            caches.append((k, v))
        last = x[torch.arange(len(prompts), device=self.device), lengths - 1]
        return self.model.logits(last), caches, lengths

    @torch.no_grad()
    def decode(self, tokens, positions, caches, keys: int):
        """Logits after one more token a row; `caches` are written in place."""
        shape = self.model.shape
        rows = torch.arange(len(tokens), device=self.device)
        cos, sin = self.cos[positions][:, None, None], self.sin[positions][:, None, None]
        seen = (torch.arange(keys, device=self.device) <= positions[:, None])[:, None, None]
        x = self.model.embedding[tokens][:, None]
        for block, (k_cache, v_cache) in zip(self.model.blocks, caches):
            q, k, v = block.project(x, cos, sin)
            k_cache[rows, :, positions], v_cache[rows, :, positions] = k[:, :, 0], v[:, :, 0]
            grouped = q.view(len(tokens), shape.kv_heads, shape.heads // shape.kv_heads, shape.head_dim)
            attended = F.scaled_dot_product_attention(
                grouped, k_cache[:, :, :keys], v_cache[:, :, :keys], attn_mask=seen
            )
            x = block.finish(x, attended.reshape(len(tokens), 1, -1))
        return self.model.logits(x[:, 0])

    def pick(self, logits: torch.Tensor, temperature: float) -> torch.Tensor:
        if temperature == 0:
            return logits.argmax(-1)
        return torch.multinomial((logits / temperature).softmax(-1), 1)[:, 0]

    def sample(
        self, prompts: list[str], samples: int, temperature: float, most: int, stops: tuple[str, ...], rows: int = 4096
    ) -> list[list[str]]:
        """`samples` texts a prompt, each cut before its first stop string; about `rows` at a time."""
        encoded = self.encode(prompts)
        by_length = sorted(range(len(prompts)), key=lambda i: len(encoded[i]))
        at_once = max(1, rows // samples)
        texts: list[list[str]] = [[] for _ in prompts]
        for start in range(0, len(prompts), at_once):
            chunk = by_length[start : start + at_once]
            sampled = self._sample_chunk([encoded[i] for i in chunk], samples, temperature, most, stops)
            for i, own in zip(chunk, sampled):
                texts[i] = own
        return texts

    def _sample_chunk(self, prompts, samples, temperature, most, stops):
        logits, caches, lengths = self.prefill(prompts)
        longest = max(map(len, prompts))
        room = -(-(longest + most) // KEYS_ROUNDED_TO) * KEYS_ROUNDED_TO
        caches = [tuple(self._spread(half, samples, room) for half in pair) for pair in caches]
        logits, positions = logits.repeat_interleave(samples, 0), lengths.repeat_interleave(samples, 0)
        done = torch.zeros(len(positions), dtype=torch.bool, device=self.device)
        tokens = torch.full((len(positions), most), END, device=self.device)
        for step in range(most):
            picked = torch.where(done, END, self.pick(logits, temperature))
            tokens[:, step] = picked
            done |= picked == END
            if step % STOP_CHECK_EVERY == STOP_CHECK_EVERY - 1:
                done |= self._stopped(tokens[:, : step + 1], done, stops)
                if done.all():
                    break
            keys = min(room, (longest + step) // KEYS_ROUNDED_TO * KEYS_ROUNDED_TO + KEYS_ROUNDED_TO)
            logits = self.decode(picked, positions, caches, keys)
            positions = positions + 1
        texts = [cut(text, stops) for text in self.tokenizer.decode_batch(tokens.tolist())]
        return [texts[i : i + samples] for i in range(0, len(texts), samples)]

    def _spread(self, cache: torch.Tensor, samples: int, room: int) -> torch.Tensor:
        """The prompts' keys or values, once a sample, with room for `room` positions."""
        return F.pad(cache, (0, 0, 0, room - cache.shape[2])).repeat_interleave(samples, 0)

    def _stopped(self, tokens, done, stops):
        running = (~done).nonzero()[:, 0]
        texts = self.tokenizer.decode_batch(tokens[running].tolist())
        hit = torch.zeros_like(done)
        hit[running] = torch.tensor(
            [any(stop in text for stop in stops) for text in texts], dtype=torch.bool, device=self.device
        )
        return hit

    def word_probabilities(self, prompts: list[str], words, temperature: float, rows: int = 1024) -> torch.Tensor:
        """(prompts, words): probability of each one-token word as the next token."""
        ids = [self.tokenizer.encode(word, add_special_tokens=False).ids[0] for word in words]
        encoded = self.encode(prompts)
        parts = []
        for start in range(0, len(prompts), rows):
            logits, _, _ = self.prefill(encoded[start : start + rows])
            parts.append((logits / temperature).softmax(-1)[:, ids].cpu())
        return torch.cat(parts)


def cut(text: str, stops: tuple[str, ...]) -> str:
    return text[: min([text.find(stop) for stop in stops if stop in text] + [len(text)])]
