"""The foreground rule: which values of a mask are foreground, which are background, which are a mistake."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from unet_scaling.study.errors import UserError

ALLOWED = "'nonzero', values such as '255' or '1,2', or a threshold such as '>127'"
# Of a 16-bit mask.
HIGHEST_VALUE = 65535


# More values than a mask of classes has: these are objects or levels of grey.
MOST_CLASSES = 8
MIDDLE_OF_GREY_8_BIT = 127
# Cells fill 0.5 to 1 of the rectangle around them; a level of grey, scattered or in rings, less than 0.15.
FEWEST_PIXELS_OF_OBJECT = 4
LEAST_FILLED_SHARE = 0.2


@dataclass(frozen=True)
class Foreground:
    """A rule for mask values 0..65535. `text` is its canonical spelling.

    nonzero   0 is background; one other value, the same in the whole data set, is foreground
    1,2       these values are foreground, 0 is background, any other value is a mistake
    >127      values above are foreground, all others background
    """

    text: str
    values: frozenset[int] = frozenset()
    threshold: int | None = None

    def mask(self, pixels: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.uint8]:
        """Return 1 where a pixel is foreground, else 0; the shape is kept."""
        if self.threshold is not None:
            return np.asarray(pixels > self.threshold, dtype=np.uint8)
        if not self.values:
            return np.asarray(pixels != 0, dtype=np.uint8)
        inside: npt.NDArray[np.bool_] = np.isin(pixels, list(self.values))
        return inside.astype(np.uint8)

    def unexpected(self, values: set[int]) -> list[int]:
        """Return the values of a data set that this rule does not allow, sorted."""
        if self.threshold is not None:
            return []
        if self.values:
            return sorted(values - self.values - {0})
        others = sorted(values - {0})
        return others if len(others) > 1 else []


def parse_foreground(rule: str) -> Foreground:
    """Read a rule; raises UserError (2) naming the key and the allowed forms."""
    foreground = _parse(rule.replace(" ", ""))
    if foreground is None:
        raise UserError(
            f"data.foreground: found {rule!r}; allowed are {ALLOWED}"
            f" (values 1..{HIGHEST_VALUE}; 0 is background)"
        )
    return foreground


def _parse(text: str) -> Foreground | None:
    if text == "nonzero":
        return Foreground(text)
    if re.fullmatch(r">\d{1,5}", text, re.ASCII):
        threshold = int(text[1:])
        return Foreground(f">{threshold}", threshold=threshold) if threshold < HIGHEST_VALUE else None
    if re.fullmatch(r"\d{1,5}(,\d{1,5})*", text, re.ASCII):
        values = sorted({int(value) for value in text.split(",")})
        if values[0] > 0 and values[-1] <= HIGHEST_VALUE:
            return Foreground(",".join(map(str, values)), frozenset(values))
    return None


def suggest_foreground(values: Iterable[int], filled_shares: Sequence[float]) -> tuple[str, str]:
    """Return a rule for masks of these values, and what the values are.

    The rule takes all that is not 0, or every class, or all objects, or the brighter half.
    """
    classes = sorted(set(values) - {0})
    if len(classes) <= 1:
        return "nonzero", "one value beside 0"
    if len(classes) <= MOST_CLASSES:
        return ",".join(map(str, classes)), f"{len(classes)} classes"
    if np.median(filled_shares) >= LEAST_FILLED_SHARE:
        return ">0", f"the numbers of objects, up to {classes[-1]}"
    middle = MIDDLE_OF_GREY_8_BIT if classes[-1] <= 2 * MIDDLE_OF_GREY_8_BIT + 1 else classes[-1] // 2
    return f">{middle}", "levels of grey"


def filled_shares(mask: npt.NDArray[np.unsignedinteger]) -> list[float]:
    """Return for each value but 0 how much of the rectangle around its pixels they fill; 0 for few pixels."""
    # Imported here, since it takes longer than most rules to read.
    from scipy import ndimage  # type: ignore[import-untyped]

    inside = [mask[box] == value for value, box in enumerate(ndimage.find_objects(mask), 1) if box]
    return [float(pixels.mean()) * (pixels.sum() >= FEWEST_PIXELS_OF_OBJECT) for pixels in inside]
