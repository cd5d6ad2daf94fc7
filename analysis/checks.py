"""The fairness table: one row per thing that should be equal, with a mark and the fact in words.

Runs that differ in what must agree have been refused before (analysis/facts.py); this table says of the runs
that are used what is equal, and marks also what no refusal can settle: hosts, clocks, order, the baseline.
What compares two frameworks has a row for each that is compared with native DDP.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial

import pandas as pd

from analysis.facts import (
    BATCHES,
    COMPUTING,
    CORE_NUMBERS,
    DEVICES,
    EVALUATED,
    FACTS,
    PLACES,
    SAME_VARIABLES,
    SETTINGS,
    SOFTWARE,
    TRAINING,
    WEIGHTS,
    Fact,
    moved_between_attempts,
    setting_facts,
    share_cores,
    values_of,
    version_facts,
)
from analysis.findings.asked import check_asked
from analysis.iou import COUNTS
from analysis.machines import (
    WITHOUT_RECORD,
    are_on_one_machine,
    check_alone,
    check_baseline,
    check_clocks,
    check_first,
    check_order,
)
from analysis.pairs import (
    BASELINE,
    KEY,
    MOST_EXAMPLES,
    QUIET,
    YES,
    Check,
    PointPair,
    Sides,
    first_points,
    in_both,
    known_of_one,
    names_of_pair,
    no,
    not_known,
    paired_runs,
    pairs_known_of_one,
    pairs_of,
    point_name,
    side_by_side,
    sides,
    withhold_claims,
    yes,
)
from analysis.restriction import NOTHING_LEARNED
from analysis.stats import FEWEST_REPEATS, kept_though_disturbed
from analysis.study import COMPARED, POINT, Study
from analysis.text import clean, count, first_of, repeats_text
from unet_scaling.study.config import Framework
from unet_scaling.study.disturbance import SHORTEST_JUDGED_SECONDS
from unet_scaling.study.record_lines import Header
from unet_scaling.study.texts import WORDS_OF_LOSSES

# Of the masks alone: equal whatever a network predicts.
FOREGROUND_COUNTS = ["true_positive", "false_negative"]
# Up to it, no more than half of what one framework's runs used was used as much by the other's.
TOO_FEW_SHARED = 0.5
# Of five launches of each framework: a host that served all of one, and one of the other.
MOST_UNEQUAL_SHARE = 0.8
_ROUNDING = 1e-9
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
ALONE = "one run at a time on a core"


def fairness_table(checks: Sequence[Check]) -> pd.DataFrame:
    """Return the table of these checks: check, mark ("yes", "no", "not known"), fact, withholds."""
    rows = [asdict(check) | {"check": check.title} for check in checks]
    return pd.DataFrame(rows, columns=["check", "mark", "fact", "withholds"])


def fairness_checks(study: Study) -> list[Check]:
    """Return the rows of the fairness table, from the headers and the tables of a study alone.

    Where all runs are played, they are those of what decides an IoU; where all tell of saliency maps only,
    those of headers; of scripts, arms are not proven equal.
    Of a study with further frameworks, rows of a pair are those of native DDP and Horovod, where it has
    runs, then those of each other framework.
    """
    if study.is_of_scripts:
        unproven = "runs are of scripts, whose model, data, batches, learning rate and score are not recorded"
        arms = replace(withhold_claims(unproven), check="arms proven equal")
        return [arms, *_made(OF_TABLES, study, study)]
    if study.runs.empty and study.played is not None:
        played = study.played
        names = OF_PLAYED if played.headers else ()
        return [*_made(names, played, played), *_of_training(played)]
    if study.runs.empty and study.maps_only is not None:
        return _made(OF_HEADERS, study.maps_only, study.maps_only)
    used = set(study.runs["framework"])
    has_further = bool(study.wrappers) and COMPARED[0] in used
    left_out = OF_A_PAIR if has_further and COMPARED[1] not in used else ()
    pair = _pair_study(study, COMPARED[1]) if has_further else study
    checks = [
        *_made([name for name in OF_HEADERS if name not in left_out], study, pair),
        *_of_training(study),
        *_made([name for name in OF_TABLES if name not in left_out], study, pair),
    ]
    for framework in study.wrappers if has_further else ():
        rows = _made(OF_A_PAIR, study, _pair_study(study, framework))
        checks += [replace(check, framework=framework) for check in rows]
    return checks


def _pair_study(study: Study, framework: Framework) -> Study:
    """Return the runs of native DDP and of this framework."""
    runs = study.runs[study.runs["framework"].isin([COMPARED[0], framework])]
    kept = set(runs["run"])

    def of_runs(table: pd.DataFrame) -> pd.DataFrame:
        return table[table["run"].isin(kept)]

    return replace(
        study,
        runs=runs,
        headers={run: header for run, header in study.headers.items() if run in kept},
        epochs=of_runs(study.epochs),
        evaluations=of_runs(study.evaluations),
        budgets=of_runs(study.budgets),
    )


def _made(names: Iterable[str], study: Study, pair: Study) -> list[Check]:
    """Return these rows; those that compare two frameworks are of `pair`, the others of `study`."""
    checks = []
    for name in names:
        of = pair if name in OF_A_PAIR else study
        if name == ALONE:
            # Runs of any framework may have trained on the cores of this pair.
            of = replace(pair, headers=study.headers, epochs=study.epochs)
        is_known = name not in OF_HEADERS or of.headers
        check = {**OF_HEADERS, **OF_TABLES}[name](of) if is_known else not_known(WITHOUT_RECORD)
        title = f"same {study.score.samples} evaluated" if name == EVALUATED else name
        checks.append(replace(check, check=title))
    return checks


def _of_training(study: Study) -> Iterator[Check]:
    """Yield rows of what speaks against the training itself; none where nothing does, or no record tells."""
    if not study.headers:
        return
    if not all(header.config.task.loss_is_mean for header in study.headers.values()):
        fact = (
            "task.loss_is_mean = false: each worker divides the loss by what its own batch holds, so that "
            "every number of workers trains another loss, whatever the framework"
        )
        yield replace(no(fact), check="same loss at every worker count")
    # Tasks of today record 1 less such a score.
    if not study.score.name.startswith("one_minus_") and WORDS_OF_LOSSES.search(study.score.name):
        fact = f"it is called {study.score.name}, as what is better when lower; here more counts as better"
        yield replace(not_known(fact), check="score better when higher")
    losses = study.epochs.groupby("run", sort=False, observed=True)["loss"].agg(["first", "last"])
    rising = int((losses["last"] > losses["first"]).sum())
    if rising > len(losses) / 2:
        fact = f"the loss of the last epoch is above that of the first in {rising} runs"
        yield replace(no(fact), check="loss falls")


def check_facts(row: str, study: Study) -> Check:
    """Check what answers for a row: that both frameworks had the same, and that the runs of both tell it.

    Runs that differ in a fact that must agree have been refused; what is left are facts that one framework's
    runs alone tell, values that prove nothing, and sets such as hosts, of which each may have had its own.
    """
    facts = [*FACTS]
    facts += version_facts(study.headers) if row == SOFTWARE else ()
    facts += setting_facts(study.headers) if row in SETTINGS.values() else ()
    own = [fact for fact in facts if fact.row == row]
    return _facts_apart(own, study) or _known_by_one(own, study) or _equal(own, study)


def _facts_apart(facts: Sequence[Fact], study: Study) -> Check | None:
    """Return at which points the frameworks had hardly anything of a set in common."""
    sets = [fact for fact in facts if fact.is_free_set]
    apart: dict[PointPair, str] = {}
    for pair, both in sides(study.runs) if sets else ():
        found = (_apart(fact, both, study.headers, names_of_pair(study, pair)) for fact in sets)
        if words := next(filter(None, found), ""):
            apart[pair] = f"{point_name(pair)} {words}"
    if not apart:
        return None
    cure = " (submit with --one-allocation)" if sets[0].row == PLACES else ""
    return withhold_claims(f"{first_points(apart.values())}: a difference may be theirs{cure}", apart)


def _apart(fact: Fact, both: Sides, headers: Mapping[str, Header], names: tuple[str, str]) -> str:
    """Return what one framework's runs had and the other's had not, in words; else nothing.

    A single host that served nearly all launches of one framework and hardly any of the other is enough to
    make a difference, however many others they share: an epoch lasts as long as its slowest worker. Not so
    a single core: Slurm gives jobs now these, now those.
    """
    # How many launches of each side had each value, in any attempt.
    used = [
        Counter(value for run in side["run"] for value in values_of(fact, headers[run].attempts()))
        for side in both
    ]
    if _shared_use(*used) <= TOO_FEW_SHARED:
        return in_both(fact.name, map(sorted, used), names)
    for value in sorted({*used[0], *used[1]}) if fact.name != CORE_NUMBERS else ():
        shares = [own[value] / len(side) for own, side in zip(used, both, strict=True)]
        if abs(shares[0] - shares[1]) >= MOST_UNEQUAL_SHARE - _ROUNDING:
            times = [[f"{own[value]} of {len(side)}"] for own, side in zip(used, both, strict=True)]
            return in_both(f"{fact.name}, launches on {value}", times, names)
    return ""


def _shared_use(first: Counter[str], second: Counter[str]) -> float:
    """Return which share of the frameworks' use of something is equal: 1 if each was used by both as much."""
    if not first or not second:
        return float(not first and not second)
    return sum(min(first[value] / first.total(), second[value] / second.total()) for value in first & second)


def _known_by_one(facts: Sequence[Fact], study: Study) -> Check | None:
    """Return at which points only one framework's runs tell a fact, with what both tell."""
    found: dict[PointPair, str] = {}
    for fact in facts:
        known = _proven(fact, study.headers)
        pairs = set(pairs_known_of_one(study.runs, known)) if len(known) < len(study.headers) else ()
        for pair, both in sides(study.runs) if pairs else ():
            if pair in pairs:
                values = (values_of(fact, (study.headers[run] for run in side["run"])) for side in both)
                words = in_both(fact.name, values, names_of_pair(study, pair))
                found.setdefault(pair, f"{point_name(pair)} {words}")
    return known_of_one(first_points(found.values()), found) if found else None


def _proven(fact: Fact, headers: Mapping[str, Header]) -> list[str]:
    """Return the runs that tell a fact, and in a way that proves it; what is a set may be empty."""
    values = {run: fact.of(header) for run, header in headers.items()}
    return [
        run for run, told in values.items() if fact.is_free_set or (told is not None and fact.sound(told))
    ]


def _equal(facts: Sequence[Fact], study: Study) -> Check:
    """Return that the runs agree in these facts, with their values, or which of them prove nothing."""
    headers = study.headers.values()
    first = next(iter(headers))
    unproven = [fact for fact in facts if len(_proven(fact, study.headers)) < len(headers)]
    told = [
        f"{fact.title(first)} {first_of([clean(value) for value in values], 'value', MOST_EXAMPLES)}"
        for fact in unproven or facts
        if (values := values_of(fact, headers)) or unproven
    ]
    text = first_of([words.strip() for words in told], "fact", _MOST_LISTED, separator="; ")
    return not_known(f"not recorded by every run, or no proof: {text}") if unproven else yes(text)


def check_evaluated(study: Study) -> Check:
    """Check that every run evaluated the same test images, all of them once; emulated ones evaluate none."""
    if study.is_emulated:
        return yes(NOTHING_LEARNED)
    options = dict(zip(study.runs["run"], study.runs["options"], strict=True))
    of_run = study.evaluations["run"].map(options).astype(str)
    for what, counts in (("pixels", COUNTS), ("pixels of foreground", FOREGROUND_COUNTS)):
        pixels = study.evaluations[counts].astype(float).sum(axis="columns")
        ranges = pixels.groupby(of_run).agg(["min", "max"])
        unequal = ranges[ranges["min"] < ranges["max"]]
        if len(unequal):
            fewest, most = (f"{number:,.0f}" for number in unequal.iloc[0])
            return withhold_claims(f"evaluations are of {fewest} to {most} {what} of the same test set")
    return check_facts(EVALUATED, study)


def check_shared(study: Study) -> Check:
    """Check that GPU workers could not use each other's cores: shared devices have been refused."""
    sharing_cores = sum(map(share_cores, study.headers.values()))
    if sharing_cores:
        runs = count(sharing_cores, "run")
        return no(f"devices are owned, but GPU workers of {runs} could use the same cores")
    return yes("every worker had a device, or cores, of its own")


def check_attempts(study: Study) -> Check:
    """Check the hosts of attempts, which may differ: code, cores and data that differ have been refused."""
    moved = {run: hosts for run, header in study.headers.items() if (hosts := moved_between_attempts(header))}
    if moved:
        return no(_named_runs(f"{run} was resumed on other hosts ({hosts})" for run, hosts in moved.items()))
    if study.unknown_attempts:
        fact = f"earlier attempts of {_named_runs(study.unknown_attempts)} left no record"
        pairs = pairs_known_of_one(study.runs, study.headers.keys() - set(study.unknown_attempts))
        return known_of_one(fact, pairs) if pairs else not_known(fact)
    resumed = sum(header.resumed is not None for header in study.headers.values())
    if not resumed:
        return yes("no run was resumed")
    return yes(f"the attempts of {count(resumed, 'resumed run')} agree in code, cores and hosts")


def _named_runs(runs: Iterable[str]) -> str:
    return first_of([clean(run) for run in runs], "run", _MOST_LISTED)


def check_places(study: Study) -> Check:
    """Check that runs of equal worker count ran on the same hosts, devices, cores and partition."""
    runs = study.runs
    if not study.headers or (runs["hosts"] == "").all():
        return not_known(WITHOUT_RECORD)
    if are_on_one_machine(runs):
        return yes("all hosts are those of a slowed virtual cluster, and so of one machine")
    found = check_facts(PLACES, study)
    sets = runs.groupby("workers")["hosts"].nunique()
    differing = ", ".join(map(str, sets.index[sets > 1]))
    if found.mark == YES and differing:
        return no(f"runs on {differing} workers used several sets of hosts; a difference may be theirs")
    return found


def check_work(study: Study) -> Check:
    """Check that both runs of a repeat had equal steps, images and warm-up in every epoch."""
    if not study.provenance_known or study.runs["images_per_epoch"].isna().any():
        return not_known(WITHOUT_RECORD)
    both = _beside(study, study.epochs, "epoch")
    faults = _faults(both, "epoch", {name: _differ(both, name) for name in ("steps", "images", "warmup")})
    if faults:
        return withhold_claims(first_points(faults.values()), faults)
    return yes(f"at equal worker counts every epoch had as many steps and {study.score.samples}")


def check_training(study: Study) -> Check:
    """Check that both runs of a repeat trained the same, as the project promises, whatever carries gradients.

    On CPUs and on up to MOST_EXACT_WORKERS, losses, weights and counts of every evaluation are equal to the
    last bit. Where sums are made in another order, or by kernels that are not deterministic (GPUs, other
    hosts, compiled code, gradients in half precision, synchronised norms, accumulated or resumed steps),
    losses differ by no more than rounding explains. The learning rate is equal everywhere.
    """
    epochs = _beside(study, study.epochs, "epoch")
    scores = _beside(study, study.evaluations, "epochs")
    if epochs.empty:
        return not_known("no repeat has runs of both frameworks")
    evaluated = {name: _differ(scores, name) & scores["exact"] for name in ("weights_sha256", *COUNTS, "iou")}
    faults = _faults(scores, "epochs", evaluated | {"images": _differ(scores, "images")})
    loss = _differ(epochs, "loss") & (epochs["exact"] | ~_within_rounding(epochs))
    of_epochs = {"loss": loss, "learning_rate": _differ(epochs, "learning_rate")}
    faults |= _faults(epochs, "epoch", of_epochs)
    if faults:
        return withhold_claims(first_points(faults.values()), faults)
    if one_sided := _known_by_one([fact for fact in FACTS if fact.row == TRAINING], study):
        return one_sided
    pairs = epochs.drop_duplicates(["run_native", "run_other"])
    exact = int(pairs["exact"].sum())
    compared = f"in {exact} of {count(len(pairs), 'pair')} of runs"
    bounded = ", losses within rounding in the others" if exact < len(pairs) else ""
    learned = f"losses, weights and counts are equal to the last bit {compared}{bounded}"
    trained = NOTHING_LEARNED if study.is_emulated else learned
    return yes(f"{trained}; learning rates are equal in every epoch")


def _beside(study: Study, table: pd.DataFrame, on: str) -> pd.DataFrame:
    """Return the rows of both runs of each repeat side by side; `exact` where all bits are to be equal."""
    runs = study.runs[[*POINT, "repeat", "run", "hosts"]]
    pairs = side_by_side(runs, ["options", "workers", "repeat"])
    deterministic = {run for run, header in study.headers.items() if _is_deterministic(header)}
    pairs["exact"] = (
        pairs["run_native"].isin(deterministic)
        & pairs["run_other"].isin(deterministic)
        & (pairs["hosts_native"] == pairs["hosts_other"])
    )
    own = table.assign(run=table["run"].astype(object))
    native, other = (
        own.rename(columns={column: f"{column}_{arm}" for column in own.columns if column != on})
        for arm in ("native", "other")
    )
    return pairs.merge(native, on="run_native").merge(other, on=["run_other", on])


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


def _differ(both: pd.DataFrame, name: str) -> "pd.Series[bool]":
    """Return where both runs have another value; what both do not know is no difference."""
    native, other = both[f"{name}_native"], both[f"{name}_other"]
    return (native != other) & ~(native.isna() & other.isna())


def _within_rounding(both: pd.DataFrame) -> "pd.Series[bool]":
    """Return where the losses of an epoch differ by no more than rounding explains after so many steps."""
    by_pair = both.groupby(["run_native", "run_other"], sort=False)
    few = by_pair["steps_native"].cumsum() <= FEW_STEPS
    first = by_pair["loss_native"].transform("first")
    loss = both["loss_native"].clip(lower=LEAST_LOSS_SHARE * first)
    tolerance = few.map({True: LOSS_TOLERANCE_SHARE_OF_FEW_STEPS, False: LOSS_TOLERANCE_SHARE})
    return (both["loss_native"] - both["loss_other"]).abs() <= tolerance * loss


def _faults(both: pd.DataFrame, on: str, differing: Mapping[str, "pd.Series[bool]"]) -> dict[PointPair, str]:
    """Return the first difference at each point in words, with both runs and values."""
    faults: dict[PointPair, str] = {}
    for name, differs in differing.items():
        for _, rows in both[differs.astype(bool)].groupby(KEY, sort=False):
            pair = pairs_of(rows)[0]
            row = rows.to_dict("records")[0]
            place = f"in epoch {row[on]}" if on == "epoch" else f"evaluated after epoch {row[on] - 1}"
            values = [f"{_shown(row[f'{name}_{arm}'])} in {row[f'run_{arm}']}" for arm in ("native", "other")]
            runs = count(len(rows.drop_duplicates(["run_native", "run_other"])), "pair")
            words = f"{name} {place} is {clean(', but '.join(values))} ({runs} of runs differ)"
            faults.setdefault(pair, f"{point_name(pair)} {words}")
    return faults


def _shown(value: object) -> str:
    return value[:16] if isinstance(value, str) else f"{value:.10g}"


def check_repeats(study: Study) -> Check:
    """Check that all points have equally many repeats."""
    sizes = study.runs.groupby(POINT, sort=False).size()
    if sizes.empty:
        return not_known("no run can be used")
    fact = f"{repeats_text(sizes)} per point"
    return yes(fact) if sizes.nunique() == 1 else no(fact)


def check_quiet(study: Study) -> Check:
    """Check that neither other programs nor stalls disturbed launches that count for speed."""
    runs = study.runs
    is_disturbed = runs["disturbed"] != ""
    paired = paired_runs(study)
    pairs = pairs_of(paired[paired["has_disturbed"]])
    if pairs or len(kept_though_disturbed(study)):
        reasons = runs.loc[is_disturbed, "disturbed"]
        disturbed = f"{len(reasons)} of {count(len(runs), 'run')} disturbed"
        fact = f"{disturbed}, such as: {clean(reasons.iloc[0])}"
        return withhold_claims(fact, pairs) if pairs else no(fact)
    known = runs["busy_share"].notna()
    is_short = runs["epochs_used"] * runs["seconds_per_epoch"] < SHORTEST_JUDGED_SECONDS
    if one_sided := pairs_known_of_one(runs, runs.loc[known | is_short, "run"]):
        where = first_points(map(point_name, one_sided))
        return known_of_one(f"{where} only one framework's runs say what other processes took", one_sided)
    if not known.all():
        return not_known("not every run recorded what other processes took of its cores")
    most = 100 * runs.loc[~is_disturbed, "busy_share"].max()
    left_out = (
        f"; {count(is_disturbed.sum(), 'disturbed run')} left out of speed" if is_disturbed.any() else ""
    )
    return yes(f"other processes took at most {most:.1f} % of a worker's time{left_out}")


Checks = Mapping[str, Callable[[Study], Check]]
# Of the headers: nothing is known of logs without them.
OF_HEADERS: Checks = {
    WEIGHTS: partial(check_facts, WEIGHTS),
    BATCHES: partial(check_facts, BATCHES),
    EVALUATED: check_evaluated,
    DEVICES: partial(check_facts, DEVICES),
    COMPUTING: partial(check_facts, COMPUTING),
    SAME_VARIABLES: partial(check_facts, SAME_VARIABLES),
    "workers share nothing": check_shared,
    SOFTWARE: partial(check_facts, SOFTWARE),
    "same machine in all attempts": check_attempts,
    TRAINING: check_training,
}
OF_TABLES: Checks = {
    PLACES: check_places,
    ALONE: check_alone,
    "same clock of the cores": check_clocks,
    "same work per epoch": check_work,
    "order interleaved in time": check_order,
    "either framework first": check_first,
    BASELINE: check_baseline,
    "equal repeats": check_repeats,
    "asked for and read": check_asked,
    QUIET: check_quiet,
}
# Of them, those that compare two frameworks.
OF_A_PAIR = (
    DEVICES, COMPUTING, SAME_VARIABLES, SOFTWARE, TRAINING, PLACES, ALONE, "same clock of the cores",
    "same work per epoch", "order interleaved in time", "either framework first", QUIET,
)  # fmt: skip
# Of what decides an IoU: nothing else is compared of played runs.
OF_PLAYED = (WEIGHTS, BATCHES, EVALUATED, COMPUTING, SOFTWARE)


def disturbed_notes(study: Study) -> Iterator[str]:
    """Yield the disturbed launches by name and reason, and the stalls that were too short to disturb one."""
    disturbed = study.runs[study.runs["disturbed"] != ""]
    is_kept = disturbed["run"].isin(kept_though_disturbed(study)["run"])
    few = f"as fewer than {FEWEST_REPEATS} others of the point remain"
    fates = (
        (disturbed[~is_kept], f"left out of speed, and kept in {study.score.title}"),
        (disturbed[is_kept], f"counted for speed all the same, {few}"),
    )
    for runs, fate in fates:
        if len(runs):
            launches = f"{len(runs)} disturbed launches are" if len(runs) > 1 else "1 disturbed launch is"
            cure = "--repeat-disturbed on submission measures them again"
            yield f"{launches} {fate}: {_with_reason(runs, 'disturbed')}; {cure}"
    stalled = study.runs[(study.runs["disturbed"] == "") & (study.runs["stalls"] != "")]
    if len(stalled):
        yield f"stalled epochs are left out of throughput: {_with_reason(stalled, 'stalls')}"


def _with_reason(runs: pd.DataFrame, column: str) -> str:
    named = [f"{run} ({reason})" for run, reason in zip(runs["run"], runs[column], strict=True)]
    more = len(named) - _MOST_LISTED
    return "; ".join(named[:_MOST_LISTED]) + (f"; and {more} more" if more > 0 else "")
