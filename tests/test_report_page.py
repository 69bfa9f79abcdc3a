"""The report in a real browser: it runs nothing and asks for nothing, and can be read on a phone, at night, by keys."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from recall.plots import contrast
from recall.results import Outcome
from tests.browser import Browser, opened
from tests.conftest import run_recall
from tests.made_rows import failed_row, made_row, write
from tests.report_rows import report_runs, sweep_rows

READABLE = 4.5  # contrast of text, and 3 of a mark, by the Web Content Accessibility Guidelines 2.2, level AA
VISIBLE = 3
MARK = "document.documentElement.dataset.ran = 'yes'"
ATTACKS = [
    f"<script>{MARK}</script>",
    f'<img src="nowhere" onerror="{MARK}">',
    f'"><svg onload="{MARK}"></svg><p title="',
    f"' autofocus tabindex=0 onfocus={MARK.replace(' ', '')} '",
    f"</title></style></desc></text></svg><script>{MARK}</script>",
    f'<!-- --><iframe srcdoc="<script>parent.{MARK}</script>"></iframe>',
    "{{ 7 * 7 }} $x^2$ &lt;b&gt; ]]> --!>",
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with opened(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    return _report(folder, report_runs(folder))


def _report(folder: Path, files: list[Path]) -> Path:
    page = folder / "report.html"
    ended = run_recall("report", *files, "-o", page)
    assert ended.code == 0, ended.err
    return page


def _unguarded(page: Path) -> Path:
    """Return a copy of a page without its policy, which would stop a script that got into it."""
    html, found = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text(encoding="utf-8"))
    assert found == 1
    copy = page.with_name("unguarded.html")
    copy.write_text(html, encoding="utf-8")
    return copy


def _hostile(folder: Path) -> Path:
    """Return the report of rows, and of files, whose every string is an attack."""
    rows = []
    for number, attack in enumerate(ATTACKS):
        told = {"model": attack, "engine": attack, "device": attack, "dtype": attack, "note": attack}
        held = {"settings": {attack: attack}, "versions": {attack: attack}, "budget": 4096, "depth": number / 10}
        rows.append(made_row(f"{number} {attack}", attack, prompt_sha256=attack, seed=number, **told, **held))
    rows += [failed_row(f"failed {attack}").model_copy(update={"note": attack}) for attack in ATTACKS]
    found = {"reply": "345678", "codes": ["345678"], "outcome": Outcome.FOUND, "found": True}
    others = [row.model_copy(update=found) for row in rows]
    names = [attack.replace("/", "\N{DIVISION SLASH}") for attack in ATTACKS[:3]]
    return _report(folder, [write(folder / f"{name}.jsonl", rows if name == names[0] else others) for name in names])


def test_what_rows_and_names_of_files_hold_runs_nothing_and_shows_as_text(browser: Browser, tmp_path: Path) -> None:
    page = _hostile(tmp_path)
    browser.show(_unguarded(page))
    browser.open_all()
    for _ in range(40):  # what waits for the focus
        browser.tab()
    assert browser.run("return document.documentElement.dataset.ran || null") is None
    assert not browser.run("return document.querySelectorAll('script, iframe, img, [autofocus]').length")
    handlers = (
        "return [...document.querySelectorAll('*')].flatMap(e => e.getAttributeNames()).filter(n => /^on/.test(n))"
    )
    assert browser.run(handlers) == []
    shown = browser.text("main")
    for attack in ATTACKS:
        assert shown.count(attack) >= 5, attack


def test_a_script_that_got_into_a_page_would_be_noticed_and_the_policy_would_stop_it(
    browser: Browser, page: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.html"
    broken.write_text(page.read_text(encoding="utf-8").replace("<main", f"{ATTACKS[0]}<main"), encoding="utf-8")
    browser.show(broken)
    assert browser.run("return document.documentElement.dataset.ran || null") is None
    assert any("Content Security Policy" in told for told in browser.complaints())
    browser.show(_unguarded(broken))
    assert browser.run("return document.documentElement.dataset.ran || null") == "yes"


def test_the_page_asks_for_nothing(browser: Browser, page: Path, tmp_path: Path) -> None:
    browser.show(page)
    browser.open_all()
    assert browser.requests() == []
    assert browser.complaints() == []
    asking = tmp_path / "asking.html"
    asking.write_text('<img src="picture.png">', encoding="utf-8")
    browser.show(asking)
    assert [Path(url).name for url in browser.requests()] == ["picture.png"]


@pytest.mark.parametrize("folded", [True, False], ids=["folded", "unfolded"])
def test_on_a_phone_only_tables_and_pictures_scroll_sideways(browser: Browser, page: Path, folded: bool) -> None:
    browser.show(page, width=360)
    if not folded:
        browser.open_all()
    assert browser.run("return document.documentElement.scrollWidth") == 360
    wider = "return [...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth).length"
    assert browser.run(wider) > 0
    spilling = """return [...document.querySelectorAll("body *")].filter(element =>
        !element.closest(".scroll, .skip, .shapes, svg") && element.checkVisibility()
        && element.getBoundingClientRect().right > 360.5).map(element => element.outerHTML.slice(0, 80))"""
    assert browser.run(spilling) == []


def test_long_names_do_not_widen_the_page(browser: Browser, tmp_path: Path) -> None:
    name = "a" * 120
    rows = [made_row("p" * 300, "n" * 900, model=name, note=name, settings={name: name}, window=100)]
    page = _report(tmp_path, [write(tmp_path / f"{name[:90]}{end}.jsonl", rows) for end in "xy"])
    browser.show(page, width=360)
    browser.open_all()
    assert browser.run("return document.documentElement.scrollWidth") == 360


def test_every_interactive_part_is_reached_by_tab_and_shows_it(browser: Browser, page: Path) -> None:
    browser.show(page)
    waiting, ground = set(browser.interactive()), browser.texts()[0][2]
    assert len(waiting) > 20
    assert browser.run("return document.querySelectorAll('.scroll:not([tabindex=\"0\"])').length") == 0
    for _ in range(len(waiting)):
        focused = browser.tab()
        assert focused is not None
        number, outline, colour = focused
        assert outline >= 2
        assert contrast(colour, ground) >= VISIBLE
        waiting.discard(number)
    assert not waiting


def test_the_first_tab_leads_to_the_content(browser: Browser, page: Path) -> None:
    browser.show(page)
    browser.tab()
    assert browser.run("return document.activeElement.textContent") == "Skip to the report"
    assert browser.run("return document.activeElement.getBoundingClientRect().left") >= 0
    browser.run("document.activeElement.click()")
    assert browser.run("return document.activeElement.id") == "content"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_all_text_can_be_read_by_day_and_by_night(browser: Browser, page: Path, dark: bool) -> None:
    browser.show(page, dark=dark)
    browser.open_all()
    texts = browser.texts()
    assert len(texts) > 500
    for text, colour, ground in texts:
        assert contrast(colour, ground) >= READABLE, text
    grounds = {ground for *_, ground in texts}
    assert all((contrast(ground, "#000000") < VISIBLE) is dark for ground in grounds)
    labels = "return [...document.querySelectorAll('figure svg text')].map(text => getComputedStyle(text).fill)"
    plain = [fill for fill in browser.run(labels) if fill not in ("rgb(0, 0, 0)", "rgb(255, 255, 255)")]
    (ink, *muted) = sorted(set(plain))
    assert len(muted) <= 1, "labels have the page's two colours, and cells have black or white"
    for fill in (ink, *muted):
        channels = [int(channel) for channel in re.findall(r"\d+", fill)]
        assert contrast("#" + "".join(f"{channel:02x}" for channel in channels), texts[0][2]) >= READABLE


def test_pictures_have_names_and_ids_are_used_once(browser: Browser, page: Path) -> None:
    browser.show(page)
    named = """return [...document.querySelectorAll("figure svg")].map(picture =>
        [picture.getAttribute("role"), ...["aria-labelledby", "aria-describedby"].map(name =>
            document.getElementById(picture.getAttribute(name)).textContent.length > 10)])"""
    assert browser.run(named) == [["img", True, True]] * 7
    ids = browser.run("return [...document.querySelectorAll('[id]')].map(element => element.id)")
    assert len(ids) == len(set(ids))
    broken = (
        "return [...document.querySelectorAll('a[href^=\"#\"]')].filter(a => !document.querySelector(a.hash)).length"
    )
    assert browser.run(broken) == 0
    assert browser.run("return document.querySelectorAll('table:not(:has(caption))').length") == 0


def test_the_page_says_the_numbers_of_its_rows(browser: Browser, page: Path) -> None:
    browser.show(page)
    rows = sweep_rows("ring", skill=0.5)
    found = sum(row.found for row in rows) - rows[77].found + 1  # the replies that part; see report_rows
    assert browser.text("#verdict").startswith(f"ring finds {found} of 132 records ({found / 132:.0%}, ")
    cell = [row for row in rows if (row.budget, row.depth) == (8192, 0.4)]
    shown = browser.run("return [...document.querySelectorAll('figure svg text')].map(text => text.textContent)")
    assert f"{sum(row.found for row in cell)}/3" in shown
    line = "#table-engine-1 ~ tbody tr:nth-child(5)"
    assert browser.text(f"{line} th") == "40%"
    assert browser.text(f"{line} td:nth-of-type(2)").startswith(f"{sum(row.found for row in cell)}/3")
