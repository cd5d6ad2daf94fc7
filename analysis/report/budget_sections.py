"""The section on where the lost efficiency went: budget, difference, network and diagnosis."""

from collections.abc import Iterator

from analysis.budget.shares import PARTS
from analysis.budget.tables import MOST_REST
from analysis.loading.ping_pongs import pair_table
from analysis.report.assemble import Report
from analysis.report.figure_files import FigureFiles
from analysis.report.speed_sections import both_knobs
from analysis.report.view import Column, Grid, Section, figure, grid, series, text, whole
from analysis.text import sentence

MOST_DIAGNOSES = 12
LEAD = (
    "Data wait (with host to device), compute (forward and backward), wire, imbalance, optimizer and rest "
    "sum to 1 - efficiency, in shares of the workers' time; a negative part takes less than on 1 worker. "
    "Work is equal by construction: every worker has as many images in a step, and dropped images are not "
    "counted. Below: the findings, most at stake first, each with its evidence and what to try."
)


def budget_section(report: Report, figures: FigureFiles) -> Section:
    """Where the lost efficiency went, and what to try."""
    return Section(
        "budget",
        "Where the lost efficiency went",
        LEAD,
        figures.in_section("budget"),
        tuple(_grids(report)),
        remarks=tuple(_remarks(report)),
        absent=figures.missing_in_section("budget"),
    )


def _grids(report: Report) -> Iterator[Grid]:
    columns = [
        series(report.study.names),
        whole("workers", "workers"),
        figure("1 - efficiency", "deviation", "z.1%"),
    ]
    yield grid(
        "budget", "1 - efficiency in parts", report.overhead.budget, [*columns, *_parts()], "budget.csv"
    )
    pairs = [*both_knobs(report.overhead.differences), whole("workers", "workers")]
    difference = figure("Horovod's time above DDP's", "difference", "+z.1%")
    caption = "What Horovod needs more time for than native DDP, in shares of native DDP's time per image"
    yield grid(
        "difference", caption, report.overhead.differences, [*pairs, difference, *_parts()], "difference.csv"
    )
    yield _network(report)
    if len(report.study.ping_pongs):
        yield _pairs(report)


def _parts() -> list[Column]:
    return [figure(part.replace("_", " "), part, "+z.1%") for part in PARTS]


def _network(report: Report) -> Grid:
    columns = [
        series(report.study.names),
        whole("workers", "workers"),
        figure("wire of a step, ms", "wire_seconds", "~3", scale=1e-3),
        figure("one message, ms", "floor_seconds", "~3", scale=1e-3),
        figure("of MPI between hosts, ms", "hosts_floor_seconds", "~3", scale=1e-3, bounded=False),
        figure("latency, ms", "latency_seconds", "~3", scale=1e-3),
        figure("bandwidth, MB/s", "bytes_per_second", "~3", scale=1e6),
        whole("bytes of gradients", "gradient_bytes"),
    ]
    caption = (
        "Wire of a step, and one message of all gradients over the probed network: its floor, unless "
        f"backward hides a part of it; a warning stands below where rest exceeds {MOST_REST:.0%} of a step"
    )
    return grid("network", caption.replace("2%", "2 %"), report.overhead.network, columns, "network.csv")


def _pairs(report: Report) -> Grid:
    columns = [
        text("host", "host"),
        text("and", "other_host"),
        text("over", "medium"),
        figure("latency, ms", "latency_seconds", "~3", scale=1e-3, bounded=False),
        figure("bandwidth, MB/s", "bytes_per_second", "~3", scale=1e6, bounded=False),
        whole("times measured", "measurements"),
    ]
    caption = "MPI between two hosts, one message at a time, before the runs"
    return grid("ping-pong", caption, pair_table(report.study.ping_pongs), columns, "ping_pong.csv")


def _remarks(report: Report) -> Iterator[str]:
    for diagnosis in report.diagnoses[:MOST_DIAGNOSES]:
        prefix = f"[{diagnosis.options}] " if diagnosis.options else ""
        yield sentence(prefix + str(diagnosis))
    if len(report.diagnoses) > MOST_DIAGNOSES:
        yield f"{len(report.diagnoses) - MOST_DIAGNOSES} more in diagnosis.csv."
    if len(report.overhead.budget) and not report.diagnoses:
        yield "No rule of the diagnosis found its evidence."
    yield from (sentence(note) for note in report.budget_notes[:MOST_DIAGNOSES])
