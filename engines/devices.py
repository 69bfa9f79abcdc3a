"""Devices and modes: which compiler and attention serve one, and one sentence at once when it is not there."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from transformers import AttentionInterface

from engines.attention import PLAIN_ATTENTION, plain_attention
from engines.errors import EngineError
from engines.protocol import EngineOptions

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

AttentionInterface.register(PLAIN_ATTENTION, plain_attention)


def check_device(options: EngineOptions) -> None:
    """Raise `EngineError` when the device of `options` is not there, or does not know the mode; select a TPU's mode."""
    kind = options.device.partition(":")[0]
    if kind not in ("cpu", "cuda", "tpu"):
        raise EngineError(f"--device {options.device!r} is no device that engines run on: give cpu, cuda or tpu")
    if options.mode == "fuse" and kind != "tpu":
        raise EngineError(f"--mode fuse is TorchTPU's defer-and-fuse: give --device tpu, not {options.device}")
    if kind == "cuda" and not torch.cuda.is_available():
        raise EngineError(f"--device {options.device}: this PyTorch sees no CUDA device; give --device cpu")
    if kind == "tpu":
        _select_tpu_mode(_tpu(), options)
    try:
        torch.empty(0, device=options.device)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise EngineError(f"--device {options.device} cannot be used ({reason}); give another one") from error


@contextmanager
def enough_memory(context: int) -> Iterator[None]:
    """Turn the end of a device's memory into an `EngineError` that names the context."""
    try:
        yield
    except RuntimeError as error:  # PyTorch has a class of its own for this on an accelerator, and none on a CPU
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        raise EngineError(
            f"there is not enough memory for a context of {context:,}; give a smaller --context, or --dtype bf16"
        ) from error


def compiler(options: EngineOptions) -> str | None:
    """Return the backend of `torch.compile` for a device and mode; None: nothing is compiled."""
    if options.mode != "compile":
        return None
    return "tpu" if options.device.startswith("tpu") else "inductor"


def attention(options: EngineOptions) -> str:
    """Return which of transformers' attention functions serves a device."""
    return PLAIN_ATTENTION if options.device.startswith("tpu") else "sdpa"


def _tpu() -> Any:
    """Return TorchTPU's module. Asking a device that is not there would wait for a metadata server for a minute."""
    if find_spec("torch_tpu") is None:
        raise EngineError("--device tpu needs TorchTPU, which is not installed: pip install 'recall[tpu]'")
    # torch_tpu takes the place of PyTorch's private device at import, if it finds a chip.
    if torch._C._get_privateuse1_backend_name() != "tpu":
        raise EngineError("--device tpu: TorchTPU finds no TPU on this machine; give --device cpu or cuda")
    return torch.tpu  # type: ignore[attr-defined]


def _select_tpu_mode(tpu: Any, options: EngineOptions) -> None:
    mode = tpu.EagerMode
    tpu.eager_mode = mode.DEFER_AND_FUSE if options.mode == "fuse" else mode.DEFER_NEVER
