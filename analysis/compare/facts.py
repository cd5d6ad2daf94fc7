"""What the records of two studies say of settings, software, machine and data: equal, or both values."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from analysis.compare.matching import Matching
from analysis.compare.sides import StudySide
from analysis.loading.compared_facts import (
    ATTEMPT_FACTS,
    NOT_SET,
    SETTINGS,
    TIMEOUT_VARIABLES,
    compute_profile,
    settings,
    workers_per_host,
)
from analysis.loading.options import flat_options, shown
from analysis.score import Score
from analysis.study import NAMES
from analysis.text import clean, first_of
from unet_scaling.study.record_lines import Header, WorkerFacts

_NOT_RECORDED = "not recorded"
# What a cell has room for; the rest is counted.
_MOST_VALUES = 4
# The other variables of a job name the job itself, and so differ always.
_JOB_VARIABLES = ("SLURM_CLUSTER_NAME", "SLURM_JOB_PARTITION", "SLURM_CPUS_PER_TASK")
# Pixels and network decide what one image costs; other options decide how it is computed.
_OPTIONS_OF_WORK = (
    "data.image_height", "data.image_width", "data.channels", "model.width", "model.depth",
)  # fmt: skip
FactGroup = Literal["option", "data", "software", "machine", "environment"]
OPTION: FactGroup = "option"

_Values = Mapping[str, Iterable[str | None]]


@dataclass(frozen=True)
class ComparedFact:
    """A fact of both studies: the distinct values of each, none where it is not recorded."""

    group: FactGroup
    name: str
    a: tuple[str, ...]
    b: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Return whether the studies differ in it."""
        return self.a != self.b

    @property
    def texts(self) -> tuple[str, str]:
        """Return the values of A and of B; of many, those that the other study lacks come first."""
        return _text(self.a, self.b), _text(self.b, self.a)


def _text(values: Sequence[str], other: Sequence[str]) -> str:
    ordered = sorted(values, key=lambda value: value in other)
    return first_of(ordered, "value", _MOST_VALUES) or _NOT_RECORDED


_OF_WORKERS: dict[str, Callable[[WorkerFacts], str]] = {
    "hosts": lambda worker: worker.host,
    "devices": lambda worker: worker.device,
    "cores per worker": lambda worker: str(len(worker.cores)),
    "threads per worker": lambda worker: str(worker.threads),
}
_OF_VIRTUAL_CLUSTER = ("dilation", "link rate")
# {}: what the data consist of.
_OF_DATA: dict[str, Callable[[Header], str | None]] = {
    "SHA-256 of the data's manifest": lambda header: header.manifest_sha256[:16],
    "training {}s": lambda header: f"{header.train_images:,}",
    "test {}s": lambda header: f"{header.test_images:,}",
    "gradient bytes": lambda header: f"{header.gradient_bytes:,}" if header.gradient_bytes else None,
    "seeds": lambda header: str(header.config.seed),
}


def compared_facts(a: StudySide, b: StudySide, matching: Matching) -> list[ComparedFact]:
    """Return every fact of the points that are compared; of all points where none are.

    Empty unless both studies have records: logs in the older layout say nothing of where they come from.
    """
    first = a.headers([match.a for match in matching.matches] or a.points)
    second = b.headers([match.b for match in matching.matches] or b.points)
    if not (first and second):
        return []
    found = [
        fact for group, values in _GROUPS.items() for fact in _facts_of(group, values(first), values(second))
    ]
    return [*found, *_initial_weights(first, second), *_environment(first, second)]


def unequal_samples(differing: Sequence[ComparedFact], score: Score) -> Iterator[str]:
    """Yield which options make a sample other work in one study than in the other."""
    options = [fact for fact in differing if fact.name in _OPTIONS_OF_WORK]
    if options:
        values = "; ".join("{}: A {}, B {}".format(fact.name, *fact.texts) for fact in options)
        article = "an" if score.sample == "image" else "a"
        same = f"{article} {score.sample} is not the same work in A and B"
        yield f"{same}, so a ratio of {score.samples} / s says little: {values}"


def _facts_of(group: FactGroup, first: _Values, second: _Values) -> Iterator[ComparedFact]:
    for name in dict.fromkeys((*first, *second)):
        values = [_distinct(each.get(name, ())) for each in (first, second)]
        yield ComparedFact(group, clean(name), *values)


def _distinct(values: Iterable[str | None]) -> tuple[str, ...]:
    """Return every value once, numbers by size: the order of runs says nothing."""
    known = {clean(value) for value in values if value is not None}
    return tuple(sorted(known, key=lambda value: (len(value), value)))


def _options(headers: Sequence[Header]) -> _Values:
    values: dict[str, list[str | None]] = {}
    for header in headers:
        for key, value in flat_options(header.config).items():
            values.setdefault(key, []).append(shown(value))
    return values


def _software(headers: Sequence[Header]) -> _Values:
    packages = sorted({package for header in headers for package in header.versions})
    values: dict[str, list[str | None]] = {
        "commit": [header.commit for header in headers],
        "uncommitted changes": [None if header.dirty is None else str(header.dirty) for header in headers],
        "record format": [str(header.format) for header in headers],
    }
    for package in packages:
        values[f"version of {package}"] = [header.versions.get(package) for header in headers]
    return values


def _machine(headers: Sequence[Header]) -> _Values:
    workers = [worker for header in headers for facts in header.attempts() for worker in facts.workers]
    of_workers = {name: [value(worker) for worker in workers] for name, value in _OF_WORKERS.items()}
    nodes = {"workers on each host": [workers_per_host(header) for header in headers]}
    slowed = {name: [ATTEMPT_FACTS[name](header) for header in headers] for name in _OF_VIRTUAL_CLUSTER}
    if any(header.is_emulated for header in headers):
        slowed["compute profile"] = [compute_profile(header) for header in headers]
    of_jobs = {name: [header.job.get(name, "no Slurm") for header in headers] for name in _JOB_VARIABLES}
    return {**of_workers, **nodes, **slowed, **_transports(headers), **of_jobs}


def _transports(headers: Sequence[Header]) -> _Values:
    values: dict[str, list[str | None]] = {}
    for framework, name in NAMES.items():
        own = [header.transport for header in headers if header.config.framework == framework]
        for key in dict.fromkeys(key for transport in own for key in transport):
            values[f"{name}: {key}"] = [transport.get(key) for transport in own]
    return values


def _data(headers: Sequence[Header]) -> _Values:
    sample = headers[0].config.sample
    return {name.format(sample): [value(header) for header in headers] for name, value in _OF_DATA.items()}


def _initial_weights(first: Sequence[Header], second: Sequence[Header]) -> Iterator[ComparedFact]:
    """Yield the checksums of the seeds that both studies have."""
    common = {header.config.seed for header in first} & {header.config.seed for header in second}
    if common:
        values = [
            _distinct(
                f"{header.initial_weights_sha256[:8]} (seed {header.config.seed})"
                for header in headers
                if header.config.seed in common
            )
            for headers in (first, second)
        ]
        yield ComparedFact("data", "initial weights", *values)


def _environment(first: Sequence[Header], second: Sequence[Header]) -> Iterator[ComparedFact]:
    """Yield the variables and the allocator of all workers where both studies recorded them."""
    for kind in SETTINGS:
        both = [_recorded(kind, headers) for headers in (first, second)]
        if all(both):
            yield from _variables(kind, both)
        else:
            found = [("recorded",) if recorded else () for recorded in both]
            yield ComparedFact("environment", f"{kind} of the workers", *found)


def _variables(kind: str, both: Sequence[Sequence[dict[str, str]]]) -> Iterator[ComparedFact]:
    names = {name for recorded in both for values in recorded for name in values} - TIMEOUT_VARIABLES
    for name in sorted(names):
        values = [_distinct(each.get(name, NOT_SET) for each in recorded) for recorded in both]
        yield ComparedFact("environment", f"{kind} {clean(name)}", *values)


def _recorded(kind: str, headers: Sequence[Header]) -> list[dict[str, str]]:
    return [found for header in headers if (found := settings(header, kind)) is not None]


_GROUPS: Mapping[FactGroup, Callable[[Sequence[Header]], _Values]] = {
    OPTION: _options,
    "data": _data,
    "software": _software,
    "machine": _machine,
}
