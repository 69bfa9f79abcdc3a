"""Engines as the command line names them: which options each one takes, and a whole engine in one argument.

Such an argument is `ring`, `hf:demo,dtype=bf16` or `llama.cpp:model.gguf,kv_type=f32,flash_attention=no`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, cast, get_args

from engines import ENGINES, EngineError, EngineOptions, LlamaCppOptions, LogitEngine, open_engine
from engines.protocol import DType, KVType, Mode
from recall import demo, models
from recall.errors import RecallError

# Options that not every engine takes. Given to another one they are an error: they would change nothing.
TAKEN_BY = {
    "dtype": ("ring", "hf"),
    "device": ("ring", "hf"),
    "mode": ("ring",),
    "sizes": ("ring",),
    "stream": ("ring",),
    "threads": ("ring", "hf", "llama.cpp"),
    "trust_remote_code": ("ring", "hf"),
    "kv_type": ("llama.cpp",),
    "flash_attention": ("llama.cpp",),
    "url": ("server",),
    "api": ("server",),
    "parallel": ("server",),
    "retries": ("server",),
    "api_key_env": ("server",),
    "tokenizer": ("server",),
    "timeout": ("server", "llama.cpp"),
}


@dataclass(frozen=True)
class EngineSpec:
    """An engine and how it is opened; `shown` is its argument again, with no folder of this machine in it."""

    engine: str
    options: EngineOptions
    shown: str


@dataclass(frozen=True)
class _Key:
    """How a value is read, by a function that raises `ValueError` or `KeyError`; and what it has to be, in words."""

    read: Callable[[str], Any]
    wanted: str


def parse_spec(spec: str) -> EngineSpec:
    """Read `ENGINE[:MODEL][,KEY=VALUE...]` of an engine that gives logits; without a model it is the demo model.

    Raises:
        RecallError: naming the engine, model, key or value that cannot be, and what can.
    """
    head, *settings = spec.split(",")
    engine, colon, model = head.partition(":")
    if engine not in ENGINES:
        raise RecallError(f"{spec!r}: engine {engine!r} is unknown; give one of {', '.join(_with_logits())}")
    if not _gives_logits(engine):
        raise RecallError(f"{spec!r}: engine {engine!r} gives no logits; give one of {', '.join(_with_logits())}")
    if colon and not model:
        raise RecallError(f"{spec!r}: no model is named after the colon; give one, or only {engine!r} for the demo one")
    model = model or demo.NAME
    values = _values(spec, engine, settings)
    llama_cpp = LlamaCppOptions(**{name: values.pop(key) for key, name in _OF_LLAMA_CPP.items() if key in values})
    shown_name = models.shown_name(model)
    options = EngineOptions(models.resolve(model, engine), shown_name, llama_cpp=llama_cpp)
    return EngineSpec(engine, replace(options, **values), ",".join([f"{engine}:{shown_name}", *settings]))


def open_spec(spec: EngineSpec) -> LogitEngine:
    """Open the engine of `spec`.

    Raises:
        EngineError: naming it, for a model that it cannot load or an option that it cannot serve.
    """
    try:
        return cast(LogitEngine, open_engine(spec.engine, spec.options))
    except EngineError as error:
        raise EngineError(f"{spec.shown}: {error}") from error


def _values(spec: str, engine: str, settings: Iterable[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    taken = [key for key in _KEYS if engine in TAKEN_BY[key]]
    for setting in settings:
        key, equals, text = setting.partition("=")
        if key not in taken or not equals:
            raise RecallError(
                f"{spec!r}: {setting!r} is no setting of engine {engine!r}; give KEY=VALUE, KEY one of "
                f"{', '.join(taken)}"
            )
        if key in values:
            raise RecallError(f"{spec!r}: {key} is given twice; give it once")
        try:
            values[key] = _KEYS[key].read(text)
        except (KeyError, ValueError) as error:
            raise RecallError(f"{spec!r}: {key} has to be {_KEYS[key].wanted}, not {text!r}") from error
    return values


def _gives_logits(engine: str) -> bool:
    module, kind = ENGINES[engine]
    return hasattr(getattr(import_module(module), kind), "logits")


def _with_logits() -> list[str]:
    return [engine for engine in ENGINES if _gives_logits(engine)]


def _count(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 1024:
        raise ValueError
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number <= 1_000_000:  # neither is NaN
        raise ValueError
    return number


def _one_of(values: Iterable[str]) -> _Key:
    *others, last = values
    return _Key({value: value for value in [*others, last]}.__getitem__, f"{', '.join(others)} or {last}")


# Settings of TAKEN_BY that can change logits, or that an engine needs to give them.
_KEYS = {
    "dtype": _one_of(get_args(DType)),
    "device": _Key(str, "a device"),
    "mode": _one_of(get_args(Mode)),
    "sizes": _Key(_count, "a whole number from 1 to 1024"),
    "threads": _Key(_count, "a whole number from 1 to 1024"),
    "kv_type": _one_of(get_args(KVType)),
    "flash_attention": _Key({"yes": True, "no": False}.__getitem__, "yes or no"),
    "timeout": _Key(_seconds, "a number of seconds above 0"),
}
# Keys that LlamaCppOptions holds, and the names that it holds them by.
_OF_LLAMA_CPP = {"kv_type": "kv_type", "flash_attention": "flash_attention", "timeout": "timeout_s"}
