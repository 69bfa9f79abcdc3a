"""Prompt sets: which prompts a seed makes, the published laptop set among them.

Prompts of one seed share their records from the start on, whatever their budgets. A set with one source for
all its prompts draws on instead: each prompt of a seed and context takes up the source where the one before left it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from generators.errors import GeneratorError
from generators.fitting import most_records
from generators.prompts import Prompt, TemplateName, TokenizerName
from generators.records import Format, asked_record, draws
from generators.tasks import ASKED, RECORD, TASKS, Task, TaskName, spread
from generators.tokens import PromptTokenizer, sha256_of_ids

ANSWER_ROOM = 64
# Beyond these a slip of the keyboard is likelier than a wish: no model reads such prompts, nobody so many of them.
_MOST_TOKENS = 100_000_000
_MOST_PROMPTS = 1_000_000
PRESETS = ("laptop",)


@dataclass(frozen=True)
class PromptSpec:
    """What is asked of one prompt, before its records are drawn and counted.

    Exactly one of `depth` and `record` is given. `budget` None asks for the least a prompt can hold: one record.
    `asked`: how many records are asked for.
    """

    id: str
    seed: int
    order: int
    context: int
    budget: int | None
    answer_room: int
    depth: float | None = None
    record: int | None = None
    task: Task = RECORD
    asked: int = 1


def laptop_specs(form: Format) -> list[PromptSpec]:
    """Return the published laptop run's five prompts: seed 1234, depth 0.25, budgets of the prompt alone.

    Source: the run's table in the article, and the draws recovered from it. 131008 is 131072 less 64 new tokens.
    """
    budgets = {33_024: (None, 4096, 32_768), 131_328: (32_768, 131_008)}
    name = "laptop" if form == "chat" else f"laptop-{form}"
    return [
        PromptSpec(f"{name}-{context}-{order}", 1234, order, context, budget, answer_room=0, depth=0.25)
        for context, of_context in budgets.items()
        for order, budget in enumerate(of_context, 1)
    ]


def seeded_specs(
    form: Format,
    *,
    seed: int,
    budgets: Sequence[int],
    contexts: Sequence[int],
    depths: Sequence[float] = (),
    records: Sequence[int] = (),
    count: int = 1,
    answer_room: int = ANSWER_ROOM,
    task: TaskName = "record",
    asked: int | None = None,
) -> list[PromptSpec]:
    """Return every context x budget x asked record, for `count` seeds from `seed` on.

    Args:
        form: chat or completion.
        seed: of the first prompt; the k-th prompt of a cell has seed + k - 1.
        budgets: tokens, BOS, template and room for the answer included.
        contexts: tokens an engine is to hold; none: the largest budget, up to a whole number of 256.
        depths: asked records as shares of the way in, 0 to 1.
        records: asked records by number, from 1.
        count: how many seeds.
        answer_room: tokens of every budget that are kept free for the answer.
        task: what is asked.
        asked: how many records task several asks for, from 2; None: 3.

    Raises:
        GeneratorError: for a value out of its range, a repeated one, or a budget larger than a context.
    """
    contexts = contexts or [-(-max(budgets, default=0) // 256) * 256]
    _check_values(seed, budgets, contexts, depths, records, count)
    many = _asked_of(task, asked)
    kind = {"record": "", "several": f"several{many}-"}.get(task, f"{task}-")
    places: list[tuple[float | None, int | None, str]] = [(depth, None, f"d{depth}") for depth in depths]
    places += [(None, record, f"r{record}") for record in records]
    total = len(contexts) * len(budgets) * len(places) * count
    if total > _MOST_PROMPTS:
        raise GeneratorError(f"these are {total:,} prompts, and a set holds {_MOST_PROMPTS:,} at most; ask for fewer")
    specs = []
    for context in contexts:
        cells = product(budgets, places, range(seed, seed + count))
        for order, (budget, (depth, record, label), number) in enumerate(cells, 1):
            name = f"{form}-{kind}s{number}-c{context}-b{budget}-{label}"
            spec = PromptSpec(name, number, order, context, budget, answer_room, depth, record, TASKS[task], many)
            specs.append(spec)
    if len({spec.id for spec in specs}) != len(specs):
        raise GeneratorError("a --context, --budget, --depth or --record is given twice: give each value once")
    return specs


def _asked_of(task: TaskName, asked: int | None) -> int:
    """Return how many records a task asks for."""
    if task != "several":
        if asked is not None:
            raise GeneratorError(f"--asked {asked}: --task {task} asks for one record; give --task several")
        return 1
    if asked is not None and asked < 2:
        raise GeneratorError(f"--asked {asked}: give 2 or more; the other tasks ask for one record")
    return asked or ASKED


def _check_values(
    seed: int,
    budgets: Sequence[int],
    contexts: Sequence[int],
    depths: Sequence[float],
    records: Sequence[int],
    count: int,
) -> None:
    if seed < 0:  # Python draws the same from a seed and its negative
        raise GeneratorError(f"--seed {seed}: give 0 or more")
    if not budgets:
        raise GeneratorError("no --budget given: say how many tokens a prompt may have, for example --budget 4096")
    if max(budgets) > _MOST_TOKENS:
        raise GeneratorError(f"--budget {max(budgets)}: give {_MOST_TOKENS:,} or less")
    if count < 1:
        raise GeneratorError(f"--count {count}: give 1 or more")
    for depth in depths:
        if not 0 <= depth <= 1:
            raise GeneratorError(f"--depth {depth}: give a share of the way in, from 0 to 1")
    for record in records:
        if record < 1:
            raise GeneratorError(f"--record {record}: records are numbered from 1")
    if max(budgets) > min(contexts):
        raise GeneratorError(
            f"--budget {max(budgets)} does not fit into --context {min(contexts)}: give a smaller or larger one"
        )


def make_prompts(
    specs: Iterable[PromptSpec], tokenizer: PromptTokenizer, form: Format, *, one_source: bool = False
) -> Iterator[Prompt]:
    """Yield the prompt of each spec, counted on its final ids: never over its budget, and one more record would be.

    Args:
        specs: what is asked of each prompt.
        tokenizer: counts the tokens.
        form: chat or completion.
        one_source: draw the codes of a seed's prompts of one context from one source, in order. A record that
            did not fit any more has taken its draw.

    Raises:
        GeneratorError: when a budget holds no record or fewer than are asked for, or the asked record lies behind the
            last one that fits.
    """
    drawn: dict[tuple[int, int], int] = {}  # by seed and context: the draws taken by the prompts so far
    for spec in specs:
        source = (spec.seed, spec.context)
        prompt = _make_prompt(spec, tokenizer, form, drawn.get(source, 0))
        if one_source:
            drawn[source] = prompt.first_draw + prompt.records + (spec.budget is not None)
        yield prompt


def _make_prompt(spec: PromptSpec, tokenizer: PromptTokenizer, form: Format, first_draw: int) -> Prompt:
    task, source = spec.task, draws(spec.seed)
    for _ in range(first_draw):
        next(source)
    codes: list[str] = []
    lines: list[str] = []

    def ask(records: int) -> list[int]:
        # A prompt that is tried may be too short for its asked record: then its last one takes the place.
        first = min(spec.record or asked_record(records, spec.depth or 0.0), records)
        return spread(first, records, spec.asked)

    @lru_cache(maxsize=2)  # the last two tried: the number that fits and the one above it
    def build(records: int) -> tuple[str, list[int]]:
        while len(lines) < records:
            codes.append(next(source))
            lines.append(task.line(len(lines) + 1, codes[-1]))
        asked = ask(records)
        code, worded = codes[asked[0] - 1], lines[:records]
        for number, other in task.changes(spec.seed, first_draw + asked[0] - 1, asked[0], code, records).items():
            worded[number - 1] = task.line(number, other)
        text = tokenizer.complete("".join(worded) + task.question(asked, code, form), form)
        return text, tokenizer.encode(text)

    records = 1
    if spec.budget is not None:
        records = most_records(lambda number: len(build(number)[1]), spec.budget - spec.answer_room)
    if records == 0:
        raise GeneratorError(
            f"--budget {spec.budget} is too small for one record: tokenizer {tokenizer.name!r} needs "
            f"{len(build(1)[1])} tokens for the smallest prompt and {spec.answer_room} are kept for the answer"
        )
    for option, number in (("--record", spec.record), ("--asked", spec.asked)):
        if number is not None and number > records:
            raise GeneratorError(
                f"{option} {number}: a prompt of --budget {spec.budget} holds {records} records; give a smaller number"
            )
    asked = ask(records)
    text, ids = build(records)
    tokenizer.check_bos(ids)
    return Prompt(
        id=spec.id,
        seed=spec.seed,
        order=spec.order,
        context=spec.context,
        budget=spec.budget,
        answer_room=spec.answer_room,
        depth=spec.depth,
        format=form,
        records=records,
        record=asked[0],
        asked_records=asked if task.gives == "codes" else None,
        code=codes[asked[0] - 1],
        first_draw=first_draw,
        prompt_tokens=len(ids),
        tokenizer=TokenizerName(name=tokenizer.name, fingerprint=tokenizer.fingerprint),
        template=TemplateName(name=task.template, version=task.version),
        sha256=sha256_of_ids(ids),
        text=text,
    )
