"""What both programs of the ring engine would take on a TPU, as its own compiler counts it, without that TPU.

Two child processes, since TorchTPU and jax each bring a runtime of their own: `chip_export` writes the programs as
TorchTPU hands them on, `chip_compile` gives them to libtpu.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines import tpu_on_cpu
from engines.errors import EngineError
from engines.plan import Cost, Costs, Plan, read_compiled

LIMIT_S = 1200  # of one child process: several times what the largest shapes took with half a core


@dataclass(frozen=True)
class Chip:
    """A chip by its makers' names, and its limits; `flops_per_s` is that of bf16 products."""

    topology: str
    accelerator: str
    memory_bytes: int
    flops_per_s: float
    bytes_per_s: float


# Google Cloud's documentation, "TPU v5e", system architecture: 16 GB HBM, 197 TFLOP/s in bf16, 819 GB/s.
CHIPS = {"v5e": Chip("v5e:1x1", "v5litepod-1", 16 * 2**30, 197e12, 819e9)}


@dataclass(frozen=True)
class Compiled:
    """What the chip's compiler counts for one program, all weights and the cache among its arguments.

    TorchTPU 0.2 does not give a program's old cache up for the new one: it is among the arguments and the outputs.
    `peak_bytes` is the most that is taken at one time. A program that does not fit is not compiled: `refused` is then
    the compiler's own sentence, and nothing is counted. `flops` and `bytes_accessed` are its estimates: more
    than `Cost` counts, since elementwise operations count, and operands whole of which only rows are read.
    """

    argument_bytes: int = 0
    output_bytes: int = 0
    temporary_bytes: int = 0
    peak_bytes: int = 0
    flops: int = 0
    bytes_accessed: int = 0
    refused: str | None = None


@dataclass(frozen=True)
class ChipPlan:
    """Both programs on a chip, and the least time that its arithmetic and its memory leave for a step and a read.

    `needed_bytes` is the larger of the two peaks; None: a program does not fit. Times are rooflines: of each program
    the larger of its FLOPs over `flops_per_s` and its bytes over `bytes_per_s`; that of the read is compiled.
    """

    chip: str
    memory_bytes: int
    programs: dict[str, Compiled]
    needed_bytes: int | None
    fits: bool
    step_s: float
    read_s: float


def plan_for_chip(name: str, config: Any, plan: Plan) -> ChipPlan:
    """Compile both programs of a plan for the chip `name`; takes a minute or two.

    Args:
        name: one of `CHIPS`.
        config: of the text model that was planned.
        plan: what `make_plan` made of it.

    Raises:
        EngineError: for an unknown chip, a mixture of experts, a missing package or C compiler, and when a child
            process fails.
    """
    if name not in CHIPS:
        raise EngineError(f"--chip {name!r} is unknown: give one of {', '.join(CHIPS)}")
    chip = CHIPS[name]
    costs = Costs(config, plan.context, plan.dtype)
    if costs.mixes_experts:
        raise EngineError(
            "--chip cannot compile mixtures of experts: TorchTPU compiles a program for its own device before it hands "
            "it on, and its stand-in on the CPU cannot multiply by groups of experts; leave --chip out"
        )
    environments = tpu_on_cpu.environment(), _compiler_environment(chip)
    with tempfile.TemporaryDirectory(prefix="recall-chip-") as folder:
        config.save_pretrained(folder)
        _run("engines.chip_export", [folder, str(plan.context), plan.dtype], environments[0])
        _run("engines.chip_compile", [folder, chip.topology], environments[1])
        report = json.loads(Path(folder, "report.json").read_text())
    programs = {program: Compiled(**counts) for program, counts in report.items()}
    refused = any(program.refused for program in programs.values())
    needed = None if refused else max(program.peak_bytes for program in programs.values())
    return ChipPlan(
        chip=name,
        memory_bytes=chip.memory_bytes,
        programs=programs,
        needed_bytes=needed,
        fits=needed is not None and needed <= chip.memory_bytes,
        step_s=_roofline(chip, [costs.step(costs.slots)]),
        read_s=_roofline(chip, read_compiled(costs, plan.prompt_tokens, plan.visible_sizes)),
    )


def _roofline(chip: Chip, programs: Iterable[Cost]) -> float:
    return sum(max(cost.flops / chip.flops_per_s, cost.bytes / chip.bytes_per_s) for cost in programs)


def _compiler_environment(chip: Chip) -> dict[str, str]:
    """Return what makes libtpu compile for a chip that it is told of, instead of looking for one."""
    for name in ("jax", "jaxlib"):
        tpu_on_cpu.package(name)
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "TPU_LIBRARY_PATH": str(tpu_on_cpu.package("libtpu") / "libtpu.so"),
        "TPU_ACCELERATOR_TYPE": chip.accelerator,
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
    }


def _run(module: str, arguments: list[str], environment: dict[str, str]) -> None:
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(
            f"--chip: {module} was not done after {LIMIT_S // 60} minutes; leave --chip out, or give it more CPU"
        ) from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        # Runtimes log on the same stream, before and after the error.
        said = next((line for line in reversed(lines) if "Error" in line), lines[-1])
        raise EngineError(f"--chip: {module} failed ({said}); leave --chip out to plan without a compiler")
