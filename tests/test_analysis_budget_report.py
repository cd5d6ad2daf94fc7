"""The overhead budget in figures, page and console: what is drawn is what the tables say."""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.budget.shares import PARTS
from analysis.budget.tables import budget_table
from analysis.figures import catalogue
from analysis.figures.drawing.budget_parts import BUDGET_PARTS
from analysis.loading.load import load_study
from analysis.report.assemble import Report, make_report
from analysis.report.console import print_report
from analysis.report.figure_files import FigureFiles, draw_figures, inputs_of
from analysis.report.html import page
from analysis.report.tables import table_files
from tests.budgets import Steps, make_probe, write_budget_run
from tests.report_studies import write_study
from unet_scaling.study.config import PROJECT

NAMES = ("budget", "waterfall", "difference", "wire")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Both frameworks on 1, 2 and 4 workers; Horovod's wire is slow, its optimizer fast on several."""
    folder = tmp_path_factory.mktemp("logs") / "budget"
    for repeat in (1, 2, 3):
        pace = 1 + 0.03 * repeat
        for workers in (1, 2, 4):
            probe = make_probe() if workers > 1 else None
            wire = 0.002 * (workers - 1)
            native = Steps(sync=wire, wire=wire, forward=0.030 + 0.001 * workers)
            horovod = Steps(sync=10 * wire, wire=10 * wire, optimizer=0.006 if workers == 1 else 0.003)
            write_budget_run(folder, "pytorch_native", workers, repeat, native, pace=pace, probe=probe)
            write_budget_run(folder, "horovod", workers, repeat, horovod, pace=pace, probe=probe)
    return make_report(load_study(folder))


@pytest.fixture(scope="module")
def figures(report: Report) -> FigureFiles:
    return draw_figures(report)


@pytest.fixture(scope="module")
def drawn(report: Report) -> dict[str, Figure]:
    inputs = inputs_of(report)
    return {name: catalogue.draw(name, inputs) for name in NAMES}


def bars(axes: Axes) -> list[tuple[str, float]]:
    """Colour and height of each bar of a stack, in the order drawn."""
    patches = [patch for container in axes.containers for patch in container]
    return [(str(patch.get_facecolor()), float(patch.get_height())) for patch in patches]


def test_every_figure_of_the_budget_is_drawn_with_its_texts(figures: FigureFiles) -> None:
    for name in NAMES:
        assert re.search(r"[0-9] (%|ms)", figures.drawn[name].alternative)
        assert "Bars: 75 % bootstrap intervals" in figures.drawn[name].caption


def test_stacks_are_the_parts_of_the_table(report: Report, drawn: dict[str, Figure]) -> None:
    for axes, framework in zip(drawn["budget"].axes, ("pytorch_native", "horovod"), strict=True):
        rows = report.overhead.budget[report.overhead.budget["framework"] == framework]
        heights = np.array([height for _, height in bars(axes)]).reshape(len(PARTS), len(rows))
        np.testing.assert_allclose(heights, rows[list(PARTS)].to_numpy().T, atol=1e-12)
        whole = next(line for line in axes.lines if line.get_label() == "whole")
        np.testing.assert_allclose(np.asarray(whole.get_ydata(), dtype=float), rows["deviation"])
    assert len({colour for colour, _ in bars(axes)}) == len(PARTS)


def test_gains_are_below_zero_and_stacks_stand_on_each_other(drawn: dict[str, Figure]) -> None:
    horovod = drawn["budget"].axes[1]
    patches = [patch for container in horovod.containers for patch in container if patch.get_height()]
    tops = dict(zip(PARTS, horovod.containers, strict=True))
    assert all(patch.get_height() < 0 and patch.get_y() <= 0 for patch in tops["optimizer"])
    assert horovod.get_ylim()[0] < min(patch.get_y() + patch.get_height() for patch in patches)


def test_the_waterfall_goes_from_nothing_to_the_sum_of_its_parts(
    report: Report, drawn: dict[str, Figure]
) -> None:
    for axes, framework in zip(drawn["waterfall"].axes, ("pytorch_native", "horovod"), strict=True):
        last = report.overhead.budget[report.overhead.budget["framework"] == framework].iloc[-1]
        first, *_, before, whole = (bars[0] for bars in axes.containers)
        assert first.get_x() == whole.get_x() == 0
        assert whole.get_width() == pytest.approx(last["deviation"])
        assert before.get_x() + before.get_width() == pytest.approx(whole.get_width())


def test_wire_and_floor_are_drawn_in_milliseconds(report: Report, drawn: dict[str, Figure]) -> None:
    (axes,) = drawn["wire"].axes
    heights = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in axes.lines])
    network = report.overhead.network
    for name in ("wire_seconds", "floor_seconds"):
        assert all(np.isclose(heights, 1000 * value).any() for value in network[name])


def test_parts_are_told_apart_in_grey_by_their_neighbours() -> None:
    def grey(colour: str) -> float:
        red, green, blue = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    levels = [grey(look.colour) for look in BUDGET_PARTS.values()]
    assert list(BUDGET_PARTS) == list(PARTS)
    assert min(abs(one - other) for one, other in pairwise(levels)) > 0.25


def test_colours_follow_the_page(figures: FigureFiles) -> None:
    style = (PROJECT / "analysis" / "report" / "report.css").read_text()
    for name in NAMES:
        text = "".join(figures.drawn[name].panels)
        assert re.findall(r"#[0-9a-f]{6}\b", text) == []
        used = re.findall(r"var\((--[a-z]+)\)", text)
        assert used
        assert all(f"{variable}: #" in style for variable in used)


def test_the_page_has_budget_difference_floor_and_diagnosis(report: Report, figures: FigureFiles) -> None:
    text = page(report, figures)
    assert 'id="budget"' in text
    for words in (
        "Where the lost efficiency went",
        "Horovod&#39;s time above DDP",
        "why_fusion.toml",
        "one message, ms",
    ):
        assert words in text


def test_the_tables_of_the_budget_are_written(report: Report) -> None:
    files = table_files(report)
    assert files["budget.csv"].decode().count("\n") == 5
    assert files["difference.csv"].decode().count("\n") == 4
    assert b"wire above its floor" in files["diagnosis.csv"]


def test_the_console_prints_the_strongest_diagnoses(
    report: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    print_report(report)
    shown = capsys.readouterr().out
    assert shown.index("Where the time goes") < shown.index("the wire is far above its floor")


def test_without_budgets_the_page_says_why_nothing_is_drawn(tmp_path: Path) -> None:
    older = make_report(load_study(write_study(tmp_path, (1, 2), repeats=1)))
    assert budget_table(older.study).empty
    figures = draw_figures(older)
    assert set(NAMES) <= set(figures.missing)
    text = page(older, figures)
    assert "Not drawn: overhead budget." in text
    assert "recorded no budget" in text
