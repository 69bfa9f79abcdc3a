"""A real llama-server answers through each of its APIs, and rows tell what it read and what it thought of."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from engines import Choice, Completion, EngineError, EngineOptions, Request, ServerOptions
from engines.server import ServerEngine
from generators import PromptTokenizer
from recall import demo
from recall.results import ResultRow, read_results
from tests.conftest import run_recall
from tests.llama_server import llama_server

KEY = "the-key-of-the-tests"
SLOT = 768
LINE = "Record {0}: the secret access code of record {0} is"
TEXT = f"<bos>{LINE.format(1)} 240891.\n{LINE.format(2)} 696853.\n{LINE.format(1)}"
APIS = ["completions", "llama"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with llama_server(demo.demo_gguf(print), slots=2, slot_context=SLOT, key=KEY) as address:
        yield address


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECALL_API_KEY", KEY)


@pytest.fixture(scope="module")
def prompt_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two prompts that fit into a slot; their answers are no near-ties, which a batch of both could turn over."""
    file = tmp_path_factory.mktemp("sets") / "set.jsonl"
    _generate(file, "--budget", 230, "--record", 1, "--record", 2)
    return file


@pytest.fixture(scope="module")
def long_prompt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One prompt that does not."""
    file = tmp_path_factory.mktemp("sets") / "set.jsonl"
    _generate(file, "--budget", 1024)
    return file


def _generate(file: Path, *arguments: object) -> None:
    made = run_recall("generate", "--format", "completion", "--seed", 1, *arguments, "-o", file)
    assert made.code == 0, made.err


def _open(url: str, api: str, model: str = "demo", **more: object) -> ServerEngine:
    return ServerEngine(EngineOptions(model, model, server=ServerOptions(url, api, **more)))  # type: ignore[arg-type]


def _complete(engine: ServerEngine, *, max_new: int = 8, stop: str | None = None) -> tuple[Completion, list[int]]:
    ids = engine.encode(TEXT)
    message = TEXT.removeprefix("<bos>")
    told: list[int] = []
    return engine.complete(Request("p", ids or [], max_new, SLOT, stop, message), told.append), told


def _score(prompt_set: Path, url: str, api: str, output: Path, *more: object) -> tuple[int, list[ResultRow]]:
    ended = run_recall("score", prompt_set, "--engine", "server", "--url", url, "--api", api, "-o", output, *more)
    assert KEY not in ended.err + output.read_text()
    return ended.code, read_results(output)


def _check_choices(choices: Sequence[Choice] | None, ids: list[int] | None) -> None:
    assert choices
    assert [choice.id for choice in choices] == ids
    for choice in choices:
        assert len({token for token, _ in choice.top}) == 10
        logprobs = [logprob for _, logprob in choice.top]
        assert logprobs == sorted(logprobs, reverse=True)
        assert 0.2 < sum(map(math.exp, logprobs)) <= 1.001
        # Greedy: what was chosen is the likeliest, and its log-probability the model's own, not that of sampling.
        assert choice.top[0] == (choice.id, choice.logprob)


def test_the_server_makes_the_ids_that_the_model_s_own_tokenizer_makes(
    url: str, gemma: PromptTokenizer, demo_folder: Path
) -> None:
    ids = _open(url, "completions").encode(TEXT)
    assert ids == gemma.encode(TEXT)
    assert ids is not None
    assert ids[:2].count(2) == 1
    assert _open(url, "llama", tokenizer=demo_folder).encode(TEXT) == ids


def test_with_chat_there_are_no_ids(url: str) -> None:
    assert _open(url, "chat").encode(TEXT) is None


@pytest.mark.parametrize("api", APIS)
def test_an_answer_tells_its_ids_and_the_likeliest_tokens_at_each_place(url: str, api: str) -> None:
    engine = _open(url, api)
    told, read = _complete(engine)
    assert "240891" in told.text
    assert told.ids is not None
    assert len(told.ids) == 8
    _check_choices(told.choices, told.ids)
    assert told.finish == "length"
    assert told.tokens_read == sum(read) == len(engine.encode(TEXT) or [])
    assert told.read_s is not None
    assert told.decode_s is not None
    assert told.decoded == 7
    assert told.note is None


@pytest.mark.parametrize("api", APIS)
def test_an_answer_ends_at_the_text_that_stops_it(url: str, api: str) -> None:
    told, _ = _complete(_open(url, api), max_new=64, stop="\n")
    assert told.finish == "stop"
    assert "\n" not in told.text
    assert "240891" in told.text
    _check_choices(told.choices, told.ids)


def test_both_ways_give_the_same_tokens_and_log_probabilities(url: str) -> None:
    (one, _), (other, _) = (_complete(_open(url, api)) for api in APIS)
    assert one.ids == other.ids
    assert one.choices == other.choices


@pytest.mark.parametrize("api", APIS)
def test_the_same_request_gets_the_same_answer_again_and_nothing_out_of_a_cache(url: str, api: str) -> None:
    engine = _open(url, api)
    first, again = _complete(engine)[0], _complete(engine)[0]
    assert (first.ids, first.choices) == (again.ids, again.choices)
    assert (first.note, again.note) == (None, None)


def test_a_message_is_answered_with_its_text_and_the_tokens_that_the_template_made_of_it(url: str) -> None:
    told, _ = _complete(_open(url, "chat"))
    assert told.text
    assert told.finish == "length"
    assert told.tokens_read is not None
    assert told.tokens_read > len(_open(url, "llama").encode(TEXT) or [])
    assert (told.ids, told.choices) == (None, None)


def test_rows_say_which_server_answered_by_which_api_and_what_it_read(
    url: str, prompt_set: Path, tmp_path: Path
) -> None:
    code, rows = _score(prompt_set, url, "completions", tmp_path / "rows.jsonl")
    assert code == 0
    assert [row.found for row in rows] == [True, False]
    for row in rows:
        assert row.status == "ok"
        assert row.tokens_sent == row.tokens_read == row.prompt_tokens
        assert row.finish == "stop"
        assert row.settings == {"api": "completions", "url": url}
        assert "server" in row.versions
        assert row.answer_tokens is not None
        assert [token.id for token in row.answer_tokens] == row.reply_ids


@pytest.mark.parametrize("api", APIS)
def test_a_prompt_over_the_slots_context_is_an_error_row_with_both_sizes(
    url: str, long_prompt: Path, tmp_path: Path, api: str
) -> None:
    code, (row,) = _score(long_prompt, url, api, tmp_path / "rows.jsonl")
    assert (code, row.status, row.outcome) == (3, "error", None)
    assert f"{row.prompt_tokens} tokens and the server holds {SLOT} a request; start it with" in str(row.note)


@pytest.mark.parametrize("api", [*APIS, "chat"])
def test_two_prompts_at_once_get_the_rows_of_one_by_one(url: str, prompt_set: Path, tmp_path: Path, api: str) -> None:
    _, one = _score(prompt_set, url, api, tmp_path / "one.jsonl", "--max-new", 8)
    _, two = _score(prompt_set, url, api, tmp_path / "two.jsonl", "--max-new", 8, "--parallel", 2)
    same = {"prompt_id", "reply", "reply_ids", "outcome", "status", "tokens_read", "finish", "settings"}
    rows = [{row.prompt_id: row.model_dump(include=same) for row in rows} for rows in (one, two)]
    assert len(rows[0]) == 2
    assert rows[0] == rows[1]


def test_a_wrong_key_is_refused_when_the_engine_is_opened_or_asked(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECALL_API_KEY", "another-key-of-the-tests")
    with pytest.raises(EngineError, match=r"401: .*RECALL_API_KEY") as raised:
        _complete(_open(url, "llama", tokenizer=demo.demo_folder(print)))
    assert "another-key" not in str(raised.value)
