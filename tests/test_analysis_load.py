"""Which runs of a study's folder are used, and what is said of the others."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import analysis.loading.load
from analysis.findings.comparison import compare
from analysis.findings.verdict import verdicts
from analysis.loading.load import load_study
from analysis.study import EPOCH_COLUMNS, EVALUATION_COLUMNS, Study
from tests.budgets import Steps, write_budget_run
from tests.records import digest, make_point, write_run
from unet_scaling.study.config import Framework
from unet_scaling.study.errors import EXIT_USAGE, UserError
from unet_scaling.study.record import RECORD_NAME
from unet_scaling.study.record_lines import End, Resumed

RESUMED = Resumed(epoch=1, step=0)


def reason(study: Study, run: str) -> str:
    """Why this run, and only this run, was left out."""
    assert list(study.left_out["run"]) == [run]
    assert run not in set(study.runs["run"])
    return str(study.left_out["reason"].iloc[0])


def test_throughput_is_images_over_seconds_without_the_warm_up(tmp_path: Path) -> None:
    write_run(tmp_path, images_per_second=123.5, images_per_epoch=48)
    run = load_study(tmp_path).runs.iloc[0]
    assert run["images_per_second"] == pytest.approx(123.5, rel=1e-12)
    assert run["epochs_used"] == 2
    assert run["images_per_epoch"] == 48
    assert run["seconds_per_epoch"] == pytest.approx(48 / 123.5, rel=1e-12)


def test_a_row_carries_what_the_record_says_of_the_run(tmp_path: Path) -> None:
    write_run(tmp_path, "horovod", 2, 3, iou=0.75)
    run = load_study(tmp_path).runs.iloc[0]
    assert (run["framework"], run["workers"], run["repeat"], run["seed"]) == ("horovod", 2, 3, 3)
    assert run["iou"] == 0.75
    assert run["dice"] == pytest.approx(2 * 0.75 / 1.75)
    assert (run["hosts"], run["devices"], run["cores_per_worker"]) == ("node1", "cpu", "1")


def test_the_epochs_of_all_runs_stand_below_each_other(tmp_path: Path) -> None:
    write_run(tmp_path, images_per_second=100.0)
    write_run(tmp_path, "horovod", 2, images_per_second=200.0)
    epochs = load_study(tmp_path).epochs
    assert tuple(epochs.columns) == EPOCH_COLUMNS
    assert epochs["run"].tolist() == ["pytorch_native-w01-r1"] * 3 + ["horovod-w02-r1"] * 3
    assert epochs["epoch"].tolist() == [0, 1, 2] * 2
    assert epochs["warmup"].tolist() == [True, False, False] * 2
    assert epochs["seconds"].tolist() == pytest.approx([1.92, 0.48, 0.48, 0.96, 0.24, 0.24])
    assert (epochs["fastest_worker_seconds"] == epochs["seconds"]).all()
    assert set(epochs["images"]) == {48}
    assert epochs["steps"].tolist() == [6] * 3 + [3] * 3


def test_every_evaluation_of_a_run_is_in_the_table(tmp_path: Path) -> None:
    write_run(tmp_path, iou=0.75)
    evaluations = load_study(tmp_path).evaluations
    assert tuple(evaluations.columns) == EVALUATION_COLUMNS
    (row,) = evaluations.to_dict("records")
    assert (row["run"], row["epochs"], row["images"]) == ("pytorch_native-w01-r1", 3, 12)
    assert (row["iou"], row["true_positive"], row["false_positive"]) == (0.75, 750_000, 0)
    assert row["training_seconds"] == pytest.approx(2.88)
    assert row["image_iou"] == 0.75
    assert row["weights_sha256"] == digest("final weights of -w01-r1")


def test_the_memory_of_a_run_is_that_of_its_largest_worker(tmp_path: Path) -> None:
    write_budget_run(tmp_path, "pytorch_native", 2, 1, Steps())
    write_run(tmp_path, "horovod", 2)  # without facts of its processors
    peaks = load_study(tmp_path).runs.set_index("framework")["peak_memory_bytes"]
    assert peaks["pytorch_native"] == 2**28 + 1
    assert pd.isna(peaks["horovod"])


def test_the_headers_of_the_used_runs_are_kept_by_name(tmp_path: Path) -> None:
    write_run(tmp_path, "horovod", 2, 3)
    write_run(tmp_path, end=None)
    headers = load_study(tmp_path).headers
    assert list(headers) == ["horovod-w02-r3"]
    assert headers["horovod-w02-r3"].config.repeat == 3


def test_a_run_that_is_left_out_keeps_what_its_point_says(tmp_path: Path) -> None:
    write_run(tmp_path, "horovod", 4, 2, end=End(status="diverged", reason="the loss of epoch 1 is nan"))
    (write_run(tmp_path) / "config.json").write_text("{}")
    diverged, damaged = load_study(tmp_path).left_out.to_dict("records")
    assert (diverged["state"], diverged["framework"]) == ("diverged", "horovod")
    assert (diverged["workers"], diverged["repeat"]) == (4, 2)
    assert damaged["state"] == "invalid"
    assert all(pd.isna(damaged[name]) for name in ("framework", "workers", "repeat"))


def test_many_runs_are_read_by_several_processes_with_the_same_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for repeat in range(1, 7):
        write_run(tmp_path, repeat=repeat, images_per_second=100.0 + repeat)
    write_run(tmp_path, "horovod", end=None)
    alone = load_study(tmp_path)
    monkeypatch.setattr(analysis.loading.load, "RUNS_AT_ONCE", 2)
    together = load_study(tmp_path)
    assert len(alone.runs) == 6
    for name in ("runs", "epochs", "evaluations", "left_out"):
        pd.testing.assert_frame_equal(getattr(together, name), getattr(alone, name))
    assert together.headers == alone.headers


def test_a_run_that_may_not_be_looked_into_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root nothing is forbidden, so the system's answer is made up here."""
    closed = write_run(tmp_path, "horovod")
    write_run(tmp_path)
    look = Path.stat

    def forbidding(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path.parent == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return look(path, follow_symlinks=follow_symlinks)

    def forbidding_to_read(path: Path, *arguments: object) -> str:
        forbidding(path)
        return read(path)

    read = Path.read_text
    monkeypatch.setattr(Path, "stat", forbidding)
    monkeypatch.setattr(Path, "read_text", forbidding_to_read)
    assert "Permission denied" in reason(load_study(tmp_path), closed.name)


def test_folder_names_mean_nothing(tmp_path: Path) -> None:
    write_run(tmp_path, "horovod", 2).rename(tmp_path / "pytorch_native-w16-r9")
    run = load_study(tmp_path).runs.iloc[0]
    assert (run["framework"], run["workers"], run["repeat"]) == ("horovod", 2, 1)


def test_runs_are_sorted_by_options_framework_workers_and_repeat(tmp_path: Path) -> None:
    points: list[tuple[Framework, int, int]] = [
        ("pytorch_native", 2, 16),
        ("horovod", 1, 8),
        ("pytorch_native", 10, 8),
    ]
    for framework, workers, batch in points:
        options = {"training": {"batch_per_worker": batch}}
        write_run(tmp_path, framework, workers, options=options, label=f"-{batch}")
    runs = load_study(tmp_path).runs
    assert list(zip(runs["framework"], runs["workers"], strict=True)) == [
        ("pytorch_native", 10),
        ("horovod", 1),
        ("pytorch_native", 2),
    ]


def test_only_options_that_vary_become_axes(tmp_path: Path) -> None:
    for precision in ("fp32", "bf16"):
        write_run(tmp_path, options={"training": {"precision": precision}}, label=f"-{precision}")
    write_run(tmp_path, "horovod", options={"horovod": {"cycle_time_ms": 1.0}})
    study = load_study(tmp_path)
    assert study.axes == ("training.precision",)
    assert set(study.runs["options"]) == {"precision=bf16", "precision=fp32"}
    assert set(study.runs["knobs"]) == {""}


def test_knobs_of_one_framework_do_not_separate_it_from_the_other(tmp_path: Path) -> None:
    for cap in (1.0, 25.0):
        write_run(tmp_path, options={"pytorch_native": {"bucket_cap_mb": cap}}, label=f"-{cap}")
    write_run(tmp_path, "horovod")
    study = load_study(tmp_path)
    assert list(study.runs["knobs"]) == ["bucket_cap_mb=1.0", "bucket_cap_mb=25.0", ""]
    assert set(study.runs["options"]) == {""}


def test_a_run_without_a_record_is_listed_as_not_started(tmp_path: Path) -> None:
    (write_run(tmp_path) / RECORD_NAME).unlink()
    assert "no record yet" in reason(load_study(tmp_path), "pytorch_native-w01-r1")


def test_a_record_without_an_end_is_of_a_failed_run(tmp_path: Path) -> None:
    write_run(tmp_path, end=None)
    assert "no end line after 3 of 3 epochs" in reason(load_study(tmp_path), "pytorch_native-w01-r1")


@pytest.mark.parametrize(("status", "state"), [("diverged", "diverged"), ("stopped", "resumable")])
def test_a_run_that_ended_early_is_left_out_with_its_reason(tmp_path: Path, status: str, state: str) -> None:
    write_run(tmp_path, end=End(status=status, reason="for this test"))  # type: ignore[arg-type]
    study = load_study(tmp_path)
    assert reason(study, "pytorch_native-w01-r1") == f"{state}: for this test"
    assert study.left_out["state"].iloc[0] == state


def test_a_torn_record_is_reported_with_file_and_line(tmp_path: Path) -> None:
    path = write_run(tmp_path) / RECORD_NAME
    path.write_bytes(path.read_bytes()[:-5])
    assert f"{path}:6: the line is cut off" in reason(load_study(tmp_path), "pytorch_native-w01-r1")


def test_a_record_of_another_configuration_is_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    (folder / "config.json").write_text(make_point(workers=2).model_dump_json())
    assert "another configuration" in reason(load_study(tmp_path), "pytorch_native-w01-r1")


def test_a_record_without_a_point_is_listed(tmp_path: Path) -> None:
    (write_run(tmp_path) / "config.json").unlink()
    assert "config.json does not exist" in reason(load_study(tmp_path), "pytorch_native-w01-r1")


def test_a_run_of_warm_up_only_says_how_many_epochs_to_train(tmp_path: Path) -> None:
    write_run(tmp_path, options={"training": {"epochs": 1}})
    assert "train at least 2 epochs" in reason(load_study(tmp_path), "pytorch_native-w01-r1")


def test_a_copied_run_counts_once(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    shutil.copytree(folder, tmp_path / "a-copy")
    study = load_study(tmp_path)
    assert len(study.runs) == 1
    assert "the same repeat of the same point as a-copy" in reason(study, folder.name)


def test_an_unknown_iou_stays_unknown(tmp_path: Path) -> None:
    write_run(tmp_path, iou=None)
    runs = load_study(tmp_path).runs
    assert len(runs) == 1
    assert runs[["iou", "dice"]].isna().all(axis=None)


def test_two_folders_whose_names_print_alike_are_both_listed(tmp_path: Path) -> None:
    write_run(tmp_path).rename(tmp_path / "run\x01")
    write_run(tmp_path, repeat=2).rename(tmp_path / "run\\x01")
    study = load_study(tmp_path)
    assert set(study.runs["run"]) == {r"run\x01", r"run\\x01"}
    assert set(study.runs["repeat"]) == {1, 2}


@pytest.mark.parametrize("name", [RECORD_NAME, "config.json", "run.attempt1.jsonl"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path, name: str) -> None:
    folder = write_run(tmp_path, header={"attempt": 2, "resumed": RESUMED})
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    study = load_study(tmp_path)
    if name == "run.attempt1.jsonl":
        assert study.unknown_attempts == (folder.name,)
    else:
        assert "neither a regular file" in reason(study, folder.name)


@pytest.mark.parametrize(
    "options",
    [
        {"data": {"folder": "/scratch/nuclei", "manifest": "/scratch/checked.json"}},
        {"training": {"checkpoint_minutes": 0, "timeout_seconds": 60}},
    ],
)
def test_operational_options_do_not_separate_the_frameworks(
    tmp_path: Path, options: dict[str, dict[str, Any]]
) -> None:
    for repeat in (1, 2, 3):
        write_run(tmp_path, repeat=repeat)
        write_run(tmp_path, "horovod", repeat=repeat, options=options)
    study = load_study(tmp_path)
    assert study.axes == ()
    assert set(compare(study)["pairs"]) == {3}
    assert study.headers["horovod-w01-r1"].config == make_point("horovod", options=options)
    told = any("equal images were read from /data/nuclei, /scratch/nuclei" in note for note in study.notes)
    assert told == ("data" in options)


def test_folders_of_other_images_separate_the_frameworks(tmp_path: Path) -> None:
    write_run(tmp_path)
    options = {"data": {"folder": "/data/cells"}}
    write_run(tmp_path, "horovod", options=options, header={"manifest_sha256": digest("cells")})
    study = load_study(tmp_path)
    assert study.axes == ("data.folder",)
    told = "data.folder is /data/nuclei here, but /data/cells in runs of Horovod"
    assert told in str(verdicts(study, compare(study))[1])


@pytest.mark.parametrize(
    ("key", "here", "there"),
    [("batch_per_worker", 8, 16), ("budget", "on", "off"), ("evaluate_every", 0, 3)],
)
def test_the_option_in_which_the_frameworks_differ_is_named_with_both_values(
    tmp_path: Path, key: str, here: object, there: object
) -> None:
    for repeat in (1, 2, 3):
        write_run(tmp_path, repeat=repeat, options={"training": {key: here}})
        write_run(tmp_path, "horovod", repeat=repeat, options={"training": {key: there}})
    study = load_study(tmp_path)
    sentences = [verdict.sentence for verdict in verdicts(study, compare(study))]
    told = "no verdict: no usable run of Horovod has the same options: "
    assert f"{told}training.{key} is {here} here, but {there} in runs of Horovod" in sentences


@pytest.mark.parametrize("folder", ["/lustre/nuclei", "/data/nuclei"])
def test_a_folder_or_interval_that_a_study_varies_stays_an_option(tmp_path: Path, folder: str) -> None:
    changed: dict[str, dict[str, Any]] = {"data": {"folder": folder}, "training": {"checkpoint_minutes": 1}}
    write_run(tmp_path)
    write_run(tmp_path, label="-changed", options=changed)
    study = load_study(tmp_path)
    assert len(study.runs) == 2
    assert "training.checkpoint_minutes" in study.axes
    assert ("data.folder" in study.axes) == (folder == "/lustre/nuclei")


def test_folders_that_are_no_runs_are_not_listed(tmp_path: Path) -> None:
    write_run(tmp_path)
    (tmp_path / "report").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    study = load_study(tmp_path)
    assert len(study.runs) == 1
    assert study.left_out.empty


@pytest.mark.parametrize(("name", "cure"), [("missing", "logs/STUDY"), ("", "unet-scaling run")])
def test_a_folder_without_runs_is_wrong_usage(tmp_path: Path, name: str, cure: str) -> None:
    with pytest.raises(UserError, match=cure) as error:
        load_study(tmp_path / name)
    assert error.value.exit_code == EXIT_USAGE
