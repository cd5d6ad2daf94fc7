"""The report as a user meets it: the command, its files and what it prints."""

import csv
import html
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from analysis.__main__ import main
from analysis.findings.speedup import SPEEDUP_COLUMNS
from analysis.loading.load import load_study
from analysis.report.assemble import make_report
from analysis.report.columns import PAGE, with_column_lists
from analysis.report.console import MOST_CONSOLE_ROWS, MOST_LINES, print_report
from analysis.report.tables import TABLES, table_files
from analysis.study import LeftOut, left_out_table
from tests.records import write_run
from tests.report_studies import write_one_after_the_other, write_study
from unet_scaling.study.errors import EXIT_BAD_DATA, EXIT_USAGE, UserError

GOLDEN = Path(__file__).with_name("golden") / "summary.md"
TEXTS = {"report.html", "summary.md", "summary.tex", "summary.json", "citation.bib"}
FIGURES = {"scaling", "ratio", "loss", "cost"}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Both frameworks on 1 and 2 workers, twice."""
    return write_small(tmp_path / "logs" / "tiny")


@pytest.fixture(scope="module")
def small_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report folder of such a study, beside its runs."""
    folder = write_small(tmp_path_factory.mktemp("logs") / "tiny")
    main([str(folder)])
    return folder / "report"


@pytest.fixture(scope="module")
def full_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of both frameworks on 1, 2 and 4 workers, five times each."""
    folder = write_study(tmp_path_factory.mktemp("logs") / "full")
    main([str(folder), "--output", str(folder / "elsewhere")])
    return folder / "elsewhere"


@pytest.fixture(scope="module")
def doubtful(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a study whose frameworks had hosts of their own and ran one after the other."""
    folder = write_one_after_the_other(tmp_path_factory.mktemp("logs") / "doubtful")
    main([str(folder)])
    return folder / "report"


def write_small(folder: Path) -> Path:
    for repeat in (1, 2):
        for workers, native, horovod in ((1, 100.0, 100.0), (2, 187.0, 162.0)):
            write_run(folder, "pytorch_native", workers, repeat, images_per_second=native)
            write_run(folder, "horovod", workers, repeat, images_per_second=horovod)
    return folder


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))


def table(folder: Path, name: str) -> list[dict[str, str]]:
    """The rows of one CSV file of the report on the runs in this folder, without drawing its figures."""
    content = table_files(make_report(load_study(folder)))[name].decode()
    return list(csv.DictReader(content.splitlines()))


def printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What is printed of the report on the runs in this folder."""
    print_report(make_report(load_study(folder)))
    return capsys.readouterr().out


def test_the_command_writes_the_report_beside_the_runs(small_report: Path) -> None:
    pictures = {f"{name}.{kind}" for name in FIGURES for kind in ("svg", "png")}
    tables = {table.file for table in TABLES if not table.needs_rows}
    assert {path.name for path in small_report.iterdir()} == TEXTS | pictures | tables | {"tiny.toml"}


def test_the_command_prints_answer_table_advice_verdict_and_place(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analysis.report.program.write_report", lambda report, folder: [])
    main([str(study), "--output", str(tmp_path / "out")])
    shown = capsys.readouterr().out
    parts = ("Speed [", "Trust [", "Next: ", "report: ", "93.5 %", "not enough repeats for")
    places = [shown.index(part) for part in parts]
    assert places == sorted(places)
    assert shown.startswith(
        "No fair comparison, as the fairness table says no to: one run at a time on a core"
    )
    assert shown.endswith(f"report: {tmp_path / 'out'}\n")


def test_the_documentation_lists_the_columns_of_every_table() -> None:
    """After a change of a table: python -m analysis.report.columns --write."""
    assert PAGE.read_text() == with_column_lists(PAGE.read_text())


def test_every_column_that_is_made_is_described_and_written(tmp_path: Path) -> None:
    report = make_report(load_study(write_study(tmp_path)))
    internal = {"throughput", "throughput_low", "throughput_high"}  # one of the two units of summary.csv
    for table in TABLES:
        assert set(table.make(report).columns) - internal == set(table.names), table.file
        assert all("  " not in key and meaning == meaning.strip() for key, meaning in table.columns.items())
    assert len({table.file for table in TABLES}) == len(TABLES)


def test_summary_csv_has_the_agreed_columns_first(small_report: Path) -> None:
    header = (small_report / "summary.csv").read_text().splitlines()[0]
    assert header.startswith(",".join(SPEEDUP_COLUMNS) + ",")


def test_summary_csv_leaves_unknown_cells_empty(study: Path) -> None:
    rows = table(study, "summary.csv")
    two = next(row for row in rows if row["framework"] == "pytorch_native" and row["workers"] == "2")
    assert float(two["speedup"]) == pytest.approx(1.87)
    assert {two[name] for name in ("speedup_low", "speedup_high", "iou_low", "iou_high")} == {""}


def test_without_a_baseline_speedup_cells_are_empty_and_the_reason_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, "horovod", 2, images_per_second=162.0)
    (row,) = table(tmp_path, "summary.csv")
    assert {row[name] for name in ("speedup", "efficiency", "deviation")} == {""}
    assert float(row["images_per_second"]) == pytest.approx(162)
    shown = printed(tmp_path, capsys)
    assert "Horovod: speed-up: no run on 1 worker" in shown
    assert "—" in shown


def test_axes_of_the_study_are_columns(tmp_path: Path) -> None:
    for precision in ("fp32", "bf16"):
        write_run(tmp_path, options={"training": {"precision": precision}}, label=f"-{precision}")
    for name in ("runs.csv", "summary.csv"):
        rows = table(tmp_path, name)
        assert [row["training.precision"] for row in rows] == ["bf16", "fp32"]
        assert [row["options"] for row in rows] == ["precision=bf16", "precision=fp32"]


def test_runs_left_out_are_listed_in_the_file_and_on_the_screen(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(study, "horovod", 2, 3, end=None)
    write_run(study, "horovod", 2, 4, header={"test_images": 30})
    rows, shown = table(study, "left_out.csv"), printed(study, capsys)
    assert [(row["run"], row["state"]) for row in rows] == [
        ("horovod-w02-r3", "failed"),
        ("horovod-w02-r4", "refused"),
    ]
    assert "Left out: 2" in shown
    assert all(row["reason"] in shown for row in rows)


def test_long_tables_and_lists_are_cut_on_the_screen_and_whole_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for workers in range(2, MOST_CONSOLE_ROWS + 5):
        write_run(tmp_path, workers=workers)
    for repeat in range(2, MOST_LINES + 4):
        write_run(tmp_path, workers=1, repeat=repeat, end=None)
    shown = printed(tmp_path, capsys)
    assert "3 further points are in summary.csv" in shown
    assert "and 2 more in left_out.csv" in shown
    assert len(table(tmp_path, "summary.csv")) == MOST_CONSOLE_ROWS + 3
    assert len(table(tmp_path, "left_out.csv")) == MOST_LINES + 2


def test_what_would_steer_a_terminal_is_taken_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path)
    hostile = left_out_table([LeftOut("a\x1b]0;owned\x07\n\u202eb", "failed", "\x9b2J")])
    report = make_report(replace(load_study(tmp_path), left_out=hostile))
    print_report(report)
    shown = capsys.readouterr().out + table_files(report)["left_out.csv"].decode()
    assert shown.count("a]0;owned b") == 2
    assert not set("\x1b\x07\u202e\x9b") & set(shown)


def test_the_same_input_gives_the_same_bytes(small_report: Path) -> None:
    written = {path: path.read_bytes() for path in small_report.iterdir()}
    for path in written:
        path.unlink()
    main([str(small_report.parent)])
    for path, content in written.items():
        assert path.read_bytes() == content, path.name


def test_a_figure_of_an_earlier_report_does_not_stay(tmp_path: Path) -> None:
    write_run(tmp_path, workers=2)
    for name in ("iou_difference.svg", "iou_difference.png", "efficiency.svg", "deviation.png"):
        (tmp_path / "report").mkdir(exist_ok=True)
        (tmp_path / "report" / name).write_text("of an earlier report")
    main([str(tmp_path)])
    left = {path.stem for path in (tmp_path / "report").iterdir()}
    assert left.isdisjoint({"iou_difference", "efficiency", "deviation"})
    assert (tmp_path / "report" / "scaling.svg").exists()
    assert "no run on 1 worker" in (tmp_path / "report" / "report.html").read_text()


def test_an_output_that_cannot_be_written_is_told_with_the_cure(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").write_text("")
    monkeypatch.setattr("analysis.report.files._contents", lambda *_: {"a": b""})
    monkeypatch.setattr("analysis.report.files.draw_figures", lambda report: None)
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


def test_the_pictures_are_whole_files(full_report: Path) -> None:
    for svg in full_report.glob("*.svg"):
        assert svg.read_text().rstrip().endswith("</svg>")
        with Image.open(svg.with_suffix(".png")) as picture:
            picture.load()
            assert picture.width > 400


def test_the_markdown_table_is_the_golden_file(full_report: Path) -> None:
    """After a wanted change: UPDATE_GOLDEN=1 pytest tests/test_analysis_report.py, and read the diff."""
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_bytes((full_report / "summary.md").read_bytes())
    assert (full_report / "summary.md").read_text() == GOLDEN.read_text()


def test_the_summary_says_what_to_ask_for(full_report: Path) -> None:
    text = (full_report / "summary.md").read_text()
    cost = {(row["framework"], row["workers"]): row for row in read_csv(full_report / "cost.csv")}
    hours = float(cost["pytorch_native", "4"]["worker_hours"])
    (asked,) = re.findall(r"worker-hours, 100 trainings \|\n.*\n\|.* ([\d.]+) \|\n", text)
    assert float(asked) == pytest.approx(100 * hours, rel=0.01)


def test_every_no_of_the_fairness_table_stands_beside_the_verdict(
    doubtful: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = [row for row in read_csv(doubtful / "fairness.csv") if row["mark"] == "no"]
    assert {"same nodes", "order interleaved in time", "equal repeats"} <= {row["check"] for row in refused}
    page = html.unescape((doubtful / "report.html").read_text())
    answer = page[page.index('aria-label="The answer"') : page.index("<nav")]
    text = (doubtful / "summary.md").read_text()
    shown = printed(doubtful.parent, capsys)
    after_verdict = shown[shown.index("At 2 workers") :]
    for row in refused:
        for place in (answer, text, after_verdict):
            assert row["fact"] in place, row["check"]


def test_faster_is_withheld_where_hosts_or_order_of_the_frameworks_differ(
    doubtful: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = printed(doubtful.parent, capsys)
    texts = [(doubtful / name).read_text() for name in ("report.html", "summary.md")]
    for text in (shown, *texts):
        assert "At 2 workers no verdict on speed: native DDP measured 12 % faster than Horovod" in text
    for text in (shown, *texts):
        assert " is 12 % faster" not in text
        assert "native DDP faster" not in text
    outcomes = [row["outcome"] for row in read_csv(doubtful / "comparison.csv")]
    assert outcomes == ["withheld", "withheld"]


def test_making_the_report_leaves_the_tables_of_the_study_alone(tmp_path: Path) -> None:
    study = load_study(write_study(tmp_path, (1, 2), repeats=3))
    before = study.runs.copy(), study.epochs.copy()
    table_files(make_report(study))
    pd.testing.assert_frame_equal(study.runs, before[0])
    pd.testing.assert_frame_equal(study.epochs, before[1])
