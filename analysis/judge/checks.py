"""The fairness table: one row per thing that should be equal, with a mark and the fact in words.

Runs that differ in what must agree have been refused before (analysis/read/facts.py); this table says of the
runs that are used what is equal, and marks also what no refusal can settle: hosts, clocks, order, the
baseline. What compares two frameworks has a row for each that is compared with native DDP.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.judge.alike import check_clocks, check_gpus, check_others
from analysis.judge.baseline import check_baseline, check_baseline_times
from analysis.judge.launch_checks import (
    Checked,
    RunTable,
    are_on_one_machine,
    check_alone,
    check_asked,
    check_first,
    check_order,
    check_quiet,
    check_study_order,
    subject_of,
)
from analysis.judge.nodes import check_shares
from analysis.numbers.check import YES, Check, PointPair, no, not_known, recorded_by_one, withhold_claims, yes
from analysis.numbers.contrast import (
    BASELINE,
    MOST_EXAMPLES,
    QUIET,
    Sides,
    first_points,
    grouped,
    in_both,
    names_of_pair,
    point_name,
    repeats_of,
)
from analysis.numbers.direction import direction_note, score_direction
from analysis.numbers.iou import COUNTS
from analysis.numbers.stats import kept_though_disturbed
from analysis.read.options import own_options
from analysis.study import COMPARED, FEWEST_REPEATS, NAMES, NOT_RECORDED, POINT, Study
from analysis.text import Row, clean, count, first_of, lines, listed, repeats_text
from unet_scaling.format.facts import (
    BATCHES,
    COMPUTING,
    DEVICES,
    EVALUATED,
    FACTS,
    PLACES,
    SAME_VARIABLES,
    SETTINGS,
    SOFTWARE,
    TRAINING,
    UNCOMMITTED_CHANGES,
    WEIGHTS,
    Fact,
    moved,
    setting_facts,
    values_of,
    version_facts,
)
from unet_scaling.format.record_lines import Header, Provenance

# Of the masks alone: equal whatever a network predicts.
FOREGROUND_COUNTS = ["true_positive", "false_negative"]
# More would not be read in one cell of the fairness table, nor in a note.
_MOST_LISTED = 6
# Rounding alone, of gradients summed in another order, drove the losses of two trainings of the reference
# network apart by at most 7e-5 of their value in the first 32 steps, and by 4e-3 in the following 160;
# gradients in half precision by 1.3e-2. Workers that train alone differ by more from the first steps on.
FEW_STEPS = 32
LOSS_TOLERANCE_SHARE_OF_FEW_STEPS = 1e-3
LOSS_TOLERANCE_SHARE = 5e-2
# A loss near zero is compared with this share of the first epoch's.
LEAST_LOSS_SHARE = 0.1
# The sum of two numbers is the same in either order, that of three is not.
MOST_EXACT_WORKERS = 2
# They follow from every sum, and are equal to the last bit where sums are.
OF_BITS = ("weights_sha256", *COUNTS, "iou", "loss")


def fairness_table(checks: Sequence[Check]) -> pd.DataFrame:
    """Return the table of these checks: check, mark ("yes", "no", "not known"), fact, withholds."""
    rows = [asdict(check) | {"check": check.title} for check in checks]
    return pd.DataFrame(rows, columns=["check", "mark", "fact", "withholds"])


def fairness_checks(study: Study) -> list[Check]:
    """Return the rows of the fairness table, from the headers and the tables of a study alone.

    Where all runs are played, they are those of what decides an IoU; where all tell of saliency maps only,
    those of headers; of scripts, arms are not proven equal. Of a study with further frameworks, rows of a
    pair are those of native DDP and Horovod, where it has runs, then those of each other framework.
    """
    subject = subject_of(study.subject)
    return ROWS_OF_KIND[subject.study.kind.fairness](subject)


def _rows_of_scripts(scripts: Checked) -> list[Check]:
    unproven = "runs are of scripts, whose model, data, batches, learning rate and score are not recorded"
    first = replace(withhold_claims(unproven), check="arms proven equal")
    return [first, *_rows(OF_TABLES, scripts, scripts)]


def _rows_of_scores(played: Checked) -> list[Check]:
    entries = [entry for entry in OF_HEADERS if entry.decides_iou]
    return [*_rows(entries, played, played), *_check_learning(played)]


def _rows_of_headers(runs: Checked) -> list[Check]:
    return list(_rows(OF_HEADERS, runs, runs))


def _all_rows(subject: Checked) -> list[Check]:
    study = subject.study
    used = set(study.runs["framework"])
    further = study.further_frameworks if COMPARED[0] in used else ()
    pair: Checked | None = subject
    if further:
        pair = subject.of(COMPARED[1]) if COMPARED[1] in used else None
    checks = [
        *_rows(OF_HEADERS, subject, pair),
        *_check_learning(subject),
        *_rows(OF_TABLES, subject, pair),
    ]
    of_pair = [entry for entry in ENTRIES if entry.is_of_pair]
    for framework in further:
        rows = _rows(of_pair, subject, subject.of(framework))
        checks += [replace(check, framework=framework) for check in rows]
    return checks


def checks_of_points(
    study: Study, points: Mapping[PointPair, tuple[tuple[Any, ...], tuple[Any, ...]]]
) -> list[Check]:
    """Return the rows that compare two points, of these instead of two frameworks; none on what they learn.

    `points` are pairs of POINT.
    """
    subject = subject_of(study)
    runs = grouped(subject.runs, POINT)
    of_points = {pair: (runs[first], runs[second]) for pair, (first, second) in points.items()}
    entries = [entry for entry in ENTRIES if entry.is_of_pair and entry.name != TRAINING]
    subject = replace(subject, sides=of_points)
    return list(_rows(entries, subject, subject))


def _rows(entries: Iterable["Entry"], subject: Checked, pair: Checked | None) -> Iterator[Check]:
    """Yield these rows; those that compare two frameworks are of `pair`, and left out without one."""
    for entry in entries:
        of = pair if entry.is_of_pair else subject
        if of is None:
            continue
        check: Check | None = not_known(NOT_RECORDED)
        if of.headers or not entry.needs_headers:
            check = entry.check(of) if entry.check else check_facts(entry.name, of)
        if check is None:
            continue
        samples = subject.study.score.samples
        yield replace(check, check=f"same {samples} evaluated" if entry.name == EVALUATED else entry.name)


def _check_learning(subject: Checked) -> Iterator[Check]:
    """Yield rows of what speaks against the training itself; none where nothing does, or no record tells."""
    if not subject.headers:
        return
    if not all(header.config.task.loss_is_mean for header in subject.headers.values()):
        fact = (
            "task.loss_is_mean = false: each worker divides the loss by what its own batch holds, so that "
            "every number of workers trains another loss, whatever the framework"
        )
        yield replace(no(fact), check="same loss at every worker count")
    if note := direction_note(subject.study):
        mark = no if score_direction(subject.study) == "lower" else not_known
        yield replace(mark(note), check="score better when higher")
    losses = [epochs["loss"][~np.isnan(epochs["loss"])] for epochs in subject.epochs.values()]
    rising = sum(bool(len(known) and known[-1] > known[0]) for known in losses)
    if rising > len(losses) / 2:
        fact = f"the loss of the last epoch is above that of the first in {rising} runs"
        yield replace(no(fact), check="loss falls")


def check_facts(row: str, subject: Checked) -> Check:
    """Check the facts behind a row: that both frameworks had the same, and that the runs of both tell it.

    Runs that differ in a fact that must agree have been refused; what is left are facts that one framework's
    runs alone tell, values that prove nothing, and sets such as hosts, of which each may have had its own.
    """
    facts = [*FACTS]
    facts += version_facts(subject.headers) if row == SOFTWARE else ()
    facts += setting_facts(subject.headers) if row in SETTINGS.values() else ()
    own = [fact for fact in facts if fact.row == row]
    # Which runs are of changed code is as much chance as which had which node.
    free = [fact for fact in own if fact.is_free_set or fact.name == UNCOMMITTED_CHANGES]
    shares = check_shares(free, subject)
    if shares.mark != YES:
        return shares
    proven = {fact.name: _proven(fact, subject.headers) for fact in own}
    unproven = [fact for fact in own if len(proven[fact.name]) < len(subject.headers)]
    of_one = {fact.name: subject.known_of_one(proven[fact.name]) for fact in unproven if fact not in free}

    def told_by_one(fact: Fact, pair: PointPair, both: Sides, subject: Checked) -> str:
        if pair not in of_one.get(fact.name, ()):
            return ""
        values = [values_of(fact, (subject.headers[run["run"]] for run in side)) for side in both]
        return in_both(
            fact.title(next(iter(subject.headers.values()))), values, names_of_pair(subject.study.names, pair)
        )

    if one_sided := _first_at_points(subject, unproven, told_by_one):
        return recorded_by_one(first_points(one_sided.values()), one_sided)
    headers = list(subject.headers.values())
    told = [
        f"{fact.title(headers[0])} {first_of([clean(value) for value in values], 'value', MOST_EXAMPLES)}"
        for fact in unproven or own
        if (values := values_of(fact, headers)) or unproven
    ]
    text = first_of([words.strip() for words in told], "fact", _MOST_LISTED, separator="; ")
    if not unproven:
        return replace(yes(text), remark=shares.remark)
    is_mixed = any(fact.name == UNCOMMITTED_CHANGES and proven[fact.name] for fact in unproven)
    return (no if is_mixed else not_known)(f"not recorded by every run, or no proof: {text}")


def _first_at_points(
    subject: Checked, facts: Sequence[Fact], words_of: Callable[[Fact, PointPair, Sides, Checked], str]
) -> dict[PointPair, str]:
    """Return what the first of these facts that says anything says at each point."""
    found = {}
    for pair, both in subject.sides.items() if facts else ():
        if words := next(filter(None, (words_of(fact, pair, both, subject) for fact in facts)), ""):
            found[pair] = f"{point_name(pair)} {words}"
    return found


def _proven(fact: Fact, headers: Mapping[str, Header]) -> list[str]:
    """Return the runs that tell a fact, and in a way that proves it; what is a set may be empty."""
    values = {run: fact.of(header) for run, header in headers.items()}
    return [
        run for run, told in values.items() if fact.is_free_set or (told is not None and fact.sound(told))
    ]


def check_own_options(subject: Checked) -> Check | None:
    """Say which options of its own a framework was given; no row where none, or where they are an axis.

    Guards against a handicap, or a help, that one line of the study file gives one framework.
    """
    given: dict[str, dict[str, None]] = {}
    for header in subject.headers.values():
        name = header.config.framework
        defaults = own_options(header.config.model_copy(update={name: None}))
        for key, value in own_options(header.config).items():
            if value != defaults[key] and key not in subject.study.axes:
                given.setdefault(NAMES[name], {})[f"{key} = {value}"] = None
    if not given:
        return None
    told = listed([f"{name} with {', '.join(options)}" for name, options in given.items()])
    return replace(yes(f"set in the study file: {clean(told)}"), remark=clean(told))


def check_evaluated(subject: Checked) -> Check:
    """Check that every run evaluated the same test images, all of them once; emulated ones evaluate none."""
    if subject.study.kind.unlearned:
        return yes(subject.study.kind.unlearned)
    for what, counts in (("pixels", COUNTS), ("pixels of foreground", FOREGROUND_COUNTS)):
        for runs in grouped(subject.runs, ["options"]).values():
            results = [subject.evaluations[run["run"]] for run in runs if run["run"] in subject.evaluations]
            of_runs = [np.sum([each[name] for name in counts], axis=0) for each in results]
            pixels = {float(number) for each in of_runs for number in each if not np.isnan(number)}
            if len(pixels) > 1:
                numbers = f"{min(pixels):,.0f} to {max(pixels):,.0f}"
                return withhold_claims(f"evaluations are of {numbers} {what} of the same test set")
    return check_facts(EVALUATED, subject)


def check_shared(subject: Checked) -> Check:
    """Check that GPU workers could not use each other's cores: shared devices have been refused."""
    sharing = 0
    for header in subject.headers.values():
        cores = [(worker.host, core) for worker in header.workers for core in worker.cores]
        sharing += len(set(cores)) < len(cores)
    if sharing:
        return no(f"devices are owned, but GPU workers of {count(sharing, 'run')} could use the same cores")
    return yes("every worker had a device, or cores, of its own")


def check_attempts(subject: Checked) -> Check:
    """Check the hosts of attempts, which may differ: code, cores and data that differ have been refused."""
    headers = subject.headers
    places = {run: words for run, header in headers.items() if (words := moved(header))}
    if places:
        told = [clean(f"{run} was resumed on other hosts ({words})") for run, words in places.items()]
        # Where a scheduler chose the hosts, they are part of the noise of launches.
        return (yes if subject.is_drawn else no)(first_of(told, "run", _MOST_LISTED))
    resumed = sum(header.resumed is not None for header in headers.values())
    if not resumed:
        return yes("no run was resumed")
    return yes(f"the attempts of {count(resumed, 'resumed run')} agree in code, cores and hosts")


def check_places(subject: Checked) -> Check:
    """Check that runs of equal worker count ran on the same hosts, devices, cores and partition.

    What a scheduler dealt out for each run is noise, and in the interval (nodes.py).
    """
    if not subject.headers or not any(run["hosts"] for run in subject.runs):
        return not_known(NOT_RECORDED)
    if are_on_one_machine(subject.runs):
        return yes("all hosts are those of a slowed virtual cluster, and so of one machine")
    found = check_facts(PLACES, subject)
    counts = sorted(grouped(subject.runs, ["workers"]).items())
    differing = [str(workers) for (workers,), runs in counts if len({run["hosts"] for run in runs}) > 1]
    if found.mark == YES and differing and not subject.is_drawn:
        workers = ", ".join(differing)
        return no(f"runs on {workers} workers used several sets of hosts; a difference may be theirs")
    return found


def check_origin(subject: Checked) -> Check | None:
    """Check that no runs of another study were moved into the folder; no row where all are of one."""

    def study_of(facts: Provenance) -> list[str]:
        return [facts.config.study] if isinstance(facts, Header) else []

    fact = Fact("data", "studies", "", "", each=study_of)
    names = values_of(fact, subject.headers.values())
    if len(names) < 2:
        return None
    shares = check_shares([fact], subject)
    if shares.withholds:
        return shares
    return no(f"runs of {len(names)} studies are read as one: {listed(list(map(clean, names)))}")


def check_work(subject: Checked) -> Check:
    """Check that both runs of a repeat had equal steps, images and warm-up in every epoch."""
    study = subject.study
    if not study.provenance_known or any(np.isnan(run["images_per_epoch"]) for run in subject.runs):
        return not_known(NOT_RECORDED)
    if faults := work_differences(subject):
        return withhold_claims(first_points(faults.values()), faults)
    return yes(f"at equal worker counts every epoch had as many steps and {study.score.samples}")


def work_differences(
    subject: Checked, columns: Sequence[str] = ("steps", "images", "warmup")
) -> dict[PointPair, str]:
    """Return the first difference in the work of an epoch at each point, in words."""
    compared = {row["run"] for both in subject.sides.values() for side in both for row in side}
    begun = {
        run: _without_later_starts(subject.epochs[run], subject.headers.get(run))
        for run in compared & subject.epochs.keys()
    }
    return _faults(subject, begun, "epoch", columns)


def _without_later_starts(table: RunTable, header: Header | None) -> RunTable:
    """Return the epochs of a run with the warm-up of its first attempt alone: each attempt has one epoch."""
    warmup = table["warmup"]
    if header is None or header.resumed is None or warmup.sum() > header.attempt:
        return table
    return {**table, "warmup": warmup & (table["epoch"] == table["epoch"].min())}


def check_training(subject: Checked) -> Check:
    """Check that both runs of a repeat trained the same, as the project promises, whatever carries gradients.

    On CPUs and on up to MOST_EXACT_WORKERS, losses, weights and counts of every evaluation are equal to the
    last bit. Where sums are made in another order, or by kernels that are not deterministic (GPUs, other
    hosts, compiled code, gradients in half precision, synchronised norms, accumulated or resumed steps),
    losses differ by no more than rounding explains. The learning rate is equal everywhere.
    """
    pairs = [each for both in subject.sides.values() for each in repeats_of(both)]
    if not pairs:
        return not_known("no repeat has runs of both frameworks")
    faults = _faults(subject, subject.evaluations, "epochs", (*OF_BITS[:-1], "images"))
    faults |= _faults(subject, subject.epochs, "epoch", ("loss", "learning_rate"))
    if faults:
        return withhold_claims(first_points(faults.values()), faults)
    found = check_facts(TRAINING, subject)
    if found.withholds:
        return found
    exact = sum(_are_exact(subject, each) for each in pairs)
    compared = f"in {exact} of {count(len(pairs), 'pair')} of runs"
    bounded = ", losses within rounding in the others" if exact < len(pairs) else ""
    learned = f"losses, weights and counts are equal to the last bit {compared}{bounded}"
    return yes(f"{subject.study.kind.learned(learned)}; learning rates are equal in every epoch")


def _faults(
    subject: Checked, tables: Mapping[str, RunTable], on: str, columns: Sequence[str]
) -> dict[PointPair, str]:
    """Return the first difference at each point in words, with both runs and values."""
    faults: dict[PointPair, str] = {}
    for pair, both in subject.sides.items():
        # What differs first in each column, of every pair of runs.
        found: dict[str, list[str]] = {column: [] for column in columns}
        for runs in repeats_of(both):
            names = [run["run"] for run in runs]
            common = _common([tables.get(name, {}) for name in names], on)
            for column in columns if common else ():
                places = np.flatnonzero(_differ(common, column, exact=_are_exact(subject, runs)))
                if len(places):
                    at = common[0][on][places[0]]
                    place = f"in epoch {at}" if on == "epoch" else f"evaluated after epoch {at - 1}"
                    native, other = (_shown(table[column][places[0]]) for table in common)
                    told = f"{native} in {names[0]}, but {other} in {names[1]}"
                    found[column].append(f"{column} {place} is {clean(told)}")
        if told_of := next(filter(None, found.values()), []):
            runs_differ = f"({count(len(told_of), 'pair')} of runs differ)"
            faults[pair] = f"{point_name(pair)} {told_of[0]} {runs_differ}"
    return faults


def _common(tables: Sequence[RunTable], on: str) -> list[RunTable]:
    """Return the rows of both tables that agree in the column `on`; nothing where a run has none."""
    if not all(tables):
        return []
    native, other = tables
    _, first, second = np.intersect1d(native[on], other[on], return_indices=True)
    both = ((native, first), (other, second))
    return [{name: values[places] for name, values in table.items()} for table, places in both]


def _differ(both: Sequence[RunTable], name: str, *, exact: bool) -> NDArray[np.bool_]:
    """Return where two runs differ; of OF_BITS only in what rounding does not explain, unless `exact`."""
    own, others = (table[name] for table in both)
    # What both do not know is no difference.
    differs = np.asarray((own != others) & ~(pd.isna(own) & pd.isna(others)), dtype=np.bool_)
    if exact or name not in OF_BITS:
        return differs
    return differs & ~_within_rounding(*both) if name == "loss" else np.zeros_like(differs)


def _within_rounding(native: RunTable, other: RunTable) -> NDArray[np.bool_]:
    """Return where the losses of an epoch differ by no more than rounding explains after so many steps."""
    loss = native["loss"]
    first = loss[~np.isnan(loss)][:1]
    least = LEAST_LOSS_SHARE * first[0] if len(first) else 0.0
    is_few = native["steps"].cumsum() <= FEW_STEPS
    tolerance = np.where(is_few, LOSS_TOLERANCE_SHARE_OF_FEW_STEPS, LOSS_TOLERANCE_SHARE)
    within: NDArray[np.bool_] = np.abs(loss - other["loss"]) <= tolerance * np.fmax(loss, least)
    return within


def _are_exact(subject: Checked, runs: Sequence[Row]) -> bool:
    """Return whether two runs are to give the same numbers to the last bit."""
    headers = [subject.headers[run["run"]] for run in runs if run["run"] in subject.headers]
    is_one_place = len({run["hosts"] for run in runs}) == 1
    return is_one_place and len(headers) == len(runs) and all(map(_is_deterministic, headers))


def _is_deterministic(header: Header) -> bool:
    """Return whether another run of equal options on the same hosts gives the same numbers to a bit."""
    config = header.config
    training = config.training
    return (
        config.workers <= MOST_EXACT_WORKERS
        and all(worker.device == "cpu" for worker in header.workers)
        and header.resumed is None
        and training.accumulate == 1
        and not training.compile
        and training.gradient_compression == "none"
        and config.model.batch_norm != "sync"
    )


def _shown(value: object) -> str:
    return value[:16] if isinstance(value, str) else f"{value:.10g}"


def check_repeats(subject: Checked) -> Check:
    """Check that all points have equally many repeats."""
    sizes = subject.study.runs.groupby(POINT, sort=False).size()
    if sizes.empty:
        return not_known("no run can be used")
    fact = f"{repeats_text(sizes)} per point"
    return yes(fact) if sizes.nunique() == 1 else no(fact)


@dataclass(frozen=True)
class Entry:
    """A row of the fairness table, unless its check returns none; without a check, facts of headers answer.

    is_of_pair     it compares native DDP with one other framework
    needs_headers  nothing is known of logs without them
    decides_iou    the rows that played runs have: nothing else is compared of them
    """

    name: str
    check: Callable[[Checked], Check | None] | None = None
    is_of_pair: bool = True
    needs_headers: bool = True
    decides_iou: bool = False


ENTRIES = (
    Entry(WEIGHTS, is_of_pair=False, decides_iou=True),
    Entry(BATCHES, is_of_pair=False, decides_iou=True),
    Entry(EVALUATED, check_evaluated, is_of_pair=False, decides_iou=True),
    Entry(DEVICES),
    Entry(COMPUTING, decides_iou=True),
    Entry(SAME_VARIABLES),
    Entry("workers share nothing", check_shared, is_of_pair=False),
    Entry(SOFTWARE, decides_iou=True),
    Entry("options of one framework", check_own_options),
    Entry("same machine in all attempts", check_attempts, is_of_pair=False),
    Entry(TRAINING, check_training),
    Entry(PLACES, check_places, needs_headers=False),
    Entry("one run at a time on a core", check_alone, needs_headers=False),
    Entry("same clock of the cores", check_clocks, needs_headers=False),
    Entry("GPUs alike", check_gpus, needs_headers=False),
    Entry("other figures alike", check_others, needs_headers=False),
    Entry("runs of one study", check_origin, needs_headers=False),
    Entry("same work per epoch", check_work, needs_headers=False),
    Entry("order interleaved in time", check_order, needs_headers=False),
    Entry("either framework first", check_first, needs_headers=False),
    Entry(BASELINE, check_baseline, is_of_pair=False, needs_headers=False),
    Entry("baseline of the same days and clock", check_baseline_times, is_of_pair=False, needs_headers=False),
    Entry("launches in the study's order", check_study_order, needs_headers=False),
    Entry("equal repeats", check_repeats, is_of_pair=False, needs_headers=False),
    Entry("asked for and read", check_asked, is_of_pair=False, needs_headers=False),
    Entry(QUIET, check_quiet, needs_headers=False),
)
OF_HEADERS = [entry for entry in ENTRIES if entry.needs_headers]
OF_TABLES = [entry for entry in ENTRIES if not entry.needs_headers]
# Of each kind of study, by its `fairness`.
ROWS_OF_KIND: Mapping[str, Callable[[Checked], list[Check]]] = {
    "all": _all_rows,
    "score": _rows_of_scores,
    "headers": _rows_of_headers,
    "tables": _rows_of_scripts,
}


def disturbed_notes(study: Study) -> list[str]:
    """Return the disturbed launches by name and reason, and the stalls that were too short to disturb one."""
    disturbed = study.runs[study.runs["disturbed"] != ""]
    is_kept = disturbed["run"].isin(kept_though_disturbed(study)["run"])
    few = f"as fewer than {FEWEST_REPEATS} others of the point remain"
    fates = [
        (
            _with_reason(disturbed[~is_kept], "disturbed"),
            f"left out of speed, and kept in {study.score.title}",
        ),
        (_with_reason(disturbed[is_kept], "disturbed"), f"counted for speed all the same, {few}"),
    ]
    stalled = study.runs[(study.runs["disturbed"] == "") & (study.runs["stalls"] != "")]
    told = _with_reason(stalled, "stalls")
    return lines("notes", said="disturbed", disturbed=fates, stalled=told, most=_MOST_LISTED)


def _with_reason(runs: pd.DataFrame, column: str) -> list[str]:
    return [f"{run} ({reason})" for run, reason in zip(runs["run"], runs[column], strict=True)]
