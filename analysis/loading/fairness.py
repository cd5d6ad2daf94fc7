"""Which runs may be compared: the facts that must agree, and the refusal of runs that differ."""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from analysis.loading.options import flat_options, shared_options
from unet_scaling.study.options import HorovodKnobs
from unet_scaling.study.record_lines import AttemptFacts, Header
from unet_scaling.study.shared_devices import shared_devices

Alike = Callable[[Header], Hashable]
LONGEST_SHOWN = 60
MOST_NAMED = 3
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


def any_run(_: Header) -> Hashable:
    """Return one key for all runs, whatever the format of their records."""
    return None


def any_run_of_framework(header: Header) -> Hashable:
    """Return one key for all runs of a framework."""
    return header.config.framework


def same_options(header: Header) -> Hashable:
    """Runs of equal data, model and training options."""
    return tuple(shared_options(header.config).items())


def same_seed(header: Header) -> Hashable:
    """Runs that must start from the same weights."""
    return same_options(header), header.config.seed


def same_repeat(header: Header) -> Hashable:
    """Runs that are compared in pairs."""
    return same_options(header), header.config.repeat


def same_workers(header: Header) -> Hashable:
    """Runs that must be laid out in the same way."""
    return header.config.workers


def same_cores(header: Header) -> Hashable:
    """Runs whose workers were asked to use equally many of their cores."""
    return header.config.training.cores_per_worker


def same_framework(header: Header) -> Hashable:
    """Runs of one framework with the same options and knobs."""
    return header.config.framework, tuple(flat_options(header.config).items())


@dataclass(frozen=True)
class Fact:
    """Something that must be equal in all runs that `alike` gives the same key; None is not compared."""

    name: str
    value: Callable[[Header], str | None]
    alike: Alike


# Of one attempt; within a run all attempts agree in them.
ATTEMPT_FACTS: Mapping[str, Callable[[AttemptFacts], str | None]] = {
    "commit": lambda facts: str(facts.commit),
    UNCOMMITTED: lambda facts: str(facts.dirty),
    "manifest_sha256": lambda facts: facts.manifest_sha256[:16],
    "device": lambda facts: _each({each.device for each in facts.workers}),
    "cores per worker": lambda facts: _each({len(each.cores) for each in facts.workers}),
    "threads per worker": lambda facts: _each({each.threads for each in facts.workers}),
    "workers on each host": lambda facts: _layout(facts),
    "transport": lambda facts: json.dumps(facts.transport, sort_keys=True),
    "versions recorded": lambda facts: _each(set(facts.versions)),
}
FACTS = (
    Fact("manifest_sha256", ATTEMPT_FACTS["manifest_sha256"], same_options),
    Fact("train_images", lambda header: str(header.train_images), same_options),
    Fact("test_images", lambda header: str(header.test_images), same_options),
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
)


def refusals(headers: Mapping[str, Header]) -> dict[str, str]:
    """Return the runs that may not be compared, {run: reason}; each reason names the fact and both values.

    First those that disagree with themselves: workers that share a device, attempts that differ. Then,
    where some runs are of committed code, those that are not. Among the others the value that most of
    them have stands and the others are refused; among equally many, that of the first run stands. Host
    names may differ, since Slurm chooses hosts for each job, but devices, cores, threads and the number
    of workers on each host may not. Versions and variables are compared where both runs recorded them.
    """
    reasons = {run: reason for run, header in headers.items() if (reason := _of_one_run(header))}
    sound = {run: header for run, header in headers.items() if run not in reasons}
    reasons |= _uncommitted(sound)
    sound = {run: header for run, header in sound.items() if run not in reasons}
    differing: dict[str, list[str]] = {}
    facts = (*FACTS, *_version_facts(sound), *_setting_facts(sound))
    # Several facts have to agree among the same runs, and in a large study these keys take their time.
    keys = {alike: list(map(alike, sound.values())) for alike in {fact.alike for fact in facts}}
    for fact in facts:
        for run, reason in _differing(fact, sound, keys[fact.alike]):
            differing.setdefault(run, []).append(reason)
    return reasons | {run: "; ".join(found) for run, found in differing.items()}


def _of_one_run(header: Header) -> str:
    return sharing(header) or "; ".join(differing_attempts(header))


def differing_attempts(header: Header) -> list[str]:
    """Return in which facts two attempts of a run differ, with both values and the attempts."""
    first, *others = header.attempts()
    return [reason for other in others for reason in _between(first, other)]


def _between(first: AttemptFacts, other: AttemptFacts) -> list[str]:
    pairs = {name: (value(first), value(other)) for name, value in ATTEMPT_FACTS.items()}
    for package in sorted({*first.versions, *other.versions}):
        pairs[f"version of {package}"] = (first.versions.get(package), other.versions.get(package))
    for kind in SETTINGS:
        before, after = settings(first, kind), settings(other, kind)
        if before is not None and after is not None:
            for name in sorted({*before, *after} - TIMEOUT_VARIABLES):
                pairs[f"{kind} {name}"] = (before.get(name, NOT_SET), after.get(name, NOT_SET))
    differing = {
        name: _apart(old, new)
        for name, (old, new) in pairs.items()
        if old is not None and new is not None and old != new
    }
    return [
        f"{name} is {old} in attempt {first.attempt}, but {new} in attempt {other.attempt}"
        for name, (old, new) in differing.items()
    ]


def _uncommitted(headers: Mapping[str, Header]) -> dict[str, str]:
    """Refuse runs with uncommitted changes where others had none, however many they are."""
    clean = [run for run, header in headers.items() if header.dirty is False]
    if not clean:
        return {}
    others = f" and {len(clean) - 1} more" if len(clean) > 1 else ""
    reason = f"{UNCOMMITTED} is True, but False in {clean[0]}{others}"
    return {run: reason for run, header in headers.items() if header.dirty}


def sharing(header: Header) -> str:
    """Return which two workers of a run share a device, or on CPU a core of one host; empty where none do."""
    return next((pair for facts in header.attempts() for pair in shared_devices(facts.workers)), "")


def is_sharing(reason: str) -> bool:
    """Whether a run was refused because two of its workers share a device or core."""
    return re.match(r"workers \d+ and \d+ share ", reason) is not None


def remarks(headers: Mapping[str, Header], unknown_attempts: Sequence[str] = ()) -> tuple[str, ...]:
    """Return what is no reason to refuse a comparison, but should be known to who reads it."""
    found = []
    if any(header.dirty for header in headers.values()):
        found.append("the code had uncommitted changes: its commit does not say all that ran")
    if _hosts_differ(headers.values()):
        found.append("runs of equal worker count used different hosts: a difference may be that of the hosts")
    if any(share_cores(header) for header in headers.values()):
        found.append("GPU workers of a run could use the same cores; bind them to separate cores")
    if len({header.config.data.folder for header in headers.values()}) > 1:
        found += _folders_of_equal_data(headers.values())
    found += _of_moved(headers)
    found += _of_unknown_attempts(unknown_attempts)
    return tuple(found)


def _of_moved(headers: Mapping[str, Header]) -> Iterator[str]:
    moved = {run: places for run, header in headers.items() if (places := moved_between_attempts(header))}
    if len(moved) == 1:
        ((run, places),) = moved.items()
        yield f"{run} was resumed on other hosts: {places}"
    elif moved:
        told = _first_few([f"{run} ({places})" for run, places in moved.items()])
        yield f"{len(moved)} runs were resumed on other hosts: {told}"


def _of_unknown_attempts(runs: Sequence[str]) -> Iterator[str]:
    lost = "(run.attemptN.jsonl beside run.jsonl) is missing or damaged"
    if len(runs) == 1:
        where = "where an earlier attempt of it ran, on what code and cores, is not known"
        yield f"{runs[0]} was resumed, and {where}: the record of that attempt {lost}"
    elif runs:
        where = "where an earlier attempt of each ran, on what code and cores, is not known"
        told = f"{len(runs)} runs were resumed, and {where}: the record of that attempt {lost}"
        yield f"{told}: {_first_few(runs)}"


def _first_few(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _folders_of_equal_data(headers: Iterable[Header]) -> Iterator[str]:
    folders: dict[str, set[str]] = {}
    for header in headers:
        folders.setdefault(header.manifest_sha256, set()).add(header.config.data.folder)
    for several in folders.values():
        if len(several) > 1:
            places = ", ".join(sorted(several))
            yield f"equal images were read from {places}: a difference may be that of their storage"


def moved_between_attempts(header: Header) -> str:
    """Return the hosts of each attempt of a resumed run, where they were not the same; else nothing."""
    used = {facts.attempt: " ".join(sorted(hosts([facts]))) for facts in header.attempts()}
    if len(set(used.values())) < 2:
        return ""
    return ", ".join(f"attempt {number} on {names}" for number, names in used.items())


def hosts(attempts: Sequence[AttemptFacts]) -> frozenset[str]:
    """Return the names of the hosts of all workers in these attempts."""
    return frozenset(worker.host for facts in attempts for worker in facts.workers)


def _hosts_differ(headers: Collection[Header]) -> bool:
    used = {(header.config.workers, hosts(header.attempts())) for header in headers}
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


def settings(facts: AttemptFacts, kind: str) -> dict[str, str] | None:
    """Return the environment or allocator (`kind`) over all workers; None where it is not recorded."""
    recorded: list[dict[str, str] | None] = [getattr(worker, kind) for worker in facts.workers]
    known = [each for each in recorded if each is not None]
    if not known or len(known) < len(recorded):
        return None
    if all(each == known[0] for each in known):
        return known[0]
    names = sorted({name for each in known for name in each})
    return {name: _each({each.get(name, NOT_SET) for each in known}) for name in names}


def _setting_facts(headers: Mapping[str, Header]) -> list[Fact]:
    """Return the settings that are not equal in all runs, each to be compared where it means the same."""
    return [fact for kind in SETTINGS for fact in _facts_of_kind(kind, headers)]


def _facts_of_kind(kind: str, headers: Mapping[str, Header]) -> list[Fact]:
    found = {id(header): settings(header, kind) for header in headers.values()}
    known = [each for each in found.values() if each is not None]
    distinct = {tuple(each.items()): each for each in known}.values()
    names = sorted({name for each in distinct for name in each} - TIMEOUT_VARIABLES)
    varying = [name for name in names if len({each.get(name, NOT_SET) for each in distinct}) > 1]

    def of(name: str) -> Callable[[Header], str | None]:
        def value(header: Header) -> str | None:
            recorded = found[id(header)]
            return None if recorded is None else recorded.get(name, NOT_SET)

        return value

    return [Fact(f"{kind} {name}", of(name), _alike_in(name)) for name in varying]


def _alike_in(variable: str) -> Alike:
    if variable in KNOB_VARIABLES:
        return same_framework
    if variable.startswith(HOROVOD_PREFIX):
        return any_run_of_framework
    return same_cores if variable.startswith(THREAD_PREFIXES) else any_run


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
        (run, "{} is {}, but {} in {}{}".format(fact, *_apart(value, usual), example, others))
        for run, value in values.items()
        if value != usual
    ]


def _layout(facts: AttemptFacts) -> str:
    per_host = Counter(worker.host for worker in facts.workers)
    return ", ".join(str(workers) for workers in sorted(per_host.values(), reverse=True))


def _each(values: set[str] | set[int]) -> str:
    return ", ".join(sorted(map(str, values)))


def _apart(value: str, other: str) -> tuple[str, str]:
    """Return two values shortened for a message, but not so far that they look alike."""
    shown = _short(value), _short(other)
    if shown[0] != shown[1]:
        return shown
    same = next((place for place, (a, b) in enumerate(zip(value, other, strict=False)) if a != b), 0)
    return "..." + _short(value[same:]), "..." + _short(other[same:])


def _short(value: str) -> str:
    return value if len(value) <= LONGEST_SHOWN else value[:LONGEST_SHOWN] + "..."
