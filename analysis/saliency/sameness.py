"""Whether runs of equal weights made equal maps, to the byte, and which runs cannot be compared."""

from collections.abc import Hashable, Iterator, Mapping, Sequence

import pandas as pd

from analysis.study import Explained, Study
from analysis.text import count, first_of, listed

# What no map depends on: how the work was shared out, and what is done with the maps afterwards.
NOT_OF_A_MAP = {"split", "curve_steps", "untrained_check"}
# Runs that differ, in one sentence.
_MOST_NAMED = 3


def sameness(study: Study) -> list[str]:
    """Return in how many runs equal weights gave the same maps, and what differs or is not compared."""
    groups = [runs for runs in _equal_weights(study).values() if len(runs) > 1]
    return [*_compared(study, groups), *_other_weights(study)]


def _equal_weights(study: Study) -> Mapping[Hashable, Sequence[str]]:
    """Return the runs whose maps should be the same: of equal weights, images and options."""
    groups: dict[Hashable, list[str]] = {}
    for run in study.runs["run"]:
        if run in study.explained:
            groups.setdefault(_what_decides(study, run), []).append(run)
    return groups


def _what_decides(study: Study, run: str) -> Hashable:
    header = study.headers[run]
    options = header.config.saliency.model_dump_json(exclude=NOT_OF_A_MAP)
    images = (
        header.config.data.model_dump_json(),
        header.manifest_sha256,
        header.config.model.model_dump_json(),
    )
    return study.explained[run].manifest.weights_sha256, options, images


def _compared(study: Study, groups: Sequence[Sequence[str]]) -> Iterator[str]:
    if not groups:
        yield "no two runs have the same weights: no maps are compared"
        return
    differing = [
        difference
        for first, *others in groups
        for run in others
        if (difference := _difference(study.explained, first, run))
    ]
    runs = sum(map(len, groups))
    yield (
        f"equal weights gave the same maps, to the byte, in {runs - len(differing)} of {count(runs, 'run')} "
        f"({count(len(groups), 'set')} of weights)"
    )
    if differing:
        yield first_of(differing, "run", _MOST_NAMED, "; ")


def _difference(explained: Mapping[str, Explained], first: str, run: str) -> str:
    """Return on how many images two runs made other maps; empty where on none."""
    maps = {name: _digests(explained[name]) for name in (first, run)}
    others = [image for image, digest in maps[run].items() if maps[first].get(image) != digest]
    if not others:
        return ""
    images = f"{len(others)} of {count(len(maps[run]), 'image')}"
    return f"{run} made other maps than {first} of the same weights on {images}, the first {others[0]!r}"


def _digests(explained: Explained) -> Mapping[str, str | None]:
    """Return the digest of each image's map; None where it has none."""
    return {image.image: image.map.sha256 if image.map else None for image in explained.manifest.images}


def _other_weights(study: Study) -> Iterator[str]:
    """Yield which frameworks trained other weights from the same seed on as many workers."""
    runs = study.runs[study.runs["run"].isin(list(study.explained))]
    apart: dict[tuple[str, ...], int] = {}
    for _, same in runs.groupby(["options", "workers", "repeat"], sort=False):
        names = tuple(study.names[framework] for framework in same["framework"])
        if _are_apart(study, same):
            apart[names] = apart.get(names, 0) + 1
    for names, times in apart.items():
        frameworks = listed(dict.fromkeys(names))
        yield f"{frameworks} trained other weights from {count(times, 'seed')}: their maps are not compared"


def _are_apart(study: Study, runs: pd.DataFrame) -> bool:
    """Return whether runs of several frameworks have different weights."""
    weights = {study.explained[run].manifest.weights_sha256 for run in runs["run"]}
    return runs["framework"].nunique() > 1 and len(weights) > 1
