"""Sampling trees: ``llm.tree(prompt)`` gives the root; nodes fork, are extended, scored and pruned. The engine computes
and keeps once what branches share."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from offshoot._facts import FinishReason, NodeFacts
from offshoot._forms import Form, form_of_fork
from offshoot._native import NativeGrowth, NativeTree, NodeFailed
from offshoot._params import MOST_SAMPLES, SamplingParams, _whole
from offshoot._rollouts import RolloutTrie

if TYPE_CHECKING:
    import numpy

    from offshoot._adapters import AdapterName
    from offshoot._llm import LLM

_WAIT = 0.1


class Node:
    """A node of a tree: a run of tokens and how it came about. Nodes are equal if they are the same node of the same
    tree."""

    __slots__ = ("tree", "id")

    def __init__(self, tree: "Tree", id: int):
        self.tree, self.id = tree, id

    def __repr__(self) -> str:
        text = self.text
        return f"Node({self.id}, {text[:40] + '…' if len(text) > 40 else text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and other.tree is self.tree and other.id == self.id

    def __hash__(self) -> int:
        return hash((id(self.tree), self.id))

    @property
    def parent(self) -> "Node | None":
        """The node that it was forked from; None for the root."""
        parent = self.tree._native.parent(self.id)
        return None if parent is None else Node(self.tree, parent)

    @property
    def children(self) -> list["Node"]:
        """Its forks, in the order in which they were made."""
        return [Node(self.tree, child) for child in self.tree._native.children(self.id)]

    @property
    def text(self) -> str:
        """The node's own text."""
        return self.tree._native.text(self.id)

    @property
    def path_text(self) -> str:
        """The text after the prompt, up to and with this node's."""
        return self.tree._native.path_text(self.id)

    @property
    def token_ids(self) -> list[int]:
        """The node's own tokens."""
        return self.tree._native.token_ids(self.id)

    @property
    def logprobs(self) -> numpy.ndarray[Any, numpy.dtype[numpy.float32]]:
        """The log-probabilities of the node's tokens, by the LLM's ``logprobs_mode``, as a numpy array: NaN where it is
        not recorded, as of given tokens that were not scored, and empty where it is of none. Given tokens that were
        scored were not drawn: theirs are the model's."""
        import numpy

        return numpy.frombuffer(self.tree._native.logprobs(self.id), dtype=numpy.float32)

    @property
    def entropies(self) -> numpy.ndarray[Any, numpy.dtype[numpy.float32]]:
        """The entropy of the model's distribution in each token's place, in nats, as a numpy array: NaN for tokens that
        were not sampled with ``return_entropy``, and empty where none was."""
        import numpy

        return numpy.frombuffer(self.tree._native.entropies(self.id), dtype=numpy.float32)

    @property
    def forced(self) -> list[bool]:
        """Whether the form of its text allowed no other token in the place of each of the node's tokens; False of
        given ones."""
        return self.tree._native.forced(self.id)

    @property
    def facts(self) -> NodeFacts:
        """How it stands: ``finish_reason``, ``stop_reason``, ``logprob``, ``score``, ``state``, ``error``."""
        return self.tree._native.facts(self.id)

    @property
    def logprob(self) -> float:
        """The natural-log probability of the node's text under the model itself, whatever the ``logprobs_mode``."""
        return self.facts["logprob"]

    @property
    def finish_reason(self) -> FinishReason | Literal["error"] | None:
        """stop, length, dead_end, form_limit, abort or error; None while it has not ended."""
        return self.facts["finish_reason"]

    @property
    def stop_reason(self) -> int | str | None:
        """The stop string, or the id of the stop token, that ended it."""
        return self.facts["stop_reason"]

    @property
    def state(self) -> Literal["open", "closed", "pruned"]:
        """open, closed or pruned."""
        return self.facts["state"]

    @property
    def score(self) -> float | None:
        """The value that a search gave it."""
        return self.facts["score"]

    @score.setter
    def score(self, value: float) -> None:
        self.tree._native.set_score(self.id, float(value))

    def fork(
        self, n: int, *, adapter: AdapterName | None = None, form: Form | Literal[False] | None = None,
    ) -> list["Node"]:
        """``n`` new children, to be extended; ``adapter`` and ``form`` as of ``Tree.fork``."""
        return self.tree.fork(self, n, adapter=adapter, form=form)

    def split(self, tokens: int) -> "Node":
        """Splits the node, which has no children, behind its first ``tokens`` tokens: it keeps these and can be forked
        there, in the middle of what was sampled; the rest is a new child of it, which is returned."""
        tokens = _whole("tokens", tokens, 1)
        decode = self.tree.llm._engine.tokenizer.decode
        before: list[int] = []
        above = self.parent
        while above is not None:
            before, above = above.token_ids + before, above.parent
        told = len(decode(before, skip_special_tokens=True))
        head = decode(before + self.token_ids[:tokens], skip_special_tokens=True)[told:]
        # A character across the border is the rest's.
        text = os.path.commonprefix([head, self.text])
        return Node(self.tree, self.tree._native.split(self.id, tokens, len(text.encode())))

    def extend(
        self, sampling_params: SamplingParams | None = None, *, adapter: AdapterName | None = None,
    ) -> "Node":
        """Samples from this node and waits; returns it. Raises what made it fail. ``adapter`` as of ``Tree.extend``."""
        growth = self.tree.growing([self], sampling_params, adapter=adapter)
        growth.wait()
        return self

    def append(self, text: str | Sequence[int], *, score: bool = False) -> "Node":
        """Appends given text or tokens to this node."""
        self.tree.append([(self, text)], score=score)
        return self

    def prune(self) -> None:
        """Rejects the node and all below it; their memory is free at once."""
        self.tree.prune([self])

    def close(self) -> None:
        """Releases the node's memory; it stays part of the result."""
        self.tree.close([self])


class Tree:
    """A tree of sampled texts below a prompt."""

    def __init__(
        self, llm: "LLM", tokens: list[int], text: str | None, seed: int, name: str, adapter: int | None = None,
    ):
        if text is None:
            text = llm._engine.tokenizer.decode(tokens, skip_special_tokens=False)
        self.llm = llm
        self._native = NativeTree(llm._updated, tokens, text, seed % (1 << 64), name, llm._logprobs_mode, adapter)

    @property
    def root(self) -> Node:
        return Node(self, 0)

    def __len__(self) -> int:
        return len(self._native)

    @property
    def nodes(self) -> list[Node]:
        """All nodes in the order in which they were made."""
        return [Node(self, id) for id in range(len(self))]

    @property
    def leaves(self) -> list[Node]:
        return [node for node in self.nodes if not self._native.children(node.id)]

    def fork(
        self, at: Node, n: int, *, adapter: AdapterName | None = None, form: Form | Literal[False] | None = None,
    ) -> list[Node]:
        """``n`` new children of a node. They go on with the node's adapter, or with ``adapter``: what they continue is
        then shared with forks without it, all but its last token. ``form``: what is sampled from them, and from those
        below them, has this form from their first token on, a ``StructuredOutputsParams``, a JSON Schema or a pydantic
        model; a node's extend goes on where its last one stopped in the form. None: the form of the node, if it has
        one; False: any text."""
        n = _whole("n", n, 1, MOST_SAMPLES)
        version = self.llm._adapters.version(adapter)
        native = None if form is None or form is False else form_of_fork(form)
        if native is not None:
            self.llm._check_form("form", native)
        return [Node(self, id) for id in self._native.fork(self._id(at), n, version, native, form is False)]

    def extend(
        self, nodes: Iterable[Node], sampling_params: SamplingParams | None = None, *,
        adapter: AdapterName | None = None,
    ) -> list[Node]:
        """Samples from all nodes in one batch and waits until each has ended; returns those that did not fail. (Of the
        others ``facts["error"]`` says why.) ``adapter``: what the nodes go on with from here, in place of theirs."""
        return list(self.growing(nodes, sampling_params, adapter=adapter))

    def growing(
        self, nodes: Iterable[Node], sampling_params: SamplingParams | None = None, *,
        adapter: AdapterName | None = None,
    ) -> "Growth":
        """Samples from all nodes in one batch: an iterator of the nodes as they end, while the others go on. Inside the
        loop nodes can be forked, scored, pruned and cancelled, and other extends begun."""
        ids = [self._id(node) for node in nodes]
        params = SamplingParams(max_tokens=256) if sampling_params is None else sampling_params
        if not isinstance(params, SamplingParams):
            raise TypeError(f"sampling_params: expected SamplingParams, found {params!r}")
        params = params.checked()
        if params.samples != 1:
            raise ValueError(f"sampling_params.n: expected 1, found {params.samples}: fork the nodes instead")
        self.llm._given.put_in_force()
        version = self.llm._adapters.version(adapter)
        if version is not None:
            self._native.set_adapter(ids, version)
        return Growth(self, self._native.extend(ids, self.llm._sampling(params, 1 << 30)))

    def append(self, given: Iterable[tuple[Node, str | Sequence[int]]], *, score: bool = False) -> None:
        """Appends given text or tokens to nodes; with ``score`` their log-probabilities are found. Raises what made a
        node fail, once all have ended."""
        tokens = [(self._id(node), self._tokens(text)) for node, text in given]
        self.llm._given.put_in_force()
        Growth(self, self._native.extend_given(tokens, score)).wait()

    def score(self, nodes: Iterable[Node], continuation: str | Sequence[int] | Sequence[str]) -> list[float]:
        """The log-probability of a continuation after each node (or of one for each), all in one batch. The tree does
        not change."""
        nodes = list(nodes)
        one = isinstance(continuation, str) or (
            len(continuation) > 0 and not isinstance(continuation[0], (str, list, tuple)))
        each: list[Any] = [continuation] * len(nodes) if one else list(continuation)
        if len(each) != len(nodes):
            raise ValueError(f"continuation: expected {len(nodes)}, one for each node, found {len(each)}")
        probes = [(self._id(node), self._tokens(text)) for node, text in zip(nodes, each)]
        self.llm._given.put_in_force()
        return self._native.score(probes)

    def prune(self, nodes: Iterable[Node]) -> None:
        self._native.prune([self._id(node) for node in nodes])

    def close(self, nodes: Iterable[Node]) -> None:
        self._native.close([self._id(node) for node in nodes])

    def rollouts(
        self, rewards: Mapping[Node, float | None], *, processed_logprobs: bool = False,
    ) -> RolloutTrie:
        """The paths to nodes, where samples end, as a packed trie, with the reward of each. ``processed_logprobs`` as
        in ``RolloutTrie.from_trees``, which takes several trees."""
        return RolloutTrie.from_trees([rewards], processed_logprobs=processed_logprobs)

    def cut(self, nodes: Iterable[Node] | None = None) -> numpy.ndarray[Any, numpy.dtype[numpy.float32]]:
        """The log-probabilities of the tokens on the paths to ``nodes`` (the leaves) as one numpy array, a row a path,
        from the first token after the prompt; NaN behind the end of shorter paths and where they are not known."""
        import numpy

        paths = []
        for node in self.leaves if nodes is None else nodes:
            parts: list[Any] = []
            at: Node | None = node
            while at is not None and at.id != 0:
                known, count = at.logprobs, len(at.token_ids)
                parts.append(known if len(known) == count else numpy.full(count, numpy.nan, numpy.float32))
                at = at.parent
            paths.append(numpy.concatenate(parts[::-1]) if parts else numpy.zeros(0, numpy.float32))
        rows = numpy.full((len(paths), max((len(path) for path in paths), default=0)), numpy.nan, numpy.float32)
        for row, path in zip(rows, paths):
            row[:len(path)] = path
        return rows

    def html(self) -> str:
        """The tree as a page for a browser, without external resources."""
        return self._native.html()

    def _repr_html_(self) -> str:
        page = html.escape(self.html(), quote=True)
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 480px; border: 1px solid #8884"></iframe>'

    def __repr__(self) -> str:
        return f"Tree({len(self)} nodes)"

    def _id(self, node: Node) -> int:
        if not isinstance(node, Node):
            raise TypeError(f"node: expected a Node, found {node!r}")
        if node.tree is not self:
            raise ValueError(f"node {node.id} is of another tree")
        return node.id

    def _tokens(self, text: str | Sequence[int]) -> list[int]:
        if isinstance(text, str):
            return self.llm._engine.tokenizer.encode([text], False)[0]
        if isinstance(text, (bytes, dict)) or not hasattr(text, "__iter__"):
            raise TypeError(f"expected a text or token ids, found {text!r}")
        vocab = self.llm.tokenizer.vocab_size
        tokens = [_whole("token ids", token, 0) for token in text]
        for token in tokens:
            if token >= vocab:
                raise ValueError(f"token ids: expected numbers below {vocab}, found {token}")
        return tokens


class Growth:
    """A running extend: iterates over its nodes as they end. Leaving the loop cancels the rest."""

    def __init__(self, tree: Tree, native: NativeGrowth):
        self.tree, self._native = tree, native
        #: What made nodes fail.
        self.errors: list[Exception] = []

    def __iter__(self) -> Iterator[Node]:
        try:
            while True:
                events = self._native.next_events(_WAIT)
                if events is None:
                    return
                for event in events:
                    if isinstance(event, NodeFailed):
                        self.errors.append(event.error)
                    else:
                        yield Node(self.tree, event.node)
        finally:
            self.cancel()
            while self._native.next_events(_WAIT) is not None:
                pass

    def wait(self) -> None:
        """Waits until all nodes have ended; raises what made the first one fail."""
        for _ in self:
            pass
        if self.errors:
            raise self.errors[0]

    def cancel(self, nodes: Iterable[Node] | None = None) -> None:
        """Ends nodes (all), which keep their tokens so far."""
        if nodes is None:
            self._native.cancel_all()
        else:
            self._native.cancel([self.tree._id(node) for node in nodes])
