"""Synthetic electron micrographs of hardness indents with their masks, in the layout of a data folder.

Triangular (Berkovich) and square (Vickers) imprints with shaded facets, on a textured surface with
scratches, pores and dust. The facets are on both sides of the surface's grey, so that no threshold
separates them from it.
"""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image
from pydantic import NonNegativeInt, PositiveInt, ValidationError

from unet_scaling.base.errors import UserError, or_user_error
from unet_scaling.base.files import READABLE, read_regular, write_atomically
from unet_scaling.base.progress import map_in_order
from unet_scaling.base.validation import StrictModel
from unet_scaling.data.folder import IMAGES_FOLDER, MASKS_FOLDER

PARAMETERS_NAME = "synthetic.json"

Field = npt.NDArray[np.float32]
Picture = npt.NDArray[np.uint8]
# y, x and radius in pixels.
Circle = tuple[float, float, float]

# Sides of the pyramids.
BERKOVICH = 3
VICKERS = 4
# More would leave no background between them.
MOST_IMPRINTS = 4
ATTEMPTS_TO_PLACE = 20
# Size of a grain as a share of the picture, and its amplitude.
GRAINS = ((0.3, 0.18), (0.1, 0.12), (0.03, 0.10), (0.012, 0.08))
# In pixels: on a smaller scale noise would be that of single pixels.
NARROWEST = 1.5


class Parameters(StrictModel):
    """Everything that the pictures depend on; `format` is raised whenever they change for other reasons."""

    format: int = 1
    count: PositiveInt
    height: PositiveInt
    width: PositiveInt
    seed: NonNegativeInt
    complete: bool = False


def make(folder: Path, count: int, height: int, width: int, seed: int) -> bool:
    """Write images/ and masks/ with `count` PNG pairs; return False where they all exist already.

    An interrupted folder is finished. Raises UserError (2) for a folder that holds anything else, or
    that cannot be written.
    """
    try:
        parameters = Parameters(count=count, height=height, width=width, seed=seed)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise UserError(f"--{fault['loc'][0]}: found {fault['input']}; {fault['msg']}") from None
    with or_user_error(f"{folder} cannot be written", "name another folder"):
        if _is_complete(folder, parameters):
            return False
        for part in (IMAGES_FOLDER, MASKS_FOLDER):
            (folder / part).mkdir(exist_ok=True, parents=True)
        _write_parameters(folder, parameters)
        list(map_in_order(partial(_write_pair, folder, parameters), range(count), "drawing"))
        _write_parameters(folder, parameters.model_copy(update={"complete": True}))
    return True


def _is_complete(folder: Path, wanted: Parameters) -> bool:
    """Return whether the folder is finished; UserError where it holds anything not made for `wanted`."""
    if not folder.exists() or not any(folder.iterdir()):
        return False
    cure = "it is left as it is; name another folder, empty or new"
    try:
        existing = Parameters.model_validate_json(read_regular(folder / PARAMETERS_NAME))
    except (OSError, ValidationError):
        raise UserError(f"{folder} is not empty and holds no sound {PARAMETERS_NAME}; {cure}") from None
    if existing.model_copy(update={"complete": False}) != wanted:
        raise UserError(f"{folder} was made with other parameters, {existing}; {cure}")
    return existing.complete


def _write_parameters(folder: Path, parameters: Parameters) -> None:
    write_atomically(folder / PARAMETERS_NAME, parameters.model_dump_json() + "\n", READABLE)


def _write_pair(folder: Path, parameters: Parameters, index: int) -> None:
    pictures = draw_indents(parameters.height, parameters.width, parameters.seed, index)
    for part, pixels in zip((IMAGES_FOLDER, MASKS_FOLDER), pictures, strict=True):
        path = folder / part / f"indent_{index:05d}.png"
        # Written under a hidden name first: an interrupted picture must not pass for a finished one.
        hidden = path.with_name(f".{path.name}.{os.getpid()}")
        Image.fromarray(pixels).save(hidden, "PNG")
        hidden.replace(path)


@dataclass(frozen=True)
class Canvas:
    """The picture being drawn: relative brightness, 0 the surface's own grey; lengths are in pixels.

    Numbers are drawn in a fixed order, as float32 or float64: changing either changes every data set.
    """

    random: np.random.Generator
    brightness: Field
    foreground: npt.NDArray[np.bool_]

    @property
    def size(self) -> int:
        """Return the shorter side, the unit of all lengths."""
        return int(min(self.brightness.shape))

    def around(self, y: float, x: float, angle: float) -> tuple[Field, Field]:
        """Return the coordinates of every pixel along and across a direction, from the centre (y, x)."""
        height, width = self.brightness.shape
        rows = np.arange(height, dtype=np.float32)[:, None] - np.float32(y)
        columns = np.arange(width, dtype=np.float32)[None, :] - np.float32(x)
        cosine = np.float32(np.cos(angle))
        sine = np.float32(np.sin(angle))
        return columns * cosine + rows * sine, rows * cosine - columns * sine

    def around_anywhere(self, largest_angle: float) -> tuple[Field, Field]:
        """Draw a centre and a direction; return the coordinates of every pixel along and across it."""
        y, x = self.anywhere()
        return self.around(y, x, float(self.random.uniform(0, largest_angle)))

    def uniform(self, low: float, high: float) -> np.float32:
        """Draw a random number."""
        return np.float32(self.random.uniform(low, high))

    def contrast(self, low: float, high: float) -> np.float32:
        """Draw by how much a feature is brighter or darker than the surface."""
        return np.float32(self.random.uniform(low, high) * self.random.choice((-1, 1)))

    def anywhere(self) -> tuple[float, float]:
        """Draw a point (y, x) of the picture."""
        height, width = self.brightness.shape
        return float(self.random.uniform(0, height)), float(self.random.uniform(0, width))


def draw_indents(height: int, width: int, seed: int, index: int) -> tuple[Picture, Picture]:
    """Return image and mask (0 and 255), uint8 [height, width]; a pure function of the arguments."""
    size = (height, width)
    random = np.random.Generator(np.random.PCG64([seed, index]))
    canvas = Canvas(random, brightness=np.zeros(size, np.float32), foreground=np.zeros(size, np.bool_))
    _add_texture(canvas)
    for _ in range(random.integers(1, 6)):
        _add_scratch(canvas)
    for _ in range(random.integers(3, 10)):
        _add_blob(canvas)
    _add_imprints(canvas)
    return _expose(canvas), canvas.foreground.astype(np.uint8) * np.uint8(255)


def _smooth_noise(canvas: Canvas, cell_height: float, cell_width: float) -> Field:
    """Draw noise of unit variance that varies over cells of this size in pixels."""
    height, width = canvas.brightness.shape
    rows = max(2, round(height / cell_height) + 1)
    columns = max(2, round(width / cell_width) + 1)
    coarse = Image.fromarray(canvas.random.standard_normal((rows, columns)).astype(np.float32))
    return np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32)


def _add_texture(canvas: Canvas) -> None:
    """Add grains at several scales, and the streaks that polishing leaves."""
    random = canvas.random
    for share, amplitude in GRAINS:
        cell = max(NARROWEST, share * canvas.size)
        strength = random.uniform(0.3, 1) * amplitude
        canvas.brightness[:] += strength * _smooth_noise(canvas, cell, cell)
    long = canvas.size / 2
    cell_height, cell_width = (NARROWEST, long) if random.random() < 0.5 else (long, NARROWEST)
    strength = random.uniform(0, 0.12)
    canvas.brightness[:] += strength * _smooth_noise(canvas, cell_height, cell_width)


def _add_scratch(canvas: Canvas) -> None:
    """Add a thin line, brighter or darker than the surface, that fades towards its ends."""
    along, across = canvas.around_anywhere(np.pi)
    length = np.float32(canvas.random.uniform(0.15, 0.8) * canvas.size)
    width = canvas.uniform(0.5, 1.6)
    contrast = canvas.contrast(0.2, 0.6)
    bend = np.float32(canvas.random.normal(0, 0.3) / canvas.size)
    profile = np.exp(-(((across + along**2 * bend) / width) ** 2) - (along / length) ** 4)
    canvas.brightness[:] += contrast * profile


def _add_blob(canvas: Canvas) -> None:
    """Add a pore or a grain of dust: as dark or bright as a facet, but round."""
    along, across = canvas.around_anywhere(np.pi)
    radius = canvas.random.uniform(0.01, 0.09) * canvas.size
    other_radius = radius * canvas.random.uniform(0.5, 1)
    distance = np.hypot(along / np.float32(radius), across / np.float32(other_radius))
    contrast = canvas.contrast(0.3, 0.8)
    canvas.brightness[:] += contrast * (1 - np.tanh((distance - 1) * np.float32(3))) / 2


def _add_imprints(canvas: Canvas) -> None:
    """Add imprints of one kind of indenter, as in a test series, that do not overlap."""
    random = canvas.random
    sides = BERKOVICH if random.random() < 0.5 else VICKERS
    light = float(random.uniform(0, 2 * np.pi))
    radius = random.uniform(0.09, 0.24) * canvas.size
    occupied: list[Circle] = []
    for _ in range(random.integers(1, MOST_IMPRINTS + 1)):
        circle = _free_circle(canvas, radius * random.uniform(0.7, 1.2), occupied)
        if circle is not None:
            occupied.append(circle)
            _add_imprint(canvas, sides, circle, light)


def _free_circle(canvas: Canvas, radius: float, occupied: list[Circle]) -> Circle | None:
    for _ in range(ATTEMPTS_TO_PLACE):
        y, x = canvas.anywhere()
        if all(np.hypot(y - v, x - u) > radius + other for v, u, other in occupied):
            return y, x, radius
    return None


def _add_imprint(canvas: Canvas, sides: int, circle: Circle, light: float) -> None:
    """Press a pyramid into the surface; each facet is as bright as it faces the light."""
    y, x, radius = circle
    angle = float(canvas.random.uniform(0, 2 * np.pi))
    normals = np.arange(sides) * 2 * np.pi / sides
    # How far every pixel is from the tip in the direction of each normal, [sides, height, width].
    along, across = canvas.around(y, x, angle)
    along = along * canvas.uniform(0.9, 1.1)
    cosines = np.cos(normals).astype(np.float32)[:, None, None]
    sines = np.sin(normals).astype(np.float32)[:, None, None]
    distances: Field = along * cosines + across * sines
    second, outward = np.sort(distances, axis=0)[-2:]
    # 1 at the tip, 0 at the edge and less outside. Elastic recovery draws the edges in between the corners.
    apothem = np.float32(radius * np.cos(np.pi / sides))
    bow = canvas.uniform(0, 0.12) * (1 - np.clip(second / apothem, 0, 1))
    depth: Field = 1 - outward / (apothem * (1 - bow))
    # A facet is as bright as it faces the light, a little darker at the tip; ridges and rim are bright.
    brightness = canvas.uniform(0.4, 0.7) * np.cos(normals + angle - light).astype(np.float32)
    facets = brightness[np.argmax(distances, axis=0)] - canvas.uniform(0, 0.25) * depth
    facets = facets + _edge(canvas, outward - second, 1.5)
    rim = _edge(canvas, depth * apothem, 2)
    # Half of the surface inside shows through.
    inside = depth > 0
    surface = canvas.brightness * np.where(inside, np.float32(0.5), np.float32(1))
    canvas.brightness[:] = surface + rim + np.where(inside, facets, np.float32(0))
    canvas.foreground[:] |= inside


def _edge(canvas: Canvas, distance: Field, width: float) -> Field:
    """Draw the brightness of an edge, given the distance from it in pixels."""
    brightness: Field = canvas.uniform(0.1, 0.4) * np.exp(-((distance / np.float32(width)) ** 2))
    return brightness


def _expose(canvas: Canvas) -> Picture:
    """Return what the detector records: uneven light, contrast, shot noise, 8 bit."""
    random = canvas.random
    along, across = canvas.around_anywhere(2 * np.pi)
    gradient = canvas.uniform(0, 0.3) * along / np.float32(canvas.size)
    vignette = canvas.uniform(0, 0.15) * (along**2 + across**2) / np.float32(canvas.size**2)
    level = random.uniform(80, 160)
    contrast = random.uniform(60, 110)
    electrons = np.clip(level + contrast * (canvas.brightness + gradient - vignette), 2, 255)
    noise = random.standard_normal(electrons.shape, dtype=np.float32) * np.sqrt(electrons)
    exposed = electrons + canvas.uniform(0.3, 0.9) * noise
    return np.asarray(np.clip(exposed, 0, 255), dtype=np.uint8)
