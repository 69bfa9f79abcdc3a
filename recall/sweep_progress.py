"""Shows how far a sweep is, on standard error: tokens read, cells done, and the length x depth picture filling up."""

from collections.abc import Iterable, Sequence

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from generators import Prompt
from recall.grids import Grid, Share, grid
from recall.progress import ScoreProgress
from recall.results import ResultRow
from recall.sweeps import tokens_to_read


class SweepProgress(ScoreProgress):
    """A line an answer; in a terminal the picture over two bars stands below them."""

    unit = "cells"

    def __init__(
        self, prompts: Sequence[Prompt], left: Sequence[Prompt], done: Iterable[ResultRow], *, shared: bool
    ) -> None:
        """Show a sweep over `prompts`, of which `left` are still to do; `shared`: a seed's from one read."""
        super().__init__(prompts, left)
        self._bars.update(self._tokens, total=tokens_to_read(left, shared=shared))
        self._shared = shared
        self._rows = list(done)
        self._live = Live(console=self._console, get_renderable=self._drawn, refresh_per_second=4, transient=True)

    def prompt_ends(self, row: ResultRow) -> None:
        """Fill a cell of the picture."""
        self._rows.append(row)
        if self._shared:
            self._answered(row)
        else:
            super().prompt_ends(row)

    def _start(self) -> None:
        if self._console.is_terminal:
            self._live.start()

    def _stop(self) -> None:
        if self._console.is_terminal:
            self._live.stop()

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
