"""Two studies against each other: which points, what differs, what is refused, and what is claimed."""

import csv
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from analysis.__main__ import main
from analysis.compare.assemble import StudyComparison
from analysis.compare.contrast import Sample, corrected, paired_contrasts, unpaired_contrasts
from analysis.compare.show import COMPARE_COLUMNS, comparison_files, comparison_markdown
from analysis.statistics.launches import Launches
from tests.compared_studies import OTHER_SPREAD, SPREAD, Options, compared, write_side
from tests.malformed_records import with_values
from tests.records import Measured, make_epochs, make_point, make_workers, write_run
from unet_scaling.study.config import FRAMEWORKS, PROJECT
from unet_scaling.study.errors import EXIT_BAD_DATA, EXIT_USAGE, UserError
from unet_scaling.study.record_lines import End
from unet_scaling.study.study_file import OLDER_LOG_HEADER


def one_row(a: Path, b: Path) -> dict[Any, Any]:
    (row,) = compared(a, b).points.to_dict("records")
    return row


def differing(comparison: StudyComparison) -> dict[str, tuple[str, str]]:
    return {fact.name: fact.texts for fact in comparison.differing}


@pytest.fixture
def before(tmp_path: Path) -> Path:
    return write_side(tmp_path / "before")


def test_a_faster_study_is_named_with_its_interval(before: Path, tmp_path: Path) -> None:
    comparison = compared(before, write_side(tmp_path / "after", 112.0, spread=OTHER_SPREAD))
    (row,) = comparison.points.to_dict("records")
    assert (row["outcome"], row["launches_a"], row["launches_b"]) == ("B faster", 5, 5)
    assert row["ratio_low"] < row["ratio"] < row["ratio_high"]
    assert row["ratio"] == pytest.approx(1.12 * 1.002)
    assert comparison.headlines[0].startswith("B (after) is 12 % faster than A [1")
    assert "with native DDP on 1 worker (94 % interval, 5 and 5 launches)" in comparison.headlines[0]


def test_swapping_the_studies_inverts_ratios_and_changes_nothing_else(before: Path, tmp_path: Path) -> None:
    after = write_side(tmp_path / "after", 103.0, spread=OTHER_SPREAD, iou=0.81)
    one = one_row(before, after)
    other = one_row(after, before)
    assert [one["ratio"], one["ratio_low"], one["ratio_high"]] == pytest.approx(
        [1 / other["ratio"], 1 / other["ratio_high"], 1 / other["ratio_low"]]
    )
    assert one["iou_difference_low"] == pytest.approx(-other["iou_difference_high"])
    assert (one["outcome"], other["outcome"]) == ("B faster", "A faster")
    assert (one["iou_outcome"], other["iou_outcome"]) == ("B higher", "A higher")


def test_a_study_against_itself_has_no_difference_and_is_said_to_be_the_same(before: Path) -> None:
    comparison = compared(before, before)
    (row,) = comparison.points.to_dict("records")
    assert (row["ratio"], row["outcome"]) == (1.0, "no significant difference")
    assert (row["iou_difference"], row["iou_outcome"]) == (0.0, "no significant difference")
    assert comparison.differing == []
    assert row["doubts"] == "5 launches of it stand in both studies: the same measurement, or copied"
    assert "Nothing that the records say." in comparison_markdown(comparison)


def test_equal_numbers_are_no_difference() -> None:
    """The mean of 3 times 0.1 is not that of 5 times 0.1: it differs by its rounding."""
    assert np.mean([0.1] * 3) != np.mean([0.1] * 5)
    (contrast,) = unpaired_contrasts(sample(np.full((1, 3), 0.1)), sample(np.full((1, 5), 0.1)))
    row = corrected([contrast]).iloc[0]
    assert [row["p_adjusted"], row["low"], row["high"]] == pytest.approx([1.0, 0.0, 0.0], abs=1e-12)


def test_an_option_that_changed_is_shown_and_its_points_are_compared(tmp_path: Path) -> None:
    a = write_side(tmp_path / "a", options={"pytorch_native": {"bucket_cap_mb": 25.0}}, workers=(1, 2))
    b = write_side(tmp_path / "b", options={"pytorch_native": {"bucket_cap_mb": 50.0}}, workers=(1, 2))
    comparison = compared(a, b)
    assert differing(comparison) == {"pytorch_native.bucket_cap_mb": ("25.0", "50.0")}
    assert comparison.points["workers"].tolist() == [1, 2]
    assert comparison.only.empty


def test_points_of_an_axis_are_compared_at_equal_values_only(tmp_path: Path) -> None:
    folders = {}
    for name, buckets in (("a", (5.0, 25.0)), ("b", (25.0, 50.0))):
        folders[name] = tmp_path / name
        for bucket in buckets:
            options = {"pytorch_native": {"bucket_cap_mb": bucket}}
            write_side(folders[name], bucket, options=options, label=f"-b{bucket:.0f}")
    comparison = compared(folders["a"], folders["b"])
    (row,) = comparison.points.to_dict("records")
    assert row["knobs"] == "bucket_cap_mb=25.0"
    assert [row["throughput_a"], row["throughput_b"]] == pytest.approx([25.0, 25.0])
    only = comparison.only[["only_in", "knobs"]].to_numpy().tolist()
    assert only == [["A", "bucket_cap_mb=5.0"], ["B", "bucket_cap_mb=50.0"]]


def test_an_option_of_both_frameworks_may_change_within_an_axis_of_another(tmp_path: Path) -> None:
    folders = []
    for precision in ("fp32", "bf16"):
        folders.append(tmp_path / precision)
        for rate in (0.01, 0.1):
            options = {"training": {"precision": precision, "learning_rate": rate}}
            write_side(folders[-1], options=options, label=f"-{rate}", frameworks=FRAMEWORKS)
    comparison = compared(*folders)
    assert comparison.points["options"].tolist() == ["learning_rate=0.01"] * 2 + ["learning_rate=0.1"] * 2
    assert list(differing(comparison)) == ["training.precision"]


def test_the_data_folder_names_a_place_and_separates_no_points(before: Path, tmp_path: Path) -> None:
    """One point of B was read from the place of A, one from another."""
    write_side(before, workers=(2,))
    after = write_side(tmp_path / "b", options={"data": {"folder": "/scratch/nuclei"}})
    write_side(after, workers=(2,))
    comparison = compared(before, after)
    assert comparison.points["workers"].tolist() == [1, 2]
    assert differing(comparison) == {"data.folder": ("/data/nuclei", "/scratch/nuclei, /data/nuclei")}


def test_software_machine_and_variables_that_differ_are_shown_with_both_values(tmp_path: Path) -> None:
    a, b = (
        write_side(tmp_path / name, versions={"torch": version}, workers=(1,), **facts_of(host, variables))
        for name, version, host, variables in (
            ("a", "2.12.0", "n1", {"OMP_PLACES": "cores"}),
            ("b", "2.13.0", "n2", {"NCCL_DEBUG": "INFO", "OMP_PLACES": "cores"}),
        )
    )
    assert differing(compared(a, b)) == {
        "version of torch": ("2.12.0", "2.13.0"),
        "hosts": ("n1", "n2"),
        "environment NCCL_DEBUG": ("not set", "INFO"),
    }


def facts_of(host: str, variables: dict[str, str]) -> dict[str, Any]:
    (worker,) = make_workers(1, host=host)
    return {"header_workers": [worker.model_copy(update={"environment": variables})]}


def test_variables_that_one_study_did_not_record_are_one_fact(tmp_path: Path) -> None:
    (silent,) = make_workers(1)
    older = [silent.model_copy(update={"environment": None})]
    a = write_side(tmp_path / "a", header_workers=older, format=2)
    b = write_side(tmp_path / "b", **facts_of("node1", {"OMP_PLACES": "cores", "NCCL_DEBUG": "INFO"}))
    assert differing(compared(a, b)) == {
        "record format": ("2", "5"),
        "environment of the workers": ("not recorded", "recorded"),
    }


def test_of_many_values_those_that_the_other_study_lacks_come_first(before: Path, tmp_path: Path) -> None:
    after = write_side(tmp_path / "after", spread=[0.0] * 9)
    assert differing(compared(before, after)) == {
        "seeds": ("1, 2, 3, 4 and 1 more value", "6, 7, 8, 9 and 5 more values")
    }


def test_points_of_one_study_alone_are_listed(before: Path, tmp_path: Path) -> None:
    after = write_side(tmp_path / "after", workers=(1, 2, 4), frameworks=FRAMEWORKS)
    comparison = compared(before, after)
    assert len(comparison.points) == 1
    page = comparison_markdown(comparison)
    assert "- only in B: native DDP on workers 2, 4" in page
    assert "- only in B: Horovod on workers 1, 2, 4" in page
    written = list(csv.DictReader(comparison_files(comparison)["compare.csv"].decode().splitlines()))
    assert [row["only_in"] for row in written] == [""] + 5 * ["B"]


@pytest.mark.parametrize(
    ("options", "header", "fact"),
    [
        ({}, {"manifest_sha256": "1" * 64}, "data manifest: A "),
        ({}, {"test_images": 13}, "test images: A 12, B 13"),
        ({"data": {"split_seed": 7}}, {}, "data.split_seed: A 42, B 7"),
        ({"data": {"image_height": 64}}, {}, "data.image_height: A 128, B 64"),
    ],
)
def test_iou_of_another_test_set_is_refused_with_both_values(
    before: Path, tmp_path: Path, options: Options, header: dict[str, Any], fact: str
) -> None:
    comparison = compared(before, write_side(tmp_path / "after", 150.0, options=options, **header))
    (row,) = comparison.points.to_dict("records")
    assert (row["iou_outcome"], row["outcome"]) == ("refused", "B faster")
    assert fact in row["iou_remarks"]
    assert np.isnan([row["iou_difference"], row["iou_difference_low"]]).all()
    assert any(text.startswith("IoU: not compared: ") and fact in text for text in comparison.headlines)


def test_iou_over_more_pixels_is_refused_though_the_images_are_as_many(before: Path, tmp_path: Path) -> None:
    after = write_side(tmp_path / "after")
    for record in after.glob("*/run.jsonl"):
        *others, result, end = record.read_bytes().splitlines(keepends=True)
        record.write_bytes(b"".join([*others, with_values(result, true_negative=9_000_001), end]))
    row = one_row(before, after)
    assert row["iou_outcome"] == "refused"
    assert "evaluated pixels: A 10,000,000, B 10,000,001" in row["iou_remarks"]
    assert np.isnan(row["iou_difference"])


def test_too_few_launches_have_no_interval_and_say_how_many_are_needed(before: Path, tmp_path: Path) -> None:
    comparison = compared(before, write_side(tmp_path / "after", 150.0, spread=(0.0,)))
    (row,) = comparison.points.to_dict("records")
    assert (row["outcome"], row["iou_outcome"]) == ("not enough repeats", "not enough repeats")
    assert np.isnan([row["ratio_low"], row["coverage"], row["p_adjusted"], row["iou_difference_low"]]).all()
    assert comparison.headlines[0] == (
        "not enough repeats (at least 3 of each study are needed, 5 recommended): "
        "native DDP on 1 worker: B / A 1.500 of 5 launches in A, 1 in B"
    )


def test_three_launches_only_suggest(before: Path, tmp_path: Path) -> None:
    comparison = compared(before, write_side(tmp_path / "after", 150.0, spread=SPREAD[:3]))
    assert comparison.points["outcome"].tolist() == ["suggests B faster"]
    assert comparison.headlines[0].startswith("a few launches suggest that B (after) is 50 % faster")


def test_many_points_without_a_difference_are_counted(before: Path, tmp_path: Path) -> None:
    workers = (1, 2, 3, 4, 5)
    a, b = (write_side(tmp_path / name, workers=workers, spread=SPREAD[:3]) for name in "ab")
    assert compared(a, b).headlines == [
        "no significant difference at 5 of 5 points",
        "IoU: no significant difference at 5 of 5 points",
    ]


def test_seeds_that_differ_are_compared_unpaired(before: Path, tmp_path: Path) -> None:
    after = tmp_path / "after"
    for repeat in range(11, 16):
        write_run(after, repeat=repeat, iou=0.9)
    row = one_row(before, after)
    assert (row["seeds_paired"], row["iou_remarks"]) == (0, "seeds not paired")
    assert row["iou_difference"] == pytest.approx(0.1)
    assert row["iou_outcome"] == "B higher"


def test_pairs_of_seeds_find_what_their_spread_would_hide(tmp_path: Path) -> None:
    folders = []
    for name, gain in (("a", 0.0), ("b", 0.001)):
        folders.append(tmp_path / name)
        for repeat in range(1, 6):
            iou = round(0.5 + 0.05 * repeat + gain * (1 + 0.1 * repeat), 6)
            write_run(folders[-1], repeat=repeat, iou=iou)
    comparison = compared(*folders)
    assert comparison.points["iou_outcome"].tolist() == ["B higher"]
    assert "within the margin of 0.01" in comparison.headlines[-1]


def test_disturbed_launches_that_count_withhold_the_claim(before: Path, tmp_path: Path) -> None:
    after = tmp_path / "after"
    options = {"training": {"epochs": 12}}
    for repeat in range(1, 6):
        epochs = make_epochs(make_point(repeat=repeat, options=options), 150.0 + repeat, 480)
        slow = 50 * epochs[4].seconds
        epochs[4] = epochs[4].model_copy(update={"seconds": slow, "worker_seconds": [slow]})
        write_run(after, repeat=repeat, options=options, measured=Measured(epochs))
    comparison = compared(before, after)
    assert comparison.points["outcome"].tolist() == ["withheld"]
    assert comparison.headlines[0].startswith("no verdict on speed: B (after) measured 5")
    assert "5 launches of B disturbed by other programs or a stall" in comparison.headlines[0]


def test_diverged_runs_stand_beside_the_iou(before: Path, tmp_path: Path) -> None:
    after = write_side(tmp_path / "after")
    shutil.rmtree(after / "pytorch_native-w01-r5")
    write_run(after, repeat=5, end=End(status="diverged", reason="the loss is nan"))
    comparison = compared(before, after)
    assert comparison.points["iou_remarks"].tolist() == ["4 seeds as pairs; 1 run of B diverged"]
    assert any(
        note.startswith("B leaves out 1 run: .venv/bin/unet-scaling report ") for note in comparison.notes
    )


def test_studies_that_ran_apart_are_said_to(before: Path, tmp_path: Path) -> None:
    comparison = compared(before, write_side(tmp_path / "after", started_utc="2025-02-11T12:00:00Z"))
    (note,) = (note for note in comparison.notes if note.startswith("A ran "))
    assert "B 2025-02-11 12:00 to 2025-02-11 12:00 (UTC): what changed on the machine between them" in note


def write_older(folder: Path, seconds: float) -> Path:
    folder.mkdir()
    for name in ("log_1.csv", "log_hvd_1.csv"):
        rows = [f"{epoch},{seconds},0.5,0.001,{3 * seconds + 0.05},1.0,0.8" for epoch in range(3)]
        (folder / name).write_text("\n".join([OLDER_LOG_HEADER, *rows]) + "\n")
    return folder


def test_older_logs_are_compared_without_interval_and_their_iou_is_refused(tmp_path: Path) -> None:
    comparison = compared(write_older(tmp_path / "a", 10.0), write_older(tmp_path / "b", 8.0))
    assert comparison.points["ratio"].tolist() == [1.25, 1.25]
    assert set(comparison.points["outcome"]) == {"not enough repeats"}
    assert set(comparison.points["iou_outcome"]) == {"refused"}
    assert "Not known: logs in the older layout" in comparison_markdown(comparison)


def test_older_logs_and_records_have_no_number_in_common(before: Path, tmp_path: Path) -> None:
    older = write_older(tmp_path / "older", 10.0)
    for pair in ((older, before), (before, older)):
        with pytest.raises(
            UserError, match=r"older holds logs in the older layout, . = .*records: "
        ) as error:
            compared(*pair)
        assert error.value.exit_code == EXIT_BAD_DATA


def test_the_command_prints_what_differs_first_and_writes_its_files(
    before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    after = write_side(tmp_path / "after", 112.0, options={"training": {"channels_last": False}})
    assert main(["compare", str(before), str(after)]) == 0
    printed = capsys.readouterr().out
    shown = ("training.channels_last", "The same in both", "B / A", "is 12 %")
    places = [printed.index(text) for text in shown]
    assert places == sorted(places)
    names = {path.name for path in (after / "compare").iterdir()}
    kinds = ("csv", "html", "md", "png", "svg")
    assert names == {"compare_facts.csv", *(f"compare.{kind}" for kind in kinds)}
    written = (after / "compare" / "compare.csv").read_text()
    assert written.splitlines()[0].split(",") == list(COMPARE_COLUMNS)
    assert main(["compare", str(before), str(after), "--output", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / "compare.csv").read_text() == written


def test_without_a_common_point_the_command_shows_what_differs_and_ends_with_65(
    before: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    after = write_side(tmp_path / "after", workers=(2,))
    with pytest.raises(UserError, match="have no point in common") as error:
        main(["compare", str(before), str(after)])
    assert error.value.exit_code == EXIT_BAD_DATA
    assert "only in A: native DDP on workers 1" in capsys.readouterr().out
    assert "Nothing to compare" in (after / "compare" / "compare.md").read_text()


def test_a_study_without_a_usable_run_is_an_error_that_names_it_and_why(before: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "after", end=None)
    with pytest.raises(UserError, match=r"B = .*after has no usable run: pytorch_native-w01-r1: ") as error:
        main(["compare", str(before), str(tmp_path / "after")])
    assert error.value.exit_code == EXIT_BAD_DATA


def test_a_missing_folder_is_a_usage_error(before: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no folder") as error:
        main(["compare", str(before), str(tmp_path / "nothing")])
    assert error.value.exit_code == EXIT_USAGE


def test_names_that_steer_a_terminal_or_markdown_are_shown_as_text(before: Path, tmp_path: Path) -> None:
    versions = {"torch": "2.13.0 [red]|`x`\x1b[2J", "python": "3.11.2"}
    comparison = compared(before, write_side(tmp_path / "after", versions=versions))
    page = comparison_markdown(comparison)
    assert "2.13.0 [red]\\|\\`x\\`[2J" in page
    assert "\x1b" not in page


def test_every_column_is_explained_in_the_documentation() -> None:
    page = (PROJECT / "docs" / "compare.md").read_text()
    assert all(f"| `{name}` | {meaning}".rstrip() in page for name, meaning in COMPARE_COLUMNS.items())


def sample(values: np.ndarray[Any, Any]) -> Sample:
    points, launches = values.shape
    repeats = np.tile(np.arange(launches), points)
    return Sample(Launches(np.repeat(np.arange(points), launches), points, repeats), values.ravel())


def launch_noise(random: np.random.Generator, kind: str, shape: tuple[int, int]) -> NDArray[np.float64]:
    """Return logarithms of throughputs around 1 that spread by some percent."""
    if kind == "normal":
        return random.normal(0, 0.02, shape)
    noise = random.normal(0, 0.01, shape)
    if kind == "bimodal":
        return noise - 0.1 * (random.random(shape) < 0.5)
    return noise - np.where(random.random(shape) < 0.2, random.exponential(0.2, shape), 0.0)


@pytest.mark.parametrize("noise", ["normal", "stragglers", "bimodal"])
@pytest.mark.parametrize("launches", [3, 5])
def test_equal_studies_are_rarely_called_different(noise: str, launches: int) -> None:
    """In 200 simulated studies; of 5 % wrong ones, more than 9 % come in one of 100 such tests."""
    random = np.random.default_rng(3)
    a, b = (sample(launch_noise(random, noise, (200, launches))) for _ in "ab")
    found = [corrected([contrast]).iloc[0] for contrast in unpaired_contrasts(a, b)]
    assert np.mean([row["low"] > 0 or row["high"] < 0 for row in found]) <= 0.09


def test_five_launches_of_each_find_a_difference_of_five_percent() -> None:
    random = np.random.default_rng(3)
    a, b = (sample(random.normal(np.log(ratio), 0.02, (100, 5))) for ratio in (1.0, 1.05))
    found = [corrected([contrast]).iloc[0]["low"] > 0 for contrast in unpaired_contrasts(a, b)]
    assert np.mean(found) >= 0.8


def test_intervals_of_several_points_hold_together() -> None:
    """Nine points without a difference widen the interval of one that has a small one."""
    difference = np.array([0.02, 0.03, 0.025, 0.031, 0.028])
    noise = [np.array([-0.02, 0.01, 0.005, -0.008, 0.012])] * 9
    alone = corrected(paired_contrasts([difference])).iloc[0]
    among = corrected(paired_contrasts([difference, *noise])).iloc[0]
    assert among["low"] < alone["low"]
    assert (alone["comparisons"], among["comparisons"]) == (1, 10)
    assert among["p_adjusted"] == pytest.approx(10 * alone["p_adjusted"])
