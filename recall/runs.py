"""Reads the runs that are laid side by side: each results file by a name of its own."""

from collections.abc import Sequence

from recall import published
from recall.errors import RecallError
from recall.results import ResultRow, read_results


def read_runs(names: Sequence[str]) -> dict[str, list[ResultRow]]:
    """Return the rows of each run; it is called by its file's name, and by its path where that name is taken.

    Args:
        names: results files, or names of published runs.

    Raises:
        RecallError: for a name that is neither, a file that is given twice, and one without rows.
    """
    runs: dict[str, list[ResultRow]] = {}
    for name in names:
        file = published.results_file(name)
        label = file.stem if file.stem not in runs else str(file)
        if label in runs:
            raise RecallError(f"{name} is given twice: give each results file once")
        runs[label] = read_results(file)
        if not runs[label]:
            raise RecallError(f"{file}: holds no rows yet; score the set first")
    return runs
