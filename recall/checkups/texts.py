"""Looks whether a prompt reaches the model as it was made: its ids, one BOS, the end of its chat turn."""

from collections.abc import Iterator
from pathlib import Path

from engines import Engine
from generators import GeneratorError, PromptTokenizer, sha256_of_ids
from recall.checkups.findings import Finding, IntendedRun, Verdict
from recall.scoring import ids_of

TEXT = "Record 00001: the secret access code of record 00001 is"


def check_tokenizer(intended: IntendedRun) -> Iterator[Finding]:
    """Check the tokenizer that makes the ids, without the model, where there is one that transformers can load.

    Raises:
        GeneratorError: when it cannot be loaded, or does not put exactly one BOS in front where it uses one.
    """
    source = _source(intended)
    if source is None:
        return
    tokenizer = PromptTokenizer(source, intended.options.model_name)
    ids = tokenizer.encode(tokenizer.complete(TEXT, "completion"))
    tokenizer.check_bos(ids)
    ends, template = _chat(tokenizer)
    bos = "one BOS in front" if tokenizer.complete("", "completion") else "no BOS: it uses none"
    yield Finding("tokenizer", Verdict.OK, f"{len(ids)} ids for a short text, {bos}{template}")
    yield from _check_set(intended, tokenizer)
    chats = [prompt for prompt in intended.prompts if prompt.format == "chat"]
    if not chats:
        return
    if ends is None:
        yield Finding(
            "chat",
            Verdict.PROBLEM,
            f"the set has {len(chats)} chat prompts, and the model's tokenizer no chat template",
            "a set with --format completion, or the instruction-tuned model",
        )
    elif not ends:
        yield Finding(
            "chat",
            Verdict.PROBLEM,
            "the chat template adds nothing for the model's turn: it would go on with the question",
            "a chat template that knows add_generation_prompt",
        )
    elif odd := next((prompt for prompt in chats if prompt.text and not prompt.text.endswith(ends)), None):
        yield Finding(
            "chat",
            Verdict.PROBLEM,
            f"prompt {odd.id!r} does not end with {ends!r}, as the model's chat template ends",
            "make the set with this model's --tokenizer",
        )
    else:
        yield Finding("chat", Verdict.OK, f"prompts end with {ends!r}")


def check_engine_ids(intended: IntendedRun, engine: Engine, bos: tuple[int | None, str] | None) -> Iterator[Finding]:
    """Check the ids of an engine that has a tokenizer of its own.

    Args:
        intended: the run.
        engine: open.
        bos: its model's BOS, the mark and, where it is known, the id; None: it has none, or nothing tells.

    Raises:
        EngineError: when it makes no ids.
        RecallError: when it makes others of the shortest prompt than the set was made with.
    """
    if _source(intended) is not None:
        return
    ids = engine.encode((bos[1] if bos else "") + TEXT)
    if ids is None:
        says = "it takes messages, and puts BOS and turn markers to them: only its count of tokens tells what it read"
        yield Finding("tokenizer", Verdict.OK, says)
        return
    alone = engine.encode(bos[1]) if bos else None
    if bos and alone and (len(alone) != 1 or bos[0] not in (None, alone[0])):
        says = f"{bos[1]!r} becomes the ids {alone}, not one BOS"
        yield Finding("tokenizer", Verdict.PROBLEM, says, "a model file whose tokenizer knows its special tokens")
    else:
        counted = ", one BOS in front" if bos else ""
        yield Finding("tokenizer", Verdict.OK, f"{len(ids)} ids for a short text{counted}")
    if intended.shortest is not None:
        ids_of(intended.shortest, engine)
        yield Finding("set", Verdict.OK, f"prompt {intended.shortest.id!r} has the ids that the set was made with")


def _source(intended: IntendedRun) -> str | Path | None:
    if intended.engine == "server":
        return None if intended.options.server is None else intended.options.server.tokenizer
    return intended.options.model if intended.loads else None


def _chat(tokenizer: PromptTokenizer) -> tuple[str | None, str]:
    """Return what ends a chat prompt, None without a template; and what is to be said of it."""
    try:
        ends = tokenizer.generation_prompt()
    except GeneratorError:
        return None, "; no chat template"
    tokenizer.check_bos(tokenizer.encode(tokenizer.complete(TEXT, "chat")))
    return ends, f"; a chat prompt ends with {ends!r}"


def _check_set(intended: IntendedRun, tokenizer: PromptTokenizer) -> Iterator[Finding]:
    prompt = intended.shortest
    if prompt is None:
        return
    again = "make the set with this model's --tokenizer"
    if prompt.text is None:
        says = f"prompt {prompt.id!r} has no text: this is a manifest"
        yield Finding("set", Verdict.PROBLEM, says, "make the set with `recall generate`")
    elif sha256_of_ids(tokenizer.encode(prompt.text)) != prompt.sha256:
        says = f"prompt {prompt.id!r}: other ids than tokenizer {prompt.tokenizer.name!r} made, which counted it"
        yield Finding("set", Verdict.PROBLEM, says, again)
    elif tokenizer.fingerprint != prompt.tokenizer.fingerprint:
        says = (
            f"prompt {prompt.id!r} has the ids that the set was made with, but the vocabulary is another one "
            f"({tokenizer.fingerprint}, the set's {prompt.tokenizer.fingerprint}): longer prompts may differ"
        )
        yield Finding("set", Verdict.WARNING, says, again)
    else:
        says = f"prompt {prompt.id!r} has the ids that the set was made with, the vocabulary is the same"
        yield Finding("set", Verdict.OK, says)
