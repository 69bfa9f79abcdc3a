"""`recall probe`: looks for defects of the ring cache in a model, without prompts or a second engine."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from recall.commands.engine_options import NumberFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engines import EngineOptions
    from engines.probe import Row

ALARM = 4  # exit code


class ProbedMode(StrEnum):
    """Which programs of the engine are probed."""

    EAGER = "eager"
    COMPILE = "compile"


def probe(
    model: Annotated[str, typer.Option(help="'demo', a local folder or a hub name.")] = "demo",
    context: Annotated[
        int | None,
        typer.Option(
            help="Tokens the engine holds.",
            show_default="as many as wrap the ring three times",
            min=16,
            max=100_000_000,
        ),
    ] = None,
    dtype: Annotated[NumberFormat, typer.Option(help="Of weights and cache.")] = NumberFormat.FP32,
    device: Annotated[str, typer.Option(help="'cpu', 'cuda' or 'cuda:N'.")] = "cpu",
    mode: Annotated[
        ProbedMode,
        typer.Option(
            help="'eager': plain programs, and the padded pieces of compiled ones run as plain Python. 'compile': the "
            "compiled programs too."
        ),
    ] = ProbedMode.EAGER,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads.", show_default="PyTorch's own number", min=1, max=1024)
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Show every comparison, not only the largest of a kind.")
    ] = False,
) -> None:
    """Compare the ring engine with a plain forward pass wherever a cache can break, and raise an alarm where it does.

    Random tokens are read up to, onto and over every edge: the window, the pieces, each wrap of the ring, the first
    and the last slot. A difference is an alarm when it is larger than the model's own rounding explains. Exit code 4:
    an alarm.

    Example: recall probe --model demo --dtype bf16
    """
    from rich.console import Console
    from rich.table import Table

    from engines import EngineOptions
    from recall import models

    name = models.shown_name(model)
    options = EngineOptions(models.resolve(model), name, dtype.value, device, threads)
    table = Table("program", "check", "rows", "where", "tokens", "largest", "allowed", "")
    alarms = compared = 0
    for program, rows in _probed(options, context, mode):
        compared += len(rows)
        alarms += sum(row.alarm for row in rows)
        for row, count in _shown(rows, every):
            table.add_row(
                program,
                row.check,
                str(count),
                row.where,
                str(row.tokens),
                f"{row.difference:.2g}",
                f"{row.tolerance:.2g}",
                "ALARM" if row.alarm else "",
            )
    console = Console(highlight=False)
    console.print(table)
    console.print(f"{name}, {dtype.value}: {alarms or 'no'} alarm{'s' * (alarms != 1)} in {compared} comparisons")
    if alarms:
        raise typer.Exit(ALARM)


def _probed(options: "EngineOptions", context: int | None, mode: ProbedMode) -> "Iterator[tuple[str, list[Row]]]":
    """Yield the rows of each kind of programs: eager, padded, compiled."""
    from dataclasses import replace

    from engines.devices import enough_memory
    from engines.plain_pass import Reference
    from engines.probe import Probe
    from engines.ring import RingEngine

    engine = RingEngine(options)
    with enough_memory(context or 0):
        reference = Reference(engine.loaded.model, engine.config, context)
    plain = Probe(engine, reference)
    yield "eager", [*plain.layers_rows(), *plain.logits_rows()]
    compiling = RingEngine(replace(options, mode="compile"), engine.loaded)
    if mode is ProbedMode.COMPILE:
        yield "compiled", list(Probe(compiling, reference, compiled=True).logits_rows())
    padded = Probe(compiling, reference)
    yield "padded", [*padded.layers_rows(), *padded.logits_rows()]


def _shown(rows: "list[Row]", every: bool) -> "Iterator[tuple[Row, int]]":
    """Yield every row, or the alarms and of each check without any the largest, with the number it stands for."""
    checks: dict[str, list[Row]] = {}
    for row in rows:
        checks.setdefault(row.check, []).append(row)
    for alike in checks.values():
        alarms = [row for row in alike if row.alarm]
        if every or alarms:
            yield from ((row, 1) for row in (alike if every else alarms))
        else:
            yield max(alike, key=lambda row: row.difference / (row.tolerance or 1)), len(alike)
