"""`recall generate`: makes a prompt set by seed and writes it as JSONL."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from generators import Prompt


class PromptFormat(StrEnum):
    """How a prompt is put to a model."""

    CHAT = "chat"
    COMPLETION = "completion"


class PromptTask(StrEnum):
    """What is asked about the records."""

    RECORD = "record"
    SEVERAL = "several"
    REVERSE = "reverse"
    NEAR = "near"
    GERMAN = "german"


TASK_HELP = (
    "'record': the code of one. 'several': the codes of several, in order. 'reverse': the number of the record with a "
    "given code. 'near': as 'record', with codes but for one digit the same around it. 'german': as 'record', in "
    "German, numbers not padded."
)
ASKED_HELP = "Records that --task several asks for, evenly from the one at the depth on."


def generate(
    output: Annotated[Path, typer.Option("-o", "--output", help="The JSONL file to write.")],
    tokenizer: Annotated[str, typer.Option(help="Counts the tokens: 'demo', a local folder, or a hub name.")] = "demo",
    form: Annotated[
        PromptFormat,
        typer.Option(
            "--format", help="'chat': a turn of the tokenizer's chat template. 'completion': for base models."
        ),
    ] = PromptFormat.CHAT,
    task: Annotated[PromptTask | None, typer.Option(help=TASK_HELP, show_default="record")] = None,
    asked: Annotated[int | None, typer.Option(help=ASKED_HELP, show_default="3")] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="A published set. 'laptop': the five prompts of the article's long-context run."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of the codes; the k-th of --count prompts has seed + k - 1.", show_default="0")
    ] = None,
    budget: Annotated[
        list[int] | None,
        typer.Option(
            help="Most tokens of a prompt, BOS, template and room for the answer included. Repeatable.", min=1
        ),
    ] = None,
    context: Annotated[
        list[int] | None,
        typer.Option(
            help="Tokens the engine is to hold. Repeatable.",
            show_default="largest budget, up to a multiple of 256",
            min=1,
            max=100_000_000,
        ),
    ] = None,
    depth: Annotated[
        list[float] | None,
        typer.Option(
            help="Where the asked record lies, as a share of the way in, 0 to 1. Repeatable.", show_default="0.25"
        ),
    ] = None,
    record: Annotated[list[int] | None, typer.Option(help="The asked record by number, from 1. Repeatable.")] = None,
    count: Annotated[
        int | None, typer.Option(help="Prompts of each kind, each with a seed of its own.", show_default="1")
    ] = None,
    answer_room: Annotated[
        int | None, typer.Option(help="Tokens of the budget kept free for the answer.", show_default="64", min=0)
    ] = None,
    one_source: Annotated[
        bool,
        typer.Option(
            "--one-source",
            help="Draw a seed's prompts of one context from one source, in order, as the laptop set does.",
        ),
    ] = False,
    manifest: Annotated[
        bool, typer.Option("--manifest", help="Leave the texts out: a small file that the set can be made again from.")
    ] = False,
) -> None:
    """Make a prompt set: numbered records with random codes, and a question about them.

    The same arguments give the same bytes on every machine. Prompts of one seed and different budgets share their
    records from the start on, those of --task near up to the first that is changed.

    Example: recall generate --seed 7 --budget 4096 --depth 0.25 --depth 0.75 --format completion -o set.jsonl
    """
    from generators import PromptTokenizer, laptop_specs, make_prompts, seeded_specs, write_prompts
    from generators.sets import ANSWER_ROOM, PRESETS
    from recall import models
    from recall.errors import RecallError

    if preset is None:
        specs = seeded_specs(
            form.value,
            seed=seed or 0,
            budgets=budget or [],
            contexts=context or [],
            depths=depth or ([] if record else [0.25]),
            records=record or [],
            count=1 if count is None else count,
            answer_room=ANSWER_ROOM if answer_room is None else answer_room,
            task="record" if task is None else task.value,
            asked=asked,
        )
    else:
        if preset not in PRESETS:
            raise RecallError(f"--preset {preset!r} is unknown: give one of {', '.join(PRESETS)}")
        given = {"--seed": seed, "--budget": budget, "--context": context, "--depth": depth, "--record": record,
                 "--count": count, "--answer-room": answer_room, "--task": task, "--asked": asked}  # fmt: skip
        for option, value in given.items():
            if value is not None and value != []:
                raise RecallError(f"--preset {preset} fixes its own {option}: leave {option} out")
        specs, one_source = laptop_specs(form.value), True
    _refuse_overwriting(output)
    counter = PromptTokenizer(models.resolve(tokenizer), name=models.shown_name(tokenizer))
    prompts = list(make_prompts(specs, counter, form.value, one_source=one_source))
    if preset is not None:
        _check_against_manifest(preset, prompts)
    write_prompts(output, (prompt.manifest_line() for prompt in prompts) if manifest else prompts)
    sizes = [prompt.prompt_tokens for prompt in prompts]
    typer.echo(f"{output}: {len(prompts)} prompts of {min(sizes)} to {max(sizes)} tokens", err=True)


def _refuse_overwriting(output: Path) -> None:
    from recall.errors import RecallError

    if output.exists():
        raise RecallError(f"{output} is there already: remove it, or give another -o")
    if not output.absolute().parent.is_dir():
        raise RecallError(f"{output}: its folder is not there; make it, or give another -o")


def _check_against_manifest(preset: str, prompts: "list[Prompt]") -> None:
    """Raise where a preset comes out otherwise than published, for the same format and vocabulary."""
    from generators import read_prompts
    from recall import published
    from recall.errors import RecallError

    manifest = {prompt.id: prompt for prompt in read_prompts(published.folder("datasets") / f"{preset}.jsonl")}
    for prompt in prompts:
        expected = manifest.get(prompt.id)
        if expected is None or expected.tokenizer.fingerprint != prompt.tokenizer.fingerprint:
            continue
        if prompt.manifest_line() != expected.model_copy(update={"tokenizer": prompt.tokenizer}):
            raise RecallError(
                f"prompt {prompt.id!r} came out otherwise than its published manifest says: this Python draws, or this "
                "tokenizers release splits, differently; please report it"
            )
