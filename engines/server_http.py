"""Asks a server over HTTP: it gives one JSON object, or the caller gets one sentence that says why it did not.

The API key lives in the client made here and nowhere else, and is taken out of all that the server sends back.
Redirects are not followed, so that key and prompt go nowhere but to the address that was given. Proxy variables are
honoured, except for a server on this machine.
"""

import ipaddress
import json
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from engines.errors import EngineError
from engines.protocol import ServerOptions

LONGEST_WAIT_S = 60.0  # between two tries, whatever the server asks for
LARGEST = 256 << 20  # bytes of an answer; the log-probabilities of a whole vocabulary are some 30 MB
_CONNECT_S = 10.0
_SHOWN = 200  # characters of an answer in an error
_PLACEHOLDER = 8  # a key of fewer characters is no secret, and may well be a part of any text

# Trouble with a connection that may not come again. A time-out is none of it: asked again, a server that is too slow
# would only be slower.
_LOST = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ConnectTimeout)


class ServerError(EngineError):
    """What came, if anything did, is no answer.

    Attributes:
        status: the HTTP status; None when the connection was lost.
        retry_after_s: seconds that the server asks to wait; None when it does not say.
    """

    def __init__(self, sentence: str, status: int | None = None, retry_after_s: float | None = None) -> None:
        """Say what is wrong in one sentence."""
        super().__init__(sentence)
        self.status = status
        self.retry_after_s = retry_after_s

    @property
    def may_pass(self) -> bool:
        """Whether the same request may be answered another time."""
        return self.status is None or self.status == 429 or self.status >= 500


class Transport:
    """One server; several threads may use it at once."""

    def __init__(self, options: ServerOptions, backoff_s: float = 0.5) -> None:
        """Prepare the client; nothing is sent yet.

        Args:
            options: how the server is reached.
            backoff_s: seconds between the first try and the second; twice as many before each further one.

        Raises:
            EngineError: for an address that is none, or a key that no header can carry.
        """
        url = _parse(options.url)
        key = _key(options.key_env)
        if key and url.userinfo:
            raise EngineError(
                f"--url holds a user's name and password, and {options.key_env} a key: a server takes one of them; "
                "leave the other out"
            )
        self._clean = _cleaner([secret for secret in (key, url.password) if len(secret) >= _PLACEHOLDER])
        self._options = options
        self._backoff_s = backoff_s
        path = url.raw_path.partition(b"?")[0].decode("ascii").rstrip("/").removesuffix("/v1").rstrip("/")
        self.host = url.netloc.decode("ascii")
        self.url = f"{url.scheme}://{self.host}{path}"
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            auth=(url.username, url.password) if url.userinfo else None,
            timeout=httpx.Timeout(options.timeout_s, connect=min(options.timeout_s, _CONNECT_S), pool=None),
            limits=httpx.Limits(max_connections=options.parallel, max_keepalive_connections=options.parallel),
            follow_redirects=False,
            trust_env=not _on_this_machine(url.host),
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def check_there(self) -> None:
        """Ask for the list of models, once; a server that has none is fine.

        Raises:
            EngineError: when no server answers, when it wants another key, or sends the request elsewhere.
        """
        try:
            self._ask("GET", "/v1/models")
        except ServerError as error:
            if error.status is None or error.status in (401, 403) or 300 <= error.status < 400:
                raise

    def look(self, path: str) -> dict[str, Any]:
        """Return the object at `path`, asked for once; an empty one when the server has none there."""
        try:
            return self._ask("GET", path)
        except ServerError:
            return {}

    def post(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        """Send `body` as JSON and return the object that answers it.

        After a 429, a 5xx or a lost connection it is sent again, after a wait: the one that the server asks for, else
        a growing one, with chance in it, so that threads do not come back together.

        Raises:
            ServerError: when there is no such answer, the last time neither.
            EngineError: when the server has been silent for too long.
        """
        for attempt in range(self._options.retries):
            try:
                return self._ask("POST", path, body)
            except ServerError as error:
                if not error.may_pass:
                    raise
                time.sleep(wait_s(attempt, error.retry_after_s, self._backoff_s))
        return self._ask("POST", path, body)

    def _ask(self, method: str, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        try:
            with self._client.stream(method, self.url + path, json=body) as response:
                content = self._whole(response, path)
        except _LOST as error:
            raise ServerError(
                f"--url {self.host}: no answer ({self._clean(str(error)) or type(error).__name__}); start the server, "
                "or give the address where it is"
            ) from error
        except httpx.TimeoutException as error:
            raise EngineError(
                f"--url {self.host}: no byte of an answer in {self._options.timeout_s:g} s; give a larger --timeout, "
                "or a smaller --parallel"
            ) from error
        except httpx.HTTPError as error:
            # Without its text, which may hold what was sent.
            raise EngineError(f"--url {self.host}: the exchange failed ({type(error).__name__})") from error
        text = self._clean(content.decode("utf-8", "replace"))
        if response.status_code != 200:
            raise self._refusal(response, path, text)
        kind = response.headers.get("Content-Type", "application/json")
        if "json" not in kind.lower():
            raise ServerError(
                f"--url {self.host}: {path} answers with {self._clean(kind)}, not JSON: {_start(text)}", 200
            )
        answer = _parsed(text)
        if not isinstance(answer, dict):
            raise ServerError(f"--url {self.host}: {path} answers with what is no JSON object: {_start(text)}", 200)
        return answer

    def _whole(self, response: httpx.Response, path: str) -> bytes:
        """Read an answer to its end, if it has one: a byte now and then is no silence, and would never time out."""
        content, end = bytearray(), time.monotonic() + self._options.timeout_s
        for part in response.iter_bytes():
            content += part
            if time.monotonic() > end:
                raise EngineError(
                    f"--url {self.host}: the answer of {path} began and was not whole {self._options.timeout_s:g} s "
                    "later; give a larger --timeout, or look whether the server is overloaded"
                )
            if len(content) > LARGEST:
                raise EngineError(f"--url {self.host}: the answer of {path} is larger than {LARGEST} bytes")
        return bytes(content)

    def _refusal(self, response: httpx.Response, path: str, text: str) -> ServerError:
        status = response.status_code
        said = f"--url {self.host}: {path} answers {status}: {_start(text)}"
        if 300 <= status < 400:
            said = (
                f"--url {self.host}: {path} answers {status}, a redirect, which is not followed: key and prompt go "
                "only where they are meant to; give the final address"
            )
        elif status in (401, 403):
            said += f"; put a key that the server takes into the environment variable {self._options.key_env}"
        elif status in (404, 405):
            said += "; look whether the server knows the --model, and this --api"
        elif status == 429:
            said += "; give a smaller --parallel or more --retries"
        elif status >= 500:
            said += "; look into the server's log"
        elif (sizes := _exceeded(text)) is not None:
            said = (
                f"--url {self.host}: the prompt has {sizes[0]} tokens and the server holds {sizes[1]} a request; "
                "start it with a larger context (llama-server divides its --ctx-size by its --parallel)"
            )
        return ServerError(said, status, retry_after_s(response.headers.get("Retry-After"), datetime.now(UTC)))


def wait_s(attempt: int, asked_s: float | None, backoff_s: float) -> float:
    """Return the seconds to wait after try number `attempt`, from 0; `asked_s` is what the server asks for."""
    if asked_s is not None:
        return min(asked_s, LONGEST_WAIT_S) + random.uniform(0.0, backoff_s)
    return min(backoff_s * 2.0 ** min(attempt, 16), LONGEST_WAIT_S) * random.uniform(0.5, 1.0)


def retry_after_s(header: str | None, now: datetime) -> float | None:
    """Return the seconds that a Retry-After header names, as their number or as a date; None where it names none.

    Source: RFC 9110, section 10.2.3.
    """
    if header is None:
        return None
    try:
        return float(max(0, min(int(header), LONGEST_WAIT_S)))
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(header)
    except ValueError:
        return None
    return max(0.0, (when.replace(tzinfo=when.tzinfo or UTC) - now).total_seconds())


def _parse(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        shown = url.rpartition("@")[2]
        raise EngineError(f"--url {shown!r} is no address of a server; give one like http://localhost:8000")
    return parsed


def _key(variable: str) -> str:
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise EngineError(f"{variable} holds characters that no header can carry; set it to the key alone")
    return key


def _cleaner(secrets: Sequence[str]) -> Callable[[str], str]:
    """Return what takes the secrets out of a text; a function, so that no attribute shows them."""
    # As they are, and as JSON writes them: some writers put a backslash before a slash.
    forms = [form for secret in secrets for form in (secret, json.dumps(secret)[1:-1], secret.replace("/", r"\/"))]

    def clean(text: str) -> str:
        for form in forms:
            text = text.replace(form, "[key]")
        return text

    return clean


def _on_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _start(text: str) -> str:
    line = " ".join(text.split())
    return repr(line[:_SHOWN]) if line else "an empty body"


def _exceeded(text: str) -> tuple[object, object] | None:
    """Return the prompt's tokens and those of a slot, where llama-server says that the first do not fit."""
    answer = _parsed(text)
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict) or error.get("type") != "exceed_context_size_error":
        return None
    return error.get("n_prompt_tokens"), error.get("n_ctx")
