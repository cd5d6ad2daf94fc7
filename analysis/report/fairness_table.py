"""How fair a comparison is: one row per thing that should be equal, with a mark and the fact in words.

Runs that differ in what must agree have been refused before (analysis/fairness.py); this table says of
the runs that are used what was found equal, and marks also what no refusal can settle: hosts, order, load.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass

import pandas as pd

from analysis.findings.verdict import NAMES
from analysis.loading.fairness import same_seed, share_cores
from analysis.loading.options import shared_options
from analysis.report.words import clean, count, listed, repeats_text
from analysis.study import POINT, Study
from unet_scaling.options import Training
from unet_scaling.record_lines import Header

YES, NO, NOT_KNOWN = "yes", "no", "not known"
WITHOUT_RECORD = "logs in the older layout do not say"

Headers = Mapping[str, Header]


@dataclass(frozen=True)
class Check:
    """One row: what should be equal, whether it is ("yes", "no", "not known"), and the fact."""

    check: str
    mark: str
    fact: str


def fairness_table(study: Study) -> pd.DataFrame:
    """How fair the comparison is: columns check, mark ("yes", "no" or "not known") and fact.

    Pure function of the headers and of the runs' table. Nothing is known of logs without headers but
    their number of repeats.
    """
    makers: dict[str, Callable[[Headers], Check]] = {
        "same initial weights": _weights,
        "same batches": _batches,
        "same images evaluated": _evaluated,
        "same nodes": _nodes,
        "same devices, cores and threads": _cores,
        "same way of computing": _computing,
        "workers share nothing": _shared,
        "same software": _software,
    }
    headers = study.headers
    checks = [
        make(headers) if headers else Check(name, NOT_KNOWN, WITHOUT_RECORD) for name, make in makers.items()
    ]
    checks += [_work(study.runs), _order(study.runs), _repeats(study.runs)]
    return pd.DataFrame([asdict(check) for check in checks], columns=["check", "mark", "fact"])


def _weights(headers: Headers) -> Check:
    found = _values(headers, same_seed, lambda header: header.initial_weights_sha256)
    fact = f"{count(len(found), 'seed')}, each with one checksum of the initial weights in all its runs"
    return _equal("same initial weights", found, fact, "seeds started from several initial weights")


def _batches(headers: Headers) -> Check:
    def drawn(header: Header) -> Hashable:
        return header.point.seed, header.manifest_sha256, header.train_images

    def pair(header: Header) -> Hashable:
        return _options(header), header.point.workers, header.point.repeat

    found = _values(headers, pair, drawn)
    sizes = sorted({header.point.training.batch_per_worker for header in headers.values()})
    images = sorted({header.train_images for header in headers.values()})
    fact = (
        f"runs of one repeat have the same seed, batch size ({_or(sizes)} images per worker) and training "
        f"images ({_or(images)}, same checksums)"
    )
    return _equal("same batches", found, fact, "repeats differ in seed or training images")


def _evaluated(headers: Headers) -> Check:
    found = _values(headers, _options, lambda header: (header.test_images, header.manifest_sha256))
    images = sorted({header.test_images for header in headers.values()})
    fact = f"every run evaluated the whole test set once: {_or(images)} images at every worker count"
    return _equal("same images evaluated", found, fact, "sets of options have several test sets")


def _nodes(headers: Headers) -> Check:
    found = _values(
        headers,
        lambda header: header.point.workers,
        lambda header: frozenset(worker.host for worker in header.workers),
    )
    differing = sorted(workers for workers, hosts in found.items() if len(hosts) > 1)  # type: ignore[type-var]
    hosts = sorted({host for sets in found.values() for group in sets for host in group})  # type: ignore[attr-defined]
    if differing:
        fact = f"runs on {_or(differing)} workers used several sets of hosts; a difference may be theirs"
        return Check("same nodes", NO, fact)
    return Check(
        "same nodes", YES, f"runs of equal worker count used the same hosts: {_some(hosts, count_of='host')}"
    )


def _cores(headers: Headers) -> Check:
    facts = {
        (worker.device, len(worker.cores), worker.threads)
        for header in headers.values()
        for worker in header.workers
    }
    told = [
        f"{clean(device)}, {count(cores, 'core')} and {count(threads, 'thread')} per worker"
        for device, cores, threads in sorted(facts)
    ]
    mark = YES if len(facts) == 1 else NO
    return Check("same devices, cores and threads", mark, _some(told, count_of="kind of worker"))


def _computing(headers: Headers) -> Check:
    """The options are equal within a set of them; the allocator is set by whoever launched the workers."""
    name = "same way of computing"
    workers = [worker for header in headers.values() for worker in header.workers]
    settings = {tuple(sorted((worker.allocator or {}).items())) for worker in workers}
    if len(settings) > 1:
        return Check(name, NO, f"workers had {len(settings)} settings of their memory allocator")
    used = sorted({_way_of_computing(header.point.training) for header in headers.values()})
    if any(worker.allocator is None for worker in workers):
        return Check(name, NOT_KNOWN, f"{_or(used)}; how memory was allocated is not recorded")
    return Check(name, YES, f"both frameworks: {_or(used)}; one setting of the memory allocator")


def _way_of_computing(training: Training) -> str:
    compiled = "compiled" if training.compile else "not compiled"
    compression = training.gradient_compression
    gradients = "gradients as they are" if compression == "none" else f"gradients in {compression}"
    return f"{training.precision}, {compiled}, {gradients}"


def _shared(headers: Headers) -> Check:
    sharing = [run for run, header in headers.items() if share_cores(header)]
    if sharing:
        fact = f"devices are owned, but GPU workers of {count(len(sharing), 'run')} could use the same cores"
        return Check("workers share nothing", NO, fact)
    return Check("workers share nothing", YES, "every worker had a device, or cores, of its own")


def _software(headers: Headers) -> Check:
    name = "same software"
    commits = {(header.commit, header.dirty) for header in headers.values()}
    versions: dict[str, set[str]] = {}
    for recorded in {tuple(header.versions.items()) for header in headers.values()}:
        for package, version in recorded:
            versions.setdefault(package, set()).add(version)
    differing = sorted(clean(package) for package, found in versions.items() if len(found) > 1)
    if len(commits) > 1 or differing:
        return Check(
            name, NO, f"runs differ in {listed([*(['commit'] if len(commits) > 1 else []), *differing])}"
        )
    ((commit, dirty),) = commits
    if commit is None:
        return Check(
            name, NOT_KNOWN, "versions agree, but the code was no git checkout: no commit is recorded"
        )
    if dirty is not False:
        return Check(
            name, NOT_KNOWN, f"versions and commit {commit[:10]} agree, but the code had changes on top"
        )
    return Check(
        name, YES, f"one commit ({commit[:10]}), equal versions of {count(len(versions), 'package')}"
    )


def _work(runs: pd.DataFrame) -> Check:
    name = "same work per epoch"
    if runs["images_per_epoch"].isna().any():
        return Check(name, NOT_KNOWN, WITHOUT_RECORD)
    paired = runs.groupby(["options", "workers"], sort=False)["images_per_epoch"].agg(["min", "max"])
    unequal = paired[paired["min"] < paired["max"]]
    if len(unequal):
        share = 100 * (1 - unequal["min"] / unequal["max"]).max()
        fact = f"at equal worker counts the images of an epoch differ by up to {share:.1f} %"
        return Check(name, NO, f"{fact}; throughput counts images, so it stays comparable")
    return Check(name, YES, "at equal worker counts every epoch had the same number of images")


def _order(runs: pd.DataFrame) -> Check:
    """In blocks of repeats, no framework's runs of a point can all start before the other's."""
    name = "order interleaved in time"
    started = pd.to_datetime(runs["started_utc"], errors="coerce", utc=True, format="ISO8601")
    spans = (
        runs.assign(started=started)
        .groupby(["options", "workers", "framework"], sort=False)["started"]
        .agg(["min", "max", "nunique"])
        .unstack("framework")
    )
    spans = spans[(spans["nunique"].to_numpy() >= 2).sum(axis=1) == len(NAMES)]
    if spans.empty:
        return Check(name, NOT_KNOWN, "no point of both frameworks has two runs with different start times")
    first, second = NAMES
    apart = (spans["max"][first] < spans["min"][second]) | (spans["max"][second] < spans["min"][first])
    if apart.any():
        fact = (
            f"at {int(apart.sum())} of {count(len(spans), 'point')} one framework ran wholly before the other"
        )
        return Check(name, NO, f"{fact}: a drift of the machine would look like a difference")
    return Check(name, YES, f"at {count(len(spans), 'point')} the runs of both frameworks alternate")


def _repeats(runs: pd.DataFrame) -> Check:
    sizes = runs.groupby(POINT, sort=False).size()
    fact = f"{repeats_text(sizes)} per point"
    return Check("equal repeats", YES if sizes.nunique() == 1 else NO, fact)


def _values(
    headers: Headers, alike: Callable[[Header], Hashable], value: Callable[[Header], Hashable]
) -> dict[Hashable, set[Hashable]]:
    """The values found in each group of runs that should agree."""
    found: dict[Hashable, set[Hashable]] = {}
    for header in headers.values():
        found.setdefault(alike(header), set()).add(value(header))
    return found


def _options(header: Header) -> Hashable:
    return tuple(shared_options(header.point).items())


def _equal(name: str, found: Mapping[Hashable, set[Hashable]], fact: str, otherwise: str) -> Check:
    differing = sum(len(values) > 1 for values in found.values())
    return (
        Check(name, NO, f"{differing} of {len(found)} {otherwise}") if differing else Check(name, YES, fact)
    )


def _or(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def _some(texts: list[str], count_of: str, shown: int = 6) -> str:
    more = len(texts) - shown
    return _or(map(clean, texts[:shown])) + (f" and {count(more, f'more {count_of}')}" if more > 0 else "")
