"""What every engine is: it makes ids from a text, reads ids and decodes greedily, and says what it is.

An engine gets token ids wherever it can take them, so that two engines are compared on the same prompt and not
on two tokenizations of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

DType = Literal["fp32", "bf16"]
Mode = Literal["eager", "fuse", "compile"]
OnRead = Callable[[int], None]
Setting = str | int | bool | None


@dataclass(frozen=True)
class EngineOptions:
    """How an engine is opened. Each engine takes what it knows and refuses what it cannot do.

    `model` is a local folder, a hub name, or, for the recorded engine, a results file; `model_name` is what
    result rows call it. `threads` None leaves PyTorch's own number of CPU threads. `sizes`: in how many sizes
    the filled part of the context is compiled. `stream`: read every token back as it is made; None: in eager mode.
    """

    model: str | Path
    model_name: str
    dtype: DType = "fp32"
    device: str = "cpu"
    threads: int | None = None
    mode: Mode = "eager"
    sizes: int = 4
    stream: bool | None = None


@dataclass(frozen=True)
class EngineInfo:
    """What answered: written into every result row. `settings` are those of this engine that can change an answer."""

    engine: str
    model: str
    dtype: str | None
    device: str | None
    settings: dict[str, Setting] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """One prompt for an engine.

    Attributes:
        prompt_id: names the prompt, for an engine that looks its answers up.
        ids: the complete prompt, BOS included; empty for an engine that makes no ids.
        max_new: the most tokens of the answer.
        context: tokens that prompt and answer may have together.
        stop: text that ends the answer, beside the model's own end tokens.
    """

    prompt_id: str
    ids: Sequence[int]
    max_new: int
    context: int
    stop: str | None = None


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
    """

    text: str
    ids: list[int] | None = None
    read_s: float | None = None
    decode_s: float | None = None
    decoded: int = 0
    cache_bytes: int | None = None
    graphs: int | None = None
    breaks: int | None = None


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
