"""``RolloutTrie``: groups of samples and trees as one packed trie, in which a prompt of 16 answers is there once: as
numpy arrays, Arrow tables, a safetensors file, and as the row that TRL's asynchronous trainer takes."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from offshoot._native import NativeTrie, TrieBuilder

if TYPE_CHECKING:
    import numpy
    import pyarrow as pa

    from offshoot._outputs import CompletionOutput, RequestOutput
    from offshoot._tree import Node

    _Ints: TypeAlias = numpy.ndarray[Any, numpy.dtype[numpy.int64]]
    _Bools: TypeAlias = numpy.ndarray[Any, numpy.dtype[numpy.bool_]]
    _Floats: TypeAlias = numpy.ndarray[Any, numpy.dtype[numpy.float32]]
    _Doubles: TypeAlias = numpy.ndarray[Any, numpy.dtype[numpy.float64]]

_DTYPES = {"logprobs": "float32", "sampled": "bool", "rewards": "float64", "leaf_continued": "bool"}


class RolloutTrie:
    """Samples that share prefixes, as arrays over their distinct tokens in depth-first order.

    A given token behind the same tokens is one: a prompt is there once for all of its samples. A sampled token is
    shared by the samples that were forked behind it, and by no others: two samples that begin alike by chance are two
    draws with log-probabilities of their own. Each subtree is a range: token ``i`` attends to token ``j`` if
    ``j <= i < ends[j]``; token ``i`` is predicted at ``parents[i]``.
    """

    def __init__(self, native: NativeTrie):
        self._native = native

    @classmethod
    def from_outputs(
        cls, outputs: RequestOutput | Sequence[RequestOutput],
        rewards: Sequence[float | None] | Sequence[Sequence[float | None]] | None = None,
    ) -> "RolloutTrie":
        """The samples of ``LLM.generate``, a group for each of ``outputs``. ``rewards``: a number for each sample of
        the one output, or a list of them for each output; None: it has none. Samples need the log-probabilities of
        their tokens: ``SamplingParams(logprobs=0)`` asks for them, those of ``LLM(logprobs_mode=…)``. Stragglers, which
        ended with ``abort``, are leaves like the others."""
        several: Any = [outputs] if hasattr(outputs, "outputs") else list(outputs)
        given: Any = None if rewards is None else [rewards] if hasattr(outputs, "outputs") else list(rewards)
        if given is not None and len(given) != len(several):
            raise ValueError(f"rewards: expected {len(several)} lists, one for each output, found {len(given)}")
        builder = TrieBuilder()
        for group, output in enumerate(several):
            own = [None] * len(output.outputs) if given is None else list(given[group])
            if len(own) != len(output.outputs):
                raise ValueError(
                    f"rewards[{group}]: expected {len(output.outputs)}, one for each sample, found {len(own)}")
            for sample, reward in zip(output.outputs, own):
                at = builder.prompt(output.prompt_token_ids)
                ids = list(sample.token_ids)
                end = builder.segment(at, ids, _logprobs(sample, group), _versions(sample, len(ids)))
                builder.leaf(end, group, sample.index, None if reward is None else float(reward),
                             sample.finish_reason or "abort", sample.stop_reason, sample.continued)
        return cls(builder.build())

    @classmethod
    def from_trees(
        cls, trees: Iterable[Mapping[Node, float | None]], *, processed_logprobs: bool = False,
    ) -> "RolloutTrie":
        """The paths to nodes of trees, a group for each of ``trees``: nodes where samples end, with their rewards.
        ``processed_logprobs``: the log-probabilities are those of the distributions that tokens were drawn from, not
        the model's own. They must be recorded of all sampled tokens: of those sampled with
        ``logprobs_mode="processed_logprobs"``, of the ``LLM`` or of the ``SamplingParams``, or with ``return_kept``.
        """
        builder = TrieBuilder()
        for group, leaves in enumerate(trees):
            if not leaves:
                raise ValueError(f"trees[{group}]: expected the nodes where samples end, found none")
            tree = next(iter(leaves)).tree
            ends = [(tree._id(node), sample, None if reward is None else float(reward))
                    for sample, (node, reward) in enumerate(leaves.items())]
            builder.tree(tree._native, group, ends, bool(processed_logprobs))
        return cls(builder.build())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "RolloutTrie":
        """The trie in a safetensors file that ``save`` wrote."""
        return cls(NativeTrie.read(os.fspath(path)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a safetensors file: a tensor for each column (``rewards`` as ``leaf_rewards``), the reasons for which
        samples ended in its metadata."""
        self._native.write(os.fspath(path))

    def __len__(self) -> int:
        """Number of distinct tokens."""
        return len(self._native)

    def __repr__(self) -> str:
        return f"RolloutTrie({len(self.leaf_tokens)} samples, {len(self)} of {self.unpacked_tokens} tokens)"

    @property
    def unpacked_tokens(self) -> int:
        """Tokens of all samples together, as if nothing were shared."""
        return self._native.unpacked_tokens()

    @functools.cached_property
    def _columns(self) -> dict[str, Any]:
        return _arrays(self._native.columns())

    # A column by its name, with the type of its numbers.

    def _ints(self, name: str) -> _Ints:
        column: _Ints = self._columns[name]
        return column

    def _bools(self, name: str) -> _Bools:
        column: _Bools = self._columns[name]
        return column

    def _floats(self, name: str) -> _Floats:
        column: _Floats = self._columns[name]
        return column

    def _doubles(self, name: str) -> _Doubles:
        column: _Doubles = self._columns[name]
        return column

    # Tokens.

    @property
    def token_ids(self) -> _Ints:
        return self._ints("token_ids")

    @property
    def parents(self) -> _Ints:
        """The index of the token before each; -1 for the first of a prompt."""
        return self._ints("parents")

    @property
    def ends(self) -> _Ints:
        """The index behind each token's subtree."""
        return self._ints("ends")

    @property
    def positions(self) -> _Ints:
        """Tokens before each on its path: position ids."""
        return self._ints("positions")

    @property
    def depths(self) -> _Ints:
        """Segments before each token's own on its path: 0 in prompts, one more behind each fork."""
        return self._ints("depths")

    @property
    def logprobs(self) -> _Floats:
        """Natural-log probabilities of sampled tokens, as they were recorded; NaN for given ones."""
        return self._floats("logprobs")

    @property
    def weight_versions(self) -> _Ints:
        """The version of the weights that each token was sampled under; -1 for given ones."""
        return self._ints("weight_versions")

    @property
    def sampled(self) -> _Bools:
        """Whether each token was sampled: the loss mask."""
        return self._bools("sampled")

    # Samples.

    @property
    def leaf_tokens(self) -> _Ints:
        """The index of each sample's last token."""
        return self._ints("leaf_tokens")

    @property
    def leaf_groups(self) -> _Ints:
        """The number of each sample's prompt or tree."""
        return self._ints("leaf_groups")

    @property
    def leaf_samples(self) -> _Ints:
        """The index of each sample in its group."""
        return self._ints("leaf_samples")

    @property
    def leaf_continued(self) -> _Bools:
        """Whether each sample was a straggler that was finished later."""
        return self._bools("leaf_continued")

    @property
    def rewards(self) -> _Doubles:
        """The reward of each sample; NaN: it has none."""
        return self._doubles("rewards")

    @functools.cached_property
    def finish_reasons(self) -> list[str]:
        """Why each sample ended: stop, length, abort, dead_end or form_limit."""
        return [reason for reason, _ in self._native.finishes()]

    @functools.cached_property
    def stop_reasons(self) -> list[int | str | None]:
        """The stop string, or the id of the stop token, that ended each sample."""
        return [stop for _, stop in self._native.finishes()]

    def path(self, leaf: int) -> _Ints:
        """The indices of the tokens of a sample, from the first of its prompt on."""
        import numpy

        return numpy.frombuffer(self._native.path(leaf), dtype=numpy.int64)

    def sequence(self, leaf: int) -> _Ints:
        """The token ids of a sample, its prompt's first."""
        return self.token_ids[self.path(leaf)]

    def attention_mask(self) -> _Bools:
        """For each token the tokens that it attends to, as a square matrix: itself and those before it on its path."""
        import numpy

        at = numpy.arange(len(self))
        return (at[None, :] <= at[:, None]) & (at[:, None] < self.ends[None, :])

    def tree_row(self, advantages: Sequence[float] | None = None) -> dict[str, Any]:
        """The trie as the row that ``TreeRow.pack`` of TRL's asynchronous GRPO gives, by the same names, of numpy
        arrays (``torch.from_numpy`` makes tensors of them). There a token is repeated for each token that follows it.
        ``advantages``: one for each sample; without them, the rewards less the mean of their group."""
        import numpy

        row = _arrays(self._native.row())
        each = self._centred() if advantages is None else numpy.asarray(advantages, dtype=numpy.float32)
        if each.shape != self.leaf_tokens.shape:
            raise ValueError(f"advantages: expected {len(self.leaf_tokens)}, one for each sample, found {each.size}")
        queries, keys = row["segment_borders"], row["path_borders"]
        longest = [max(numpy.diff(borders), default=0) for borders in (queries, keys)]
        return {
            "input_ids": row["input_ids"], "position_ids": row["position_ids"], "shift_labels": row["shift_labels"],
            "tree_kv_index": row["kv_index"], "tree_cu_seqlens_q": queries.astype(numpy.int32),
            "tree_cu_seqlens_k": keys.astype(numpy.int32), "tree_max_seqlens": numpy.array(longest, dtype=numpy.int64),
            "token_index": row["token_index"], "old_log_probs": row["logprobs"],
            "advantages": each.astype(numpy.float32)[row["leaves"]], "segment_id": row["leaves"],
        }

    def _centred(self) -> _Doubles:
        import numpy

        advantages = self.rewards.copy()
        for group in numpy.unique(self.leaf_groups):
            own = self.leaf_groups == group
            advantages[own] -= advantages[own].mean()
        return advantages

    def to_arrow(self) -> pa.Table:
        """The tokens as a ``pyarrow.Table``, a row a token; null: a prompt's first token has no parent, a given token
        no version. Its memory is the trie's own."""
        import pyarrow as pa

        return pa.table(self._native.tokens())

    def leaves_to_arrow(self) -> pa.Table:
        """The samples as a ``pyarrow.Table``, a row a sample."""
        import pyarrow as pa

        return pa.table(self._native.leaves())


def _arrays(columns: Mapping[str, bytes]) -> dict[str, Any]:
    import numpy

    return {name: numpy.frombuffer(column, dtype=_DTYPES.get(name, "int64")) for name, column in columns.items()}


def _logprobs(sample: CompletionOutput, group: int) -> list[float]:
    if sample.logprobs is None:
        raise ValueError(
            f"outputs[{group}].outputs[{sample.index}].logprobs: expected the log-probabilities of its tokens, found "
            "None: ask for them by SamplingParams(logprobs=0)")
    return [row[token].logprob for token, row in zip(sample.token_ids, sample.logprobs)]


def _versions(sample: CompletionOutput, count: int) -> list[int] | None:
    """The version of the weights that each token was sampled under, of samples that say it."""
    versions = getattr(sample, "weight_versions", None)
    return None if versions is None else list(versions)[:count]
