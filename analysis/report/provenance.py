"""Name where the runs of a report come from: code, software, machine, data, times."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from analysis.study import Study
from analysis.text import clean, count
from unet_scaling.study.record_lines import Header, Provenance, ScriptHeader, WorkerFacts

# A part of a record: a header, a script's, or a worker of one.
_Told = TypeVar("_Told")
# More hosts or jobs than this fill the page without saying more.
MOST_SHOWN = 12
# Of a time in ISO 8601: 2025-01-31.
_DATE_LETTERS = 10
_OF_WORKERS: dict[str, Callable[[WorkerFacts], str | None]] = {
    "hosts": lambda worker: worker.host,
    "devices": lambda worker: worker.device,
    "cores per worker": lambda worker: str(len(worker.cores)),
    "threads per worker": lambda worker: str(worker.threads),
}
# {}: what the data consist of.
_OF_HEADERS: dict[str, Callable[[Header], str | None]] = {
    "training {}": lambda header: f"{header.train_images:,}",
    "test {}": lambda header: f"{header.test_images:,}",
    "SHA-256 of the data's manifest": lambda header: header.manifest_sha256,
    "seeds": lambda header: str(header.config.seed),
}
_OF_SCRIPTS: dict[str, Callable[[ScriptHeader], str | None]] = {
    "scripts": lambda header: header.script or "typed",
    "SHA-256 of the scripts": lambda header: header.script_sha256,
}


@dataclass(frozen=True)
class Origin:
    """One fact of where the runs come from, with every value that the records have."""

    name: str
    values: tuple[str, ...]


def origins(study: Study) -> list[Origin]:
    """Return what the headers of the used runs say; empty for logs that carry none."""
    found = _provenance(study)
    if not found:
        return []
    workers = [worker for each in found for worker in each.workers]
    return [
        Origin("commit", _distinct(map(_commit, found))),
        *_transports(study),
        *_versions(found),
        *_each(_OF_WORKERS, workers),
        *_each(_of_headers(study), study.headers.values()),
        *_each(_OF_SCRIPTS, study.scripts.values()),
        Origin("Slurm jobs", _distinct(each.job.get("SLURM_JOB_ID") for each in found)),
        Origin("started (UTC)", _first_and_last(each.started_utc for each in found)),
    ]


def _of_headers(study: Study) -> Mapping[str, Callable[[Header], str | None]]:
    return {name.format(study.score.samples): fact for name, fact in _OF_HEADERS.items()}


def _each(facts: Mapping[str, Callable[[_Told], str | None]], told_by: Collection[_Told]) -> Iterator[Origin]:
    """Yield these facts as all of the records' parts tell them; none where there is no such part."""
    if told_by:
        yield from (Origin(name, _distinct(map(fact, told_by))) for name, fact in facts.items())


def _provenance(study: Study) -> Sequence[Provenance]:
    return [*study.headers.values(), *study.scripts.values()]


def origin_line(study: Study) -> str:
    """Return commit, hosts and days of the used runs in one sentence; empty for logs that carry none."""
    found = _provenance(study)
    if not found:
        return ""
    code = count(len({each.commit for each in found}), "commit")
    hosts = count(len({worker.host for each in found for worker in each.workers}), "host")
    days = _first_and_last(each.started_utc[:_DATE_LETTERS] for each in found)
    return f"{code}, {hosts}, {' to '.join(days)}."


def _commit(found: Provenance) -> str:
    if found.commit is None:
        return "not recorded: the code was no git checkout"
    return found.commit + (" with uncommitted changes" if found.dirty else "")


def _transports(study: Study) -> Iterator[Origin]:
    used = [(header.config.framework, header.transport) for header in study.headers.values()]
    used += [(script.framework, script.transport) for script in study.scripts.values()]
    for framework, name in study.names.items():
        own = [transport for arm, transport in used if arm == framework]
        if own:
            yield Origin(f"transport of {name}", _distinct(map(_pairs, own)))


def _pairs(facts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def _versions(found: Sequence[Provenance]) -> Iterator[Origin]:
    packages = dict.fromkeys(package for each in found for package in each.versions)
    for package in packages:
        values = _distinct(each.versions.get(package) for each in found)
        yield Origin(f"version of {clean(package)}", values)


def _distinct(values: Iterable[str | None]) -> tuple[str, ...]:
    """Return every value once, or the first and how many more there are: at most MOST_SHOWN lines and one."""
    texts = [clean(value) for value in dict.fromkeys(values) if value is not None]
    more = len(texts) - MOST_SHOWN
    # "and 1 other" would take the place of the value.
    return (*texts[:MOST_SHOWN], f"and {count(more, 'other')}") if more > 1 else tuple(texts)


def _first_and_last(times: Iterable[str]) -> tuple[str, ...]:
    ordered = sorted(set(times))
    return tuple(clean(time) for time in dict.fromkeys((ordered[0], ordered[-1])))
