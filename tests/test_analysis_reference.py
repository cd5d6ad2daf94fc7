"""Logs in the older layout: what is read of them, and what is refused."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.__main__ import main
from analysis.findings.fairness_table import fairness_checks, fairness_table
from analysis.findings.speedup import summarise
from analysis.loading.arm_names import arm_names
from analysis.loading.epoch_work import EpochWork, epoch_work
from analysis.loading.older_layout import Log
from analysis.loading.reference import load_reference, read_log
from analysis.loading.reference_schedule import epochs_asked
from analysis.study import EPOCH_COLUMNS, EVALUATION_COLUMNS, LeftOut, Study
from unet_scaling.study.errors import EXIT_USAGE, UserError
from unet_scaling.study.study_file import OLDER_LOG_HEADER

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
    return "\n".join([OLDER_LOG_HEADER, *rows]) + "\n"


TEXT_SUFFIXES = (".html", ".md", ".csv", ".svg")
# What a log of the published PyTorch study and one of its TensorFlow sibling differ in: the rate of the first
# epoch, the epochs after the third drop, and the seconds before the first epoch of several workers.
PYTORCH, TENSORFLOW = "pytorch", "tensorflow"
COUNTS = (1, 2, 4, 6, 8, 10, 12, 14)
FILES = [(kind, workers) for kind in ("", "hvd_") for workers in COUNTS]


def scheduled_rates(layout: str, workers: int, epochs: int) -> list[float]:
    """The rates of the reference's schedule, as the two layouts write them."""
    late = 1 if layout == TENSORFLOW else 0
    drops = (round(0.4 * epochs), round(0.6 * epochs), round(0.75 * epochs) + late)
    rates = [0.001 * workers / 2 ** sum(epoch >= drop for drop in drops) for epoch in range(epochs)]
    return rates if layout == TENSORFLOW else [0.001, *rates[1:]]


def reference_log(layout: str, workers: int, kind: str = "", epochs: int = 200, outside: float = 0.06) -> str:
    """The text of a sound log of the reference's schedule; `outside`: seconds in no epoch."""
    first = 38.0 if layout == TENSORFLOW else 200.0
    times = [first / workers * (1 + 0.01 * (epoch % 3)) for epoch in range(epochs)]
    if layout == TENSORFLOW:
        outside = 0.1 * epochs if workers > 1 and not kind else 0.8
    stated = sum(times) + outside
    rates = scheduled_rates(layout, workers, epochs)
    rows = [
        f"{epoch},{time:.6f},0.500000,{rate:.6f},{stated:.6f},1.500000,0.900000"
        for epoch, (time, rate) in enumerate(zip(times, rates, strict=True))
    ]
    return "\n".join([OLDER_LOG_HEADER, *rows]) + "\n"


def write_sixteen(folder: Path, layout: str) -> None:
    for kind, workers in FILES:
        (folder / f"log_{kind}{workers}.csv").write_text(reference_log(layout, workers, kind))


def cuts(text: str) -> Iterator[str]:
    """The log without each one of its rows, numbers of the epochs closed up or not, and without each tail."""
    header, *rows = text.splitlines()
    for place in range(len(rows)):
        left = [*rows[:place], *rows[place + 1 :]]
        renumbered = [f"{epoch},{row.partition(',')[2]}" for epoch, row in enumerate(left)]
        for kept in (left, renumbered, rows[:place]):
            yield "\n".join([header, *kept]) + "\n"


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


@pytest.mark.parametrize("layout", [PYTORCH, TENSORFLOW])
def test_accepts_all_sixteen_logs_of_either_layout(tmp_path: Path, layout: str) -> None:
    write_sixteen(tmp_path, layout)
    study = load_reference(tmp_path)
    assert study.left_out.empty
    assert len(study.runs) == len(FILES)


def test_names_the_logs_with_time_in_no_epoch_and_how_much(tmp_path: Path) -> None:
    write_sixteen(tmp_path, TENSORFLOW)
    (note,) = [note for note in load_reference(tmp_path).notes if "in no epoch" in note]
    assert "log_2.csv 20.0 s (0.5 %)" in note
    assert "log_14.csv 20.0 s" in note
    assert "log_hvd" not in note
    assert "0.4" in note


@pytest.mark.parametrize("layout", [PYTORCH, TENSORFLOW])
@pytest.mark.parametrize(
    ("kind", "workers"), [(kind, workers) for kind, workers in FILES if workers in (1, 2, 14)]
)
def test_refuses_every_cut_of_either_layout(tmp_path: Path, layout: str, kind: str, workers: int) -> None:
    text = reference_log(layout, workers, kind, epochs=20)
    path = tmp_path / f"log_{kind}{workers}.csv"
    path.write_text(text)
    assert isinstance(read_log(path), Log)
    accepted = 0
    for cut in cuts(text):
        path.write_text(cut)
        accepted += isinstance(read_log(path), Log)
    assert accepted == 0


@pytest.mark.parametrize(
    "rates",
    [
        [0.002] * 200,
        [*([0.002] * 80), *([0.001] * 120)],
        [*([0.002] * 80), *([0.0002] * 40), *([0.0001] * 30), *([0.00005] * 50)],
        [*([0.002] * 70), *([0.001] * 40), *([0.0005] * 40), *([0.00025] * 50)],
    ],
    ids=["constant rate", "one drop", "no halving", "other places"],
)
def test_refuses_time_outside_epochs_where_the_rate_does_not_tell(tmp_path: Path, rates: list[float]) -> None:
    rows = reference_log(TENSORFLOW, 2).splitlines()
    cells = [row.split(",") for row in rows[1:]]
    changed = [
        ",".join([*each[:3], f"{rate:.6f}", *each[4:]]) for each, rate in zip(cells, rates, strict=True)
    ]
    text = "\n".join([rows[0], *changed]) + "\n"
    assert "or lr is not of the reference's schedule" in problem(read(tmp_path, text))


def test_refuses_more_time_outside_epochs_than_a_start_can_take(tmp_path: Path) -> None:
    text = reference_log(PYTORCH, 2, outside=1100.0)
    assert "is in no epoch, at most 5 % is accepted" in problem(read(tmp_path, text))


@pytest.mark.parametrize("training_time", [30.0, 39.99])
def test_refuses_epochs_that_take_longer_than_the_training(tmp_path: Path, training_time: float) -> None:
    found = problem(read(tmp_path, log(training_time=training_time)))
    assert "both cannot be of one run in seconds" in found


def test_the_schedule_tells_the_epochs_whatever_their_number() -> None:
    for epochs in (20, 60, 100, 200, 400):
        for layout in (PYTORCH, TENSORFLOW):
            for workers in COUNTS:
                assert epochs_asked(scheduled_rates(layout, workers, epochs)) == epochs


def step_logs(folder: Path, step: Callable[[int], float] = lambda workers: 1.5 + 0.01 * workers) -> None:
    """Logs of both arms whose steps last as long as `step` says, and whose epochs drop images."""
    for kind, workers in FILES:
        seconds = 1792 // 16 * step(1) if workers == 1 else WORK.steps(workers) * step(workers)
        (folder / f"log_{kind}{workers}.csv").write_text(log((seconds,) * 20))


WORK = EpochWork(images=1792, batch=16)


def test_counts_the_steps_of_the_published_study() -> None:
    assert [WORK.steps(workers) for workers in COUNTS] == [112, 56, 28, 18, 14, 11, 9, 8]
    assert [WORK.images_trained(workers) for workers in (1, 6, 10, 14)] == [1792, 1728, 1760, 1792]


def test_dropped_images_are_no_speed_where_images_and_batch_are_given(tmp_path: Path) -> None:
    """Steps of equal length: perfect scaling, which epochs of fewer images make better than perfect."""
    step_logs(tmp_path, lambda workers: 2.0)
    by_epochs = summarise(load_reference(tmp_path))
    by_steps = summarise(load_reference(tmp_path, WORK))
    assert by_steps["efficiency"].to_numpy(dtype=float) == pytest.approx(1)
    assert by_epochs["efficiency"].max() == pytest.approx(112 / 9 / 12)
    assert by_steps["images_per_second"].iloc[0] == pytest.approx(8)
    assert by_steps["epochs_per_second"].to_list() == by_epochs["epochs_per_second"].to_list()


def test_states_the_speed_up_by_steps_and_by_epochs_and_what_was_assumed(tmp_path: Path) -> None:
    step_logs(tmp_path, lambda workers: 2.0)
    study = load_reference(tmp_path, WORK)
    notes = " ".join(study.notes)
    assert (
        "images are not recorded but given: 1,792 per epoch in batches of 16 per worker. Assumed is" in notes
    )
    assert "112 on 1, 56 on 2, 28 on 4, 18 on 6, 14 on 8, 11 on 10, 9 on 12, 8 on 14" in notes
    assert (
        "speed-up by epochs, dropped images counted as trained: Horovod 2.00 on 2, 4.00 on 4, 6.22 on 6"
        in notes
    )
    assert (study.throughput, study.unit) == ("images_per_second", "images / s")
    (work,) = (
        fairness_table(fairness_checks(study)).query("check == 'same work per epoch'").to_dict("records")
    )
    assert work["mark"] == "not known"


@needs_v100
def test_by_steps_the_published_curve_is_smoother() -> None:
    """Native DDP's efficiencies stray from a power law of the workers by 2.3 % by epochs, 0.2 % by steps."""
    assert roughness(load_reference(V100)) > 2
    assert roughness(load_reference(V100, WORK)) < 0.5


def roughness(study: Study) -> float:
    """Standard deviation of native DDP's efficiencies about a power law of the workers, in %."""
    rows = summarise(study).query("workers > 1 and framework == 'pytorch_native'")
    workers, efficiency = (np.log(rows[name].to_numpy(dtype=float)) for name in ("workers", "efficiency"))
    misfit = efficiency - np.polyval(np.polyfit(workers, efficiency, 1), workers)
    return 100 * float(np.sqrt(np.sum(misfit**2) / (len(rows) - 2)))


@pytest.mark.parametrize(
    ("images", "batch", "expected"),
    [
        (1792, None, "--images and --batch are given together"),
        (None, 16, "--images and --batch are given together"),
        (0, 16, "--images is 0, it must be from 1 to 1,000,000,000"),
        (1792, -1, "--batch is -1"),
        (10**20, 16, "--images is 100000000000000000000"),
    ],
)
def test_refuses_images_and_batch_that_make_no_epoch(
    images: int | None, batch: int | None, expected: str
) -> None:
    with pytest.raises(UserError, match=re.escape(expected)) as error:
        epoch_work(images, batch)
    assert error.value.exit_code == EXIT_USAGE


def test_refuses_a_batch_that_leaves_some_worker_without_a_step(tmp_path: Path) -> None:
    step_logs(tmp_path)
    with pytest.raises(UserError, match=r"log_14\.csv: the share of each of its 14 workers in 1792 images"):
        load_reference(tmp_path, EpochWork(images=1792, batch=129))


def test_refuses_images_that_would_need_impossible_steps(tmp_path: Path) -> None:
    step_logs(tmp_path)
    with pytest.raises(UserError, match=r"steps in an epoch of .* s are shorter than a step can be"):
        load_reference(tmp_path, EpochWork(images=10**9, batch=1))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MirroredStrategy", "--names has 1 names"),
        ("a,b,c", "--names has 3 names"),
        ("Horovod,horovod", "both arms are called 'Horovod'"),
        ("a,", "'' is not 1 to 30 printable characters"),
        ("a,b\x1b[31m", "is not 1 to 30 printable characters"),
        ("a,b\u202e", "is not 1 to 30 printable characters"),
        (f"a,{'b' * 31}", "is not 1 to 30 printable characters"),
    ],
)
def test_refuses_names_that_do_not_tell_two_arms_apart(text: str, expected: str) -> None:
    with pytest.raises(UserError, match=re.escape(expected)) as error:
        arm_names(text)
    assert error.value.exit_code == EXIT_USAGE


def test_every_output_calls_the_arms_as_the_user_names_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").mkdir()
    write_sixteen(tmp_path / "logs", TENSORFLOW)
    (tmp_path / "logs" / "log_hvd_16.csv").write_text("cut")
    report = tmp_path / "report"
    source = ["--reference", str(tmp_path / "logs"), "--output", str(report)]
    main([*source, "--names", "Mirrored & Co, Ring|All", "--images", "1792", "--batch", "16"])
    printed = capsys.readouterr().out
    outputs = {path.name: path.read_text() for path in report.iterdir() if path.suffix in TEXT_SUFFIXES}
    assert "measured so far: Mirrored & Co 14.00x, Ring|All 14.00x" in printed
    assert "Ring|All" in printed
    assert "Mirrored &amp; Co or Ring|All?</title>" in outputs["report.html"]
    for name in ("summary.csv", "runs.csv", "iou.csv", "cost.csv", "predictions.csv", "fits.csv"):
        assert "Mirrored & Co" in outputs[name]
        assert "Ring|All" in outputs[name]
    assert "Ring|All" in outputs["left_out.csv"]
    assert "Mirrored & Co" in outputs["summary.md"]
    for name, text in {**outputs, "console": printed}.items():
        said = text.partition("\n")[2] if name.endswith(".csv") else text  # columns have names of their own
        said = re.sub(r'<style.*?</style>|(class|style)="[^"]*"', "", said, flags=re.DOTALL)
        assert not re.search("DDP|horovod|pytorch_native", said, re.IGNORECASE), name


@pytest.mark.parametrize("option", [["--names", "a,b"], ["--images", "1792"], ["--batch", "16"]])
def test_refuses_options_of_older_logs_for_records(tmp_path: Path, option: list[str]) -> None:
    with pytest.raises(UserError, match="only with --reference"):
        main([str(tmp_path), *option])


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (log((20.0, 10.0, 10.0, 10.0)), "log_2.csv and log_hvd_2.csv in epochs (3 and 4) differ"),
        (
            log().replace("0.001000", "0.002000"),
            "log_2.csv and log_hvd_2.csv in learning rate (0.001 and 0.002 in epoch 0) differ",
        ),
    ],
)
def test_names_arms_that_were_not_trained_alike(tmp_path: Path, other: str, expected: str) -> None:
    read(tmp_path, log())
    notes = read(tmp_path, other, "log_hvd_2.csv").notes
    assert expected in " ".join(notes)
    assert not any("not the same training" in note for note in read(tmp_path, log(), "log_hvd_2.csv").notes)


def test_a_pipe_in_place_of_a_log_is_reported_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log_2.csv")
    assert "log_2.csv: no regular file" in problem(load_reference(tmp_path))


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
    assert (study.throughput, study.unit) == ("epochs_per_hour", "epochs / h")


def test_the_notes_say_what_such_logs_cannot_support(tmp_path: Path) -> None:
    notes = " ".join(read(tmp_path, log()).notes)
    for fact in (
        "images per epoch",
        "one run per point",
        "no provenance",
        "test images",
        "times are seconds",
    ):
        assert fact in notes


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("0,20.000000", "0,-1.000000"), ":2: time_per_epoch is -1.0, it must be from 1e-06 to 1e+12"),
        (("0,20.000000", "0,"), ":2: time_per_epoch is '', no finite number"),
        (("0,20.000000", "0,nan"), ":2: time_per_epoch is 'nan', no finite number"),
        (("0,20.000000", "0,1e999"), ":2: time_per_epoch is '1e999', no finite number"),
        (("0.900000", "1.100000"), ":2: iou is 1.1, it must be from 0 to 1"),
        (("0.001000", "0.000000"), ":2: lr is 0.0, it must be from 1e-12 to 1e+12"),
        (("5.000000", "-5.000000"), ":2: test_time is -5.0, it must be from 0 to 1e+12"),
        (("\n1,", "\n1.0,"), ":3: the epoch is '1.0', no whole number"),
        (("\n2,", "\n3,"), "epochs are not 0, 1, 2, ...: found 3 where 2 belongs"),
        (("1,10.000000,0.500000,", "1,10.000000,"), ":3: 6 columns, expected 7"),
        ((",loss,lr,", ",lr,loss,"), ":1: the columns must be"),
        ((OLDER_LOG_HEADER, ""), ":1: the columns must be"),
        (("2,10.000000", "2,10.000000\x00"), ":4: time_per_epoch is"),
        (("\n2,10.000000", "\n" + "\x00" * 64 + "\n2,10.000000"), ":4: 1 columns, expected 7"),
        (("\n1,", f"\n{OLDER_LOG_HEADER}\n1,"), ":3: the epoch is '', no whole number"),
        (("\n1,", "\nslurmstepd: error: job killed\n1,"), ":3: 1 columns, expected 7"),
        (("\n1,10.000000", "\n1,10.0000002,10.000000"), ":3: 8 or more columns, expected 7"),
        (("\n1,10.000000", "\n\n1,10.000000"), ":3: 0 columns, expected 7"),
        (("\n2,", "\n1,"), "epochs are not 0, 1, 2, ...: found 1 where 2 belongs"),
        (("\n0,", "\n1,"), "epochs are not 0, 1, 2, ...: found 1 where 0 belongs"),
        (("\n1,", "\n-1,"), ":3: the epoch is '-1', no whole number"),
        (("1,10.000000", "1,10,000000"), ":3: 8 or more columns, expected 7"),
        (("1,10.000000", "1, 10.000000"), ":3: time_per_epoch is ' 10.000000', no finite number"),
        (("1,10.000000", "1,1_0.000000"), ":3: time_per_epoch is '1_0.000000', no finite number"),
        (("1,10.000000", "1,10.000000\r"), ":3: time_per_epoch is '10.000000\ufffd', no finite number"),
        (("0,20.000000", '0,"20.000000'), ":2: time_per_epoch is '\"20.000000', no finite number"),
        (("\n0,", "\n0,0,0,0,0,0,0,0,0,"), ":2: 8 or more columns, expected 7"),
        (("1,10.000000", "1,\u0661\u0660"), ":3: time_per_epoch is '\u0661\u0660', no finite number"),
        (("1,10.000000", "1,5e-324"), ":3: time_per_epoch is 5e-324, it must be from 1e-06 to 1e+12"),
        (("1,10.000000,", "1,1e308,"), ":3: time_per_epoch is 1e+308, it must be from 1e-06 to 1e+12"),
        (("0.500000", "1e300"), ":2: loss is 1e+300, it must be from -1e+12 to 1e+12"),
        (("5.000000", "1e300"), ":2: test_time is 1e+300, it must be from 0 to 1e+12"),
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


@pytest.mark.parametrize("text", ["", OLDER_LOG_HEADER + "\n"])
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
