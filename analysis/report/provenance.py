"""Where the runs of a report come from: code, software, machine, data, times."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from analysis.study import NAMES, Study
from analysis.text import clean, count
from unet_scaling.study.record_lines import Header, WorkerFacts

MOST_SHOWN = 12


@dataclass(frozen=True)
class Origin:
    """One fact of the runs' origin: what it is of, and every value found."""

    name: str
    values: tuple[str, ...]


def origins(study: Study) -> list[Origin]:
    """What the headers of the used runs say; empty for logs that carry none."""
    headers = list(study.headers.values())
    if not headers:
        return []
    workers = [worker for header in headers for worker in header.workers]
    return [
        _of_headers("commit", headers, _commit),
        *_transports(headers),
        *_versions(headers),
        _of_workers("hosts", workers, lambda worker: worker.host),
        _of_workers("devices", workers, lambda worker: worker.device),
        _of_workers("cores per worker", workers, lambda worker: str(len(worker.cores))),
        _of_workers("threads per worker", workers, lambda worker: str(worker.threads)),
        _of_headers("training images", headers, lambda header: f"{header.train_images:,}"),
        _of_headers("test images", headers, lambda header: f"{header.test_images:,}"),
        _of_headers("SHA-256 of the data's manifest", headers, lambda header: header.manifest_sha256),
        _of_headers("seeds", headers, lambda header: str(header.config.seed)),
        _of_headers("Slurm jobs", headers, lambda header: header.job.get("SLURM_JOB_ID")),
        Origin("started (UTC)", _span(header.started_utc for header in headers)),
    ]


def _commit(header: Header) -> str:
    if header.commit is None:
        return "not recorded: the code was no git checkout"
    return header.commit + (" with uncommitted changes" if header.dirty else "")


def _transports(headers: list[Header]) -> list[Origin]:
    return [
        _of_headers(f"transport of {name}", own, lambda header: _pairs(header.transport))
        for framework, name in NAMES.items()
        if (own := [header for header in headers if header.config.framework == framework])
    ]


def _versions(headers: list[Header]) -> list[Origin]:
    packages = dict.fromkeys(package for header in headers for package in header.versions)
    return [
        Origin(
            f"version of {clean(package)}",
            _shown(header.versions[package] for header in headers if package in header.versions),
        )
        for package in packages
    ]


def _of_headers(name: str, headers: list[Header], value: Callable[[Header], str | None]) -> Origin:
    return Origin(name, _shown(found for header in headers if (found := value(header)) is not None))


def _of_workers(name: str, workers: list[WorkerFacts], value: Callable[[WorkerFacts], str]) -> Origin:
    return Origin(name, _shown(map(value, workers)))


def _shown(values: Iterable[str]) -> tuple[str, ...]:
    found = [clean(value) for value in dict.fromkeys(values)]
    more = len(found) - MOST_SHOWN
    return (*found[:MOST_SHOWN], *([f"and {count(more, 'other')}"] if more > 0 else []))


def _span(times: Iterable[str]) -> tuple[str, ...]:
    ordered = sorted(set(times))
    return tuple(clean(time) for time in dict.fromkeys((ordered[0], ordered[-1])))


def _pairs(facts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())
