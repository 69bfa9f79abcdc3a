"""`recall compare`: lays the answers of engines side by side, in the article's table."""

from typing import Annotated

import typer


def compare(
    results: Annotated[
        list[str], typer.Argument(help="Results files or published runs ('laptop'); the first is the one in question.")
    ],
) -> None:
    """Show one engine's answers beside those of the others: found or not, from which record, and the same or not.

    With one file, its rows are laid beside the references that they were scored with.

    Example: recall compare ring.jsonl hf.jsonl
    """
    from recall import published
    from recall.comparison import compare_runs, print_comparison
    from recall.errors import RecallError
    from recall.results import read_results

    runs = {}
    for name in results:
        file = published.results_file(name)
        label = file.stem if file.stem not in runs else str(file)
        if label in runs:
            raise RecallError(f"{name} is given twice: give each results file once")
        runs[label] = read_results(file)
        if not runs[label]:
            raise RecallError(f"{file}: holds no rows yet; score the set first")
    print_comparison(compare_runs(runs))
