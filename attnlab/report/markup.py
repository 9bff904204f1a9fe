"""The few shapes a page is made of: escaped text, tables, badges, embedded figures."""

import base64
import html
import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from attnlab.claims.rules import Verdict
from attnlab.statistics import Interval

# Above this a figure is embedded as PNG: a page of SVGs of long histories would not open on a phone.
SVG_LIMIT = 500_000

# Colours of the figures on white paper -> on dark. The files on disk stay as they are.
DARK = {
    "#000000": "#e6e9ed",
    "#ffffff": "#14171b",
    "#595959": "#a9b1ba",
    "#4d4d4d": "#b6bec7",
    "#808080": "#8d97a1",
    "#b0b0b0": "#59626c",
    "#006b4c": "#2fc99c",
    "#a83f00": "#f58f4c",
    "#735400": "#dba83a",
    "#57606a": "#a3abb4",
    "#0072b2": "#54aaea",
    "#d55e00": "#f58f4c",
    "#009e73": "#2fc99c",
    "#cc79a7": "#e0a0c6",
}


class Markup(str):
    """Text that is HTML already."""


def text(value: object) -> Markup:
    """Anything as HTML: `Markup` as it is, everything else escaped."""
    return value if isinstance(value, Markup) else Markup(html.escape(str(value)))


def join(parts: Iterable[object], separator: str = "") -> Markup:
    """The parts one after the other, each as `text`."""
    return Markup(text(separator).join(text(part) for part in parts))


def element(tag: str, *content: object, **attributes: object) -> Markup:
    """`<tag attributes>content</tag>`; `class_` is written class, None and False leave an attribute out."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    return Markup(f"<{tag}{written}>{join(content)}</{tag}>")


def badge(verdict: Verdict) -> Markup:
    """A verdict in words on its colour."""
    return element("span", verdict, class_=f"badge {verdict.lower().replace(' ', '-')}")


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    caption: str,
    stacked: bool = False,
    words: Iterable[str] = (),
) -> Markup:
    """A table with headers; the first cell of a row is its header.

    `stacked`: on a phone every row becomes a block of "column: cell" lines; otherwise the table scrolls sideways in a
    box of its own. `words`: columns of text, which are set to the left; all others hold numbers.
    """
    left = {columns[0], *words}
    head = [
        element("th", name, scope="col", role="columnheader", class_=None if name in left else "n")
        for name in columns
    ]
    body = [element("tr", *_cells(columns, row, left), role="row") for row in rows]
    # The caption stands outside of the box, so that it does not scroll away with the columns.
    name = f"t{zlib.crc32(caption.encode()):08x}"
    whole = element(
        "table",
        element("thead", element("tr", *head, role="row"), role="rowgroup"),
        element("tbody", *body, role="rowgroup"),
        class_="stacked" if stacked else None,
        role="table",
        aria_labelledby=name,
    )
    told = element("p", caption, class_="caption", id=name)
    return join([told, whole if stacked else _scrolling(whole, caption)])


def _cells(columns: Sequence[str], row: Sequence[object], left: set[str]) -> list[Markup]:
    first, *others = zip(columns, row, strict=True)
    return [
        element("th", first[1], scope="row", role="rowheader"),
        *(
            element("td", cell, role="cell", data_label=name, class_=None if name in left else "n")
            for name, cell in others
        ),
    ]


def _scrolling(content: Markup, label: str) -> Markup:
    """A box that scrolls sideways; the keyboard can reach it."""
    return element("div", content, class_="scroll", tabindex=0, role="region", aria_label=label)


def figure(png: Path, svg: Path, *, alt: str, caption: str, link: str) -> Markup:
    """An embedded figure that follows the reader's colour scheme; `link` leads to the PNG beside the page."""
    drawn = svg.read_text(encoding="utf-8")
    width, height = (round(float(x) * 4 / 3) for x in _size(drawn))
    if len(drawn) <= SVG_LIMIT:
        kind, data = "image/svg+xml", _themed(drawn).encode()
    else:
        kind, data = "image/png", png.read_bytes()
    # Narrower than this the labels could not be read: the box scrolls instead.
    least = min(width, max(340, round(0.72 * width)))
    image = Markup(
        f'<img src="data:{kind};base64,{base64.b64encode(data).decode()}" alt="{html.escape(alt)}" '
        f'width="{width}" height="{height}" style="min-width:{least}px">'
    )
    stem = link.removesuffix(".png")
    files = join(
        [element("a", "PNG", href=f"{stem}.png"), element("a", "SVG", href=f"{stem}.svg")], ", "
    )
    words = element("figcaption", caption, " ", element("span", "(", files, ")", class_="files"))
    return element("figure", _scrolling(image, caption), words)


def _size(svg: str) -> tuple[str, str]:
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    if found is None:
        raise ValueError("svg: has no viewBox from 0 0")
    return found[1], found[2]


def _themed(svg: str) -> str:
    """The same drawing with its colours as variables, which a dark page sets to others.

    Matplotlib leaves out the fill of black glyphs, so the root's fill is what colours them.
    """
    light = ";".join(f"--c{colour[1:]}:{colour}" for colour in DARK)
    dark = ";".join(f"--c{colour[1:]}:{other}" for colour, other in DARK.items())
    style = (
        f"<style>:root{{{light};fill:var(--c000000)}}"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}</style>"
    )
    named = re.sub(
        r"#[0-9a-f]{6}\b",
        lambda found: f"var(--c{found[0][1:]})" if found[0] in DARK else found[0],
        svg,
    )
    return re.sub(r"(<svg\b[^>]*>)", lambda found: found[0] + style, named, count=1)


def described(pairs: Iterable[tuple[str, object]]) -> Markup:
    """A list of terms and what they are; pairs without a value are left out."""
    shown = [join([element("dt", name), element("dd", value)]) for name, value in pairs if value]
    return element("dl", *shown)


def between(interval: Interval | None, digits: int = 3) -> str:
    """An interval in words; "-" where there is none."""
    return f"{interval.low:.{digits}f} to {interval.high:.{digits}f}" if interval else "-"


def with_unit(number: str, unit: str) -> str:
    """A number and its unit, which may be empty."""
    return f"{number} {unit}".rstrip()
