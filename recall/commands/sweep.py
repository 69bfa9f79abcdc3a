"""`recall sweep`: every length x depth x seed, from one read a seed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recall.commands.engine_options import EngineArguments, with_engine_options
from recall.commands.generate import ASKED_HELP, TASK_HELP, PromptFormat, PromptTask
from recall.commands.ray_options import RayAddress, RayWorkers

if TYPE_CHECKING:
    from generators import Prompt


@with_engine_options
def sweep(
    engine: EngineArguments,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The JSONL file of rows; a stopped sweep goes on in it.")
    ],
    lengths: Annotated[
        str, typer.Option(help="Tokens of prompt and answer at most, with commas between.")
    ] = "4096,8192,16384,32704",
    depths: Annotated[
        str, typer.Option(help="How many depths from 0 to 1, evenly; or the depths, such as 0.1,0.5,0.9.")
    ] = "11",
    seeds: Annotated[int, typer.Option(help="Haystacks, each read once.", min=1)] = 3,
    seed: Annotated[int, typer.Option(help="Of the first haystack.", min=0)] = 0,
    form: Annotated[
        PromptFormat,
        typer.Option("--format", help="'chat': a turn of the model's template. 'completion': for base models."),
    ] = PromptFormat.CHAT,
    task: Annotated[PromptTask, typer.Option(help=TASK_HELP)] = PromptTask.RECORD,
    asked: Annotated[int | None, typer.Option(help=ASKED_HELP, show_default="3")] = None,
    counted_by: Annotated[
        str | None,
        typer.Option("--counted-by", help="Whose tokenizer counts the lengths.", show_default="the model's own"),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            help="Tokens the engine holds.", show_default="the longest, up to a multiple of 256", min=1, max=100_000_000
        ),
    ] = None,
    max_new: Annotated[int, typer.Option(help="Most tokens of an answer.", min=1, max=100_000_000)] = 64,
    batch: Annotated[
        int | None,
        typer.Option(
            help="Of 'ring': questions answered side by side; 1: with the very logits that each prompt has alone.",
            show_default="16 with --mode eager, else or for --task near 1",
            min=1,
            max=65_536,
        ),
    ] = None,
    part: Annotated[
        str | None, typer.Option("--shard", help="Only part i of n of the seeds, as 2/8; see 'recall merge'.")
    ] = None,
    ray: RayAddress = None,
    workers: RayWorkers = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only say what would be read and how many seeds tell a difference.")
    ] = False,
) -> None:
    """Ask for records at every depth of haystacks of every length.

    'ring' reads the longest prompt of a seed once and answers the questions of all its cells on the way. Other
    engines read each cell by itself. Prompts of --task near are alike only up to the first record that is changed:
    'ring' reads each from there on. Rows are those of 'recall score'; the prompts' manifest is written beside them.

    Example: recall sweep --engine ring --model demo --format completion --lengths 1024,4096 --seeds 3 -o sweep.jsonl
    """
    from functools import partial

    from rich.console import Console

    from engines import sharing
    from generators import write_prompts
    from recall import sweeps
    from recall.answering import answering
    from recall.grids import grid
    from recall.recording import recording
    from recall.resume import still_to_do
    from recall.scoring import Run
    from recall.selection import shard
    from recall.sweep_progress import SweepProgress, picture

    shares, sizes = sweeps.depths(depths), sweeps.numbers("--lengths", lengths)
    if plan:
        alike = engine.engine == "ring" and task is not PromptTask.NEAR
        typer.echo(sweeps.plan_text(sizes, len(shares), seeds, shared=alike))
        return
    prompts = _prompts(
        engine.model if counted_by is None else counted_by,
        form,
        task,
        asked,
        sizes,
        shares,
        seed,
        seeds,
        context,
        max_new,
    )
    run = Run(max_new=max_new, context=None, references={}, asked={prompt.code: prompt.id for prompt in prompts})
    chosen = shard(prompts, part, by_seed=True)
    # Prompts of `near` part long before their questions: texts as long as that are not read side by side.
    share = partial(sharing, batch=1 if batch is None and task is PromptTask.NEAR else batch)
    with recording(output) as file, answering(engine, share, ray=ray, workers=workers) as opened:
        left = still_to_do(chosen, prompts, file.rows, opened.info, run, output)
        write_prompts(manifest_of(output), (prompt.manifest_line() for prompt in prompts))
        with SweepProgress(chosen, left, file.rows, shared=opened.shared) as progress:
            file.record(opened.rows(left, run, progress))
        rows = file.rows
    Console(highlight=False, soft_wrap=True, width=1000).print(picture(grid(rows)))
    if any(row.failed for row in rows):
        raise typer.Exit(3)


def manifest_of(output: Path) -> Path:
    """Return where the manifest of a sweep's prompts lies: beside its rows."""
    return output.with_name(f"{output.stem}.prompts.jsonl")


def _prompts(
    tokenizer: str,
    form: PromptFormat,
    task: PromptTask,
    asked: int | None,
    lengths: list[int],
    depths: list[float],
    seed: int,
    seeds: int,
    context: int | None,
    max_new: int,
) -> "list[Prompt]":
    from generators import PromptTokenizer, make_prompts, seeded_specs
    from recall import models

    specs = seeded_specs(
        form.value,
        seed=seed,
        budgets=lengths,
        contexts=[context] if context else [],
        depths=depths,
        count=seeds,
        answer_room=max_new,
        task=task.value,
        asked=asked,
    )
    counter = PromptTokenizer(models.resolve(tokenizer), name=models.shown_name(tokenizer))
    return list(make_prompts(specs, counter, form.value))
