"""Verify before anything is queued: images, environment, geometries that Slurm would refuse."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path

from slurm.cluster import Cluster, geometry
from unet_scaling.data.folder import PairEntry, read_manifest
from unet_scaling.data.order import count_test_images, require_enough_images, split, steps_of
from unet_scaling.group.gpus import Gpus, require_compiler, require_torch
from unet_scaling.group.rendezvous import WITHOUT_NCCL
from unet_scaling.study.compute_profile import profile_of
from unet_scaling.study.config import WRAPPERS, Framework, RunConfig, StudyConfig
from unet_scaling.study.errors import EXIT_BAD_DATA, UserError
from unet_scaling.study.options import FEWEST_JUDGED_STEPS, FEWEST_TEST_SAMPLES, Data
from unet_scaling.study.texts import HIDE, called, count, duration

FRAMEWORK_PACKAGES: dict[Framework, str] = {
    "pytorch_native": "torch",
    "horovod": "horovod",
    "lightning": "lightning",
    "accelerate": "accelerate",
}
MOST_COPIES_SHOWN = 3
SALIENCY_PACKAGE = "xaitk-saliency"


def check_inputs(configs: Sequence[RunConfig]) -> None:
    """Raise UserError where a framework is not installed, images were never checked (65), or a profile lacks.

    Torch has to be one of those allowed, and the profile by which emulated workers wait of the study's batch
    and image size.
    """
    for framework in sorted({config.framework for config in configs}):
        option = f" --with {framework}" if framework in WRAPPERS else ""
        _require_installed(framework, FRAMEWORK_PACKAGES[framework], option)
    if has_package("torch"):
        require_torch(metadata.version("torch"))
    if any(config.is_explained for config in configs):
        _require_installed("saliency.method", SALIENCY_PACKAGE, " --with xaitk")
    for folder, manifest in _configs_by_images(configs):
        # With a manifest elsewhere, the folder itself may be there on the compute nodes only.
        if not manifest.is_file() and not Path(folder).is_dir():
            raise UserError(f"data.folder: found {folder}, which does not exist", EXIT_BAD_DATA)
        if not manifest.is_file():
            advice = f"the images are not checked; run {called('data', 'check', folder)}"
            raise UserError(f"{manifest} does not exist: {advice}", EXIT_BAD_DATA)
    for config in configs:
        if config.is_emulated:
            profile_of(config)


def require_images(configs: Sequence[RunConfig]) -> None:
    """Raise UserError where images are not as checked, or too few for one of these runs on them."""
    for (folder, path), group in _configs_by_images(configs).items():
        manifest = read_manifest(path)
        manifest.require_unchanged(Path(folder), path)
        images = len(manifest.pairs)
        for config in group:
            manifest.require_options(config.data)
            require_enough_images(config, images - count_test_images(images, config.data.test_share))


def iou_warnings(configs: Sequence[RunConfig]) -> list[str]:
    """Return why IoU will not be judged, or is too high; nothing of images that are not checked."""
    lines = []
    for (_, path), group in _configs_by_images(configs).items():
        if path.is_file():
            pairs = read_manifest(path).pairs
            lines += unjudged(group, partial(_sizes_of_split, len(pairs)))
            lines += _copies(pairs, group[0].data)
    return lines


def _copies(pairs: Sequence[PairEntry], data: Data) -> list[str]:
    """Return a line on test images of which the training set has a copy; none without."""
    parts = split(len(pairs), data.test_share, data.split_seed)
    trained = {pairs[index].image.sha256: pairs[index].image.name for index in parts.train}
    tested = [pairs[index].image for index in parts.test]
    same = [f"{image.name} = {trained[image.sha256]}" for image in tested if image.sha256 in trained]
    if not same:
        return []
    shown = f"{', '.join(same[:MOST_COPIES_SHOWN])}{', ...' if len(same) > MOST_COPIES_SHOWN else ''}"
    return [f"{len(same)} of {count(len(tested), 'test image')} are trained on, too: {shown}; remove copies"]


def _sizes_of_split(images: int, config: RunConfig) -> tuple[int, int]:
    test = count_test_images(images, config.data.test_share)
    return images - test, test


def unjudged(configs: Sequence[RunConfig], sizes: Callable[[RunConfig], tuple[int, int]]) -> list[str]:
    """Return why the score of runs on the most workers will not be judged, a line each, with the cure.

    `sizes` returns the numbers of training and test samples of a run.
    """
    learning = [config for config in configs if config.training.epochs and not config.is_emulated]
    most = max((config.played_workers for config in learning), default=0)
    largest = [config for config in learning if config.played_workers == most]
    return list(dict.fromkeys(why for config in largest for why in _why_unjudged(config, *sizes(config))))


def _why_unjudged(config: RunConfig, train: int, test: int) -> Iterator[str]:
    score = "the score" if config.has_own_task else "IoU"
    steps = steps_of(config, train)
    if 0 < steps < FEWEST_JUDGED_STEPS:
        epochs = -(-FEWEST_JUDGED_STEPS * config.training.epochs // steps)
        found = f"{count(steps, 'step')} on {count(config.played_workers, 'worker')}"
        needed = f"at least {FEWEST_JUDGED_STEPS} are needed: training.epochs = {epochs}"
        yield f"{score} will not be judged: {found}, {needed}"
    if test < FEWEST_TEST_SAMPLES:
        cure = "use more" if config.has_own_task else "use more images, or a larger data.test_share"
        found = f"{count(test, 'test sample')}, at least {FEWEST_TEST_SAMPLES} are needed"
        yield f"{score} will not be judged: {found}; {cure}"


def _configs_by_images(configs: Sequence[RunConfig]) -> dict[tuple[str, Path], list[RunConfig]]:
    """Return the runs of the built-in task by the folder of images that they read and its manifest."""
    found: dict[tuple[str, Path], list[RunConfig]] = {}
    for config in configs:
        if not config.has_own_task:
            found.setdefault((config.data.folder, config.data.manifest_path), []).append(config)
    return found


def require_devices(study: StudyConfig, gpus: Gpus) -> None:
    """Raise UserError where workers on this machine would share a GPU or lack what they need to use it."""
    training = [config.training for config in study.configs()]
    shares = any(each.shared_devices for each in training)
    gpus.require_one_each(f"study {study.name}", max(study.workers), shares)
    # Where it is not installed, `check_inputs` says so.
    if "horovod" in study.frameworks and gpus.horovod and "NCCL" not in gpus.horovod:
        raise UserError(f"{WITHOUT_NCCL}, or {HIDE}")
    if any(each.compile for each in training):
        require_compiler(bool(gpus.names))


def require_throughput(study: StudyConfig) -> None:
    """Raise UserError where the study has runs that train and yet can have no throughput."""
    epochs = study.training.get("epochs")
    if epochs == 1 or (isinstance(epochs, list) and 1 in epochs):
        raise UserError(
            f"study {study.name}: training.epochs: found 1, which only warms up; allowed: 2 or more, or 0"
        )


def _require_installed(asking: str, package: str, option: str) -> None:
    if not has_package(package):
        cure = f"run environment/install.sh{option}"
        raise UserError(f"{asking} needs {package}, which is not installed; {cure}")


def is_installed(framework: Framework) -> bool:
    """Return whether this environment has the package of a framework."""
    return has_package(FRAMEWORK_PACKAGES[framework])


def has_package(name: str) -> bool:
    """Return whether this environment has a package."""
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def limit_text(cluster: Cluster, configs: Sequence[RunConfig], one_allocation: bool) -> str:
    """Return what these runs can cost at most, as text: their time limit on all their nodes."""
    hours = limit_node_hours(cluster, configs, one_allocation)
    kind = "1 job for all runs" if one_allocation else f"{len(configs)} jobs"
    return f"{kind}, at most {hours:.1f} node-hours (limit {duration(cluster.limit_seconds)} each)"


def limit_node_hours(cluster: Cluster, configs: Sequence[RunConfig], one_allocation: bool) -> float:
    """Return the node-hours of jobs that all run up to their limit."""
    nodes = [geometry(cluster, config.workers).nodes for config in configs]
    total = max(nodes, default=0) if one_allocation else sum(nodes)
    return total * cluster.limit_seconds / 3600
