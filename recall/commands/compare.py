"""`recall compare`: lays the answers of any number of engines side by side, and says why two of them differ."""

from typing import Annotated

import typer

from recall.commands.probe import ALARM


def compare(
    results: Annotated[
        list[str], typer.Argument(help="Results files or published runs ('laptop'); the first is the one in question.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    fail_below: Annotated[
        float | None,
        typer.Option(
            help="Exit code 4 when any two runs give the same answer on less than this share of the prompts, or no "
            "prompts can be compared.",
            show_default="never",
            min=0,
            max=1,
            metavar="SHARE",
        ),
    ] = None,
) -> None:
    """Show one engine's answers beside those of the others: found or not, from which record, and the same or not.

    Every two runs are compared: how often they agree, with an interval; and where their replies part, whether rounding
    explains it (tie), does not (defect), or nothing tells (unknown). With one file, its rows are laid beside the
    references that they were scored with.

    Example: recall compare ring.jsonl hf.jsonl llama.jsonl --fail-below 1
    """
    import json
    from dataclasses import asdict

    from recall.comparison import compare_runs
    from recall.comparison_text import below, print_comparison
    from recall.errors import RecallError
    from recall.runs import read_runs

    runs = read_runs(results)
    comparison = compare_runs(runs)
    if fail_below is not None and not comparison.pairs:
        raise RecallError(f"--fail-below: nothing to compare {results[0]} with; give another results file")
    if as_json:
        told = {"runs": comparison.runs, "pairs": comparison.pairs, "unmatched": comparison.unmatched}
        typer.echo(json.dumps(told, default=asdict, indent=2))
    else:
        print_comparison(comparison)
    alarms = [] if fail_below is None else [below(pair, fail_below) for pair in comparison.pairs]
    for sentence in filter(None, alarms):
        typer.echo(f"recall: {sentence}", err=True)
    if any(alarms):
        raise typer.Exit(ALARM)
