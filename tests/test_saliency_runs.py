"""Saliency maps of real workers: every byte as xaitk's own, whoever makes which part, and after any kill."""

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from analysis.__main__ import main
from analysis.loading.load import load_study
from analysis.saliency.findings import saliency_findings
from slurm.local import launch
from tests.explain_product import LINE_NAME, METHODS, SPLITS
from tests.studies import give_workers, make_point, make_run, train
from tests.trained import TrainedRuns
from tests.xaitk_maps import clean_images, explained_point, xaitk_map, xaitk_stack
from unet_scaling.run.interruption import STOP_AT_VARIABLE
from unet_scaling.study.config import ALL_FRAMEWORKS, PROJECT, RunConfig
from unet_scaling.study.errors import EXIT_RESUME
from unet_scaling.study.files import checksum_path
from unet_scaling.study.options import SaliencyOptions
from unet_scaling.study.record import Record, read_record
from unet_scaling.study.saliency import SCORES, Saliency, SaliencyManifest

pytestmark = pytest.mark.slow

IMAGES = 8
TRAINED_EPOCHS = 4
# 7 workers are more than there are images left over, batches of masks or rows to share out evenly.
# What the wrappers add to DDP shows at one number of workers.
PRODUCT = [(framework, 3) for framework in ALL_FRAMEWORKS]
PRODUCT += [("pytorch_native", 1), ("pytorch_native", 7), ("horovod", 7)]
UNMARKED = [("pytorch_native", 2), ("horovod", 2)]

Maps = dict[str, list[bytes]]


@pytest.fixture(scope="module")
def weights(images: Path, trained_run: TrainedRuns) -> Path:
    return trained_run(make_point(images, epochs=TRAINED_EPOCHS)).folder / "weights.pt"


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


def run_program(
    folder: Path, config: RunConfig, program: str | None = None, *arguments: str, cores_each: int | None = 1
) -> int:
    """Launch real workers, of a twin alone or of a program of the tests that runs it; the exit code."""
    if not (folder / "config.json").exists():
        make_run(folder, config)
    twin = [str(PROJECT / config.framework / "train.py"), str(folder), *arguments]
    command = [str(PROJECT / "tests" / program), *twin] if program else twin
    enough = config.workers <= len(os.sched_getaffinity(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(PROJECT))
        return launch(command, config.workers, folder / "output.log", cores_each if enough else None)


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
    [*UNMARKED, *(pytest.param(*each, marks=pytest.mark.verify) for each in PRODUCT)],
)
def test_every_map_is_xaitks_own_to_the_byte(
    framework: str, workers: int, images: Path, weights: Path, xaitk_maps: Maps, tmp_path: Path
) -> None:
    config = explained_point(images, weights, framework, workers=workers, method="rise")
    folder = tmp_path / "run"
    code = run_program(folder, config, "explain_product.py")
    assert code == 0, (folder / "output.log").read_text()
    for method in METHODS:
        for split in SPLITS:
            case = folder / f"{method}-{split}"
            assert stored_maps(case) == xaitk_maps[method], case.name
            line = Saliency.model_validate_json((case / LINE_NAME).read_text())
            assert (line.images, line.maps, line.maps_made_here) == (IMAGES, IMAGES, IMAGES)
            assert line.split == split
            shared = [phases.sum for phases in line.phases]
            assert (max(shared) > 0) == (split == "masks")


def explaining(data: Path, weights: Path, framework: str = "pytorch_native", **options: Any) -> RunConfig:
    """A small explanation with everything in it."""
    few = {"workers": 2, "method": "rise", "images": 4, "curve_steps": 2, "untrained_check": 1}
    return explained_point(data, weights, framework, **(few | options))


def complete(folder: Path) -> Record:
    record = read_record(folder / "run.jsonl")
    assert record.complete, (record.problems, (folder / "output.log").read_text())
    return record


def test_training_is_followed_by_maps_in_one_run(images: Path, tmp_path: Path) -> None:
    config = make_point(
        images, "horovod", 2, epochs=TRAINED_EPOCHS, batch_per_worker=1, method="sliding_window", images=3,
        window=9, stride=4, curve_steps=2, untrained_check=1, split="masks",
    )  # fmt: skip
    record = train(tmp_path / "run", config, cores_each=1)
    assert record.saliency is not None
    assert record.saliency.epochs == len(record.epochs) == TRAINED_EPOCHS
    assert record.saliency.weights_sha256 == record.results[-1].weights_sha256
    configuration = xaitk_stack(SaliencyOptions(method="sliding_window", window=9, stride=4))._po.get_config()
    assert record.saliency.configuration == configuration
    manifest = manifest_of(tmp_path / "run")
    content = (tmp_path / "run" / "saliency" / "manifest.json").read_bytes()
    assert hashlib.sha256(content).hexdigest() == record.saliency.manifest_sha256
    assert manifest.weights_sha256 == record.saliency.weights_sha256
    assert record.saliency.maps == sum(entry.map is not None for entry in manifest.images)
    assert record.saliency.maps > 0
    assert len({entry.image for entry in manifest.images}) == 3
    assert all((images / "images" / f"{entry.image}.png").exists() for entry in manifest.images)
    assert not list((tmp_path / "run").glob("checkpoint-*"))


def test_one_image_is_shared_by_three_workers(
    images: Path, weights: Path, xaitk_maps: Maps, tmp_path: Path
) -> None:
    config = explaining(images, weights, workers=3, images=1, curve_steps=0, batch=1000)
    assert run_program(tmp_path / "run", config) == 0, (tmp_path / "run" / "output.log").read_text()
    record = complete(tmp_path / "run")
    assert record.saliency is not None
    assert record.saliency.split == "masks"
    assert record.saliency.maps == 1
    other_batch = xaitk_maps_of(
        explained_point(images, weights, method="rise", batch=1000, images=1), tmp_path
    )
    assert stored_maps(tmp_path / "run") == other_batch


def test_a_run_that_trains_nothing_is_reported_by_its_maps(
    images: Path, weights: Path, tmp_path: Path
) -> None:
    config = explaining(images, weights, workers=1, images=2)
    assert run_program(tmp_path / "study" / "run", config) == 0
    main([str(tmp_path / "study")])
    study = load_study(tmp_path / "study")
    assert study.runs.empty
    (row,) = saliency_findings(study).points.to_dict("records")
    assert row["maps"] == 2
    assert row["maps_per_second"] > 0
    page = (tmp_path / "study" / "report" / "report.html").read_text()
    assert "Where the network looks" in page
    assert page.count('<img src="data:image/png;base64,') == 2 * 4


@pytest.fixture(scope="module")
def undisturbed(images: Path, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The manifest of a run that nothing happens to, by what its workers share out."""
    manifests = {}
    for split in SPLITS:
        folder = tmp_path_factory.mktemp(f"undisturbed-{split}") / "run"
        config = explaining(images, weights, split=split)
        assert run_program(folder, config) == 0, (folder / "output.log").read_text()
        manifests[split] = (folder / "saliency" / "manifest.json").read_bytes()
    return manifests


def test_what_is_shared_out_shows_in_no_file(undisturbed: dict[str, bytes]) -> None:
    assert undisturbed["images"] == undisturbed["masks"]


# Of worker 0: its first file names the origin, then each map has a checksum and itself; then each image its
# pictures, a checksum and its entry; the manifest is the last.
KILLS = [
    ("images", 0, 2, 0.5),
    ("masks", 1, 1, 0.0),
    ("images", 0, 0, 2.0),
    ("images", 1, 1, 0.99),
    ("masks", 0, 4, 2.0),
    ("images", 0, 9, 0.5),
    ("masks", 0, 13, 2.0),
]


@pytest.mark.parametrize(
    ("split", "worker", "number", "share"),
    [pytest.param(*kill, marks=() if place < 2 else pytest.mark.verify) for place, kill in enumerate(KILLS)],
)
def test_a_killed_worker_loses_no_map_and_none_is_made_twice(
    split: str,
    worker: int,
    number: int,
    share: float,
    images: Path,
    weights: Path,
    undisturbed: dict[str, bytes],
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    config = explaining(images, weights, split=split)
    killed = run_program(folder, config, "killed_explaining.py", str(worker), str(number), str(share))
    assert killed not in (0, 2), "nothing was killed"
    assert not read_record(folder / "run.jsonl").complete
    finished = finished_maps(folder)
    assert run_program(folder, config) == 0, (folder / "output.log").read_text()
    record = complete(folder)
    assert record.saliency is not None
    assert record.header is not None
    assert record.header.resumed is not None, "nothing was trained or evaluated again"
    assert (folder / "saliency" / "manifest.json").read_bytes() == undisturbed[split]
    assert record.saliency.maps == 4
    assert record.saliency.maps_made_here == 4 - len(finished)
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert len(stored_maps(folder)) == 4
    assert not list((folder / "saliency").rglob(".*"))


def finished_maps(folder: Path) -> dict[Path, int]:
    """The maps with a checksum that fits, and when they were written."""
    return {
        path: path.stat().st_mtime_ns
        for path in (folder / "saliency" / "maps").glob("[0-9]*.npy")
        if hashlib.sha256(path.read_bytes()).hexdigest() == checksum_path(path).read_text().strip()
    }


def test_a_map_that_was_altered_meanwhile_is_made_again(
    images: Path, weights: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    config = explaining(images, weights)
    assert run_program(folder, config, "killed_explaining.py", "0", "13", "0.5") != 0
    finished = sorted(finished_maps(folder))
    assert len(finished) == 4
    content = bytearray(finished[1].read_bytes())
    content[-1] ^= 1
    finished[1].write_bytes(content)
    finished[2].write_bytes(content[:100])
    assert run_program(folder, config) == 0, (folder / "output.log").read_text()
    record = complete(folder)
    assert record.saliency is not None
    assert record.saliency.maps_made_here == 2
    assert (folder / "saliency" / "manifest.json").read_bytes() == undisturbed["images"]


def test_a_run_that_is_to_stop_goes_on_with_its_maps(
    images: Path,
    weights: Path,
    undisturbed: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "run"
    config = explaining(images, weights, "horovod")
    with monkeypatch.context() as patch:
        give_workers(patch, STOP_AT_VARIABLE, "1")
        assert run_program(folder, config) == EXIT_RESUME, (folder / "output.log").read_text()
    record = read_record(folder / "run.jsonl")
    assert record.end is not None
    assert record.end.status == "stopped"
    assert record.end.explained == 2, "an attempt that made maps has gained something"
    assert record.end.reason.endswith("stopped after the last epoch, at step 2 of its saliency maps")
    finished = finished_maps(folder)
    assert len(finished) == 2
    assert run_program(folder, config) == 0, (folder / "output.log").read_text()
    assert complete(folder).saliency is not None
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert [entry.map for entry in manifest_of(folder).images] == [
        entry.map for entry in SaliencyManifest.model_validate_json(undisturbed["images"]).images
    ]


def test_images_without_a_prediction_are_named_and_the_run_is_complete(images: Path, tmp_path: Path) -> None:
    config = explained_point(images, None, workers=1, method="rise", images=2, untrained_check=1)
    assert run_program(tmp_path / "run", config) == 0, (tmp_path / "run" / "output.log").read_text()
    record = complete(tmp_path / "run")
    manifest = manifest_of(tmp_path / "run")
    assert record.saliency is not None
    without = [entry for entry in manifest.images if entry.map is None]
    assert record.saliency.maps == 2 - len(without)
    assert all(entry.no_map and not entry.overlays for entry in without)
    assert without, "this network was to predict nothing"
