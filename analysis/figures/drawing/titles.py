"""Texts that a browser shows beside the pointer, as the `title` elements of the marks they name.

An artist carries the texts of its marks in its gid, which matplotlib writes into the SVG as the id of the
artist's group; `write_titles` makes elements of them there.
"""

import json
from collections.abc import Iterable, Iterator
from xml.etree import ElementTree

import pandas as pd
from matplotlib.artist import Artist

from analysis.text import chart_number, clean, first_of

SVG = "http://www.w3.org/2000/svg"
DEFINITIONS = f"{{{SVG}}}defs"
USE = f"{{{SVG}}}use"
TITLE = f"{{{SVG}}}title"
# How a gid starts that carries titles.
TITLES = "titles:"
# Of a launch on more hosts the first ones are named.
MOST_NAMED_HOSTS = 3


def title_marks(artist: Artist, titles: Iterable[str]) -> None:
    """Name the marks of an artist that have a place, in the order drawn; one text names the whole artist."""
    artist.set_gid(TITLES + json.dumps([clean(title) for title in titles]))


def launch_titles(runs: pd.DataFrame, unit: str) -> Iterator[str]:
    """Yield run, host, throughput and seed of every launch; what is not known is left out."""
    for run in runs.to_dict("records"):
        hosts = first_of(str(run["hosts"]).split(), "host", MOST_NAMED_HOSTS)
        throughput = "" if pd.isna(run["throughput"]) else f"{chart_number(run['throughput'], '.4g')} {unit}"
        seed = "" if pd.isna(run["seed"]) else f"seed {run['seed']}"
        yield ", ".join(filter(None, (str(run["run"]), hosts, throughput, seed)))


def write_titles(root: ElementTree.Element) -> None:
    """Move the texts that ids carry into `title` elements of the marks."""
    for group in root.iter():
        texts = group.get("id", "").partition(TITLES)[2]
        if texts:
            del group.attrib["id"]
            _title(group, json.loads(texts))


def _title(group: ElementTree.Element, titles: list[str]) -> None:
    """Title every mark; where some were not drawn, since they lie outside, rather none than a wrong one."""
    marks = [group] if len(titles) == 1 else list(_marks(group))
    for mark, title in zip(marks, titles, strict=False) if len(marks) == len(titles) else ():
        element = ElementTree.Element(TITLE)
        element.text = title
        mark.insert(0, element)


def _marks(group: ElementTree.Element) -> Iterator[ElementTree.Element]:
    """Yield the marks of a group: uses of one shape."""
    for child in group:
        if child.tag == USE:
            yield child
        elif child.tag != DEFINITIONS:
            yield from _marks(child)
