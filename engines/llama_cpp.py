"""llama.cpp as an engine: a llama-server of its own, in a process of its own, which is asked over HTTP on this machine.

It gets ids and returns ids, greedily, and reads every prompt from its first token on. A process that died or took too
long is one answer lost: the next prompt gets a new one.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from engines.errors import EngineError
from engines.fingerprint import fingerprint
from engines.fits import check_fits
from engines.gguf_file import INSTALL, read_gguf
from engines.protocol import Completion, EngineInfo, EngineOptions, OnRead, Request, ServerOptions
from engines.server import ServerEngine
from engines.server_http import Transport

_PROGRAM = Path(__file__).with_name("llama_cpp_process.py")
_READ, _SHOWN = 4096, 300  # bytes of llama.cpp's last words, and characters of them in an error
_STAMP = re.compile(r"^[\d.]+ E ")
# What a process holds that is started only to make ids; llama.cpp rounds any context up to this.
_SMALLEST_CONTEXT = 256


class LlamaCppEngine:
    """One GGUF file in one llama-server at a time."""

    def __init__(self, options: EngineOptions) -> None:
        """Look into the GGUF file `options.model`; llama.cpp is started for the first text or prompt.

        Raises:
            EngineError: when llama.cpp is not installed, cannot run the file, or lacks a setting.
        """
        if find_spec("xllamacpp") is None:
            raise EngineError("--engine llama.cpp needs the package xllamacpp, which is not installed: " + INSTALL)
        own = options.llama_cpp
        if own.kv_type == "q8_0" and not own.flash_attention:
            raise EngineError("--kv-type q8_0 works with --flash-attention only: llama.cpp quantizes no values without")
        self._file = read_gguf(Path(options.model))
        self._options = options
        self._threads = options.threads or os.cpu_count() or 1
        self._context = _SMALLEST_CONTEXT
        self._process: _Process | None = None

    @property
    def info(self) -> EngineInfo:
        """What this engine is; `dtype` is the number format of most weights."""
        own = self._options.llama_cpp
        return EngineInfo(
            engine="llama.cpp",
            model=self._options.model_name,
            dtype=self._file.file_type,
            device="cpu",
            settings={
                "kv_type": own.kv_type,
                "flash_attention": own.flash_attention,
                "threads": self._threads,
            },
            versions={"xllamacpp": version("xllamacpp")},
            window=self._file.sliding_window,
            fingerprint=self._fingerprint,
        )

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint(Path(self._options.model))

    def close(self) -> None:
        """End llama.cpp's process; the next request starts a new one."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def encode(self, text: str) -> list[int] | None:
        """Return the ids of a complete text, nothing added, as the GGUF file's own tokenizer makes them."""
        if self._process is not None:
            # A process that ends over a text loses no answer: a new one makes the same ids.
            with suppress(EngineError):
                return self._encode(text)
        return self._encode(text)

    def _encode(self, text: str) -> list[int] | None:
        with self._asking("a text", self._context) as process:
            return process.server.encode(text)

    def complete(self, request: Request, on_read: OnRead) -> Completion:
        """Send the ids and wait for the whole answer."""
        check_fits(request)
        with self._asking(f"prompt {request.prompt_id!r}", request.context) as process:
            completion = process.server.complete(request, on_read)
        trained = self._file.context_length
        if trained is not None and request.context > trained:
            longer = f"the context of {request.context} is longer than the {trained} tokens the model was trained for"
            return replace(completion, note=completion.note or longer)
        return completion

    def logits(self, ids: Sequence[int], last: int, context: int) -> NDArray[np.float32]:
        """Return log-probabilities after each of the last `last` ids, `[last, V]`: logits, each row shifted.

        llama-server tells what it thinks only of the token that comes next: the ids are sent once for each row, and
        all but the last one are in its cache from the time before. The whole vocabulary comes as JSON, 0.1 KB a token.
        """
        check_fits(Request("of a divergence", ids, 0, context))
        rows = np.full((last, self._file.vocabulary or 0), np.nan, dtype=np.float32)
        # One token more than asked for: llama-server wants room for an answer.
        with self._asking("a divergence", context + 1) as process:
            # It tells nothing of an end token, nor of a part of a character: the answer is always this.
            (*_, letter) = process.server.encode("a") or [0]
            for place, row in enumerate(rows):
                read = ids[: len(ids) - last + 1 + place]
                answer = process.transport.post("/completion", _next_token(read, letter, len(row), cached=place > 0))
                for token in answer["completion_probabilities"][0]["top_logprobs"]:
                    row[token["id"]] = token["logprob"]
        if np.isnan(rows).any():
            raise EngineError(f"llama.cpp gives no usable logits: check the weights of {self._options.model_name}")
        return rows

    @contextmanager
    def _asking(self, what: str, context: int) -> Iterator["_Process"]:
        """Give a process that holds `context` tokens; end it when it dies, or takes too long, over `what`."""
        if self._process is not None and (self._process.context != context or not self._process.alive):
            self.close()
        if self._process is None:
            self._context = context
            self._process = _Process(self._options, context, self._threads)
        process = self._process
        try:
            with process.limited():
                yield process
        except EngineError as error:
            why = process.why_lost() or str(error)
            self.close()
            raise EngineError(f"{what}: {why}") from error


def _next_token(ids: Sequence[int], answer: int, vocabulary: int, *, cached: bool) -> dict[str, object]:
    """Return what is asked for the log-probabilities of all tokens after `ids`; the answer itself is given."""
    return {
        "prompt": list(ids),
        "n_predict": 1,
        "temperature": 0,
        "samplers": ["temperature"],
        "logit_bias": [[answer, 1e3]],  # is seen by the choice, not by what is told of the model's logits
        "n_probs": vocabulary,
        "post_sampling_probs": False,
        "cache_prompt": cached,
        "stream": False,
    }


class _Process:
    """A llama-server in a process of its own, which ends with this object, or with the process that made it."""

    def __init__(self, options: EngineOptions, context: int, threads: int) -> None:
        """Start it and wait until the model is loaded.

        Raises:
            EngineError: when llama.cpp gives up, or takes too long.
        """
        own = options.llama_cpp
        self.context = context
        self._timeout_s = own.timeout_s
        self._late = False
        self._said = 0
        settings = {
            "model": str(options.model),
            "context": context,
            "threads": threads,
            "kv_type": own.kv_type,
            "flash_attention": own.flash_attention,
        }
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `end`)
        # -P: no module beside the program hides one of the same name.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self.end = weakref.finalize(self, _end, self._process, self._log)
        with self.limited():
            url = self._told()
        if not url:
            why = self.why_lost()
            self.end()
            raise EngineError(f"--model {options.model}: {why}")
        # No key of the user's is sent; nothing is asked twice: a second try would find the same process.
        reached = ServerOptions(url, "llama", timeout_s=2 * own.timeout_s, retries=0, key_env="")
        self.transport = Transport(reached)
        self.server = ServerEngine(replace(options, server=reached))

    @property
    def alive(self) -> bool:
        """Whether it can still be asked."""
        return self._process.poll() is None

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Kill the process when what is done here takes longer than one request may."""
        self._said = os.fstat(self._log.fileno()).st_size
        timer = threading.Timer(self._timeout_s, self._give_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def why_lost(self) -> str | None:
        """Return why it cannot be asked any more; None where it still can."""
        if self._late:
            return f"llama.cpp took longer than {self._timeout_s:g} s and was ended; give a larger --timeout"
        try:
            # A connection is lost a moment before its process is.
            code = self._process.wait(1)
        except subprocess.TimeoutExpired:
            return None
        # Where the trouble begins is named first. Reading must not move the offset, which the process writes at.
        said = os.pread(self._log.fileno(), _READ, self._said).decode(errors="replace").strip().splitlines()
        first = _STAMP.sub("", said[0])[:_SHOWN] if said else f"exit code {code}"
        return f"llama.cpp's process ended ({first}); the next prompt gets a new one"

    def _give_up(self) -> None:
        self._late = True
        self._process.kill()

    def _told(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode().strip()


def _end(process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    process.kill()  # there is nothing in it to save
    process.wait()
    for stream in (process.stdin, process.stdout, log):
        if stream is not None:
            stream.close()
