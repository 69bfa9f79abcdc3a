"""Result rows made by hand, for tests of what is concluded from rows."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engines import Choice
from recall.results import AnswerToken, ResultRow
from recall.scoring import answer_token, judge

# Records 1 to 10; the third is asked for, and records 5 and 9 share a code.
CODES = ["100000", "200000", "345678", "400000", "500000", "600000", "700000", "800000", "500000", "111111"]
ASKED = 3
RIGHT, OTHER, NONE = CODES[ASKED - 1], CODES[3], ""
SHA = "a" * 64
PROMPT_TOKENS = 600


def made_row(prompt_id: str = "p1", reply: str = RIGHT, **fields: Any) -> ResultRow:
    """Return the row of a reply to a prompt with `CODES`; `fields` take the place of its own."""
    row = ResultRow(
        prompt_id=prompt_id,
        prompt_sha256=SHA,
        engine="ring",
        model="demo",
        dtype="fp32",
        device="cpu",
        context=1024,
        prompt_tokens=PROMPT_TOKENS,
        records=len(CODES),
        asked_record=ASKED,
        code=RIGHT,
        answer=None,
        codes=[],
        outcome=None,
        found=False,
        record=None,
        reply=reply,
    )
    return row.model_copy(update=judge(reply, ASKED, CODES).fields() | fields)


def failed_row(prompt_id: str = "p1") -> ResultRow:
    """Return the row of an engine that gave no reply."""
    nothing: dict[str, Any] = {"reply": None, "outcome": None, "status": "error", "note": "it broke"}
    return made_row(prompt_id, "").model_copy(update=nothing)


def choices(*places: Mapping[int, float]) -> dict[str, Any]:
    """Return the fields of a reply whose places have these likeliest tokens; the first of each is the one taken."""
    ids = [next(iter(place)) for place in places]
    return {"reply_ids": ids, "answer_tokens": [_told(place) for place in places]}


def _told(place: Mapping[int, float]) -> AnswerToken:
    taken, logprob = next(iter(place.items()))
    top = sorted(place.items(), key=lambda likely: -likely[1])
    return answer_token(Choice(taken, logprob, top))


def write(path: Path, rows: Sequence[ResultRow]) -> Path:
    """Write a results file."""
    path.write_text("".join(row.model_dump_json() + "\n" for row in rows))
    return path
