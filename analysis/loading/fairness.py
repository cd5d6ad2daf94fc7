"""Which runs may be compared: the facts that must agree, and the refusal of runs that differ."""

import json
import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from analysis.loading.options import flat_options, shared_options
from unet_scaling.record_lines import Header, WorkerFacts

Alike = Callable[[Header], Hashable]
LONGEST_SHOWN = 60


def any_run(header: Header) -> Hashable:
    """Every run: the format is 1 in all."""
    return header.format


def same_options(header: Header) -> Hashable:
    """Runs of equal data, model and training options."""
    return tuple(shared_options(header.point).items())


def same_seed(header: Header) -> Hashable:
    """Runs that must start from the same weights."""
    return same_options(header), header.point.seed


def same_repeat(header: Header) -> Hashable:
    """Runs that are compared in pairs."""
    return same_options(header), header.point.repeat


def same_workers(header: Header) -> Hashable:
    """Runs that must be laid out in the same way."""
    return header.point.workers


def same_cores(header: Header) -> Hashable:
    """Runs whose workers were asked to use equally many of their cores."""
    return header.point.training.cores_per_worker


def same_framework(header: Header) -> Hashable:
    """Runs of one framework with the same options and knobs."""
    return header.point.framework, tuple(flat_options(header.point).items())


@dataclass(frozen=True)
class Fact:
    """Something that must be equal in all runs that `alike` gives the same key; None is not compared."""

    name: str
    value: Callable[[Header], str | None]
    alike: Alike


FACTS = (
    Fact("manifest_sha256", lambda header: header.manifest_sha256[:16], same_options),
    Fact("train_images", lambda header: str(header.train_images), same_options),
    Fact("test_images", lambda header: str(header.test_images), same_options),
    Fact("seed", lambda header: str(header.point.seed), same_repeat),
    Fact("initial_weights_sha256", lambda header: header.initial_weights_sha256[:16], same_seed),
    Fact("commit", lambda header: str(header.commit), any_run),
    Fact("uncommitted changes", lambda header: str(header.dirty), any_run),
    Fact("device", lambda header: _each({each.device for each in header.workers}), any_run),
    Fact("cores per worker", lambda header: _each({len(each.cores) for each in header.workers}), same_cores),
    Fact("threads per worker", lambda header: _each({each.threads for each in header.workers}), same_cores),
    Fact("workers on each host", lambda header: _layout(header), same_workers),
    Fact("transport", lambda header: json.dumps(header.transport, sort_keys=True), same_framework),
    Fact("versions recorded", lambda header: _each(set(header.versions)), same_framework),
)


def refusals(headers: Mapping[str, Header]) -> dict[str, str]:
    """The runs that may not be compared, {run: reason}; each reason names the fact and both values.

    Where runs differ, the value that most of them have stands and the others are refused; among
    equally many, that of the first run stands. Host names may differ, since Slurm chooses hosts for
    each job, but devices, cores, threads and the number of workers on each host may not. Versions
    are compared where both runs name them, and within a framework all of them.
    """
    reasons = {run: reason for run, header in headers.items() if (reason := sharing(header))}
    sound = {run: header for run, header in headers.items() if run not in reasons}
    differing: dict[str, list[str]] = {}
    facts = (*FACTS, *_version_facts(sound))
    # Several facts have to agree among the same runs, and in a large study these keys take their time.
    keys = {alike: list(map(alike, sound.values())) for alike in {fact.alike for fact in facts}}
    for fact in facts:
        for run, reason in _differing(fact, sound, keys[fact.alike]):
            differing.setdefault(run, []).append(reason)
    return reasons | {run: "; ".join(found) for run, found in differing.items()}


def sharing(header: Header) -> str:
    """Which two workers of a run share a device, or on CPU a core of one host; empty where none do."""
    owner: dict[tuple[str, str], int] = {}
    for number, worker in enumerate(header.workers):
        for resource in _owned(worker):
            first = owner.setdefault(resource, number)
            if first != number:
                return f"workers {first} and {number} share {' '.join(resource)}"
    return ""


def is_sharing(reason: str) -> bool:
    """Whether a run was refused because two of its workers share a device or core."""
    return re.match(r"workers \d+ and \d+ share ", reason) is not None


def _owned(worker: WorkerFacts) -> list[tuple[str, str]]:
    if worker.device_uuid:
        return [("device", worker.device_uuid)]
    return [(f"core {core} of", f"host {worker.host}") for core in worker.cores]


def remarks(headers: Sequence[Header]) -> tuple[str, ...]:
    """What is no reason to refuse a comparison, but should be known to who reads it."""
    found = []
    if any(header.dirty for header in headers):
        found.append("the code had uncommitted changes: its commit does not say all that ran")
    if _hosts_differ(headers):
        found.append("runs of equal worker count used different hosts: a difference may be that of the hosts")
    if any(share_cores(header) for header in headers):
        found.append("GPU workers of a run could use the same cores; bind them to separate cores")
    return tuple(found)


def _hosts_differ(headers: Sequence[Header]) -> bool:
    used = {(header.point.workers, frozenset(each.host for each in header.workers)) for header in headers}
    return len(used) > len({workers for workers, _ in used})


def share_cores(header: Header) -> bool:
    """Whether two workers of a run may run on the same core."""
    cores = [(worker.host, core) for worker in header.workers for core in worker.cores]
    return len(set(cores)) < len(cores)


def _version_facts(headers: Mapping[str, Header]) -> list[Fact]:
    def of(name: str) -> Callable[[Header], str | None]:
        return lambda header: header.versions.get(name)

    names = dict.fromkeys(name for header in headers.values() for name in header.versions)
    return [Fact(f"version of {name}", of(name), any_run) for name in names]


def _differing(fact: Fact, headers: Mapping[str, Header], keys: Sequence[Hashable]) -> list[tuple[str, str]]:
    groups: dict[Hashable, dict[str, str]] = {}
    for (run, header), key in zip(headers.items(), keys, strict=True):
        value = fact.value(header)
        if value is not None:
            groups.setdefault(key, {})[run] = value
    return [outlier for values in groups.values() for outlier in _outliers(fact.name, values)]


def _outliers(fact: str, values: Mapping[str, str]) -> list[tuple[str, str]]:
    usual, times = Counter(values.values()).most_common(1)[0]
    example = next(run for run, value in values.items() if value == usual)
    others = f" and {times - 1} more" if times > 1 else ""
    return [
        (run, f"{fact} is {_short(value)}, but {_short(usual)} in {example}{others}")
        for run, value in values.items()
        if value != usual
    ]


def _layout(header: Header) -> str:
    per_host = Counter(worker.host for worker in header.workers)
    return ", ".join(str(workers) for workers in sorted(per_host.values(), reverse=True))


def _each(values: set[str] | set[int]) -> str:
    return ", ".join(sorted(map(str, values)))


def _short(value: str) -> str:
    return value if len(value) <= LONGEST_SHOWN else value[:LONGEST_SHOWN] + "..."
