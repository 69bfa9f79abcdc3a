"""The process that llama.cpp runs in: it starts llama-server from a wheel, tells its address, and ends with its parent.

llama.cpp aborts the process that it is in, and hung at exit in some runs: so it gets one of its own, which is killed.
Run as a file with the settings as one JSON object: `model`, `context`, `threads`, `kv_type`, `flash_attention`. The
address is the one line on standard output. Standard input is held open by the parent, and closes when it is gone,
however it went.
"""

import json
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

import xllamacpp

_ERRORS_ONLY = 1  # of llama.cpp's levels of verbosity


def _parameters(settings: Mapping[str, Any]) -> Any:
    """Return how llama-server is started: one request at a time, on the CPU, nothing kept from one to the next."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = settings["model"]
    parameters.n_ctx = settings["context"]
    parameters.fit_params = False  # else it may choose another context
    parameters.n_parallel = 1
    parameters.cpuparams.n_threads = settings["threads"]  # of a step
    parameters.cpuparams_batch.n_threads = settings["threads"]  # of reading
    parameters.n_gpu_layers = 0
    parameters.no_op_offload = True
    kv_type = xllamacpp.ggml_type[f"GGML_TYPE_{settings['kv_type'].upper()}"]
    parameters.cache_type_k = kv_type
    parameters.cache_type_v = kv_type
    flash = "ENABLED" if settings["flash_attention"] else "DISABLED"
    parameters.flash_attn_type = xllamacpp.llama_flash_attn_type[f"LLAMA_FLASH_ATTN_TYPE_{flash}"]
    parameters.swa_full = False  # sliding layers keep their window, not the whole context
    parameters.cache_prompt = False
    parameters.cache_idle_slots = False
    parameters.cache_ram_mib = 0
    parameters.n_ctx_checkpoints = 0
    parameters.ctx_shift = False
    parameters.ui = False
    parameters.verbosity = _ERRORS_ONLY
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0  # a free one
    return parameters


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    """Serve until the parent is gone."""
    address = os.dup(1)
    os.dup2(2, 1)  # whatever llama.cpp prints goes to standard error
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        server = xllamacpp.Server(_parameters(json.loads(sys.argv[1])))
    except RuntimeError:
        os._exit(1)  # llama.cpp has said why
    with os.fdopen(address, "w") as told:
        told.write(server.listening_address + "\n")
    threading.Event().wait()


if __name__ == "__main__":
    main()
