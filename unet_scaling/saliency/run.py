"""One run's maps from its configuration to the line of its record. Imports xaitk."""

import json

import numpy as np
import torch
from torch import nn

from unet_scaling.data.batches import ImageData, RunData
from unet_scaling.format.record_lines import Saliency, SaliencyPhases
from unet_scaling.format.saliency import SCORES, ExplainedImage, SaliencyManifest
from unet_scaling.group.group import Group
from unet_scaling.measure.counters import peak_memory_bytes
from unet_scaling.measure.epoch_meter import PartClock, synchronized_seconds
from unet_scaling.run.recorder import Recorder
from unet_scaling.run.training_state import weights_sha256
from unet_scaling.saliency import maps
from unet_scaling.saliency.checks import MapChecks, trial_of
from unet_scaling.saliency.masks import MaskStore, Method, mask_chunks, method_of
from unet_scaling.study.config import RunConfig


def explain_run(config: RunConfig, model: nn.Module, data: RunData, group: Group, record: Recorder) -> None:
    """Make the maps that are missing, then check all of them, write the manifest and record both."""
    assert isinstance(data, ImageData)
    model.eval()
    files = maps.MapFiles(record.folder)
    method = method_of(config.saliency)
    digest = weights_sha256(model)
    positions = range(min(config.saliency.images or data.test_images, data.test_images))
    missing = _missing(files, positions, data, method, digest)
    split = config.saliency.split
    if split == "auto":
        split = "masks" if len(positions) < group.size else "images"
    # Compiled code would be made again for each size of a batch.
    with torch.compiler.set_stance("force_eager"):
        network = maps.ExplainedNetwork(model, config)
        group.wait_for_all()
        began = synchronized_seconds(group.device)
        clock = PartClock(group.device)
        with clock.part("masks"):
            size = (config.data.image_height, config.data.image_width)
            masks = group.run_on_all(lambda: MaskStore(mask_chunks(method.perturber, *size)))
        maker = maps.MapMaker(config, network, data, masks, method, files)
        if missing:
            record.begin_explaining()
            before = len(positions) - len(missing)
            maps.make_maps(maker, missing, split, clock, lambda done: record.visit_safe_point(before + done))
        phases = group.gather_models(_phases(clock, synchronized_seconds(group.device) - began))
        peaks = group.gather_numbers(peak_memory_bytes())
        began = synchronized_seconds(group.device)
        images = _checked(MapChecks(maker, model), positions, record)
        check_seconds = max(group.gather_numbers(synchronized_seconds(group.device) - began))
    mapped = {image.position for image in images if image.map}
    line = Saliency(
        epochs=len(record.epochs),
        weights_sha256=digest,
        manifest_sha256=_write_manifest(maker, digest, images),
        split=split,
        configuration=json.loads(json.dumps(method.configuration())),
        images=len(positions),
        maps=len(mapped),
        maps_made_here=len(mapped & set(missing)),
        masks=masks.count,
        seconds=max(each.total() for each in phases),
        worker_seconds=[each.total() for each in phases],
        phases=phases,
        peak_bytes=[int(peak) for peak in peaks],
        check_seconds=check_seconds,
    )
    record.explained(line)


def _missing(
    files: maps.MapFiles, positions: range, data: ImageData, method: Method, weights_sha256: str
) -> list[int]:
    """Return the test images without a whole map of these weights, the same on every worker."""
    config, group = data.config, data.group
    digests = group.gather_strings(weights_sha256)
    assert len(set(digests)) == 1, f"workers have different weights: {digests}"
    origin = {
        "config_sha256": config.digest(),
        "weights_sha256": weights_sha256,
        "manifest_sha256": data.manifest_sha256,
        "configuration": method.configuration(),
        "arithmetic": maps.ARITHMETIC,
    }
    group.run_on_all(lambda: files.prepare(origin) if group.rank == 0 else None)
    shape = (len(SCORES), config.data.image_height, config.data.image_width)
    found = np.zeros(len(positions))
    for position in positions[group.rank :: group.size]:
        found[position] = files.has_map(position, shape)
    is_there = group.gather_array(found).sum(axis=0)
    return [position for position in positions if not is_there[position]]


def _phases(clock: PartClock, seconds: float) -> SaliencyPhases:
    """Return where so many seconds of this worker went; what no part covers is other."""
    assert clock.seconds.keys() <= SaliencyPhases.model_fields.keys(), clock.seconds
    spent = {name: sum(clock.seconds[name]) for name in SaliencyPhases.model_fields if name != "other"}
    return SaliencyPhases(**spent, other=max(0.0, seconds - sum(spent.values())))


def _checked(checks: MapChecks, positions: range, record: Recorder) -> list[ExplainedImage]:
    """Return the manifest's entries of all images, on every worker."""
    maker = checks.maker
    group = maker.data.group
    names = maps.image_names(maker.config, maker.data)
    own: list[str] = []

    def check(position: int) -> None:
        own.append(checks.image(position, names[position]).model_dump_json())

    def visit(done: int) -> None:
        record.visit_safe_point(len(positions) + done)

    record.begin_explaining()
    maps.take_turns(group, maker.own(positions), check, "checks", visit)
    texts = group.gather_strings("\n".join(own))
    entries = [ExplainedImage.model_validate_json(line) for text in texts for line in text.splitlines()]
    return sorted(entries, key=lambda entry: entry.position)


def _write_manifest(maker: maps.MapMaker, weights_sha256: str, images: list[ExplainedImage]) -> str:
    """Write the manifest on worker 0; return its SHA-256 on every worker."""
    group = maker.data.group
    manifest = SaliencyManifest(
        method=maker.config.saliency.method,
        weights_sha256=weights_sha256,
        scores=list(SCORES),
        shares=list(trial_of(maker.config).shares),
        images=images,
    )
    return group.gather_strings(maker.files.write_manifest(manifest) if group.rank == 0 else "")[0]
