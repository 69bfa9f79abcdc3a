"""Engines: each reads a prompt's ids and decodes greedily behind one small protocol.

A new engine is one file with one class that takes `EngineOptions`, and one line in the table below.
"""

from importlib import import_module

from engines.errors import EngineError
from engines.protocol import Completion, DType, Engine, EngineInfo, EngineOptions, Request

__all__ = [
    "ENGINES",
    "Completion",
    "DType",
    "Engine",
    "EngineError",
    "EngineInfo",
    "EngineOptions",
    "Request",
    "open_engine",
]

# Name on the command line: module, class. Modules are imported when an engine is opened: most import torch.
ENGINES = {
    "ring": ("engines.ring", "RingEngine"),
    "hf": ("engines.hf", "HfEngine"),
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
