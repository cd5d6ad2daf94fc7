"""Two studies against each other: which points, what differs, what is refused, and what is claimed."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.__main__ import main
from analysis.compare.compared import Sample, corrected_contrasts, unpaired_contrasts
from analysis.report.tables import COMPARE_LINES
from analysis.stats import Launches
from tests.compared_studies import OTHER_SPREAD, SPREAD, write_side
from tests.malformed_records import with_values
from tests.records import Measured, digest, make_epochs, make_point, make_workers, write_run
from tests.report_studies import START
from tests.reports import Compared
from unet_scaling.study.config import FRAMEWORKS
from unet_scaling.study.errors import EXIT_BAD_DATA, EXIT_USAGE, UserError
from unet_scaling.study.record_lines import End
from unet_scaling.study.study_file import OLDER_LOG_HEADER

LONG_RUN = {"training": {"epochs": 12}}
NO_DIFFERENCE, FASTER, WITHHELD = "no significant difference", "B faster", "withheld"
Write = Callable[[Path], object]


def side(speed: float = 100.0, **changes: Any) -> Write:
    """A study that differs from the plain one in this."""
    return lambda folder: write_side(folder, speed, **changes)


def on(host: str = "node1", **environment: str) -> dict[str, Any]:
    (worker,) = make_workers(1, host=host)
    return {"header_workers": [worker.model_copy(update={"environment": environment})]}


SILENT: dict[str, Any] = {
    "header_workers": [each.model_copy(update={"environment": None}) for each in make_workers(1)]
}


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


def one_incomplete(folder: Path) -> None:
    write_side(folder, spread=SPREAD[:4])
    write_run(folder, repeat=5, end=None)


def one_diverged(folder: Path) -> None:
    write_side(folder, spread=SPREAD[:4])
    write_run(folder, repeat=5, end=End(status="diverged", reason="the loss is nan"))


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
        ("B (b) is 12 % faster than A", "94 % interval, 5 and 5 launches"),
    ),
    "an option": (
        side(options={"pytorch_native": {"bucket_cap_mb": 25.0}}),
        side(options={"pytorch_native": {"bucket_cap_mb": 50.0}}),
        {"outcome": NO_DIFFERENCE}, {"pytorch_native.bucket_cap_mb": ("25.0", "50.0")}, (),
    ),
    "precision": (
        PLAIN, side(150.0, options={"training": {"precision": "bf16"}}), {"outcome": FASTER},
        {"training.precision": ("fp32", "bf16")}, (),
    ),
    "folder": (
        PLAIN, side(options={"data": {"folder": "/scratch/nuclei"}}), {"outcome": NO_DIFFERENCE},
        {"data.folder": ("/data/nuclei", "/scratch/nuclei")}, (),
    ),
    "software, machine, variables": (
        side(versions={"torch": "2.12.0"}, **on("n1", OMP_PLACES="cores")),
        side(versions={"torch": "2.13.0"}, **on("n2", NCCL_DEBUG="INFO", OMP_PLACES="cores")), {},
        {"version of torch": ("2.12.0", "2.13.0"), "hosts": ("n1", "n2"),
        "environment NCCL_DEBUG": ("not set", "INFO")},
        (),
    ),
    "variables that A did not record": (
        side(format=2, **SILENT), side(**on(OMP_PLACES="cores")), {},
        {"record format": ("2", "5"), "environment of the workers": ("not recorded", "recorded")}, (),
    ),
    "commit": (
        PLAIN, side(commit="f" * 40), {}, {"commit": ("0123456789abcdef0123456789abcdef01234567", "f" * 40)},
        (),
    ),
    "uncommitted changes": (PLAIN, side(dirty=True), {}, {"uncommitted changes": ("False", "True")}, ()),
    "GPU": (
        PLAIN, side(900.0, header_workers=make_workers(1, device="NVIDIA H200")), {}, None, ("NVIDIA H200",),
    ),
    "more seeds": (
        PLAIN, side(spread=[0.0] * 9), {}, {"seeds": ("1, 2, 3, 4 and 1 more value",
        "6, 7, 8, 9 and 5 more values")}, (),
    ),
    "image size": (
        PLAIN, side(150.0, options={"data": {"image_height": 64}}), REFUSED, None,
        ("An image is not the same work in A and B", "IoU: not compared", "A 128, B 64"),
    ),
    "network": (
        PLAIN, side(150.0, options={"model": {"width": 16}}), {"outcome": FASTER}, None,
        ("not the same work",),
    ),
    "manifest": (PLAIN, side(150.0, manifest_sha256=digest("other")), REFUSED, None, ("data manifest: A ",)),
    "test images": (PLAIN, side(150.0, test_images=13), REFUSED, None, ("test images: A 12, B 13",)),
    "split": (PLAIN, side(150.0, options={"data": {"split_seed": 7}}), REFUSED, None, ("A 42, B 7",)),
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
        ("at least 3",),
    ),
    "three repeats": (PLAIN, side(150.0, spread=SPREAD[:3]), {"outcome": "suggests B faster"}, None, ()),
    "a copy": (
        PLAIN, copied, {"ratio": 1.0, "outcome": NO_DIFFERENCE, "iou_difference": 0.0,
        "iou_outcome": NO_DIFFERENCE},
        {}, ("5 launches of it stand in both studies",),
    ),
    "at the same time": (PLAIN, at_the_same_time, {"outcome": WITHHELD}, None, ("on core 0 of host node1",)),
    "B at once": (
        PLAIN, side(150.0, started_utc=f"{START:%Y-%m-%dT%H:%M:%SZ}"), {"outcome": WITHHELD}, None,
        ("B pytorch",),
    ),
    "one incomplete": (PLAIN, one_incomplete, {"launches_b": 4}, None, ("B leaves out 1 run",)),
    "one diverged": (
        PLAIN, one_diverged, {"iou_remarks": "4 seeds as pairs; 1 run of B diverged"}, None,
        ("B leaves out 1 run",),
    ),
    "seeds": (
        PLAIN, other_seeds, {"iou_outcome": "B higher", "seeds_paired": 0, "iou_remarks": "seeds not paired"},
        None, (),
    ),
    "older records": (side(format=2), PLAIN, {}, {"record format": ("2", "5")}, ()),
    "another day": (
        PLAIN, side(started_utc="2025-02-11T12:00:00Z"), {}, None, ("B 2025-02-11 12:00 to 2025-02-11",),
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
    native = "pytorch_native"
    assert found.only == [
        (
            "A", native, 1, "bucket_cap_mb=5.0"), ("B", native, 1, "bucket_cap_mb=50.0"), ("B", "horovod", 2,
            "",
        ),
    ]  # fmt: skip


def test_further_frameworks_are_compared_as_the_pair_is(tmp_path: Path) -> None:
    for name, speed in (("a", 100.0), ("b", 112.0)):
        write_side(tmp_path / name, speed, frameworks=("pytorch_native", "lightning"))
    rows = Compared(tmp_path / "a", tmp_path / "b").rows
    assert [row["framework"] for row in rows] == ["pytorch_native", "lightning"]
    assert {row["outcome"] for row in rows} == {FASTER}


def test_an_option_of_all_may_change_within_an_axis_of_another(tmp_path: Path) -> None:
    for precision in ("fp32", "bf16"):
        for rate in (0.01, 0.1):
            options = {"training": {"precision": precision, "learning_rate": rate}}
            write_side(tmp_path / precision, options=options, label=f"-{rate}", frameworks=FRAMEWORKS)
    found = Compared(tmp_path / "fp32", tmp_path / "bf16")
    assert [row["options"] for row in found.rows] == ["learning_rate=0.01"] * 2 + ["learning_rate=0.1"] * 2
    assert list(found.differing) == ["training.precision"]


def test_pairs_of_seeds_find_what_their_spread_would_hide(tmp_path: Path) -> None:
    for name, gain in (("a", 0.0), ("b", 0.001)):
        for repeat in range(1, 6):
            iou = round(0.5 + 0.05 * repeat + gain * (1 + 0.1 * repeat), 6)
            write_run(tmp_path / name, repeat=repeat, iou=iou)
    (row,) = Compared(tmp_path / "a", tmp_path / "b").rows
    assert (row["iou_outcome"], row["seeds_paired"]) == ("B higher", 5)


def test_intervals_of_several_points_hold_together(tmp_path: Path) -> None:
    """Four points without a difference widen the interval of one that has a small one."""
    for name, workers in (("one", (1,)), ("five", (1, 2, 3, 4, 5))):
        write_side(tmp_path / name / "a", workers=workers)
        write_side(tmp_path / name / "b", 102.0, spread=OTHER_SPREAD)
        if name == "five":
            write_side(tmp_path / name / "b", workers=workers[1:], spread=OTHER_SPREAD)
    alone, among = (
        Compared(tmp_path / name / "a", tmp_path / name / "b").rows[0] for name in ("one", "five")
    )
    assert among["ratio_low"] < alone["ratio_low"]
    assert (alone["comparisons"], among["comparisons"]) == (1, 5)
    assert among["p_adjusted"] == pytest.approx(5 * alone["p_adjusted"])


def sample(values: np.ndarray[Any, Any]) -> Sample:
    points, launches = values.shape
    repeats = np.tile(np.arange(launches), points)
    return Sample(Launches(np.repeat(np.arange(points), launches), points, repeats), values.ravel())


@pytest.mark.parametrize("launches", [pytest.param(3, marks=pytest.mark.verify), 5])
def test_equal_studies_are_rarely_called_different_and_five_percent_are_found(launches: int) -> None:
    """In 200 simulated studies; of 5 % wrong ones, more than 9 % come in one of 100 such tests."""
    random = np.random.default_rng(3)
    shape = (200, launches)
    for kind in ("normal", "stragglers", "bimodal"):
        both = []
        for _ in "ab":
            noise = random.normal(0, 0.02 if kind == "normal" else 0.01, shape)
            slow = random.random(shape) < (0.5 if kind == "bimodal" else 0.2)
            lost = 0.1 if kind == "bimodal" else random.exponential(0.2, shape)
            both.append(sample(noise if kind == "normal" else noise - np.where(slow, lost, 0.0)))
        found = [corrected_contrasts([contrast]).iloc[0] for contrast in unpaired_contrasts(*both)]
        assert np.mean([row["low"] > 0 or row["high"] < 0 for row in found]) <= 0.09
    a, b = (sample(random.normal(np.log(ratio), 0.02, (100, 5))) for ratio in (1.0, 1.05))
    found = [corrected_contrasts([each]).iloc[0]["low"] > 0 for each in unpaired_contrasts(a, b)]
    assert np.mean(found) >= 0.8


def older(folder: Path, seconds: float) -> Path:
    folder.mkdir()
    for name in ("log_1.csv", "log_hvd_1.csv"):
        rows = [f"{epoch},{seconds},0.5,0.001,{3 * seconds + 0.05},1.0,0.8" for epoch in range(3)]
        (folder / name).write_text("\n".join([OLDER_LOG_HEADER, *rows]) + "\n")
    return folder


def test_older_logs_have_a_ratio_and_no_claim(tmp_path: Path) -> None:
    rows = Compared(older(tmp_path / "a", 10.0), older(tmp_path / "b", 8.0)).rows
    assert [row["ratio"] for row in rows] == [1.25, 1.25]
    assert {(row["outcome"], row["iou_outcome"]) for row in rows} == {("not enough repeats", "refused")}


def test_the_command_prints_what_differs_first_and_writes_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = write_side(tmp_path / "a")
    hostile = {"torch": "2.13.0 [red]|`x`\x1b[2J", "python": "3.11.2"}
    b = write_side(tmp_path / "b", 112.0, options={"training": {"channels_last": False}}, versions=hostile)
    assert main(["compare", str(a), str(b)]) == 0
    printed = capsys.readouterr().out
    places = [
        printed.index(text) for text in ("training.channels_last", "The same in both", "B / A", "is 12 %")
    ]
    assert places == sorted(places)
    names = {path.name for path in (b / "compare").iterdir()}
    assert names == {
        "compare_facts.csv",
        *(f"compare.{kind}" for kind in ("csv", "html", "md", "png", "svg")),
    }
    header = (b / "compare" / "compare.csv").read_text().splitlines()[0]
    assert header.split(",") == [name for line in COMPARE_LINES for name in line.names]
    text = (b / "compare" / "compare.md").read_text()
    assert "2.13.0 [red]\\|\\`x\\`[2J" in text
    assert "\x1b" not in text + printed


NOTHING: Mapping[str, tuple[Write, int]] = {
    "no common count": (side(workers=(2,)), EXIT_BAD_DATA),
    "no common framework": (side(frameworks=("horovod",)), EXIT_BAD_DATA),
    "no common options": (
        side(options={"training": {"epochs": 5, "batch_per_worker": 4}}, workers=(4,)),
        EXIT_BAD_DATA,
    ),
    "no usable run": (lambda folder: write_run(folder, end=None), EXIT_BAD_DATA),
    "older logs": (lambda folder: older(folder, 10.0), EXIT_BAD_DATA),
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
