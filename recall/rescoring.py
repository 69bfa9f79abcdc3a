"""Judges the replies of a results file again, and lays them beside more references: from rows alone, without a model.

What a run measured stays as it is: replies, times, versions, what was sent and read.
"""

from collections.abc import Iterator, Mapping, Sequence

from engines import Completion
from generators import Prompt
from recall.delivery import check_delivery
from recall.errors import RecallError
from recall.references import References
from recall.results import Agreement, ResultRow
from recall.scoring import agreement_with, answered, judge_reply


def rescore(
    rows: Sequence[ResultRow], references: References, prompts: Mapping[str, Prompt] | None = None
) -> Iterator[ResultRow]:
    """Yield each row with its reply judged again, if there are prompts, and its agreement with the references.

    Args:
        rows: of a results file.
        references: rows by prompt, by reference; they are added to those that the rows have already.
        prompts: by id, texts or not: their seeds give the codes again. None: the rows' own verdicts are kept.

    Raises:
        RecallError: naming the row whose prompt is not among `prompts`, is another one there or in a reference, or
            that agreed with a reference under a verdict which it no longer has.
    """
    for row in rows:
        judged = row if prompts is None else _judged(row, prompts)
        yield judged.model_copy(update={"agreement": _agreement(row, judged, references)})


def changed(before: ResultRow, after: ResultRow) -> bool:
    """Return whether a row's verdict is another one now; with whom it agrees is no part of that."""
    return before.model_copy(update={"agreement": after.agreement}) != after


def verdict(row: ResultRow) -> str:
    """Return in words what a row's reply is judged to be."""
    words = [row.outcome or "no reply"]
    if row.codes:
        words.append(" and ".join(row.codes))
    if row.record is not None and not row.found:
        numbers = row.record if isinstance(row.record, list) else [row.record]
        words.append(f"of record {' or '.join(str(number) for number in numbers)}")
    return " ".join(words) + ("" if row.status == "ok" else f" ({row.status})")


def _judged(row: ResultRow, prompts: Mapping[str, Prompt]) -> ResultRow:
    prompt = prompts.get(row.prompt_id)
    if prompt is None:
        raise RecallError(
            f"the row for prompt {row.prompt_id!r} belongs to another set: --prompts has no prompt of that name; give "
            "the set that the run was made with"
        )
    if not row.answers(prompt.sha256, prompt.records, prompt.record, prompt.code):
        raise RecallError(
            f"the row for prompt {row.prompt_id!r} answers another prompt of that name than the one in --prompts "
            "(other ids or another asked record); give the set that the run was made with"
        )
    if row.status == "error":  # there is no reply to judge
        return row
    # A run that was published without its replies has only its answers, or the codes that were none.
    reply = (row.answer or "; ".join(row.codes)) if row.reply is None else row.reply
    judged = row.model_copy(update=judge_reply(reply, prompt).fields())
    return judged.model_copy(update=_delivery(row, judged, prompt) | {"answer_from_end": _from_end(row, judged)})


def _delivery(row: ResultRow, judged: ResultRow, prompt: Prompt) -> dict[str, str | None]:
    """Return status and note: all that they rest on is as it was, but whether the reply gave an answer."""
    if answered(prompt, judged) == answered(prompt, row) or row.tokens_read is None:
        return {"status": row.status, "note": row.note}
    completion = Completion(
        text="",
        tokens_read=row.tokens_read,
        finish=row.finish,
        # What an engine itself noted stands in a row unless a flaw took its place.
        note=row.note if row.status == "ok" else None,
    )
    delivery = check_delivery(prompt, row.tokens_sent, completion, answered=answered(prompt, judged))
    return {"status": delivery.status, "note": delivery.note}


def _from_end(row: ResultRow, judged: ResultRow) -> int | None:
    """Return how far the answer's record is from the prompt's end: of another record only its tokens would tell."""
    if judged.record == row.record:
        return row.answer_from_end
    return row.asked_from_end if judged.record == row.asked_record else None


def _agreement(row: ResultRow, judged: ResultRow, references: References) -> dict[str, Agreement]:
    agreement = dict(row.agreement)
    for name in agreement:
        if name not in references and (judged.codes, judged.status) != (row.codes, row.status):
            raise RecallError(
                f"the row for prompt {row.prompt_id!r} agreed with {name} by codes that it no longer has; give "
                f"--reference {name} again, to compare them anew"
            )
    for name, others in references.items():
        other = others.get(row.prompt_id)
        if other is None:
            agreement.pop(name, None)
        elif row.answers(other.prompt_sha256, other.records, other.asked_record, other.code):
            agreement[name] = agreement_with(judged, other)
        else:
            raise RecallError(
                f"{name}: its row for prompt {row.prompt_id!r} answers another prompt of that name (other ids or "
                "another asked record); use results made from the same set"
            )
    return agreement
