"""What a folder of studies holds: of each study where it ran, how far it is, and what its report answers."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from unet_scaling.base.errors import UserError
from unet_scaling.base.files import read_regular
from unet_scaling.base.texts import clean
from unet_scaling.format.record import RECORD_NAME
from unet_scaling.study.study_file import CONFIG_NAME, is_of_others, recorded_study

REPORT_PAGE = Path("report", "report.html")
SUMMARY = Path("report", "summary.json")
# An end line, and no epoch, is shorter.
END_BYTES = 8192
OUTDATED = "older than its records: "


@dataclass(frozen=True)
class KnownStudy:
    """A study by its files alone; no scheduler is asked.

    `complete` of `runs` have a record that ends in order; `ran_on` is the cluster's name, or that of the
    host of worker 0; `answer` is the headline of its report, or empty; `newest` is when the newest run ended,
    or wrote its record where it has not, in seconds since 1970; 0.0 where there is no record.
    """

    folder: Path
    complete: int
    runs: int
    ran_on: str
    answer: str
    newest: float

    @property
    def page(self) -> Path | None:
        """The page of its report, if it has one."""
        page = self.folder / REPORT_PAGE
        return page if page.is_file() else None


def known_studies(logs: Path) -> list[KnownStudy]:
    """Return the studies in a folder, that of the newest record first. Raises UserError where it has none."""
    try:
        folders = [path for path in logs.iterdir() if path.is_dir()]
    except OSError as error:
        raise UserError(f"{logs} cannot be listed: {error.strerror}") from None
    found = [study for folder in folders if (study := _read(folder))]
    if not found:
        raise UserError(f"{logs} holds no studies; give the folder that has theirs, such as logs")
    return sorted(found, key=lambda study: (-study.newest, study.folder.name))


def _read(folder: Path) -> KnownStudy | None:
    records = sorted(folder.glob(f"*/{RECORD_NAME}"), key=_modified)
    configured = {path.parent.name for path in folder.glob(f"*/{CONFIG_NAME}") if not is_of_others(path)}
    if not (records or configured):
        return None
    try:
        study = recorded_study(folder)
    except UserError:  # `status` and `report` of this study say why
        study = None
    wanted = set(study.run_names()) if study else configured | {path.parent.name for path in records}
    ends = {path: _end(path) for path in records}
    complete = sum(
        end.get("status") == "complete" for path, end in ends.items() if path.parent.name in wanted
    )
    newest = max((_ended(path, end) for path, end in ends.items()), default=0.0)
    answer = _answer(folder, max(map(_modified, records), default=0.0))
    return KnownStudy(folder, complete, len(wanted), _ran_on(records), answer, newest)


def _end(record: Path) -> dict[str, Any]:
    """Return the last line of a record where that is its end, else nothing."""
    try:
        with record.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - END_BYTES))
            *_, last = file.read().splitlines() or [b""]
    except OSError:
        return {}
    end = _parsed(last)
    return end if end.get("kind") == "end" else {}


def _ended(record: Path, end: Mapping[str, Any]) -> float:
    try:
        return datetime.fromisoformat(str(end.get("ended_utc"))).timestamp()
    except ValueError:
        return _modified(record)


def _ran_on(records: list[Path]) -> str:
    if not records:
        return ""
    try:
        with records[-1].open("rb") as file:
            header = _parsed(file.readline())
    except OSError:
        return ""
    job, workers = header.get("job"), header.get("workers")
    cluster = job.get("SLURM_CLUSTER_NAME") if isinstance(job, dict) else None
    first = workers[0] if isinstance(workers, list) and workers else None
    host = first.get("host", "") if isinstance(first, dict) else ""
    return str(cluster or host)


def _answer(folder: Path, newest: float) -> str:
    """Return the headline of the first answer of the report, and that it lacks later records."""
    try:
        summary = _parsed(read_regular(folder / SUMMARY))
        headline = str(summary["answers"][0]["headline"])
    except (OSError, KeyError, IndexError, TypeError):
        return ""
    return f"{OUTDATED}{headline}" if _modified(folder / SUMMARY) < newest else headline


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def studies_table(listed: Sequence[Mapping[str, str]]) -> Table:
    """Return the rows of `study_cells` as a table for a terminal; cells are texts, never markup."""
    table = Table(box=None, pad_edge=False)
    for column in listed[0]:
        table.add_column(column, overflow="fold")
    for cells in listed:
        table.add_row(*(Text(clean(cell)) for cell in cells.values()))
    return table


def study_cells(studies: list[KnownStudy], now: float) -> Iterator[tuple[KnownStudy, dict[str, str]]]:
    """Yield each study with its row of a table, as texts by column; `now` is in seconds since 1970."""
    for study in studies:
        age = age_of(now - study.newest) if study.newest else ""
        runs = f"{study.complete}/{study.runs}"
        cells = {"study": study.folder.name, "on": study.ran_on, "runs": runs, "newest": age}
        yield study, cells | {"answer": study.answer or "no report"}


def age_of(seconds: float) -> str:
    """Return "5 min ago", "3 h ago", "12 days ago"."""
    if seconds < 3600:
        return f"{max(0, seconds) / 60:.0f} min ago"
    return f"{seconds / 3600:.0f} h ago" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days ago"
