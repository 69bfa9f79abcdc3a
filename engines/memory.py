"""How much memory a device has free, and how much llama.cpp takes for a GGUF file and a context."""

from collections.abc import Iterable
from pathlib import Path

import torch

from engines.errors import EngineError
from engines.gguf_file import GGUFFile
from engines.protocol import KVType

# Bytes of a number in the cache; q8_0 keeps 32 numbers and a scale of two bytes in 34.
_KV_BYTES: dict[KVType, float] = {"f32": 4, "f16": 2, "q8_0": 34 / 32}
_PIECE = 512  # tokens that llama.cpp reads at once: a sliding layer keeps them beside its window


def free_bytes(device: str, machine: Path = Path("/")) -> int | None:
    """Return the bytes that a program can still take on `device`; None where nothing tells.

    Args:
        device: cpu, cuda, cuda:N or tpu.
        machine: where `proc` and `sys` are; of a container the smaller of its own limit and the machine's rest counts.
    """
    if device.startswith("cuda"):
        try:
            return torch.cuda.mem_get_info(device)[0]
        except (RuntimeError, AssertionError):  # no such device, or a PyTorch without CUDA
            return None
    if device != "cpu":
        return None
    try:
        lines = (machine / "proc/meminfo").read_text(encoding="ascii").splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    left = _left_of_container(machine / "sys/fs/cgroup")
    return free if left is None else min(free, left)


def needed_by_llama_cpp(file: GGUFFile, context: int, kv_type: KVType) -> tuple[int, int]:
    """Return the least and the most bytes of weights and KV cache.

    The two differ where layers slide and the file does not say which: at least all of them do, at most none. What
    computing takes beside them is in neither.

    Raises:
        EngineError: when the file does not tell its shape.
    """
    shape = file.shape
    try:
        layers = int(shape["block_count"])
        heads = _of_each(shape.get("attention.head_count_kv", shape["attention.head_count"]), layers)
        size = int(shape["embedding_length"]) // max(_of_each(shape["attention.head_count"], layers))
        numbers = int(shape.get("attention.key_length", size)) + int(shape.get("attention.value_length", size))
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"{file.path.name} does not tell its shape: nothing says what its cache takes") from error
    near = min(context, (file.sliding_window or context) + _PIECE)
    weights = file.path.stat().st_size
    a_position = numbers * _KV_BYTES[kv_type]
    return tuple(weights + int(sum(heads) * places * a_position) for places in (near, context))  # type: ignore[return-value]


def _of_each(value: int | Iterable[int], layers: int) -> list[int]:
    return [value] * layers if isinstance(value, int) else list(value)


def _left_of_container(folder: Path) -> int | None:
    """Return what a container may still take, its file cache not counted; None: it has no limit (control groups v2)."""
    try:
        most = int((folder / "memory.max").read_text(encoding="ascii"))
        taken = int((folder / "memory.current").read_text(encoding="ascii"))
        counts = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
        return max(0, most - taken + int(counts.get("inactive_file", 0)))
    except (OSError, ValueError):  # no such group, or its limit is the word `max`
        return None
