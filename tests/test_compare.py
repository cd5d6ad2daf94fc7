"""Two studies against each other: which points, what differs, what is refused, and what is claimed."""

import itertools
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.__main__ import main
from analysis.report.tables import COMPARE_LINES
from tests.honest import START
from tests.records import Measured, digest, make_epochs, make_point, older_log, write_run
from tests.reports import Compared
from tests.test_malformed import with_values
from unet_scaling.base.errors import EXIT_BAD_DATA, EXIT_USAGE, UserError
from unet_scaling.study.config import FRAMEWORKS, Framework

Options = Mapping[str, Mapping[str, Any]]
NATIVE = FRAMEWORKS[:1]
# Deviations of the launches of a point, in percent.
SPREAD = (-1.0, 0.4, 0.0, 1.1, -0.5)
OTHER_SPREAD = (0.7, -0.9, 0.2, -0.3, 0.6)
# After START, when those of write_run start, each launch has a minute of its own: no two are at once.
MINUTES = itertools.count(start=10)
LONG_RUN = {"training": {"epochs": 12}}
FASTER, WITHHELD = "B faster", "withheld"
Write = Callable[[Path], object]


def write_side(
    folder: Path,
    speed: float = 100.0,
    *,
    frameworks: Sequence[Framework] = NATIVE,
    workers: Sequence[int] = (1,),
    spread: Sequence[float] = SPREAD,
    options: Options | None = None,
    label: str = "",
    iou: float = 0.8,
    **header: object,
) -> Path:
    """A study of launches that differ by `spread`, in percent of the throughput, one after the other."""
    for framework in frameworks:
        for count in workers:
            for repeat, percent in enumerate(spread, start=1):
                started = START + timedelta(minutes=next(MINUTES))
                write_run(
                    folder,
                    framework,
                    count,
                    repeat,
                    images_per_second=speed * count * (1 + percent / 100),
                    iou=round(iou + 0.001 * percent, 6),
                    options=options,
                    label=label,
                    header={"started_utc": f"{started:%Y-%m-%dT%H:%M:%SZ}"} | header,
                )
    return folder


def side(speed: float = 100.0, **changes: Any) -> Write:
    """A study that differs from the plain one in this."""
    return lambda folder: write_side(folder, speed, **changes)


def stalled(launches: Sequence[int]) -> Write:
    """5 launches of 12 epochs, these of which stalled in one of them."""

    def write(folder: Path) -> None:
        for repeat, percent in enumerate(SPREAD, start=1):
            epochs = make_epochs(make_point(repeat=repeat, options=LONG_RUN), 100 + percent, 480)
            if repeat in launches:
                slow = 50 * epochs[4].seconds
                epochs[4] = epochs[4].model_copy(update={"seconds": slow, "worker_seconds": [slow]})
            started = {"started_utc": f"2025-02-0{repeat}T12:00:00Z"}
            write_run(folder, repeat=repeat, options=LONG_RUN, measured=Measured(epochs), header=started)

    return write


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


def more_pixels(folder: Path) -> None:
    """The counts of one pixel more, though the images are as many."""
    for record in write_side(folder).glob("*/run.jsonl"):
        *others, result, end = record.read_bytes().splitlines(keepends=True)
        record.write_bytes(b"".join([*others, with_values(result, true_negative=9_000_001), end]))


PLAIN = side()
REFUSED = {"iou_outcome": "refused", "outcome": FASTER}
# Study A, study B, what the row of their point holds, the facts in which they differ, words of the page.
PAIRS: Mapping[
    str, tuple[Write, Write, Mapping[str, object], Mapping[str, tuple[str, str]] | None, Sequence[str]]
]
PAIRS = {
    "B is faster": (
        PLAIN, side(112.0, spread=OTHER_SPREAD), {"outcome": FASTER, "launches_a": 5, "launches_b": 5}, {},
        ("B (b) is 12 % faster than A",),
    ),
    "commit": (
        PLAIN, side(commit="f" * 40), {}, {"commit": ("0123456789abcdef0123456789abcdef01234567", "f" * 40)},
        (),
    ),
    "image size": (
        PLAIN, side(150.0, options={"data": {"image_height": 64}}), REFUSED, None,
        ("An image is not the same work in A and B", "IoU: not compared", "A 128, B 64"),
    ),
    "manifest": (PLAIN, side(150.0, manifest_sha256=digest("other")), REFUSED, None, ("data manifest: A ",)),
    "pixels": (PLAIN, more_pixels, {"iou_outcome": "refused"}, None, ("A 10,000,000, B 10,000,001",)),
    "two of A disturbed": (
        stalled([2, 4]), side(150.0, options=LONG_RUN), {"outcome": "suggests B faster", "launches_a": 3},
        None, (),
    ),
    "most of A disturbed": (
        stalled([1, 2, 3, 4]), side(150.0, options=LONG_RUN), {"outcome": WITHHELD}, None,
        ("4 launches of A disturbed",),
    ),
    "one repeat": (
        PLAIN, side(150.0, spread=(0.0,)), {"outcome": "not enough repeats",
        "iou_outcome": "not enough repeats"}, None,
        ("do not show which",),
    ),
    "three repeats": (PLAIN, side(150.0, spread=SPREAD[:3]), {"outcome": "suggests B faster"}, None, ()),
    "a copy": (
        PLAIN, copied, {"ratio": 1.0, "outcome": WITHHELD, "iou_difference": 0.0,
        "iou_outcome": "equal within 0.01"},
        {}, ("5 launches of it stand in both studies",),
    ),
    "equal": (
        PLAIN, side(100.1, spread=OTHER_SPREAD), {"outcome": "equal within 3 %"}, None,
        ("are equally fast, within 3 % with native DDP on 1 worker",),
    ),
    "cannot tell": (
        PLAIN, side(101.0, spread=(-5.0, 5.0, 0.0, -3.0, 3.0)), {"outcome": "cannot tell"}, None,
        ("do not show which of", "of each would"),
    ),
    "at the same time": (PLAIN, at_the_same_time, {"outcome": WITHHELD}, None, ("on core 0 of host node1",)),
    "seeds": (
        PLAIN, other_seeds, {"iou_outcome": "B higher", "seeds_paired": 0, "iou_remarks": "seeds not paired"},
        None, (),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PAIRS)
def test_a_pair_claims_what_it_shows_and_names_what_differs(case: str, tmp_path: Path) -> None:
    write_a, write_b, row, facts, words = PAIRS[case]
    write_a(tmp_path / "a")
    write_b(tmp_path / "b")
    found = Compared(tmp_path / "a", tmp_path / "b")
    assert {name: found.rows[0][name] for name in row} == row
    assert facts is None or found.differing == facts
    assert [word for word in words if word not in found.text] == [], found.text
    if row.get("iou_outcome") == "refused":
        assert np.isnan([found.rows[0]["iou_difference"], found.rows[0]["iou_difference_low"]]).all()
    if row.get("outcome") == "not enough repeats":
        assert np.isnan([found.rows[0][name] for name in ("ratio_low", "coverage", "p_adjusted")]).all()


def test_swapping_the_studies_inverts_ratios_and_changes_nothing_else(tmp_path: Path) -> None:
    a = write_side(tmp_path / "a")
    b = write_side(tmp_path / "b", 103.0, spread=OTHER_SPREAD, iou=0.81)
    (one,), (other,) = Compared(a, b).rows, Compared(b, a).rows
    assert one["ratio"] == pytest.approx(1.03 * 1.002)
    assert [one["ratio"], one["ratio_low"], one["ratio_high"]] == pytest.approx(
        [1 / other["ratio"], 1 / other["ratio_high"], 1 / other["ratio_low"]]
    )
    assert one["iou_difference_low"] == pytest.approx(-other["iou_difference_high"])
    assert (one["outcome"], other["outcome"]) == ("B faster", "A faster")
    assert (one["iou_outcome"], other["iou_outcome"]) == ("B higher", "A higher")


def test_points_are_compared_at_equal_values_of_an_axis_only(tmp_path: Path) -> None:
    for name, buckets in (("a", (5.0, 25.0)), ("b", (25.0, 50.0))):
        for bucket in buckets:
            options = {"pytorch_native": {"bucket_cap_mb": bucket}}
            write_side(tmp_path / name, bucket, options=options, label=f"-b{bucket:.0f}")
    write_side(tmp_path / "b", workers=(2,), frameworks=("horovod",))
    found = Compared(tmp_path / "a", tmp_path / "b")
    (row,) = found.rows
    assert row["knobs"] == "bucket_cap_mb=25.0"
    assert [row["throughput_a"], row["throughput_b"]] == pytest.approx([25.0, 25.0])
    assert found.only == [
        ("A", "pytorch_native", 1, "bucket_cap_mb=5.0"),
        ("B", "pytorch_native", 1, "bucket_cap_mb=50.0"),
        ("B", "horovod", 2, ""),
    ]


def test_pairs_of_seeds_find_what_their_spread_would_hide(tmp_path: Path) -> None:
    for name, gain in (("a", 0.0), ("b", 0.001)):
        for repeat in range(1, 6):
            iou = round(0.5 + 0.05 * repeat + gain * (1 + 0.1 * repeat), 6)
            write_run(tmp_path / name, repeat=repeat, iou=iou)
    (row,) = Compared(tmp_path / "a", tmp_path / "b").rows
    assert (row["iou_outcome"], row["seeds_paired"]) == ("B higher", 5)


def older(folder: Path) -> None:
    folder.mkdir()
    for name in ("log_1.csv", "log_hvd_1.csv"):
        (folder / name).write_text(older_log())


def test_the_command_prints_what_differs_first_and_writes_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = write_side(tmp_path / "a")
    hostile = {"torch": "2.13.0 [red]|`x`\x1b[2J", "python": "3.11.2"}
    b = write_side(tmp_path / "b", 112.0, options={"training": {"channels_last": False}}, versions=hostile)
    assert main(["compare", str(a), str(b)]) == 0
    printed = capsys.readouterr().out
    places = [printed.index(text) for text in ("training.channels_last", "B / A", "is 12 %")]
    assert places == sorted(places)
    names = {path.name for path in (b / "compare").iterdir()}
    assert names == {
        "compare_facts.csv",
        *(f"compare.{kind}" for kind in ("csv", "html", "svg")),
    }
    header = (b / "compare" / "compare.csv").read_text().splitlines()[0]
    assert header.split(",") == [name for line in COMPARE_LINES for name in line.names]
    text = (b / "compare" / "compare.html").read_text()
    assert "2.13.0 [red]|`x`[2J" in text
    assert "\x1b" not in text + printed


NOTHING: Mapping[str, tuple[Write, int]] = {
    "no common count": (side(workers=(2,)), EXIT_BAD_DATA),
    "no common framework": (side(frameworks=("horovod",)), EXIT_BAD_DATA),
    "no common options": (
        side(options={"training": {"epochs": 5, "batch_per_worker": 4}}, workers=(4,)),
        EXIT_BAD_DATA,
    ),
    "no usable run": (lambda folder: write_run(folder, end=None), EXIT_BAD_DATA),
    "older logs": (older, EXIT_BAD_DATA),
    "no folder": (lambda folder: None, EXIT_USAGE),
}


@pytest.mark.parametrize("case", NOTHING)
def test_what_cannot_be_compared_is_refused(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], told: Callable[[str], None]
) -> None:
    write, code = NOTHING[case]
    write_side(tmp_path / "a")
    write(tmp_path / "b")
    with pytest.raises(UserError) as refused:
        main(["compare", str(tmp_path / "a"), str(tmp_path / "b")])
    assert refused.value.exit_code == code
    told(str(refused.value))
    printed = capsys.readouterr().out
    assert ("Nothing to compare" in printed) == ("common" in case)
    assert "faster" not in printed
