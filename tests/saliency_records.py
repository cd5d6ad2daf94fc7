"""Complete runs with saliency maps, written with the real models: record, manifest, maps and pictures."""

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.records import digest, make_epochs, make_header, make_point, make_result, write_all
from unet_scaling.format.record import RECORD_NAME
from unet_scaling.format.record_lines import SALIENCY_FOLDER, End, Saliency, SaliencyPhases
from unet_scaling.format.saliency import (
    SALIENCY_MANIFEST_NAME,
    SCORES,
    ExplainedImage,
    Faithfulness,
    SaliencyFile,
    SaliencyManifest,
    UntrainedMap,
)
from unet_scaling.saliency.checks import overlay_png
from unet_scaling.study.config import Framework

SHARES = [0.0, 0.25, 0.5, 0.75, 1.0]
HEIGHT = 24
WIDTH = 32
# Shares of a worker's seconds, in the order of the phases.
PHASE_SHARES = (0.05, 0.6, 0.2, 0.05, 0.04, 0.06)


@dataclass(frozen=True)
class Made:
    """What differs between runs of a test: weights, speed, faithful images, and what the record says."""

    weights: str = "weights"
    maps_per_second: float = 4.0
    images: int = 6
    without_map: Sequence[int] = ()
    # Images whose map deletes no faster than random order.
    worse: Sequence[int] = ()
    untrained: int = 2
    correlation: float | None = 0.1
    maps_seed: str = ""
    epochs: int = 3
    # Further options of training.
    training: Mapping[str, object] = field(default_factory=dict)
    changes: Mapping[str, object] = field(default_factory=dict)
    manifest_changes: Mapping[str, object] = field(default_factory=dict)


def write_explained(
    study: Path,
    framework: Framework = "pytorch_native",
    workers: int = 1,
    repeat: int = 1,
    made: Made = Made(),
    **saliency: Any,
) -> Path:
    """Write the folder of a complete run with maps; returns it. Options are those of `[saliency]`."""
    label = "".join(f"-{name}={value}" for name, value in {**saliency, **made.training}.items())
    options = {
        "saliency": {"method": "rise", "masks": 64} | saliency,
        "training": {"epochs": made.epochs} | dict(made.training),
    }
    point = make_point(framework, workers, repeat, options=options, label=label)
    folder = study / point.run
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(point.model_dump_json())
    manifest = write_files(folder / SALIENCY_FOLDER, made, point.saliency.method)
    header = make_header(point)
    epochs = make_epochs(point, 100.0 * workers, 48)
    result = make_result(header, epochs, 0.8).model_copy(update={"weights_sha256": digest(made.weights)})
    split = "images" if point.saliency.split == "auto" else point.saliency.split
    line = make_line(made, workers, split, manifest)
    write_all(folder / RECORD_NAME, (header, *epochs, result, line, End(status="complete")))
    return folder


def make_line(made: Made, workers: int, split: str, manifest_sha256: str) -> Saliency:
    """The line of the record: workers that are equally fast."""
    maps = made.images - len(made.without_map)
    seconds = maps / made.maps_per_second
    phases = SaliencyPhases(
        **{
            name: seconds * share
            for name, share in zip(SaliencyPhases.model_fields, PHASE_SHARES, strict=True)
        }
    )
    fields: dict[str, Any] = {
        "epochs": made.epochs, "weights_sha256": digest(made.weights), "manifest_sha256": manifest_sha256,
        "split": split, "configuration": {"perturber": {"n": 64}}, "images": made.images, "maps": maps,
        "maps_made_here": maps, "masks": 64, "seconds": seconds, "worker_seconds": [seconds] * workers,
        "phases": [phases] * workers, "peak_bytes": [2**28] * workers, "check_seconds": 0.5,
    }  # fmt: skip
    return Saliency(**fields | dict(made.changes))


def write_files(folder: Path, made: Made, method: str) -> str:
    """Write manifest, maps and pictures; returns the digest of the manifest."""
    for name in ("maps", "overlays"):
        (folder / name).mkdir(parents=True)
    fields: dict[str, Any] = {
        "method": method, "weights_sha256": digest(made.weights), "scores": list(SCORES), "shares": SHARES,
        "images": [_image(folder, made, position) for position in range(made.images)],
    }  # fmt: skip
    content = SaliencyManifest(**fields | dict(made.manifest_changes)).model_dump_json().encode()
    (folder / SALIENCY_MANIFEST_NAME).write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def _image(folder: Path, made: Made, position: int) -> ExplainedImage:
    random = np.random.default_rng([position, len(made.maps_seed)])
    spot = np.zeros((HEIGHT, WIDTH), dtype=np.float32)
    spot[6:14, 4 + 3 * position : 12 + 3 * position] = 1
    pixels = (random.normal(60, 12, (HEIGHT, WIDTH)) + 120 * spot).clip(0, 255).astype(np.uint8)
    fields: dict[str, Any] = {
        "image": f"cell{position}", "position": position, "height": HEIGHT, "width": WIDTH,
        "box": (0, 0, HEIGHT, WIDTH), "foreground": 0.1, "map": None,
        "pictures": {
            "image": _file(folder, f"overlays/{position:05d}_image.png", _png(pixels)),
            "truth": _file(folder, f"overlays/{position:05d}_truth.png", _png((255 * spot).astype(np.uint8))),
        },
    }  # fmt: skip
    if position in made.without_map:
        return ExplainedImage(**fields | {"no_map": "the prediction is empty", "foreground": 0.0})
    return ExplainedImage(**fields | _of_map(folder, made, position, pixels, spot))


def _of_map(
    folder: Path, made: Made, position: int, pixels: np.ndarray, spot: np.ndarray
) -> dict[str, object]:
    saliency = spot + np.linspace(0, 0.2, WIDTH, dtype=np.float32)
    content = io.BytesIO()
    np.save(content, np.stack([saliency, saliency**2]) + len(made.maps_seed))
    overlay = overlay_png(pixels[..., None], saliency)
    curves = _curves(position in made.worse, 0.02 * position)
    untrained = UntrainedMap(
        correlation=dict.fromkeys(SCORES, made.correlation),
        faithfulness=dict.fromkeys(SCORES, _curves(position in (0, 1), 0.0)),
    )
    return {
        "map": _file(folder, f"maps/{position:05d}.npy", content.getvalue()),
        "overlays": {
            score: _file(folder, f"overlays/{position:05d}_{score}.png", overlay) for score in SCORES
        },
        "faithfulness": dict.fromkeys(SCORES, curves),
        "untrained": untrained if position < made.untrained else None,
    }


def _curves(worse: bool, height: float) -> Faithfulness:
    """Curves that fall and rise sooner than random ones, by `height` less; or as soon as these."""
    steps = np.array(SHARES)
    quick = (1 - steps) if worse else (1 - steps) ** 3 + height * steps * (1 - steps)
    return Faithfulness(
        deletion=quick.tolist(),
        insertion=(1 - quick)[:].tolist(),
        random_deletion=(1 - steps).tolist(),
        random_insertion=steps.tolist(),
    )


def _file(folder: Path, name: str, content: bytes) -> SaliencyFile:
    (folder / name).write_bytes(content)
    return SaliencyFile(file=name, sha256=hashlib.sha256(content).hexdigest())


def _png(pixels: np.ndarray) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "png")
    return content.getvalue()
