"""`recall score`: puts a prompt set to an engine and writes a row for each answer."""

from pathlib import Path
from typing import Annotated

import typer

from recall.commands.engine_options import EngineArguments, MaxNew, with_engine_options
from recall.commands.ray_options import RayAddress, RayWorkers


@with_engine_options
def score(
    engine: EngineArguments,
    prompts: Annotated[Path, typer.Argument(help="A prompt set made by 'recall generate'.", metavar="SET")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The JSONL file of rows; a stopped run goes on in it.")
    ],
    context: Annotated[
        int | None,
        typer.Option(
            help="Tokens the engine holds, prompt and answer.", show_default="each prompt's own", min=1, max=100_000_000
        ),
    ] = None,
    max_new: MaxNew = None,
    reference: Annotated[
        list[str] | None, typer.Option(help="A results file or published run to agree with ('laptop'). Repeatable.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Only these prompts: ids or prompt sizes in tokens, with commas between.")
    ] = None,
    part: Annotated[
        str | None, typer.Option("--shard", help="Only part i of n, as 2/8, for job arrays; see 'recall merge'.")
    ] = None,
    ray: RayAddress = None,
    workers: RayWorkers = None,
) -> None:
    """Put every prompt of a set to an engine and judge its answers, one row a prompt.

    Each row is written as soon as it is done. Started again with the same options, a run that was stopped goes on
    where it was.

    Example: recall score set.jsonl --engine ring --model demo -o ring.jsonl
    """
    from generators import read_prompts
    from recall.answering import answering
    from recall.progress import ScoreProgress
    from recall.recording import recording
    from recall.references import read_references
    from recall.resume import still_to_do
    from recall.scoring import Run
    from recall.selection import choose, shard

    every = read_prompts(prompts)
    chosen = shard(choose(every, only), part)
    asked = {prompt.code: prompt.id for prompt in every}
    run = Run(max_new=max_new, context=context, references=read_references(reference or []), asked=asked)
    run.check(chosen)
    with recording(output) as file, answering(engine, ray=ray, workers=workers) as opened:
        left = still_to_do(chosen, every, file.rows, opened.info, run, output)
        with ScoreProgress(chosen, left) as progress:
            file.record(opened.rows(left, run, progress))
        rows = file.rows
    found = sum(row.found and row.status == "ok" for row in rows)
    typer.echo(f"{output}: {len(rows)} rows, {found} found", err=True)
    if any(row.failed for row in rows):
        raise typer.Exit(3)
