"""`recall score`: puts a prompt set to an engine and writes a row for each answer."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from generators import Prompt
    from recall.results import ResultRow


class NumberFormat(StrEnum):
    """What weights and cache are computed in."""

    FP32 = "fp32"
    BF16 = "bf16"


class Mode(StrEnum):
    """How the ring engine runs its two programs."""

    EAGER = "eager"
    COMPILE = "compile"
    FUSE = "fuse"


def score(
    prompts: Annotated[Path, typer.Argument(help="A prompt set made by 'recall generate'.", metavar="SET")],
    engine: Annotated[
        str,
        typer.Option(
            help="'ring': fixed 256-token pieces, ring cache. 'hf': transformers' generate. 'recorded': answers of a "
            "results file. 'oracle', 'first-record': no model, for checks."
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The JSONL file of rows; a stopped run goes on in it.")
    ],
    model: Annotated[
        str, typer.Option(help="'demo', a local folder or a hub name; for 'recorded' a results file or published run.")
    ] = "demo",
    context: Annotated[
        int | None,
        typer.Option(help="Tokens the engine holds, prompt and answer.", show_default="each prompt's own", min=1),
    ] = None,
    max_new: Annotated[
        int | None,
        typer.Option(help="Most tokens of an answer.", show_default="the set's room for the answer, or 64", min=1),
    ] = None,
    reference: Annotated[
        list[str] | None, typer.Option(help="A results file or published run to agree with ('laptop'). Repeatable.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Only these prompts: ids or prompt sizes in tokens, with commas between.")
    ] = None,
    dtype: Annotated[NumberFormat, typer.Option(help="Of weights and cache.")] = NumberFormat.FP32,
    device: Annotated[str, typer.Option(help="'cpu', 'cuda', 'cuda:N' or 'tpu'.")] = "cpu",
    mode: Annotated[
        Mode,
        typer.Option(
            help="Of 'ring'. 'eager'; 'compile': one program for a piece, one for a step; 'fuse': TorchTPU's own."
        ),
    ] = Mode.EAGER,
    sizes: Annotated[
        int,
        typer.Option(
            help="With --mode compile: sizes of the filled context that are compiled; 1: strictly two programs.", min=1
        ),
    ] = 4,
    stream: Annotated[
        bool | None,
        typer.Option(
            "--stream/--no-stream",
            help="Read every token back as it is made, or all at the end.",
            show_default="--stream with --mode eager",
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads.", show_default="PyTorch's own number", min=1)
    ] = None,
) -> None:
    """Put every prompt of a set to an engine and judge its answers, one row a prompt.

    Each row is written as soon as it is done. Started again with the same options, a run that was stopped goes on
    where it was.

    Example: recall score set.jsonl --engine ring --model demo -o ring.jsonl
    """
    from engines import EngineOptions, open_engine
    from generators import read_prompts
    from recall import models, published
    from recall.progress import ScoreProgress
    from recall.results import appending, read_results, set_aside_torn_line
    from recall.resume import still_to_do
    from recall.scoring import Run
    from recall.scoring import score as run_prompts

    every = read_prompts(prompts)
    chosen = _choose(every, only)
    run = Run(max_new=max_new, context=context, references=_references(reference or []))
    run.check(chosen)
    torn = set_aside_torn_line(output)
    if torn:
        typer.echo(f"{output}: its last line was cut off in writing; it is set aside in {torn}", err=True)

    source = published.results_file(model) if engine == "recorded" else models.resolve(model)
    name = Path(model).stem if engine == "recorded" else models.shown_name(model)
    options = EngineOptions(source, name, dtype.value, device, threads, mode.value, sizes, stream)
    opened = open_engine(engine, options)
    done = read_results(output) if output.exists() else []
    left = still_to_do(chosen, every, done, opened.info, run, output)
    errors = sum(row.status == "error" for row in done)
    with appending(output) as rows, ScoreProgress(chosen, left) as progress:
        for row in run_prompts(opened, left, run, progress):
            rows.write(row)
            errors += row.status == "error"
    written = read_results(output)
    typer.echo(f"{output}: {len(written)} rows, {sum(row.found for row in written)} found", err=True)
    if errors:
        raise typer.Exit(3)


def _references(names: list[str]) -> "dict[str, dict[str, ResultRow]]":
    """Return the rows of each reference by prompt; a reference is called by its file's name."""
    from recall import published
    from recall.errors import RecallError
    from recall.results import read_results

    references: dict[str, dict[str, ResultRow]] = {}
    for name in names:
        file = published.results_file(name)
        if file.stem in references:
            raise RecallError(f"--reference {name}: another one is called {file.stem} too; rename one of the two files")
        references[file.stem] = {row.prompt_id: row for row in read_results(file)}
    return references


def _choose(prompts: "list[Prompt]", only: str | None) -> "list[Prompt]":
    from recall.errors import RecallError

    if only is None:
        return prompts
    chosen = []
    for wanted in filter(None, (part.strip() for part in only.split(","))):
        matches = [prompt for prompt in prompts if wanted in (prompt.id, str(prompt.prompt_tokens))]
        if not matches:
            sizes = ", ".join(str(size) for size in sorted({prompt.prompt_tokens for prompt in prompts}))
            raise RecallError(f"--only {wanted}: the set has no prompt of that id or size; its sizes are {sizes}")
        chosen += matches
    if not chosen:
        raise RecallError("--only names no prompts: give ids or sizes with commas between, or leave it out")
    return [prompt for prompt in prompts if prompt in chosen]
