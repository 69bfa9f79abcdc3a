"""Scores engines: runs the prompts of a set through one engine and judges each reply. Imports no torch."""

from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from typing import Protocol

from engines import Choice, Completion, Engine, EngineError, Request, SharingEngine
from generators import Prompt, sha256_of_ids
from recall import __version__
from recall.answers import codes_in, records_in
from recall.delivery import check_delivery
from recall.errors import RecallError
from recall.results import Agreement, AnswerToken, Outcome, ResultRow


@dataclass(frozen=True)
class Judgement:
    """What a reply is worth: its codes, the record that its one code belongs to, how many of several it found."""

    codes: list[str]
    answer: str | None
    outcome: Outcome
    record: int | list[int] | None
    asked_found: int | None = None

    def fields(self) -> dict[str, object]:
        """Return what a result row says of it."""
        return {
            "answer": self.answer,
            "codes": self.codes,
            "outcome": self.outcome,
            "found": self.outcome is Outcome.FOUND,
            "record": self.record,
            "asked_found": self.asked_found,
        }


def judge_reply(reply: str, prompt: Prompt) -> Judgement:
    """Judge a reply to a prompt, by its task."""
    codes = prompt.codes()
    if prompt.task.gives == "codes":
        return judge_several(reply, prompt.asked, codes)
    if prompt.task.gives == "number":
        return judge_reverse(reply, prompt.code, codes)
    return judge(reply, prompt.record, codes)


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


def judge_several(reply: str, asked: Sequence[int], codes: Sequence[str]) -> Judgement:
    """Judge a reply to a prompt whose records have `codes`, in order, and which asks for the records `asked`.

    Found is the reply that gives the codes of all asked ones and no other, in the order asked; a code that is given
    again counts once.
    """
    given, wanted = codes_in(reply), [codes[number - 1] for number in asked]
    right = sum(code in given for code in wanted)
    answer = ", ".join(given) or None
    if given == list(dict.fromkeys(wanted)):
        return Judgement(given, answer, Outcome.FOUND, asked[0], right)
    if right:
        return Judgement(given, answer, Outcome.PARTIAL, None, right)
    if not given:
        return Judgement(given, answer, Outcome.NO_CODE, None, right)
    known = all(code in codes for code in given)
    return Judgement(given, answer, Outcome.OTHER_RECORD if known else Outcome.NO_RECORD, None, right)


def judge_reverse(reply: str, code: str, codes: Sequence[str]) -> Judgement:
    """Judge a reply to a prompt whose records have `codes`, in order, and which asks for a record that has `code`."""
    given = records_in(reply)
    if not given:
        return Judgement(given, None, Outcome.NO_CODE, None)
    if len(given) > 1:
        return Judgement(given, None, Outcome.SEVERAL_CODES, None)
    number = int(given[0])
    if not 1 <= number <= len(codes):
        return Judgement(given, given[0], Outcome.NO_RECORD, None)
    outcome = Outcome.FOUND if codes[number - 1] == code else Outcome.OTHER_RECORD
    return Judgement(given, given[0], outcome, number)


def answered(prompt: Prompt, judged: Judgement | ResultRow) -> bool:
    """Return whether a reply gave all that was asked for, right or wrong: cutting it off took nothing of its answer."""
    return judged.outcome is Outcome.FOUND or len(judged.codes) >= len(prompt.asked)


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

    `context` None takes each prompt's own; `max_new` None takes the set's room for the answer. `asked`: prompts by the
    code that they ask for, by which an answer to another prompt is known.
    """

    max_new: int | None
    context: int | None
    references: Mapping[str, Mapping[str, ResultRow]]
    asked: Mapping[str, str] = field(default_factory=dict)

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


def score(engine: Engine, prompts: Sequence[Prompt], run: Run, progress: Progress) -> Generator[ResultRow]:
    """Yield the row of each prompt as it is answered; an engine that takes several requests at once gets them.

    Raises:
        RecallError: when the engine's tokenizer makes other ids than the set was made with.
    """
    if engine.info.parallel > 1:
        yield from _score_side_by_side(engine, prompts, run, progress)
        return
    for prompt in prompts:
        progress.prompt_begins(prompt)
        row = _answer(engine, prompt, run, progress.tokens_read)
        progress.prompt_ends(row)
        yield row


def _score_side_by_side(
    engine: Engine, prompts: Sequence[Prompt], run: Run, progress: Progress
) -> Generator[ResultRow]:
    pool = ThreadPoolExecutor(engine.info.parallel)
    try:
        answers = {pool.submit(_answer, engine, prompt, run, lambda _: None): prompt for prompt in prompts}
        for answer in as_completed(answers):
            progress.prompt_begins(answers[answer])
            row = answer.result()
            progress.prompt_ends(row)
            yield row
    finally:
        pool.shutdown(cancel_futures=True)


def _answer(engine: Engine, prompt: Prompt, run: Run, on_read: Callable[[int], None]) -> ResultRow:
    ids = ids_of(prompt, engine)
    request = run.request(prompt, ids or ())
    if ids is None:
        request = replace(request, message=prompt.message())
    try:
        return row_of(prompt, engine, run, engine.complete(request, on_read), ids)
    except EngineError as error:
        return row_of(prompt, engine, run, None, ids, note=str(error))


def ids_of(prompt: Prompt, engine: Engine | SharingEngine) -> Sequence[int] | None:
    """Return the ids that an engine makes of a prompt; None when it makes none.

    Raises:
        RecallError: when the prompt has no text, or the ids are not those that the set was made with.
    """
    if prompt.text is None:
        raise RecallError(f"prompt {prompt.id!r} has no text: this is a manifest; make the set with `recall generate`")
    ids = engine.encode(prompt.text)
    if ids is not None and sha256_of_ids(ids) != prompt.sha256:
        raise RecallError(
            f"prompt {prompt.id!r}: {engine.info.model} makes other ids from it than tokenizer "
            f"{prompt.tokenizer.name!r} did, which counted it; make the set with this model's --tokenizer"
        )
    return ids


def agreement_with(row: ResultRow, other: ResultRow) -> Agreement:
    """Return how `other` agrees with `row`, right or wrong; two replies without a code are the same answer.

    So are two that were cut off before they gave one; one cut off and one that was not cannot be compared.
    """
    both_answered = row.status == other.status == "ok" or (row.cut_off and other.cut_off)
    same = row.codes == other.codes if both_answered else None
    return Agreement(answer=other.answer, outcome=other.outcome, same=same)


def row_of(
    prompt: Prompt,
    engine: Engine | SharingEngine,
    run: Run,
    completion: Completion | None,
    ids: Sequence[int] | None,
    note: str | None = None,
) -> ResultRow:
    """Return the row of an answer to a prompt that an engine was given as `ids`; without a completion, of an error."""
    request, info = run.request(prompt), engine.info
    row = ResultRow(
        prompt_id=prompt.id,
        prompt_sha256=prompt.sha256,
        engine=info.engine,
        model=info.model,
        fingerprint=info.fingerprint,
        dtype=info.dtype,
        device=info.device,
        settings=info.settings,
        context=request.context,
        prompt_tokens=prompt.prompt_tokens,
        max_new=request.max_new,
        records=prompt.records,
        asked_record=prompt.record,
        task=prompt.task.name,
        asked_records=prompt.asked_records,
        seed=prompt.seed,
        budget=prompt.budget,
        depth=prompt.depth,
        code=prompt.code,
        answer=None,
        codes=[],
        outcome=None,
        found=False,
        record=None,
        reply=None,
        tokens_sent=None if ids is None else len(ids),
        window=info.window,
        asked_from_end=_from_end(prompt, engine, prompt.record),
        status="error",
        note=note,
        versions={"recall": __version__, **info.versions},
    )
    if completion is not None:
        row = row.model_copy(update=_answer_fields(prompt, completion, row.tokens_sent, run.asked))
        # A long prompt takes a second to tokenize: the record that was asked for is counted once.
        asked = row.record == prompt.record
        from_end = row.asked_from_end if asked else _from_end(prompt, engine, row.record)
        row = row.model_copy(update={"answer_from_end": from_end})
    agreement = {
        name: agreement_with(row, rows[prompt.id]) for name, rows in run.references.items() if prompt.id in rows
    }
    return row.model_copy(update={"agreement": agreement})


def _from_end(prompt: Prompt, engine: Engine | SharingEngine, record: int | list[int] | None) -> int | None:
    """Return the tokens from a record's first one to the prompt's end; of several, the one nearest to the asked."""
    if record is None or prompt.text is None:
        return None
    if isinstance(record, list):
        record = min(record, key=lambda number: abs(number - prompt.record))
    line = prompt.lines()[record - 1]
    try:
        ids = engine.encode(line + prompt.text.partition(line)[2])
    except EngineError:  # a server that is gone by now; its row says so
        return None
    return None if ids is None else len(ids)


def _answer_fields(
    prompt: Prompt, completion: Completion, sent: int | None, asked: Mapping[str, str]
) -> dict[str, object]:
    """Return what an answer adds to a row that holds only its prompt and engine."""
    verdict = judge_reply(completion.text, prompt)
    # Six digits that no record of this prompt has are another prompt's answer by chance once in 900,000 times.
    other = asked.get(verdict.answer or "") if verdict.outcome is Outcome.NO_RECORD else None
    delivery = check_delivery(prompt, sent, completion, answered=answered(prompt, verdict), other=other)
    return {
        **verdict.fields(),
        "reply": completion.text,
        "reply_ids": completion.ids,
        "answer_tokens": None if completion.choices is None else [answer_token(told) for told in completion.choices],
        "finish": completion.finish,
        "tokens_read": completion.tokens_read,
        "read_s": completion.read_s,
        "read_tok_s": prompt.prompt_tokens / completion.read_s if completion.read_s else None,
        "decode_tok_s": completion.decoded / completion.decode_s
        if completion.decoded and completion.decode_s
        else None,
        "cache_bytes": completion.cache_bytes,
        "graphs": completion.graphs,
        "breaks": completion.breaks,
        "status": delivery.status,
        "note": delivery.note,
    }


def answer_token(choice: Choice) -> AnswerToken:
    """Return what a row keeps of a choice: the margin is what the model preferred it by to the likeliest other one."""
    others = [(token, logprob) for token, logprob in choice.top if token != choice.id]
    runner_up, logprob = others[0] if others else (None, None)
    margin = None if logprob is None else choice.logprob - logprob
    return AnswerToken(id=choice.id, logprob=choice.logprob, runner_up=runner_up, margin=margin, top=choice.top)
