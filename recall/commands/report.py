"""`recall report`: everything that result rows say, in one page that needs no network."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    results: Annotated[
        list[str], typer.Argument(help="Results files or published runs ('laptop'); the first is the one in question.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The HTML page; an earlier report is replaced.")],
    plots: Annotated[
        Path | None,
        typer.Option(
            help="Also write each figure as PNG and SVG into this folder.", show_default="none", metavar="FOLDER"
        ),
    ] = None,
) -> None:
    """Write one HTML page with the verdict, the length x depth pictures, agreement, wrong answers, speed and settings.

    The page holds everything it shows and runs no script: it can be kept, sent, and read without a network. The same
    rows give the same page.

    Example: recall report ring.jsonl hf.jsonl -o report.html --plots figures
    """
    from recall.report import make_report
    from recall.runs import read_runs

    runs = read_runs(results)
    made = make_report(runs)
    made.write(output, plots)
    figures = "" if plots is None else f"; figures in {plots}: {len(made.pictures)}"
    typer.echo(f"{output}: runs: {len(runs)}, rows: {sum(map(len, runs.values()))}{figures}")
