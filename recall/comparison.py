"""Lays result rows of several runs side by side and counts where they agree. Needs the rows only, no model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from recall.errors import RecallError
from recall.results import Agreement, Outcome, ResultRow
from recall.scoring import agreement_with


@dataclass(frozen=True)
class Comparison:
    """One run's rows, in their order, each with what the references answered to the same prompt."""

    subject: str
    rows: list[ResultRow]
    references: list[str]
    agreement: list[dict[str, Agreement]]  # by row, then by reference
    found: dict[str, tuple[int, int]]  # by run: found, and of how many answers
    unmatched: list[str]  # in words: rows that only one side has


def compare_runs(runs: Mapping[str, Sequence[ResultRow]]) -> Comparison:
    """Compare the first run with the others, or, when it is alone, with the references in its own rows.

    Raises:
        RecallError: when two runs answer different prompts under one id.
    """
    (subject, rows), *others = runs.items()
    found = {name: _found(run) for name, run in runs.items()}
    if not others:
        names = list(dict.fromkeys(name for row in rows for name in row.agreement))
        return Comparison(subject, list(rows), names, [row.agreement for row in rows], found, [])
    agreement: list[dict[str, Agreement]] = [{} for _ in rows]
    unmatched = []
    for name, run in others:
        by_prompt = {row.prompt_id: row for row in run}
        for row, agreed in zip(rows, agreement, strict=True):
            other = by_prompt.pop(row.prompt_id, None)
            if other is not None:
                if not row.answers(other.prompt_sha256, other.records, other.asked_record, other.code):
                    raise RecallError(
                        f"{subject} and {name} answer different prompts under the id {row.prompt_id!r}; score both on "
                        "one set"
                    )
                agreed[name] = agreement_with(row, other)
        missing = sum(name not in agreed for agreed in agreement)
        if missing:
            unmatched.append(f"{missing} of {len(rows)} prompts of {subject} have no row in {name}")
        if by_prompt:
            unmatched.append(f"{len(by_prompt)} of {len(run)} prompts of {name} have no row in {subject}")
    return Comparison(subject, list(rows), [name for name, _ in others], agreement, found, unmatched)


def print_comparison(comparison: Comparison) -> None:
    """Print the table of the article's step 11, then what it comes to, on standard output."""
    # Wider than any table: rich would shorten numbers to fit a narrow terminal, and a pipe has no width at all.
    console = Console(highlight=False, soft_wrap=True, width=1000)
    console.print(_table(comparison))
    for name, (found, answers) in comparison.found.items():
        console.print(f"{name}: {found} of {answers} found")
    for name in comparison.references:
        pairs = [
            (row, agreed[name])
            for row, agreed in zip(comparison.rows, comparison.agreement, strict=True)
            if name in agreed and agreed[name].same is not None
        ]
        same = [row for row, agreed in pairs if agreed.same]
        wrong = sum(not row.found for row in same)
        console.print(
            f"{comparison.subject} and {name}: the same answer on {len(same)} of {len(pairs)} prompts, "
            f"{wrong} of them wrong ones"
        )
    for line in comparison.unmatched:
        console.print(line)


def _table(comparison: Comparison) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = ["context", "prompt", "read s", "read tok/s", "decode", "answer", "found", "record"]
    for name in comparison.references:
        columns += [f"{name} answer", "same"]
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for row, agreed in zip(comparison.rows, comparison.agreement, strict=True):
        cells = [
            str(row.context),
            str(row.prompt_tokens),
            _number(row.read_s, 1),
            _number(row.read_tok_s, 0),
            _number(row.decode_tok_s, 1),
            _answer(row),
            _yes(row.found if row.status == "ok" else None),
            _record(row.record),
        ]
        for name in comparison.references:
            reference = agreed.get(name)
            cells += [_answer(reference), _yes(reference.same)] if reference else ["-", "-"]
        table.add_row(*cells)
    return table


def _found(rows: Sequence[ResultRow]) -> tuple[int, int]:
    answered = [row for row in rows if row.status == "ok"]
    return sum(row.found for row in answered), len(answered)


def _answer(given: ResultRow | Agreement) -> str:
    if given.outcome is None:
        return "error"
    if given.outcome is Outcome.SEVERAL_CODES:
        return "several"
    return given.answer or "none"


def _record(record: int | list[int] | None) -> str:
    if record is None:
        return "-"
    return "|".join(str(number) for number in record) if isinstance(record, list) else str(record)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _yes(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "no"
