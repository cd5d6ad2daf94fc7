"""The report as a user meets it: which runs are used, its files and what it prints, its exit codes."""

import csv
import html
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import analysis.read.load
from analysis.__main__ import main
from analysis.report.columns import PAGE, TABLES, with_column_lists
from analysis.report.program import claim_folder
from tests.attacks import hosts_in_turn
from tests.honest import Honest, write_honest
from tests.records import make_point, older_log, write_run
from tests.reports import Told, report_of, report_of_older, reported, without_figures
from unet_scaling.base.errors import EXIT_BAD_DATA, EXIT_USAGE, UserError
from unet_scaling.format.record import RECORD_NAME
from unet_scaling.format.record_lines import End
from unet_scaling.study.config import FRAMEWORKS, PROJECT, Framework, RunConfig
from unet_scaling.study.study_file import read_study

NATIVE: Framework = "pytorch_native"
RUN = f"{NATIVE}-w01-r1"
# In names and values of a study that somebody else made.
HOSTILE = r"*[a]_%&#$\{~^"


def unrecorded(folder: Path) -> None:
    (folder / RECORD_NAME).unlink()


def ended(end: End | None) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        shutil.rmtree(folder)
        write_run(folder.parent, end=end)

    return write


def of_warm_up_only(folder: Path) -> None:
    shutil.rmtree(folder)
    write_run(folder.parent, options={"training": {"epochs": 1}})


def in_config(**values: object) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        content = json.loads((folder / "config.json").read_text()) | values
        (folder / "config.json").write_text(json.dumps(content))

    return write


def config_text(content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "config.json").write_text(content)


# What is done to the one run of native DDP, and how its reason begins or what it holds.
LEFT_OUT: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "not started": (unrecorded, "waiting: no record yet"),
    "no end": (ended(None), "failed: no end line after 3 of 3 epochs"),
    "diverged": (ended(End(status="diverged", reason="for this test")), "diverged: diverged: for this test"),
    "stopped": (ended(End(status="stopped", reason="for this test")), "resumable: resumable: for this test"),
    "another configuration": (config_text(make_point(workers=2).model_dump_json()), "another configuration"),
    "no configuration": (lambda folder: (folder / "config.json").unlink(), "invalid: "),
    "an empty configuration": (config_text("{}"), "config.json is no run's: it has no study"),
    "nested without end": (config_text("[" * 100_000), "config.json cannot be read"),
    "a text for workers": (in_config(workers="2"), "config.json: workers: found '2'"),
    "an unknown framework": (in_config(framework="deepspeed"), "config.json: framework: found 'deepspeed'"),
    "an unknown key": (in_config(learning_rate=0.1), "config.json: learning_rate: unknown key"),
    "a path for a name": (in_config(study="../../etc"), "config.json: study: found '../../etc'"),
    "a key that steers a terminal": (in_config(**{"\x1b[2J": 1}), r"config.json: \x1b[2J: unknown key"),
    "a huge seed": (in_config(seed=10**30), f"config.json: seed: found {10**30}; allowed"),
    "warm-up only": (of_warm_up_only, "no throughput: 1 epochs, none after the warm-up"),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT_OUT)
def test_a_run_that_cannot_be_used_is_listed_and_the_others_are_used(tmp_path: Path, case: str) -> None:
    spoil, words = LEFT_OUT[case]
    write_run(tmp_path, "horovod", 2, images_per_second=150.0)
    spoil(write_run(tmp_path))
    found = report_of(tmp_path)
    ((_, reason),) = found.left_out.items()
    assert words in reason
    (run,) = found.study.runs.to_dict("records")
    assert (run["run"], run["images_per_second"]) == ("horovod-w02-r1", pytest.approx(150.0))
    assert set(found.study.epochs["run"]) == set(found.study.evaluations["run"]) == {"horovod-w02-r1"}


def test_a_copied_run_counts_once_and_names_of_folders_mean_nothing(tmp_path: Path) -> None:
    shutil.copytree(write_run(tmp_path), tmp_path / "a-copy")
    write_run(tmp_path, "horovod", 2).rename(tmp_path / "pytorch_native-w16-r9")
    write_run(tmp_path, repeat=3).rename(tmp_path / "run\x01")
    write_run(tmp_path, repeat=4).rename(tmp_path / "run\\x01")
    write_run(tmp_path, repeat=5).rename(tmp_path / os.fsdecode(b"run\xff\x1b[2J"))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    found = report_of(tmp_path)
    assert "the same repeat of the same point as a-copy" in found.left_out[RUN]
    assert len(found.left_out) == 1
    runs = {row["run"]: (row["framework"], row["workers"], row["repeat"]) for row in found.rows("runs")}
    assert runs == {
        "a-copy": (NATIVE, 1, 1), "pytorch_native-w16-r9": ("horovod", 2, 1), r"run\x01": (NATIVE, 1, 3),
        r"run\\x01": (NATIVE, 1, 4), r"run\udcff\x1b[2J": (NATIVE, 1, 5),
    }  # fmt: skip


def test_many_runs_are_read_by_several_processes_with_the_same_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for repeat in range(1, 7):
        write_run(tmp_path, repeat=repeat, images_per_second=100.0 + repeat)
    write_run(tmp_path, "horovod", end=None)
    alone = report_of(tmp_path).study
    monkeypatch.setattr(analysis.read.load, "RUNS_AT_ONCE", 2)
    together = report_of(tmp_path).study
    for name in ("runs", "epochs", "evaluations", "left_out"):
        pd.testing.assert_frame_equal(getattr(together, name), getattr(alone, name))
    assert together.headers == alone.headers


def test_the_documentation_lists_the_columns_of_every_table_and_every_key(tmp_path: Path) -> None:
    """After a change of a table: python -m analysis.report.columns --write."""
    assert PAGE.read_text() == with_column_lists(PAGE.read_text())
    found = report_of(write_honest(tmp_path, Honest(workers=(1, 2), repeats=3)))
    internal = {"throughput", "throughput_low", "throughput_high"}  # one of the two units of summary.csv
    for table in TABLES:
        made, names = set(table.make(found.report).columns) - internal, set(table.names)
        # The times of played runs are of no real number of workers, and left out.
        assert made == names or (table.file == "played_runs.csv" and made > names), table.file
    header = found.files["summary.csv"].decode().splitlines()[0]
    assert header.startswith("framework,workers,repeats,images_per_second,speedup,speedup_low,speedup_high,")
    page = PAGE.with_name("report.md").read_text()
    section = page.partition("## `summary.json`")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (.+?) \|", section, re.MULTILINE)
    documented = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    # Of a study with saliency maps only.
    assert set(found.summary) == documented - {"saliency"}


def test_the_command_writes_and_prints_the_same_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_honest(tmp_path / "tiny", Honest(workers=(1, 2), repeats=2))
    (study / "report").mkdir()
    for name in ("report.html", "played.csv", "summary.tex", "fairness.csv"):
        (study / "report" / name).write_text("of an earlier report")
    folder = reported(study)
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    printed = capsys.readouterr().out
    texts = {"report.html", "summary.md", "summary.json"}
    report = report_of(study).report
    assert set(first) == texts | {
        table.file for table in TABLES if table.is_file and table.is_made(report)
    } | {"honest.toml"}
    parts = ("Speed [", "Trust [", "Next: ", "report: ", "not enough repeats for")
    places = [printed.index(part) for part in parts]
    assert places == sorted(places)
    assert printed.endswith(f"report: {folder}\n")
    for path in folder.iterdir():
        path.unlink()
    assert {path.name: path.read_bytes() for path in reported(study).iterdir()} == first
    assert capsys.readouterr().out == printed


def test_what_is_not_fair_stands_beside_the_verdict_in_every_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The frameworks had hosts of their own and ran one after the other."""
    folder = reported(hosts_in_turn(tmp_path / "doubtful"))
    printed = capsys.readouterr().out
    checks = json.loads((folder / "summary.json").read_text())["checks"]
    refused = [row for row in checks if row["mark"] == "no"]
    assert {"same nodes", "order interleaved in time"} <= {row["check"] for row in refused}
    page = html.unescape((folder / "report.html").read_text())
    answer = page[page.index('aria-label="The answer"') : page.index("<nav")]
    text = (folder / "summary.md").read_text()
    beside = (answer, text, printed.partition("At 2 workers")[2])
    for row in refused:
        assert all(row["fact"] in place for place in beside), row["check"]
    for place in (page, text, printed):
        assert " is 12 % faster" not in place
        assert "native DDP faster" not in place
    assert report_of(tmp_path / "doubtful").outcomes[-1] == "withheld"


def as_text(value: object) -> str:
    """A cell as CSV or JSON have it, in one way."""
    try:
        return "" if value in (None, "") else format(float(str(value)), ".9g")
    except ValueError:
        return str(value)


def hostile(folder: Path) -> Told:
    versions = {"python": "3.11.2", "torch": "2.13.0", r"{_%&\}": 'NaN "$~^#'}
    for repeat in (1, 2, 3):
        header = {"commit": "{%$&#_~^", "versions": versions, "dirty": True}
        write_run(folder / HOSTILE, repeat=repeat, header=header, iou=None if repeat == 1 else 0.8)
    write_run(folder / HOSTILE, repeat=4, end=None)
    return report_of(folder / HOSTILE)


def one_point(folder: Path) -> Told:
    write_run(folder / HOSTILE, workers=2, iou=None)
    return report_of(folder / HOSTILE)


def older(folder: Path) -> Told:
    for kind in ("", "hvd_"):
        for workers in (1, 2):
            (folder / f"log_{kind}{workers}.csv").write_text(older_log([10 / workers] * 3))
    return report_of_older(folder)


def full(folder: Path) -> Told:
    return report_of(write_honest(folder / HOSTILE, Honest(workers=(1, 2), repeats=3)))


@pytest.mark.parametrize("write", [full, hostile, one_point, older])
def test_json_holds_the_numbers_of_the_csv(tmp_path: Path, write: Callable[[Path], Told]) -> None:
    found = write(tmp_path)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    strict = json.loads(found.files["summary.json"], parse_constant=refuse)
    for key, file in (("points", "summary.csv"), ("comparisons", "comparison.csv"), ("cost", "summary.csv")):
        rows = list(csv.DictReader(found.files.get(file, b"").decode().splitlines()))
        for row, shown in zip(rows, strict[key], strict=True):
            assert {name: as_text(value) for name, value in shown.items()} == {
                name: as_text(row[name]) for name in shown
            }
    if write is not older:
        assert found.summary["study"] == HOSTILE


def test_the_study_file_gives_the_same_points_again(tmp_path: Path) -> None:
    for precision in ("fp32", "bf16"):
        for framework in FRAMEWORKS:
            for workers in (1, 4):
                options: Mapping[str, Mapping[str, Any]] = {
                    "data": {"folder": str(PROJECT / "data/nuclei")},
                    "training": {"precision": precision, "epochs": 3, "learning_rate": 0.0002},
                }
                write_run(tmp_path, framework, workers, options=options, label=f"-{precision}")
    folder = reported(tmp_path)
    assert str(PROJECT) not in (folder / "tiny.toml").read_text()
    points = read_study(folder / "tiny.toml").configs()
    used = [header.config for header in report_of(tmp_path).study.headers.values()]
    assert {*map(identity, points)} == {*map(identity, used)}


def identity(config: RunConfig) -> tuple[object, ...]:
    training = config.training
    options = (config.data.folder, config.data.image_height, training.precision, training.epochs)
    return (config.framework, config.workers, config.repeat, config.seed, training.learning_rate, *options)


def test_a_report_that_was_interrupted_is_made_by_the_same_command(tmp_path: Path) -> None:
    write_run(tmp_path / "study")
    claim_folder(tmp_path / "report", "report.html", ["runs.csv"])
    (tmp_path / "report" / "runs.csv").write_text("")
    with without_figures():
        assert main([str(tmp_path / "study"), "--output", str(tmp_path / "report")]) == 0
    assert "<html" in (tmp_path / "report" / "report.html").read_text()


def no_run(folder: Path) -> list[str]:
    write_run(folder, end=None)
    return [str(folder)]


def taken(folder: Path) -> list[str]:
    write_run(folder / "study")
    (folder / "taken").write_text("")
    return [str(folder / "study"), "--output", str(folder / "taken")]


def holds_other_files(folder: Path) -> list[str]:
    """A table whose report would stand among somebody's own files."""
    (folder / "report").mkdir()
    (folder / "report" / "predictions.csv").write_text("mine")
    (folder / "scaling.csv").write_text("workers,seconds\n1,10\n2,6\n")
    return ["--csv", str(folder / "scaling.csv"), "--output", str(folder / "report")]


def holds_its_table(folder: Path) -> list[str]:
    (folder / "runs.csv").write_text("workers,seconds\n1,10\n2,6\n")
    return ["--csv", str(folder / "runs.csv"), "--output", str(folder)]


def no_runs(folder: Path) -> list[str]:
    (folder / "logs" / "empty").mkdir(parents=True)
    return [str(folder / "logs" / "empty")]


REFUSED: Mapping[str, tuple[Callable[[Path], list[str]], int | None]] = {
    "output holds other files": (holds_other_files, EXIT_USAGE),
    "output holds the table": (holds_its_table, EXIT_USAGE),
    "no usable run": (no_run, EXIT_BAD_DATA),
    "no folder": (lambda folder: [str(folder / "missing")], EXIT_USAGE),
    "no older logs": (lambda folder: ["--reference", str(folder)], EXIT_USAGE),
    "no run folder": (no_runs, EXIT_USAGE),
    "output taken": (taken, None),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_reported_is_refused(
    tmp_path: Path, case: str, told: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, code = REFUSED[case]
    with without_figures(), pytest.raises(UserError) as refused:
        main(arguments(tmp_path))
    assert code is None or refused.value.exit_code == code
    told(str(refused.value))
    if case == "output holds other files":
        assert (tmp_path / "report" / "predictions.csv").read_text() == "mine"
    if case == "no usable run":
        assert "no end line" in capsys.readouterr().out
        assert not (tmp_path / "report").exists()
