"""Logs in the older layout: what is read of them, and what is refused."""

from pathlib import Path

import pytest

from analysis.load import Study
from analysis.reference import HEADER, load_reference
from analysis.report import make_report
from analysis.speedup import summarise
from unet_scaling.errors import EXIT_USAGE, UserError

V100 = Path(__file__).resolve().parents[2] / "shared" / "reference" / "v100"
needs_v100 = pytest.mark.skipif(not V100.is_dir(), reason="the published V100 logs are not on this machine")


def log(
    seconds: tuple[float, ...] = (20.0, 10.0, 10.0), iou: float = 0.9, training_time: float | None = None
) -> str:
    """The text of a sound log with these epoch times."""
    total = sum(seconds) + 0.05 if training_time is None else training_time
    rows = [
        f"{epoch},{time:.6f},0.500000,0.001000,{total:.6f},5.000000,{iou:.6f}"
        for epoch, time in enumerate(seconds)
    ]
    return "\n".join([HEADER, *rows]) + "\n"


def read(folder: Path, text: str, name: str = "log_2.csv") -> Study:
    (folder / name).write_text(text)
    return load_reference(folder)


def problem(study: Study) -> str:
    assert study.runs.empty
    assert len(study.left_out) == 1
    return str(study.left_out["reason"].iloc[0])


def test_file_names_say_framework_and_workers(tmp_path: Path) -> None:
    read(tmp_path, log(), "log_hvd_12.csv")
    runs = read(tmp_path, log(), "log_4.csv").runs
    assert list(zip(runs["framework"], runs["workers"], strict=True)) == [
        ("pytorch_native", 4),
        ("horovod", 12),
    ]


def test_the_first_epoch_is_the_warm_up(tmp_path: Path) -> None:
    run = read(tmp_path, log((20.0, 10.0, 8.0))).runs.iloc[0]
    assert run["epochs_used"] == 2
    assert run["epochs_per_second"] == pytest.approx(2 / 18)


def test_what_the_layout_does_not_record_stays_unknown(tmp_path: Path) -> None:
    study = read(tmp_path, log())
    assert study.runs[["seed", "images_per_second", "images_per_epoch", "dice"]].isna().all(axis=None)
    assert summarise(study)["images_per_second"].isna().all()
    assert (study.throughput, study.unit) == ("epochs_per_second", "epochs / s")


def test_the_report_says_what_such_logs_cannot_support(tmp_path: Path) -> None:
    notes = " ".join(make_report(read(tmp_path, log())).notes)
    for fact in ("images per epoch", "one run per point", "no provenance", "test images"):
        assert fact in notes


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("0,20.000000", "0,-1.000000"), ":2: time_per_epoch is -1.0, it must be above 0"),
        (("0,20.000000", "0,"), ":2: time_per_epoch is '', no finite number"),
        (("0,20.000000", "0,nan"), ":2: time_per_epoch is 'nan', no finite number"),
        (("0,20.000000", "0,1e999"), ":2: time_per_epoch is '1e999', no finite number"),
        (("0.900000", "1.100000"), ":2: iou is 1.1, it must be from 0 to 1"),
        (("0.001000", "0.000000"), ":2: lr is 0.0, it must be above 0"),
        (("5.000000", "-5.000000"), ":2: test_time is -5.0, it must not be negative"),
        (("\n1,", "\n1.0,"), ":3: the epoch is '1.0', no whole number"),
        (("\n2,", "\n3,"), "epochs are not 0, 1, 2, ...: found 3 where 2 belongs"),
        (("1,10.000000,0.500000,", "1,10.000000,"), ":3: 6 columns, expected 7"),
        ((",loss,lr,", ",lr,loss,"), ":1: the columns must be"),
        ((HEADER, ""), ":1: the columns must be"),
        (("2,10.000000", "2,10.000000\x00"), ":4: time_per_epoch is"),
    ],
)
def test_an_impossible_log_is_reported_with_its_place(
    tmp_path: Path, change: tuple[str, str], expected: str
) -> None:
    assert change[0] in log()
    assert expected in problem(read(tmp_path, log().replace(*change)))


def test_a_value_of_the_whole_run_may_not_change_within_it(tmp_path: Path) -> None:
    text = log()
    start = text.rindex("0.900000")
    assert "iou is of the whole run, but has 2 values: 0.9, 0.8" in problem(
        read(tmp_path, text[:start] + "0.800000\n")
    )


@pytest.mark.parametrize("text", ["", HEADER + "\n"])
def test_a_log_without_epochs_is_reported(tmp_path: Path, text: str) -> None:
    assert "log_2.csv" in problem(read(tmp_path, text))


def test_a_log_of_the_warm_up_alone_is_left_out(tmp_path: Path) -> None:
    assert "none after the warm-up" in problem(read(tmp_path, log((20.0,))))


def test_a_log_with_another_name_is_listed(tmp_path: Path) -> None:
    assert "neither log_N.csv nor log_hvd_N.csv" in problem(read(tmp_path, log(), "log_02.csv"))


def test_a_log_cut_at_any_byte_of_its_last_row_is_reported_and_never_used(tmp_path: Path) -> None:
    content = log()
    last_row = len(content.splitlines(keepends=True)[-1])
    for size in range(len(content) - last_row, len(content)):
        assert "log_2.csv" in problem(read(tmp_path, content[:size]))


@needs_v100
def test_a_published_log_cut_at_any_byte_of_its_last_row_is_reported_and_never_used(tmp_path: Path) -> None:
    content = (V100 / "log_hvd_8.csv").read_text()
    last_row = len(content.splitlines(keepends=True)[-1])
    for size in range(len(content) - last_row, len(content)):
        reason = problem(read(tmp_path, content[:size]))
        whole_row_lost = size == len(content) - last_row
        assert ("rows are missing" if whole_row_lost else ":201: the line is cut off") in reason


@needs_v100
def test_the_published_speedups_are_reproduced() -> None:
    """Expected: medians of the epochs from 5 on, as published; ours are means of the epochs from 1 on."""
    points = summarise(load_reference(V100)).set_index(["framework", "workers"])["speedup"]
    assert len(points) == 10
    expected = {
        "pytorch_native": {1: 1, 2: 1.856, 4: 3.593, 6: 5.515, 8: 6.977},
        "horovod": {1: 1, 2: 1.110, 4: 1.832, 6: 2.749, 8: 3.462},
    }
    for framework, speedups in expected.items():
        assert dict(points[framework]) == pytest.approx(speedups, rel=0.01)


@pytest.mark.parametrize("name", ["missing", ""])
def test_a_folder_without_logs_is_wrong_usage(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"log_hvd_N\.csv") as error:
        load_reference(tmp_path / name)
    assert error.value.exit_code == EXIT_USAGE
