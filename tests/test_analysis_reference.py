"""Logs in the older layout: what is read of them, and what is refused."""

from pathlib import Path

import pandas as pd
import pytest

from analysis.findings.speedup import summarise
from analysis.loading.older_layout import HEADER
from analysis.loading.reference import Log, load_reference, read_log
from analysis.study import EPOCH_COLUMNS, EVALUATION_COLUMNS, LeftOut, Study
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


def test_five_epochs_are_the_warm_up_of_a_log_that_is_long_enough(tmp_path: Path) -> None:
    study = read(tmp_path, log((30.0, 19.0, 18.0, 17.0, 16.0, 10.0, 12.0, 11.0, 11.0, 40.0)))
    run = study.runs.iloc[0]
    assert (run["epochs_used"], run["seconds_per_epoch"]) == (5, 11.0)
    assert run["epochs_per_second"] == pytest.approx(1 / 11)
    assert study.epochs["warmup"].tolist() == [True] * 5 + [False] * 5
    assert not any("short logs" in note for note in study.notes)


def test_a_log_that_is_too_short_for_that_is_named(tmp_path: Path) -> None:
    notes = read(tmp_path, log()).notes
    assert "of short logs only the first epoch is left out as warm-up: log_2.csv (3 epochs)" in notes


def test_the_tidy_tables_hold_what_the_layout_records(tmp_path: Path) -> None:
    study = read(tmp_path, log((20.0, 10.0, 8.0)))
    assert tuple(study.epochs.columns) == EPOCH_COLUMNS
    assert tuple(study.evaluations.columns) == EVALUATION_COLUMNS
    assert study.epochs["run"].tolist() == ["log_2.csv"] * 3
    assert study.epochs["seconds"].tolist() == [20.0, 10.0, 8.0]
    assert study.epochs["loss"].tolist() == [0.5] * 3
    assert study.epochs[["images", "steps", "fastest_worker_seconds"]].isna().all(axis=None)
    (evaluation,) = study.evaluations.to_dict("records")
    assert (evaluation["epochs"], evaluation["iou"], evaluation["seconds"]) == (3, 0.9, 5.0)
    assert study.evaluations[["images", "true_positive", "dice"]].isna().all(axis=None)
    assert not study.provenance_known
    assert not study.headers


def test_what_the_layout_does_not_record_stays_unknown(tmp_path: Path) -> None:
    study = read(tmp_path, log())
    assert study.runs[["seed", "images_per_second", "images_per_epoch", "dice"]].isna().all(axis=None)
    assert summarise(study)["images_per_second"].isna().all()
    assert (study.throughput, study.unit) == ("epochs_per_second", "epochs / s")


def test_the_notes_say_what_such_logs_cannot_support(tmp_path: Path) -> None:
    notes = " ".join(read(tmp_path, log()).notes)
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
        (("\n2,10.000000", "\n" + "\x00" * 64 + "\n2,10.000000"), ":4: 1 columns, expected 7"),
        (("\n1,", f"\n{HEADER}\n1,"), ":3: the epoch is '', no whole number"),
        (("\n1,", "\nslurmstepd: error: job killed\n1,"), ":3: 1 columns, expected 7"),
        (("\n1,10.000000", "\n1,10.0000002,10.000000"), ":3: 8 columns, expected 7"),
        (("\n1,10.000000", "\n\n1,10.000000"), ":3: 1 columns, expected 7"),
        (("\n2,", "\n1,"), "epochs are not 0, 1, 2, ...: found 1 where 2 belongs"),
        (("\n0,", "\n1,"), "epochs are not 0, 1, 2, ...: found 1 where 0 belongs"),
        (("\n1,", "\n-1,"), ":3: the epoch is '-1', no whole number"),
        (("1,10.000000", "1,10,000000"), ":3: 8 columns, expected 7"),
        (("1,10.000000", "1, 10.000000"), ":3: time_per_epoch is ' 10.000000', no finite number"),
        (("1,10.000000", "1,1_0.000000"), ":3: time_per_epoch is '1_0.000000', no finite number"),
        (("1,10.000000", "1,\u0661\u0660"), ":3: time_per_epoch is '\u0661\u0660', no finite number"),
        (("1,10.000000", "1,5e-324"), ":3: time_per_epoch is 5e-324, shorter than can be measured"),
        (("1,10.000000,", "1,1e308,"), "the epochs take 1000"),
        (("1,10.000000", "1,20.000000"), "the epochs take 50.000 s in all, training_time is 40.05 s"),
        ((",time_per_epoch", "\ufeff,time_per_epoch"), ":1: the columns must be"),
        ((",time_per_epoch,", ",time_per_epoch;"), ":1: the columns must be"),
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


def test_a_log_that_is_not_utf8_is_reported(tmp_path: Path) -> None:
    (tmp_path / "log_2.csv").write_bytes(log().encode().replace(b"\n1,10", b"\n1,1\xff0"))
    assert ":3: time_per_epoch is" in problem(load_reference(tmp_path))


def test_a_folder_in_place_of_a_log_is_reported(tmp_path: Path) -> None:
    (tmp_path / "log_2.csv").mkdir()
    assert "log_2.csv: Is a directory" in problem(load_reference(tmp_path))


def test_a_damaged_log_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    alone = read(tmp_path, log(), "log_1.csv").runs
    study = read(tmp_path, log()[:-1], "log_hvd_4.csv")
    pd.testing.assert_frame_equal(study.runs, alone)
    (left,) = study.left_out.to_dict("records")
    assert (left["run"], left["framework"], left["workers"]) == ("log_hvd_4.csv", "horovod", 4)


@pytest.mark.parametrize("workers", [3, 48, 999_999])
def test_any_number_of_workers_is_read(tmp_path: Path, workers: int) -> None:
    assert read(tmp_path, log(), f"log_hvd_{workers}.csv").runs["workers"].tolist() == [workers]


def test_a_log_cut_at_any_byte_is_reported_and_never_used(tmp_path: Path) -> None:
    content = log((20.0, 10.0, 11.0, 9.0, 10.5, 9.9, 10.1))
    path = tmp_path / "log_2.csv"
    for size in range(len(content)):
        path.write_text(content[:size])
        assert str(path) in reason_of(read_log(path))


def test_only_a_lost_epoch_that_took_less_than_half_of_any_other_cannot_be_told(tmp_path: Path) -> None:
    """The limit of what the time of the whole run can show."""
    rows = log((20.0, 10.0, 10.0, 4.9)).splitlines(keepends=True)
    assert read(tmp_path, "".join(rows[:-1])).runs["epochs_used"].tolist() == [2]
    rows = log((20.0, 10.0, 10.0, 5.1)).splitlines(keepends=True)
    assert "rows are missing" in problem(read(tmp_path, "".join(rows[:-1])))


@needs_v100
@pytest.mark.parametrize("path", sorted(V100.glob("log_*.csv")), ids=lambda path: path.stem)
def test_a_published_log_cut_at_any_row_or_in_its_last_is_reported(tmp_path: Path, path: Path) -> None:
    """A cut inside any other row ends in a line without its line break, as one in the last does."""
    content = path.read_bytes()
    rows = content.splitlines(keepends=True)
    copy = tmp_path / path.name
    for count in range(len(rows)):
        copy.write_bytes(b"".join(rows[:count]))
        expected = "the columns must be" if count == 0 else "no epochs" if count == 1 else "rows are missing"
        assert expected in reason_of(read_log(copy))
    for size in range(len(content) - len(rows[-1]) + 1, len(content)):
        copy.write_bytes(content[:size])
        assert ":201: the line is cut off" in reason_of(read_log(copy))


def reason_of(found: Log | LeftOut) -> str:
    assert isinstance(found, LeftOut)
    return found.reason


# Workers: seconds per epoch, speed-up, efficiency, as printed in the table of the published study.
PUBLISHED = {
    "pytorch_native": {
        1: ("192.54", "1.000", "100.0 %"),
        2: ("103.71", "1.856", "92.8 %"),
        4: ("53.59", "3.593", "89.8 %"),
        6: ("34.91", "5.515", "91.9 %"),
        8: ("27.60", "6.977", "87.2 %"),
    },
    "horovod": {
        1: ("194.16", "1.000", "100.0 %"),
        2: ("174.90", "1.110", "55.5 %"),
        4: ("105.98", "1.832", "45.8 %"),
        6: ("70.62", "2.749", "45.8 %"),
        8: ("56.08", "3.462", "43.3 %"),
    },
}


@needs_v100
def test_the_published_table_is_reproduced_to_the_printed_digit() -> None:
    points = summarise(load_reference(V100))
    printed: dict[str, dict[int, tuple[str, str, str]]] = {"pytorch_native": {}, "horovod": {}}
    for point in points.to_dict("records"):
        printed[point["framework"]][point["workers"]] = (
            f"{point['seconds_per_epoch']:.2f}",
            f"{point['speedup']:.3f}",
            f"{100 * point['efficiency']:.1f} %",
        )
    assert printed == PUBLISHED


@needs_v100
def test_no_interval_is_claimed_for_the_published_logs() -> None:
    points = summarise(load_reference(V100))
    bounds = [name for name in points.columns if name.endswith(("_low", "_high"))]
    assert len(bounds) >= 6
    assert points[bounds].isna().all(axis=None)
    assert (points["repeats"] == 1).all()


@pytest.mark.parametrize("name", ["missing", ""])
def test_a_folder_without_logs_is_wrong_usage(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"log_hvd_N\.csv") as error:
        load_reference(tmp_path / name)
    assert error.value.exit_code == EXIT_USAGE
