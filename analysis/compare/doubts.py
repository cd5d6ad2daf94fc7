"""What speaks against the throughputs of a point: launches disturbed, at once, or of both studies."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from analysis.compare.matching import PointMatch
from analysis.compare.sides import StudySide
from analysis.findings.asked import asked_at
from analysis.loading.asked import FINAL_FATES
from analysis.machines import Clash, clashes_of
from analysis.stats import kept_though_disturbed
from analysis.study import Study
from analysis.text import clean, count


def doubts_on_speed(a: StudySide, b: StudySide, matches: Sequence[PointMatch]) -> list[str]:
    """Return what speaks against the throughputs of each match, or nothing."""
    clashes = _clashes_between(a, b)
    common = common_launches(a, b)
    return ["; ".join(_doubts(a, b, match, clashes, common)) for match in matches]


def _doubts(
    a: StudySide, b: StudySide, match: PointMatch, clashes: Sequence[Clash], common: Mapping[str, str]
) -> Iterator[str]:
    yield from _disturbed(a, b, match)
    yield from _chosen(a, b, match)
    launches = {f"{side.letter} {run}" for side, run in _runs(a, b, match)}
    at_once = [clash for clash in clashes if launches & {*clash[:2]}]
    if at_once:
        first, second, shared = at_once[0]
        more = f" (and {count(len(at_once) - 1, 'more pair')})" if len(at_once) > 1 else ""
        yield f"{clean(first)} and {clean(second)} trained at the same time on {shared}{more}"
    same = [run for run in match.a.runs if common.get(run) in match.b.runs]
    if same:
        yield f"{count(len(same), 'launch')} of it stand in both studies: the same measurement, or copied"


def _runs(a: StudySide, b: StudySide, match: PointMatch) -> Iterator[tuple[StudySide, str]]:
    for side, point in ((a, match.a), (b, match.b)):
        yield from ((side, run) for run in point.runs)


def _disturbed(a: StudySide, b: StudySide, match: PointMatch) -> Iterator[str]:
    """Yield how many launches count though other programs or stalls disturbed them."""
    for side, point in ((a, match.a), (b, match.b)):
        disturbed = int(kept_though_disturbed(side.study)["run"].isin(point.runs).sum())
        if disturbed:
            yield f"{count(disturbed, 'launch')} of {side.letter} disturbed by other programs or a stall"


def _chosen(a: StudySide, b: StudySide, match: PointMatch) -> Iterator[str]:
    """Yield how launches could be chosen by their results: a look before the last, quiet ones made again."""
    for side, point in ((a, match.a), (b, match.b)):
        asked = side.study.asked
        if asked is None:
            continue
        own = asked_at(asked, point.runs)
        to_come = int((~own["fate"].isin(FINAL_FATES)).sum())
        if to_come:
            yield f"{count(to_come, 'repeat')} that {side.letter} asks for are still to come"
        again = int(own["quiet_replaced"].sum())
        if again:
            yield f"{count(again, 'launch')} of {side.letter} made again, though nothing disturbed them"


def common_launches(a: StudySide, b: StudySide) -> Mapping[str, str]:
    """Return the launches that stand in both studies, perhaps in part or times a factor: {run of A: of B}."""
    of_b = {mark: run for run in b.study.headers for mark in _marks(b, run)}
    found = {run: [of_b[mark] for mark in _marks(a, run) if mark in of_b] for run in a.study.headers}
    return {run: same[0] for run, same in found.items() if same}


def _marks(side: StudySide, run: str) -> list[object]:
    """Return what no other launch has: its start, place and results together, and digests of its epochs."""
    header = side.study.headers[run]
    row = side.study.runs[side.study.runs["run"] == run].iloc[0]
    launch = header.config_sha256, header.started_utc, row["hosts"], row["images_per_second"], row["iou"]
    return [launch, *side.study.digests.get(run, ())]


def _clashes_between(a: StudySide, b: StudySide) -> list[Clash]:
    """Return the launches of either study that trained at the same time on one core or device."""
    if not (a.study.provenance_known and b.study.provenance_known):
        return []
    copies = {*common_launches(a, b).values()}
    return clashes_of(_together(a, b, copies))


def _together(a: StudySide, b: StudySide, copies: set[str]) -> Study:
    """Return a study of the launches of both, named "A RUN" and "B RUN", those of both once."""
    headers = {f"A {run}": header for run, header in a.study.headers.items()}
    headers |= {f"B {run}": header for run, header in b.study.headers.items() if run not in copies}
    epochs = pd.concat([_named_epochs(side) for side in (a, b)], ignore_index=True)
    return replace(a.study, headers=headers, epochs=epochs[epochs["run"].isin([*headers])])


def _named_epochs(side: StudySide) -> pd.DataFrame:
    epochs = side.study.epochs
    return epochs.assign(run=f"{side.letter} " + epochs["run"].astype(str))
