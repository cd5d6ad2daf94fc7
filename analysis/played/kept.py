"""Up to how many workers training keeps the IoU of 1 worker: the finding of a series, and its sentence."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import get_args

import pandas as pd

from analysis.findings.differences import not_learned_words
from analysis.played.points import LossVerdict, series_rows
from analysis.stats import FEWEST_REPEATS
from analysis.study import Names, Study
from analysis.text import Row, bracketed, count, listed, series_name

_DIGITS = ".3f"
# What is behind the first counts that fail says little more.
_MOST_NAMED = 3


@dataclass(frozen=True)
class JudgedCount:
    """One number of workers of a series: the verdict on it, and its row of the table of points.

    Where played and real runs have this number, the verdict is the worse one; but one that is undecided does
    not count where the other has more seeds in common with 1 worker.
    """

    workers: int
    verdict: LossVerdict
    row: Row


@dataclass(frozen=True)
class KeptIou:
    """What a series shows: its numbers of workers above 1, in order, and the seeds of 1 worker with an IoU.

    `baseline_diverged` counts runs on 1 worker; `kinds` are those of its runs, "played" or "real".
    `not_learned` is the row of 1 worker where that learned no more than a constant prediction.
    """

    options: str
    framework: str
    knobs: str
    counts: tuple[JudgedCount, ...]
    baseline_seeds: int
    baseline_diverged: int
    kinds: tuple[str, ...]
    not_learned: Row | None = None

    @property
    def shown(self) -> list[JudgedCount]:
        """The numbers of workers that keep the IoU, as do all smaller ones."""
        return list(takewhile(lambda count: count.verdict == "no loss", self.counts))

    @property
    def workers(self) -> int:
        """The largest number of workers that keeps the IoU, as do all smaller ones; 1 where none is shown."""
        return self.shown[-1].workers if self.shown else 1

    @property
    def beyond(self) -> list[JudgedCount]:
        """The larger numbers of workers."""
        return list(self.counts[len(self.shown) :])

    @property
    def is_decided(self) -> bool:
        """Whether a number above 1 is shown to keep the IoU, or the smallest one not to."""
        return bool(self.shown) or bool(self.counts and self.counts[0].verdict in ("loss", "diverges"))

    def name(self, names: Names) -> str:
        """Return the framework with its knobs."""
        return series_name({"framework": self.framework, "knobs": self.knobs}, names)


def kept_ious(table: pd.DataFrame) -> list[KeptIou]:
    """Return what each series of `played_table` shows, in its order; only of series with a played run."""
    return [_kept(key, rows) for key, rows in series_rows(table) if (rows["kind"] == "played").any()]


def _kept(key: tuple[str, str, str], rows: pd.DataFrame) -> KeptIou:
    alone = rows[rows["workers"] == 1]
    counts = [_judged(of) for _, of in rows[rows["workers"] > 1].groupby("workers")]
    kinds = tuple(kind for kind in ("played", "real") if (rows["kind"] == kind).any())
    seeds, diverged = (int(alone[name].max()) if len(alone) else 0 for name in ("seeds", "diverged"))
    nothing = alone[alone["learned"] == "no"].to_dict("records")
    return KeptIou(*key, tuple(counts), seeds, diverged, kinds, nothing[0] if nothing else None)


def _judged(rows: pd.DataFrame) -> JudgedCount:
    order = get_args(LossVerdict)
    telling = rows[(rows["verdict"] != "undecided") | (rows["pairs"] == rows["pairs"].max())]
    worst = min(telling.to_dict("records"), key=lambda row: order.index(row["verdict"]))
    return JudgedCount(int(worst["workers"]), worst["verdict"], worst)


def kept_sentence(kept: KeptIou, study: Study) -> str:
    """Return "up to 8 workers keep the IoU; 14 lose 0.040 [0.021, 0.058]", or what is undecided."""
    if not kept.counts:
        return "undecided: no run trained as more than 1 worker"
    if kept.not_learned:
        return f"{not_learned_words(kept.not_learned, study.score.title)}, so no number of workers is judged"
    if not kept.baseline_seeds and not any(each.verdict == "diverges" for each in kept.counts):
        return "undecided: no run on 1 worker to compare with"
    parts = [*_head(kept, study), *_alone(kept), *_rest(kept)]
    more = len(parts) - _MOST_NAMED
    return "; ".join([*parts[:_MOST_NAMED], *([f"and {count(more, 'larger number')}"] if more > 0 else [])])


def _head(kept: KeptIou, study: Study) -> Iterator[str]:
    """Yield up to what number the IoU is kept, and what is known of the next one."""
    if kept.shown:
        most = "" if kept.beyond else f", the most tried (margin {kept.shown[-1].row['margin']:.2g})"
        yield f"up to {count(kept.workers, 'worker')} keep the {study.score.title}{most}"
    for each in kept.beyond[:1]:
        if each.verdict == "undecided":
            start = "from" if kept.shown else "undecided from"
            state = " on undecided" if kept.shown else " on"
            yield f"{start} {count(each.workers, 'worker')}{state} ({_undecided(each.row, study)})"
        elif kept.shown:
            yield _failing(each, f"{each.workers:,}")
        else:
            yield f"even {_failing(each, count(each.workers, 'worker'))}"


def _alone(kept: KeptIou) -> Iterator[str]:
    """Yield that 1 worker itself diverges: what all others are compared with."""
    if kept.baseline_diverged:
        yield f"even 1 worker diverges for {count(kept.baseline_diverged, 'seed')}"


def _rest(kept: KeptIou) -> Iterator[str]:
    """Yield what is known of the numbers behind the first that is not shown to keep the IoU."""
    for each in kept.beyond[1:]:
        if each.verdict in ("loss", "diverges"):
            yield _failing(each, f"{each.workers:,}")
        elif each.verdict == "no loss":
            yield f"{each.workers:,} keep it"


def _failing(judged: JudgedCount, number: str) -> str:
    if judged.verdict == "diverges":
        return f"training as {number} diverges ({_diverged(judged.row)})"
    return f"{number} lose {_lost(judged.row)}"


def _lost(row: Row) -> str:
    """Return the loss of IoU with its interval."""
    interval = bracketed(-row["difference_high"], -row["difference_low"], _DIGITS)
    return f"{-row['difference']:{_DIGITS}} {interval}"


def _diverged(row: Row) -> str:
    return f"{row['diverged']} of {count(row['diverged'] + row['seeds'], 'run')}"


def _undecided(row: Row, study: Study) -> str:
    if row["pairs"] < FEWEST_REPEATS:
        return f"{count(row['pairs'], 'seed')} in common with 1 worker, at least {FEWEST_REPEATS} needed"
    if pd.isna(row["difference"]):
        return f"the {study.score.title} of a run is not known"
    interval = bracketed(row["difference_low"], row["difference_high"], f"+{_DIGITS}")
    return f"difference {row['difference']:+{_DIGITS}} {interval}, margin {row['margin']:.2g}"


def kept_by_options(kept: Sequence[KeptIou], study: Study) -> dict[str, str]:
    """Return a sentence for each set of options: one for all series where they agree, else one of each."""
    sentences = {}
    for options in dict.fromkeys(each.options for each in kept):
        of = [each for each in kept if each.options == options]
        found = {each.name(study.names): kept_sentence(each, study) for each in of}
        agree = len(set(found.values())) == 1
        parts = [*found.values()][:1] if agree else [f"{name}: {text}" for name, text in found.items()]
        sentences[options] = "; ".join(parts)
    return sentences


def kept_farthest_first(kept: Sequence[KeptIou]) -> dict[str, list[KeptIou]]:
    """Return the findings of each set of options, of most workers that keep the IoU first, then of most IoU.

    Of several series of a set the one that keeps it least far counts.
    """
    sets: dict[str, list[KeptIou]] = {}
    for each in kept:
        sets.setdefault(each.options, []).append(each)
    return dict(sorted(sets.items(), key=lambda found: _order(found[1])))


def _order(kept: Sequence[KeptIou]) -> tuple[float, float]:
    first = min(kept, key=lambda each: each.workers)
    return -first.workers, -float(first.shown[-1].row["iou"]) if first.shown else 0.0


def kinds_of(kept: Sequence[KeptIou]) -> str:
    """Return "played", or "played and real": the kinds of the runs behind a finding."""
    kinds = {kind for each in kept for kind in each.kinds}
    return listed(kind for kind in ("played", "real") if kind in kinds)
