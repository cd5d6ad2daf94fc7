"""Reports of saliency maps: speed, faithfulness, sameness, manifests that are not used, runs of maps only."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.__main__ import main
from tests.records import digest
from tests.reports import Told, report_of, reported
from tests.saliency_records import Made, write_explained
from unet_scaling.base.errors import EXIT_BAD_DATA, UserError
from unet_scaling.format.record_lines import SALIENCY_FOLDER, SaliencyPhases
from unet_scaling.format.saliency import SALIENCY_MANIFEST_NAME
from unet_scaling.study.config import Framework

OTHERS: tuple[Framework, ...] = ("horovod", "lightning", "accelerate")
MANIFEST = f"{SALIENCY_FOLDER}/{SALIENCY_MANIFEST_NAME}"
RUN = "pytorch_native-w01-r1"


def said(found: Told) -> tuple[str, str]:
    """The sentences and the warnings on the maps of a study."""
    maps = found.report.saliency
    return "\n".join(maps.sentences), "\n".join(maps.warnings)


def test_a_resumed_run_counts_for_no_speed_of_maps(tmp_path: Path) -> None:
    study = tmp_path / "resumed"
    for repeat in (1, 2):
        write_explained(study, repeat=repeat, made=Made(weights=f"{repeat}"))
    write_explained(
        study, repeat=3, made=Made(weights="3", maps_per_second=900.0, changes={"maps_made_here": 2})
    )
    found = report_of(study)
    assert (found.row("saliency")["repeats"], found.row("saliency")["maps_per_second"]) == (2, 4.0)
    assert len(found.rows("saliency_faithfulness")) == 6
    assert "pytorch_native-w01-r3 counts for no maps per second" in said(found)[1]


WARNED = {
    "faithful": (Made(images=12, worse=(0, 1)), ""),
    "no better than random": (Made(images=12, worse=range(5)), "not shown to be better than random order"),
    "worse": (Made(images=12, worse=range(10)), "not shown to be better than random order"),
    "like an untrained network's": (Made(images=12, correlation=0.7), f"{RUN} (0.70)"),
    "the reverse of them": (Made(images=12, correlation=-0.7), "freshly drawn weights"),
    "not known": (Made(images=12, correlation=None), ""),
    "no map": (
        Made(
            without_map=range(6), maps_per_second=1.0,
            changes={"seconds": 1.0, "worker_seconds": [1.0], "phases": [
                dict.fromkeys(SaliencyPhases.model_fields, 0.0) | {"forward": 1.0}
            ]},
        ),
        "6 of 6 images of 1 run have no map: the prediction is empty",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WARNED)
def test_maps_that_show_nothing_are_warned_of(case: str, tmp_path: Path) -> None:
    made, warning = WARNED[case]
    write_explained(tmp_path / "maps", made=made)
    found = report_of(tmp_path / "maps")
    warnings = said(found)[1]
    assert warning in warnings
    assert bool(warning) == ("not shown" in warnings or "drawn" in warnings or "no map" in warnings)
    if case == "no map":
        assert found.table("saliency_runs")["maps_per_second"].isna().all()


# Runs with their weights and the seed of their maps, and words of what is said.
SAME: Mapping[str, tuple[Sequence[tuple[Framework, Made, Mapping[str, Any]]], Sequence[str]]] = {
    "other maps": (
        (("pytorch_native", Made(), {}), ("horovod", Made(maps_seed="other"), {})),
        ("in 0 of 2 runs (1 set of weights)", "horovod-w01-r1 made other maps than pytorch_native-w01-r1"),
    ),
    "the odd one comes first": (
        (("pytorch_native", Made(maps_seed="odd"), {}), *((name, Made(), {}) for name in OTHERS)),
        ("in 3 of 4 runs (1 set of weights)", "pytorch_native-w01-r1 made other maps than horovod-w01-r1"),
    ),
    "other weights": (
        (("pytorch_native", Made(weights="a"), {}), ("horovod", Made(weights="b", maps_seed="other"), {})),
        ("no maps are compared",),
    ),
    "other weights of one": (
        (
            ("pytorch_native", Made(), {}), ("horovod", Made(), {}), ("lightning", Made(), {}),
            ("accelerate", Made(weights="b"), {}),
        ),
        ("in 3 of 3 runs",),
    ),
    "another precision": (
        (
            ("pytorch_native", Made(), {}),
            ("pytorch_native", Made(maps_seed="other", training={"precision": "bf16"}), {}),
        ),
        ("no two runs have the same weights and settings",),
    ),
    "other options of maps": (
        (
            ("pytorch_native", Made(), {"masks": 64}), ("pytorch_native", Made(maps_seed="other"),
            {"masks": 128}),
        ),
        ("no two runs have the same weights and settings",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SAME)
def test_maps_of_equal_weights_are_the_same_or_the_run_is_named(case: str, tmp_path: Path) -> None:
    runs, words = SAME[case]
    for framework, made, options in runs:
        write_explained(tmp_path / "maps", framework, made=made, **options)
    sentences, _ = said(report_of(tmp_path / "maps"))
    assert [word for word in words if word not in sentences] == [], sentences
    assert sentences.count("made other maps") == ("than pytorch" in words[-1] or "than horovod" in words[-1])


def torn(manifest: Path) -> None:
    manifest.write_bytes(manifest.read_bytes()[:-40])


def altered(manifest: Path) -> None:
    manifest.write_text(manifest.read_text().replace('"cell1"', '"cell7"'))


UNUSED: Mapping[str, tuple[Callable[[Path], None], Made, str]] = {
    "altered": (altered, Made(), "its SHA-256 begins with"),
    "not there": (Path.unlink, Made(), ""),
    "of other weights": (
        lambda _: None,
        Made(manifest_changes={"weights_sha256": digest("others")}),
        "weights_sha256",
    ),
    "of another method": (lambda _: None, Made(manifest_changes={"method": "sliding_window"}), "method is"),
    "of other shares": (
        lambda _: None,
        Made(manifest_changes={"shares": [0.0, 1.0]}),
        "a curve has 5 scores at 2 shares",
    ),
    "of maps only": (torn, Made(epochs=0), "its SHA-256 begins with"),
}


@pytest.mark.parametrize("case", UNUSED)
def test_a_manifest_that_is_not_that_of_its_record_is_not_used(case: str, tmp_path: Path) -> None:
    spoil, made, words = UNUSED[case]
    spoil(write_explained(tmp_path / "maps", made=made) / MANIFEST)
    found = report_of(tmp_path / "maps")
    assert f"{RUN}: saliency/manifest.json is not used: {words}" in found.notes
    assert found.report.saliency.faithful.empty
    assert len(found.rows("saliency")) == 1


def test_missing_maps_are_counted_unless_all_were_left_behind(tmp_path: Path) -> None:
    maps = sorted((write_explained(tmp_path / "maps") / SALIENCY_FOLDER / "maps").iterdir())
    maps[2].unlink()
    assert "1 map of 6 missing in saliency: maps/00002.npy" in report_of(tmp_path / "maps").notes
    for file in maps:
        file.unlink(missing_ok=True)
    assert "missing" not in report_of(tmp_path / "maps").notes


def test_the_page_shows_the_best_and_the_worst_pictures_that_are_those_of_the_record(tmp_path: Path) -> None:
    overlays = (
        write_explained(tmp_path / "maps", made=Made(images=9, worse=(4,))) / SALIENCY_FOLDER / "overlays"
    )
    (overlays / "00000_iou.png").unlink()
    (overlays / "00001_iou.png").write_bytes((overlays / "00002_iou.png").read_bytes())
    page = (reported(tmp_path / "maps") / "report.html").read_text()
    shown = [f"cell{number}" for number in range(9) if f'alt="cell{number}, image"' in page]
    assert shown == ["cell0", "cell1", "cell2", "cell4", "cell7", "cell8"]
    assert page.index("cell0, image") < page.index("cell8, image") < page.index("cell4, image")
    assert page.count('<img src="data:image/png;base64,') == 6 * 4 - 2
    assert page.count("not beside the record") == 2


@pytest.mark.parametrize("epochs", [0, 1])
def test_runs_of_maps_only_have_their_report(epochs: int, tmp_path: Path) -> None:
    for workers in (1, 2):
        write_explained(
            tmp_path / "maps", workers=workers, made=Made(epochs=epochs, maps_per_second=4.0 * workers)
        )
    folder = reported(tmp_path / "maps")
    found = report_of(tmp_path / "maps")
    assert found.study.runs.empty
    assert [row["efficiency"] for row in found.rows("saliency")] == [1.0, 1.0]
    assert {row["run"] for row in found.rows("saliency_runs")} == {RUN, "pytorch_native-w02-r1"}
    assert 'alt="cell0, map of IoU"' in (folder / "report.html").read_text()
    with pytest.raises(UserError) as refused:
        main(["compare", *[str(tmp_path / "maps")] * 2])
    assert refused.value.exit_code == EXIT_BAD_DATA


def test_runs_of_maps_only_stand_beside_timed_ones_and_played_ones_do_not(tmp_path: Path) -> None:
    write_explained(tmp_path / "maps")
    write_explained(tmp_path / "maps", "horovod", made=Made(epochs=0))
    write_explained(tmp_path / "maps", made=Made(epochs=0, training={"plays": 2}))
    found = report_of(tmp_path / "maps")
    assert list(found.study.runs["framework"]) == ["pytorch_native"]
    assert {row["framework"] for row in found.rows("saliency")} == {"pytorch_native", "horovod"}
    assert np.isfinite(found.row("summary")["images_per_second"])
    assert {row["kind"] for row in found.rows("played")} <= {"real"}
