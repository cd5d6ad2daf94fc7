"""Pairs of studies that invite a wrong conclusion: each page says the word that a reader must see."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from analysis.__main__ import main
from analysis.compare.show import comparison_markdown
from tests.compared_studies import SPREAD, compared, write_side
from tests.records import Measured, digest, make_epochs, make_point, make_workers, write_run
from tests.report_studies import START
from unet_scaling.study.errors import EXIT_BAD_DATA, UserError

LONG_RUN = {"training": {"epochs": 12}}
Written = Callable[[Path], object]


def with_one(**changes: Any) -> Written:
    """Write a study that differs from the plain one in this."""
    return lambda folder: write_side(folder, **changes)


def stalled(launches: Sequence[int]) -> Written:
    """Write 5 launches of 12 epochs, these of which stalled in one of them."""

    def write(folder: Path) -> None:
        for repeat, percent in enumerate(SPREAD, start=1):
            point = make_point(repeat=repeat, options=LONG_RUN)
            epochs = make_epochs(point, 100 + percent, 480)
            if repeat in launches:
                slow = 50 * epochs[4].seconds
                epochs[4] = epochs[4].model_copy(update={"seconds": slow, "worker_seconds": [slow]})
            started = {"started_utc": f"2025-02-0{repeat}T12:00:00Z"}
            write_run(folder, repeat=repeat, options=LONG_RUN, measured=Measured(epochs), header=started)

    return write


def one_incomplete(folder: Path) -> None:
    write_side(folder, spread=SPREAD[:4])
    write_run(folder, repeat=5, end=None)


def other_seeds(folder: Path) -> None:
    for repeat in range(11, 16):
        write_run(folder, repeat=repeat, iou=0.9 + 0.0001 * repeat)


def copied(folder: Path) -> None:
    shutil.copytree(folder.with_name("a"), folder)


def at_the_same_time(folder: Path) -> None:
    """Each launch trains while one of the plain study does, on its core."""
    for path in sorted(folder.with_name("a").iterdir()):
        text = (path / "run.jsonl").read_text()
        started = text[text.index('"started_utc":"') + len('"started_utc":"') :][:20]
        repeat = int(path.name[-1])
        write_run(folder, repeat=repeat, images_per_second=150.0 + repeat, header={"started_utc": started})


def all_at_once(folder: Path) -> None:
    """Launches of one core that all start in the same second, as nobody can have measured them alone."""
    write_side(folder, 150.0, started_utc=f"{START:%Y-%m-%dT%H:%M:%SZ}")


PLAIN = with_one()
BY_SIZE = "An image is not the same work in A and B"
PAIRS: dict[str, tuple[Written, Written, tuple[str, ...]]] = {
    "image size": (
        PLAIN,
        with_one(speed=400.0, options={"data": {"image_height": 64}}),
        (BY_SIZE, "data.image\\_height: A 128, B 64", "IoU: not compared"),
    ),
    "network": (PLAIN, with_one(speed=50.0, options={"model": {"width": 16}}), (BY_SIZE, "A 8, B 16")),
    "images": (PLAIN, with_one(manifest_sha256=digest("other")), ("IoU: not compared: data manifest: A ",)),
    "precision": (
        PLAIN,
        with_one(speed=150.0, options={"training": {"precision": "bf16"}}),
        ("| training.precision | fp32 | bf16 |",),
    ),
    "two of A disturbed": (
        stalled([2, 4]),
        with_one(speed=150.0, options=LONG_RUN),
        ("A few launches suggest", "A: 2 disturbed launches are left out of speed"),
    ),
    "A disturbed": (
        stalled([1, 2, 3, 4]),
        with_one(speed=150.0, options=LONG_RUN),
        ("No verdict on speed: ", "4 launches of A disturbed", "A: 4 disturbed launches are counted"),
    ),
    "commit": (PLAIN, with_one(commit="f" * 40), ("| software | commit | 0123456789", "| ffffffffff")),
    "uncommitted changes": (
        PLAIN,
        with_one(dirty=True),
        ("| uncommitted changes | False | True |", "B: the code had uncommitted changes"),
    ),
    "one repeat": (PLAIN, with_one(speed=150.0, spread=(0.0,)), ("Not enough repeats (at least 3",)),
    "a copy": (
        PLAIN,
        copied,
        ("but 5 launches of it stand in both studies: the same measurement, or copied.",),
    ),
    "at the same time": (
        PLAIN,
        at_the_same_time,
        ("No verdict on speed: B (b) measured", "trained at the same time on core 0 of host node1"),
    ),
    "B at once": (PLAIN, all_at_once, ("No verdict on speed: ", "B pytorch\\_native-w01-r1 and B ")),
    "GPU": (
        PLAIN,
        with_one(speed=900.0, header_workers=make_workers(1, device="NVIDIA H200")),
        ("| devices | cpu | NVIDIA H200 |",),
    ),
    "one incomplete": (PLAIN, one_incomplete, ("B leaves out 1 run: .venv/bin/unet-scaling report ",)),
    "seeds": (PLAIN, other_seeds, ("| seeds | 1, 2, 3, 4 and 1 more value | 11,", ", seeds not paired")),
    "older records": (with_one(format=2), PLAIN, ("| software | record format | 2 | 5 |",)),
}


@pytest.mark.parametrize("case", PAIRS)
def test_a_hostile_pair_is_refused_or_qualified_on_its_page(case: str, tmp_path: Path) -> None:
    write_a, write_b, words = PAIRS[case]
    write_a(tmp_path / "a")
    write_b(tmp_path / "b")
    page = comparison_markdown(compared(tmp_path / "a", tmp_path / "b"))
    assert [word for word in words if word not in page] == [], page


@pytest.mark.parametrize(
    ("written", "only"),
    [
        (with_one(workers=(2,)), "only in B: native DDP on workers 2"),
        (with_one(frameworks=("horovod",)), "only in B: Horovod on workers 1"),
        (with_one(options={"training": {"epochs": 5, "batch_per_worker": 4}}, workers=(4,)), "workers 4"),
    ],
)
def test_studies_without_a_common_point_are_an_error(
    written: Written, only: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    PLAIN(tmp_path / "a")
    written(tmp_path / "b")
    with pytest.raises(UserError, match="have no point in common") as error:
        main(["compare", str(tmp_path / "a"), str(tmp_path / "b")])
    assert error.value.exit_code == EXIT_BAD_DATA
    printed = capsys.readouterr().out
    assert only in printed
    assert "Nothing to compare" in printed
    assert "faster" not in printed
