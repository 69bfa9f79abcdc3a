"""What a check says, ok, warning or problem with its mend, and the run that it is said about."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines import EngineOptions
from generators import Prompt
from recall.scoring import Run

if TYPE_CHECKING:
    from engines.gguf_file import GGUFFile


class Verdict(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    WARNING = "warning"  # the run can go on, and something about it is to be known
    PROBLEM = "problem"  # the run would fail, or its answers would be none to its prompts


@dataclass(frozen=True)
class Finding:
    """What one check found; `mend` is what to do about it, where `says` does not tell that already."""

    check: str
    verdict: Verdict
    says: str
    mend: str | None = None


@dataclass(frozen=True)
class IntendedRun:
    """A run before it is made: an engine, and the prompts, if a set was given."""

    engine: str
    options: EngineOptions
    prompts: Sequence[Prompt]
    run: Run
    output: Path | None

    @property
    def loads(self) -> bool:
        """Whether the engine loads a checkpoint with transformers."""
        return self.engine in ("ring", "hf")

    @cached_property
    def config(self) -> Any:
        """The configuration of the text model of an engine that `loads`; `EngineError` when there is none."""
        from engines.loading import load_config

        return load_config(self.options)

    @cached_property
    def gguf(self) -> "GGUFFile":
        """The header of llama.cpp's file; `EngineError` when it cannot be read."""
        from engines.gguf_file import read_gguf

        return read_gguf(Path(self.options.model))

    @cached_property
    def trained_context(self) -> int | None:
        """Tokens that the model was trained for; None where nothing tells."""
        if self.engine == "llama.cpp":
            return self.gguf.context_length
        trained: int | None = getattr(self.config, "max_position_embeddings", None) if self.loads else None
        return trained

    @cached_property
    def context(self) -> int | None:
        """The most tokens that the engine is to hold; None where neither a set nor --context says."""
        return max((self.run.request(prompt).context for prompt in self.prompts), default=self.run.context)

    @cached_property
    def longest(self) -> int | None:
        """Tokens of the longest prompt and its answer; None without a set."""
        return max(
            (prompt.prompt_tokens + self.run.request(prompt).max_new for prompt in self.prompts), default=self.context
        )

    @cached_property
    def shortest(self) -> Prompt | None:
        """The prompt with the fewest tokens; None without a set."""
        return min(self.prompts, key=lambda prompt: prompt.prompt_tokens, default=None)


def gigabytes(size: float) -> str:
    """Return bytes in words."""
    return f"{size / 1e9:,.2f} GB"
