"""Chooses prompts of a set by what --only names: their ids, or their sizes in tokens."""

from collections.abc import Sequence

from generators import Prompt
from recall.errors import RecallError


def choose(prompts: Sequence[Prompt], only: str | None) -> list[Prompt]:
    """Return the prompts that `only` names, in the order of the set; None names all of them.

    Args:
        prompts: the set.
        only: ids or prompt sizes in tokens, with commas between.

    Raises:
        RecallError: for an id or size that no prompt has, or when nothing is named.
    """
    if only is None:
        return list(prompts)
    chosen: list[Prompt] = []
    for wanted in filter(None, (part.strip() for part in only.split(","))):
        matches = [prompt for prompt in prompts if wanted in (prompt.id, str(prompt.prompt_tokens))]
        if not matches:
            sizes = ", ".join(str(size) for size in sorted({prompt.prompt_tokens for prompt in prompts}))
            raise RecallError(f"--only {wanted}: the set has no prompt of that id or size; its sizes are {sizes}")
        chosen += matches
    if not chosen:
        raise RecallError("--only names no prompts: give ids or sizes with commas between, or leave it out")
    return [prompt for prompt in prompts if prompt in chosen]


def shard(prompts: Sequence[Prompt], part: str | None, *, by_seed: bool = False) -> list[Prompt]:
    """Return the prompts of one part of several, in the order of the set; None: all of them.

    The longest prompts are dealt out first, so that the parts take about as long as each other.

    Args:
        prompts: of the whole run; every part has to be given the same ones.
        part: `i/n`, the i-th of n parts, from 1.
        by_seed: deal out seeds, so that prompts which share a read stay together.

    Raises:
        RecallError: for anything but a part of several, or more parts than there is to deal out.
    """
    if part is None:
        return list(prompts)
    number, slash, count = part.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise RecallError(f"--shard {part!r}: give which part of how many, from 1/4 to 4/4 for four of them")
    sizes: dict[str | int, int] = {}
    for prompt in prompts:
        key = prompt.seed if by_seed else prompt.id
        sizes[key] = max(sizes.get(key, 0), prompt.prompt_tokens)
    if int(count) > len(sizes):
        raise RecallError(
            f"--shard {part}: there are only {len(sizes)} {'seeds' if by_seed else 'prompts'}; give fewer"
        )
    dealt = set(sorted(sizes, key=lambda key: -sizes[key])[int(number) - 1 :: int(count)])
    return [prompt for prompt in prompts if (prompt.seed if by_seed else prompt.id) in dealt]
