"""Shows how far a scoring run is, on standard error: a bar of tokens read, a bar of prompts, a line an answer."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from generators import Prompt
from generators.lines import shown
from recall.results import ResultRow


class ScoreProgress:
    """Two bars in a terminal; elsewhere only the line an answer."""

    unit = "prompts"

    def __init__(self, prompts: Sequence[Prompt], left: Sequence[Prompt]) -> None:
        """Show a run over `prompts`, of which `left` are still to do."""
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._bars = Progress(
            TextColumn("{task.description:>7}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._total = len(prompts)
        self._done = len(prompts) - len(left)
        self._read = 0
        self._tokens = self._bars.add_task("read", total=sum(prompt.prompt_tokens for prompt in left), unit="tokens")
        self._prompts = self._bars.add_task("answer", total=self._total, completed=self._done, unit=self.unit)

    def __enter__(self) -> Self:
        """Draw the bars."""
        if self._done:
            self._console.print(f"{self._done} of {self._total} {self.unit} have their row already")
        self._start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Leave the terminal as it was."""
        self._stop()

    def prompt_begins(self, prompt: Prompt) -> None:
        """Note where the tokens of this prompt begin."""
        self._read = 0

    def tokens_read(self, count: int) -> None:
        """Move the bar of tokens on."""
        self._read += count
        self._bars.advance(self._tokens, count)

    def prompt_ends(self, row: ResultRow) -> None:
        """Count an answer and what an engine read for it without saying so; write its line."""
        self._bars.advance(self._tokens, row.prompt_tokens - self._read)
        self._answered(row)

    def _start(self) -> None:
        self._bars.start()

    def _stop(self) -> None:
        self._bars.stop()

    def _answered(self, row: ResultRow) -> None:
        self._bars.advance(self._prompts)
        self._done += 1
        note = f"{row.status}: {shown(row.note or '', 1000)}"
        answer = f"{row.answer or '-'} {row.outcome}" if row.status == "ok" else note
        self._console.print(
            f"[{self._done}/{self._total}] {row.prompt_id}  {row.prompt_tokens} tokens  {answer}", markup=False
        )
