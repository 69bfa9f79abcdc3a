"""Draws the pictures of a report: what a colour tells is written beside it, and a name from a file is never markup."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from recall.comparison import PairSummary
from recall.grids import Grid, Share
from recall.overlaps import Overlap
from recall.report_text import percent, whole_percent

# What a page shows in the dark is the same picture with these colours exchanged; see recall/figures.py.
LIGHT = {"ink": "#1c2127", "muted": "#59636e", "line": "#9aa3ad", "grid": "#dfe3e8"}
DARK = {"ink": "#e6e9ec", "muted": "#a3adb8", "line": "#69737e", "grid": "#2b323a"}
SERIES_LIGHT = ["#0b62a4", "#b8430f", "#00755a", "#8a3d82", "#7a5b00", "#59526e"]
SERIES_DARK = ["#6db6f2", "#ff9a66", "#4fd1ad", "#df9ad6", "#e3c04d", "#b9b2d0"]
LIGHT |= {f"series-{number}": colour for number, colour in enumerate(SERIES_LIGHT, 1)}
DARK |= {f"series-{number}": colour for number, colour in enumerate(SERIES_DARK, 1)}

_STYLE = {
    "axes.edgecolor": LIGHT["line"],
    "axes.labelcolor": LIGHT["ink"],
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "svg.fonttype": "none",  # text stays text: it can be searched and read aloud
    "svg.hashsalt": "recall",
    "text.color": LIGHT["ink"],
    "text.parse_math": False,  # a name may hold a dollar sign
    "xtick.color": LIGHT["line"],
    "xtick.labelcolor": LIGHT["ink"],
    "ytick.color": LIGHT["line"],
    "ytick.labelcolor": LIGHT["ink"],
}

# From dark red to light green, lighter at every step: without red and green the lightness still tells the share.
SHARES = ["#7a0b1d", "#b93a2b", "#e08a3c", "#d9c765", "#9be3a6"]
# From violet (only the first) over grey to orange (only the second).
DIFFERENCES = ["#5a2a86", "#a78bc4", "#dcdcdc", "#f0b060", "#b35806"]

_CELL = (0.64, 0.46)  # inches: "32,704" fits above it, "11/33" into it
_LETTER = 0.085  # inches that a letter of a label takes
_NAME = 24  # letters of a name that a picture shows


@dataclass(frozen=True)
class Cell:
    """A cell of a picture: its place, its colour (None: there is nothing to tell), and the two lines written in it."""

    column: int
    row: int
    fill: str | None
    text: str
    small: str


def heatmap(drawn: Grid) -> Figure:
    """Draw the share found by length (across) and depth (down), with found / answers in each cell."""
    cells = [
        _share_cell(column, row, drawn.cells.get((length, depth)))
        for column, length in enumerate(drawn.lengths)
        for row, depth in enumerate(drawn.depths)
    ]
    return _cells(*_axes_of(drawn.lengths, drawn.depths), cells, ("length in tokens", "depth of the asked record"))


def difference_map(overlaps: Mapping[tuple[int, float], Overlap]) -> Figure:
    """Draw by length and depth how much more often the second engine finds the record, in points of a percent."""
    lengths = sorted({length for length, _ in overlaps})
    depths = sorted({depth for _, depth in overlaps})
    cells = []
    for column, length in enumerate(lengths):
        for row, depth in enumerate(depths):
            overlap = overlaps.get((length, depth))
            if overlap is None or not overlap.n:
                cells.append(Cell(column, row, None, "-", ""))
                continue
            points = round(100 * overlap.difference)
            fill = between(DIFFERENCES, (1 + overlap.difference) / 2) if points else None
            small = f"{overlap.only_a} : {overlap.only_b}"
            cells.append(Cell(column, row, fill, f"{points:+}" if points else "0", small))
    return _cells(*_axes_of(lengths, depths), cells, ("length in tokens", "depth of the asked record"))


def agreement_matrix(names: Sequence[str], pairs: Sequence[PairSummary]) -> Figure:
    """Draw how often each two engines give the same answer, right or wrong."""
    places = {name: number for number, name in enumerate(names)}
    cells = [Cell(place, place, None, "", "") for place in places.values()]
    for pair in pairs:
        a, b = places[pair.a], places[pair.b]
        for column, row in ((a, b), (b, a)):
            if pair.agreement is None:
                cells.append(Cell(column, row, None, "-", "none"))
            else:
                text, small = whole_percent(pair.same, pair.n), f"{pair.same}/{pair.n}"
                cells.append(Cell(column, row, between(SHARES, pair.agreement), text, small))
    columns = [str(place + 1) for place in places.values()]
    rows = [f"{place + 1} {short(name)}" for name, place in places.items()]
    return _cells(columns, rows, cells, ("same answer as engine", ""))


def recall_by_length(grids: Mapping[str, Grid]) -> Figure:
    """Draw the share found over all depths by length, a line an engine, with its 95% intervals counted by seeds."""
    lengths = sorted({length for drawn in grids.values() for length in drawn.lengths})
    with styled():
        figure = Figure(figsize=(max(4.4, 1.4 + 0.7 * len(lengths)), 3.1 + 0.2 * len(grids)), layout="constrained")
        axes = figure.add_subplot()
        handles = []
        looks = zip(cycle(SERIES_LIGHT), cycle("os^DvPX"), cycle(["-", "--", "-.", ":"]), strict=False)
        for number, (drawn, (colour, marker, line)) in enumerate(zip(grids.values(), looks, strict=False)):
            # Side by side: intervals of engines that find equally often would hide each other.
            aside = (number - (len(grids) - 1) / 2) * min(0.1, 0.5 / len(grids))
            points = [(lengths.index(length) + aside, share) for length, share in drawn.by_length.items() if share.n]
            look = {"color": colour, "marker": marker, "linestyle": line, "markersize": 5, "linewidth": 1.5}
            handles.append(Line2D([], [], **look))  # type: ignore[arg-type]  # one type for all values
            axes.plot([x for x, _ in points], [share.found / share.n for _, share in points], **look)  # type: ignore[arg-type]
            for x, share in points:
                assert share.interval is not None
                axes.plot([x, x], share.interval, color=colour, linewidth=1.2, marker="_", markersize=5)
        axes.set_xticks(range(len(lengths)), [f"{length:,}" for length in lengths])
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
        axes.set_xlim(-0.4, len(lengths) - 0.6)
        axes.set_ylim(-0.03, 1.03)
        axes.set_xlabel("length in tokens")
        axes.set_ylabel("found")
        axes.grid(axis="y", color=LIGHT["grid"], linewidth=0.8)
        axes.set_axisbelow(True)
        labels = [short(name) for name in grids]
        figure.legend(handles, labels, loc="outside upper left", frameon=False, handlelength=3)
    return figure


@contextmanager
def styled() -> Iterator[None]:
    """Draw in our own style whatever the user's settings are; letters that the font lacks are the reader's to show."""
    with style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")
        yield


def between(colours: Sequence[str], share: float) -> str:
    """Return the colour at a share, 0 to 1, of the way through `colours`."""
    place = min(max(share, 0), 1) * (len(colours) - 1)
    step = min(int(place), len(colours) - 2)
    low, high = (_channels(colour) for colour in colours[step : step + 2])
    mixed = [a + (b - a) * (place - step) for a, b in zip(low, high, strict=True)]
    return "#" + "".join(f"{round(channel):02x}" for channel in mixed)


def ink_on(fill: str) -> str:
    """Return black or white, whichever is read more easily on a colour."""
    return max(("#000000", "#ffffff"), key=lambda ink: contrast(ink, fill))


def contrast(a: str, b: str) -> float:
    """Return the contrast of two colours, 1 to 21.

    Source: Web Content Accessibility Guidelines 2.2, relative luminance and contrast ratio.
    """
    dark, light = sorted(map(_luminance, (a, b)))
    return (light + 0.05) / (dark + 0.05)


def short(name: str) -> str:
    """Return a name as a picture shows it: no longer than fits, and without what XML cannot hold."""
    plain = "".join(letter if letter.isprintable() else "\ufffd" for letter in name)
    return plain if len(plain) <= _NAME else f"{plain[: _NAME - 1]}…"


def _axes_of(lengths: Sequence[int], depths: Sequence[float]) -> tuple[list[str], list[str]]:
    return [f"{length:,}" for length in lengths], [f"{100 * depth:g}%" for depth in depths]


def _share_cell(column: int, row: int, share: Share | None) -> Cell:
    if share is None or not share.n:
        return Cell(column, row, None, "-", "")
    part = share.found / share.n
    return Cell(column, row, between(SHARES, part), percent(share), f"{share.found}/{share.n}")


def _cells(columns: Sequence[str], rows: Sequence[str], cells: Sequence[Cell], labels: tuple[str, str]) -> Figure:
    """Draw cells in a table, the first row on top, with the names of the columns above it."""
    width, height = _CELL
    left = _LETTER * max(map(len, rows)) + (0.35 if labels[1] else 0.15)
    size = (left + width * len(columns) + 0.1, 0.6 + height * len(rows))
    with styled():
        figure = Figure(figsize=(max(size[0], left + 1.75), size[1]))
        axes = figure.add_axes((left / figure.get_figwidth(), 0.06 / size[1], 0, 0))
        axes.set_position(
            (
                left / figure.get_figwidth(),
                0.06 / size[1],
                width * len(columns) / figure.get_figwidth(),
                height * len(rows) / size[1],
            )
        )
        axes.set_xlim(0, len(columns))
        axes.set_ylim(len(rows), 0)
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        axes.set_xticks([place + 0.5 for place in range(len(columns))], columns)
        axes.set_yticks([place + 0.5 for place in range(len(rows))], rows)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_xlabel(labels[0], loc="left")
        axes.set_ylabel(labels[1])
        for cell in cells:
            _draw(axes, cell)
    return figure


def _draw(axes: Axes, cell: Cell) -> None:
    x, y, gap = cell.column + 0.5, cell.row + 0.5, 0.03
    square = Rectangle((cell.column + gap, cell.row + gap), 1 - 2 * gap, 1 - 2 * gap, linewidth=0)
    if cell.fill is None:
        square.set(facecolor="none", edgecolor=LIGHT["line"], linewidth=0.8, linestyle=(0, (2, 2)))
        ink = LIGHT["muted"]
    else:
        square.set_facecolor(cell.fill)
        ink = ink_on(cell.fill)
    axes.add_patch(square)
    if cell.small:
        axes.text(x, y - 0.16, cell.text, ha="center", va="center", color=ink, fontsize=10)
        axes.text(x, y + 0.24, cell.small, ha="center", va="center", color=ink, fontsize=8)
    else:
        axes.text(x, y, cell.text, ha="center", va="center", color=ink, fontsize=10)


def _channels(colour: str) -> list[int]:
    return [int(colour[place : place + 2], 16) for place in (1, 3, 5)]


def _luminance(colour: str) -> float:
    parts = [channel / 255 for channel in _channels(colour)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
