"""Runs the real torch_tpu on a machine without a TPU: its device `tpu` is a CPU plugin for PJRT.

torch_tpu loads the library that `TPU_LIBRARY_PATH` names. Here that is a shim around a CPU plugin from PyPI, built from
`pjrt_shim.c`. A process takes part by being started with `environment()` and calling `start()` first.
"""

import atexit
import os
import shutil
import subprocess
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from engines.errors import EngineError

INSTALL = "pip install 'recall[plan]'"


def environment() -> dict[str, str]:
    """Return the environment, this process's own with a few variables more, for a process that calls `start`.

    Raises:
        EngineError: naming the package, or the C compiler, that is not there.
    """
    package("torch_tpu")
    plugin = package("lammps_jax_pjrt_cpu") / "pjrt_c_api_cpu_plugin.so"
    return {
        **os.environ,
        "PJRT_PLUGIN": str(plugin),
        "TPU_LIBRARY_PATH": str(_shim()),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "1",
        "PYTHONWARNINGS": "ignore",  # torch_tpu's, of a slow allocator, says nothing without a TPU
    }


def start() -> None:
    """Start the device `tpu`, which torch_tpu does by itself only where it finds a TPU on the PCI bus."""
    from torch_tpu import _loader

    _loader._init_device("tpu")


def package(name: str) -> Path:
    """Return the folder of an installed package, without importing it.

    Raises:
        EngineError: when it is not installed.
    """
    found = find_spec(name)
    if found is None or found.origin is None:
        raise EngineError(f"the package {name} is not installed: {INSTALL}")
    return Path(found.origin).parent


@cache
def _shim() -> Path:
    """Build the shim into a folder that lasts as long as this process."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise EngineError("no C compiler is there, which a TPU's stand-in needs: install gcc, or name yours in CC")
    folder = Path(tempfile.mkdtemp(prefix="recall-pjrt-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source, built = Path(__file__).with_name("pjrt_shim.c"), folder / "pjrt_shim.so"
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", built, source, "-ldl"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise EngineError(f"{compiler} cannot build {source.name}: {done.stderr.strip()}; name another one in CC")
    return built
