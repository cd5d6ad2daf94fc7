"""Draw one synthetic electron micrograph of hardness indents, with its mask.

Triangular (Berkovich) and square (Vickers) imprints with shaded facets, on a textured surface with
scratches, pores and dust. The facets are on both sides of the surface's grey, so that no threshold
separates them from it.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

Field = npt.NDArray[np.float32]

MOST_IMPRINTS = 4
BERKOVICH, VICKERS = 3, 4


@dataclass(frozen=True)
class Canvas:
    """The picture being drawn: relative brightness, 0 the surface's own grey; lengths are in pixels."""

    random: np.random.Generator
    brightness: Field
    foreground: npt.NDArray[np.bool_]

    @property
    def size(self) -> int:
        """The shorter side, the unit of all lengths."""
        return int(min(self.brightness.shape))

    def around(self, y: float, x: float, angle: float) -> tuple[Field, Field]:
        """Coordinates of every pixel along and across a direction, from the centre (y, x)."""
        height, width = self.brightness.shape
        rows = np.arange(height, dtype=np.float32)[:, None] - np.float32(y)
        columns = np.arange(width, dtype=np.float32)[None, :] - np.float32(x)
        cosine, sine = np.float32(np.cos(angle)), np.float32(np.sin(angle))
        return columns * cosine + rows * sine, rows * cosine - columns * sine

    def anywhere(self) -> tuple[float, float]:
        """A point (y, x) of the picture."""
        height, width = self.brightness.shape
        return float(self.random.uniform(0, height)), float(self.random.uniform(0, width))


def draw_indents(
    height: int, width: int, seed: int, index: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Image and mask (0 and 255), uint8 [height, width]; a pure function of the arguments."""
    random = np.random.Generator(np.random.PCG64([seed, index]))
    shape = (height, width)
    canvas = Canvas(random, np.zeros(shape, np.float32), np.zeros(shape, np.bool_))
    _add_texture(canvas)
    for _ in range(random.integers(1, 6)):
        _add_scratch(canvas)
    for _ in range(random.integers(3, 10)):
        _add_blob(canvas)
    _add_imprints(canvas)
    return _expose(canvas), canvas.foreground.astype(np.uint8) * np.uint8(255)


def _smooth_noise(random: np.random.Generator, shape: tuple[int, int], cell: tuple[float, float]) -> Field:
    """Noise of unit variance that varies over `cell` pixels (vertical, horizontal)."""
    rows, columns = (max(2, round(length / step) + 1) for length, step in zip(shape, cell, strict=True))
    coarse = Image.fromarray(random.standard_normal((rows, columns)).astype(np.float32))
    return np.asarray(coarse.resize((shape[1], shape[0]), Image.Resampling.BICUBIC), dtype=np.float32)


def _add_texture(canvas: Canvas) -> None:
    """Grains at several scales, and the streaks that polishing leaves."""
    random, size = canvas.random, canvas.size
    shape = (canvas.brightness.shape[0], canvas.brightness.shape[1])
    for share, amplitude in ((0.3, 0.18), (0.1, 0.12), (0.03, 0.10), (0.012, 0.08)):
        cell = max(1.5, share * size)
        canvas.brightness[:] += (
            random.uniform(0.3, 1) * amplitude * _smooth_noise(random, shape, (cell, cell))
        )
    streaks = (1.5, size / 2) if random.random() < 0.5 else (size / 2, 1.5)
    canvas.brightness[:] += random.uniform(0, 0.12) * _smooth_noise(random, shape, streaks)


def _add_scratch(canvas: Canvas) -> None:
    """A thin line, brighter or darker than the surface, that fades towards its ends."""
    random = canvas.random
    along, across = canvas.around(*canvas.anywhere(), float(random.uniform(0, np.pi)))
    length, width = random.uniform(0.15, 0.8) * canvas.size, random.uniform(0.5, 1.6)
    depth = random.uniform(0.2, 0.6) * random.choice((-1, 1))
    bent = across + along**2 * np.float32(random.normal(0, 0.3) / canvas.size)
    profile = np.exp(-((bent / np.float32(width)) ** 2) - (along / np.float32(length)) ** 4)
    canvas.brightness[:] += np.float32(depth) * profile


def _add_blob(canvas: Canvas) -> None:
    """A pore or a grain of dust: as dark or bright as a facet, but round."""
    random = canvas.random
    along, across = canvas.around(*canvas.anywhere(), float(random.uniform(0, np.pi)))
    radius = random.uniform(0.01, 0.09) * canvas.size
    distance = np.hypot(along / np.float32(radius), across / np.float32(radius * random.uniform(0.5, 1)))
    depth = random.uniform(0.3, 0.8) * random.choice((-1, 1))
    canvas.brightness[:] += np.float32(depth) * (1 - np.tanh((distance - 1) * np.float32(3))) / 2


def _add_imprints(canvas: Canvas) -> None:
    """One kind of indenter per picture, as in a test series; imprints do not overlap."""
    random = canvas.random
    sides = BERKOVICH if random.random() < 0.5 else VICKERS
    light = float(random.uniform(0, 2 * np.pi))
    radius = random.uniform(0.09, 0.24) * canvas.size
    taken: list[tuple[float, float, float]] = []
    for _ in range(random.integers(1, MOST_IMPRINTS + 1)):
        own_radius = radius * random.uniform(0.7, 1.2)
        for _ in range(20):
            y, x = canvas.anywhere()
            if all(np.hypot(y - v, x - u) > own_radius + other for v, u, other in taken):
                taken.append((y, x, own_radius))
                _add_imprint(canvas, sides, (y, x), own_radius, light)
                break


def _add_imprint(
    canvas: Canvas, sides: int, centre: tuple[float, float], radius: float, light: float
) -> None:
    """A pyramid pressed into the surface; each facet is as bright as it faces the light."""
    random = canvas.random
    angle = float(random.uniform(0, 2 * np.pi))
    along, across = canvas.around(*centre, angle)
    along = along * np.float32(random.uniform(0.9, 1.1))
    normals = np.arange(sides) * 2 * np.pi / sides
    heights = np.stack([along * np.float32(np.cos(n)) + across * np.float32(np.sin(n)) for n in normals])
    ordered = np.sort(heights, axis=0)
    outward, second = ordered[-1], ordered[-2]
    # Elastic recovery draws the edges in between the corners.
    apothem = np.float32(radius * np.cos(np.pi / sides))
    bow = np.float32(random.uniform(0, 0.12)) * (1 - np.clip(second / apothem, 0, 1))
    depth = 1 - outward / (apothem * (1 - bow))  # 1 at the tip, 0 at the edge
    facing = np.float32(random.uniform(0.4, 0.7)) * np.cos(normals + angle - light).astype(np.float32)
    shade = facing[np.argmax(heights, axis=0)] - np.float32(random.uniform(0, 0.25)) * depth
    ridges = np.float32(random.uniform(0.1, 0.4)) * np.exp(-(((outward - second) / np.float32(1.5)) ** 2))
    rim = np.float32(random.uniform(0.1, 0.4)) * np.exp(-((depth * apothem / np.float32(2)) ** 2))
    inside = depth > 0
    surface = canvas.brightness * np.where(inside, np.float32(0.5), np.float32(1))
    canvas.brightness[:] = surface + rim + np.where(inside, shade + ridges, np.float32(0))
    canvas.foreground[:] |= inside


def _expose(canvas: Canvas) -> npt.NDArray[np.uint8]:
    """What the detector makes of it: uneven illumination, contrast, focus, shot noise, 8 bit."""
    random = canvas.random
    along, across = canvas.around(*canvas.anywhere(), float(random.uniform(0, 2 * np.pi)))
    gradient = np.float32(random.uniform(0, 0.3)) * along / np.float32(canvas.size)
    vignette = np.float32(random.uniform(0, 0.15)) * (along**2 + across**2) / np.float32(canvas.size**2)
    level, contrast = random.uniform(80, 160), random.uniform(60, 110)
    electrons = np.clip(level + contrast * (canvas.brightness + gradient - vignette), 2, 255)
    noise = random.standard_normal(electrons.shape, dtype=np.float32) * np.sqrt(electrons)
    seen = electrons + np.float32(random.uniform(0.3, 0.9)) * noise
    return np.asarray(np.clip(seen, 0, 255), dtype=np.uint8)
