"""What a report says of saliency maps: speed, faithfulness, sameness, and what it must not say."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from analysis.__main__ import main
from analysis.compare.sides import read_side
from analysis.loading.load import load_study
from analysis.report.assemble import make_report
from analysis.saliency.findings import SaliencyFindings, saliency_findings
from tests.records import digest
from tests.report_studies import write_study
from tests.saliency_records import Made, write_explained, write_scaling
from unet_scaling.study.config import Framework
from unet_scaling.study.errors import UserError
from unet_scaling.study.saliency import SALIENCY_FOLDER, SALIENCY_MANIFEST_NAME, SaliencyPhases

OTHERS: tuple[Framework, ...] = ("horovod", "lightning", "accelerate")
MANIFEST = f"{SALIENCY_FOLDER}/{SALIENCY_MANIFEST_NAME}"


def findings(folder: Path) -> SaliencyFindings:
    study = load_study(folder)
    assert study.left_out.empty, study.left_out["reason"].to_list()
    return saliency_findings(study)


def notes(folder: Path) -> str:
    return " ".join(load_study(folder).notes)


@pytest.fixture(scope="module")
def scaling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both frameworks on 1 and 2 workers, both splits, three repeats."""
    return write_scaling(tmp_path_factory.mktemp("logs") / "maps")


@pytest.fixture(scope="module")
def report(scaling: Path) -> Path:
    """The folder of their report."""
    main([str(scaling)])
    return scaling / "report"


def test_speed_and_efficiency_follow_from_maps_and_the_slowest_worker(scaling: Path) -> None:
    points = {
        (row["framework"], row["split"], row["workers"]): row
        for row in findings(scaling).points.to_dict("records")
    }
    for framework in ("pytorch_native", "horovod"):
        for split, efficiency in (("images", 0.95), ("masks", 0.8)):
            one, two = (points[framework, split, workers] for workers in (1, 2))
            assert one["maps_per_second"] == pytest.approx(4.08)
            assert two["maps_per_second"] == pytest.approx(8 * 1.02 * efficiency)
            assert two["maps_per_second_low"] < two["maps_per_second"] < two["maps_per_second_high"]
            assert two["speedup"] == pytest.approx(2 * efficiency)
            assert two["efficiency"] == pytest.approx(efficiency)


def test_the_parts_of_the_time_add_up(scaling: Path) -> None:
    points = findings(scaling).points
    shares = points.filter(regex="_share$")
    assert shares.sum(axis=1).to_list() == pytest.approx([1] * len(points))
    assert points["forward_share"].to_list() == pytest.approx([0.6] * len(points))
    parts = points[[f"{str(name).removesuffix('_share')}_seconds" for name in shares]]
    assert parts.sum(axis=1).to_list() == pytest.approx(points["worker_seconds_per_map"].to_list())
    assert points["worker_seconds_per_map"].to_list() == pytest.approx(
        (points["workers"] / points["maps_per_second"]).to_list(), rel=1e-3
    )


def test_the_slowest_worker_and_the_largest_memory_count(tmp_path: Path) -> None:
    phases = [
        dict.fromkeys(SaliencyPhases.model_fields, 0.0) | {"forward": seconds} for seconds in (2.0, 3.0)
    ]
    changes = {"seconds": 3.0, "worker_seconds": [2.0, 3.0], "phases": phases, "peak_bytes": [2**29, 2**28]}
    write_explained(tmp_path / "maps", workers=2, made=Made(changes=changes))
    (row,) = findings(tmp_path / "maps").runs.to_dict("records")
    assert row["maps_per_second"] == 2.0
    assert row["peak_bytes"] == 2**29


def test_a_resumed_run_counts_for_no_speed_and_is_named(tmp_path: Path) -> None:
    study = tmp_path / "maps"
    for repeat in (1, 2):
        write_explained(study, repeat=repeat, made=Made(weights=f"{repeat}"))
    write_explained(
        study, repeat=3, made=Made(weights="3", maps_per_second=900.0, changes={"maps_made_here": 2})
    )
    found = findings(study)
    (point,) = found.points.to_dict("records")
    assert point["repeats"] == 2
    assert point["maps_per_second"] == 4.0
    assert len(found.faithful) == 6
    (warning,) = found.warnings
    assert warning == "pytorch_native-w01-r3 counts for no maps per second: " + (
        "resumed: 2 of 6 maps were made by the last attempt"
    )


def test_a_run_without_any_map_has_no_speed_and_no_share(tmp_path: Path) -> None:
    made = Made(without_map=range(6), changes={"seconds": 1.0, "worker_seconds": [1.0]})
    study = tmp_path / "maps"
    fields = dict.fromkeys(("masks", "weighting", "sum", "files", "other"), 0.0) | {"forward": 1.0}
    made = replace(made, changes={**made.changes, "phases": [fields]})
    write_explained(study, made=made)
    found = findings(study)
    assert found.points.empty
    assert found.faithful.empty
    assert found.runs["maps_per_second"].isna().all()
    assert any(
        "6 of 6 images of 1 run have no map: the prediction is empty" in each for each in found.warnings
    )
    assert any("no image has a map" in each for each in found.warnings)
    main([str(study)])
    page = (study / "report" / "report.html").read_text()
    assert "Where the network looks" in page
    assert "no image has a map" in page


def test_faithfulness_counts_images_with_its_exact_interval(tmp_path: Path) -> None:
    study = tmp_path / "maps"
    write_explained(study, made=Made(images=10, worse=(3,), untrained=4, untrained_worse=(0, 1, 2)))
    row = findings(study).faithful.query("score == 'iou'").iloc[0]
    assert (row["deletion_better"], row["images"]) == (9, 10)
    # Clopper and Pearson for 9 of 10.
    assert (row["deletion_share_low"], row["deletion_share_high"]) == pytest.approx(
        (0.5550, 0.9975), abs=1e-4
    )
    assert row["deletion_area"] < row["random_deletion_area"] == pytest.approx(0.5)
    assert (row["untrained_better"], row["untrained_maps"]) == (1, 4)
    assert row["untrained_correlation"] == 0.1


def test_a_difference_that_cannot_be_seen_does_not_count(tmp_path: Path) -> None:
    study = tmp_path / "maps"
    write_explained(study, made=Made(images=10, slight=(2, 5)))
    row = findings(study).faithful.query("score == 'iou'").iloc[0]
    assert (row["deletion_better"], row["insertion_better"]) == (8, 8)


def test_one_repeat_gives_no_verdict_on_others(tmp_path: Path) -> None:
    study = tmp_path / "maps"
    write_explained(study, made=Made(images=10, worse=(3,)))
    first = findings(study).sentences[0]
    assert "9 of 10 images (90 % [55, 100])" in first
    assert first.endswith("of one repeat, others may differ")
    for workers in (2, 3, 4):  # other trainings of the same seed are no repeats
        write_explained(study, workers=workers, made=Made(weights=f"{workers}", images=10))
    first = findings(study).sentences[0]
    assert "98 % of the images (mean of 4 trainings)" in first
    assert first.endswith("of one repeat, others may differ")


def test_several_repeats_give_their_median_and_its_interval(tmp_path: Path) -> None:
    study = tmp_path / "maps"
    for repeat, worse in enumerate([(), (1,), (1, 2)], start=1):
        write_explained(study, repeat=repeat, made=Made(weights=f"{repeat}", images=10, worse=worse))
    first = findings(study).sentences[0]
    assert "90 % of the images (median of 3 repeats, 75 % interval [74, 100])" in first
    assert "one repeat" not in first


def test_runs_of_equal_weights_count_once(tmp_path: Path) -> None:
    study = tmp_path / "maps"
    for framework in ("pytorch_native", "horovod"):
        write_explained(study, framework, made=Made(images=10, worse=(3,)))
    assert "9 of 10 images" in findings(study).sentences[0]


@pytest.mark.parametrize(("worse", "warned"), [(range(2), False), (range(5), True), (range(10), True)])
def test_maps_no_better_than_random_are_warned_of(worse: range, warned: bool, tmp_path: Path) -> None:
    study = tmp_path / "maps"
    write_explained(study, made=Made(images=12, worse=tuple(worse)))
    said = any("not shown to be better than random order" in each for each in findings(study).warnings)
    assert said == warned


@pytest.mark.parametrize(("correlation", "warned"), [(0.2, False), (0.7, True), (-0.7, True), (None, False)])
def test_maps_like_those_of_an_untrained_network_are_warned_of(
    correlation: float | None, warned: bool, tmp_path: Path
) -> None:
    study = tmp_path / "maps"
    write_explained(study, made=Made(images=12, correlation=correlation))
    said = [each for each in findings(study).warnings if "freshly drawn weights" in each]
    assert bool(said) == warned
    assert all("pytorch_native-w01-r1 (0.70)" in each for each in said)


def test_equal_weights_give_the_same_maps_or_the_difference_is_named(scaling: Path, tmp_path: Path) -> None:
    same = "equal weights gave the same maps, to the byte, in 24 of 24 runs (6 sets of weights)"
    assert same in findings(scaling).sentences
    study = tmp_path / "maps"
    write_explained(study)
    write_explained(study, "horovod", made=Made(maps_seed="other"))
    said = " ".join(findings(study).sentences)
    assert "in 0 of 2 runs (1 set of weights)" in said
    assert (
        "horovod-w01-r1 made other maps than pytorch_native-w01-r1 of the same weights on 6 of 6 images"
        in said
    )


def test_maps_of_other_weights_are_not_compared(tmp_path: Path) -> None:
    study = tmp_path / "maps"
    write_explained(study, made=Made(weights="a"))
    write_explained(study, "horovod", made=Made(weights="b", maps_seed="other"))
    said = findings(study).sentences
    assert "no two runs have the same weights and settings: no maps are compared" in said
    assert (
        "from 1 seed, native DDP trained other weights than Horovod: maps of other weights are not compared"
        in said
    )
    assert "other maps than" not in " ".join(said)


def test_the_one_run_with_other_maps_is_named_though_it_comes_first(tmp_path: Path) -> None:
    study = tmp_path / "maps"
    write_explained(study, made=Made(maps_seed="odd"))
    for framework in OTHERS:
        write_explained(study, framework)
    said = " ".join(findings(study).sentences)
    assert "in 3 of 4 runs (1 set of weights)" in said
    assert "pytorch_native-w01-r1 made other maps than horovod-w01-r1 of the same weights on 6 of 6" in said
    assert said.count("made other maps") == 1


def test_frameworks_of_equal_weights_are_not_said_to_differ(tmp_path: Path) -> None:
    study = tmp_path / "maps"
    write_explained(study)
    for framework in OTHERS:
        write_explained(study, framework, made=Made(weights="b" if framework == "accelerate" else "weights"))
    said = " ".join(findings(study).sentences)
    assert "in 3 of 3 runs (1 set of weights)" in said
    assert (
        "from 1 seed, native DDP, Horovod and Lightning Fabric trained other weights than Accelerate:" in said
    )


def test_runs_that_may_round_otherwise_are_not_compared(tmp_path: Path) -> None:
    study = tmp_path / "maps"
    write_explained(study)
    write_explained(study, made=Made(maps_seed="other", training={"precision": "bf16"}))
    assert "no two runs have the same weights and settings: no maps are compared" in findings(study).sentences


def test_maps_of_other_options_are_not_compared(tmp_path: Path) -> None:
    study = tmp_path / "maps"
    write_explained(study, masks=64)
    write_explained(study, masks=128, made=Made(maps_seed="other"))
    assert "no two runs have the same weights and settings: no maps are compared" in findings(study).sentences


def torn(manifest: Path) -> None:
    manifest.write_bytes(manifest.read_bytes()[:-40])


def altered(manifest: Path) -> None:
    manifest.write_text(manifest.read_text().replace('"cell1"', '"cell7"'))


@pytest.mark.parametrize("damage", [torn, altered])
def test_a_damaged_manifest_is_not_used_and_the_run_is_named(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    study = tmp_path / "maps"
    damage(write_explained(study) / MANIFEST)
    write_explained(study, "horovod")
    assert "pytorch_native-w01-r1: saliency/manifest.json is not used: its SHA-256 begins with" in notes(
        study
    )
    found = findings(study)
    assert set(found.faithful["framework"]) == {"horovod"}
    assert len(found.points) == 2


def test_a_manifest_that_is_not_there_is_named(tmp_path: Path) -> None:
    study = tmp_path / "maps"
    (write_explained(study) / MANIFEST).unlink()
    assert "pytorch_native-w01-r1: saliency/manifest.json is not used: " in notes(study)
    assert len(findings(study).points) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"weights_sha256": digest("others")}, "weights_sha256 is"),
        ({"method": "sliding_window"}, "method is sliding_window, but rise in the record"),
        ({"shares": [0.0, 1.0]}, "a curve has 5 scores at 2 shares of the pixels"),
    ],
)
def test_a_manifest_that_contradicts_its_record_is_refused(
    changes: dict[str, object], said: str, tmp_path: Path
) -> None:
    study = tmp_path / "maps"
    write_explained(study, made=Made(manifest_changes=changes))
    assert f"saliency/manifest.json is not used: {said}" in notes(study)
    assert findings(study).faithful.empty


def test_missing_maps_are_counted_unless_all_were_left_behind(tmp_path: Path) -> None:
    study = tmp_path / "maps"
    maps = sorted((write_explained(study) / SALIENCY_FOLDER / "maps").iterdir())
    maps[2].unlink()
    assert "1 map of 6 missing in saliency: maps/00002.npy" in notes(study)
    for file in maps:
        file.unlink(missing_ok=True)
    assert "missing" not in notes(study)


def test_the_page_shows_pictures_beside_their_numbers(report: Path) -> None:
    page = (report / "report.html").read_text()
    assert page.count('<img src="data:image/png;base64,') == 6 * 4
    assert 'alt="cell0, map of IoU"' in page
    assert "deletion 0.27 (0.50), insertion 0.73 (0.50)" in page
    for name in ("saliency_speed", "saliency_budget", "saliency_curves"):
        assert f'href="{name}.svg"' in page
        assert (report / f"{name}.png").stat().st_size > 1000


def test_the_worst_images_are_shown_beside_the_best(tmp_path: Path) -> None:
    study = tmp_path / "maps"
    write_explained(study, made=Made(images=9, worse=(4,)))
    main([str(study)])
    page = (study / "report" / "report.html").read_text()
    shown = [f"cell{number}" for number in range(9) if f'alt="cell{number}, image"' in page]
    assert shown == ["cell0", "cell1", "cell2", "cell4", "cell7", "cell8"]
    assert page.index("cell0, image") < page.index("cell8, image") < page.index("cell4, image")
    assert "the 3 best and the 3 worst of 9 images" in page


def test_a_picture_that_is_missing_or_was_changed_is_not_shown(tmp_path: Path) -> None:
    study = tmp_path / "maps"
    overlays = write_explained(study) / SALIENCY_FOLDER / "overlays"
    (overlays / "00000_iou.png").unlink()
    (overlays / "00001_iou.png").write_bytes((overlays / "00002_iou.png").read_bytes())
    main([str(study)])
    page = (study / "report" / "report.html").read_text()
    assert page.count("not beside the record") == 2
    assert page.count('<img src="data:image/png;base64,') == 6 * 4 - 2


def test_tables_and_summary_hold_the_same_numbers(report: Path, scaling: Path) -> None:
    points = pd.read_csv(report / "saliency.csv")
    summary = json.loads((report / "summary.json").read_text())["saliency"]
    assert [row["maps_per_second"] for row in summary["points"]] == points["maps_per_second"].to_list()
    assert summary["sentences"] == findings(scaling).sentences
    assert len(pd.read_csv(report / "saliency_images.csv")) == 24 * 6 * 2
    assert len(pd.read_csv(report / "saliency_faithfulness.csv")) == 24 * 2
    assert len(pd.read_csv(report / "saliency_runs.csv")) == 24
    assert len(pd.read_csv(report / "saliency_curves.csv")) == 2 * 2 * 2 * 5


@pytest.mark.parametrize("epochs", [0, 1])
def test_runs_without_an_epoch_to_time_are_reported_by_their_maps(epochs: int, tmp_path: Path) -> None:
    study = tmp_path / "maps"
    for workers in (1, 2):
        write_explained(study, workers=workers, made=Made(epochs=epochs, maps_per_second=4.0 * workers))
    main([str(study)])
    loaded = load_study(study)
    assert loaded.runs.empty
    found = findings(study)
    assert found.points["efficiency"].to_list() == [1.0, 1.0]
    assert set(found.faithful["run"]) == {"pytorch_native-w01-r1", "pytorch_native-w02-r1"}
    assert "in 2 of 2 runs" in " ".join(found.sentences)
    page = (study / "report" / "report.html").read_text()
    assert "Where the network looks" in page
    assert 'alt="cell0, map of IoU"' in page
    assert 'href="saliency_speed.svg"' in page
    assert "saliency maps only: native DDP on 1, 2 workers, 2 runs" in page
    assert "every run is played" not in page
    (note,) = (note for note in loaded.notes if "without an epoch after the warm-up" in note)
    assert "2 runs" in note


@pytest.mark.parametrize("epochs", [0, 1])
def test_runs_of_maps_only_stand_beside_timed_ones(epochs: int, tmp_path: Path) -> None:
    study = tmp_path / "maps"
    write_explained(study)
    write_explained(study, "horovod", made=Made(epochs=epochs))
    main([str(study)])
    found = findings(study)
    assert list(load_study(study).runs["framework"]) == ["pytorch_native"]
    assert set(found.points["framework"]) == {"pytorch_native", "horovod"}
    assert not findings(study).study.epochs["run"].str.contains("horovod").any()
    assert "horovod-w01-r1" in (study / "report" / "report.html").read_text()


def test_a_timed_run_beside_a_played_one_that_is_left_out_has_a_report(tmp_path: Path) -> None:
    study = tmp_path / "maps"
    write_explained(study)
    write_explained(study, made=Made(epochs=0, training={"plays": 2}))
    main([str(study)])
    assert not (study / "report" / "quality.svg").exists()


def test_a_run_of_maps_only_is_no_side_of_a_comparison(tmp_path: Path) -> None:
    write_explained(tmp_path / "maps", made=Made(epochs=0))
    with pytest.raises(UserError, match="no run with an epoch after the warm-up"):
        read_side("A", tmp_path / "maps")


def test_a_damaged_manifest_of_maps_only_is_named(tmp_path: Path) -> None:
    study = tmp_path / "maps"
    torn(write_explained(study, made=Made(epochs=0)) / MANIFEST)
    assert "pytorch_native-w01-r1: saliency/manifest.json is not used: its SHA-256" in notes(study)
    main([str(study)])
    page = (study / "report" / "report.html").read_text()
    assert "Where the network looks" in page
    assert "Saliency maps only: 6 maps of 1 run, none with deletion and insertion curves" in page


def test_a_report_without_saliency_has_no_trace_of_it(tmp_path: Path) -> None:
    study = write_study(tmp_path / "plain", workers=(1, 2), repeats=3)
    assert make_report(load_study(study)).saliency.is_empty
    main([str(study)])
    for path in (study / "report").iterdir():
        assert "saliency" not in path.name
        if path.suffix in {".html", ".json", ".md", ".csv"}:
            assert "saliency" not in path.read_text().lower(), path.name
            assert "gallery" not in path.read_text().lower(), path.name
