"""Shows how far a sweep is, on standard error: tokens read, cells done, and the length x depth picture filling up."""

from collections.abc import Iterable, Sequence
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from generators import Prompt
from generators.lines import shown
from recall.grids import Grid, Share, grid
from recall.results import ResultRow
from recall.sweeps import tokens_to_read


class SweepProgress:
    """In a terminal two bars and the picture; elsewhere a line an answer."""

    def __init__(
        self, prompts: Sequence[Prompt], left: Sequence[Prompt], done: Iterable[ResultRow], *, shared: bool
    ) -> None:
        """Show a sweep over `prompts`, of which `left` are still to do; `shared`: a seed's from one read."""
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._bars = Progress(
            TextColumn("{task.description:>7}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._rows = list(done)
        self._total = len(prompts)
        self._shared = shared
        self._read = 0
        self._tokens = self._bars.add_task("read", total=tokens_to_read(left, shared=shared), unit="tokens")
        self._cells = self._bars.add_task("answer", total=self._total, completed=self._total - len(left), unit="cells")
        self._live = Live(console=self._console, get_renderable=self._drawn, refresh_per_second=4, transient=True)

    def __enter__(self) -> "SweepProgress":
        """Draw the bars and the picture."""
        if self._rows:
            self._console.print(f"{len(self._rows)} of {self._total} cells have their row already")
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Leave the terminal as it was."""
        if self._console.is_terminal:
            self._live.stop()

    def prompt_begins(self, prompt: Prompt) -> None:
        """Note where the tokens of this prompt begin."""
        self._read = 0

    def tokens_read(self, count: int) -> None:
        """Move the bar of tokens on."""
        self._read += count
        self._bars.advance(self._tokens, count)

    def prompt_ends(self, row: ResultRow) -> None:
        """Fill a cell of the picture."""
        self._rows.append(row)
        if not self._shared:  # what an engine read without saying so
            self._bars.advance(self._tokens, row.prompt_tokens - self._read)
        self._bars.advance(self._cells)
        if not self._console.is_terminal:
            note = f"{row.status}: {shown(row.note or '', 1000)}"
            answer = f"{row.answer or '-'} {row.outcome}" if row.status == "ok" else note
            self._console.print(f"[{len(self._rows)}/{self._total}] {row.prompt_id}  {answer}", markup=False)

    def _drawn(self) -> Group:
        return Group(picture(grid(self._rows)), self._bars)


def picture(drawn: Grid) -> Table:
    """Return the length x depth picture as a table: found of answers a cell, and the margins with their intervals."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("depth", justify="right")
    for length in drawn.lengths:
        table.add_column(f"{length:,}", justify="right")
    table.add_column("all lengths", justify="right")
    for depth in drawn.depths:
        cells = [_cell(drawn.cells.get((length, depth))) for length in drawn.lengths]
        table.add_row(f"{depth:.0%}", *cells, _margin(drawn.by_depth[depth]))
    by_length = [_margin(drawn.by_length[length]) for length in drawn.lengths]
    table.add_row("all", *by_length, _margin(drawn.overall))
    return table


def _cell(share: Share | None) -> Text:
    if share is None or not share.n:
        return Text("-", style="dim")
    part = share.found / share.n
    style = "green" if part > 2 / 3 else "yellow" if part > 1 / 3 else "red"
    return Text(f"{share.found}/{share.n}", style=style)


def _margin(share: Share) -> Text:
    if share.interval is None:
        return Text("-", style="dim")
    low, high = share.interval
    return Text(f"{share.found}/{share.n} ({low:.0%} to {high:.0%})")
