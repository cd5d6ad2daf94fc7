"""One run's maps from its configuration to the line of its record. Imports xaitk."""

import json
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import nn

from unet_scaling.data.batches import ImageData, RunData
from unet_scaling.explain.checks import MapChecks, trial_of
from unet_scaling.explain.maps import (
    ARITHMETIC,
    MapFiles,
    MapMaker,
    explained_network,
    image_names,
    make_maps,
    take_turns,
)
from unet_scaling.explain.masks import MaskStore, mask_chunks, method_of
from unet_scaling.group.group import Group
from unet_scaling.group.worker import keep_memory
from unet_scaling.measure.counters import peak_memory_bytes
from unet_scaling.measure.epoch_meter import PartClock, synchronized_seconds
from unet_scaling.run.recorder import Recorder
from unet_scaling.run.training_state import weights_sha256
from unet_scaling.study.config import RunConfig
from unet_scaling.study.record_lines import Saliency, SaliencyPhases
from unet_scaling.study.saliency import SCORES, ExplainedImage, SaliencyManifest


def explain_run(config: RunConfig, model: nn.Module, data: RunData, group: Group, record: Recorder) -> None:
    """Make the maps that are missing, then check all of them, write the manifest and record both."""
    assert isinstance(data, ImageData)
    model.eval()
    # Compiled code would be made again for each size of a batch.
    with torch.compiler.set_stance("force_eager"):
        ExplainedRun(config, model, data, group, record).explain()


class ExplainedRun:
    """The maps of one run, on one worker."""

    def __init__(
        self, config: RunConfig, model: nn.Module, data: ImageData, group: Group, record: Recorder
    ) -> None:
        self._config = config
        self._model = model
        self._data = data
        self._group = group
        self._record = record
        self._method = method_of(config.saliency)
        self._files = MapFiles(record.folder)
        self._weights_sha256 = weights_sha256(model)
        self._positions = range(min(config.saliency.images or data.test_images, data.test_images))
        self._split = config.saliency.split
        if self._split == "auto":
            self._split = "masks" if len(self._positions) < group.size else "images"

    def explain(self) -> None:
        """Take all steps, in their order; worker 0 writes manifest and record."""
        assert self._split != "auto"
        group = self._group
        missing = self._missing()
        maker, phases = self._make(missing)
        peaks = group.gather_numbers(peak_memory_bytes())
        began = synchronized_seconds(group.device)
        images = self._check(maker)
        check_seconds = group.gather_numbers(synchronized_seconds(group.device) - began)
        manifest = SaliencyManifest(
            method=self._config.saliency.method,
            weights_sha256=self._weights_sha256,
            scores=list(SCORES),
            shares=list(trial_of(self._config).shares),
            images=images,
        )
        digest = self._files.write_manifest(manifest) if group.rank == 0 else ""
        mapped = {image.position for image in images if image.map}
        self._record.explained(
            Saliency(
                epochs=len(self._record.epochs),
                weights_sha256=self._weights_sha256,
                manifest_sha256=group.gather_strings(digest)[0],
                split=self._split,
                configuration=json.loads(json.dumps(self._method.configuration())),
                images=len(self._positions),
                maps=len(mapped),
                maps_made_here=len(mapped & set(missing)),
                masks=maker.masks.count,
                seconds=max(each.total() for each in phases),
                worker_seconds=[each.total() for each in phases],
                phases=phases,
                peak_bytes=[int(peak) for peak in peaks],
                check_seconds=max(check_seconds),
            )
        )

    def _missing(self) -> list[int]:
        """Return the test images without a whole map of these weights, the same on every worker."""
        group = self._group
        digests = group.gather_strings(self._weights_sha256)
        assert len(set(digests)) == 1, f"workers have different weights: {digests}"
        origin = {
            "config_sha256": self._config.digest(),
            "weights_sha256": self._weights_sha256,
            "manifest_sha256": self._data.manifest_sha256,
            "configuration": self._method.configuration(),
            "arithmetic": ARITHMETIC,
        }
        group.run_on_all(lambda: self._files.prepare(origin) if group.rank == 0 else None)
        shape = (len(SCORES), self._config.data.image_height, self._config.data.image_width)
        found = np.zeros(len(self._positions))
        for position in self._positions[group.rank :: group.size]:
            found[position] = self._files.has_map(position, shape)
        is_there = group.gather_array(found).sum(axis=0)
        return [position for position in self._positions if not is_there[position]]

    def _make(self, missing: Sequence[int]) -> tuple[MapMaker, list[SaliencyPhases]]:
        """Make the missing maps; return what makes them, and the seconds of all workers."""
        height, width = self._config.data.image_height, self._config.data.image_width
        network = explained_network(self._model, self._config)
        self._group.wait_for_all()
        began = synchronized_seconds(self._group.device)
        clock = PartClock(self._group.device)
        with clock.part("masks"):
            masks = self._group.run_on_all(
                lambda: MaskStore(mask_chunks(self._method.perturber, height, width))
            )
        # What lasts is there now; where nothing was trained, no step has asked for this yet.
        keep_memory()
        maker = MapMaker(self._config, network, self._data, masks, self._method, self._files)
        if missing:
            self._record.begin_explaining()
            before = len(self._positions) - len(missing)
            make_maps(maker, missing, self._split, clock, partial(self._visit_safe_point, before))
        total = synchronized_seconds(self._group.device) - began
        spent = {name: sum(clock.seconds[name]) for name in SaliencyPhases.model_fields if name != "other"}
        own = SaliencyPhases(**spent, other=max(0.0, total - sum(spent.values())))
        return maker, self._group.gather_models(own)

    def _check(self, maker: MapMaker) -> list[ExplainedImage]:
        """Return the manifest's entries of all images, on every worker."""
        names = image_names(self._config, self._data)
        checks = MapChecks(maker, self._model)
        own: list[str] = []

        def check(position: int) -> None:
            own.append(checks.image(position, names[position]).model_dump_json())

        self._record.begin_explaining()
        after_each = partial(self._visit_safe_point, len(self._positions))
        take_turns(self._group, maker.own(self._positions), check, "checks", after_each)
        texts = self._group.gather_strings("\n".join(own))
        entries = [ExplainedImage.model_validate_json(line) for text in texts for line in text.splitlines()]
        return sorted(entries, key=lambda entry: entry.position)

    def _visit_safe_point(self, before: int, done: int) -> None:
        self._record.visit_safe_point(before + done)
