"""How fair a comparison is: one row per thing that should be equal, with a mark and the fact in words.

Runs that differ in what must agree have been refused before (analysis/facts.py); this table says
of the runs that are used what is equal, and marks also what no refusal can settle: hosts, clocks, order, the
baseline. What compares two frameworks has a row for each that is compared with native DDP.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial

import pandas as pd

from analysis.facts import (
    BATCHES,
    COMPUTING,
    DEVICES,
    EVALUATED,
    PLACES,
    SAME_VARIABLES,
    SOFTWARE,
    TRAINING,
    WEIGHTS,
)
from analysis.findings.asked import check_asked
from analysis.findings.at_once import check_alone
from analysis.findings.baseline import check_baseline
from analysis.findings.check import BASELINE, QUIET, WITHOUT_RECORD, Check, no, not_known, withhold_claims
from analysis.findings.headers import check_attempts, check_evaluated, check_facts, check_shared
from analysis.findings.machines import check_clocks, check_places
from analysis.findings.order import check_first, check_order
from analysis.findings.pair_of_frameworks import pair_study
from analysis.findings.work import check_quiet, check_repeats, check_training, check_work
from analysis.study import COMPARED, Study
from unet_scaling.study.config import Framework
from unet_scaling.study.texts import WORDS_OF_LOSSES

_COLUMNS = ["check", "mark", "fact", "withholds"]

ALONE = "one run at a time on a core"
CLOCKS_ROW = "same clock of the cores"
WORK_ROW = "same work per epoch"
ORDER = "order interleaved in time"
FIRST = "either framework first"
Checks = Mapping[str, Callable[[Study], Check]]
# Of the headers: nothing is known of logs without them.
_OF_HEADERS: Checks = {
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
    CLOCKS_ROW: check_clocks,
    WORK_ROW: check_work,
    ORDER: check_order,
    FIRST: check_first,
    BASELINE: check_baseline,
    "equal repeats": check_repeats,
    "asked for and read": check_asked,
    QUIET: check_quiet,
}
# Of them, those that compare two frameworks.
OF_A_PAIR = (
    DEVICES, COMPUTING, SAME_VARIABLES, SOFTWARE, TRAINING, PLACES, ALONE, CLOCKS_ROW, WORK_ROW, ORDER, FIRST,
    QUIET,
)  # fmt: skip
# Of what decides an IoU: nothing else is compared of played runs.
_OF_PLAYED = (WEIGHTS, BATCHES, EVALUATED, COMPUTING, SOFTWARE)


_OF_SCRIPTS = {
    "arms proven equal": withhold_claims(
        "runs are of scripts, whose model, data, batches, learning rate and score are not recorded"
    )
}


def fairness_table(checks: Sequence[Check]) -> pd.DataFrame:
    """Return the table of these checks: check, mark ("yes", "no", "not known"), fact, withholds."""
    rows = [asdict(check) | {"check": check.title} for check in checks]
    return pd.DataFrame(rows, columns=_COLUMNS)


def fairness_checks(study: Study) -> list[Check]:
    """Return the rows of the fairness table, from the headers and the tables of a study alone.

    Where all runs are played, they are those of what decides an IoU; where all tell of saliency maps only,
    those of headers; of scripts, arms are not proven equal.
    Of a study with further frameworks, rows of a pair are those of native DDP and Horovod, where it has
    runs, then those of each other framework.
    """
    if study.is_of_scripts:
        checks = _OF_SCRIPTS | {name: check(study) for name, check in OF_TABLES.items()}
        return _named(checks, study)
    if study.runs.empty and study.played is not None:
        played = {name: _OF_HEADERS[name](study.played) for name in _OF_PLAYED if study.played.headers}
        return _named(played | _of_training(study.played), study.played)
    if study.runs.empty and study.maps_only is not None:
        of_maps = study.maps_only
        return _named({name: check(of_maps) for name, check in _OF_HEADERS.items()}, of_maps)
    found = _named(_checks_of_runs(study), study)
    native, horovod = (framework in set(study.runs["framework"]) for framework in COMPARED)
    if not study.wrappers or not native:
        return found
    own = [check for check in found if horovod or check.check not in OF_A_PAIR]
    return [*own, *(check for framework in study.wrappers for check in _of_pair(study, framework))]


def _checks_of_runs(study: Study) -> dict[str, Check]:
    checks = {
        name: check(study) if study.headers else not_known(WITHOUT_RECORD)
        for name, check in _OF_HEADERS.items()
    }
    return checks | _of_training(study) | {name: check(study) for name, check in OF_TABLES.items()}


def _of_training(study: Study) -> dict[str, Check]:
    """Return rows of what speaks against the training itself; none where nothing does, or no record tells."""
    rows: dict[str, Check] = {}
    if not study.headers:
        return rows
    if not all(header.config.task.loss_is_mean for header in study.headers.values()):
        rows["same loss at every worker count"] = no(
            "task.loss_is_mean = false: each worker divides the loss by what its own batch holds, so that "
            "every number of workers trains another loss, whatever the framework"
        )
    # Tasks of today record 1 less such a score.
    if not study.score.name.startswith("one_minus_") and WORDS_OF_LOSSES.search(study.score.name):
        fact = f"it is called {study.score.name}, as what is better when lower; here more counts as better"
        rows["score better when higher"] = not_known(fact)
    losses = study.epochs.groupby("run", sort=False, observed=True)["loss"].agg(["first", "last"])
    rising = int((losses["last"] > losses["first"]).sum())
    if rising > len(losses) / 2:
        rows["loss falls"] = no(f"the loss of the last epoch is above that of the first in {rising} runs")
    return rows


def _of_pair(study: Study, framework: Framework) -> list[Check]:
    """Return the rows of native DDP and this framework."""
    pair = pair_study(study, framework)
    # Runs of any framework may have trained on the cores of this pair.
    among_all = replace(pair, headers=study.headers, epochs=study.epochs)
    every = {**_OF_HEADERS, **OF_TABLES}
    made = {name: every[name](among_all if name == ALONE else pair) for name in OF_A_PAIR}
    return [replace(check, framework=framework) for check in _named(made, study)]


def _named(checks: Mapping[str, Check], study: Study) -> list[Check]:
    """Return the checks, each with its name."""
    evaluated = f"same {study.score.samples} evaluated"
    names = {name: evaluated if name == EVALUATED else name for name in checks}
    return [replace(check, check=names[name]) for name, check in checks.items()]
