"""A sweep: its cells, every length x depth x seed, and their answers, from one read a seed where that can be shared."""

from collections.abc import Generator, Sequence
from itertools import groupby

from engines import EngineError, SharingEngine
from generators import Prompt
from recall.clusters import seeds_for
from recall.errors import RecallError
from recall.results import ResultRow
from recall.scoring import Progress, Run, ids_of, row_of

_MOST_DEPTHS = 10_001  # that differ in four places behind the point
_DEPTHS = f"give their number, from 2 to {_MOST_DEPTHS}, or shares from 0 to 1 such as 0.1,0.5"


def numbers(option: str, text: str) -> list[int]:
    """Return the whole numbers of an option such as `--lengths 4096,8192`.

    Raises:
        RecallError: naming the option, for anything else.
    """
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise RecallError(f"{option} {text!r}: give whole numbers with commas between, such as 4096,8192") from error
    return list(dict.fromkeys(found))


def depths(text: str) -> list[float]:
    """Return the depths that `--depths` names: so many of them, evenly from 0 to 1, or the shares themselves.

    Raises:
        RecallError: for anything else.
    """
    try:
        if "." not in text and "," not in text and 1 < (count := int(text)) <= _MOST_DEPTHS:
            return [round(place / (count - 1), 4) for place in range(count)]
        shares = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise RecallError(f"--depths {text!r}: {_DEPTHS}") from error
    if "." not in text or not all(0 <= share <= 1 for share in shares):
        raise RecallError(f"--depths {text!r}: {_DEPTHS}")
    return list(dict.fromkeys(shares))


def tokens_to_read(prompts: Sequence[Prompt], *, shared: bool) -> int:
    """Return how many tokens are read: of each seed its longest prompt where reads are shared, else every prompt."""
    if not shared:
        return sum(prompt.prompt_tokens for prompt in prompts)
    longest: dict[int, int] = {}
    for prompt in prompts:
        longest[prompt.seed] = max(longest.get(prompt.seed, 0), prompt.prompt_tokens)
    return sum(longest.values())


def plan_text(lengths: Sequence[int], depths: int, seeds: int, *, shared: bool) -> str:
    """Return in words what a sweep reads, and how many seeds tell a difference of 5 points."""
    cells = len(lengths) * depths * seeds
    alone = sum(lengths) * depths * seeds
    reads = max(lengths) * seeds if shared else alone
    lines = [
        f"{cells} cells ({len(lengths)} lengths x {depths} depths x {seeds} seeds), at most {reads:,} tokens to read"
        + (f" instead of {alone:,}" if shared else ""),
        "seeds that tell two engines 5 points apart (80% power, 5% level), by how alike the answers of one seed are:",
    ]
    for name, questions in (("one length, all depths", depths), ("all cells", depths * len(lengths))):
        low, middle, high = (seeds_for(0.05, questions, dependence) for dependence in (0.0, 0.1, 1.0))
        lines.append(f"  {name}: {low:,} if not at all, {middle:,} if somewhat (0.1), {high:,} if all the same")
    return "\n".join(lines)


def from_one_read(
    engine: SharingEngine, prompts: Sequence[Prompt], run: Run, progress: Progress
) -> Generator[ResultRow]:
    """Yield the row of each prompt as it is answered, the prompts of one seed from one read.

    Raises:
        RecallError: when the engine's tokenizer makes other ids than the prompts were made with.
    """
    # Of the longest prompts the one is read for all that asks for the last record: prompts of task `near` are alike
    # only up to where they ask.
    ordered = sorted(prompts, key=lambda prompt: (prompt.seed, -prompt.record))
    for _, group in groupby(ordered, key=lambda prompt: prompt.seed):
        waiting = {prompt.id: prompt for prompt in group}
        ids = {name: ids_of(prompt, engine) or () for name, prompt in waiting.items()}
        requests = [run.request(prompt, ids[name]) for name, prompt in waiting.items()]
        longest = max(waiting.values(), key=lambda prompt: prompt.prompt_tokens)
        progress.prompt_begins(longest)
        try:
            for request, completion in engine.complete_together(requests, progress.tokens_read):
                prompt = waiting.pop(request.prompt_id)
                row = row_of(prompt, engine, run, completion, ids[prompt.id])
                progress.prompt_ends(row)
                yield row
        except EngineError as error:
            for prompt in waiting.values():
                row = row_of(prompt, engine, run, None, ids[prompt.id], note=str(error))
                progress.prompt_ends(row)
                yield row
