"""`recall rescore`: judges the replies of a results file again, or lays them beside more references."""

from pathlib import Path
from typing import Annotated

import typer


def rescore(
    results: Annotated[
        str, typer.Argument(help="A results file or published run ('tpu-v5e-ring').", metavar="RESULTS")
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The JSONL file to write; RESULTS itself is replaced only when done.")
    ],
    reference: Annotated[
        list[str] | None, typer.Option(help="A results file or published run to agree with ('laptop'). Repeatable.")
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            help="The set that the run was made with, its manifest, or a published set ('laptop'): judge every reply "
            "again.",
            metavar="SET",
        ),
    ] = None,
) -> None:
    """Judge the replies of a results file again, and say how they agree with more references, without a model.

    Without --prompts only the agreement is made anew. What a run measured stays as it is. A line is printed for each
    row whose verdict changed.

    Example: recall rescore ring.jsonl --prompts set.jsonl --reference hf.jsonl -o ring.jsonl
    """
    from generators import read_prompts
    from recall import published
    from recall.errors import RecallError
    from recall.references import read_references
    from recall.rescoring import changed, verdict
    from recall.rescoring import rescore as rescored
    from recall.results import read_results, write_results

    if prompts is None and not reference:
        raise RecallError("there is nothing to rescore by: give --prompts, --reference, or both")
    source = published.results_file(results)
    if output.exists() and not output.samefile(source):
        raise RecallError(f"{output} is there already: remove it, or give another -o")
    before = read_results(source)
    if not before:
        raise RecallError(f"{source}: holds no rows yet; score the set first")
    references = read_references(reference or [])
    known = None if prompts is None else {p.id: p for p in read_prompts(published.prompts_file(prompts))}
    try:
        after = list(rescored(before, references, known))
    except RecallError as error:
        raise RecallError(f"{source}: {error}") from error
    write_results(output, after)
    mended = [(old, new) for old, new in zip(before, after, strict=True) if changed(old, new)]
    for old, new in mended:
        typer.echo(f"{new.prompt_id}: {verdict(old)} -> {verdict(new)}")
    found = sum(row.found and row.status == "ok" for row in after)
    typer.echo(f"{output}: {len(after)} rows, {len(mended)} with another verdict, {found} found")
    for name in references:
        compared = [row for row in after if name in row.agreement and row.agreement[name].same is not None]
        same = [row for row in compared if row.agreement[name].same]
        typer.echo(
            f"{name}: the same answer on {len(same)} of {len(compared)} prompts, "
            f"{sum(not row.found for row in same)} of them wrong ones"
        )
