"""A small HTTP server on this machine that misbehaves as real ones do: the first part of the path says how.

It knows `/v1/completions` and nothing else: every other path is a 404, as with a server that lists no models.
"""

import json
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

TEXT = " 012345."
PAGE = f"<html><body>{'Welcome to the gateway. ' * 40}</body></html>"


@dataclass(frozen=True)
class Seen:
    """One request: how the server was told to behave, the address that was asked for, what came with it."""

    behaviour: str
    target: str
    headers: dict[str, str]
    body: dict[str, Any]


class MisbehavingServer:
    """Listens on a free port for as long as it is open; `seen` is what was posted to it."""

    def __init__(self, elsewhere: str = "") -> None:
        """Listen; `elsewhere` is where a redirect leads."""
        self.seen: list[Seen] = []
        self.elsewhere = elsewhere
        self.over = threading.Event()
        server = self

        class Handler(_Exchange):
            owner = server

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> "MisbehavingServer":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.over.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._http.server_port}"

    def url(self, behaviour: str) -> str:
        assert behaviour in BEHAVIOURS
        return f"http://{self.host}/{behaviour}"

    def tries(self, behaviour: str) -> int:
        return sum(seen.behaviour == behaviour for seen in self.seen)


class _Exchange(BaseHTTPRequestHandler):
    """One request and its answer."""

    protocol_version = "HTTP/1.1"
    owner: MisbehavingServer

    def do_GET(self) -> None:
        behaviour = self.path.split("/")[1]
        if behaviour in ("wants-key", "wants-key-back"):
            self.send(401, {"error": "no key, or a wrong one"})
        else:
            self.send(404, {"error": "no such page"})

    def do_POST(self) -> None:
        behaviour, _, path = self.path[1:].partition("/")
        self.body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.owner.seen.append(Seen(behaviour, self.path, dict(self.headers), self.body))
        self.first = self.owner.tries(behaviour) == 1
        if self.owner.over.is_set():
            self.close_connection = True  # kept open by the client, and closed like the server itself
        elif path == "v1/completions":
            BEHAVIOURS[behaviour](self)
        else:
            self.send(404, {"error": "no such page"})

    def send(self, status: int, body: object, kind: str = "application/json", **headers: str) -> None:
        """Answer; a `str` is sent as it is, anything else as JSON."""
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.start(status, len(data), kind, **headers)
        self.wfile.write(data)

    def start(self, status: int, length: int, kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def answer(self, *, read: int | None = None, text: str = TEXT, finish: str = "stop", **choice: object) -> None:
        """Answer as a server does that is well; `read` is how many tokens it says that the prompt had."""
        read = len(self.body["prompt"]) if read is None else read
        choices = [{"index": 0, "text": text, "finish_reason": finish, **choice}]
        self.send(200, {"choices": choices, "usage": {"prompt_tokens": read, "completion_tokens": 7}})

    def reset(self) -> None:
        """Break the connection off, without the end that TCP gives one."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def log_message(self, *args: object) -> None:
        """Write nothing on standard error."""


def _once(misbehave: Callable[[_Exchange], None]) -> Callable[[_Exchange], None]:
    """Return a behaviour that is well from the second request on."""
    return lambda exchange: misbehave(exchange) if exchange.first else exchange.answer()


def _reset_amid(exchange: _Exchange) -> None:
    exchange.start(200, 1000)
    exchange.wfile.write(b'{"choices": [')
    exchange.reset()


def _close_amid(exchange: _Exchange) -> None:
    exchange.start(200, 1000)
    exchange.wfile.write(b'{"choices": [')
    exchange.close_connection = True


def _silent(exchange: _Exchange) -> None:
    exchange.owner.over.wait()
    exchange.close_connection = True


def _drip(exchange: _Exchange) -> None:
    exchange.start(200, 1 << 20)
    while not exchange.owner.over.wait(0.02):
        try:
            exchange.wfile.write(b" ")
        except OSError:  # nobody listens any more
            break
    exchange.close_connection = True


def _only_what_it_knows(exchange: _Exchange) -> None:
    unknown = set(exchange.body) - {"model", "prompt", "temperature", "max_tokens", "stop", "stream"}
    if unknown:
        exchange.send(400, {"error": {"message": f"unknown fields {sorted(unknown)}"}})
    else:
        exchange.answer()


def _exceeded(exchange: _Exchange) -> None:
    error = {"code": 400, "type": "exceed_context_size_error", "n_prompt_tokens": 5000, "n_ctx": 4096}
    exchange.send(400, {"error": error})


def _redirect(exchange: _Exchange) -> None:
    exchange.send(307, "", Location=exchange.owner.elsewhere)


def _vllm(exchange: _Exchange) -> None:
    # As vLLM does when asked to: the chosen token beside the likeliest, and strings that name ids.
    asked = exchange.body["return_tokens_as_token_ids"] and exchange.body["logprobs"] == 10
    likeliest = {f"token_id:{40 + place}": -1.0 - place for place in range(10)}
    logprobs = {
        "tokens": ["token_id:49", "token_id:12", "token_id:1"],
        "token_logprobs": [-10.0, -12.5, -0.5],
        "top_logprobs": [likeliest, {"token_id:12": -12.5, **likeliest}, {"token_id:1": -0.5, "token_id:2": -2}],
    }
    ids = {"token_ids": [49, 12, 1], "prompt_token_ids": exchange.body["prompt"]}
    exchange.answer(logprobs=logprobs if asked else None, **ids if exchange.body["return_token_ids"] else {})


def _text_logprobs(exchange: _Exchange) -> None:
    # As OpenAI's own API: two tokens may have one text.
    logprobs = {"tokens": [" 0", "1"], "token_logprobs": [-0.5, -1], "top_logprobs": [{" 0": -0.5}, {"1": -1}]}
    exchange.answer(logprobs=logprobs)


def _nan(exchange: _Exchange) -> None:
    bad = {"tokens": ["token_id:1"], "token_logprobs": [float("nan")], "top_logprobs": [{"token_id:1": float("inf")}]}
    exchange.answer(logprobs=bad, token_ids=[1])


def _key_back(exchange: _Exchange) -> None:
    exchange.send(400, {"error": f"bad request with Authorization {exchange.headers['Authorization']}"})


def _key_as_text(exchange: _Exchange) -> None:
    exchange.answer(text=f"you sent {exchange.headers['Authorization']}")


BEHAVIOURS: dict[str, Callable[[_Exchange], None]] = {
    "well": lambda exchange: exchange.answer(),
    "429-once": _once(lambda exchange: exchange.send(429, {"error": "slow down"})),
    "429-once-wait-0": _once(lambda exchange: exchange.send(429, {"error": "slow down"}, Retry_After="0")),
    "429-once-wait-till-now": _once(lambda exchange: exchange.send(429, "", Retry_After=formatdate(usegmt=True))),
    "429": lambda exchange: exchange.send(429, {"error": "slow down"}),
    "500-once": _once(lambda exchange: exchange.send(500, {"error": "out of memory"})),
    "500": lambda exchange: exchange.send(500, {"error": "out of memory"}),
    "reset-once": _once(lambda exchange: exchange.reset()),
    "reset-amid-once": _once(_reset_amid),
    "close-amid-once": _once(_close_amid),
    "reset": lambda exchange: exchange.reset(),
    "silent": _silent,
    "drip": _drip,
    "empty": lambda exchange: exchange.send(200, ""),
    "page": lambda exchange: exchange.send(200, PAGE, "text/html"),
    "page-502": lambda exchange: exchange.send(502, PAGE, "text/html"),
    "half": lambda exchange: exchange.send(200, '{"choices": [{"text": "0123'),
    "list": lambda exchange: exchange.send(200, []),
    "text-plain": lambda exchange: exchange.send(200, {"choices": [{"text": TEXT}]}, "text/plain"),
    "no-choices": lambda exchange: exchange.send(200, {"choices": []}),
    "no-text": lambda exchange: exchange.send(200, {"choices": [{"index": 0}]}),
    "error-200": lambda exchange: exchange.send(200, {"error": {"message": "no such model"}}),
    "404": lambda exchange: exchange.send(404, {"error": "The model `m` does not exist."}),
    "exceeded": _exceeded,
    "redirect": _redirect,
    "knows-little": _only_what_it_knows,
    "wants-key": lambda exchange: exchange.send(401, {"error": "no key"}),
    "wants-key-back": _key_back,
    "key-back": _key_back,
    "key-as-text": _key_as_text,
    "no-usage": lambda exchange: exchange.send(200, {"choices": [{"text": TEXT, "finish_reason": "stop"}]}),
    "cut": lambda exchange: exchange.answer(read=min(4096, len(exchange.body["prompt"]))),
    "two-bos": lambda exchange: exchange.answer(read=len(exchange.body["prompt"]) + 1),
    "cut-off": lambda exchange: exchange.answer(text=" 01234", finish="length"),
    "filtered": lambda exchange: exchange.answer(finish="content_filter"),
    "no-stop": lambda exchange: exchange.answer(text=f"{TEXT}\nRecord 2 is 999999.", finish="length"),
    "vllm": _vllm,
    "text-logprobs": _text_logprobs,
    "nan": _nan,
    "half-a-pair": lambda exchange: exchange.answer(text="012345 \ud83d"),
    "other-ids": lambda exchange: exchange.answer(prompt_token_ids=[0 for _ in exchange.body["prompt"]]),
}
