"""Engines: each reads a prompt's ids and decodes greedily behind one small protocol.

A new engine is one file with one class that takes `EngineOptions`, and one line in the table below.
"""

from importlib import import_module

from engines.errors import EngineError
from engines.protocol import (
    Choice,
    Completion,
    DType,
    Engine,
    EngineInfo,
    EngineOptions,
    LlamaCppOptions,
    LogitEngine,
    Request,
    ServerOptions,
    SharingEngine,
)

__all__ = [
    "ENGINES",
    "Choice",
    "Completion",
    "DType",
    "Engine",
    "EngineError",
    "EngineInfo",
    "EngineOptions",
    "LlamaCppOptions",
    "LogitEngine",
    "Request",
    "ServerOptions",
    "SharingEngine",
    "open_engine",
    "sharing",
]

# Name on the command line: module, class. Modules are imported when an engine is opened: most import torch.
ENGINES = {
    "ring": ("engines.ring", "RingEngine"),
    "hf": ("engines.hf", "HfEngine"),
    "llama.cpp": ("engines.llama_cpp", "LlamaCppEngine"),
    "server": ("engines.server", "ServerEngine"),
    "recorded": ("engines.recorded", "RecordedEngine"),
    "oracle": ("engines.scripted", "OracleEngine"),
    "first-record": ("engines.scripted", "FirstRecordEngine"),
}


def open_engine(name: str, options: EngineOptions) -> Engine:
    """Open the engine `name`.

    Raises:
        EngineError: for an unknown name, a model it cannot load, or an option it cannot serve.
    """
    if name not in ENGINES:
        raise EngineError(f"--engine {name!r} is unknown: give one of {', '.join(ENGINES)}")
    module, kind = ENGINES[name]
    engine: Engine = getattr(import_module(module), kind)(options)
    return engine


def sharing(engine: Engine, batch: int | None) -> SharingEngine | None:
    """Return what answers prompts that begin alike from one read with `engine`; None when it reads each by itself.

    Args:
        engine: an open engine.
        batch: questions answered side by side; 1 gives the very logits that each prompt has alone; None: as many as
            the engine's mode allows.

    Raises:
        EngineError: for a batch that the engine's mode cannot serve.
    """
    if engine.info.engine != "ring":
        return None
    from engines.ring import RingEngine
    from engines.shared_read import SharedRead

    assert isinstance(engine, RingEngine)
    return SharedRead(engine, batch)
