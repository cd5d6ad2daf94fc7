"""Whether each run of a study had its cores, or its devices, to itself while it trained."""

from collections.abc import Callable, Iterator

import pandas as pd

from analysis.findings.arms import sides
from analysis.findings.check import NO, NOT_KNOWN, WITHOUT_RECORD, YES, Check
from analysis.loading.fairness import hosts
from analysis.study import Study
from analysis.text import clean, count
from unet_scaling.study.record_lines import Header
from unet_scaling.study.shared_devices import owned_devices

# Start times are whole seconds.
CLOCK_STEP_SECONDS = 1.0

Thing = tuple[str, str]
Clash = tuple[str, str, str]


def check_alone(study: Study) -> Check:
    """Check that no two runs of the study trained at the same time on one core or device.

    A run trained at least from its last attempt's start for as long as that attempt's epochs say: what its
    processes took to start and its evaluations come on top, and are not counted.
    """
    name = "one run at a time on a core"
    if not study.headers:
        return Check(name, NOT_KNOWN, WITHOUT_RECORD)
    trained = _trained(study)
    known = trained.dropna().sort_values("begin", kind="stable")
    # Cores are many: only of runs that a host served at the same time are they looked up.
    together = {run for clash in _clashes(study, known, _hosts) for run in clash[:2]}
    clashes = list(_clashes(study, known[known.index.isin(together)], _owned))
    if clashes:
        first, second, on = clashes[0]
        more = f" (and {count(len(clashes) - 1, 'more pair')})" if len(clashes) > 1 else ""
        concerned = {run for clash in clashes for run in clash[:2]}
        pairs = frozenset(
            pair for pair, both in sides(study.runs) if any(concerned & {*side["run"]} for side in both)
        )
        fact = (
            f"{clean(first)} and {clean(second)} trained at the same time on {on}{more}: each slows the other"
        )
        return Check(name, NO, fact, withholds=bool(pairs), pairs=pairs)
    unknown = int(trained["begin"].isna().sum())
    if unknown:
        return Check(
            name, NOT_KNOWN, f"{unknown} of {count(len(trained), 'run')} do not say when they started"
        )
    return Check(name, YES, "no two runs trained at the same time on one core or device")


def _trained(study: Study) -> pd.DataFrame:
    """Return begin and end, in seconds, of what the last attempt of each run trained."""
    first_epochs = {run: _first_whole_epoch(study, run) for run in study.headers}
    epochs = study.epochs[["run", "epoch", "seconds"]]
    own = epochs[epochs["epoch"] >= epochs["run"].map(first_epochs).astype(int)]
    seconds = own.groupby("run", observed=True)["seconds"].sum()
    started = pd.Series({run: header.started_utc for run, header in study.headers.items()})
    times = pd.to_datetime(started, errors="coerce", utc=True, format="ISO8601")
    begin = (times - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)
    return pd.DataFrame({"begin": begin, "end": begin + begin.index.map(seconds.to_dict()).fillna(0.0)})


def _first_whole_epoch(study: Study, run: str) -> int:
    resumed = study.headers[run].resumed
    return 0 if resumed is None else resumed.epoch + (resumed.step > 0)


def _hosts(header: Header) -> list[Thing]:
    return [("host", host) for host in hosts([header])]


def _owned(header: Header) -> list[Thing]:
    return [thing for worker in header.workers for thing in owned_devices(worker)]


def _clashes(study: Study, trained: pd.DataFrame, things: Callable[[Header], list[Thing]]) -> Iterator[Clash]:
    """Yield, for each run that began while another held one of its things, both runs and that thing.

    `trained` is sorted by begin, so that the last end of each core and device is all there is to keep.
    """
    last: dict[Thing, tuple[float, str]] = {}
    for run, begin, end in trained.itertuples(name=None):
        held = things(study.headers[run])
        clash = next((thing for thing in held if _busy(last.get(thing), begin)), None)
        if clash:
            yield last[clash][1], run, clean(" ".join(clash))
        for thing in held:
            last[thing] = max(last.get(thing, (end, run)), (end, run))


def _busy(last: tuple[float, str] | None, begin: float) -> bool:
    return last is not None and last[0] > begin + CLOCK_STEP_SECONDS
