"""A report says what its rows say, is the same for the same rows, and writes only where it was told to."""

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from recall import plots
from recall.figures import inline_svg
from recall.grids import grid
from recall.overlaps import Overlap, overlaps
from recall.report import make_report
from recall.report_tables import Remark, Strip, fingerprint, remarks, setup, shortened, speeds, strip
from recall.report_text import whole_percent
from recall.results import ResultRow
from tests.conftest import Ended, run_recall
from tests.made_rows import OTHER, RIGHT, failed_row, made_row, write
from tests.report_rows import report_runs, sweep_rows

SVG = "{http://www.w3.org/2000/svg}"
PICTURES = ["agreement", "difference-1-2", "difference-1-3", "heatmap-1", "heatmap-2", "heatmap-3", "recall-by-length"]


def _placed(*found: bool, **fields: Any) -> list[ResultRow]:
    """Return a row for each answer, at two lengths, one depth and as many seeds as it takes."""
    rows = []
    for number, right in enumerate(found):
        place: dict[str, Any] = {"budget": 4096 if number % 2 else 8192, "depth": 0.5, "seed": number // 2}
        rows.append(made_row(f"p{number}", RIGHT if right else OTHER, **place, **fields))
    return rows


def _report(*arguments: object) -> Ended:
    ended = run_recall("report", *arguments)
    assert ended.code == 0, ended.err
    return ended


def _words(page: str) -> str:
    """Return a page with every space, or several, as one."""
    return " ".join(page.split())


def test_the_verdict_names_shares_intervals_agreement_and_what_is_left_out() -> None:
    ring = [*_placed(True, True, True, False), failed_row("p9")]
    hf = _placed(True, False, True, False)
    page = make_report({"ring": ring, "hf": hf, "third": ring}).page
    assert "ring finds 3 of 4 records (75%, 30% to 95%); it and hf give the same answer on 3 of 4 prompts, " in page
    assert "it and third on 4 of 4 prompts. 1 of 5 prompts got no valid answer and is left out.</p>" in page


def test_the_interval_of_the_verdict_counts_by_seeds_where_rows_tell_them() -> None:
    rows = _placed(True, True, False, False)  # of two seeds, each with two answers alike
    assert "ring finds 2 of 4 records (50%, 9% to 91%)." in make_report({"ring": rows}).page
    alone = [row.model_copy(update={"seed": None}) for row in rows]
    assert "ring finds 2 of 4 records (50%, 15% to 85%)." in make_report({"ring": alone}).page


def test_a_whole_percent_says_none_and_all_only_where_it_is_so() -> None:
    shares = [whole_percent(part, 1000) for part in (0, 1, 500, 999, 1000)]
    assert shares == ["0%", "1%", "50%", "99%", "100%"]


def test_the_verdict_on_a_run_without_a_valid_answer_claims_no_share() -> None:
    page = make_report({"ring": [failed_row("p1"), failed_row("p2")]}).page
    assert "ring gives no valid answer to any of 2 prompts.</p>" in page
    assert "nan" not in page


def test_the_verdict_says_when_rounding_does_not_explain_a_difference(tmp_path: Path) -> None:
    _report(*report_runs(tmp_path), "-o", tmp_path / "report.html")
    page = _words((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "Rounding does not explain why it and hf differ on 1 prompt." in page
    assert page.count('class="tag tie"') == page.count('class="tag defect"') == 1


def test_rows_that_tell_no_depth_are_shown_one_by_one(tmp_path: Path) -> None:
    _report("laptop", "tpu-v5e-ring", "-o", tmp_path / "report.html", "--plots", tmp_path / "plots")
    page = _words((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "laptop finds 3 of 5 records (60%, 23% to 88%); it and tpu-v5e-ring give the same answer on 5 of 5" in page
    told = "<td>32,761</td><td>1,091</td><td>272</td>"
    assert f'laptop-33024-3</th>{told}<td class="data">713468</td><td class="data">319550</td><td>723</td>' in page
    assert {file.name for file in (tmp_path / "plots").iterdir()} == {"agreement.png", "agreement.svg"}


def test_a_run_is_laid_beside_the_references_in_its_rows() -> None:
    told = {"agreement": {"laptop": {"answer": OTHER, "outcome": "other-record", "same": False}}}
    row = ResultRow.model_validate(made_row().model_dump() | told, strict=False)
    page = make_report({"ring": [row]}).page
    assert "it and laptop give the same answer on 0 of 1 prompts" in page
    assert "2 laptop</text>" in page


def test_one_run_alone_makes_a_report_without_agreement() -> None:
    report = make_report({"ring": _placed(True, False)})
    assert [picture.name for picture in report.pictures] == ["recall-by-length", "heatmap-1"]
    assert 'id="agreement"' not in report.page


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    files = report_runs(tmp_path)
    for seed in "12":
        command = [sys.executable, "-m", "recall", "report", *map(str, files), "-o", f"{seed}.html", "--plots", seed]
        environment = os.environ | {"PYTHONHASHSEED": seed}
        subprocess.run(command, check=True, capture_output=True, cwd=tmp_path, env=environment)
    assert (tmp_path / "1.html").read_bytes() == (tmp_path / "2.html").read_bytes()
    for file in (tmp_path / "1").iterdir():
        assert file.read_bytes() == (tmp_path / "2" / file.name).read_bytes(), file.name


def test_a_report_is_replaced_and_any_other_file_is_kept(tmp_path: Path) -> None:
    rows, output = write(tmp_path / "ring.jsonl", [made_row()]), tmp_path / "report.html"
    before = rows.read_bytes()
    ended = run_recall("report", rows, "-o", rows)
    assert (ended.code, rows.read_bytes()) == (2, before)
    assert f"{rows} is there already and is no report: remove it, or give another -o" in ended.err
    for reply in ("345678", OTHER):
        write(rows, [made_row(reply=reply)])
        ended = _report(rows, "-o", output)
        assert ended.out == f"{output}: runs: 1, rows: 1\n"
    assert "ring finds 0 of 1 records" in output.read_text(encoding="utf-8")
    assert {file.name for file in tmp_path.iterdir()} == {"ring.jsonl", "report.html"}


@pytest.mark.parametrize("option", ["-o", "--plots"])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, option: str) -> None:
    rows = write(tmp_path / "ring.jsonl", _placed(True))
    places: dict[str, Path] = {"-o": tmp_path / "report.html"} | {option: rows / "report.html"}
    ended = run_recall("report", rows, *(part for place in places.items() for part in place))
    assert ended.code == 2
    assert f"{rows / 'report.html'}: cannot be written (" in ended.err
    assert f"give another {option}" in ended.err


def test_figures_have_names_of_our_own_in_a_folder_that_is_made(tmp_path: Path) -> None:
    files = report_runs(tmp_path)
    hostile = tmp_path / "..\\..%2f$(id)<b>.jsonl"
    files[1].rename(hostile)
    folder = tmp_path / "made" / "here"
    folder.mkdir(parents=True)
    outside = tmp_path / "outside.png"
    (folder / "heatmap-1.png").symlink_to(outside)
    ended = _report(files[0], hostile, files[2], "-o", tmp_path / "report.html", "--plots", folder)
    assert ended.out.endswith(f"; figures in {folder}: 7\n")
    assert not outside.exists()
    assert sorted(file.name for file in folder.iterdir()) == sorted(
        f"{name}.{kind}" for name in PICTURES for kind in ("png", "svg")
    )
    for name in PICTURES:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        root = ElementTree.parse(folder / f"{name}.svg").getroot()
        assert root is not None
        assert root.tag.endswith("svg")


def test_a_heatmap_has_found_of_answers_in_every_cell(tmp_path: Path) -> None:
    rows = _placed(True, True, True, False, False, False)
    report = make_report({"ring": rows})
    svg = next(picture.svg() for picture in report.pictures if picture.name == "heatmap-1")
    root = ElementTree.fromstring(svg)
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts[:5] == ["4,096", "8,192", "length in tokens", "50%", "depth of the asked record"]
    assert texts[5:] == ["33%", "1/3", "67%", "2/3"]
    assert "4,096 tokens: 33%; 8,192 tokens: 67%" in svg


def test_a_figure_shows_any_name_whole_or_shortened() -> None:
    names = ["_hidden", "$x^2$", "tab\tand\x01", "日本", "n" * 80, "<b>&amp;"]
    figure = plots.recall_by_length({name: grid(_placed(True, False)) for name in names})
    root = ElementTree.fromstring(inline_svg(figure, "curves", "title", "description"))
    shown = [text.text.strip() for text in root.iter(f"{SVG}text") if text.text]
    assert shown[-6:] == ["_hidden", "$x^2$", "tab\ufffdand\ufffd", "日本", f"{'n' * 23}…", "<b>&amp;"]


@pytest.mark.parametrize("colours", [plots.SHARES, plots.DIFFERENCES], ids=["share", "difference"])
def test_what_is_written_in_a_cell_can_be_read_on_every_colour(colours: list[str]) -> None:
    for step in range(101):
        fill = plots.between(colours, step / 100)
        assert plots.contrast(plots.ink_on(fill), fill) >= 4.5, fill


def test_the_colours_of_shares_get_lighter_so_that_lightness_alone_tells_them() -> None:
    from_black = [plots.contrast(plots.between(plots.SHARES, step / 20), "#000000") for step in range(21)]
    assert from_black == sorted(set(from_black))


def test_overlaps_count_by_cell_what_both_answered_validly() -> None:
    a, b = _placed(True, True, False, False, True, True, True), _placed(True, False, True, False, False, True, True)
    a[5] = a[5].model_copy(update={"status": "invalid"})
    b[6] = b[6].model_copy(update={"status": "invalid"})
    found = overlaps(a, b)
    assert found == {(8192, 0.5): Overlap(1, 1, 1, 0), (4096, 0.5): Overlap(0, 1, 0, 1)}
    assert [overlap.difference for overlap in found.values()] == [0, -0.5]


def test_speeds_are_medians_of_what_the_rows_of_a_length_tell() -> None:
    rows = [made_row(f"p{n}", budget=4096, read_tok_s=speed) for n, speed in enumerate([1.0, None, 5.0, 2.0])]
    rows.append(made_row("p9", cache_bytes=7, decode_tok_s=3.0))
    told = [(speed.length, speed.rows, speed.read, speed.decode, speed.cache) for speed in speeds(rows)]
    assert told == [(600, 1, None, 3.0, 7), (4096, 4, 2.0, None, None)]


def test_a_fingerprint_is_that_of_the_prompts_whatever_their_order() -> None:
    rows = [made_row("p1", prompt_sha256="b" * 64), made_row("p2", prompt_sha256="a" * 64)]
    assert fingerprint(rows) == sha256(f"{'a' * 64}\n{'b' * 64}\n".encode()).hexdigest()
    assert fingerprint(rows[::-1]) == fingerprint(rows)
    assert fingerprint([*rows, made_row("p3", prompt_sha256=None)]) is None


def test_settings_are_told_once_and_every_value_of_them() -> None:
    mixed = [made_row("p1", settings={"mode": "eager"}), made_row("p2", settings={"mode": "compile"})]
    told = dict(setup([mixed, [made_row("p1", dtype=None)]]))
    assert told["setting mode"] == [["eager", "compile"], ["not told"]]
    assert told["number format"] == [["fp32"], ["not told"]]


def test_remarks_put_errors_first_and_leave_out_rows_in_order() -> None:
    rows = [
        made_row("p1"),
        made_row("p2", note="odd"),
        failed_row("p3"),
        made_row("p4", status="invalid"),
        failed_row("p5"),
    ]
    told = [Remark("error", "it broke", ["p3", "p5"]), Remark("invalid", None, ["p4"]), Remark("ok", "odd", ["p2"])]
    assert remarks(rows) == told


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"asked_from_end": 450, "answer_from_end": 60, "window": 150}, Strip([25.0], [90.0], 75.0, "tokens")),
        ({"asked_from_end": 450, "record": None, "window": 900}, Strip([25.0], [], 0.0, "tokens")),
        ({"asked_from_end": 450}, Strip([25.0], [35.0], None, "records")),
        ({"record": [5, 9]}, Strip([25.0], [45.0, 85.0], None, "records")),
        (
            {"asked_records": [3, 10], "asked_from_end": 450, "answer_from_end": 60},
            Strip([25.0, 95.0], [35.0], None, "records"),
        ),
    ],
)
def test_a_strip_shows_where_the_records_stand(fields: dict[str, Any], expected: Strip) -> None:
    assert strip(made_row(reply=OTHER, **fields)) == expected


def test_a_long_reply_is_shown_by_its_beginning() -> None:
    assert shortened(" ab\n") == "ab"
    assert shortened(None) == ""
    assert shortened("x" * 1200) == f"{'x' * 300}… (1,200 letters)"


def test_wrong_answers_are_listed_with_the_record_each_came_from(tmp_path: Path) -> None:
    rows = [row for row in sweep_rows("ring", skill=0.5) if row.budget == 4096]
    page = _words(make_report({"ring": rows}).page)
    row = next(row for row in rows if row.outcome == "other-record")
    assert isinstance(row.record, int)
    away = row.record - row.asked_record
    assert f"Asked: record {row.asked_record} of 133, code" in page
    assert f"record {row.record}, {away} records ({30 * away:,} tokens) after it." in page
    assert page.count('class="strip"') == sum(not row.found for row in rows)
