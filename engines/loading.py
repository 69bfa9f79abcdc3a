"""Loads a model and its tokenizer with transformers, and knows how its answers end. Shared by `ring` and `hf`."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.utils.hub import cached_file

from engines.checkpoint import open_checkpoint
from engines.devices import DTYPES, attention, check_device
from engines.errors import EngineError
from engines.fingerprint import fingerprint
from engines.fits import check_fits
from engines.protocol import EngineInfo, EngineOptions, Setting

__all__ = ["LoadedModel", "check_fits", "load_config"]


def load_config(options: EngineOptions) -> Any:
    """Return the configuration of the text model, without loading weights."""
    try:
        config: Any = transformers.AutoConfig.from_pretrained(
            str(options.model), trust_remote_code=options.trust_remote_code
        )
    except Exception as error:  # of every kind: whatever transformers stumbles over in a damaged folder
        raise _cannot_load(options, error) from error
    return config.get_text_config()


class LoadedModel:
    """A causal language model in evaluation mode, on its device, with its tokenizer and end tokens."""

    def __init__(self, options: EngineOptions) -> None:
        """Load `options.model`.

        Raises:
            EngineError: when it cannot be loaded whole, or the device is not there.
        """
        check_device(options)
        if options.threads:
            torch.set_num_threads(options.threads)
        # Its bars would be drawn into ours.
        transformers.utils.logging.disable_progress_bar()
        try:
            self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
                str(options.model), trust_remote_code=options.trust_remote_code
            )
            self.model = open_checkpoint(options, DTYPES[options.dtype], attention(options))
        except EngineError:
            raise
        except Exception as error:
            raise _cannot_load(options, error) from error
        self.device = torch.device(options.device)
        self.end_ids = self._read_end_ids()
        self._options = options

    def info(self, engine: str, settings: dict[str, Setting]) -> EngineInfo:
        """Say what answers under the name `engine`, with the engine's own settings."""
        return EngineInfo(
            engine=engine,
            model=self._options.model_name,
            dtype=self._options.dtype,
            device=self._options.device,
            settings=settings,
            versions={"torch": torch.__version__, "transformers": transformers.__version__},
            window=_window(self.model.config.get_text_config()),
            fingerprint=self._fingerprint,
        )

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint(Path(cached_file(str(self._options.model), "config.json")).parent)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a complete text; nothing is added to it."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False, verbose=False)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of a reply without its end token; other special tokens stay: thinking marks are some."""
        text: str = self.tokenizer.decode([number for number in ids if number not in self.end_ids])
        return text

    def ends(self, reply: Sequence[int], stop: str | None) -> bool:
        """Return whether a reply is over: its last id is an end token, or its text holds `stop`."""
        return reply[-1] in self.end_ids or (stop is not None and stop in self.decode(reply))

    def _read_end_ids(self) -> frozenset[int]:
        ends = self.model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        return frozenset(end for end in [*ends, self.tokenizer.eos_token_id] if end is not None)


def _window(config: Any) -> int | None:
    window: int | None = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"]
    return window if getattr(config, "use_sliding_window", True) and "sliding_attention" in kinds else None


def _cannot_load(options: EngineOptions, error: Exception) -> EngineError:
    if "trust_remote_code" in str(error):  # transformers names its own argument
        return EngineError(
            f"--model {options.model_name!r} brings Python code of its own, which is not run unasked; read it, then "
            "give --trust-remote-code to `recall score` or `recall sweep`"
        )
    lines = str(error).strip().splitlines() or [type(error).__name__]
    where = "" if Path(options.model).exists() else ", which is no local folder"
    return EngineError(
        f"--model {options.model_name!r}{where}: transformers cannot load it ({lines[0]}); give `demo`, a folder "
        "with config.json, tokenizer.json and safetensors, or a hub name"
    )
