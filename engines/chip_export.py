"""A child program of `engines.chip`: writes the ring engine's two programs as TorchTPU hands them to a compiler.

Weights and cache are on the meta device, so a model of any size is exported without memory for it. Runs under
`tpu_on_cpu.environment()`: TorchTPU translates for a device that it has started.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from engines import EngineOptions, tpu_on_cpu
from engines.devices import DTYPES, attention
from engines.programs import Programs
from engines.ring_cache import PIECE, RingCache

PROGRAMS = {"piece": PIECE, "step": 1}  # by the tokens that they read


class _Program(nn.Module):
    """One of the two programs, reading as many slots as the context has; the cache's tensors are its buffers."""

    def __init__(self, name: str, model: nn.Module, config: Any, context: int) -> None:
        super().__init__()
        self._name = name
        self.model = model
        self._cache = RingCache(config, context, torch.device("meta"))
        self._programs = Programs(model, self._cache, None, 1)
        # The layers make their slots when they first store something, which is to happen before the trace.
        self._programs.piece(*_inputs(1), self._cache.slots)
        self._owners: dict[str, tuple[object, str]] = {}
        for kind, table in self._cache.tables.items():
            self._own(kind, table, "positions")
        for index, layer in enumerate(self._cache.layers[: self._cache.storing_layers]):
            self._own(str(index), layer, "keys")
            self._own(str(index), layer, "values")

    def forward(self, ids: Tensor, positions: Tensor) -> list[Tensor]:
        """Read ids `[n]` at positions `[n]`; return the step, if it is asked for, and the whole new cache."""
        for buffer, (owner, attribute) in self._owners.items():
            setattr(owner, attribute, getattr(self, buffer).clone())
        answer: list[Tensor] = []
        if self._name == "step":
            answer = list(self._programs.step(ids, positions, self._cache.slots))
        else:
            self._programs.piece(ids, positions, self._cache.slots)
        return [*answer, *(getattr(owner, attribute) for owner, attribute in self._owners.values())]

    def _own(self, owner_name: str, owner: object, attribute: str) -> None:
        buffer = f"{owner_name}_{attribute}"
        self.register_buffer(buffer, getattr(owner, attribute))
        self._owners[buffer] = owner, attribute


def _inputs(count: int) -> tuple[Tensor, Tensor]:
    """Return ids and positions, `[n]` each."""
    return torch.zeros(count, dtype=torch.long, device="meta"), torch.arange(count, device="meta")


def _artifact(program: _Program, inputs: tuple[Tensor, Tensor]) -> bytes:
    """Return StableHLO in its portable form; weights that the model has under two names are one argument."""
    from torch_tpu._internal.compile.tpu_torch_compile import placeholder_like
    from torch_tpu._internal.export.export import fx_to_mlir

    state = {**dict(program.named_parameters()), **dict(program.named_buffers())}

    def pure(tensors: list[Tensor], *inputs: Tensor) -> Any:
        return functional_call(program, dict(zip(state, tensors, strict=True)), inputs)

    with torch.no_grad():
        traced = make_fx(pure)(list(state.values()), *inputs)
    traced.graph.eliminate_dead_code()
    for node in traced.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": torch.device("tpu")}
    traced.recompile()
    arguments = [placeholder_like(tensor).to("tpu") for tensor in (*state.values(), *inputs)]
    artifact: bytes = fx_to_mlir(traced, args=arguments).serialize_portable_artifact()
    return artifact


def main(folder: Path, context: int, dtype: str) -> None:
    """Write `piece.mlir` and `step.mlir` into the folder whose config.json is that of the model."""
    tpu_on_cpu.start()
    config = transformers.AutoConfig.from_pretrained(folder)
    how = attention(EngineOptions(folder, folder.name, device="tpu"))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype], attn_implementation=how)
    for name, count in PROGRAMS.items():
        program = _Program(name, model.eval(), config, context)
        (folder / f"{name}.mlir").write_bytes(_artifact(program, _inputs(count)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    os._exit(0)  # TorchTPU still compiles both for its own device, in threads that an ordinary end waits for
