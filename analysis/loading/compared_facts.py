"""The facts that must agree in runs that are compared, and among which runs each of them must."""

import json
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from analysis.loading.options import TASK_SWITCHES, flat_options, shared_options
from unet_scaling.study.options import HorovodKnobs
from unet_scaling.study.record_lines import AttemptFacts, Header, Provenance

Found = TypeVar("Found", bound=Provenance)
Alike = Callable[[Found], Hashable]
UNCOMMITTED = "uncommitted changes"
NOT_SET = "not set"
SETTINGS = ("environment", "allocator")  # of each worker, by name
# By these Horovod takes its own options, which only its runs of equal knobs share.
KNOB_VARIABLES = frozenset(
    HorovodKnobs(
        cycle_time_ms=1, fusion_threshold_mb=1, groups=1, yield_when_idle=True, controller="mpi"
    ).environment()
)
# They follow from training.timeout_seconds, which guards a run and does not change what it does.
TIMEOUT_VARIABLES = frozenset(("HOROVOD_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"))
HOROVOD_PREFIX = "HOROVOD_"
# They set threads and their places, and so may follow the number of cores.
THREAD_PREFIXES = ("OMP_", "GOMP_", "KMP_", "MKL_", "BLIS_", "OPENBLAS_")


def any_run(_: Provenance) -> Hashable:
    """Return one key for all runs, whatever the format of their records."""
    return None


def any_run_of_framework(header: Header) -> Hashable:
    """Return one key for all runs of a framework."""
    return header.config.framework


def same_options(header: Header) -> Hashable:
    """Return one key for runs of equal data, model and training options."""
    return tuple(shared_options(header.config).items())


def same_seed(header: Header) -> Hashable:
    """Return one key for runs that must start from the same weights."""
    return same_options(header), header.config.seed


def same_repeat(header: Header) -> Hashable:
    """Return one key for runs that are compared in pairs."""
    return same_options(header), header.config.repeat


def same_workers(header: Header) -> Hashable:
    """Return one key for runs that must be laid out in the same way."""
    return header.config.workers


def same_cores(header: Header) -> Hashable:
    """Return one key for runs whose workers were asked to use equally many of their cores."""
    return header.config.training.cores_per_worker


def same_framework(header: Header) -> Hashable:
    """Return one key for runs of one framework with the same options and knobs."""
    return header.config.framework, tuple(flat_options(header.config).items())


def workers_per_host(facts: Provenance) -> str:
    """Return how many workers each host had, the most first: "2, 1"."""
    per_host = Counter(worker.host for worker in facts.workers)
    return ", ".join(str(workers) for workers in sorted(per_host.values(), reverse=True))


def _joined(values: set[str] | set[int]) -> str:
    """Return the distinct values as text, sorted."""
    return ", ".join(sorted(map(str, values)))


def compute_profile(header: Header) -> str | None:
    """Return by which profile the workers of a run waited; none where they computed."""
    return f"{header.compute.name} {header.compute.sha256[:16]}" if header.compute else None


def task_words(header: Header) -> str:
    """Return which task a run trained: the built-in one, or a file by its name and SHA-256."""
    task = header.config.task
    return f"{Path(task.file).name} {str(task.sha256)[:16]}" if task.file else "built-in U-Net"


def task_switch(name: str, header: Header) -> str | None:
    """Return what a study allows its task; none of the built-in one, which needs no such thing."""
    return str(getattr(header.config.task, name)) if header.config.has_own_task else None


@dataclass(frozen=True)
class Fact(Generic[Found]):
    """A fact that must be equal in all runs that `alike` gives the same key; None is not compared."""

    name: str
    value: Callable[[Found], str | None]
    alike: Alike[Found]


MACHINE_FACTS: Mapping[str, Callable[[Provenance], str | None]] = {
    "commit": lambda facts: str(facts.commit),
    UNCOMMITTED: lambda facts: str(facts.dirty),
    "device": lambda facts: _joined({worker.device for worker in facts.workers}),
    "cores per worker": lambda facts: _joined({len(worker.cores) for worker in facts.workers}),
    "threads per worker": lambda facts: _joined({worker.threads for worker in facts.workers}),
    "workers on each host": lambda facts: workers_per_host(facts),
    "transport": lambda facts: json.dumps(facts.transport, sort_keys=True),
    "versions recorded": lambda facts: _joined(set(facts.versions)),
    "dilation": lambda facts: f"{facts.dilation or 1:g}",
    "link rate": lambda facts: facts.link_rate or "not limited",
}
# Of one attempt; within a run all attempts agree in them.
ATTEMPT_FACTS: Mapping[str, Callable[[AttemptFacts], str | None]] = {
    "manifest_sha256": lambda facts: facts.manifest_sha256[:16],
    **MACHINE_FACTS,
}
FACTS: tuple[Fact[Header], ...] = (
    Fact("manifest_sha256", ATTEMPT_FACTS["manifest_sha256"], same_options),
    Fact("task", task_words, any_run),
    *(Fact[Header](f"task.{name}", partial(task_switch, name), any_run) for name in TASK_SWITCHES),
    Fact("train_images", lambda header: str(header.train_images), same_options),
    Fact("test_images", lambda header: str(header.test_images), same_options),
    Fact("computing", lambda header: "emulated" if header.is_emulated else "real", any_run),
    Fact("compute profile", compute_profile, same_options),
    Fact("seed", lambda header: str(header.config.seed), same_repeat),
    Fact("initial_weights_sha256", lambda header: header.initial_weights_sha256[:16], same_seed),
    Fact("commit", ATTEMPT_FACTS["commit"], any_run),
    Fact(UNCOMMITTED, ATTEMPT_FACTS[UNCOMMITTED], any_run),
    Fact("device", ATTEMPT_FACTS["device"], any_run),
    Fact("cores per worker", ATTEMPT_FACTS["cores per worker"], same_cores),
    Fact("threads per worker", ATTEMPT_FACTS["threads per worker"], same_cores),
    Fact("workers on each host", ATTEMPT_FACTS["workers on each host"], same_workers),
    Fact("transport", ATTEMPT_FACTS["transport"], same_framework),
    Fact("versions recorded", ATTEMPT_FACTS["versions recorded"], same_framework),
    Fact("dilation", ATTEMPT_FACTS["dilation"], any_run),
    Fact("link rate", ATTEMPT_FACTS["link rate"], any_run),
)


def version_facts(headers: Mapping[str, Found], alike: Alike[Found] = any_run) -> list[Fact[Found]]:
    """Return the versions of all packages that a run recorded."""

    def of(name: str) -> Callable[[Found], str | None]:
        return lambda header: header.versions.get(name)

    names = dict.fromkeys(name for header in headers.values() for name in header.versions)
    return [Fact(f"version of {name}", of(name), alike) for name in names]


def settings(facts: Provenance, kind: str) -> dict[str, str] | None:
    """Return the environment or allocator (`kind`) over all workers; None where it is not recorded."""
    recorded: list[dict[str, str] | None] = [getattr(worker, kind) for worker in facts.workers]
    known = [values for values in recorded if values is not None]
    if not known or len(known) < len(recorded):
        return None
    if all(values == known[0] for values in known):
        return known[0]
    names = sorted({name for values in known for name in values})
    return {name: _joined({values.get(name, NOT_SET) for values in known}) for name in names}


def setting_facts(headers: Mapping[str, Header]) -> list[Fact[Header]]:
    """Return the settings that are not equal in all runs, each to be compared where it means the same."""
    return [fact for kind in SETTINGS for fact in _facts_of_kind(kind, headers)]


def _facts_of_kind(kind: str, headers: Mapping[str, Header]) -> list[Fact[Header]]:
    # Over all workers of a header once: thousands of headers are asked for each of hundreds of names.
    by_header = {id(header): settings(header, kind) for header in headers.values()}

    def of(name: str) -> Callable[[Header], str | None]:
        def value(header: Header) -> str | None:
            recorded = by_header[id(header)]
            return None if recorded is None else recorded.get(name, NOT_SET)

        return value

    known = [values for values in by_header.values() if values is not None]
    return [Fact(f"{kind} {name}", of(name), _alike_in(name)) for name in _varying_names(known)]


def _varying_names(known: Sequence[Mapping[str, str]]) -> list[str]:
    distinct = {tuple(values.items()): values for values in known}.values()
    names = sorted({name for values in distinct for name in values} - TIMEOUT_VARIABLES)
    return [name for name in names if len({values.get(name, NOT_SET) for values in distinct}) > 1]


def _alike_in(variable: str) -> Alike[Header]:
    if variable in KNOB_VARIABLES:
        return same_framework
    if variable.startswith(HOROVOD_PREFIX):
        return any_run_of_framework
    return same_cores if variable.startswith(THREAD_PREFIXES) else any_run
