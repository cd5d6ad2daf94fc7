"""Verify images and environment before anything is launched, and tell what a study will cost and show."""

import math
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from slurm.cluster import Cluster, Cost, cost_of, plan_geometry
from unet_scaling.base.errors import EXIT_BAD_DATA, UserError
from unet_scaling.base.texts import HIDE, called, count, duration
from unet_scaling.data.folder import near_folder, read_manifest
from unet_scaling.data.order import count_test_images, require_enough_images, split, steps_of
from unet_scaling.format.compute_profile import profile_of
from unet_scaling.group.gpus import Gpus, require_compiler, require_torch
from unet_scaling.group.rendezvous import WITHOUT_NCCL
from unet_scaling.study.config import RunConfig, StudyConfig
from unet_scaling.study.frameworks import FRAMEWORK_ROWS, WRAPPERS, Framework
from unet_scaling.study.options import FEWEST_JUDGED_STEPS, FEWEST_TEST_SAMPLES
from unet_scaling.study.repeats import FEWEST_ADAPTIVE_REPEATS, FIXED_SIGNIFICANCE

MOST_COPIES_SHOWN = 3
SALIENCY_PACKAGE = "xaitk-saliency"
# Relative variation between launches, and between equal nodes: in MLPerf's 3D U-Net 0.3 to 4.6 %.
USUAL_NOISE = 0.02


def check_inputs(configs: Sequence[RunConfig], in_container: bool = False) -> None:
    """Raise UserError where runs cannot start.

    That is where a framework or the right torch is not installed, where images were never checked (65), or
    where emulated workers have no profile of the study's batch and image size. What is installed in a
    container only its workers see.
    """
    if not in_container:
        _check_installed(configs)
    for folder, manifest in _configs_by_images(configs):
        # With a manifest elsewhere, the folder itself may be there on the compute nodes only.
        if not manifest.is_file() and not Path(folder).is_dir():
            near = near_folder(Path(folder)) or "name the folder that holds images/ and masks/"
            raise UserError(f"data.folder: found {folder}, which does not exist; {near}", EXIT_BAD_DATA)
        if manifest.exists() and not manifest.is_file():
            read_manifest(manifest)  # says what it is
        if not manifest.is_file():
            advice = f"the images are not checked; run {called('data', 'check', folder)}"
            raise UserError(f"{manifest} does not exist: {advice}", EXIT_BAD_DATA)
    for config in configs:
        if config.is_emulated:
            profile_of(config)


def _check_installed(configs: Sequence[RunConfig]) -> None:
    for framework in sorted({config.framework for config in configs}):
        option = f" --with {framework}" if framework in WRAPPERS else ""
        _require_installed(framework, FRAMEWORK_ROWS[framework].package, option)
    if has_package("torch"):
        require_torch(metadata.version("torch"))
    if any(config.is_explained for config in configs):
        _require_installed("saliency.method", SALIENCY_PACKAGE, " --with xaitk")


def require_images(configs: Sequence[RunConfig]) -> None:
    """Raise UserError where images are not as checked, or too few for one of these runs on them."""
    for (folder, path), group in _configs_by_images(configs).items():
        manifest = read_manifest(path)
        manifest.require_unchanged(Path(folder), path)
        images = len(manifest.pairs)
        # The largest step first: what it is told holds for all.
        for config in sorted(group, key=lambda config: -config.images_per_step):
            manifest.require_options(config.data)
            require_enough_images(config, images - count_test_images(images, config.data.test_share))


def find_iou_warnings(configs: Sequence[RunConfig]) -> list[str]:
    """Return why IoU will not be judged, or will be too high; checked images only."""
    lines = []
    for (_, path), group in _configs_by_images(configs).items():
        pairs = read_manifest(path).pairs if path.is_file() else []
        splits = {(config.data.test_share, config.data.split_seed) for config in group if pairs}
        for share, seed in sorted(splits):
            parts = split(len(pairs), share, seed)
            of_split = [config for config in group if config.data.test_share == share]
            lines += explain_unjudged(of_split, len(parts.train), len(parts.test))
            trained = {pairs[index].image.sha256: pairs[index].image.name for index in parts.train}
            tested = [pairs[index].image for index in parts.test]
            same = [f"{image.name} = {trained[image.sha256]}" for image in tested if image.sha256 in trained]
            if same:
                found = f"{len(same)} of {count(len(tested), 'test image')} are trained on, too"
                lines.append(f"{found}: {', '.join(same[:MOST_COPIES_SHOWN])}; remove the copies")
    return list(dict.fromkeys(lines))


def explain_unjudged(configs: Sequence[RunConfig], train: int, test: int) -> list[str]:
    """Return why the score of runs with so many samples will not be judged, a line each, with the cure.

    Only runs on the most workers count, as they take the fewest steps; runs that learn nothing have no score.
    """
    learning = [config for config in configs if config.training.epochs and not config.is_emulated]
    most = max((config.played_workers for config in learning), default=0)
    lines = []
    for config in (config for config in learning if config.played_workers == most):
        score = "the score" if config.has_own_task else "IoU"
        steps = steps_of(config, train)
        if 0 < steps < FEWEST_JUDGED_STEPS:
            epochs = -(-FEWEST_JUDGED_STEPS * config.training.epochs // steps)
            found = f"{count(steps, 'step')} on {count(most, 'worker')}"
            needed = f"at least {FEWEST_JUDGED_STEPS} are needed: training.epochs = {epochs}"
            lines.append(f"{score} will not be judged: {found}, {needed}")
        if test < FEWEST_TEST_SAMPLES:
            found = f"{count(test, 'test sample')}, at least {FEWEST_TEST_SAMPLES} are needed"
            lines.append(f"{score} will not be judged: {found}")
    return list(dict.fromkeys(lines))


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
    """Raise UserError where runs train for one epoch alone, which warms up: they would have no throughput."""
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
    return has_package(FRAMEWORK_ROWS[framework].package)


def has_package(name: str) -> bool:
    """Return whether this environment has a package."""
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def require_fit(cluster: Cluster, configs: Sequence[RunConfig]) -> None:
    """Raise UserError where a run has more workers than the nodes hold, or a subgroup on several of them."""
    for config in configs:
        per_node = plan_geometry(cluster, config.workers).workers_per_node
        processes = config.subgroup_size // config.plays_per_worker
        if config.workers > per_node and processes > 1 and per_node % processes:
            raise UserError(
                f"strategy.subgroup_size = {config.subgroup_size} is no divisor of the {per_node} workers of "
                "a node; a subgroup averages at every step: let a node hold all of it"
            )


def describe_limit(cluster: Cluster, configs: Sequence[RunConfig], one_allocation: bool) -> str:
    """Return as text the most that these runs can take: their time limit on all their nodes."""
    cost = limit_cost(cluster, configs, one_allocation)
    kind = "1 job for all runs" if one_allocation else count(len(configs), "job")
    return f"{kind}, at most {cost} (limit {duration(cluster.limit_seconds)} each)"


def describe_interval(study: StudyConfig) -> str:
    """Return as text how much wider intervals are if each run is a job on nodes of its own.

    Computed by Student's t for the mean logarithm of the ratio over pairs, where launches and nodes vary
    alike. Empty where there is no second framework or too few repeats.
    """
    repeats = study.repeats
    if len(study.frameworks) < 2 or not isinstance(repeats, int) or repeats < FEWEST_ADAPTIVE_REPEATS:
        return ""
    # Imported here, as it takes long.
    from scipy import special  # type: ignore[import-untyped]

    quantile = special.stdtrit(repeats - 1, 1 - FIXED_SIGNIFICANCE / 2)
    allocation, jobs = (100 * quantile * math.sqrt(2 * parts / repeats) * USUAL_NOISE for parts in (1, 2))
    return (
        f"{repeats} repeats: an interval of about ± {jobs:.1f} % on the ratio of two frameworks, if "
        f"launches and nodes vary by {100 * USUAL_NOISE:g} % each; ± {allocation:.1f} % with all runs on the "
        "same nodes (--one-allocation)"
    )


def limit_cost(cluster: Cluster, configs: Sequence[RunConfig], one_allocation: bool) -> Cost:
    """Return what jobs take that all run up to their limit."""
    workers = [config.workers for config in configs]
    jobs = [max(workers)] if one_allocation and workers else workers
    return cost_of(cluster, ((plan_geometry(cluster, each), cluster.limit_seconds) for each in jobs))
