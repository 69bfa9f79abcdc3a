"""Decides what a started-again run has still to do, and refuses to mix rows that were made with other settings."""

from collections.abc import Sequence
from pathlib import Path

from engines import EngineInfo
from generators import Prompt
from recall.errors import RecallError
from recall.results import ResultRow
from recall.scoring import Run


def still_to_do(
    chosen: Sequence[Prompt],
    prompts: Sequence[Prompt],
    done: Sequence[ResultRow],
    info: EngineInfo,
    run: Run,
    path: Path,
) -> list[Prompt]:
    """Return the chosen prompts that have no row yet.

    Args:
        chosen: the prompts of this run.
        prompts: all prompts of the set.
        done: the rows in its results file.
        info: the engine of this run.
        run: its settings.
        path: the results file, for the error.

    Raises:
        RecallError: naming the first setting in which a row differs from this run, or a row of another set.
    """
    by_id = {prompt.id: prompt for prompt in chosen}
    in_set = {prompt.id for prompt in prompts}
    for row in done:
        if row.prompt_id not in in_set:
            raise RecallError(
                f"{path}: its row for prompt {row.prompt_id!r} belongs to another SET, which is not this one; give "
                "another -o, or the set of before"
            )
        settings: dict[str, tuple[object, object]] = {
            "--engine": (row.engine, info.engine),
            "--model": (row.model, info.model),
            "--model, other weights of that name,": (row.fingerprint, info.fingerprint),
            "--dtype": (row.dtype, info.dtype),
            "--device": (row.device, info.device),
        }
        settings |= {
            f"--{name.replace('_', '-')}": (row.settings.get(name), info.settings.get(name))
            for name in sorted(row.settings.keys() | info.settings.keys())
        }
        prompt = by_id.get(row.prompt_id)
        if prompt is not None:
            request = run.request(prompt)
            named = sorted(name for name, rows in run.references.items() if prompt.id in rows)
            settings |= {
                "SET": (row.prompt_sha256, prompt.sha256),
                "--context": (row.context, request.context),
                "--max-new": (row.max_new, request.max_new),
                "--reference": (sorted(row.agreement), named),
            }
        for option, (then, now) in settings.items():
            if then != now:
                raise RecallError(
                    f"{path}: its row for prompt {row.prompt_id!r} was made with another {option} ({then}, now {now}); "
                    "give another -o, or the options of before"
                )
    have = {row.prompt_id for row in done}
    return [prompt for prompt in chosen if prompt.id not in have]
