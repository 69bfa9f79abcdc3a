"""Says why two engines answer differently: a tie that rounding decides, a defect, or nobody can know.

A token's log-probability rests on the prompt and the reply before it. So two engines can be compared at every place up
to the first one where their replies differ, and at that one too: there both still read the same ids.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median

from recall.results import AnswerToken, ResultRow
from recall.rounding import arithmetic, explained
from recall.scoring import agreement_with

Matched = Sequence[tuple[ResultRow, ResultRow]]  # the rows of two runs for the same prompts


class Verdict(StrEnum):
    """Why two replies part."""

    TIE = "tie"  # rounding decides between the two tokens
    DEFECT = "defect"  # rounding does not explain it
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Spread:
    """Differences of log-probabilities at some places, in nats; a place has one for each token that both runs tell."""

    median: float | None
    max: float | None
    places: int


@dataclass(frozen=True)
class LogprobDifference(Spread):
    """How far two runs' log-probabilities lie apart wherever both read the same ids and chose the same token.

    Attributes:
        ceiling: what rounding explains; None: nobody knows.
        arithmetic: what the two compute in, in words.
        alarm: whether `max` is above it.
        up_to_window: of the places before which no more than the model's window of tokens was read; None: untold.
        past_window: of the others; only there is a cache of the window's size in use.
    """

    ceiling: float | None
    arithmetic: str
    alarm: bool
    up_to_window: Spread | None
    past_window: Spread | None


@dataclass(frozen=True)
class Difference:
    """Where the replies of runs a and b to one prompt part, and why.

    Attributes:
        prompt_id: the prompt.
        verdict: why.
        reason: the same in words.
        place: of the first token that differs, from 0; None where a run does not tell its tokens.
        a_token: run a's id there; None where its reply is over.
        b_token: the same of b.
        a_in_top_of_b: whether a's token is among the likeliest that b tells there; None: b tells none.
        b_in_top_of_a: the same the other way.
        a_margin: by how many nats a preferred its token to its runner-up.
        b_margin: the same of b.
        apart: by how many nats a preferred its token to b's, plus by how many b preferred its own to a's. That is by
            how much more a thinks of the one token than b does, less the same of the other token: whatever shifts all
            logits of a run drops out. At least so much where one of the two is not among the other's likeliest.
    """

    prompt_id: str
    verdict: Verdict
    reason: str
    place: int | None = None
    a_token: int | None = None
    b_token: int | None = None
    a_in_top_of_b: bool | None = None
    b_in_top_of_a: bool | None = None
    a_margin: float | None = None
    b_margin: float | None = None
    apart: float | None = None


def parting(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Return the first place where two replies have different ids; None where one begins with the whole other."""
    return next((place for place, (mine, theirs) in enumerate(zip(a, b, strict=False)) if mine != theirs), None)


def logprob_difference(matched: Matched) -> LogprobDifference:
    """Compare two runs' log-probabilities at all places before their replies part."""
    places = [place for a, b in matched for place in _places(a, b)]
    ceilings = {explained(a, b) for a, b in matched}
    ceiling = ceilings.pop() if len(ceilings) == 1 else None
    every = _spread([apart for _, apart in places])
    told = any(past is not None for past, _ in places)
    return LogprobDifference(
        every.median,
        every.max,
        every.places,
        ceiling=ceiling,
        arithmetic=_arithmetic(*(row for pair in matched for row in pair)),
        alarm=ceiling is not None and every.max is not None and every.max > ceiling,
        up_to_window=_spread([apart for past, apart in places if past is False]) if told else None,
        past_window=_spread([apart for past, apart in places if past is True]) if told else None,
    )


def find_differences(matched: Matched, names: tuple[str, str], elsewhere: float | None) -> list[Difference]:
    """Return where and why two runs' replies part; also answers that differ where no tokens are told.

    A reply that the other one goes on from is no difference while the codes are the same: servers do not tell the
    token that ended it.

    Args:
        matched: the rows of both.
        names: of the runs, for the reasons.
        elsewhere: the largest difference of their log-probabilities where they do not part; None: there is none.
    """
    return [found for a, b in matched if (found := _difference(a, b, names, elsewhere)) is not None]


def _difference(a: ResultRow, b: ResultRow, names: tuple[str, str], elsewhere: float | None) -> Difference | None:
    if not (_whole(a) and _whole(b)):
        return None
    unknown = Difference(a.prompt_id, Verdict.UNKNOWN, "")
    place = None if a.reply_ids is None or b.reply_ids is None else parting(a.reply_ids, b.reply_ids)
    if place is None:
        # One that was cut off before it gave a code cannot be compared: it is no other answer.
        return _without_tokens(unknown, a, b, names) if agreement_with(a, b).same is False else None
    parted = replace(unknown, place=place, a_token=_id(a, place), b_token=_id(b, place))
    mine, theirs = _told(a, place), _told(b, place)
    if mine is not None:
        parted = replace(parted, a_margin=mine.margin, b_in_top_of_a=parted.b_token in dict(mine.top))
    if theirs is not None:
        parted = replace(parted, b_margin=theirs.margin, a_in_top_of_b=parted.a_token in dict(theirs.top))
    if mine is None or theirs is None:
        silent = _which(names, [mine is None, theirs is None])
        return replace(parted, reason=f"no log-probabilities are told by {silent}")
    if not _same_input(a, b):
        return replace(parted, reason="nothing proves that both read the same ids")
    apart = _preference(mine, theirs.id) + _preference(theirs, mine.id)
    parted = replace(parted, apart=apart)
    for name, token in zip(names, (mine, theirs), strict=True):
        if token.margin is not None and token.margin < 0:
            return replace(parted, reason=f"{name} did not take its likeliest token: it does not decode greedily")
    exact = bool(parted.a_in_top_of_b and parted.b_in_top_of_a)
    verdict, reason = _judge(apart, exact, elsewhere, explained(a, b), _arithmetic(a, b))
    return replace(parted, verdict=verdict, reason=reason)


def _judge(
    apart: float, exact: bool, elsewhere: float | None, ceiling: float | None, numbers: str
) -> tuple[Verdict, str]:
    """Judge by the most that two log-probabilities of a token differ by: `apart` is made of two such differences.

    More than elsewhere, and still within what rounding explains, is left open: the places elsewhere may be few.
    """
    weigh = f"they weigh the two tokens {'' if exact else 'at least '}{apart:.2g} apart"
    if ceiling is not None and apart > 2 * ceiling:
        return Verdict.DEFECT, f"{weigh}, more than twice what rounding in {numbers} explains ({ceiling:.2g})"
    if not exact:
        return Verdict.UNKNOWN, f"{weigh}: one is not among the likeliest that the other engine tells"
    limits = [limit for limit in (elsewhere, ceiling) if limit is not None]
    if not limits:
        return Verdict.UNKNOWN, f"{weigh}, and nothing tells what rounding in {numbers} explains"
    limit = min(limits)
    if apart <= 2 * limit:
        by = "what they differ by elsewhere" if limit == elsewhere else f"what rounding in {numbers} explains"
        return Verdict.TIE, f"{weigh}, no more than twice {by} ({limit:.2g})"
    more = f"{weigh}, more than twice what they differ by elsewhere ({limit:.2g})"
    if ceiling is None:
        return Verdict.UNKNOWN, f"{more}; what rounding in {numbers} explains is not known"
    return Verdict.UNKNOWN, f"{more}; rounding in {numbers} explains up to twice {ceiling:.2g}"


def _without_tokens(unknown: Difference, a: ResultRow, b: ResultRow, names: tuple[str, str]) -> Difference:
    """Return what is known of two answers that differ where there are no two tokens that do."""
    if a.reply_ids is None or b.reply_ids is None:
        silent = _which(names, [a.reply_ids is None, b.reply_ids is None])
        return replace(unknown, reason=f"no tokens are told by {silent}")
    if len(a.reply_ids) == len(b.reply_ids):
        return replace(unknown, reason="the replies have the same ids, and the codes in their texts are not the same")
    place = min(len(a.reply_ids), len(b.reply_ids))
    name, shorter = (names[0], a) if len(a.reply_ids) == place else (names[1], b)
    how = "was cut off there" if shorter.finish == "length" else "ended there, and its end token is not told"
    reason = f"the reply of {name} {how}"
    return replace(unknown, place=place, a_token=_id(a, place), b_token=_id(b, place), reason=reason)


def _places(a: ResultRow, b: ResultRow) -> Iterator[tuple[bool | None, list[float]]]:
    """Yield every place before two replies part: whether it lies past the window, the differences of its tokens."""
    if not (_whole(a) and _whole(b) and _same_input(a, b)) or a.reply_ids is None or b.reply_ids is None:
        return
    window = b.window if a.window is None else a.window
    end = parting(a.reply_ids, b.reply_ids)
    for place in range(min(len(a.reply_ids), len(b.reply_ids)) if end is None else end):
        mine, theirs = _told(a, place), _told(b, place)
        if mine is not None and theirs is not None:
            others = _logprobs(theirs)
            apart = [abs(logprob - others[token]) for token, logprob in _logprobs(mine).items() if token in others]
            yield None if window is None else a.prompt_tokens + place > window, apart


def _spread(places: Sequence[Sequence[float]]) -> Spread:
    every = [apart for place in places for apart in place]
    return Spread(median(every) if every else None, max(every, default=None), len(places))


def _logprobs(token: AnswerToken) -> dict[int, float]:
    return dict(token.top) | {token.id: token.logprob}


def _preference(token: AnswerToken, other: int) -> float:
    """Return by how many nats a token was preferred to another; at least so much where the other is not told."""
    logprobs = _logprobs(token)
    return token.logprob - logprobs.get(other, min(logprobs.values()))


def _whole(row: ResultRow) -> bool:
    """Return whether a row's reply is one to the whole prompt."""
    return row.status == "ok" or row.cut_off


def _same_input(a: ResultRow, b: ResultRow) -> bool:
    """Return whether two runs read the same ids; one that got text may have read more than the prompt has."""
    read = all(row.tokens_read in (None, row.prompt_tokens) for row in (a, b))
    return read and a.prompt_sha256 is not None and a.prompt_sha256 == b.prompt_sha256


def _told(row: ResultRow, place: int) -> AnswerToken | None:
    tokens = row.answer_tokens or []
    return tokens[place] if place < len(tokens) else None


def _id(row: ResultRow, place: int) -> int | None:
    ids = row.reply_ids or []
    return ids[place] if place < len(ids) else None


def _which(names: tuple[str, str], those: Sequence[bool]) -> str:
    return " and ".join(name for name, silent in zip(names, those, strict=True) if silent)


def _arithmetic(*rows: ResultRow) -> str:
    return " and ".join(dict.fromkeys(arithmetic(row) for row in rows))
