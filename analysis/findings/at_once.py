"""The check that each run of a study had its cores, or its devices, to itself while it trained."""

import math
from collections.abc import Iterable, Iterator, Mapping

import pandas as pd

from analysis.facts import hosts
from analysis.findings.check import WITHOUT_HEADER, WITHOUT_RECORD, Check, no, not_known, withhold_claims, yes
from analysis.findings.pairs import sides
from analysis.study import Study
from analysis.text import clean, count
from unet_scaling.study.shared_devices import owned_devices

# Start times are whole seconds.
CLOCK_STEP_SECONDS = 1.0

# A host, a device, or a core of a host: its kind and its name.
Resource = tuple[str, str]
Resources = Mapping[str, list[Resource]]
FREE = (-math.inf, "")
# Both runs, and what they shared.
Clash = tuple[str, str, str]


def check_alone(study: Study) -> Check:
    """Check that no run of the study trained at the same time as another on one core or device.

    Another may be one of whose header and epochs alone the study tells, beside its runs.
    A run trained at least from its last attempt's start for as long as that attempt's epochs say: what its
    processes took to start and its evaluations come on top, and are not counted.
    """
    if not study.headers:
        return not_known(WITHOUT_HEADER if study.is_of_scripts else WITHOUT_RECORD)
    trained = _trained(study)
    own = set(study.runs["run"])
    clashes = [clash for clash in _clashes_of_cores(study, trained) if own & {*clash[:2]}]
    if clashes:
        return _at_once(study, clashes)
    unknown = int(trained["begin"].isna().sum())
    if unknown:
        return not_known(f"{unknown} of {count(len(trained), 'run')} do not say when they started")
    return yes("no two runs trained at the same time on one core or device")


def clashes_of(study: Study) -> list[Clash]:
    """Return both runs and what they shared, for each run that began while another held a core of its own."""
    return _clashes_of_cores(study, _trained(study))


def _clashes_of_cores(study: Study, trained: pd.DataFrame) -> list[Clash]:
    in_order = trained.dropna().sort_values("begin", kind="stable")
    # Cores are many: only of runs that a host served at the same time are they looked up.
    by_host = {run: [("host", host) for host in hosts([header])] for run, header in study.headers.items()}
    together = _runs_of(_clashes(in_order, by_host))
    owned = {
        run: [each for worker in study.headers[run].workers for each in owned_devices(worker)]
        for run in together
    }
    return list(_clashes(in_order[in_order.index.isin(together)], owned))


def _at_once(study: Study, clashes: list[Clash]) -> Check:
    first, second, shared = clashes[0]
    more = f" (and {count(len(clashes) - 1, 'more pair')})" if len(clashes) > 1 else ""
    runs = f"{clean(first)} and {clean(second)}"
    fact = f"{runs} trained at the same time on {shared}{more}: each slows the other"
    concerned = _runs_of(clashes)
    pairs = [pair for pair, both in sides(study.runs) if any(concerned & {*side["run"]} for side in both)]
    return withhold_claims(fact, pairs) if pairs else no(fact)


def _runs_of(clashes: Iterable[Clash]) -> set[str]:
    return {run for clash in clashes for run in clash[:2]}


def _trained(study: Study) -> pd.DataFrame:
    """Return begin and end, in seconds, of what the last attempt of each run trained."""
    started = pd.Series({run: header.started_utc for run, header in study.headers.items()})
    times = pd.to_datetime(started, errors="coerce", utc=True, format="ISO8601")
    begin = (times - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)
    seconds = begin.index.map(_seconds_of_last_attempt(study)).fillna(0.0)
    return pd.DataFrame({"begin": begin, "end": begin + seconds})


def _seconds_of_last_attempt(study: Study) -> dict[str, float]:
    resumed = {run: header.resumed for run, header in study.headers.items()}
    first_epochs = {run: at.epoch + (at.step > 0) if at else 0 for run, at in resumed.items()}
    epochs = study.epochs[["run", "epoch", "seconds"]]
    own = epochs[epochs["epoch"] >= epochs["run"].map(first_epochs).astype(int)]
    seconds = own.groupby("run", observed=True)["seconds"].sum()
    # What a dilated cluster records lasts as many times longer by the clock that says when runs started.
    slowed = {run: header.dilation or 1.0 for run, header in study.headers.items()}
    return {str(run): float(total) * slowed[str(run)] for run, total in seconds.items()}


def _clashes(trained: pd.DataFrame, resources: Resources) -> Iterator[Clash]:
    """Yield, for each run that began while another held one of its resources, both runs and that resource.

    `trained` is sorted by begin, so that the last end of each core and device is all there is to keep.
    """
    last: dict[Resource, tuple[float, str]] = {}
    for run, begin, end in trained.itertuples(name=None):
        held = resources[run]
        # By (end, run): what is free has ended before all others.
        clash = next((each for each in held if last.get(each, FREE)[0] > begin + CLOCK_STEP_SECONDS), None)
        if clash:
            yield last[clash][1], run, clean(" ".join(clash))
        for resource in held:
            last[resource] = max(last.get(resource, (end, run)), (end, run))
