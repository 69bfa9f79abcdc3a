"""Looks at an open engine: how far a window reaches, a server's limits, a first answer, the time of the whole run."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from engines import Completion, Engine, EngineOptions, Request
from recall.checkups.findings import Finding, IntendedRun, Verdict
from recall.checkups.texts import TEXT, check_engine_ids
from recall.delivery import check_delivery
from recall.scoring import ids_of

_FEW = 8  # tokens of the first answer
_MOST_TOKENS = 4096  # of a prompt that is asked only to see how the engine answers


def check_window(intended: IntendedRun, engine: Engine) -> Iterator[Finding]:
    """Measure whether a query sees exactly its window, itself counted."""
    if intended.options.device.startswith("tpu"):
        return  # every shape would be compiled
    from engines.hf import HfEngine
    from engines.ring import RingEngine
    from engines.window_reach import window_reach

    assert isinstance(engine, RingEngine | HfEngine)
    if isinstance(engine, RingEngine):
        engine = RingEngine(replace(intended.options, mode="eager"), engine.loaded)
    reach = window_reach(engine)
    if reach is None:
        return
    convention = f"{reach.window} positions, the query itself counted"
    mend = "look into the engine's mask with `recall probe`; compare with --engine hf"
    if not reach.farthest:
        says = f"a query does not see all {convention}: less than the model's sliding_window"
        yield Finding("window", Verdict.PROBLEM, says, mend)
    elif reach.beyond:
        says = f"a query sees more than {convention}: more than the model's sliding_window"
        yield Finding("window", Verdict.PROBLEM, says, mend)
    else:
        yield Finding("window", Verdict.OK, f"a query sees {convention} (measured)")


def check_limits(intended: IntendedRun, engine: Engine) -> Iterator[Finding]:
    """Compare a server's context and slots with the run, then look at the ids of a server or of llama.cpp.

    Raises:
        EngineError, RecallError: as `check_engine_ids`.
    """
    bos: tuple[int | None, str] | None = None
    if intended.engine == "server":
        from engines.server_limits import server_limits

        assert intended.options.server is not None
        limits = server_limits(intended.options.server)
        bos = (None, limits.bos) if limits.bos else None
        yield from _compare_context(intended, limits.context, limits.slots)
        if limits.slots is not None and engine.info.parallel > limits.slots:
            says = f"--parallel {engine.info.parallel}, and it answers {limits.slots} at once: the others wait"
            yield Finding("server", Verdict.WARNING, says, f"--parallel {limits.slots}, or start it with more slots")
    elif intended.engine == "llama.cpp":
        bos = intended.gguf.bos
    yield from check_engine_ids(intended, engine, bos)


def check_answer(intended: IntendedRun, engine: Engine) -> Iterator[Finding]:
    """Ask for a few tokens: does the engine take the ids, count them, and how long does it take?

    Raises:
        EngineError: when it does not answer.
        RecallError: when it makes other ids than the set was made with.
    """
    prompt = intended.shortest
    if prompt is not None and prompt.prompt_tokens > _MOST_TOKENS:
        prompt = None
    ids = engine.encode(TEXT) if prompt is None else ids_of(prompt, engine)
    message = TEXT if prompt is None else prompt.message()
    least = len(ids or message) + _FEW
    request = Request("of recall doctor", ids or (), _FEW, max(intended.context or 0, least), message=message)
    completion = engine.complete(request, lambda _: None)
    if prompt is None:
        flaw = _flaw(ids, completion)
    else:
        delivery = check_delivery(prompt, None if ids is None else len(ids), completion, answered=True)
        flaw = delivery.note if delivery.status == "invalid" else None
    if flaw:
        yield Finding(
            "answer", Verdict.PROBLEM, flaw, "a server that takes prompts as they are and tells how much it read"
        )
        return
    told = "" if completion.ids is not None else "; it does not tell the answer's ids"
    yield Finding("answer", Verdict.OK, f"{completion.tokens_read} tokens read{told}")
    yield from _time_linearly(intended, completion)


def check_time(intended: IntendedRun, engine: Engine) -> Iterator[Finding]:
    """Forecast how long the ring engine takes for the set, from one timed piece and step."""
    from engines.pace import forecast_ring
    from engines.ring import RingEngine

    if not intended.prompts:
        return
    assert isinstance(engine, RingEngine)
    requests = [intended.run.request(prompt, range(prompt.prompt_tokens)) for prompt in intended.prompts]
    options: EngineOptions = intended.options
    forecast = forecast_ring(engine, requests, options.dtype, options.sizes)
    tokens, answers = sum(len(request.ids) for request in requests), sum(request.max_new for request in requests)
    compiled = f", {duration(forecast.ready_s)} to compile" if engine.fixed_shapes else ""
    yield Finding(
        "time",
        Verdict.OK,
        f"about {duration(forecast.total_s)}{compiled}: {duration(forecast.read_s)} to read {tokens:,} tokens, up to "
        f"{duration(forecast.answer_s)} for {len(requests)} answers of {answers:,} tokens at most",
    )


def _compare_context(intended: IntendedRun, context: int | None, slots: int | None) -> Iterator[Finding]:
    longest = intended.longest
    if context is None:
        if longest is not None:
            says = f"it does not say how many tokens a request may have; the longest has {longest:,}"
            yield Finding("server", Verdict.WARNING, says, "look how it was started; rows say what it read")
    elif longest is not None and longest > context:
        mend = f"start it with a context of {longest:,} a request"
        if slots is not None:
            mend += f": llama-server divides its --ctx-size by its --parallel, so --ctx-size {longest * slots}"
        says = f"a request may have {context:,} tokens, and the longest prompt and its answer have {longest:,}"
        yield Finding("server", Verdict.PROBLEM, says, mend)
    else:
        asked = "" if longest is None else f", the longest has {longest:,}"
        at_once = "" if slots is None else f"; it answers {slots} at once"
        yield Finding("server", Verdict.OK, f"a request may have {context:,} tokens{asked}{at_once}")


def _flaw(ids: Sequence[int] | None, completion: Completion) -> str | None:
    if completion.tokens_read is None:
        return "the engine gives no count of the tokens it read: nothing would prove that it got a whole prompt"
    if ids is not None and completion.tokens_read != len(ids):
        return f"the engine read {completion.tokens_read} tokens where {len(ids)} were sent"
    return None


def _time_linearly(intended: IntendedRun, completion: Completion) -> Iterator[Finding]:
    """Forecast from the pace of one short answer: no less, since attention grows with what has been read."""
    if not (intended.prompts and completion.read_s and completion.tokens_read):
        return
    tokens = sum(prompt.prompt_tokens for prompt in intended.prompts)
    seconds = tokens * completion.read_s / completion.tokens_read
    if completion.decode_s and completion.decoded:
        answers = sum(intended.run.request(prompt).max_new for prompt in intended.prompts)
        seconds += answers * completion.decode_s / completion.decoded
    says = (
        f"about {duration(seconds)} or more: {tokens:,} tokens at the pace of a prompt of {completion.tokens_read}; "
        "longer ones read slower"
    )
    yield Finding("time", Verdict.OK, says)


def duration(seconds: float) -> str:
    """Return seconds in words, no finer than a forecast is."""
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
