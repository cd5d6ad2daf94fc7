"""The report as a user meets it: the command, its files and what it prints."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from PIL import Image

from analysis.__main__ import main
from analysis.load import load_study
from analysis.plots import scaling_figure
from analysis.report import make_report, number, write_whole
from analysis.speedup import COLUMNS
from tests.records import write_run
from unet_scaling.errors import EXIT_BAD_DATA, EXIT_USAGE, UserError

FILES = {"runs.csv", "summary.csv", "left_out.csv", "scaling.svg", "scaling.png"}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Both frameworks on 1 and 2 workers, twice."""
    folder = tmp_path / "logs" / "tiny"
    for repeat in (1, 2):
        for workers, native, horovod in ((1, 100.0, 100.0), (2, 187.0, 162.0)):
            write_run(folder, "pytorch_native", workers, repeat, images_per_second=native)
            write_run(folder, "horovod", workers, repeat, images_per_second=horovod)
    return folder


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))


def figure_of(folder: Path) -> Figure:
    report = make_report(load_study(folder))
    return scaling_figure(report.study, report.points, report.verdicts)


def test_the_command_writes_the_report_beside_the_runs(study: Path) -> None:
    assert main([str(study)]) == 0
    assert {path.name for path in (study / "report").iterdir()} == FILES


def test_the_command_prints_table_verdict_and_place(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(study), "--output", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert "93.5 %" in printed
    assert "not enough repeats for a verdict: 2 per point" in printed
    assert printed.index("93.5 %") < printed.index("not enough repeats") < printed.index("report: ")
    assert printed.endswith(f"report: {tmp_path / 'out'}\n")


def test_summary_csv_has_the_agreed_columns_first(study: Path) -> None:
    main([str(study)])
    header = (study / "report" / "summary.csv").read_text().splitlines()[0]
    assert header.startswith(",".join(COLUMNS) + ",")


def test_summary_csv_leaves_unknown_cells_empty(study: Path) -> None:
    main([str(study)])
    rows = read_csv(study / "report" / "summary.csv")
    two = next(row for row in rows if row["framework"] == "pytorch_native" and row["workers"] == "2")
    assert float(two["speedup"]) == pytest.approx(1.87)
    assert {two[name] for name in ("speedup_low", "speedup_high", "iou_low", "iou_high")} == {""}


def test_without_a_baseline_speedup_cells_are_empty_and_the_reason_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, "horovod", 2, images_per_second=162.0)
    main([str(tmp_path)])
    (row,) = read_csv(tmp_path / "report" / "summary.csv")
    assert {row[name] for name in ("speedup", "efficiency", "deviation")} == {""}
    assert float(row["images_per_second"]) == pytest.approx(162)
    printed = capsys.readouterr().out
    assert "Horovod: speed-up: no run on 1 worker" in printed
    assert "—" in printed


def test_axes_of_the_study_are_columns(tmp_path: Path) -> None:
    for precision in ("fp32", "bf16"):
        write_run(tmp_path, options={"training": {"precision": precision}}, label=f"-{precision}")
    main([str(tmp_path)])
    for name in ("runs.csv", "summary.csv"):
        rows = read_csv(tmp_path / "report" / name)
        assert [row["training.precision"] for row in rows] == ["bf16", "fp32"]


def test_runs_left_out_are_listed_in_the_file_and_on_the_screen(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(study, "horovod", 2, 3, end=None)
    write_run(study, "horovod", 2, 4, header={"test_images": 30})
    main([str(study)])
    printed = capsys.readouterr().out
    rows = read_csv(study / "report" / "left_out.csv")
    assert [(row["run"], row["state"]) for row in rows] == [
        ("horovod-w02-r3", "failed"),
        ("horovod-w02-r4", "refused"),
    ]
    assert "Left out: 2" in printed
    assert all(row["reason"] in printed for row in rows)


def test_the_same_input_gives_the_same_bytes(study: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        main([str(study), "--output", str(tmp_path / name)])
    for name in FILES:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes(), name


def test_a_file_that_cannot_be_replaced_stays_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "summary.csv"
    path.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_output_that_cannot_be_written_is_told_with_the_cure(study: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(UserError, match="--output"):
        main([str(study), "--output", str(tmp_path / "taken")])


def test_a_study_without_usable_runs_is_bad_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, end=None)
    with pytest.raises(UserError, match="no usable run") as error:
        main([str(tmp_path)])
    assert error.value.exit_code == EXIT_BAD_DATA
    assert "no end line" in capsys.readouterr().out


def test_the_program_tells_usage_errors_by_exit_code(tmp_path: Path) -> None:
    program = subprocess.run(
        [sys.executable, "-m", "analysis", str(tmp_path / "missing")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert program.returncode == EXIT_USAGE
    assert program.stderr.startswith("error: ")
    assert "Traceback" not in program.stderr


@pytest.mark.parametrize("arguments", [[], ["logs/a", "--reference", "b"]])
def test_one_source_is_required(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == EXIT_USAGE


def test_numbers_that_are_not_known_are_dashes() -> None:
    assert number(float("nan"), ".2f") == "—"
    assert number(0.935, ".1%") == "93.5 %"


def test_the_figure_starts_every_axis_at_zero_and_ticks_the_workers(study: Path) -> None:
    speedup, throughput, iou = figure_of(study).axes
    for axes in (speedup, throughput, iou):
        assert (axes.get_xlim()[0], axes.get_ylim()[0]) == (0, 0)
        assert list(axes.get_xticks()) == [1, 2]
    assert "images / s" in throughput.get_title(loc="left")


def test_the_figure_draws_the_points_of_the_table(study: Path) -> None:
    speedup, throughput, _ = figure_of(study).axes
    lines = {line.get_label(): np.asarray(line.get_ydata(), dtype=float) for line in speedup.lines}
    assert lines["native DDP"] == pytest.approx([1, 1.87])
    assert lines["Horovod"] == pytest.approx([1, 1.62])
    runs = [group for group in throughput.collections if isinstance(group, PathCollection)]
    assert sum(len(np.asarray(group.get_offsets())) for group in runs) == 8


def test_the_figure_says_how_many_runs_it_shows(study: Path) -> None:
    texts = " ".join(text.get_text() for text in figure_of(study).texts)
    assert "8 runs (4 native DDP, 4 Horovod), 2 per point" in texts


def test_the_figure_without_a_baseline_says_that_the_speedup_is_not_known(tmp_path: Path) -> None:
    write_run(tmp_path, "horovod", 2)
    speedup, throughput, _ = figure_of(tmp_path).axes
    assert "not known" in [text.get_text() for text in speedup.texts]
    assert "not known" not in [text.get_text() for text in throughput.texts]


def test_the_pictures_are_whole_files(study: Path) -> None:
    main([str(study)])
    assert (study / "report" / "scaling.svg").read_text().rstrip().endswith("</svg>")
    with Image.open(study / "report" / "scaling.png") as picture:
        picture.load()
        assert picture.width > 1500
