"""Lays result rows of several runs side by side: what each found, and where each two agree. Needs the rows only."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from recall.differences import Difference, LogprobDifference, Matched, find_differences, logprob_difference
from recall.errors import RecallError
from recall.intervals import mcnemar, wilson
from recall.results import Agreement, Outcome, ResultRow
from recall.scoring import agreement_with
from recall.wrong_answers import WrongAnswers, wrong_answers


@dataclass(frozen=True)
class RunSummary:
    """What one run found. A row that is invalid or an error is no missed needle: it counts neither way.

    Attributes:
        name: of the run.
        found: prompts whose asked code it gave.
        n: prompts that it answered validly.
        interval: of found / n, Wilson's at 95%.
        invalid: rows with an answer that was not to the whole prompt, or cut off.
        errors: rows without an answer.
        wrong_answers: the other n - found, by what they are.
    """

    name: str
    found: int
    n: int
    interval: tuple[float, float]
    invalid: int
    errors: int
    wrong_answers: WrongAnswers


@dataclass(frozen=True)
class PairSummary:
    """How far two runs agree.

    Attributes:
        a: the name of the first run.
        b: that of the second.
        n: prompts whose answers can be compared: both valid, or both cut off before they gave a code.
        same: of these, those with the same answer, right or wrong.
        same_wrong: of these, those with a wrong one.
        agreement: same / n; None when there are none to compare.
        interval: of the agreement, Wilson's at 95%.
        n_valid: prompts that both answered validly.
        same_found: of these, those that both found, or both did not.
        discordant: of these, those that only a found, and only b.
        mcnemar_p: exact two-sided p-value of these two counts; None when there are none to compare.
        n_wrong_record: prompts to which both gave the code of another record than the asked one.
        same_wrong_record: of these, those with the same record.
        logprob_difference: how far their log-probabilities lie apart.
        differences: where and why their replies part.
        models: the two runs' names of their models where these differ: then other weights may be why they part.
    """

    a: str
    b: str
    n: int
    same: int
    same_wrong: int
    agreement: float | None
    interval: tuple[float, float]
    n_valid: int
    same_found: int
    discordant: tuple[int, int]
    mcnemar_p: float | None
    n_wrong_record: int
    same_wrong_record: int
    logprob_difference: LogprobDifference
    differences: list[Difference]
    models: tuple[str, str] | None


@dataclass(frozen=True)
class Comparison:
    """The first run's rows, each with what the references answered to its prompt; and what all runs come to."""

    subject: str
    rows: list[ResultRow]
    references: list[str]
    agreement: list[dict[str, Agreement]]  # by row, then by reference
    runs: list[RunSummary]
    pairs: list[PairSummary]
    unmatched: list[str]  # in words: rows that only one of two runs has


def compare_runs(runs: Mapping[str, Sequence[ResultRow]]) -> Comparison:
    """Compare every two runs; or, when there is only one, that one with the references in its own rows.

    Raises:
        RecallError: when two runs answer different prompts under one id.
    """
    subject, rows = next(iter(runs.items()))
    pairs, unmatched = [], []
    if len(runs) == 1:
        agreement = [row.agreement for row in rows]
        references = list(dict.fromkeys(name for agreed in agreement for name in agreed))
        for name in references:
            answers = [(row, row.agreement[name]) for row in rows if name in row.agreement]
            pairs.append(_summarize_pair(subject, name, answers, []))
    else:
        agreement = [{} for _ in rows]
        references = [name for name in runs if name != subject]
        beside = {row.prompt_id: agreed for row, agreed in zip(rows, agreement, strict=True)}
        for (a, of_a), (b, of_b) in combinations(runs.items(), 2):
            matched = _match(a, of_a, b, of_b)
            answers = [(row, agreement_with(row, other)) for row, other in matched]
            pairs.append(_summarize_pair(a, b, answers, matched))
            unmatched += _unmatched(a, len(of_a), b, len(matched)) + _unmatched(b, len(of_b), a, len(matched))
            if a == subject:
                for row, agreed in answers:
                    beside[row.prompt_id][b] = agreed
    summaries = [_summarize(name, run) for name, run in runs.items()]
    return Comparison(subject, list(rows), references, agreement, summaries, pairs, unmatched)


def _match(a: str, of_a: Sequence[ResultRow], b: str, of_b: Sequence[ResultRow]) -> Matched:
    """Return the rows of both runs for the prompts that both answered."""
    by_prompt = {row.prompt_id: row for row in of_b}
    matched = [(row, by_prompt[row.prompt_id]) for row in of_a if row.prompt_id in by_prompt]
    for row, other in matched:
        if not row.answers(other.prompt_sha256, other.records, other.asked_record, other.code):
            raise RecallError(
                f"{a} and {b} answer different prompts under the id {row.prompt_id!r}; score both on one set"
            )
    return matched


def _unmatched(name: str, rows: int, other: str, matched: int) -> list[str]:
    return [f"{rows - matched} of {rows} prompts of {name} have no row in {other}"] if matched < rows else []


def _summarize(name: str, rows: Sequence[ResultRow]) -> RunSummary:
    status = Counter(row.status for row in rows)
    found = sum(row.found for row in rows if row.status == "ok")
    return RunSummary(
        name=name,
        found=found,
        n=status["ok"],
        interval=wilson(found, status["ok"]),
        invalid=status["invalid"],
        errors=status["error"],
        wrong_answers=wrong_answers(rows),
    )


def _summarize_pair(a: str, b: str, answers: Sequence[tuple[ResultRow, Agreement]], matched: Matched) -> PairSummary:
    """Summarize what a's rows and b's answers come to; `matched`: both's rows, where b's are at hand."""
    compared = [(row, other) for row, other in answers if other.same is not None]
    valid = [(row, other) for row, other in compared if row.status == "ok"]  # and so is the other's
    same = [row for row, other in compared if other.same]
    discordant = (
        sum(row.found and other.outcome is not Outcome.FOUND for row, other in valid),
        sum(not row.found and other.outcome is Outcome.FOUND for row, other in valid),
    )
    strays = [other for row, other in valid if row.outcome is other.outcome is Outcome.OTHER_RECORD]
    logprobs = logprob_difference(matched)
    models = {(row.model, other.model) for row, other in matched if row.model != other.model}
    return PairSummary(
        a=a,
        b=b,
        n=len(compared),
        same=len(same),
        same_wrong=sum(row.status == "ok" and not row.found for row in same),
        agreement=len(same) / len(compared) if compared else None,
        interval=wilson(len(same), len(compared)),
        n_valid=len(valid),
        same_found=len(valid) - sum(discordant),
        discordant=discordant,
        mcnemar_p=mcnemar(*discordant) if valid else None,
        n_wrong_record=len(strays),
        # The same code belongs to the same record: both read one prompt.
        same_wrong_record=sum(other.same is True for other in strays),
        logprob_difference=logprobs,
        differences=find_differences(matched, (a, b), logprobs.max),
        models=min(models, default=None),
    )
