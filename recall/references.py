"""Reads the runs that answers are laid beside: each --reference, by its file's name."""

from collections.abc import Mapping, Sequence

from recall import published
from recall.errors import RecallError
from recall.results import ResultRow, read_results

References = Mapping[str, Mapping[str, ResultRow]]


def read_references(names: Sequence[str]) -> dict[str, dict[str, ResultRow]]:
    """Return the rows of each reference by prompt; a reference is called by its file's name.

    Args:
        names: results files, or names of published runs.

    Raises:
        RecallError: for a name that is neither, and for two files of one name.
    """
    references: dict[str, dict[str, ResultRow]] = {}
    for name in names:
        file = published.results_file(name)
        if file.stem in references:
            raise RecallError(f"--reference {name}: another one is called {file.stem} too; rename one of the two files")
        references[file.stem] = {row.prompt_id: row for row in read_results(file)}
    return references
