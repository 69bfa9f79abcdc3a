"""Makes the report of some runs: one page that needs nothing else, the same for the same rows, and its figures.

Every string of a row or a file's name is data: the template escapes it, and figures draw it as text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from recall import plots, report_tables, report_text
from recall.comparison import Comparison, compare_runs
from recall.errors import RecallError
from recall.figures import inline_svg, write_figure, write_whole
from recall.grids import Grid, Share, clustered_share, grid, share
from recall.overlaps import Overlap, overlaps
from recall.results import ResultRow
from recall.wrong_answers import WORDS, WrongAnswer

GENERATOR = '<meta name="generator" content="recall report">'
_MIB = 2**20


@dataclass(frozen=True)
class Picture:
    """A figure, its file's name, and what it shows in words."""

    name: str
    title: str
    description: str
    figure: Figure

    def svg(self) -> Markup:
        """Return it as an element of the page."""
        return inline_svg(self.figure, self.name, self.title, self.description)


@dataclass(frozen=True)
class Engine:
    """A run as the page shows it: what it found by length and depth, and drawn, or row by row where none tells both."""

    name: str
    key: str
    rows: Sequence[ResultRow]
    found: Share
    drawn: Grid
    picture: Picture | None
    wrong: list[tuple[ResultRow, WrongAnswer]]


@dataclass(frozen=True)
class Apart:
    """Two runs over the same lengths and depths, and where only one of them finds the record."""

    a: str
    b: str
    overlaps: Mapping[tuple[int, float], Overlap]
    lengths: list[int]
    depths: list[float]
    picture: Picture


@dataclass(frozen=True)
class Report:
    """The page as HTML, and its figures in order."""

    page: str
    pictures: list[Picture]

    def write(self, output: Path, folder: Path | None) -> None:
        """Write the page, and each figure as PNG and SVG into a folder; an earlier report is replaced.

        Raises:
            RecallError: when that cannot be done, or `output` is a file that is no report.
        """
        if output.exists() and not _is_report(output):
            raise RecallError(f"{output} is there already and is no report: remove it, or give another -o")
        if folder is not None:
            for picture in self.pictures:
                write_figure(picture.figure, folder, picture.name)
        try:
            # A name of a file may hold what UTF-8 cannot.
            write_whole(output, self.page.encode("utf-8", "replace"))
        except OSError as error:
            raise RecallError(f"{output}: cannot be written ({error.strerror}); give another -o") from error


def make_report(runs: Mapping[str, Sequence[ResultRow]]) -> Report:
    """Return the report of runs by name, the first one in question.

    Raises:
        RecallError: when two runs answer different prompts under one id.
    """
    comparison = compare_runs(runs)
    engines = [_engine(number, comparison, rows) for number, rows in enumerate(runs.values(), 1)]
    curves = _curves(engines)
    apart = [_apart(number, engines[0], other) for number, other in enumerate(engines[1:], 2)]
    differing = [pair for pair in apart if pair is not None]
    matrix = _matrix(comparison)
    pictures = [curves, *(engine.picture for engine in engines), *(pair.picture for pair in differing), matrix]
    page = (
        _environment()
        .get_template("report.html.j2")
        .render(
            verdict=report_text.verdict(comparison, engines[0].found),
            comparison=comparison,
            engines=engines,
            curves=curves,
            differing=differing,
            matrix=matrix,
            words=WORDS,
        )
    )
    return Report(page, [picture for picture in pictures if picture is not None])


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("recall"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals |= {"light": plots.LIGHT, "dark": plots.DARK, "generator": Markup(GENERATOR)}
    environment.globals |= {
        function.__name__: function
        for function in (
            report_tables.fingerprint,
            report_tables.remarks,
            report_tables.setup,
            report_tables.speeds,
            report_tables.strip,
            report_text.totals,
        )
    }
    environment.filters |= {
        "interval": report_text.interval,
        "mebibytes": lambda size: "-" if size is None else f"{size / _MIB:,.1f}",
        "number": lambda value, digits=0: "-" if value is None else f"{value:,.{digits}f}",
        "percent": report_text.percent,
        "prompts": report_text.prompts,
        "shortened": report_tables.shortened,
        "significant": lambda value: "-" if value is None else f"{value:.2g}",
    }
    return environment


def _engine(number: int, comparison: Comparison, rows: Sequence[ResultRow]) -> Engine:
    summary = comparison.runs[number - 1]
    # Where every row tells its seed, answers of one seed may depend on each other.
    seeded = all(row.seed is not None for row in rows)
    drawn = grid(rows)
    picture = None
    if drawn.lengths:
        title = f"Found by {summary.name}, by length and depth"
        picture = Picture(f"heatmap-{number}", title, report_text.of_grid(drawn), plots.heatmap(drawn))
    by_prompt = {row.prompt_id: row for row in rows}
    return Engine(
        name=summary.name,
        key=f"engine-{number}",
        rows=rows,
        found=clustered_share(rows) if seeded else share(rows),
        drawn=drawn,
        picture=picture,
        wrong=[(by_prompt[wrong.prompt_id], wrong) for wrong in summary.wrong_answers.answers],
    )


def _curves(engines: Sequence[Engine]) -> Picture | None:
    grids = {engine.name: engine.drawn for engine in engines if engine.drawn.lengths}
    if not grids:
        return None
    figure = plots.recall_by_length(grids)
    return Picture("recall-by-length", "Share found by length", report_text.of_curves(grids), figure)


def _apart(number: int, first: Engine, other: Engine) -> Apart | None:
    found = overlaps(first.rows, other.rows)
    if not found:
        return None
    title = f"Where {first.name} and {other.name} find differently often"
    words = report_text.of_overlaps(first.name, other.name, found)
    picture = Picture(f"difference-1-{number}", title, words, plots.difference_map(found))
    lengths, depths = sorted({length for length, _ in found}), sorted({depth for _, depth in found})
    return Apart(first.name, other.name, found, lengths, depths, picture)


def _matrix(comparison: Comparison) -> Picture | None:
    names = [run.name for run in comparison.runs]
    names += [name for name in comparison.references if name not in names]
    if len(names) < 2:
        return None
    figure = plots.agreement_matrix(names, comparison.pairs)
    return Picture("agreement", "How often two engines answer alike", report_text.of_pairs(comparison), figure)


def _is_report(path: Path) -> bool:
    try:
        with path.open("rb") as opened:
            return GENERATOR.encode() in opened.read(1000)
    except OSError:
        return False
