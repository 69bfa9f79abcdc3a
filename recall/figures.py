"""Puts figures into a page and into files: in a page they take its colours, and the same figure is the same bytes."""

import re
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

from markupsafe import Markup
from matplotlib.figure import Figure

from recall.errors import RecallError
from recall.plots import LIGHT, styled

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_DOTS = 96  # pixels of a page to an inch
_SHRINKS = 0.72  # how far a picture gets smaller on a narrow screen before it scrolls; its text is 10 points


def inline_svg(figure: Figure, name: str, title: str, description: str) -> Markup:
    """Return a figure as an `<svg>` element of a page.

    Its text is text, its colours of `LIGHT` are the page's variables of the same names, and its ids begin with `name`.

    Args:
        figure: one of `recall.plots`.
        name: of our own making, different for each figure of a page.
        title: what it shows, in a few words.
        description: what can be seen in it, for those who cannot see it.
    """
    root = ElementTree.fromstring(_drawn(figure, "svg"))
    for parent in list(root.iter()):
        for child in list(parent):
            # Who drew it is of no use in a page; its style sheet would hold for the whole page, which has its own.
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    for element in root.iter():
        for key, value in element.attrib.items():
            element.set(key, _attribute(key, value, name))
    width, height = (round(_DOTS * inches) for inches in figure.get_size_inches())
    root.attrib.pop("version", None)
    root.attrib |= {"width": str(width), "height": str(height), "style": f"min-width:{round(_SHRINKS * width)}px"}
    root.attrib |= {"role": "img", "aria-labelledby": f"{name}-title", "aria-describedby": f"{name}-desc"}
    for place, (tag, words) in enumerate((("title", title), ("desc", description))):
        told = ElementTree.Element(f"{{{_SVG}}}{tag}", id=f"{name}-{tag}")
        told.text = words
        root.insert(place, told)
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    # It is XML that was read and written by a parser: whatever text it holds is escaped.
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def write_figure(figure: Figure, folder: Path, name: str) -> None:
    """Write a figure as `name`.png and `name`.svg into a folder, which is made if it is missing.

    Raises:
        RecallError: when that cannot be done.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for kind in ("png", "svg"):
            write_whole(folder / f"{name}.{kind}", _drawn(figure, kind))
    except OSError as error:
        raise RecallError(f"{folder}: cannot be written ({error.strerror}); give another --plots") from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file beside its place, and put it there when it is complete."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _drawn(figure: Figure, kind: str) -> bytes:
    """Return a figure's bytes; those of an SVG have no ground and no date, those of a PNG a white ground."""
    drawn = BytesIO()
    with styled():
        if kind == "svg":
            figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
        else:
            figure.savefig(drawn, format="png", dpi=200, metadata={"Software": None})
    return drawn.getvalue()


def _attribute(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key in ("href", f"{{{_XLINK}}}href"):
        return f"#{name}-{value.removeprefix('#')}"
    if key == "style":
        for variable, colour in LIGHT.items():
            value = value.replace(colour, f"var(--{variable})")
    return re.sub(r"url\(#", f"url(#{name}-", value)
