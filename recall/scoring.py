"""Scores engines: runs the prompts of a set through one engine and judges each reply. Imports no torch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engines import Completion, Engine, EngineError, Request
from generators import Prompt, sha256_of_ids
from recall import __version__
from recall.answers import codes_in
from recall.errors import RecallError
from recall.results import Agreement, Outcome, ResultRow


@dataclass(frozen=True)
class Judgement:
    """What a reply is worth: its codes, and the record that its one code belongs to."""

    codes: list[str]
    answer: str | None
    outcome: Outcome
    record: int | list[int] | None


def judge(reply: str, asked: int, codes: Sequence[str]) -> Judgement:
    """Judge a reply to a prompt whose records have `codes`, in order, and which asks for record `asked`, from 1."""
    given = codes_in(reply)
    if not given:
        return Judgement(given, None, Outcome.NO_CODE, None)
    if len(given) > 1:
        return Judgement(given, None, Outcome.SEVERAL_CODES, None)
    owners = [number for number, code in enumerate(codes, 1) if code == given[0]]
    if asked in owners:
        return Judgement(given, given[0], Outcome.FOUND, asked)
    if not owners:
        return Judgement(given, given[0], Outcome.NO_RECORD, None)
    return Judgement(given, given[0], Outcome.OTHER_RECORD, owners[0] if len(owners) == 1 else owners)


class Progress(Protocol):
    """Who is told how far a run is."""

    def prompt_begins(self, prompt: Prompt) -> None:
        """A prompt is about to be read."""

    def tokens_read(self, count: int) -> None:
        """So many more of its tokens have been read."""

    def prompt_ends(self, row: ResultRow) -> None:
        """Its row has been made."""


@dataclass(frozen=True)
class Run:
    """How prompts are put to an engine: the answer's length, the context, and whom to agree with.

    `context` None takes each prompt's own; `max_new` None takes the set's room for the answer.
    """

    max_new: int | None
    context: int | None
    references: Mapping[str, Mapping[str, ResultRow]]

    def request(self, prompt: Prompt, ids: Sequence[int] = ()) -> Request:
        """Return what an engine is asked for `prompt`."""
        max_new = self.max_new or prompt.answer_room or 64
        return Request(prompt.id, ids, max_new, self.context or prompt.context, prompt.stop)

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Raise `RecallError` for a prompt that does not fit its context, or that a reference knows as another one."""
        for prompt in prompts:
            request = self.request(prompt)
            if prompt.prompt_tokens + request.max_new > request.context:
                raise RecallError(
                    f"prompt {prompt.id!r} has {prompt.prompt_tokens} tokens and its answer up to {request.max_new}: "
                    f"they do not fit into --context {request.context}; give a larger one, or leave the prompt out "
                    "with --only"
                )
            for name, rows in self.references.items():
                row = rows.get(prompt.id)
                if row is not None and not row.answers(prompt.sha256, prompt.records, prompt.record, prompt.code):
                    raise RecallError(
                        f"{name}: its row for prompt {prompt.id!r} answers another prompt of that name (other ids or "
                        "another asked record); use results made from this very set"
                    )


def score(engine: Engine, prompts: Sequence[Prompt], run: Run, progress: Progress) -> Iterator[ResultRow]:
    """Yield the row of each prompt as it is answered.

    Raises:
        RecallError: when the engine's tokenizer makes other ids than the set was made with.
    """
    for prompt in prompts:
        progress.prompt_begins(prompt)
        ids = _ids_of(prompt, engine)
        try:
            completion = engine.complete(run.request(prompt, ids), progress.tokens_read)
            row = _row(prompt, engine, run, completion)
        except EngineError as error:
            row = _row(prompt, engine, run, None, note=str(error))
        yield row
        progress.prompt_ends(row)


def agreement_with(row: ResultRow, other: ResultRow) -> Agreement:
    """Return how `other` agrees with `row`, right or wrong; two replies without a code are the same answer."""
    both_answered = row.status == other.status == "ok"
    same = row.codes == other.codes if both_answered else None
    return Agreement(answer=other.answer, outcome=other.outcome, same=same)


def _ids_of(prompt: Prompt, engine: Engine) -> Sequence[int]:
    if prompt.text is None:
        raise RecallError(f"prompt {prompt.id!r} has no text: this is a manifest; make the set with `recall generate`")
    ids = engine.encode(prompt.text)
    if ids is not None and sha256_of_ids(ids) != prompt.sha256:
        raise RecallError(
            f"prompt {prompt.id!r}: {engine.info.model} makes other ids from it than tokenizer "
            f"{prompt.tokenizer.name!r} did, which counted it; make the set with this model's --tokenizer"
        )
    return ids or ()


def _row(prompt: Prompt, engine: Engine, run: Run, completion: Completion | None, note: str | None = None) -> ResultRow:
    request, info = run.request(prompt), engine.info
    row = ResultRow(
        prompt_id=prompt.id,
        prompt_sha256=prompt.sha256,
        engine=info.engine,
        model=info.model,
        dtype=info.dtype,
        device=info.device,
        settings=info.settings,
        context=request.context,
        prompt_tokens=prompt.prompt_tokens,
        max_new=request.max_new,
        records=prompt.records,
        asked_record=prompt.record,
        code=prompt.code,
        answer=None,
        codes=[],
        outcome=None,
        found=False,
        record=None,
        reply=None,
        status="error",
        note=note,
        versions={"recall": __version__, **info.versions},
    )
    if completion is not None:
        row = row.model_copy(update=_answer_fields(prompt, completion))
    agreement = {
        name: agreement_with(row, rows[prompt.id]) for name, rows in run.references.items() if prompt.id in rows
    }
    return row.model_copy(update={"agreement": agreement})


def _answer_fields(prompt: Prompt, completion: Completion) -> dict[str, object]:
    """Return what an answer adds to a row that holds only its prompt and engine."""
    verdict = judge(completion.text, prompt.record, prompt.codes())
    return {
        "answer": verdict.answer,
        "codes": verdict.codes,
        "outcome": verdict.outcome,
        "found": verdict.outcome is Outcome.FOUND,
        "record": verdict.record,
        "reply": completion.text,
        "reply_ids": completion.ids,
        "read_s": completion.read_s,
        "read_tok_s": prompt.prompt_tokens / completion.read_s if completion.read_s else None,
        "decode_tok_s": completion.decoded / completion.decode_s
        if completion.decoded and completion.decode_s
        else None,
        "cache_bytes": completion.cache_bytes,
        "graphs": completion.graphs,
        "breaks": completion.breaks,
        "status": "ok",
    }
