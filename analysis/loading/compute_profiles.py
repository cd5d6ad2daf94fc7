"""How long a worker computes in each part of a step: files that runs on 1 worker wrote beside records."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from analysis.text import first_of
from unet_scaling.study.compute_profile import COMPUTE_NAME, ProfileFile, read_compute_profile
from unet_scaling.study.errors import UserError
from unet_scaling.study.record_lines import Header

_MOST_NAMED = 3


def read_compute_profiles(
    study: Path, headers: Mapping[str, Header]
) -> tuple[dict[str, ProfileFile], list[str]]:
    """Return the profile of each of these runs that has one, and why others cannot be read.

    An emulated run on 1 worker has the profile by which it waited, where that is still at its place.
    """
    profiles = {}
    problems = []
    changed: dict[Path, list[str]] = {}
    for run, path in _places(study, headers):
        try:
            profile = read_compute_profile(path)
        except UserError as error:
            problems.append(str(error).splitlines()[0])
            continue
        compute = headers[run].compute
        if compute is None or compute.sha256 == profile.sha256:
            profiles[run] = profile
        else:
            changed.setdefault(path, []).append(run)
    return profiles, [*dict.fromkeys(problems), *map(_changed, changed.items())]


def _changed(place: tuple[Path, Sequence[str]]) -> str:
    path, runs = place
    waited = first_of(runs, "run", _MOST_NAMED)
    return f"{path} was changed after {waited} waited by it: no prediction is made from it"


def _places(study: Path, headers: Mapping[str, Header]) -> Iterator[tuple[str, Path]]:
    for run, header in headers.items():
        recorded = study / header.config.run / COMPUTE_NAME
        waited_by = header.config.emulation.compute
        if recorded.exists():
            yield run, recorded
        elif waited_by is not None and header.config.workers == 1 and Path(waited_by).exists():
            yield run, Path(waited_by)
