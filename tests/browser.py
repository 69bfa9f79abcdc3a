"""A real headless Chromium for tests of pages: it shows files, and tells what it asked for and what it sees."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome, ChromeOptions, Keys
from selenium.webdriver.chrome.service import Service

_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Of every element with text of its own: what it says, its colour, and the nearest ground behind it.
_TEXTS = """
const told = [];
for (const element of document.body.querySelectorAll("*")) {
  const own = [...element.childNodes].filter(node => node.nodeType === 3 && node.data.trim());
  if (!own.length || !element.checkVisibility() || element.closest("svg")) continue;
  let ground = element;
  while (ground && getComputedStyle(ground).backgroundColor === "rgba(0, 0, 0, 0)") ground = ground.parentElement;
  told.push([own[0].data.trim(), getComputedStyle(element).color,
             getComputedStyle(ground || document.documentElement).backgroundColor]);
}
return told;
"""
# The element that has the focus: a number that is its own, and the width and colour of its outline.
_FOCUSED = """
const element = document.activeElement;
if (element === document.body || element === document.documentElement) return null;
const look = getComputedStyle(element);
const width = look.outlineStyle === "none" ? 0 : parseFloat(look.outlineWidth);
return [[...document.querySelectorAll("*")].indexOf(element), width, look.outlineColor];
"""
_INTERACTIVE = """
const all = [...document.querySelectorAll("*")];
return all.filter(element => element.checkVisibility() && element.matches("a[href], summary, button, input, select, "
  + "textarea, [tabindex]:not([tabindex='-1']), [onclick]")).map(element => all.indexOf(element));
"""


class Browser:
    """One window of Chromium."""

    def __init__(self, driver: Chrome) -> None:
        self._driver = driver

    def show(self, page: Path, *, width: int = 1100, dark: bool = False) -> None:
        """Open a file in a window so many pixels wide, by day or by night."""
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self._log("performance")  # what was asked for before
        self._log("browser")
        self._driver.get(page.as_uri())

    def run(self, script: str, *arguments: object) -> Any:
        """Return what a script returns."""
        return self._driver.execute_script(script, *arguments)

    def open_all(self) -> None:
        """Unfold everything that is folded."""
        self.run("document.querySelectorAll('details').forEach(part => part.open = true)")

    def text(self, selector: str = "body") -> str:
        """Return the text of an element as it is in the document, folded or not."""
        return str(self.run("return document.querySelector(arguments[0]).textContent", selector))

    def requests(self) -> list[str]:
        """Return the addresses that were asked for since the page was opened, itself left out."""
        events = [json.loads(entry["message"])["message"] for entry in self._log("performance")]
        asked = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
        urls = [event["request"]["url"] for event in asked if event["type"] != "Document"]
        return [url for url in urls if not url.startswith("data:")]

    def complaints(self) -> list[str]:
        """Return what the browser had to say about the page."""
        return [entry["message"] for entry in self._log("browser")]

    def texts(self) -> list[tuple[str, str, str]]:
        """Return of every element with text of its own: the text, its colour and its ground's, `#rrggbb`."""
        return [(text, _hex(colour), _hex(ground)) for text, colour, ground in self.run(_TEXTS)]

    def interactive(self) -> list[int]:
        """Return the numbers of the elements that can be used."""
        return [int(number) for number in self.run(_INTERACTIVE)]

    def tab(self) -> tuple[int, float, str] | None:
        """Press Tab; return which element has the focus then, if any, and its outline's width and colour."""
        self._driver.switch_to.active_element.send_keys(Keys.TAB)
        focused = self.run(_FOCUSED)
        return None if focused is None else (int(focused[0]), float(focused[1]), _hex(focused[2]))

    def _log(self, kind: str) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self._driver.get_log(kind)  # type: ignore[no-untyped-call]
        return entries


@contextmanager
def opened(profile: Path) -> Iterator[Browser]:
    """Open Chromium with a new, empty profile folder."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.fail("these tests need chromium and chromedriver: `make browser` installs them")
    options = ChromeOptions()
    options.binary_location = chromium
    for flag in [*_FLAGS, f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    chrome = Chrome(options=options, service=Service(driver))
    try:
        yield Browser(chrome)
    finally:
        chrome.quit()


def _hex(colour: str) -> str:
    """Return `rgb(r, g, b)` as `#rrggbb`."""
    channels = colour.partition("(")[2].rstrip(")").split(",")[:3]
    return "#" + "".join(f"{int(channel):02x}" for channel in channels)
