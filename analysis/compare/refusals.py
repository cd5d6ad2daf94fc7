"""Where a difference of IoU would have no meaning: the fact that forbids it, with both values."""

from collections.abc import Iterator, Sequence

from analysis.compare.matching import PointMatch
from analysis.compare.sides import StudyPoint, StudySide
from analysis.findings.headers import COUNTS
from unet_scaling.study.record_lines import Header

# They decide which pixels of which images an IoU is of.
TEST_SET_OPTIONS = (
    "data.test_share", "data.split_seed", "data.image_height", "data.image_width", "data.foreground",
)  # fmt: skip


def why_no_difference(a: StudySide, b: StudySide, match: PointMatch) -> str:
    """Return why the IoUs of a point of each study may not be compared; empty where they may."""
    if not a.study.provenance_known:
        return "the test images of logs in the older layout are unknown"
    return "; ".join(_other_test_set(a, b, match))


def _other_test_set(a: StudySide, b: StudySide, match: PointMatch) -> Iterator[str]:
    first = _test_sets(a.headers([match.a]))
    second = _test_sets(b.headers([match.b]))
    for name, value, other in zip(("data manifest", "test images"), first, second, strict=True):
        if value != other:
            yield f"{name}: A {value}, B {other}"
    for key in TEST_SET_OPTIONS:
        if match.a.settings[key] != match.b.settings[key]:
            yield f"{key}: A {match.a.settings[key]}, B {match.b.settings[key]}"
    pixels = [_pixels(side, point) for side, point in ((a, match.a), (b, match.b))]
    if first == second and len({*pixels}) > 1:
        yield f"evaluated pixels: A {pixels[0]}, B {pixels[1]}"


def _test_sets(headers: Sequence[Header]) -> tuple[str, str]:
    """Return the manifest and the number of test images: a study has refused runs that differ in them."""
    return headers[0].manifest_sha256[:16], f"{headers[0].test_images:,}"


def _pixels(side: StudySide, point: StudyPoint) -> str:
    evaluations = side.study.evaluations
    own = evaluations.loc[evaluations["run"].isin(point.runs), COUNTS]
    return ", ".join(f"{pixels:,.0f}" for pixels in sorted({*own.astype(float).sum(axis="columns")}))
