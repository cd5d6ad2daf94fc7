"""How long a worker computes in each part of a step: files that runs on 1 worker wrote beside records."""

from collections.abc import Collection
from pathlib import Path

from analysis.loading.runs import name_of
from unet_scaling.study.compute_profile import COMPUTE_NAME, ProfileFile, read_compute_profile
from unet_scaling.study.errors import UserError


def read_compute_profiles(study: Path, runs: Collection[str]) -> tuple[dict[str, ProfileFile], list[str]]:
    """Return the profile of each of these runs that has one, and why others cannot be read."""
    profiles = {}
    problems = []
    for path in sorted(study.glob(f"*/{COMPUTE_NAME}")):
        try:
            if name_of(path.parent) in runs:
                profiles[name_of(path.parent)] = read_compute_profile(path)
        except UserError as error:
            problems.append(str(error).splitlines()[0])
    return profiles, problems
