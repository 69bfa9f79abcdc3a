"""Sorts result rows into what the tables and lists of a report say beside found and agreed. Needs the rows only."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from statistics import median
from typing import Literal

from recall.results import ResultRow

_REPLY = 300  # letters of a reply that a report shows


@dataclass(frozen=True)
class Speed:
    """Medians over the rows of one length that tell them.

    Attributes:
        length: in tokens; the budget, or the prompt's own where no budget is told.
        rows: of this length.
        read: tokens a second.
        decode: tokens a second after the first one.
        cache: bytes of keys and values.
    """

    length: int
    rows: int
    read: float | None
    decode: float | None
    cache: float | None


def speeds(rows: Iterable[ResultRow]) -> list[Speed]:
    """Return an engine's speed and memory by length."""
    by_length: dict[int, list[ResultRow]] = defaultdict(list)
    for row in rows:
        by_length[row.prompt_tokens if row.budget is None else row.budget].append(row)
    return [
        Speed(
            length,
            len(group),
            _median(row.read_tok_s for row in group),
            _median(row.decode_tok_s for row in group),
            _median(row.cache_bytes for row in group),
        )
        for length, group in sorted(by_length.items())
    ]


def setup(runs: Sequence[Sequence[ResultRow]]) -> list[tuple[str, list[list[str]]]]:
    """Return what the engines were, as (name, values by run): one value of a run where all its rows say the same."""
    facts: dict[str, Callable[[ResultRow], object]] = {
        "engine": lambda row: row.engine,
        "model": lambda row: row.model,
        "number format": lambda row: row.dtype,
        "device": lambda row: row.device,
        "task": lambda row: row.task,
        "context": lambda row: row.context,
        "most tokens of an answer": lambda row: row.max_new,
        "sliding window": lambda row: row.window,
    }
    told = [(name, [_different(map(fact, rows)) for rows in runs]) for name, fact in facts.items()]
    settings = [[row.settings for row in rows] for rows in runs]
    versions = [[row.versions for row in rows] for rows in runs]
    return told + _by_name("setting", settings) + _by_name("version", versions)


def fingerprint(rows: Sequence[ResultRow]) -> str | None:
    """Return the SHA-256 of the sorted prompt hashes, a line each; None where a row does not tell its own.

    Runs over the same prompts have the same one, whatever their order.
    """
    hashes = [row.prompt_sha256 for row in rows]
    if None in hashes:
        return None
    return sha256("".join(f"{told}\n" for told in sorted(filter(None, hashes))).encode()).hexdigest()


@dataclass(frozen=True)
class Remark:
    """A note, or none, that rows of one status have, and their prompts."""

    status: Literal["ok", "invalid", "error"]
    note: str | None
    prompts: list[str]


def remarks(rows: Iterable[ResultRow]) -> list[Remark]:
    """Return what rows note, those without an answer first; rows that are in order and note nothing are left out."""
    noted: dict[tuple[Literal["ok", "invalid", "error"], str | None], list[str]] = defaultdict(list)
    for row in rows:
        if row.status != "ok" or row.note is not None:
            noted[row.status, row.note].append(row.prompt_id)
    order = ["error", "invalid", "ok"]
    sorted_by_status = sorted(noted.items(), key=lambda item: order.index(item[0][0]))
    return [Remark(status, note, prompts) for (status, note), prompts in sorted_by_status]


@dataclass(frozen=True)
class Strip:
    """Where records stand in the prompt, in percent of the way from its first token to its last.

    Attributes:
        asked: the asked record, or all of them.
        answered: the records with the code that was given; none where no record has it.
        window: from where on the sliding layers see the prompt when the answer begins; None: nobody tells.
        unit: what it was measured in.
    """

    asked: list[float]
    answered: list[float]
    window: float | None
    unit: Literal["tokens", "records"]


def strip(row: ResultRow) -> Strip:
    """Return where the asked and the answered record of a row stand: by tokens where those are told, else by number."""
    window = None if row.window is None else _way(row.window, row.prompt_tokens)
    asked = row.asked_records or [row.asked_record]
    given = row.record if isinstance(row.record, list) else [] if row.record is None else [row.record]
    # The tokens are told of one asked record, and of one answered: the nearest to it.
    if len(asked) == 1 and row.asked_from_end is not None and (row.answer_from_end is not None or not given):
        ends = [] if row.answer_from_end is None else [row.answer_from_end]
        ways = [_way(end, row.prompt_tokens) for end in (row.asked_from_end, *ends)]
        return Strip(ways[:1], ways[1:], window, "tokens")
    ways = [100 * (number - 0.5) / row.records for number in (*asked, *given)]
    return Strip(ways[: len(asked)], ways[len(asked) :], window, "records")


def shortened(reply: str | None) -> str:
    """Return a reply without the space around it; of a long one the beginning, and how long it is."""
    told = (reply or "").strip()
    return told if len(told) <= _REPLY else f"{told[:_REPLY]}… ({len(told):,} letters)"


def _way(from_end: int, tokens: int) -> float:
    return 100 * max(0.0, 1 - from_end / tokens)


def _median(values: Iterable[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return median(told) if told else None


def _by_name(title: str, held: Sequence[Sequence[Mapping[str, object]]]) -> list[tuple[str, list[list[str]]]]:
    names = sorted({name for run in held for row in run for name in row})
    return [(f"{title} {name}", [_different(row.get(name) for row in run) for run in held]) for name in names]


def _different(values: Iterable[object]) -> list[str]:
    return list(dict.fromkeys("not told" if value is None else str(value) for value in values))
