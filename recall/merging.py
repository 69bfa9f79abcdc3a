"""Puts the results files of a run's parts together: complete, without a conflict, or not at all."""

from collections.abc import Mapping, Sequence

from generators import Prompt
from recall.errors import RecallError
from recall.results import ResultRow

_NAMED = 3  # missing prompts that an error names before it counts the rest


def merge(parts: Mapping[str, Sequence[ResultRow]], prompts: Sequence[Prompt]) -> list[ResultRow]:
    """Return the rows of all parts, one for each prompt of the set, in its order.

    A prompt that has the same answer in two parts is taken from the first.

    Args:
        parts: rows by the name of their file.
        prompts: the whole set, texts or not.

    Raises:
        RecallError: naming file and prompt, where parts were made with other settings, a prompt has two answers, a row
            belongs to another set, or prompts have no row.
    """
    wanted = {prompt.id: prompt for prompt in prompts}
    rows: dict[str, tuple[str, ResultRow]] = {}
    first: tuple[str, ResultRow] | None = None
    for name, part in parts.items():
        for row in part:
            prompt = wanted.get(row.prompt_id)
            if prompt is None or not row.answers(prompt.sha256, prompt.records, prompt.record, prompt.code):
                raise RecallError(f"{name}: its row for prompt {row.prompt_id!r} belongs to another set; leave it out")
            first = first or (name, row)
            _check_settings(*first, name, row)
            other, kept = rows.setdefault(row.prompt_id, (name, row))
            if (kept.status, kept.reply, kept.reply_ids) != (row.status, row.reply, row.reply_ids):
                raise RecallError(
                    f"{name} and {other} have two answers to prompt {row.prompt_id!r}; find out why, and leave one "
                    "file out"
                )
    missing = [prompt.id for prompt in prompts if prompt.id not in rows]
    if missing:
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        raise RecallError(
            f"{len(missing)} of {len(prompts)} prompts have no row ({', '.join(missing[:_NAMED])}{more}); run the "
            "parts that they are in to their end"
        )
    return [rows[prompt.id][1] for prompt in prompts]


def _check_settings(first: str, wanted: ResultRow, name: str, row: ResultRow) -> None:
    for setting in ("engine", "model", "fingerprint", "dtype", "device", "settings", "max_new"):
        then, now = getattr(wanted, setting), getattr(row, setting)
        if then != now:
            raise RecallError(
                f"{name}: its row for prompt {row.prompt_id!r} was made with another {setting} ({now}) than those of "
                f"{first} ({then}); merge parts of one run only"
            )
