"""What every engine is: it makes ids from a text, reads ids and decodes greedily, and says what it is.

An engine gets token ids wherever it can take them, so that two engines are compared on the same prompt and not
on two tokenizations of it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

DType = Literal["fp32", "bf16"]
Mode = Literal["eager", "fuse", "compile"]
OnRead = Callable[[int], None]
Setting = str | int | bool | None
Finish = Literal["stop", "length"]
KVType = Literal["f32", "f16", "q8_0"]

TOP = 10  # tokens that an engine tells of each place of its answer


@dataclass(frozen=True)
class ServerOptions:
    """How a server is reached.

    Attributes:
        url: its base, `http://host:port`, with or without `/v1`.
        api: `completions` takes ids (`/v1/completions`), `chat` takes only messages (`/v1/chat/completions`), `llama`
            is llama-server's own `/completion`, which takes ids.
        parallel: requests that are under way at once.
        timeout_s: seconds after which a request is given up, without a byte of reply, and again to the reply's end.
        retries: how often a request is sent again after 429, 5xx or a lost connection.
        key_env: the environment variable that holds the API key; the key itself is kept nowhere else.
        tokenizer: a local folder or a hub name whose tokenizer makes the ids; None: the server's own `/tokenize`.
    """

    url: str
    api: Literal["completions", "chat", "llama"] = "completions"
    parallel: int = 1
    timeout_s: float = 600.0
    retries: int = 5
    key_env: str = "RECALL_API_KEY"
    tokenizer: str | Path | None = None


@dataclass(frozen=True)
class LlamaCppOptions:
    """How llama.cpp is started: the type of its KV cache, flash attention, and seconds that one request may take."""

    kv_type: KVType = "f16"
    flash_attention: bool = True
    timeout_s: float = 3600.0


@dataclass(frozen=True)
class EngineOptions:
    """How an engine is opened. Each engine takes what it knows and refuses what it cannot do.

    `model` is a local folder, a hub name, a GGUF file for llama.cpp, a results file for the recorded engine;
    `model_name` is what result rows call it. `threads` None leaves PyTorch's own number of CPU threads. `sizes`: in how
    many sizes the filled part of the context is compiled. `stream`: read every token back as it is made; None: in
    eager mode. `server` is for the engine `server`, `llama_cpp` for llama.cpp. `trust_remote_code`: run the Python code
    that a model brings along; without it such a model is refused.
    """

    model: str | Path
    model_name: str
    dtype: DType = "fp32"
    device: str = "cpu"
    threads: int | None = None
    mode: Mode = "eager"
    sizes: int = 4
    stream: bool | None = None
    server: ServerOptions | None = None
    llama_cpp: LlamaCppOptions = LlamaCppOptions()
    trust_remote_code: bool = False


@dataclass(frozen=True)
class EngineInfo:
    """What answered: written into every result row. `settings` are those of this engine that can change an answer.

    `window`: positions that the model's sliding layers look back; None where it has none, or nobody knows.
    `parallel`: requests that the engine takes at once. `fingerprint`: of the weights; None where they are not at hand.
    """

    engine: str
    model: str
    dtype: str | None
    device: str | None
    settings: dict[str, Setting] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    window: int | None = None
    parallel: int = 1
    fingerprint: str | None = None


@dataclass(frozen=True)
class Request:
    """One prompt for an engine.

    Attributes:
        prompt_id: names the prompt, for an engine that looks its answers up.
        ids: the complete prompt, BOS included; empty for an engine that makes no ids.
        max_new: the most tokens of the answer.
        context: tokens that prompt and answer may have together.
        stop: text that ends the answer, beside the model's own end tokens.
        message: the prompt's bare text, without BOS and turn markers, for an engine that takes only messages.
    """

    prompt_id: str
    ids: Sequence[int]
    max_new: int
    context: int
    stop: str | None = None
    message: str = ""


@dataclass(frozen=True)
class Choice:
    """One token of an answer, and what else the model thought of at its place.

    Attributes:
        id: the token.
        logprob: its log-probability (natural logarithm).
        top: the `TOP` likeliest tokens with their log-probabilities, the likeliest first.
    """

    id: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True)
class Completion:
    """One answer.

    Attributes:
        text: the reply without its end token.
        ids: the reply's ids, its end token included; None when the engine does not tell them.
        read_s: seconds from the first id read to the first token of the answer.
        decode_s: seconds from the first token of the answer to the last that was decoded.
        decoded: tokens decoded in that time; more than the answer's where its end was looked for afterwards.
        cache_bytes: bytes of keys and values that the context takes.
        graphs: graphs that the compiler has made of the engine so far; None where nothing is compiled.
        breaks: at how many places it cut one in two.
        tokens_read: tokens that the engine says its prompt had; None when it says nothing.
        finish: `stop` when the answer came to its end, `length` when `max_new` cut it off; None when nobody says.
        choices: of each of `ids`; None when the engine does not tell them.
        note: what is odd about this answer, in words.
    """

    text: str
    ids: list[int] | None = None
    read_s: float | None = None
    decode_s: float | None = None
    decoded: int = 0
    cache_bytes: int | None = None
    graphs: int | None = None
    breaks: int | None = None
    tokens_read: int | None = None
    finish: Finish | None = None
    choices: list[Choice] | None = None
    note: str | None = None


class Engine(Protocol):
    """The whole of what the scorer needs of an engine."""

    @property
    def info(self) -> EngineInfo:
        """What this engine is."""

    def encode(self, text: str) -> list[int] | None:
        """Return the ids of a complete text, nothing added; None when the engine makes no ids."""

    def complete(self, request: Request, on_read: OnRead) -> Completion:
        """Read the request's ids and decode greedily.

        Calls `on_read(n)` when n more tokens of the prompt have been read.

        Raises:
            EngineError: before anything is read when prompt and answer do not fit into the context; later when
                the model gives no usable logits.
        """


class LogitEngine(Engine, Protocol):
    """An engine that can also show what it thinks of a text that is given to it."""

    def logits(self, ids: Sequence[int], last: int, context: int) -> NDArray[np.float32]:
        """Read `ids` and return the logits after each of the last `last` of them, `[last, V]`.

        A row may be shifted as a whole: a softmax does not see that.

        Raises:
            EngineError: when the ids do not fit into `context`, or the model gives no usable logits.
        """


class SharingEngine(Protocol):
    """Answers prompts that begin alike from one read of the longest."""

    @property
    def info(self) -> EngineInfo:
        """What this engine is."""

    def encode(self, text: str) -> list[int] | None:
        """Return the ids of a complete text, nothing added; None when the engine makes no ids."""

    def complete_together(self, requests: Sequence[Request], on_read: OnRead) -> Iterator[tuple[Request, Completion]]:
        """Yield every request with its answer, as it is answered.

        Calls `on_read(n)` when n more tokens of the longest prompt have been read.

        Raises:
            EngineError: before anything is read when a prompt and its answer do not fit into the context; later when
                the model gives no usable logits.
        """
