"""Make an SVG small: a report has dozens of panels, and is mailed as one file.

matplotlib writes a group with an id around every mark, six decimals of a pixel, paths that paint nothing, and
the same style on each mark of a cloud.
"""

import re
from collections.abc import Iterator
from itertools import groupby
from xml.etree.ElementTree import Element

from analysis.figures.drawing.titles import DEFINITIONS, SVG, TITLE, USE

GROUP = f"{{{SVG}}}g"
PATH = f"{{{SVG}}}path"
TEXT_TAG = f"{{{SVG}}}text"
MEASURES = ("d", "x", "y", "transform", "style")
DECIMALS = re.compile(r"-?\d+\.\d+")
# Of a pixel: not to be seen, enlarged ten times neither.
DECIMAL_DIGITS = 2
AROUND_COMMANDS = re.compile(r"\s*([A-Za-z])\s*")
NOT_TURNED = re.compile(r"rotate\(-?0 .*\)")
REFERENCE = re.compile(r"(?<=#)[^)]+")
# What an SVG has without being told, and what its root tells all texts.
UNNEEDED = {
    ("stroke-dashoffset", "0"), ("stroke-width", "1"), ("stroke-linecap", "butt"), ("text-anchor", "start"),
    ("font-family", "system-ui, sans-serif"), ("fill", "var(--ink)"),
}  # fmt: skip
ROOT_STYLE = "font-family:system-ui, sans-serif;fill:var(--ink)"
# A mark has these from its group; `opacity` would make the group transparent as a whole.
HANDED_DOWN = {
    "", "fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "stroke-linecap",
    "stroke-linejoin", "stroke-dasharray",
}  # fmt: skip
COMMON_ATTRIBUTES = ("clip-path", "style")
# A group of its own costs as much as two marks save.
FEWEST_SHARING = 3
# In the ids of the groups in which matplotlib draws grid, ticks and texts of an axis.
AXIS = "matplotlib.axis"


def compact(root: Element, name: str) -> None:
    """Leave out of an SVG what does not show. The ids that are referred to become `name` and a number."""
    axes = [group for group in root.iter(GROUP) if AXIS in group.get("id", "")]
    numbers = {old: f"{name}-{number}" for number, old in enumerate(_referred(root), start=1)}
    for element in root.iter():
        _compact_attributes(element, numbers)
    for axis in axes:
        _flatten(axis)
        _gather(axis)
    _flatten(root)
    for element in list(root.iter()):
        _share(element)
    root.set("style", ROOT_STYLE)


def _referred(root: Element) -> Iterator[str]:
    """Yield each id that an attribute of another element refers to, once."""
    values = (value for element in root.iter() for value in element.attrib.values() if "#" in value)
    yield from dict.fromkeys(old for value in values for old in REFERENCE.findall(value))


def _compact_attributes(element: Element, numbers: dict[str, str]) -> None:
    attributes = dict(element.attrib)
    element.attrib.clear()
    for key, value in attributes.items():
        kept = _compact_value(key, value, numbers)
        if kept:
            element.set(key, kept)


def _compact_value(key: str, value: str, numbers: dict[str, str]) -> str:
    """Return the shorter value of an attribute; empty where it is not needed."""
    if key == "id":
        return numbers.get(value, "")
    if key in MEASURES:
        value = DECIMALS.sub(_rounded, value)
    if key == "d":
        return AROUND_COMMANDS.sub(r"\1", value).strip()
    if key == "style":
        return _style_text(value)
    if key == "transform":
        return NOT_TURNED.sub("", value)
    return REFERENCE.sub(lambda match: numbers.get(match[0], match[0]), value)


def _rounded(match: re.Match[str]) -> str:
    return f"{round(float(match[0]), DECIMAL_DIGITS) + 0.0:.10g}"


def _style_text(style: str) -> str:
    pairs = (part.partition(": ") for part in style.split("; "))
    return ";".join(f"{name}:{value}" for name, _, value in pairs if (name, value) not in UNNEEDED)


def _flatten(element: Element) -> None:
    """Replace groups without attributes by what is in them, and drop what is empty or paints nothing."""
    for child in list(element):
        element.remove(child)
        _flatten(child)
        if child.tag == GROUP and not child.attrib:
            element.extend(_without_group(child))
        elif not _is_unseen(child):
            element.append(child)
    if element.tag not in (TEXT_TAG, TITLE):
        element.text = None
    element.tail = "\n"


def _without_group(group: Element) -> list[Element]:
    """Return its marks, the only one with the group's title; the group itself where a title is of several."""
    title = group.find(TITLE)
    if title is None:
        return list(group)
    marks = [child for child in group if child is not title]
    if len(marks) != 1:
        return [group]
    marks[0].insert(0, title)
    return marks


def _is_unseen(element: Element) -> bool:
    if element.tag == PATH:
        return element.get("style") == "fill:none"
    return element.tag in (GROUP, DEFINITIONS) and not len(element)


def _gather(axis: Element) -> None:
    """Put equal parts of an axis next to each other, such as its ticks; nothing of it covers another part."""
    parts = list(axis)
    order = list(dict.fromkeys(map(_look, parts)))
    axis[:] = sorted(parts, key=lambda part: (part.tag != DEFINITIONS, order.index(_look(part))))


def _look(element: Element) -> tuple[str, ...]:
    return element.tag, *(element.get(name, "") for name in ("href", *COMMON_ATTRIBUTES))


def _share(element: Element) -> None:
    """Give neighbours of one look a group that has their style and their clip, once."""
    marks = list(element)
    if element.tag in (DEFINITIONS, TEXT_TAG) or len(marks) < FEWEST_SHARING:
        return
    element[:] = [part for _, run in groupby(marks, _look) for part in _grouped(list(run))]


def _grouped(marks: list[Element]) -> list[Element]:
    shared = {name: marks[0].attrib[name] for name in COMMON_ATTRIBUTES if name in marks[0].attrib}
    names = {part.partition(":")[0] for part in shared.get("style", "").split(";")}
    is_drawn = marks[0].tag in (PATH, USE)
    if not (shared and is_drawn and names <= HANDED_DOWN and len(marks) >= FEWEST_SHARING):
        return marks
    for mark in marks:
        for name in shared:
            del mark.attrib[name]
    group = Element(GROUP, shared)
    group.extend(marks)
    group.tail = "\n"
    return [group]
