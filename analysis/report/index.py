"""One page over all studies of a folder, with a link to the report of each."""

import time
from pathlib import Path
from urllib.parse import quote

from analysis.text import page
from unet_scaling.base.files import READABLE, write_atomically
from unet_scaling.format.known_studies import REPORT_PAGE, known_studies, study_cells

INDEX_NAME = "index.html"


def write_index(logs: Path) -> tuple[Path, list[dict[str, str]]]:
    """Write `index.html` into a folder of studies; return its path, and the rows of its table.

    Raises UserError where the folder holds no study, and OSError where it cannot be written.
    """
    studies = known_studies(logs)
    rows = list(study_cells(studies, time.time()))
    linked = [
        (quote(f"{study.folder.name}/{REPORT_PAGE}") if study.page else "", list(cells.values()))
        for study, cells in rows
    ]
    columns = [*rows[0][1]]
    text = page(
        "index", name=logs.resolve().name, about=f"studies: {len(rows)}",
        columns=columns, studies=linked, files=[],
    )  # fmt: skip
    path = logs / INDEX_NAME
    write_atomically(path, text, READABLE)
    return path, [cells for _, cells in rows]
