"""Where a difference of IoU would have no meaning: the fact that forbids it, with both values."""

from collections.abc import Iterator

from analysis.compare.matching import PointMatch
from analysis.compare.sides import StudyPoint, StudySide
from analysis.findings.headers import COUNTS

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
    first = _test_set(a, match.a)
    second = _test_set(b, match.b)
    for name, value in first.items():
        if value != second[name]:
            yield f"{name}: A {value}, B {second[name]}"


def _test_set(side: StudySide, point: StudyPoint) -> dict[str, str]:
    """Return what an IoU is of, by name; a study has refused runs that differ in it."""
    header, *_ = side.headers([point])
    return {
        "data manifest": header.manifest_sha256[:16],
        f"test {side.study.score.samples}": f"{header.test_images:,}",
        **{key: point.settings[key] for key in TEST_SET_OPTIONS if key in point.settings},
        "evaluated pixels": _pixels(side, point),
    }


def _pixels(side: StudySide, point: StudyPoint) -> str:
    evaluations = side.study.evaluations
    own = evaluations.loc[evaluations["run"].isin(point.runs), COUNTS]
    return ", ".join(f"{pixels:,.0f}" for pixels in sorted({*own.astype(float).sum(axis="columns")}))
