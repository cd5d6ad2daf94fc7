"""Images of other sizes than those of training are taken at its scale, whole or in tiles without a seam."""

import csv
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from tests.studies import make_point, train
from tests.trained import TrainedRun, TrainedRuns, plain_config
from unet_scaling.base.errors import EXIT_BAD_DATA, UserError
from unet_scaling.data.checking import check_folder
from unet_scaling.data.folder import find_pairs, write_manifest
from unet_scaling.data.pixels import Box
from unet_scaling.inference import segment as worker
from unet_scaling.inference.segment import open_segmenter
from unet_scaling.inference.tiles import tiles
from unet_scaling.model import UNet
from unet_scaling.study.config import PROJECT
from unet_scaling.study.options import ImageScales

CPU = torch.device("cpu")
# 240 real images of 256 x 256, which are no part of the project.
NUCLEI = PROJECT.parent / "shared" / "data" / "nuclei"
KINDS = ("images", "masks")
TILE = 32


@pytest.fixture(scope="module")
def run(images: Path, trained_run: TrainedRuns) -> TrainedRun:
    return trained_run(plain_config(images, workers=1))


def test_an_image_is_taken_at_a_scale_of_training(run: TrainedRun) -> None:
    """One larger or smaller than all of the data set at their median scale, any other as they were."""
    header = run.record.header
    assert header is not None
    assert header.scales == ImageScales(median_height=32, median_width=32, lowest=1, median=1, highest=1)
    segmenter = open_segmenter(run.folder, CPU, any_depth=False)
    assert segmenter.place(32, 32) == (Box(0, 0, 32, 32), (32, 32))
    assert segmenter.place(32, 8) == (Box(0, 12, 32, 8), (32, 32))
    assert segmenter.place(16, 16) == (Box(8, 8, 16, 16), (32, 32))
    assert segmenter.place(101, 33) == (Box(1, 1, 101, 33), (104, 36))
    assert replace(segmenter, scales=None).place(101, 33) == (Box(0, 11, 32, 10), (32, 32))
    scales = header.scales.model_copy(update={"lowest": 0.25, "median": 0.5})
    mixed = replace(segmenter, scales=scales)
    assert mixed.place(128, 100) == (Box(0, 3, 32, 25), (32, 32))
    assert mixed.place(129, 100) == (Box(0, 1, 64, 50), (64, 52))
    assert mixed.place(16, 16)[0][2:] == (8, 8)
    with pytest.raises(UserError, match="at the scale of training exceed") as refused:
        segmenter.fit(Path("long"), np.zeros((1, 2**22 + 1, 1), np.uint8))
    assert refused.value.exit_code == EXIT_BAD_DATA


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5])
def test_tiles_have_no_seam(depth: int) -> None:
    """Each logit that is kept is that of the whole image, and each is kept once."""
    torch.manual_seed(depth)
    model = UNet(width=2, depth=depth).eval()
    multiple = 2 ** (depth - 1)
    height, width = 26 * multiple, 40 * multiple
    image = torch.rand(1, 1, height, width)
    made = torch.full_like(image, torch.nan)
    used = [*tiles(height, width, depth, 24 * 24 * multiple**2)]
    with torch.no_grad():
        whole = model(image)
        for tile in used:
            assert bool(made[(..., *tile.kept)].isnan().all())
            made[(..., *tile.kept)] = model(image[(..., *tile.taken)])[(..., *tile.kept_of_taken)]
    assert len(used) == 3 * 4
    torch.testing.assert_close(made, whole, rtol=0, atol=1e-5)
    assert len([*tiles(height, width, depth, height * width)]) == 1


def test_an_image_in_tiles_has_the_mask_and_counts_of_the_whole(
    run: TrainedRun, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segmenter = open_segmenter(run.folder, CPU, any_depth=False)
    pairs, _ = find_pairs(images)
    mosaics = []
    for kind in ("images", "masks"):
        parts = [np.asarray(Image.open(images / kind / pair.image)) for pair in pairs[:35]]
        mosaics.append(np.block([parts[first : first + 7] for first in range(0, 35, 7)])[3:, :-6])
    image = segmenter.fit(Path("large"), mosaics[0][:, :, None], mosaics[1] // 255)
    whole = segmenter.regions([image])
    monkeypatch.setattr(worker, "MOST_VALUES", 0)
    (((region, counts),), ((of_whole, all_counts),)) = segmenter.regions([image]), whole
    assert region.shape == mosaics[0].shape
    assert (region != of_whole).sum() == 0
    assert counts == all_counts
    assert sum(counts) == region.size


def segmented(*words: object) -> Path:
    """Segment in a process of its own; return the folder of the masks, the last of these words."""
    command = [sys.executable, "-m", "unet_scaling", "segment", *map(str, words)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(str(words[-1]))


@pytest.mark.slow
@pytest.mark.verify
def test_a_large_image_takes_two_gibibytes(run: TrainedRun, tmp_path: Path) -> None:
    """Of 6000 x 4000 pixels; the values of a level bound the tiles, so that the width does not matter."""
    pixels = np.random.default_rng(0).integers(0, 256, (4000, 6000), dtype=np.uint8)
    (tmp_path / "large").mkdir()
    Image.fromarray(pixels).save(tmp_path / "large" / "large.png")
    output = segmented(run.folder, tmp_path / "large", "--output", tmp_path / "out/masks")
    (row,) = csv.DictReader((output / "segments.csv").open())
    assert (row["width"], row["height"]) == ("6000", "4000")
    # Of any process that this one and its children have waited for.
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 2 * 2**20


def iou(first: npt.NDArray[np.uint8], second: npt.NDArray[np.uint8]) -> float:
    both = ((first > 0) & (second > 0)).sum()
    return float(both / ((first > 0) | (second > 0)).sum())


@pytest.mark.slow
@pytest.mark.verify
@pytest.mark.skipif(not NUCLEI.is_dir(), reason=f"{NUCLEI} is absent")
def test_a_network_of_tiles_finds_the_nuclei_of_whole_images(tmp_path: Path) -> None:
    """Each in its folder: 12 that no tile is of, and these as one image, which passes in tiles."""
    names = sorted(path.name for path in (NUCLEI / "images").iterdir())[:72]
    for kind in KINDS:
        for folder in ("tiles", "whole", "mosaic"):
            (tmp_path / folder / kind).mkdir(parents=True)
        held = []
        for number, name in enumerate(names):
            pixels = np.asarray(Image.open(NUCLEI / kind / name))
            if number % 6 == 0:
                held.append(pixels)
                Image.fromarray(pixels).save(tmp_path / "whole" / kind / name)
                continue
            for top, left in np.ndindex(pixels.shape[0] // TILE, pixels.shape[1] // TILE):
                if (top + left) % 4:
                    continue
                part = pixels[top * TILE : (top + 1) * TILE, left * TILE : (left + 1) * TILE]
                Image.fromarray(part).save(tmp_path / "tiles" / kind / f"{number}_{top}_{left}.png")
        mosaic = np.block([held[first : first + 4] for first in range(0, 12, 4)])
        Image.fromarray(mosaic).save(tmp_path / "mosaic" / kind / "all.png")
    write_manifest(check_folder(tmp_path / "tiles", "255"), tmp_path / "tiles" / "manifest.json")
    tiles_alone: dict[str, Any] = {"image_height": TILE, "image_width": TILE}
    point = make_point(tmp_path / "tiles", width=16, depth=3, epochs=5, batch_per_worker=16, **tiles_alone)
    train(tmp_path / "run", point)
    found = {}
    for folder in ("whole", "mosaic"):
        for words in ((), ("--resize",)):
            output = tmp_path / "_".join(("masks", folder, *words))
            segmented(tmp_path / "run", tmp_path / folder, *words, "--output", output)
            paths = sorted((tmp_path / folder / "masks").iterdir())
            truths = np.stack([pixels_of(path) for path in paths])
            masks = np.stack([pixels_of(output / path.name) for path in paths])
            found[(folder, *words)] = iou(masks, truths)
    network = open_segmenter(tmp_path / "run", CPU, any_depth=False).model
    with torch.no_grad():
        image = torch.from_numpy(pixels_of(tmp_path / "mosaic" / "images" / "all.png").copy())
        logits = network(image[None, None] / 255)[0, 0]
    at_once = iou((logits > 0).numpy().astype(np.uint8), truths[0])
    assert found["mosaic",] == pytest.approx(at_once, abs=1e-4)
    assert found["mosaic",] > found["mosaic", "--resize"] + 0.1
    assert found["whole",] > found["whole", "--resize"] + 0.1


def pixels_of(path: Path) -> npt.NDArray[np.uint8]:
    return np.asarray(Image.open(path))
