"""Looks whether what a run needs is there: packages in versions that work, the device, the model's description."""

import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, version
from typing import TYPE_CHECKING

from recall import __version__
from recall.checkups.findings import Finding, IntendedRun, Verdict

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

# What each engine imports; what this project asks of their versions is in its own metadata.
_IMPORTED = {
    "ring": ["torch", "transformers"],
    "hf": ["torch", "transformers"],
    "llama.cpp": ["xllamacpp", "gguf"],
    "server": ["httpx"],
}
_EXTRAS = ("", "llama-cpp", "tpu")


def check_versions(intended: IntendedRun) -> Iterator[Finding]:
    """Find packages that are missing, or not of a version that this project asks for."""
    from packaging.specifiers import SpecifierSet

    python, wanted = _wanted()
    fine = [f"recall {__version__}"]
    if SpecifierSet(python).contains(platform.python_version(), prereleases=True):
        fine.insert(0, f"python {platform.python_version()}")
    else:
        says = f"python {platform.python_version()} is not {python}"
        yield Finding("versions", Verdict.PROBLEM, says, f"make the environment with python {python}")
    for name in _imported(intended):
        specifier = wanted.get(name, SpecifierSet())
        install = f"pip install '{name}{specifier}'"
        try:
            there = version(name)
        except PackageNotFoundError:
            yield Finding("versions", Verdict.PROBLEM, f"{name} is not installed", install)
            continue
        if specifier.contains(there, prereleases=True):
            fine.append(f"{name} {there}")
        else:
            yield Finding("versions", Verdict.PROBLEM, f"{name} {there} is not {specifier}", install)
    yield Finding("versions", Verdict.OK, ", ".join(fine))


def check_device(intended: IntendedRun) -> Iterator[Finding]:
    """Find a device that is not there, and more threads than cores.

    Raises:
        EngineError: when it is not there, or does not know the mode.
    """
    if intended.loads:
        from engines import devices

        devices.check_device(intended.options)
    elif intended.engine != "llama.cpp":
        return
    kind = intended.options.device
    cores, threads = len(os.sched_getaffinity(0)), intended.options.threads
    if kind == "cpu" and threads and threads > cores:
        yield Finding(
            "device", Verdict.WARNING, f"{threads} threads on {cores} cores wait for each other", f"--threads {cores}"
        )
        return
    yield Finding("device", Verdict.OK, f"{kind}, {cores} cores" if kind == "cpu" else f"{kind} is there")


def check_model(intended: IntendedRun) -> Iterator[Finding]:
    """Read what the model says of itself.

    Raises:
        EngineError: when there is no such model, or its description cannot be read.
    """
    if intended.engine == "llama.cpp":
        file = intended.gguf
        yield Finding("model", Verdict.OK, f"{file.architecture}, {file.file_type or 'of a format it does not name'}")
    elif intended.loads:
        config = intended.config
        yield Finding("model", Verdict.OK, f"{config.model_type}, {config.num_hidden_layers} layers")


def _imported(intended: IntendedRun) -> list[str]:
    names = list(_IMPORTED.get(intended.engine, []))
    if intended.engine == "server" and intended.options.server and intended.options.server.tokenizer:
        names.append("transformers")
    if intended.loads and intended.options.device.startswith("tpu"):
        names.append("torch-tpu")
    return names


def _wanted() -> tuple[str, "dict[str, SpecifierSet]"]:
    """Return what the installed project asks of Python, and of every package that an engine imports."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    try:
        own = distribution("recall")
    except PackageNotFoundError:
        return "", {}
    wanted: dict[str, SpecifierSet] = {}
    for text in own.requires or []:
        asked = Requirement(text)
        if asked.marker is None or any(asked.marker.evaluate({"extra": extra}) for extra in _EXTRAS):
            wanted[asked.name] = wanted.get(asked.name, SpecifierSet()) & asked.specifier
    return own.metadata["Requires-Python"] or "", wanted
