"""`recall plan`: what a model and a context cost in memory, arithmetic and traffic, without weights."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from recall.commands.engine_options import NumberFormat

if TYPE_CHECKING:
    from rich.table import Table

    from engines.chip import ChipPlan
    from engines.plan import Plan


# The demo model's shape; its weights need not be there.
_DEMO_SHAPE = "gemma-3-270m"


def plan(
    context: Annotated[
        int, typer.Option(help="Tokens the engine is to hold, prompt and answer.", min=1, max=100_000_000)
    ],
    shape: Annotated[
        str | None, typer.Option(help="A published shape by name: 'gemma-4-e2b', 'gemma-3-270m', ...")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="'demo', a local folder or a hub name; only its config.json is read.")
    ] = None,
    prompt: Annotated[
        int | None,
        typer.Option(
            help="Tokens of the prompt that is read.", show_default="the longest that fits", min=1, max=100_000_000
        ),
    ] = None,
    sizes: Annotated[int, typer.Option(help="In how many sizes of the filled part the engine is compiled.", min=1)] = 4,
    dtype: Annotated[NumberFormat, typer.Option(help="Of weights and cache.")] = NumberFormat.BF16,
    chip: Annotated[
        str | None, typer.Option(help="'v5e': compile both programs for this chip, too; takes a minute or two.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Show what a context costs in the ring engine: layers, slots, cache, weights, and the work of reading and a step.

    No weights are needed: a shape's name or a folder with a config.json is enough.

    With --chip, its own compiler says what both programs take of its memory; the chip need not be there.

    Example: recall plan --shape gemma-4-e2b --context 131328 --chip v5e
    """
    import json
    from dataclasses import asdict

    from rich.console import Console

    from engines.chip import plan_for_chip
    from engines.plan import longest_prompt, make_plan
    from generators.sets import ANSWER_ROOM

    name, config = _config(shape, model)
    made = make_plan(config, context, dtype.value, sizes, prompt or longest_prompt(config, context, ANSWER_ROOM))
    on_chip = plan_for_chip(chip, config, made) if chip is not None else None
    if as_json:
        chip_or_none = asdict(on_chip) if on_chip else None
        typer.echo(json.dumps({"model": name, **asdict(made), "on_chip": chip_or_none}, indent=2))
        return
    console = Console(highlight=False)
    console.print(f"{name}, context {made.context:,}, {made.dtype}")
    console.print(_layers(made))
    console.print(_costs(made))
    if on_chip:
        console.print(_on_chip(on_chip))
        console.print(_verdict(on_chip), soft_wrap=True)


def _config(shape: str | None, model: str | None) -> tuple[str, Any]:
    from engines import EngineOptions
    from engines.loading import load_config
    from engines.shapes import shape_config
    from recall import demo, models
    from recall.errors import RecallError

    if (shape is None) == (model is None):
        raise RecallError("give either --shape, a published shape's name, or --model, a folder or hub name")
    if shape is not None:
        return shape, shape_config(shape)
    assert model is not None
    if model == demo.NAME:
        return model, shape_config(_DEMO_SHAPE)
    return models.shown_name(model), load_config(EngineOptions(model, model))


def _layers(made: "Plan") -> "Table":
    from rich.table import Table

    table = Table("layers", "count", "keys and values", "slots", "window", "KV heads", "head size")
    for group in made.layers:
        table.add_row(
            group.kind.removesuffix("_attention"),
            str(group.count),
            "own" if group.stores else "another's",
            f"{group.slots:,}",
            "all" if group.window is None else str(group.window),
            str(group.kv_heads),
            str(group.head_size),
        )
    return table


def _costs(made: "Plan") -> "Table":
    from rich.table import Table

    table = Table("cost", "TFLOP", "GB")
    rows: list[tuple[str, int | None, int | None]] = [
        ("weights", None, made.weight_bytes),
        ("cache", None, made.cache_bytes),
        (f"reading {made.prompt_tokens:,} tokens, eager", made.read_flops, made.read_bytes),
        (f"  compiled, {len(made.visible_sizes)} sizes", made.read_flops_compiled, None),
        ("  every slot through every layer", made.read_flops_every_slot_every_layer, None),
        ("one step, context full", made.step_flops, made.step_bytes),
    ]
    for label, flops, size in rows:
        table.add_row(label, *("" if number is None else f"{number / unit:,.3f}" for number, unit in
                               ((flops, 1e12), (size, 1e9))))  # fmt: skip
    return table


def _on_chip(made: "ChipPlan") -> "Table":
    from rich.table import Table

    table = Table(f"GB on {made.chip}", "arguments", "outputs", "temporary", "peak")
    for name, program in made.programs.items():
        counts = [program.argument_bytes, program.output_bytes, program.temporary_bytes, program.peak_bytes]
        table.add_row(name, *("" if program.refused else f"{count / 1e9:,.3f}" for count in counts))
    return table


def _verdict(made: "ChipPlan") -> str:
    memory = f"{made.memory_bytes / 2**30:g} GiB of {made.chip}"
    if made.needed_bytes is None:
        reasons = "; ".join(f"{name}: {program.refused}" for name, program in made.programs.items() if program.refused)
        fits = f"does not fit {memory}: {reasons}"
    else:
        spare = (made.memory_bytes - made.needed_bytes) / 1e9
        fits = f"fits {memory}, {spare:.2f} GB to spare" if made.fits else f"does not fit {memory}, by {-spare:.2f} GB"
    twice = "the cache is among arguments and outputs: TorchTPU does not give the old one up for the new one"
    return f"{twice}\n{fits}\nat least {made.step_s * 1e3:.2f} ms a step, {made.read_s:.2f} s a read (roofline)"
