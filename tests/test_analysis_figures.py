"""Figures: what is drawn is what the tables say, what is not known is not drawn, and names stay text."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from analysis.figures.catalogue import FIGURES, draw, draw_panels
from analysis.figures.drawing.curves import MOST_COUNTS
from analysis.figures.drawing.inputs import Inputs
from analysis.figures.drawing.layout import PANEL_WIDTH_PX
from analysis.figures.drawing.stacks import Stack, StackChart, stack_panels
from analysis.figures.drawing.style import (
    AXIS_TITLE_PX,
    FRAMEWORK_STYLES,
    MUTED,
    TEXT_PX,
    TITLE_PX,
    PartStyle,
    shortened,
    text_width,
)
from analysis.figures.drawing.svg import VARIABLES, image, inline_svg
from analysis.figures.drawing.titles import SVG
from analysis.findings.comparison import compare
from analysis.findings.cost import cost_table
from analysis.findings.quality import iou_table
from analysis.findings.speedup import summarise
from analysis.findings.verdict import verdicts
from analysis.loading.load import load_study
from analysis.loading.reference import load_reference
from analysis.prediction.extrapolation import PREDICTION_COLUMNS, extrapolate
from analysis.report.figure_files import MAIN, section_of
from analysis.study import NAMES, Study, names_of
from analysis.text import chart_number, printable
from tests.records import write_run
from unet_scaling.study.config import PROJECT, Framework

REFERENCE = Path(__file__).resolve().parents[2] / "shared" / "reference" / "v100"
ALL = [
    "scaling", "ratio", "loss", "cost", "time_to_iou", "prediction",
]  # fmt: skip
# Their records have neither budget nor start-up, no saliency maps, and no file of single steps.
UNRECORDED = {
    "quality", "budget", "waterfall", "difference", "wire", "startup",
    "saliency_speed", "saliency_budget", "saliency_curves",
}  # fmt: skip
HOSTILE = '<script>alert("1")</script> $x^2$ \'&amp; {{ 7*7 }} --> \x1b'


def tables_of(study: Study, *, predicted: bool = False) -> Inputs:
    """What every function of the figures takes; predictions take their time, so only where asked for."""
    return Inputs(
        study,
        summarise(study),
        compare(study),
        iou_table(study),
        cost_table(study),
        extrapolate(study).predictions if predicted else pd.DataFrame(columns=list(PREDICTION_COLUMNS)),
        verdicts(study, compare(study)),
    )


def write_study(
    folder: Path, counts: Iterable[int] = (1, 2, 4), repeats: int = 3, skip: tuple[tuple[str, int], ...] = ()
) -> Study:
    """Both frameworks with a little noise; Horovod scales worse. `skip` names points that are missing."""
    random = np.random.default_rng(0)
    loss: Mapping[Framework, float] = {"pytorch_native": 0.01, "horovod": 0.06}
    for repeat in range(1, repeats + 1):
        for framework, each in loss.items():
            for workers in counts:
                speed = 100 * workers / (1 + each * (workers - 1)) * random.normal(1, 0.01)
                if (framework, workers) not in skip:
                    iou = 0.8 + 0.003 * float(random.normal())
                    write_run(folder, framework, workers, repeat, images_per_second=speed, iou=iou)
    return load_study(folder)


def with_evaluations(study: Study) -> Study:
    """The study as if every run had been evaluated after each epoch."""
    last = study.evaluations
    early = last.assign(training_seconds=last["training_seconds"] / 2, iou=last["iou"] - 0.2, epochs=1)
    return replace(study, evaluations=pd.concat([early, last], ignore_index=True))


def changed(tables: Inputs, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Inputs:
    """The same with every table of points, and that of the runs, changed alike."""
    return replace(
        tables,
        study=replace(tables.study, runs=change(tables.study.runs)),
        points=change(tables.points),
        comparisons=change(tables.comparisons),
        iou=change(tables.iou),
        cost=change(tables.cost),
        predictions=change(tables.predictions),
    )


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return with_evaluations(write_study(tmp_path_factory.mktemp("logs") / "tiny"))


@pytest.fixture(scope="module")
def tables(study: Study) -> Inputs:
    return tables_of(study, predicted=True)


@pytest.fixture(scope="module")
def drawn(tables: Inputs) -> dict[str, Figure]:
    return every_figure(tables)


def every_figure(tables: Inputs) -> dict[str, Figure]:
    return {name: draw(name, tables) for name in FIGURES if FIGURES[name].missing(tables) is None}


def not_drawn(tables: Inputs) -> dict[str, str]:
    """Why the other figures are missing, by name."""
    reasons = {name: figure.missing(tables) for name, figure in FIGURES.items()}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def caption(name: str, tables: Inputs) -> str:
    return FIGURES[name].caption(tables)


def line_of(axes: Axes, name: str) -> Line2D:
    return next(line for line in axes.lines if line.get_label() == name)


def values_of(line: Line2D) -> list[float]:
    return [float(value) for value in np.asarray(line.get_ydata(), dtype=float)]


def scattered(axes: Axes) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
    """The places of the single runs of each series, [runs, 2]."""
    groups = [each for each in axes.collections if isinstance(each, PathCollection)]
    return [np.asarray(group.get_offsets(), dtype=np.float64) for group in groups]


def marks(axes: Axes) -> int:
    return sum(len(each) for each in scattered(axes))


def bars(axes: Axes) -> list[tuple[float, float]]:
    """The lower and upper ends of the interval bars."""
    groups = [each for each in axes.collections if not isinstance(each, PathCollection)]
    ends = [np.asarray(path.vertices)[:, 1] for group in groups for path in group.get_paths()]
    return [(float(low), float(high)) for low, high in ends]


def texts(figure: Figure) -> str:
    """Every text of a figure."""
    return " | ".join(text.get_text() for text in figure.findobj(Text))


def dotted(axes: Axes) -> list[Line2D]:
    return [
        line for line in axes.lines if line.get_label().__str__().startswith("_") and line.get_zorder() == 3
    ]


def test_all_figures_come_in_reading_order(drawn: dict[str, Figure], tables: Inputs) -> None:
    assert list(drawn) == ALL
    assert set(not_drawn(tables)) == UNRECORDED


def test_every_module_of_the_folder_is_a_figure_of_the_catalogue() -> None:
    files = {path.stem for path in (PROJECT / "analysis" / "figures").glob("*.py")}
    assert files - {"__init__", "catalogue"} == set(FIGURES)


def test_lines_go_through_the_medians_of_the_tables(drawn: dict[str, Figure], tables: Inputs) -> None:
    for axes, column in zip(drawn["scaling"].axes, ("speedup", "iou"), strict=True):
        for framework, name in names_of().items():
            points = tables.points[tables.points["framework"] == framework]
            assert values_of(line_of(axes, name)) == pytest.approx(list(points[column]))


def test_every_run_and_every_interval_is_drawn(drawn: dict[str, Figure], tables: Inputs) -> None:
    axes, _ = drawn["scaling"].axes
    assert marks(axes) == 18
    several = tables.points[tables.points["workers"] > 1]
    known = several[["speedup_low", "speedup_high"]].to_numpy()
    assert bars(axes) == [tuple(interval) for interval in known]


def test_a_framework_looks_the_same_everywhere(drawn: dict[str, Figure]) -> None:
    for name in ("scaling", "prediction"):
        for axes in drawn[name].axes:
            for framework, label in names_of().items():
                line = line_of(axes, label)
                assert (line.get_color(), line.get_marker()) == (
                    FRAMEWORK_STYLES[framework].colour,
                    FRAMEWORK_STYLES[framework].marker,
                )


def test_every_axis_contains_zero_or_is_logarithmic(drawn: dict[str, Figure]) -> None:
    for name, figure in drawn.items():
        for axes in figure.axes:
            pairs = [(axes.get_xlim(), axes.get_xscale()), (axes.get_ylim(), axes.get_yscale())]
            for limits, scale in pairs if len(axes.get_yticks()) else pairs[:1]:
                assert scale == "log" or limits[0] <= 0 < limits[1], name


def test_all_that_is_known_lies_inside_its_panel(drawn: dict[str, Figure]) -> None:
    for axes in drawn["scaling"].axes:
        low, high = axes.get_ylim()
        for label in names_of().values():
            assert all(low <= value <= high for value in values_of(line_of(axes, label)))


def test_a_missing_middle_is_bridged_by_dots_only(tmp_path: Path) -> None:
    tables = tables_of(write_study(tmp_path, (1, 2, 4, 8), skip=(("horovod", 4),)))
    axes = draw("scaling", tables).axes[0]
    assert np.isnan(values_of(line_of(axes, "Horovod"))[2])
    (bridge,) = dotted(axes)
    assert list(np.asarray(bridge.get_xdata())) == [2, 8]
    assert bridge.get_color() == FRAMEWORK_STYLES["horovod"].colour
    assert "Dotted" in caption("scaling", tables)


def test_nothing_is_bridged_where_nothing_is_missing(drawn: dict[str, Figure], tables: Inputs) -> None:
    assert dotted(drawn["scaling"].axes[0]) == []
    assert "Dotted" not in caption("scaling", tables)


def test_one_missing_baseline_is_said_and_the_other_curve_drawn(tmp_path: Path) -> None:
    tables = tables_of(write_study(tmp_path, skip=(("horovod", 1),)))
    figure = draw("scaling", tables)
    assert "not known: Horovod" in texts(figure)
    assert np.isnan(values_of(line_of(figure.axes[0], "Horovod"))).all()


def test_without_any_baseline_throughput_is_drawn_in_place_of_the_speedup(tmp_path: Path) -> None:
    tables = tables_of(write_study(tmp_path, (2, 4)))
    drawn, absent = every_figure(tables), not_drawn(tables)
    assert "Throughput, images / s" in texts(drawn["scaling"])
    horovod = tables.points[tables.points["framework"] == "horovod"]
    line = line_of(drawn["scaling"].axes[0], "Horovod")
    assert values_of(line) == pytest.approx(list(horovod["throughput"]))
    assert "Throughput, images / s at the most workers: native DDP" in FIGURES["scaling"].alternative(tables)
    assert "own run on 1 worker" not in caption("scaling", tables)
    assert set(drawn) | set(absent) == {*ALL, *UNRECORDED}
    assert "at least 3 worker counts" in absent["prediction"]
    assert "evaluate_every" in absent["time_to_iou"]


def test_unknown_iou_draws_no_iou(tmp_path: Path) -> None:
    for workers in (1, 2):
        write_run(tmp_path, "horovod", workers, iou=None)
    tables = tables_of(load_study(tmp_path))
    assert "time_to_iou" in not_drawn(tables)
    assert len(draw("scaling", tables).axes) == 1


def test_a_wide_range_of_workers_is_drawn_log_log(tmp_path: Path) -> None:
    tables = tables_of(write_study(tmp_path, (1, 4, 64), repeats=1))
    speedup, iou = draw("scaling", tables).axes
    assert (speedup.get_xscale(), speedup.get_yscale()) == ("log", "log")
    assert (iou.get_xscale(), iou.get_yscale()) == ("log", "linear")
    assert speedup.get_ylim()[1] > 64


def eight_options(tables: Inputs) -> Inputs:
    def eightfold(table: pd.DataFrame) -> pd.DataFrame:
        return pd.concat([table.assign(options=f"batch={each}") for each in range(8)], ignore_index=True)

    return changed(tables, eightfold)


def test_the_first_figure_is_the_scaling_or_of_several_options_their_ratios(tables: Inputs) -> None:
    def first(inputs: Inputs) -> list[str]:
        return [name for name in FIGURES if section_of(inputs, name) == MAIN]

    assert first(tables) == ["scaling"]
    assert first(eight_options(tables)) == ["ratio"]


def test_at_most_six_sets_of_options_are_drawn_and_the_caption_says_so(tables: Inputs) -> None:
    many = eight_options(tables)
    scaling = draw("scaling", many)
    assert len(scaling.axes) == 2 * 6
    assert "2 more sets of options" in caption("scaling", many)
    assert "batch=5" in texts(scaling)


def test_many_repeats_are_thinned_and_the_caption_says_so(tables: Inputs) -> None:
    runs = pd.concat([tables.study.runs.assign(repeat=each) for each in range(30)], ignore_index=True)
    points = tables.points.assign(repeats=90)
    many = replace(tables, study=replace(tables.study, runs=runs), points=points)
    assert marks(draw("scaling", many).axes[0]) == 6 * 20
    assert "the first 20 of a point" in caption("scaling", many)


def test_loss_lines_are_capped(tmp_path: Path) -> None:
    tables = tables_of(write_study(tmp_path, range(1, 10), repeats=1))
    for axes, name in zip(draw("loss", tables).axes[::2], names_of().values(), strict=True):
        assert len(axes.lines) == MOST_COUNTS
        assert {f"{name}, 1", f"{name}, 9"} <= {line.get_label() for line in axes.lines}
    assert "Not every worker count is drawn" in caption("loss", tables)


def test_loss_lines_are_medians_over_cumulative_time(drawn: dict[str, Figure], study: Study) -> None:
    names = study.runs.loc[(study.runs["framework"] == "horovod") & (study.runs["workers"] == 2), "run"]
    epochs = study.epochs[study.epochs["run"].isin(names)]
    elapsed = epochs.assign(elapsed=epochs.groupby("run")["seconds"].cumsum()).groupby("epoch")["elapsed"]
    line = line_of(drawn["loss"].axes[3], "Horovod, 2")
    assert list(np.asarray(line.get_xdata(), dtype=float)) == pytest.approx(list(elapsed.median()))
    assert values_of(line) == pytest.approx([0.7, 0.35, 0.7 / 3])


def test_time_to_iou_shows_the_target(drawn: dict[str, Figure], tables: Inputs) -> None:
    target = tables.cost["target_iou"].iloc[0]
    assert f"target {target:.2f}" in texts(drawn["time_to_iou"])
    last = values_of(line_of(drawn["time_to_iou"].axes[0], "native DDP, 4"))
    assert last[1] - last[0] == pytest.approx(0.2)


def test_only_the_pareto_set_is_filled_and_joined(drawn: dict[str, Figure], tables: Inputs) -> None:
    (axes,) = drawn["cost"].axes
    marked = [line for line in axes.lines if line.get_marker() in ("o", "s")]
    filled = [line for line in marked if line.get_markerfacecolor() == line.get_color()]
    front = tables.cost[tables.cost["pareto"]]
    assert sorted(each for line in filled for each in values_of(line)) == pytest.approx(
        sorted(front["seconds_to_target"])
    )
    assert sum(len(values_of(line)) for line in marked) == 6
    joined = next(line for line in axes.lines if line.get_color() == MUTED)
    assert len(values_of(joined)) == len(front)


def test_an_arm_with_too_few_counts_is_drawn_without_predictions(tmp_path: Path) -> None:
    tables = tables_of(write_study(tmp_path, skip=(("horovod", 4),)), predicted=True)
    (axes,) = draw("prediction", tables).axes
    beyond = [line for line in axes.lines if np.asarray(line.get_xdata())[-1] == 8]
    assert [values_of(line)[-1] for line in beyond] == list(tables.predictions["predicted"])
    assert set(tables.predictions["framework"]) == {"pytorch_native"}


def test_predictions_are_drawn_open_and_the_extrapolation_dashed(tmp_path: Path) -> None:
    tables = tables_of(write_study(tmp_path, (1, 2, 3, 4, 6)), predicted=True)
    (axes,) = draw("prediction", tables).axes
    rows = tables.predictions[
        (tables.predictions["framework"] == "horovod") & (tables.predictions["fitted_on"] == "1-3")
    ]
    assert values_of(line_of(axes, "Horovod, predicted")) == pytest.approx(list(rows["predicted"]))
    assert axes.get_xlim()[1] > 12
    expected = tables.predictions[~tables.predictions["held_out"].astype(bool)]
    ends = {values_of(line)[-1] for line in axes.lines if np.asarray(line.get_xdata())[-1] == 12}
    assert ends == set(expected["predicted"])
    assert "predicted from 1-3 workers, median error" in caption("prediction", tables)


def test_captions_say_how_many_runs_and_what_the_bars_are_worth(tables: Inputs) -> None:
    for name in ALL:
        assert caption(name, tables).startswith("18 runs (9 native DDP, 9 Horovod), 3 per point.")
    assert "Bars: 75 % bootstrap intervals" in caption("scaling", tables)


def test_captions_say_what_was_left_out(tmp_path: Path) -> None:
    write_run(tmp_path, "horovod", 2, 9, end=None)
    tables = tables_of(write_study(tmp_path))
    assert "1 run was left out" in caption("scaling", tables)


def test_alternative_texts_have_the_key_numbers(drawn: dict[str, Figure], tables: Inputs) -> None:
    points = tables.points.set_index(["framework", "workers"])
    speedup = float(points["speedup"].to_dict()["horovod", 4])
    assert f"Horovod {speedup:.3g}" in FIGURES["scaling"].alternative(tables)
    for name in ALL:
        text = FIGURES[name].alternative(tables)
        assert "native DDP" in text
        assert re.search(r"\d", text)
        assert drawn[name].get_label() == text


@pytest.mark.parametrize("file_format", ["svg", "png"])
def test_the_same_tables_give_the_same_bytes(tables: Inputs, file_format: str) -> None:
    first, second = (draw("scaling", tables) for _ in range(2))
    once = image(first, file_format)
    assert once == image(second, file_format) == image(first, file_format)


@pytest.fixture(scope="module")
def panels(tables: Inputs) -> dict[str, str]:
    """The SVG of every panel of every figure for a page, by its id."""
    return every_panel(tables)


def every_panel(tables: Inputs) -> dict[str, str]:
    """The same of any tables."""
    names = [name for name in FIGURES if FIGURES[name].missing(tables) is None]
    return {
        f"{name}-{number}": inline_svg(panel, f"{name}-{number}")
        for name in names
        for number, panel in enumerate(draw_panels(name, tables))
    }


def elements(svg: str, tag: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter(f"{{{SVG}}}{tag}"))


def titles(svg: str) -> list[str]:
    return [str(element.text) for element in elements(svg, "title")]


def test_a_panel_is_as_wide_as_its_column_at_scale_one_and_speaks(panels: dict[str, str]) -> None:
    for name, svg in panels.items():
        root = ElementTree.fromstring(svg)
        width, height = float(root.attrib["width"]), float(root.attrib["height"])
        assert svg.startswith("<svg")
        assert [float(each) for each in root.attrib["viewBox"].split()] == [0, 0, width, height]
        assert width == PANEL_WIDTH_PX, name
        assert root.get("role") == "img"
        assert len(root.attrib["aria-label"]) > 10
        assert elements(svg, "style") == []


def test_panels_side_by_side_are_of_one_height(panels: dict[str, str]) -> None:
    for name in ("scaling", "loss"):
        heights = {ElementTree.fromstring(panels[f"{name}-{number}"]).attrib["height"] for number in (0, 1)}
        assert len(heights) == 1, name


def test_all_texts_are_texts_in_three_sizes(panels: dict[str, str]) -> None:
    sizes = set()
    for svg in panels.values():
        for text in elements(svg, "text"):
            sizes |= set(re.findall(r"([0-9.]+)px", text.attrib["style"]))
    assert sizes == {str(size) for size in (TEXT_PX, AXIS_TITLE_PX, TITLE_PX)}


def box(text: ElementTree.Element) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a text in an SVG."""
    style = text.attrib["style"]
    size = float(re.findall(r"([0-9.]+)px", style)[0])
    width = text_width("".join(text.itertext()), px=size, bold="font-weight:700" in style)
    x, y = (float(text.attrib.get(name, 0)) for name in ("x", "y"))
    anchor = re.search(r"text-anchor:(\w+)", style)
    start = width * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor[1] if anchor else "start"]
    return x - start, y - 0.8 * size, x - start + width, y + 0.2 * size


def test_no_text_leaves_its_panel(panels: dict[str, str], hostile_panels: dict[str, str]) -> None:
    for name, svg in [*panels.items(), *hostile_panels.items()]:
        height = float(ElementTree.fromstring(svg).attrib["height"])
        for text in elements(svg, "text"):
            if "rotate(-90" not in text.get("transform", ""):
                left, top, right, bottom = box(text)
                room = min(left, top, PANEL_WIDTH_PX - right, height - bottom)
                assert room >= -1, (name, "".join(text.itertext()))


def test_every_mark_of_a_launch_names_it(panels: dict[str, str], study: Study) -> None:
    shown = titles(panels["scaling-0"])
    for run in study.runs.to_dict("records"):
        throughput = chart_number(run["images_per_second"], ".4g")
        assert f"{run['run']}, node1, {throughput} images / s, seed {run['seed']}" in shown


def test_every_median_says_its_value_and_interval(panels: dict[str, str], tables: Inputs) -> None:
    shown = titles(panels["scaling-0"])
    for point in tables.points[tables.points["workers"] > 1].to_dict("records"):
        value, low, high = (chart_number(point[f"speedup{end}"]) for end in ("", "_low", "_high"))
        name = NAMES[point["framework"]]
        assert f"{name} on {point['workers']} workers: {value} [{low}, {high}]" in shown


def test_a_panel_holds_nothing_that_does_not_show(panels: dict[str, str]) -> None:
    """Groups and ids that nothing needs, decimals below a hundredth of a pixel, paths that paint nothing."""
    for name, svg in panels.items():
        root = ElementTree.fromstring(svg)
        for element in list(root.iter())[1:]:
            drawn = [value for key, value in element.attrib.items() if key in ("d", "x", "y", "transform")]
            assert not re.search(r"\.\d{3}", " ".join(drawn)), name
            assert (
                element.attrib
                or not element.tag.endswith("}g")
                or element.find(f"{{{SVG}}}title") is not None
            )
            assert not (element.tag.endswith("}path") and element.get("style") == "fill:none"), name
            assert "id" not in element.attrib or f"#{element.attrib['id']}" in svg, name


def test_equal_marks_have_their_style_once(panels: dict[str, str]) -> None:
    shown = elements(panels["scaling-0"], "use")
    single_runs = [mark for mark in shown if mark.find(f"{{{SVG}}}title") is not None]
    assert len(single_runs) > 10
    assert sum("fill-opacity" in mark.get("style", "") for mark in single_runs) == 0
    clouds = [
        group for group in elements(panels["scaling-0"], "g") if "fill-opacity" in group.get("style", "")
    ]
    assert len(clouds) == 2


def test_ids_do_not_collide_and_references_hold(panels: dict[str, str]) -> None:
    seen: set[str] = set()
    for name, text in panels.items():
        ids = [element.get("id", "") for element in ElementTree.fromstring(text).iter() if element.get("id")]
        assert len(ids) == len(set(ids))
        assert seen.isdisjoint(ids), name
        seen |= set(ids)
        referred = {*re.findall(r"url\(#([^)]+)\)", text), *re.findall(r'href="#([^"]+)"', text)}
        assert referred
        assert referred <= set(ids)


def test_colours_are_variables_of_the_page(panels: dict[str, str]) -> None:
    for name, text in panels.items():
        assert re.findall(r"#[0-9a-f]{6}\b", text) == [], name
        assert set(re.findall(r"var\((--[a-z]+)", text)) <= set(VARIABLES.values())
    assert "var(--native)" in panels["scaling-0"]


def test_ratios_stand_beside_one_with_their_intervals(drawn: dict[str, Figure], tables: Inputs) -> None:
    axes, _ = drawn["ratio"].axes
    known = tables.comparisons.sort_values("workers", ascending=False)
    marked = [line for line in axes.lines if line.get_marker() in ("D", "o", "s")]
    places = [float(np.asarray(line.get_xdata())[0]) for line in marked]
    assert places == pytest.approx(list(known["ratio"]))
    assert "4 workers" in texts(drawn["ratio"])
    assert any(list(np.asarray(line.get_xdata())) == [1, 1] for line in axes.lines)


def test_beside_the_ratios_stands_the_iou_of_both_frameworks_in_the_same_rows(
    drawn: dict[str, Figure], tables: Inputs
) -> None:
    ratios, differences = drawn["ratio"].axes
    assert ratios.get_ylim() == differences.get_ylim()
    marked = [line for line in differences.lines if line.get_marker() in ("o", "s")]
    places = sorted(float(np.asarray(line.get_xdata())[0]) for line in marked)
    assert places == pytest.approx(sorted(tables.iou["difference"].dropna()))
    assert "the margin of 0.01" in caption("ratio", tables)


def test_without_a_difference_of_the_iou_the_ratios_stand_alone(tables: Inputs) -> None:
    unknown = replace(tables, iou=tables.iou.assign(difference=np.nan))
    assert len(draw("ratio", unknown).axes) == 1
    assert "IoU" not in caption("ratio", unknown)


def test_the_parts_of_stacked_bars_have_one_legend() -> None:
    chart = StackChart({"wire": PartStyle("wire", "red", "black")}, "whole", "whole", str, False, 1.0)
    table = pd.DataFrame(
        {"workers": [2], "wire": [1.0], "whole": [1.0], "whole_low": [0.9], "whole_high": 1.1}
    )
    legends = [
        len(panel.legend) for panel in stack_panels(chart, [Stack("one", table), Stack("other", table)])
    ]
    assert legends == [1, 0]


def test_more_ratios_than_thirty_are_cut_and_the_caption_says_so(tables: Inputs) -> None:
    tenfold = [tables.comparisons.assign(options=f"batch={each}") for each in range(12)]
    many = replace(tables, comparisons=pd.concat(tenfold, ignore_index=True))
    (axes,) = draw("ratio", many).axes
    shown = [text.get_text() for text in axes.texts]
    assert shown.count("batch=11") == 2
    assert [text for text in shown if text.endswith("workers")] == ["4 workers", "2 workers"]
    assert "The first 30 of 36 rows; all are in comparison.csv." in caption("ratio", many)


@pytest.fixture(scope="module")
def hostile(tables: Inputs) -> Inputs:
    """Tables with a long and hostile text wherever a name may stand."""

    def named(table: pd.DataFrame) -> pd.DataFrame:
        return table.assign(options=HOSTILE, knobs=HOSTILE)

    changed_tables = changed(tables, named)
    return replace(changed_tables, study=replace(changed_tables.study, name=HOSTILE))


@pytest.fixture(scope="module")
def hostile_panels(hostile: Inputs) -> dict[str, str]:
    return every_panel(hostile)


def test_hostile_names_stay_text(hostile: Inputs, hostile_panels: dict[str, str]) -> None:
    for name, text in hostile_panels.items():
        root = ElementTree.fromstring(text)
        assert "<script" not in text
        assert "-->" not in text
        written = " ".join("".join(element.itertext()) for element in root.iter(f"{{{SVG}}}text"))
        assert '<script>alert("1")' in written, name
    assert "$x^2$" in written
    assert all("\x1b" not in caption(name, hostile) + FIGURES[name].alternative(hostile) for name in ALL)


def test_names_are_cut_to_their_room_and_made_printable() -> None:
    assert printable("a\x00b\nc") == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c"
    assert shortened("short", 100) == "short"
    cut = shortened("x" * 500, 100)
    assert cut.endswith("…")
    assert 90 < text_width(cut) <= 100


def test_reference_logs_have_no_bars_and_no_claim_about_iou() -> None:
    if not REFERENCE.is_dir():
        pytest.skip("the published logs are not on this machine")
    tables = tables_of(load_reference(REFERENCE))
    absent = not_drawn(tables)
    assert "test images" in absent["time_to_iou"]
    assert "No intervals: they need 3 runs" in caption("scaling", tables)
    for axes in draw("scaling", tables).axes:
        assert marks(axes) == 0
        assert bars(axes) == []
