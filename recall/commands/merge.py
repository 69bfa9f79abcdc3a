"""`recall merge`: puts the results files of a run's parts together."""

from pathlib import Path
from typing import Annotated

import typer


def merge(
    parts: Annotated[list[Path], typer.Argument(help="The results files of the parts.", metavar="RESULTS...")],
    prompts: Annotated[
        str,
        typer.Option(help="The whole set, its manifest, or a published set: nothing may be missing.", metavar="SET"),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The JSONL file to write.")],
) -> None:
    """Put the results of a job array together: a row for every prompt of the set, or an error.

    Parts made with other settings, and two answers to one prompt, are refused.

    Example: recall merge part-*.jsonl --prompts set.jsonl -o all.jsonl
    """
    from generators import read_prompts
    from recall import published
    from recall.errors import RecallError
    from recall.merging import merge as merged
    from recall.results import read_results, write_results

    if output.exists():
        raise RecallError(f"{output} is there already: remove it, or give another -o")
    rows = merged({str(path): read_results(path) for path in parts}, read_prompts(published.prompts_file(prompts)))
    write_results(output, rows)
    found = sum(row.found and row.status == "ok" for row in rows)
    typer.echo(f"{output}: {len(rows)} rows of {len(parts)} files, {found} found", err=True)
