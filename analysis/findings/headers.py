"""Checks of the records' headers: weights, data, devices, settings and attempts of every run."""

from collections.abc import Callable, Hashable, Iterable, Mapping

from analysis.findings.check import Check, no, not_known, withhold_claims, yes
from analysis.loading.compared_facts import settings
from analysis.loading.resources import moved_between_attempts, share_cores
from analysis.restriction import NOTHING_LEARNED
from analysis.study import NAMES, Study
from analysis.text import clean, count, first_of, listed
from unet_scaling.study.options import Training
from unet_scaling.study.record_lines import Header

COUNTS = ["true_positive", "false_positive", "false_negative", "true_negative"]
# More would not be read in one cell of the fairness table.
_MOST_LISTED = 6


def check_weights(study: Study) -> Check:
    """Check that runs of one seed started from the same weights."""
    options = options_by_run(study)
    groups = _values_by_group(
        study.headers,
        lambda run, header: (options[run], header.config.seed),
        lambda header: header.initial_weights_sha256,
    )
    fact = f"{count(len(groups), 'seed')}, each with one checksum of the initial weights in all its runs"
    return _one_value_each(groups, fact, "seeds started from several initial weights")


def check_batches(study: Study) -> Check:
    """Check that runs of one repeat had the same seed and training images."""
    options = options_by_run(study)
    headers = study.headers.values()
    groups = _values_by_group(
        study.headers,
        lambda run, header: (options[run], header.config.workers, header.config.repeat),
        lambda header: (header.config.seed, header.manifest_sha256, header.train_images),
    )
    sizes = joined(sorted({header.config.training.batch_per_worker for header in headers}))
    numbers = joined(sorted({header.train_images for header in headers}))
    samples = study.score.samples
    fact = (
        f"runs of one repeat have the same seed, batch size ({sizes} {samples} per worker) and training "
        f"{samples} ({numbers}, same checksums)"
    )
    return _one_value_each(groups, fact, f"repeats differ in seed or training {samples}")


def check_evaluated(study: Study) -> Check:
    """Check that every run evaluated the same test images, all of them once; emulated ones evaluate none."""
    if study.is_emulated:
        return yes(NOTHING_LEARNED)
    pixels = _unequal_pixels(study)
    if pixels:
        return withhold_claims(pixels)
    options = options_by_run(study)
    groups = _values_by_group(
        study.headers,
        lambda run, _: options[run],
        lambda header: (header.test_images, header.manifest_sha256),
    )
    number = joined(sorted({header.test_images for header in study.headers.values()}))
    counted = f"{number} {study.score.samples} at every worker count"
    fact = f"every run evaluated the whole test set once: {counted}"
    return _one_value_each(groups, fact, "sets of options have several test sets")


def _unequal_pixels(study: Study) -> str:
    """Return where the evaluations of runs of equal options are of unequally many pixels; else nothing."""
    pixels = study.evaluations[COUNTS].astype(float).sum(axis="columns")
    options = study.evaluations["run"].map(options_by_run(study)).astype(str)
    ranges = pixels.groupby(options).agg(["min", "max"])
    unequal = ranges[ranges["min"] < ranges["max"]]
    if unequal.empty:
        return ""
    fewest, most = unequal.iloc[0]
    return f"evaluations are of {fewest:,.0f} to {most:,.0f} pixels of the same test set"


def check_cores(study: Study) -> Check:
    """Check devices, cores and threads: equal where the study asked for equally many cores."""
    kinds = {
        (header.config.training.cores_per_worker, worker.device, len(worker.cores), worker.threads)
        for header in study.headers.values()
        for worker in header.workers
    }
    kinds_in_order = sorted(kinds, key=lambda kind: (kind[0] or 0, *kind[1:]))
    fact = first_of([_resources(*kind[1:]) for kind in kinds_in_order], "kind of worker", _MOST_LISTED)
    return yes(fact) if len(kinds) == len({asked for asked, *_ in kinds}) else no(fact)


def _resources(device: str, cores: int, threads: int) -> str:
    return f"{clean(device)}, {count(cores, 'core')} and {count(threads, 'thread')} per worker"


def check_computing(study: Study) -> Check:
    """Check the memory allocator, which whoever launched the workers may have set; name the options."""
    allocators = [worker.allocator for header in study.headers.values() for worker in header.workers]
    kinds = {tuple(sorted(allocator.items())) for allocator in allocators if allocator is not None}
    if len(kinds) > 1:
        return withhold_claims(f"workers had {len(kinds)} settings of their memory allocator")
    used = _ways_of_computing(study)
    if None in allocators:
        only = _only_recorder(study, "allocator")
        memory = f"{only} how memory was allocated" if only else "how memory was allocated is not recorded"
        return not_known(f"{used}; {memory}", one_sided=bool(only))
    every = "all" if study.wrappers else "both"
    return yes(f"{every} frameworks: {used}; one setting of the memory allocator")


def _ways_of_computing(study: Study) -> str:
    return joined(sorted({_way_of_computing(header.config.training) for header in study.headers.values()}))


def _way_of_computing(training: Training) -> str:
    compiled = "compiled" if training.compile else "not compiled"
    compression = training.gradient_compression
    gradients = "gradients as they are" if compression == "none" else f"gradients in {compression}"
    return f"{training.precision}, {compiled}, {gradients}"


def check_environment(study: Study) -> Check:
    """Check that the variables were recorded: runs that differ in them have been refused."""
    recorded = [settings(header, "environment") for header in study.headers.values()]
    missing = recorded.count(None)
    if missing:
        only = _only_recorder(study, "environment")
        some = f"{missing} of {count(len(recorded), 'run')} did not record"
        fact = f"{only or some} the variables that decide speed (NCCL_*, UCX_*, OMP_*, ...)"
        return not_known(f"{fact}; older code does not", one_sided=bool(only))
    names = {variable for variables in recorded for variable in variables or {}}
    return yes(f"equal where they must be, of {count(len(names), 'variable')} that decide speed")


def check_shared(study: Study) -> Check:
    """Check that GPU workers could not use each other's cores: shared devices have been refused."""
    sharing = [run for run, header in study.headers.items() if share_cores(header)]
    if sharing:
        runs = count(len(sharing), "run")
        return no(f"devices are owned, but GPU workers of {runs} could use the same cores")
    return yes("every worker had a device, or cores, of its own")


def check_attempts(study: Study) -> Check:
    """Check the hosts of attempts, which may differ: code, cores and data that differ have been refused."""
    moved = {run: hosts for run, header in study.headers.items() if (hosts := moved_between_attempts(header))}
    if moved:
        named = [clean(f"{run} was resumed on other hosts ({hosts})") for run, hosts in moved.items()]
        return no(first_of(named, "run", _MOST_LISTED))
    if study.unknown_attempts:
        return _unrecorded_attempts(study)
    resumed = sum(header.resumed is not None for header in study.headers.values())
    if not resumed:
        return yes("no run was resumed")
    return yes(f"the attempts of {count(resumed, 'resumed run')} agree in code, cores and hosts")


def _unrecorded_attempts(study: Study) -> Check:
    runs = first_of([clean(run) for run in study.unknown_attempts], "run", _MOST_LISTED)
    fact = f"earlier attempts of {runs} left no record"
    only = only_recorder(study, lambda run, _: run not in study.unknown_attempts)
    return not_known(f"{fact}; {only} those of all attempts" if only else fact, one_sided=bool(only))


def _only_recorder(study: Study, kind: str) -> str:
    return only_recorder(study, lambda _, header: settings(header, kind) is not None)


def only_recorder(study: Study, recorded: Callable[[str, Header], bool]) -> str:
    """Return "only the runs of X recorded", where all of some frameworks' did and not all of the others'."""
    headers = study.headers.items()
    incomplete = {header.config.framework for run, header in headers if not recorded(run, header)}
    complete = {header.config.framework for _, header in headers} - incomplete
    names = listed(name for framework, name in NAMES.items() if framework in complete)
    return f"only the runs of {names} recorded" if complete and incomplete else ""


def options_by_run(study: Study) -> dict[str, str]:
    """Return the label of each run's options: equal exactly where the options are that must agree."""
    return dict(zip(study.runs["run"], study.runs["options"], strict=True))


def _values_by_group(
    headers: Mapping[str, Header],
    group: Callable[[str, Header], Hashable],
    value: Callable[[Header], Hashable],
) -> dict[Hashable, set[Hashable]]:
    """Return the values in each group of runs that should agree."""
    values: dict[Hashable, set[Hashable]] = {}
    for run, header in headers.items():
        values.setdefault(group(run, header), set()).add(value(header))
    return values


def _one_value_each(groups: Mapping[Hashable, set[Hashable]], fact: str, otherwise: str) -> Check:
    differing = sum(len(values) > 1 for values in groups.values())
    return no(f"{differing} of {len(groups)} {otherwise}") if differing else yes(fact)


def joined(values: Iterable[object]) -> str:
    """Return the values as text, separated by commas."""
    return ", ".join(map(str, values))
