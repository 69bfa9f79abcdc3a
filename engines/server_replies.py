"""Reads a server's answer into a `Completion`: what it does not tell stays None, and ids are never made from text.

Two tokens can have one text, so log-probabilities count only where the server says whose they are: llama-server gives
`id` with each token, vLLM writes `token_id:7` when it is asked to.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

from engines.errors import EngineError
from engines.protocol import TOP, Choice, Completion, Finish, Request

Json = Mapping[str, Any]

_FINISH: dict[object, Finish] = {"stop": "stop", "eos": "stop", "word": "stop", "length": "length", "limit": "length"}
_NAMED_ID = re.compile(r"token_id:(\d+)", re.ASCII)


class _Told(NamedTuple):
    """One token of an answer and the likeliest at its place, each with its log-probability, as a server tells them."""

    id: object
    logprob: object
    top: list[tuple[object, object]]


def read_llama(body: Json, request: Request, host: str) -> Completion:
    """Read the answer of llama-server's own `/completion`.

    Raises:
        EngineError: when it holds no text.
    """
    tokens = [_with_ids(token) for token in _list(body.get("completion_probabilities"))]
    note = "the server's context was full before the answer's end (`truncated`)" if body.get("truncated") else None
    return _completion(
        _text(body.get("content"), "`content`", host),
        request,
        finish=body.get("stop_type"),
        read=_count(body.get("tokens_evaluated")),
        ids=_ids(body.get("tokens")),
        choices=_choices(tokens),
        timings=_object(body.get("timings")),
        note=note,
    )


def read_completions(body: Json, request: Request, host: str) -> Completion:
    """Read the answer of `/v1/completions`.

    Raises:
        EngineError: when it holds no text, or says that the prompt had other ids than were sent.
    """
    choice = _first_choice(body, host)
    logprobs = _object(choice.get("logprobs"))
    tokens = [_with_ids(token) for token in _list(logprobs.get("content"))] or _with_named_ids(logprobs)
    got = _ids(choice.get("prompt_token_ids"))
    if got is not None and len(got) == len(request.ids) and got != list(request.ids):
        raise EngineError(f"--url {host}: the server read other ids than it was sent, as many as there were")
    text = _text(choice.get("text"), "`choices[0].text`", host)
    return _openai(body, choice, text, request, _ids(choice.get("token_ids")), _choices(tokens))


def read_chat(body: Json, request: Request, host: str) -> Completion:
    """Read the answer of `/v1/chat/completions`; thinking text that the server keeps apart is no part of it.

    Raises:
        EngineError: when it holds no message.
    """
    choice = _first_choice(body, host)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise _lacks("`choices[0].message`", host)
    # Null where everything was thinking text.
    content = message.get("content")
    text = "" if content is None else _text(content, "`choices[0].message.content`", host)
    return _openai(body, choice, text, request, None, None)


def _openai(
    body: Json, choice: Json, text: str, request: Request, ids: list[int] | None, choices: list[Choice] | None
) -> Completion:
    usage = _object(body.get("usage"))
    return _completion(
        text,
        request,
        finish=choice.get("finish_reason"),
        read=_count(usage.get("prompt_tokens")),
        ids=ids,
        choices=choices,
        timings={
            "cache_n": _object(usage.get("prompt_tokens_details")).get("cached_tokens"),
            # llama-server's; others give none.
            **_object(body.get("timings")),
        },
        note=None,
    )


def _completion(
    text: str,
    request: Request,
    *,
    finish: object,
    read: int | None,
    ids: list[int] | None,
    choices: list[Choice] | None,
    timings: Json,
    note: str | None,
) -> Completion:
    ended = _FINISH.get(finish) if isinstance(finish, str) else None
    if ended is None and isinstance(finish, str):
        note = note or f"the server says of the answer's end: {finish[:40]!r}"
    if request.stop is not None and request.stop in text:
        # The server took no notice of `stop`: the answer was over there.
        text, ended = text.partition(request.stop)[0], "stop"
    cached = _count(timings.get("cache_n")) or 0
    if cached:
        note = note or f"{cached} tokens of the prompt were in the server's cache already"
    decoded = _count(timings.get("predicted_n"))
    # From the first token of the answer to its last.
    decode_s = _seconds(timings.get("predicted_ms"))
    ids, choices = _side_by_side(ids, choices)
    return Completion(
        text=text,
        ids=ids,
        # What was in the cache was not read: its time would look like speed.
        read_s=None if cached else _seconds(timings.get("prompt_ms")),
        decode_s=decode_s,
        decoded=decoded - 1 if decoded and decode_s else 0,
        tokens_read=read,
        finish=ended,
        choices=choices,
        note=note,
    )


def _side_by_side(ids: list[int] | None, choices: list[Choice] | None) -> tuple[list[int] | None, list[Choice] | None]:
    """Return ids and choices of the same tokens: llama-server tells no log-probabilities of those of `stop`."""
    if choices is None:
        return ids, None
    chosen = [choice.id for choice in choices]
    return (chosen, choices) if ids is None or ids[: len(chosen)] == chosen else (ids, None)


def _with_ids(token: object) -> _Told:
    """Return one token as llama-server tells it."""
    told = _object(token)
    top = [_object(other) for other in _list(told.get("top_logprobs"))]
    return _Told(told.get("id"), told.get("logprob"), [(other.get("id"), other.get("logprob")) for other in top])


def _with_named_ids(logprobs: Json) -> list[_Told]:
    """Return the tokens as vLLM tells them; nothing when they are told otherwise."""
    columns = [_list(logprobs.get(name)) for name in ("tokens", "token_logprobs", "top_logprobs")]
    if len({len(column) for column in columns}) > 1:
        return []
    return [
        _Told(_named_id(token), logprob, [(_named_id(other), value) for other, value in _object(top).items()])
        for token, logprob, top in zip(*columns, strict=True)
    ]


def _named_id(token: object) -> int | None:
    match = _NAMED_ID.fullmatch(token) if isinstance(token, str) else None
    return int(match[1]) if match else None


def _choices(tokens: Sequence[_Told]) -> list[Choice] | None:
    """Return the choices; None when there are none, or an id or a log-probability of them is not told."""
    choices = []
    for told in tokens:
        top = [(other, logprob) for other, logprob in told.top if _is_id(other) and _is_finite(logprob)]
        if not (_is_id(told.id) and _is_finite(told.logprob) and top and len(top) == len(told.top)):
            return None
        # vLLM tells the chosen token beside the likeliest.
        choices.append(Choice(told.id, told.logprob, sorted(top, key=lambda pair: -pair[1])[:TOP]))
    return choices or None


def _first_choice(body: Json, host: str) -> Json:
    choices = _list(body.get("choices"))
    if not choices or not isinstance(choices[0], dict):
        raise _lacks("`choices`", host)
    return choices[0]


def _text(value: object, name: str, host: str) -> str:
    if not isinstance(value, str):
        raise _lacks(name, host)
    # Half a surrogate pair is valid JSON, and no text that a file can hold.
    return value.encode("utf-8", "replace").decode("utf-8")


def _lacks(name: str, host: str) -> EngineError:
    return EngineError(f"--url {host}: the server's answer has no {name}; look whether it serves this --api")


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _ids(value: object) -> list[int] | None:
    return value if isinstance(value, list) and value and all(_is_id(number) for number in value) else None


def _count(value: object) -> int | None:
    return value if _is_id(value) else None


def _seconds(milliseconds: object) -> float | None:
    return milliseconds / 1000 if _is_finite(milliseconds) and milliseconds > 0 else None


def _is_id(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_finite(value: object) -> TypeGuard[float]:
    # NaN and Infinity are no JSON, but some servers write them.
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
