"""Saliency maps of real workers: every byte as xaitk's own, whoever makes which part, and after any kill."""

import hashlib
import os
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from slurm.launch.processes import launch
from tests.studies import give_workers, make_point, make_run
from tests.trained import TrainedRuns, over_gloo
from tests.xaitk_maps import TRAINED_EPOCHS, clean_images, explained_point, xaitk_map, xaitk_stack
from tests.xaitk_maps import plain_runs as plain_runs
from tests.xaitk_maps import weights as weights
from unet_scaling.base.errors import EXIT_RESUME
from unet_scaling.base.files import checksum_path
from unet_scaling.format.record import Record, read_record
from unet_scaling.format.saliency import SCORES, SaliencyManifest
from unet_scaling.run.checkpoint import STOP_AT_VARIABLE
from unet_scaling.study.config import PROJECT, RunConfig
from unet_scaling.study.options import SaliencyOptions

pytestmark = pytest.mark.slow

IMAGES = 8
# 7 workers are more than there are images left over, batches of masks or rows to share out evenly.
# What the wrappers add to DDP shows in one of them.
PRODUCT = [("pytorch_native", 7), ("horovod", 3), ("accelerate", 3)]
METHODS = ("rise", "sliding_window")
SPLITS = ("images", "masks")

Maps = dict[str, list[bytes]]


@pytest.fixture(scope="module")
def xaitk_maps(images: Path, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Maps:
    """The maps that xaitk makes in this process, by method."""
    folder = tmp_path_factory.mktemp("xaitk")
    return {
        method: xaitk_maps_of(explained_point(images, weights, method=method), folder) for method in METHODS
    }


def xaitk_maps_of(config: RunConfig, folder: Path) -> list[bytes]:
    """The maps of xaitk on one thread, as ours are stored: float32."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = [
        xaitk_map(clean, config.saliency).astype(np.float32).tobytes()
        for clean in clean_images(config, folder)
    ]
    torch.set_num_threads(threads)
    return found


def run_program(folder: Path, config: RunConfig) -> int:
    """Launch real workers of a run, a core each if there are enough; the exit code."""
    if not (folder / "config.json").exists():
        make_run(folder, config)
    twin = [str(PROJECT / config.framework / "train.py"), str(folder)]
    enough = config.workers <= len(os.sched_getaffinity(0))
    return launch(twin, config.workers, folder / "output.log", 1 if enough else None)


def stored_maps(folder: Path) -> list[bytes]:
    """The maps that a manifest names, verified by its checksums."""
    manifest = manifest_of(folder)
    maps = []
    for entry in manifest.images:
        assert entry.map is not None, entry.no_map
        path = folder / "saliency" / entry.map.file
        assert hashlib.sha256(path.read_bytes()).hexdigest() == entry.map.sha256
        saliency = np.load(path)
        assert saliency.dtype == np.float32
        assert saliency.shape == (len(SCORES), entry.height, entry.width)
        maps.append(saliency.tobytes())
    return maps


def manifest_of(folder: Path) -> SaliencyManifest:
    return SaliencyManifest.model_validate_json((folder / "saliency" / "manifest.json").read_text())


@pytest.mark.parametrize(
    ("framework", "workers"),
    [("horovod", 2), *(pytest.param(*each, marks=pytest.mark.verify) for each in PRODUCT)],
)
def test_every_map_is_xaitks_own_to_the_byte(
    framework: str, workers: int, images: Path, weights: Path, xaitk_maps: Maps, trained_run: TrainedRuns
) -> None:
    """In one launch; in `make verify` in every way, else each method and each way to share the work once."""
    ways = zip(METHODS, SPLITS, strict=True) if workers == 2 else product(METHODS, SPLITS)
    configs = {
        (method, split): explained_point(
            images, weights, framework, workers=workers, method=method, split=split
        )
        for method, split in ways
    }
    if framework == "horovod":
        configs = {way: over_gloo(config) for way, config in configs.items()}
    others = [trained_and_explained(images), explaining(images, weights)] if workers == 2 else []
    trained_run.together([*configs.values(), *others])
    for (method, split), config in configs.items():
        run = trained_run(config)
        assert stored_maps(run.folder) == xaitk_maps[method], (method, split)
        line = run.record.saliency
        assert line is not None
        assert (line.images, line.maps, line.maps_made_here, line.split) == (IMAGES, IMAGES, IMAGES, split)
        shared = [phases.sum for phases in line.phases]
        assert (max(shared) > 0) == (split == "masks")


def explaining(data: Path, weights: Path) -> RunConfig:
    """A small explanation with everything in it."""
    few = {"workers": 2, "method": "rise", "images": 4, "curve_steps": 2, "untrained_check": 1}
    return over_gloo(explained_point(data, weights, "horovod", **few))


def trained_and_explained(data: Path) -> RunConfig:
    """A run of 3 images whose workers share out the masks."""
    config = make_point(
        data, "horovod", 2, epochs=TRAINED_EPOCHS, batch_per_worker=1, method="sliding_window", images=3,
        window=9, stride=4, curve_steps=2, untrained_check=1, split="masks",
    )  # fmt: skip
    return over_gloo(config)


def complete(folder: Path) -> Record:
    record = read_record(folder / "run.jsonl")
    assert record.complete, (record.problems, (folder / "output.log").read_text())
    return record


def test_training_is_followed_by_maps_in_one_run(images: Path, trained_run: TrainedRuns) -> None:
    run = trained_run(trained_and_explained(images))
    record, folder = run.record, run.folder
    assert record.saliency is not None
    assert record.saliency.epochs == len(record.epochs) == TRAINED_EPOCHS
    assert record.saliency.weights_sha256 == record.results[-1].weights_sha256
    configuration = xaitk_stack(SaliencyOptions(method="sliding_window", window=9, stride=4))._po.get_config()
    assert record.saliency.configuration == configuration
    manifest = manifest_of(folder)
    content = (folder / "saliency" / "manifest.json").read_bytes()
    assert hashlib.sha256(content).hexdigest() == record.saliency.manifest_sha256
    assert manifest.weights_sha256 == record.saliency.weights_sha256
    assert record.saliency.maps == sum(entry.map is not None for entry in manifest.images)
    assert record.saliency.maps > 0
    assert len({entry.image for entry in manifest.images}) == 3
    assert all((images / "images" / f"{entry.image}.png").exists() for entry in manifest.images)
    assert not list(folder.glob("checkpoint-*"))


def finished_maps(folder: Path) -> dict[Path, int]:
    """The maps with a checksum that fits, and when they were written."""
    return {
        path: path.stat().st_mtime_ns
        for path in (folder / "saliency" / "maps").glob("[0-9]*.npy")
        if hashlib.sha256(path.read_bytes()).hexdigest() == checksum_path(path).read_text().strip()
    }


def test_a_run_that_is_to_stop_goes_on_with_its_maps_but_for_those_that_were_altered(
    images: Path, weights: Path, trained_run: TrainedRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And has those of a run to which nothing happens."""
    folder = tmp_path / "run"
    config = explaining(images, weights)
    with monkeypatch.context() as patch:
        give_workers(patch, STOP_AT_VARIABLE, "1")
        assert run_program(folder, config) == EXIT_RESUME, (folder / "output.log").read_text()
    record = read_record(folder / "run.jsonl")
    assert record.end is not None
    # An attempt that made maps has gained something.
    assert (record.end.status, record.end.explained) == ("stopped", 2)
    kept, altered = finished_maps(folder)
    content = bytearray(altered.read_bytes())
    content[-1] ^= 1
    altered.write_bytes(content)
    made = kept.stat().st_mtime_ns
    assert run_program(folder, config) == 0, (folder / "output.log").read_text()
    saliency = complete(folder).saliency
    assert saliency is not None
    assert (saliency.maps_made_here, kept.stat().st_mtime_ns) == (3, made)
    assert [entry.map for entry in manifest_of(folder).images] == [
        entry.map for entry in manifest_of(trained_run(config).folder).images
    ]
