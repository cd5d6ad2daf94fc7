"""Saliency maps in one process: every byte as xaitk's own, masks and files, and what checks the maps."""

import io
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.disks import small_files
from tests.xaitk_maps import explained_point, initial_network, map_maker, xaitk_map
from tests.xaitk_maps import plain_runs as plain_runs
from tests.xaitk_maps import weights as weights
from unet_scaling import training_loop
from unet_scaling.base.errors import EXIT_BUG, UserError
from unet_scaling.format.saliency import SCORES, Faithfulness
from unet_scaling.group.group import single_worker
from unet_scaling.measure.epoch_meter import PartClock
from unet_scaling.model import UNet
from unet_scaling.run.training_state import weights_sha256
from unet_scaling.saliency.checks import (
    MapChecks,
    Reals,
    Trial,
    faithfulness,
    overlay_png,
    pixel_places,
    random_priorities,
    rank_correlation,
    trial_of,
    untrained,
)
from unet_scaling.saliency.maps import MapFiles, MapMaker, image_names, make_maps, region_scores
from unet_scaling.saliency.masks import MaskStore, mask_chunks, method_of
from unet_scaling.study.options import SaliencyOptions


def few_masks(**changes: Any) -> SaliencyOptions:
    few = {"method": "rise", "masks": 20, "grid": 4, "window": 9, "stride": 4}
    return SaliencyOptions.model_validate(few | changes)


@torch.no_grad()
def predict_half(maker: MapMaker) -> None:
    """Let a network that has learned nothing predict foreground on about half of the first image."""
    model = maker.network.model
    assert isinstance(model, UNet)
    assert model.head.bias is not None
    model.head.bias -= model(maker.data.test_sample(0).images).median()


def checks_of(maker: MapMaker) -> MapChecks:
    return MapChecks(maker, initial_network(maker.config))


@pytest.mark.parametrize(
    "options",
    [
        {"method": "rise"},
        {"method": "rise", "debiased": False, "p1": 0.3, "batch": 7},
        {"method": "rise", "batch": 100, "channels": 3, "image_height": 24, "image_width": 40},
        {"method": "sliding_window", "batch": 7, "channels_last": False, "image_height": 33},
        {"method": "rise", "fill": "mean", "channels": 3, "image_height": 33, "image_width": 40},
        {"method": "random_grid", "masks": 20},
        {"method": "sliding_radial"},
    ],
)
def test_every_byte_is_as_xaitk_makes_it(
    options: dict[str, Any], images: Path, weights: Path, tmp_path: Path
) -> None:
    fitting = weights if "channels" not in options else None
    maker = map_maker(explained_point(images, fitting, **options), tmp_path)
    if fitting is None:
        predict_half(maker)
    for position in range(2):
        clean = maker.clean(position)
        ours = maker.saliency(clean)
        xaitks = xaitk_map(clean, maker.config.saliency)
        assert ours.dtype == xaitks.dtype == np.float64
        assert ours.tobytes() == xaitks.tobytes()
        assert not clean.is_empty
        assert np.ptp(ours[0]) > 0


def write_masks(_: Path) -> None:
    MaskStore(mask_chunks(method_of(few_masks(masks=200)).perturber, 33, 47))


def prepare_files(folder: Path) -> None:
    MapFiles(folder).prepare({"configuration": "x" * 2000})


def write_map(folder: Path) -> None:
    MapFiles(folder).prepare({})
    MapFiles(folder).write_map(0, np.zeros((2, 32, 32)))


@pytest.mark.parametrize(
    ("write", "place", "cure"),
    [
        (write_masks, tempfile.gettempdir(), "set TMPDIR"),
        (prepare_files, "saliency", "make room"),
        (write_map, "00000.npy", "make room"),
    ],
)
def test_a_disk_that_is_full_is_named_with_the_cure_and_leaves_no_map(
    write: Callable[[Path], None], place: str, cure: str, tmp_path: Path
) -> None:
    with small_files(1024), pytest.raises(UserError) as refused:
        write(tmp_path)
    assert refused.value.exit_code == EXIT_BUG
    assert place in str(refused.value)
    assert cure in str(refused.value)
    assert not list(tmp_path.rglob("*.npy"))


def test_scores_follow_from_what_is_predicted(images: Path, weights: Path, tmp_path: Path) -> None:
    maker = map_maker(explained_point(images, weights, method="rise"), tmp_path)
    clean = maker.clean(0)
    probability = torch.sigmoid(maker.network.model(clean.batch.images))[0, 0]
    inside = probability[clean.region].double().mean().item()
    assert clean.reference == pytest.approx([inside, 1.0])
    assert clean.region.double().mean() == pytest.approx((probability > 0.5).double().mean().item())
    kept = np.ones((1, 32, 32), np.bool_)
    kept[:, :16] = False
    hidden = maker.network.model(clean.batch.images * torch.from_numpy(kept))[0, 0]
    common = ((hidden > 0) & clean.region).sum() / ((hidden > 0) | clean.region).sum()
    assert clean.scores(kept)[0, 1] == pytest.approx(common.item())
    # Here half of what is predicted lies without the region.
    logits = torch.tensor([[[1.0, -1.0], [1.0, -1.0]]])
    region = torch.tensor([[True, True], [False, False]])
    assert region_scores(logits, region)[0] == pytest.approx([0.5, 1 / 3])
    assert clean.scores_of_image(kept).tobytes() == clean.scores(kept).tobytes()


@pytest.mark.parametrize("fill", ["black", "mean"])
def test_padding_counts_in_no_score_and_stays_where_the_image_is_hidden(
    fill: str, images: Path, tmp_path: Path
) -> None:
    maker = map_maker(explained_point(images, None, method="rise", image_width=48, fill=fill), tmp_path)
    predict_half(maker)
    clean = maker.clean(0)
    assert clean.box == (0, 8, 32, 32)
    assert clean.region.shape == (32, 32)
    kept = np.random.default_rng(2).random((1, 32, 32)) < 0.5
    within_padding = np.pad(kept, ((0, 0), (0, 0), (8, 8)), constant_values=True)
    scores = clean.scores_of_image(kept)
    assert scores.tobytes() == clean.scores(within_padding).tobytes()
    # Padding is black.
    hidden_too = clean.scores(np.pad(kept, ((0, 0), (0, 0), (8, 8))))
    assert (hidden_too.tobytes() == scores.tobytes()) == (fill == "black")


def test_a_prediction_that_is_not_finite_ends_the_run(images: Path, weights: Path, tmp_path: Path) -> None:
    point = explained_point(images, weights, method="rise")
    model = initial_network(point)
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    maker = map_maker(point, tmp_path, model)
    name = image_names(maker.config, maker.data)[1]
    with pytest.raises(UserError, match=f"test image {name} is not finite") as refused:
        maker.clean(1)
    assert refused.value.exit_code == 70
    for split in ("images", "masks"):
        done: list[int] = []
        with pytest.raises(UserError, match="is not finite"):
            make_maps(maker, [0, 1], split, PartClock(torch.device("cpu")), done.append)
        # Workers that share out images come to the same safe points, whichever of them failed.
        assert done == ([1, 2] if split == "images" else [])


def test_an_entry_tells_all_that_is_known_of_a_map_and_is_made_once(
    images: Path, weights: Path, tmp_path: Path
) -> None:
    point = explained_point(images, weights, method="rise", curve_steps=4, untrained_check=1, masks=16)
    maker = map_maker(point, tmp_path)
    maker.files.prepare({})
    for position in (0, 1):
        maker.files.write_map(position, maker.saliency(maker.clean(position)))
    first, second = (checks_of(maker).image(position, f"image{position}") for position in (0, 1))
    for entry in (first, second):
        named = [entry.map, *entry.overlays.values(), *entry.pictures.values()]
        assert len(named) == 5
        assert all(file is not None and (maker.files.folder / file.file).exists() for file in named)
        assert set(entry.faithfulness) == set(SCORES)
        curves = entry.faithfulness["iou"]
        assert curves.deletion[0] == curves.insertion[-1] == 1.0
        assert len(curves.deletion) == len(curves.random_insertion) == len(trial_of(point).shares) == 5
    assert first.untrained is not None
    assert set(first.untrained.correlation) == set(SCORES) or first.untrained.no_map
    assert second.untrained is None
    # What is there, as it was left, is not made again; what is not, is.
    picture = maker.files.folder / first.pictures["image"].file
    made = picture.stat().st_mtime_ns
    assert checks_of(maker).image(0, "image0") == first
    assert picture.stat().st_mtime_ns == made
    picture.write_bytes(b"damaged")
    assert checks_of(maker).image(0, "image0") == first
    assert picture.stat().st_mtime_ns != made
    maker.files.write_map(0, np.zeros_like(maker.files.read_map(0), np.float64))
    assert checks_of(maker).image(0, "image0").map != first.map
    maker.files.prepare({"weights": "others"})
    assert maker.files.read_entry(0) is None


@pytest.mark.parametrize("is_empty", [True, False])
def test_an_image_that_has_no_map_says_so(
    is_empty: bool, images: Path, weights: Path, tmp_path: Path
) -> None:
    """Nothing is predicted on it, here or by another worker's arithmetic, which then wrote no map."""
    point = explained_point(images, weights, method="rise")
    model = initial_network(point)
    with torch.no_grad():
        assert model.head.bias is not None
        model.head.bias -= 100 * is_empty
    maker = map_maker(point, tmp_path, model)
    maker.files.prepare({})
    entry = checks_of(maker).image(0, "first")
    assert (entry.map, entry.no_map is not None, entry.foreground > 0) == (None, True, not is_empty)
    assert not entry.overlays
    assert not entry.faithfulness
    assert set(entry.pictures) == {"image", "truth"}


def test_an_untrained_network_is_drawn_anew_and_leaves_the_other_alone(
    images: Path, weights: Path, tmp_path: Path
) -> None:
    model = initial_network(explained_point(images, weights, method="rise"))
    before = weights_sha256(model)
    torch.manual_seed(11)
    follows = torch.rand(3)
    torch.manual_seed(11)
    one = untrained(model, 3)
    assert torch.equal(torch.rand(3), follows)
    assert weights_sha256(model) == before != weights_sha256(one)
    fresh = initial_network(explained_point(images, None, method="rise"))
    assert weights_sha256(untrained(fresh, 3)) == weights_sha256(one)
    assert weights_sha256(untrained(model, 4)) != weights_sha256(one) != weights_sha256(fresh)
    assert all(not layer.training for layer in one.modules())


def test_map_files_are_whole_of_their_origin_or_made_again(tmp_path: Path) -> None:
    files = MapFiles(tmp_path)
    files.prepare({"weights": "a"})
    saliency = np.arange(24.0).reshape(2, 3, 4)
    files.write_map(3, saliency)
    assert files.has_map(3, (2, 3, 4))
    assert np.array_equal(files.read_map(3), saliency.astype(np.float32))
    assert not files.has_map(2, (2, 3, 4))
    assert not files.has_map(3, (2, 4, 3))
    path = tmp_path / "saliency" / "maps" / "00003.npy"
    content = path.read_bytes()
    for damaged in (content[:-1], b"", content[:-1] + b"?", content + b"?"):
        path.write_bytes(damaged)
        assert not files.has_map(3, (2, 3, 4))
    path.write_bytes(content)
    (path.parent / ".00004.npy.part").write_bytes(b"half")
    (path.parent.parent / "overlays" / ".00004_iou.png.part").write_bytes(b"half")
    files.prepare({"weights": "a"})
    assert files.has_map(3, (2, 3, 4))
    assert not list(path.parent.parent.glob("*/.*"))
    files.prepare({"weights": "b"})
    assert not files.has_map(3, (2, 3, 4))
    assert list(path.parent.iterdir()) == []


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "xaitk_saliency", None)
    for name in ("run", "maps", "masks"):
        monkeypatch.delitem(sys.modules, f"unet_scaling.saliency.{name}", raising=False)
    with pytest.raises(UserError, match=r"environment/install\.sh --with xaitk") as refused:
        single_worker().run_on_all(training_loop._import_saliency)
    assert refused.value.exit_code == 2


SHAPE = (12, 16)
SHARES = tuple(np.linspace(0, 1, 13).tolist())
TRIAL = Trial(SHARES, seed=5, cell=(3, 4))
WEIGHTS = np.random.default_rng(3).permutation(np.arange(1.0, 193.0)).reshape(SHAPE) ** 2
WEIGHTS /= WEIGHTS.sum()
COLOURED = np.random.default_rng(2).integers(0, 256, (20, 30, 3), dtype=np.uint8)
COLOURED[0, 0] = 255
GREY = COLOURED[:, :, :1]


def weighed(masks: np.ndarray) -> Reals:
    """Two scores of a network that adds up the weights of the pixels it sees; the second sees the reverse."""
    return np.stack([(masks * WEIGHTS).sum(axis=(1, 2)), (masks * WEIGHTS[::-1]).sum(axis=(1, 2))], axis=1)


def areas(curves: Faithfulness) -> dict[str, float]:
    return {name: float(np.trapezoid(scores, SHARES)) for name, scores in vars(curves).items()}


def curves_of(saliency: Reals, trial: Trial = TRIAL, image: int = 0) -> Faithfulness:
    return faithfulness(np.stack([saliency, saliency[::-1]]), weighed, trial, image)[0]


@pytest.mark.parametrize("sign", [1, -1])
def test_the_true_map_is_better_than_random_order_both_ways_and_the_reversed_one_worse(sign: int) -> None:
    own = areas(curves_of(sign * WEIGHTS))
    assert sign * (own["random_deletion"] - own["deletion"]) > 0.1
    assert sign * (own["insertion"] - own["random_insertion"]) > 0.1


def test_each_score_is_judged_by_its_own_map() -> None:
    both = faithfulness(np.stack([WEIGHTS, WEIGHTS[::-1]]), weighed, TRIAL, 0)
    assert both[0].deletion == pytest.approx(both[1].deletion)
    assert both[0].random_deletion != both[1].random_deletion
    swapped = faithfulness(np.stack([WEIGHTS[::-1], WEIGHTS]), weighed, TRIAL, 0)
    assert areas(swapped[0])["deletion"] > areas(both[0])["deletion"] + 0.05


def test_curves_remove_exactly_the_most_salient_pixels_from_none_to_all() -> None:
    for name, scores in vars(curves_of(WEIGHTS)).items():
        ends = (1.0, 0.0) if "deletion" in name else (0.0, 1.0)
        assert (scores[0], scores[-1], len(scores)) == (*map(pytest.approx, ends), len(SHARES))
    seen: list[np.ndarray] = []

    def noted(masks: np.ndarray) -> Reals:
        seen.extend(masks)
        return weighed(masks)

    faithfulness(WEIGHTS[None], noted, Trial((0.0, 0.25, 1.0), seed=1), 0)
    most_salient = np.sort(WEIGHTS, axis=None)[-48] <= WEIGHTS
    assert np.array_equal(seen[-5], ~most_salient)
    assert np.array_equal(seen[-2], most_salient)


def test_random_orders_follow_from_seed_and_image_and_not_from_the_batch() -> None:
    """Intervals over the images are of independent ones: one order for all would be lucky for all."""
    assert curves_of(WEIGHTS, Trial(SHARES, 5, (3, 4), batch=5)) == curves_of(WEIGHTS)
    others = [curves_of(WEIGHTS, image=image) for image in range(3)]
    others.append(curves_of(WEIGHTS, Trial(SHARES, seed=6, cell=(3, 4))))
    assert len({tuple(curves.random_deletion) for curves in others}) == 4
    assert len({tuple(curves.deletion) for curves in others}) == 1


def test_a_random_order_takes_cells_whole() -> None:
    priorities = random_priorities((7, 9), (3, 4), np.random.default_rng(0))
    assert len(np.unique(priorities)) <= 4 * 4
    places = pixel_places(priorities)
    assert sorted(places.ravel()) == list(range(63))
    first = np.argwhere(places < (priorities == priorities.max()).sum())
    assert np.ptp(first, axis=0).max() < 4


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (WEIGHTS, np.sqrt(WEIGHTS), 1),
        (WEIGHTS, -WEIGHTS, -1),
        (WEIGHTS, np.random.default_rng(1).random(SHAPE), pytest.approx(0, abs=0.3)),
        # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: a correlation of sqrt(0.9).
        (np.array([0.0, 1, 1, 2]), np.arange(4.0), 0.9**0.5),
        (np.ones(SHAPE), WEIGHTS, None),
        (WEIGHTS, np.ones(SHAPE), None),
    ],
)
def test_maps_correlate_by_their_ranks(one: Reals, other: Reals, expected: float | None) -> None:
    found = rank_correlation(one, other)
    assert found == (pytest.approx(expected) if isinstance(expected, int | float) else expected)


def picture(image: np.ndarray, saliency: np.ndarray) -> np.ndarray:
    with Image.open(io.BytesIO(overlay_png(image, saliency))) as opened:
        assert opened.mode == "RGB"
        return np.asarray(opened).astype(int)


@pytest.mark.parametrize("image", [GREY, COLOURED], ids=["grey", "coloured"])
def test_an_overlay_is_the_grey_image_where_hiding_a_pixel_lowers_no_score(image: np.ndarray) -> None:
    grey = np.rint(image.mean(axis=2, keepdims=True)).repeat(3, axis=2)
    assert np.array_equal(picture(image, np.zeros((20, 30))), grey)
    seen = picture(image, np.where(np.arange(30) < 15, -1.0, 1.0) * np.ones((20, 1)))
    assert np.array_equal(seen[:, :15], grey[:, :15])
    assert not np.array_equal(seen[:, 15:], grey[:, 15:])
    # Where the map is strongest, the image shows through.
    assert len(np.unique(seen[:, 15:].reshape(-1, 3), axis=0)) > 30
