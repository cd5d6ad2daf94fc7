"""Where the page finds the folders of the runs, as links relative to the report's folder."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote

from analysis.report.assemble import Report
from analysis.text import clean

RunLinks = Mapping[str, str]


def run_links(report: Report, folder: Path) -> RunLinks:
    """Return the link of each run, used or left out, that lies beside the report's folder, by its name."""
    study = report.study
    names = {*study.runs["run"], *study.all_left_out["run"]}
    for part in filter(None, (study.played, study.maps_only)):
        names |= {*part.runs["run"]}
    return dict(_links(names, folder.resolve().parent))


def _links(names: Iterable[str], parent: Path) -> Iterable[tuple[str, str]]:
    for name in sorted(names):
        path = parent / name
        if path.is_dir():
            yield clean(name), f"../{quote(name, safe='')}/"
        elif path.is_file():
            yield clean(name), f"../{quote(name, safe='')}"
