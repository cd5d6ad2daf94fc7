"""Whether runs of equal weights made equal maps, to the byte, and which runs cannot be compared."""

from collections.abc import Hashable, Iterator, Mapping, Sequence

import pandas as pd

from analysis.study import Explained, Study
from analysis.text import count, first_of, listed
from unet_scaling.study.record_lines import Header

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
    return study.explained[run].manifest.weights_sha256, options, images, _rounding(header)


def _rounding(header: Header) -> Hashable:
    """Return what decides how a forward pass rounds; versions and processors are equal in runs compared."""
    training = header.config.training
    workers = frozenset((worker.device, worker.threads) for worker in header.workers)
    # On CPUs, maps are always made with channels last.
    has_gpu = any(worker.device != "cpu" for worker in header.workers)
    return has_gpu and training.channels_last, training.precision, workers


def _compared(study: Study, groups: Sequence[Sequence[str]]) -> Iterator[str]:
    if not groups:
        yield "no two runs have the same weights and settings: no maps are compared"
        return
    largest = [_largest_class(study.explained, runs) for runs in groups]
    same = sum(len(runs) for runs in largest if len(runs) > 1)
    yield (
        f"equal weights gave the same maps, to the byte, in {same} of {count(sum(map(len, groups)), 'run')} "
        f"({count(len(groups), 'set')} of weights)"
    )
    differing = [
        _difference(study.explained, alike[0], run)
        for alike, runs in zip(largest, groups, strict=True)
        for run in runs
        if run not in alike
    ]
    if differing:
        yield first_of(differing, "run", _MOST_NAMED, "; ")


def _largest_class(explained: Mapping[str, Explained], runs: Sequence[str]) -> Sequence[str]:
    """Return the most runs that made equal maps; of equally many, those with the run that comes first."""
    classes: dict[Hashable, list[str]] = {}
    for run in runs:
        classes.setdefault(tuple(sorted(_digests(explained[run]).items())), []).append(run)
    return max(classes.values(), key=len)


def _difference(explained: Mapping[str, Explained], first: str, run: str) -> str:
    """Return on how many images a run made other maps than the first."""
    expected = _digests(explained[first])
    found = _digests(explained[run])
    others = [image for image in {**expected, **found} if expected.get(image) != found.get(image)]
    images = f"{len(others)} of {count(len(found), 'image')}"
    return f"{run} made other maps than {first} of the same weights on {images}, the first {others[0]!r}"


def _digests(explained: Explained) -> Mapping[str, str]:
    """Return the digest of each image's map, empty where it has none."""
    return {image.image: image.map.sha256 if image.map else "" for image in explained.manifest.images}


def _other_weights(study: Study) -> Iterator[str]:
    """Yield which frameworks trained other weights than which from the same seed on as many workers."""
    runs = study.runs[study.runs["run"].isin(list(study.explained))]
    apart: dict[tuple[str, ...], int] = {}
    for _, same in runs.groupby(["options", "workers", "repeat"], sort=False):
        classes = _classes_of_weights(study, same)
        if same["framework"].nunique() > 1 and len(classes) > 1:
            apart[classes] = apart.get(classes, 0) + 1
    for (first, *others), times in apart.items():
        yield (
            f"from {count(times, 'seed')}, {first} trained other weights than {', and than '.join(others)}: "
            "maps of other weights are not compared"
        )


def _classes_of_weights(study: Study, runs: pd.DataFrame) -> tuple[str, ...]:
    """Return which frameworks have equal weights, each class as "a and b"; with their knobs, where set."""
    classes: dict[str, dict[str, None]] = {}
    for run, framework, knobs in zip(runs["run"], runs["framework"], runs["knobs"], strict=True):
        name = study.names[framework] + (f" ({knobs})" if knobs else "")
        classes.setdefault(study.explained[run].manifest.weights_sha256, {})[name] = None
    return tuple(map(listed, classes.values()))
