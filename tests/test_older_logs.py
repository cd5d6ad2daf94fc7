"""Logs in the older layout: what is read of them, that no cut one is used, and what is refused."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pytest

from analysis.__main__ import main
from tests.records import older_log as log
from tests.reports import Told, report_of_older, without_figures
from unet_scaling.base.errors import EXIT_USAGE, UserError
from unet_scaling.format.older_log import OLDER_LOG_HEADER

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


def reference_log(
    layout: str,
    workers: int,
    kind: str = "",
    epochs: int = 200,
    outside: float = 0.06,
    rates: Sequence[float] = (),
) -> str:
    """The text of a sound log of the reference's schedule, or of `rates`; `outside`: seconds in no epoch."""
    first = 38.0 if layout == TENSORFLOW else 200.0
    times = [first / workers * (1 + 0.01 * (epoch % 3)) for epoch in range(epochs)]
    if layout == TENSORFLOW:
        outside = 0.1 * epochs if workers > 1 and not kind else 0.8
    stated = sum(times) + outside
    rows = [
        f"{epoch},{time:.6f},0.500000,{rate:.6f},{stated:.6f},1.500000,0.900000"
        for epoch, (time, rate) in enumerate(
            zip(times, rates or scheduled_rates(layout, workers, epochs), strict=True)
        )
    ]
    return "\n".join([OLDER_LOG_HEADER, *rows]) + "\n"


def write_sixteen(folder: Path, layout: str) -> None:
    for kind, workers in FILES:
        (folder / f"log_{kind}{workers}.csv").write_text(reference_log(layout, workers, kind))


def read(folder: Path, text: str, name: str = "log_2.csv") -> Told:
    (folder / name).write_text(text)
    return report_of_older(folder)


def problem(found: Told) -> str:
    """Why the only log was left out."""
    assert found.study.runs.empty
    (reason,) = found.left_out.values()
    return reason


@pytest.mark.parametrize("layout", [PYTORCH, TENSORFLOW])
def test_all_sixteen_logs_of_either_layout_are_read(tmp_path: Path, layout: str) -> None:
    write_sixteen(tmp_path, layout)
    (tmp_path / "log_hvd_999999.csv").write_text(log())
    found = report_of_older(tmp_path)
    assert found.left_out == {}
    points = set(zip(found.study.runs["framework"], found.study.runs["workers"], strict=True))
    assert points == {(NAMES[kind], workers) for kind, workers in [*FILES, ("hvd_", 999_999)]}
    outside = [note for note in found.study.notes if "in no epoch" in note]
    assert bool(outside) == (layout == TENSORFLOW)
    assert all("log_2.csv 20.0 s (0.5 %)" in note and "log_hvd" not in note for note in outside)


NAMES = {"": "pytorch_native", "hvd_": "horovod"}


def test_a_log_cut_at_any_byte_is_reported_and_never_used(tmp_path: Path) -> None:
    """In its last two rows; of the others at some."""
    content = log((20.0, 10.0, 11.0, 9.0, 10.5, 9.9, 10.1))
    path = tmp_path / "log_2.csv"
    last_rows = content.rindex("\n5,")
    for size in (*range(0, last_rows, 7), *range(last_rows, len(content))):
        assert str(path) in problem(read(tmp_path, content[:size]))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (reference_log(TENSORFLOW, 2, rates=[0.002] * 200), "or lr is not of the reference's schedule"),
        (
            reference_log(TENSORFLOW, 2, rates=[0.002] * 70 + [1e-3] * 40 + [5e-4] * 40 + [25e-5] * 50),
            "or lr is not",
        ),
        (reference_log(PYTORCH, 2, outside=1100.0), "is in no epoch, at most 5 % is accepted"),
        # Of 200 epochs one is half a percent of the time: the rate alone tells that it is missing.
        (reference_log(TENSORFLOW, 2).rpartition("199,")[0], "lr tells 200 epochs, found 199"),
        (log(training_time=30.0), "both cannot be of one run in seconds"),
        (log()[: -len("0.900000\n")] + "0.800000\n", "iou is of the whole run, but has 2 values"),
        ("", "log_2.csv"), (OLDER_LOG_HEADER + "\n", "no epochs"), (log((20.0,)), "none after the warm-up"),
    ],
)  # fmt: skip
def test_a_log_that_contradicts_itself_is_not_used(tmp_path: Path, text: str, said: str) -> None:
    assert said in problem(read(tmp_path, text))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("0,20.000000", "0,-1.000000", ":2: time_per_epoch is -1.0, it must be from"),
        ("0,20.000000", "0,1e999", ":2: time_per_epoch is '1e999'"),
        ("0.900000", "1.100000", ":2: iou is 1.1, it must be from 0 to 1"),
        ("\n1,", "\n1.0,", ":3: the epoch is '1.0'"), ("\n2,", "\n1,", "found 1 where 2 belongs"),
        ("1,10.000000,0.500000,", "1,10.000000,", ":3: 6 columns, expected 7"),
        (",loss,lr,", ",lr,loss,", ":1: the columns must be"),
        ("\n1,", "\nslurmstepd: error: job killed\n1,", ":3: 1 columns"),
        ("1,10.0", "1,1_0.0", ":3: time_per_epoch"), ("1,10.000000", "1,\u0661\u0660", ":3: time_per_epoch"),
        ("1,10.000000", "1,20.000000", "the epochs take 50.000 s"),
    ],
)  # fmt: skip
def test_an_impossible_log_is_reported_with_its_place(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in log()
    assert said in problem(read(tmp_path, log().replace(old, new)))


def test_what_is_no_log_is_listed_and_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    alone = read(tmp_path, log(), "log_1.csv").study.runs
    os.mkfifo(tmp_path / "log_2.csv")
    (tmp_path / "log_4.csv").mkdir()
    (tmp_path / "log_02.csv").write_text(log())
    (tmp_path / "log_6.csv").write_bytes(log().encode().replace(b"\n1,10", b"\n1,1\xff0"))
    found = read(tmp_path, log()[:-1], "log_hvd_4.csv")
    pd.testing.assert_frame_equal(found.study.runs, alone)
    words = {
        "log_02.csv": "neither log_N.csv nor", "log_2.csv": "no regular file", "log_4.csv": "Is a directory",
        "log_6.csv": ":3: time_per_epoch is", "log_hvd_4.csv": "the line is cut off",
    }  # fmt: skip
    assert set(found.left_out) == set(words)
    assert all(word in found.left_out[name] for name, word in words.items())


def test_the_first_epoch_is_the_warm_up_or_five_where_enough_are_left(tmp_path: Path) -> None:
    short = read(tmp_path, log((20.0, 10.0, 8.0)))
    assert (short.row("runs")["epochs_used"], short.row("runs")["epochs_per_second"]) == (
        2,
        pytest.approx(2 / 18),
    )
    assert "only the first epoch is left out as warm-up: log_2.csv (3 epochs)" in short.notes
    run = read(tmp_path, log((30.0, 19.0, 18.0, 17.0, 16.0, 10.0, 12.0, 11.0, 11.0, 40.0))).row("runs")
    assert (run["epochs_used"], run["seconds_per_epoch"]) == (5, 11.0)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (log((20.0, 10.0, 10.0, 10.0)), "in epochs (3 and 4) differ"),
        (log().replace("0.001000", "0.002000"), "in learning rate (0.001 and 0.002 in epoch 0) differ"),
        (log(), ""),
    ],
)
def test_arms_that_were_not_trained_alike_are_named(tmp_path: Path, other: str, said: str) -> None:
    read(tmp_path, log())
    notes = read(tmp_path, other, "log_hvd_2.csv").notes
    assert said in notes
    assert ("not the same training" in notes) == bool(said)


def write_steps(folder: Path, seconds: float = 2.0) -> None:
    """Logs of both arms whose steps last equally long, and whose epochs drop what fills no batch of 16."""
    for kind, workers in FILES:
        steps = -(-1792 // workers) // 16
        (folder / f"log_{kind}{workers}.csv").write_text(log((steps * seconds,) * 20))


def test_dropped_images_are_no_speed_where_images_and_batch_are_given(tmp_path: Path) -> None:
    """Steps of equal length: perfect scaling, which epochs of fewer images make better than perfect."""
    write_steps(tmp_path)
    by_epochs = report_of_older(tmp_path)
    by_steps = report_of_older(tmp_path, 1792, 16)
    assert by_steps.table("summary")["efficiency"].tolist() == pytest.approx([1.0] * 16)
    assert by_epochs.table("summary")["efficiency"].max() == pytest.approx(112 / 9 / 12)
    assert by_steps.rows("summary")[0]["images_per_second"] == pytest.approx(8)
    assert "112 on 1, 56 on 2, 28 on 4, 18 on 6, 14 on 8, 11 on 10, 9 on 12, 8 on 14" in by_steps.notes
    assert by_steps.check("same work per epoch")[0] == "not known"


def test_every_output_calls_the_arms_as_the_user_names_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_sixteen(tmp_path, TENSORFLOW)
    (tmp_path / "log_hvd_16.csv").write_text("cut")
    with without_figures():
        assert main(["--reference", str(tmp_path), "--names", "Mirrored & Co, Ring|All"]) == 0
    suffixes = (".html", ".md", ".csv")
    outputs = {
        path.name: path.read_text() for path in (tmp_path / "report").iterdir() if path.suffix in suffixes
    }
    outputs["console"] = capsys.readouterr().out
    assert all("Mirrored &" in outputs[name] for name in ("summary.csv", "runs.csv", "summary.md", "console"))
    assert "Ring|All" in outputs["report.html"]
    for name, text in outputs.items():
        said = text.partition("\n")[2] if name.endswith(".csv") else text  # columns have names of their own
        said = re.sub(r'<style.*?</style>|(class|style)="[^"]*"', "", said, flags=re.DOTALL)
        assert not re.search("DDP|horovod|pytorch_native", said, re.IGNORECASE), name


REFUSED = {
    "images alone": ["--images", "1792"],
    "no image": ["--images", "0", "--batch", "16"],
    "a negative batch": ["--images", "1792", "--batch", "-1"],
    "a worker without a step": ["--images", "1792", "--batch", "129"],
    "impossible steps": ["--images", f"{10**9}", "--batch", "1"],
    "one name": ["--names", "MirroredStrategy"],
    "equal names": ["--names", "Horovod,horovod"],
    "an empty name": ["--names", "a,"],
    "a name with an escape": ["--names", "a,b\x1b[31m"],
    "a long name": ["--names", f"a,{'b' * 31}"],
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_of_such_logs_is_refused(
    tmp_path: Path, case: str, told: Callable[[str], None]
) -> None:
    write_steps(tmp_path)
    with pytest.raises(UserError) as refused:
        main(["--reference", str(tmp_path), *REFUSED[case]])
    assert "step" in case or refused.value.exit_code == EXIT_USAGE
    told(str(refused.value))


@pytest.mark.parametrize("option", [["--names", "a,b"], ["--images", "1792"], ["--batch", "16"]])
def test_options_of_older_logs_are_refused_for_records(tmp_path: Path, option: list[str]) -> None:
    with pytest.raises(UserError, match="only with --reference"):
        main([str(tmp_path), *option])
