"""Prints a comparison in plain words: the article's table, then what was found, what was wrong, and who agrees."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Literal

from rich.console import Console
from rich.table import Table

from recall.comparison import Comparison, PairSummary, RunSummary
from recall.differences import Difference, LogprobDifference, Spread
from recall.results import Agreement, Outcome, ResultRow
from recall.wrong_answers import WORDS


def print_comparison(comparison: Comparison) -> None:
    """Print the table of the article's step 11, then what all of it comes to, on standard output."""
    # Wider than any table: rich would shorten numbers to fit a narrow terminal, and a pipe has no width at all. Names
    # of files are no markup.
    console = Console(highlight=False, soft_wrap=True, width=1000, markup=False, emoji=False)
    tables = [_answers(comparison), _found(comparison.runs), _wrong(comparison.runs)]
    if len(comparison.runs) > 2:
        tables += _matrices(comparison)
    for table in tables:
        if table.row_count:
            console.print(table)
            console.print()
    for pair in comparison.pairs:
        for line in _pair(pair):
            console.print(line)
    for line in comparison.unmatched:
        console.print(line)


def below(pair: PairSummary, least: float) -> str | None:
    """Return in a sentence that two runs agree on less than a share `least` of the prompts; None: they do not."""
    names = f"{pair.a} and {pair.b}"
    if pair.agreement is None:
        return f"{names} have no prompt whose answers can be compared; --fail-below {least:g} asks for agreement"
    if pair.agreement < least:
        return (
            f"{names} give the same answer on {pair.same} of {pair.n} prompts, a share of {pair.agreement:.6g}: below "
            f"--fail-below {least:g}"
        )
    return None


def _table(*columns: str, first: Literal["left", "right"] = "left") -> Table:
    """Return an empty table with numbers in all columns; its first one may be text."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else first, no_wrap=True)
    return table


def _answers(comparison: Comparison) -> Table:
    columns = ["context", "prompt", "read s", "read tok/s", "decode", "answer", "found", "record"]
    for name in comparison.references:
        columns += [f"{name} answer", "same"]
    table = _table(*columns, first="right")
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


def _found(runs: Sequence[RunSummary]) -> Table:
    table = _table("run", "found", "of", "share", "95% interval", "invalid", "errors")
    for run in runs:
        share = f"{run.found / run.n:.1%}" if run.n else "-"
        counts = [str(run.invalid), str(run.errors)]
        table.add_row(run.name, str(run.found), str(run.n), share, _interval(run.interval), *counts)
    return table


def _wrong(runs: Sequence[RunSummary]) -> Table:
    table = _table("wrong answers", *(run.name for run in runs))
    for kind, words in WORDS.items():
        counts = [run.wrong_answers.counts[kind] for run in runs]
        if any(counts):
            table.add_row(words, *map(str, counts))
    records = [[told.records for told in run.wrong_answers.answers if told.records is not None] for run in runs]
    tokens = [[told.tokens for told in run.wrong_answers.answers if told.tokens is not None] for run in runs]
    for unit, distances in (("records", records), ("tokens", tokens)):
        if any(distances):
            table.add_row(f"{unit} from the asked record, median", *map(_median, distances))
            table.add_row(f"{unit} from the asked record, range", *map(_range, distances))
    if any(records):
        table.add_row("before the asked record", *(str(sum(way < 0 for way in told)) for told in records))
        table.add_row("after it", *(str(sum(way > 0 for way in told)) for told in records))
    return table


def _matrices(comparison: Comparison) -> list[Table]:
    counts: dict[str, Callable[[PairSummary], tuple[int, int]]] = {
        "same answer": lambda pair: (pair.same, pair.n),
        "same found or not": lambda pair: (pair.same_found, pair.n_valid),
        "same wrong record": lambda pair: (pair.same_wrong_record, pair.n_wrong_record),
    }
    names = [run.name for run in comparison.runs]
    tables = []
    for title, count in counts.items():
        cells = {}
        for pair in comparison.pairs:
            same, of = count(pair)
            cells[pair.a, pair.b] = cells[pair.b, pair.a] = f"{same} of {of}" if of else "none"
        table = _table(title, *names)
        for name in names:
            table.add_row(name, *(cells.get((name, other), "-") for other in names))
        tables.append(table)
    return tables


def _pair(pair: PairSummary) -> list[str]:
    """Return the lines about two runs: first a sentence, then each finding behind its name."""
    told = []
    if pair.agreement is not None:
        told.append(("agreement", f"{pair.agreement:.1%}, 95% interval {_interval(pair.interval)}"))
    if pair.mcnemar_p is not None:
        only_a, only_b = pair.discordant
        alike = f"by both or by neither {pair.same_found} of {pair.n_valid}"
        alone = f"by {pair.a} only {only_a}, by {pair.b} only {only_b}"
        told.append(("found", f"{alike}, {alone}: McNemar p = {pair.mcnemar_p:.3g}"))
    if pair.n_wrong_record:
        told.append(("wrong record", f"the same one in {pair.same_wrong_record} of {pair.n_wrong_record}"))
    if pair.logprob_difference.places:
        told += _logprobs(pair.logprob_difference)
    told += [(found.verdict.value, _difference(found, pair.a, pair.b)) for found in pair.differences]
    if pair.models and (pair.logprob_difference.alarm or pair.differences):
        told.append(("mind", f"the models are called {' and '.join(pair.models)}: are their weights the same?"))
    same = f"the same answer on {pair.same} of {pair.n} prompts, {pair.same_wrong} of them wrong ones"
    sentence = f"{pair.a} and {pair.b}: {same if pair.n else 'no prompt whose answers can be compared'}"
    return [sentence, *(f"  {name:<12}  {words}" for name, words in told)]


def _logprobs(difference: LogprobDifference) -> list[tuple[str, str]]:
    rounding = f"rounding in {difference.arithmetic} explains"
    known = f"what {rounding} is not known" if difference.ceiling is None else f"{rounding} {difference.ceiling:.2g}"
    told = [("logprobs", f"{_spread(difference)}; {known}")]
    for name, part in (("up to window", difference.up_to_window), ("past window", difference.past_window)):
        if part is not None:
            told.append((name, _spread(part)))
    if difference.alarm:
        words = f"the engines' log-probabilities differ by {difference.max:.2g} at the same ids"
        told.append(("ALARM", f"{words}; {known}"))
    return told


def _spread(spread: Spread) -> str:
    if spread.max is None:
        return "no places"
    places = f"{spread.places} place{'s' * (spread.places != 1)} with the same ids"
    return f"{spread.median:.2g} apart (median), at most {spread.max:.2g}, at {places}"


def _difference(found: Difference, a: str, b: str) -> str:
    if found.place is None:
        return f"{found.prompt_id}: {found.reason}"
    sides = [
        (a, found.a_token, found.a_margin, found.a_in_top_of_b, b),
        (b, found.b_token, found.b_margin, found.b_in_top_of_a, a),
    ]
    words = []
    for name, token, margin, known, other in sides:
        side = f"{name} ends" if token is None else f"{name} gives {token}"
        notes = [] if margin is None else [f"margin {margin:.2g}"]
        if known is not None:
            notes.append(f"{'among' if known else 'not among'} the likeliest of {other}")
        words.append(f"{side} ({', '.join(notes)})" if notes else side)
    return f"{found.prompt_id}, token {found.place + 1}: {', '.join(words)}: {found.reason}"


def _interval(interval: tuple[float, float]) -> str:
    low, high = interval
    return f"{low:.1%} to {high:.1%}"


def _median(distances: Sequence[int]) -> str:
    return f"{median(map(abs, distances)):g}" if distances else "-"


def _range(distances: Sequence[int]) -> str:
    return f"{min(distances):+} to {max(distances):+}" if distances else "-"


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
