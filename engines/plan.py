"""What a model's shape and a context cost in the ring engine, known before any weight is there.

FLOPs are those of matrix products, a multiplication and an addition counted as two, as PyTorch's own `FlopCounterMode`
counts them. Bytes are the least that has to move: weights once a program, keys and values where they are attended to
or stored; activations are left out.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers
from torch import nn

from engines.devices import DTYPES
from engines.errors import EngineError
from engines.programs import visible_sizes
from engines.protocol import DType
from engines.ring_cache import PIECE, RingCache, layer_kinds


@dataclass(frozen=True)
class Cost:
    """Matrix-product FLOPs, and bytes read from and written to memory."""

    flops: int = 0
    bytes: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        """Return both together."""
        return Cost(self.flops + other.flops, self.bytes + other.bytes)


@dataclass(frozen=True)
class LayerGroup:
    """Layers alike. Those that store nothing attend to the keys and values of another layer of their kind.

    Attributes:
        kind: full_attention or sliding_attention.
        stores: whether they store keys and values of their own.
        slots: of the cache that they attend to.
        window: positions that they look back; None: all.
        kv_heads: heads of keys, and of values.
        head_size: numbers of one head.
        count: how many such layers there are.
    """

    kind: str
    stores: bool
    slots: int
    window: int | None
    kv_heads: int
    head_size: int
    count: int = 1

    @property
    def kv_size(self) -> int:
        """Numbers that one position takes in one layer: a key and a value."""
        return 2 * self.kv_heads * self.head_size


@dataclass(frozen=True)
class Plan:
    """What one context costs; `prompt_tokens` is the prompt that is read, and a step comes when the context is full.

    `read_flops` attends to the filled part exactly, as the engine does in eager mode; `read_flops_compiled` in whole
    pieces to the next of `visible_sizes`, as it does compiled. `read_flops_every_slot_every_layer` sends every token
    through every layer, and each attends to every slot, empty ones too.
    """

    context: int
    prompt_tokens: int
    dtype: DType
    layers: list[LayerGroup]
    visible_sizes: list[int]
    cache_bytes: int
    weight_bytes: int
    read_flops: int
    read_flops_compiled: int
    read_flops_every_slot_every_layer: int
    read_bytes: int
    step_flops: int
    step_bytes: int


class Costs:
    """The costs of the two programs of one model over a cache of one size."""

    def __init__(self, config: Any, context: int, dtype: DType) -> None:
        """Take every shape from transformers' own model code, built on the meta device, and from the engine's cache.

        Args:
            config: of a text model.
            context: positions that the cache holds.
            dtype: of weights and cache.

        Raises:
            EngineError: for a kind of layer that the ring cannot hold, and a configuration that makes no model.
        """
        kinds = layer_kinds(config)
        meta = torch.device("meta")
        try:
            with meta:
                model = transformers.AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype])
        except Exception as error:  # of every kind: whatever transformers stumbles over in numbers that cannot be
            raise EngineError(
                f"transformers builds no model of this config.json ({type(error).__name__}: {error}); check its numbers"
            ) from error
        base = model.base_model
        cache = RingCache(config, context, meta)
        self.slots = cache.slots
        self._width = DTYPES[dtype].itemsize
        self._layers = [_Layer(config, index, kind, cache, base.layers[index]) for index, kind in enumerate(kinds)]
        # Beside the layers and the head: E2B projects every token once for the embeddings of all its layers.
        self._beside = sum(
            module.weight.numel()
            for name, module in base.named_modules()
            if isinstance(module, nn.Linear) and not name.startswith("layers.")
        )
        self._row = sum(table.embedding_dim for table in base.modules() if isinstance(table, nn.Embedding))
        self._head = model.get_output_embeddings().weight.numel()
        self.weight_bytes = self._width * _count(model.parameters())

    @property
    def groups(self) -> list[LayerGroup]:
        """The layers, those alike together."""
        counts = Counter(layer.group for layer in self._layers)
        return [replace(group, count=count) for group, count in counts.items()]

    @property
    def mixes_experts(self) -> bool:
        """Whether a layer chooses experts for each token."""
        return any(layer.experts for layer in self._layers)

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values in all layers that store them."""
        return self._width * sum(group.count * group.slots * group.kv_size for group in self.groups if group.stores)

    def piece(self, tokens: int, visible: int) -> Cost:
        """Return the cost of a piece of the prompt: the layers that store, of the last one what it stores."""
        *before, last = [layer for layer in self._layers if layer.group.stores]
        flops, numbers = last.storing(tokens)
        return self._run(before, tokens, visible) + Cost(flops, self._width * numbers)

    def step(self, visible: int) -> Cost:
        """Return the cost of one token through all layers, and its logits."""
        return self.all_layers(1, visible) + Cost(2 * self._head, self._width * self._head)

    def all_layers(self, tokens: int, visible: int) -> Cost:
        """Return the cost of tokens through all layers, no logits."""
        return self._run(self._layers, tokens, visible)

    def _run(self, layers: list["_Layer"], tokens: int, visible: int) -> Cost:
        numbers = self._beside + tokens * self._row + sum(layer.numbers(tokens, visible) for layer in layers)
        flops = 2 * tokens * self._beside + sum(layer.flops(tokens, visible) for layer in layers)
        return Cost(flops, self._width * numbers)


class _Layer:
    """One decoder layer: its attention, and the weights that its tokens meet."""

    def __init__(self, config: Any, index: int, kind: str, cache: RingCache, module: nn.Module) -> None:
        own = config.per_layer_config[index]
        table = cache.tables[kind]
        self._query_heads = own.num_attention_heads
        self.group = LayerGroup(
            kind=kind,
            stores=index < cache.storing_layers,
            slots=table.slots,
            window=table.window,
            kv_heads=getattr(own, "num_key_value_heads", None) or self._query_heads,
            head_size=getattr(own, "head_dim", None) or own.hidden_size // self._query_heads,
        )
        # Experts lie together in tensors [E, out, in]; what else a token is multiplied with is a matrix [out, in].
        stacked = [weight for weight in module.parameters() if weight.ndim == 3]
        self.experts = stacked[0].shape[0] if stacked else 0
        self._expert = _count(stacked) // max(self.experts, 1)
        self._chosen = _experts_per_token(config) if stacked else 0
        self._dense = _count(module.parameters()) - _count(stacked)
        self._matrices = _count(weight for weight in module.parameters() if weight.ndim == 2)
        # The model's code projects to queries before it stores keys and values; only a compiler leaves that out.
        self._projections = _count(
            weight
            for name, weight in module.named_parameters()
            if weight.ndim == 2 and name.startswith("self_attn.") and not name.startswith("self_attn.o_proj.")
        )

    def flops(self, tokens: int, visible: int) -> int:
        """A matrix [out, in] takes 2 out in a token; scores and weighted sum take 2 D each a query head and key."""
        keys = min(visible, self.group.slots)
        attention: int = 4 * self._query_heads * self.group.head_size * keys
        return tokens * (2 * (self._matrices + self._chosen * self._expert) + attention)

    def storing(self, tokens: int) -> tuple[int, int]:
        """FLOPs and numbers of the projections to queries, keys and values alone, and of storing the latter two."""
        return 2 * tokens * self._projections, self._projections + tokens * self.group.kv_size

    def numbers(self, tokens: int, visible: int) -> int:
        """Weights, and keys and values, that have to move for `tokens` tokens."""
        met = min(self.experts, tokens * self._chosen)  # experts, at most
        positions = min(visible, self.group.slots) + (tokens if self.group.stores else 0)
        return self._dense + met * self._expert + positions * self.group.kv_size


def read_eagerly(costs: Costs, prompt_tokens: int) -> Iterator[Cost]:
    """Yield the cost of each program that reads a prompt when attention covers the filled part exactly."""
    before = prompt_tokens - 1  # the last token goes through the step program
    for begin in range(0, before, PIECE):
        end = min(begin + PIECE, before)
        yield costs.piece(end - begin, end)
    yield costs.step(prompt_tokens)


def read_compiled(costs: Costs, prompt_tokens: int, sizes: list[int]) -> Iterator[Cost]:
    """Yield the cost of each program that reads a prompt in whole pieces, attention over the next of `sizes`."""
    for end in range(PIECE, prompt_tokens - 1 + PIECE, PIECE):
        yield costs.piece(PIECE, next(size for size in sizes if size >= end))
    yield costs.step(next(size for size in sizes if size >= prompt_tokens))


def longest_prompt(config: Any, context: int, room: int) -> int:
    """Return the tokens of the longest prompt: the context, or the model's own positions, less `room` for the answer.

    Source: the published run's longest prompt was to fill 131,072 - 64 tokens of a 131,328-token context.

    Raises:
        EngineError: when the context has room for an answer only.
    """
    positions: int = getattr(config, "max_position_embeddings", None) or context
    longest = min(context, positions) - room
    if longest < 1:
        raise EngineError(f"--context {context} leaves no token for a prompt beside {room} for its answer")
    return longest


def make_plan(config: Any, context: int, dtype: DType, parts: int, prompt_tokens: int) -> Plan:
    """Return what `context` costs for the model of `config`.

    Args:
        config: of a text model.
        context: tokens that prompt and answer may have together.
        dtype: of weights and cache.
        parts: compiled, in how many sizes of the filled part.
        prompt_tokens: of the prompt that is read.

    Raises:
        EngineError: when the prompt does not fit, or the ring cannot hold the model.
    """
    if prompt_tokens >= context:
        raise EngineError(
            f"a prompt of {prompt_tokens} tokens leaves a context of {context} no room for an answer: give a larger "
            "--context or a smaller --prompt"
        )
    costs = Costs(config, context, dtype)
    sizes = visible_sizes(costs.slots, parts)
    read = sum(read_eagerly(costs, prompt_tokens), Cost())
    step = costs.step(costs.slots)
    # The logits are asked for once, after the last token, as in our own reading.
    every_slot = costs.all_layers(prompt_tokens - 1, costs.slots) + step
    return Plan(
        context=context,
        prompt_tokens=prompt_tokens,
        dtype=dtype,
        layers=costs.groups,
        visible_sizes=sizes,
        cache_bytes=costs.cache_bytes,
        weight_bytes=costs.weight_bytes,
        read_flops=read.flops,
        read_flops_compiled=sum(read_compiled(costs, prompt_tokens, sizes), Cost()).flops,
        read_flops_every_slot_every_layer=every_slot.flops,
        read_bytes=read.bytes,
        step_flops=step.flops,
        step_bytes=step.bytes,
    )


def _count(weights: Any) -> int:
    return sum(weight.numel() for weight in weights)


def _experts_per_token(config: Any) -> int:
    chosen: int = getattr(config, "top_k_experts", None) or config.num_experts_per_tok
    return chosen
