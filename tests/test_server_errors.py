"""However a server misbehaves, a prompt gets its answer or one sentence, and the key and the prompt go nowhere else."""

import logging
import socket
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from engines import Completion, EngineError, EngineOptions, Request, ServerOptions, open_engine, server_http
from engines.server import ServerEngine
from engines.server_http import LONGEST_WAIT_S, retry_after_s, wait_s
from tests.misbehaving import TEXT, MisbehavingServer

KEY = "sk-0a1b2c3d/4e5f6071"
PROMPT = [2, 7, 7, 9]


@pytest.fixture(scope="module")
def server() -> Iterator[MisbehavingServer]:
    with MisbehavingServer() as opened:
        yield opened


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RECALL_API_KEY", KEY)
    return KEY


def _open(url: str, *, retries: int = 0, timeout_s: float = 30.0) -> ServerEngine:
    options = EngineOptions("m", "m", server=ServerOptions(url, retries=retries, timeout_s=timeout_s))
    return ServerEngine(options, backoff_s=0.0)


def _complete(url: str, *, retries: int = 0, timeout_s: float = 30.0) -> Completion:
    engine = _open(url, retries=retries, timeout_s=timeout_s)
    try:
        return engine.complete(Request("p", PROMPT, 8, 64), lambda _: None)
    finally:
        engine.close()


@pytest.mark.parametrize(
    "behaviour",
    [
        "429-once",
        "429-once-wait-0",
        "429-once-wait-till-now",
        "500-once",
        "reset-once",
        "reset-amid-once",
        "close-amid-once",
    ],
)
def test_a_request_is_sent_again_after_trouble_that_may_pass(server: MisbehavingServer, behaviour: str) -> None:
    assert _complete(server.url(behaviour), retries=1).text == TEXT
    assert server.tries(behaviour) == 2


@pytest.mark.parametrize(
    ("behaviour", "said"), [("429", "slow down"), ("500", "out of memory"), ("reset", "reset"), ("page-502", "Welcome")]
)
def test_it_is_sent_again_as_often_as_retries_say_and_then_given_up(
    server: MisbehavingServer, behaviour: str, said: str
) -> None:
    before = server.tries(behaviour)
    with pytest.raises(EngineError, match=said) as raised:
        _complete(server.url(behaviour), retries=3)
    assert server.tries(behaviour) - before == 4
    assert server.host in str(raised.value)


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ("empty", "no JSON object: an empty body"),
        ("page", "answers with text/html, not JSON: '<html>"),
        ("half", 'no JSON object: \'{"choices": '),
        ("list", "no JSON object: '\\[]'"),
        ("text-plain", "answers with text/plain, not JSON"),
        ("no-choices", "has no `choices`"),
        ("no-text", "has no `choices\\[0].text`"),
        ("error-200", "has no `choices`"),
        ("404", "answers 404: .* does not exist.*--model"),
        ("exceeded", "5000 tokens and the server holds 4096 .*--ctx-size"),
        ("other-ids", "read other ids than it was sent"),
    ],
)
def test_an_answer_that_is_none_is_one_sentence_and_never_asked_for_again(
    server: MisbehavingServer, behaviour: str, said: str
) -> None:
    with pytest.raises(EngineError, match=said) as raised:
        _complete(server.url(behaviour), retries=3)
    # A refusal is asked about once more, without what the server need not know.
    assert server.tries(behaviour) == (2 if behaviour == "exceeded" else 1)
    assert server.host in str(raised.value)
    assert len(str(raised.value)) < 400


def test_a_silent_server_is_given_up_after_the_timeout_and_not_asked_again(server: MisbehavingServer) -> None:
    with pytest.raises(EngineError, match=r"no byte of an answer in 0\.2 s; give a larger --timeout"):
        _complete(server.url("silent"), retries=3, timeout_s=0.2)
    assert server.tries("silent") == 1


def test_a_server_that_drips_its_answer_is_given_up_after_the_timeout(server: MisbehavingServer) -> None:
    with pytest.raises(EngineError, match=r"/v1/completions began and was not whole 0\.2 s later"):
        _complete(server.url("drip"), retries=3, timeout_s=0.2)
    assert server.tries("drip") == 1


def test_an_answer_larger_than_any_of_ours_is_refused(
    server: MisbehavingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_http, "LARGEST", 50)
    with pytest.raises(EngineError, match="is larger than 50 bytes"):
        _complete(server.url("well"))


def test_a_redirect_is_not_followed() -> None:
    with MisbehavingServer() as other, MisbehavingServer(elsewhere=other.url("well")) as server:
        with pytest.raises(EngineError, match="a redirect, which is not followed"):
            _complete(server.url("redirect"))
        assert len(server.seen) == 1
        assert other.seen == []


def test_where_no_server_is_opening_says_so_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        host = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(EngineError, match=f"{host}: no answer .*refused.*start the server"):
        _open(f"http://{host}", retries=1000)


def test_a_server_that_is_gone_before_a_prompt_is_one_sentence() -> None:
    with MisbehavingServer() as server:
        engine = _open(server.url("well"), retries=2)
    with pytest.raises(EngineError, match="no answer"):
        engine.complete(Request("p", PROMPT, 8, 64), lambda _: None)


def test_a_prompt_that_does_not_fit_is_not_sent(server: MisbehavingServer) -> None:
    before = len(server.seen)
    with pytest.raises(EngineError, match="do not fit into a context of 11"):
        _open(server.url("well")).complete(Request("p", PROMPT, 8, 11), lambda _: None)
    assert len(server.seen) == before


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://localhost", "http://", "", "http://h:port", "me:pw@host"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(EngineError, match="is no address of a server; give one like") as raised:
        _open(url)
    assert "pw" not in str(raised.value)


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
def test_the_address_may_end_in_v1(server: MisbehavingServer, ending: str) -> None:
    assert _complete(server.url("well") + ending).text == TEXT


def test_a_server_that_makes_no_ids_needs_a_tokenizer(server: MisbehavingServer) -> None:
    with pytest.raises(EngineError, match="makes no ids of a text; give --tokenizer"):
        _open(server.url("well")).encode("text")


def test_a_tokenizer_that_cannot_be_loaded_is_named(server: MisbehavingServer) -> None:
    reached = ServerOptions(server.url("well"), tokenizer="./no-such-folder")
    with pytest.raises(EngineError, match=r"--tokenizer '\./no-such-folder' is none"):
        open_engine("server", EngineOptions("m", "m", server=reached))


def test_a_tokenizer_is_refused_where_messages_are_sent(server: MisbehavingServer) -> None:
    reached = ServerOptions(server.url("well"), api="chat", tokenizer="./no-such-folder")
    with pytest.raises(EngineError, match="--api chat takes only messages"):
        open_engine("server", EngineOptions("m", "m", server=reached))


def test_the_key_is_sent_with_every_request_and_written_nowhere(
    server: MisbehavingServer, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    engine = _open(server.url("key-back"))
    with pytest.raises(EngineError, match=r"Authorization Bearer \[key\]") as raised:
        engine.complete(Request("p", PROMPT, 8, 64), lambda _: None)
    assert server.seen[-1].headers["Authorization"] == f"Bearer {key}"
    reply = _complete(server.url("key-as-text")).text
    assert reply == "you sent Bearer [key]"
    assert "/key-back/" in caplog.text
    told = [raised.value, engine, engine.info, vars(engine), vars(engine._transport), caplog.text]
    assert not [text for text in map(repr, told) if key in text]


def test_no_key_is_sent_where_none_is_set(server: MisbehavingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECALL_API_KEY", raising=False)
    _complete(server.url("well"))
    assert "Authorization" not in server.seen[-1].headers


def test_opening_says_which_variable_holds_a_key_that_the_server_refuses(server: MisbehavingServer, key: str) -> None:
    with pytest.raises(EngineError, match=r"answers 401: .*environment variable RECALL_API_KEY") as raised:
        _open(server.url("wants-key"))
    assert key not in str(raised.value)


def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECALL_API_KEY", "sk-one\nsk-two")
    with pytest.raises(EngineError, match="RECALL_API_KEY holds characters") as raised:
        _open("http://127.0.0.1:9")
    assert "sk-" not in str(raised.value)


def test_the_password_of_an_address_is_sent_and_shown_nowhere(
    server: MisbehavingServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("RECALL_API_KEY", raising=False)
    caplog.set_level(logging.DEBUG)
    engine = _open(server.url("well").replace("http://", "http://me:open-sesame@"))
    engine.complete(Request("p", PROMPT, 8, 64), lambda _: None)
    assert server.seen[-1].headers["Authorization"].startswith("Basic ")
    assert "/well/" in caplog.text
    assert "open-sesame" not in repr(engine.info) + caplog.text
    assert engine.info.settings["url"] == server.url("well")


def test_an_address_with_a_password_beside_a_key_is_refused(server: MisbehavingServer, key: str) -> None:
    with pytest.raises(EngineError, match="a server takes one of them") as raised:
        _open(server.url("well").replace("http://", "http://me:open-sesame@"))
    assert key not in str(raised.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_server_on_this_machine_is_reached_past_any_proxy(
    server: MisbehavingServer, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    with MisbehavingServer() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://{proxy.host}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert _complete(server.url("well").replace("127.0.0.1", host)).text == TEXT
        assert proxy.seen == []


def test_a_server_elsewhere_is_reached_through_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with MisbehavingServer() as proxy:
        monkeypatch.setenv("http_proxy", f"http://{proxy.host}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        with pytest.raises(EngineError, match=r"far\.invalid: "):
            _complete("http://far.invalid")
        assert [seen.target for seen in proxy.seen] == ["http://far.invalid/v1/completions"]


def test_waits_grow_and_stay_under_the_longest() -> None:
    waits = [[wait_s(attempt, None, 0.5) for _ in range(50)] for attempt in (0, 1, 2, 3, 20, 5000)]
    for tries, most in zip(waits, [0.5, 1, 2, 4, LONGEST_WAIT_S, LONGEST_WAIT_S], strict=True):
        assert most / 2 <= min(tries) < max(tries) <= most


def test_a_wait_is_no_shorter_than_the_server_asks_for_but_never_longer_than_the_longest() -> None:
    assert 7.0 <= wait_s(0, 7.0, 0.5) <= 7.5
    assert wait_s(0, 86400.0, 0.0) == LONGEST_WAIT_S


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("3", 3.0),
        ("-3", 0.0),
        ("9" * 400, LONGEST_WAIT_S),
        ("Mon, 30 Nov 2026 02:00:20 GMT", 20.0),
        ("Mon, 30 Nov 2026 03:00:20 +0100", 20.0),
        ("Mon, 30 Nov 2026 01:00:00 GMT", 0.0),
        ("soon", None),
        ("", None),
    ],
)
def test_a_wait_is_asked_for_in_seconds_or_by_a_date(header: str | None, seconds: float | None) -> None:
    assert retry_after_s(header, datetime(2026, 11, 30, 2, tzinfo=UTC)) == seconds
