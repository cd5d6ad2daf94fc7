"""The files of a report, each written whole or not at all."""

from pathlib import Path
from urllib.parse import quote

from analysis.report.assemble import Report
from analysis.report.columns import table_files
from analysis.report.exports import export_files
from analysis.report.figure_files import draw_figures
from analysis.report.html import page
from analysis.report.markdown import summary_markdown
from analysis.report.reproduction import study_file
from analysis.text import clean
from unet_scaling.study.errors import UserError
from unet_scaling.study.files import READABLE, write_atomically

PAGE_NAME = "report.html"
# Figures that earlier versions drew into the same folder; nobody replaces them.
FORMER_FIGURES = (
    "deviation", "efficiency", "iou", "iou_difference", "loss_epochs", "loss_seconds", "noise_scale",
    "saliency_images", "speedup", "throughput", "waterfall",
)  # fmt: skip


def write_report(report: Report, folder: Path) -> list[Path]:
    """Write the report's files; the same study, in the same place, always gives the same bytes.

    The page comes last, so that what it names is there. Figures of an earlier report that this one does
    not draw, and those of earlier versions, are removed: they would be taken for its own. Raises OSError
    where the folder cannot be written; an earlier file is then still whole.
    """
    if folder.is_symlink():
        raise UserError(f"{folder} is a link; give --output {folder.resolve()}")
    figures = draw_figures(report)
    key = report.study.score.key
    contents = table_files(report) | export_files(report)
    for name, drawn in figures.drawn.items():
        contents |= {f"{key(name)}.svg": drawn.svg, f"{key(name)}.png": drawn.png}
    contents |= study_file(report.study.subject) | {"summary.md": summary_markdown(report).encode()}
    contents[PAGE_NAME] = page(report, figures, run_links(report, folder)).encode()
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_atomically(folder / name, content, READABLE)
    (folder / "application.md").unlink(missing_ok=True)  # of earlier versions
    for name in (*map(key, figures.missing), *FORMER_FIGURES):
        for kind in ("svg", "png"):
            (folder / f"{name}.{kind}").unlink(missing_ok=True)
    return [folder / name for name in contents]


def run_links(report: Report, folder: Path) -> dict[str, str]:
    """Return the link of each run, used or left out, that lies beside the report's folder, by its name."""
    study = report.study
    tables = [study.runs, study.all_left_out]
    tables += [part.runs for part in (study.played, study.maps_only) if part is not None]
    parent = folder.resolve().parent
    links = {}
    for name in sorted({name for table in tables for name in table["run"]}):
        path = parent / name
        if path.is_dir() or path.is_file():
            links[clean(name)] = f"../{quote(name, safe='')}{'/' if path.is_dir() else ''}"
    return links
