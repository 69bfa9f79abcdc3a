"""What a server tells of its answer gets into the row, and an answer to another prompt than was sent never counts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engines import Choice, Completion, EngineOptions, Request, ServerOptions
from engines.server import ServerEngine
from engines.server_replies import read_chat, read_completions, read_llama
from recall.results import ResultRow, read_results
from tests.conftest import run_recall
from tests.misbehaving import TEXT, MisbehavingServer

REQUEST = Request("p", [2, 7, 7, 9], 8, 64, stop="\n")
TOP = [(40 + place, -1.0 - place) for place in range(10)]


@pytest.fixture(scope="module")
def server() -> Iterator[MisbehavingServer]:
    with MisbehavingServer() as opened:
        yield opened


@pytest.fixture(scope="module")
def prompt_set(tmp_path_factory: pytest.TempPathFactory, byte_folder: Path) -> Path:
    """Two prompts of some 5,000 tokens, one a byte."""
    file = tmp_path_factory.mktemp("sets") / "set.jsonl"
    where = ["--budget", 5000, "--depth", 0.2, "--depth", 0.8]
    made = run_recall("generate", "--tokenizer", byte_folder, "--format", "completion", *where, "-o", file)
    assert made.code == 0, made.err
    return file


def _complete(server: MisbehavingServer, behaviour: str) -> Completion:
    engine = ServerEngine(EngineOptions("m", "m", server=ServerOptions(server.url(behaviour))))
    return engine.complete(REQUEST, lambda _: None)


def _rows(
    server: MisbehavingServer, behaviour: str, prompt_set: Path, tokenizer: Path, output: Path
) -> tuple[int, list[ResultRow]]:
    reached = ["--engine", "server", "--url", server.url(behaviour), "--tokenizer", tokenizer, "--retries", 0]
    ended = run_recall("score", prompt_set, *reached, "--model", "m", "-o", output)
    return ended.code, read_results(output)


@pytest.mark.parametrize(
    ("behaviour", "code", "status", "note"),
    [
        ("well", 0, "ok", None),
        ("no-usage", 3, "invalid", "no count of the tokens it read"),
        ("cut", 3, "invalid", "the engine read 4096"),
        ("two-bos", 3, "invalid", "a second BOS"),
        ("cut-off", 0, "invalid", "cut off before it gave a code"),
        ("filtered", 0, "ok", "content_filter"),
        ("no-stop", 0, "ok", None),
        ("half-a-pair", 0, "ok", None),
        ("page", 3, "error", "text/html"),
    ],
)
def test_a_row_says_whether_the_answer_counts(
    server: MisbehavingServer,
    prompt_set: Path,
    byte_folder: Path,
    tmp_path: Path,
    behaviour: str,
    code: int,
    status: str,
    note: str | None,
) -> None:
    ended, rows = _rows(server, behaviour, prompt_set, byte_folder, tmp_path / "rows.jsonl")
    assert ended == code
    assert len(rows) == 2
    for row in rows:
        assert row.status == status
        assert row.note is None if note is None else note in str(row.note)
        assert row.tokens_sent == row.prompt_tokens > 4096
        assert (row.engine, row.model) == ("server", "m")
        assert row.settings == {"api": "completions", "url": server.url(behaviour)}
        if status == "ok":
            assert (row.answer, row.tokens_read) == ("012345", row.prompt_tokens)


def test_a_server_is_sent_the_ids_of_the_prompt_and_asked_for_the_likeliest_tokens(server: MisbehavingServer) -> None:
    _complete(server, "well")
    told = {"model": "m", "prompt": REQUEST.ids, "max_tokens": 8, "temperature": 0, "stop": ["\n"], "logprobs": 10}
    assert told.items() <= server.seen[-1].body.items()


def test_a_server_that_refuses_what_it_does_not_know_is_asked_without_it_and_that_is_kept_in_mind(
    server: MisbehavingServer,
) -> None:
    engine = ServerEngine(EngineOptions("m", "m", server=ServerOptions(server.url("knows-little"))))
    answers = [engine.complete(REQUEST, lambda _: None).text for _ in range(3)]
    assert answers == [TEXT] * 3
    assert ["logprobs" in seen.body for seen in server.seen if seen.behaviour == "knows-little"] == [
        True,
        False,
        False,
        False,
    ]


def test_ids_and_log_probabilities_come_from_strings_that_name_ids(server: MisbehavingServer) -> None:
    told = _complete(server, "vllm")
    assert told.ids == [49, 12, 1]
    assert told.choices == [
        Choice(49, -10.0, TOP),
        Choice(12, -12.5, TOP),
        Choice(1, -0.5, [(1, -0.5), (2, -2)]),
    ]


@pytest.mark.parametrize(("behaviour", "ids"), [("text-logprobs", None), ("nan", [1])])
def test_log_probabilities_without_ids_or_numbers_are_not_guessed(
    server: MisbehavingServer, behaviour: str, ids: list[int] | None
) -> None:
    told = _complete(server, behaviour)
    assert (told.ids, told.choices, told.text) == (ids, None, TEXT)


def _llama(**more: object) -> dict[str, Any]:
    tokens = [{"id": token, "logprob": -0.25, "top_logprobs": [{"id": token, "logprob": -0.25}]} for token in (5, 6, 1)]
    return {
        "content": " 012345",
        "tokens": [5, 6, 1],
        "completion_probabilities": tokens,
        "tokens_evaluated": 4,
        "stop_type": "eos",
        "truncated": False,
        "timings": {"cache_n": 0, "prompt_n": 4, "prompt_ms": 500.0, "predicted_n": 3, "predicted_ms": 50.0},
        **more,
    }


def test_everything_that_llama_server_tells_is_taken() -> None:
    choices = [Choice(token, -0.25, [(token, -0.25)]) for token in (5, 6, 1)]
    assert read_llama(_llama(), REQUEST, "h") == Completion(
        text=" 012345",
        ids=[5, 6, 1],
        read_s=0.5,
        decode_s=0.05,
        decoded=2,
        tokens_read=4,
        finish="stop",
        choices=choices,
    )


def test_ids_go_no_further_than_the_log_probabilities_that_are_told_of_them() -> None:
    told = read_llama(_llama(tokens=[5, 6, 1, 107]), REQUEST, "h")
    assert told.ids == [5, 6, 1]
    assert told.choices is not None


def test_log_probabilities_of_other_tokens_than_the_answers_are_left_out() -> None:
    told = read_llama(_llama(tokens=[5, 7, 1]), REQUEST, "h")
    assert (told.ids, told.choices) == ([5, 7, 1], None)


@pytest.mark.parametrize(("told", "finish"), [("limit", "length"), ("word", "stop"), ("eos", "stop")])
def test_llama_servers_words_for_an_end_are_ours(told: str, finish: str) -> None:
    assert read_llama(_llama(stop_type=told), REQUEST, "h").finish == finish


def test_a_context_that_was_full_is_noted() -> None:
    assert "`truncated`" in str(read_llama(_llama(truncated=True), REQUEST, "h").note)


def test_reading_out_of_a_cache_is_noted_and_has_no_time() -> None:
    timings = {"cache_n": 3, "prompt_n": 1, "prompt_ms": 5.0}
    told = read_llama(_llama(timings=timings), REQUEST, "h")
    assert told.read_s is None
    assert told.note == "3 tokens of the prompt were in the server's cache already"
    usage = {"prompt_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2}}
    openai = read_completions({"choices": [{"text": "1", "finish_reason": "stop"}], "usage": usage}, REQUEST, "h")
    assert openai.note == "2 tokens of the prompt were in the server's cache already"


def test_a_chat_answer_is_its_content_and_not_its_thinking() -> None:
    message = {"role": "assistant", "content": "012345", "reasoning_content": "Is it 999999?"}
    told = read_chat({"choices": [{"message": message, "finish_reason": "stop"}]}, REQUEST, "h")
    assert (told.text, told.finish, told.tokens_read, told.ids) == ("012345", "stop", None, None)
    only_thought = {"content": None, "reasoning_content": "Is it 999999?"}
    told = read_chat({"choices": [{"message": only_thought, "finish_reason": "length"}]}, REQUEST, "h")
    assert (told.text, told.finish) == ("", "length")


def test_what_a_server_writes_in_a_wrong_shape_is_as_if_untold() -> None:
    odd: dict[str, Any] = {"tokens": ["5", 6], "stop_type": ["eos"], "tokens_evaluated": True, "timings": [1]}
    told = read_llama(_llama(**odd, completion_probabilities=[{"id": True, "logprob": 0}]), REQUEST, "h")
    assert told == Completion(text=" 012345")
