"""What the saliency maps of a study show, in sentences; no verdict rests on one training."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from analysis.stats import SHARE, coverage, median_intervals
from analysis.study import Study
from analysis.text import bracketed, count, first_of, labelled, percent
from unet_scaling.study.texts import score_title

# Of a column with its interval.
_ENDS = ("", "_low", "_high")
# An order that knows nothing of the network wins on half of the images.
CHANCE_SHARE = 0.5
# Spearman's correlation from which two maps rank the pixels more alike than not: midway from no relation, 0,
# to the same order, 1.
ALIKE = 0.5
# Runs that a sentence names.
_MOST_NAMED = 3


def faithful_sentences(table: pd.DataFrame) -> Iterator[str]:
    """Yield for each score on how many images deletion beats random order, by options where these differ."""
    for score, rows in table.groupby("score", sort=False):
        texts = {
            str(options): _deletion(str(score), same) for options, same in rows.groupby("options", sort=False)
        }
        if len(set(texts.values())) == 1:
            texts = {"": next(iter(texts.values()))}
        yield from (labelled(options, text) for options, text in texts.items())


def _deletion(score: str, rows: pd.DataFrame) -> str:
    nets = rows.drop_duplicates("weights_sha256")
    opening = f"deleting in the map's order lowers the {score_title(score)} faster than random order on"
    one = "; of one repeat, others may differ" if nets["repeat"].nunique() == 1 else ""
    return f"{opening} {_on_images(nets, 'deletion')}{_of_untrained(nets)}{one}"


def _on_images(nets: pd.DataFrame, kind: str) -> str:
    """Return on how many images: their number for one training, the share over several."""
    return _of_images(nets, kind) if len(nets) == 1 else _of_repeats(nets, kind)


def _of_images(rows: pd.DataFrame, kind: str) -> str:
    """Return "47 of 48 images (98 % [89, 100])" of a single row."""
    row = rows.iloc[0]
    of = int(row["untrained_maps" if kind == "untrained" else "images"])
    share, low, high = (row[f"{kind}_share{end}"] for end in _ENDS)
    better = int(row[f"{kind}_better"])
    return f"{better} of {count(of, 'image')} ({percent(share, 0)} {_percent_interval(low, high)})"


def _of_repeats(nets: pd.DataFrame, kind: str) -> str:
    """Return the median over repeats, each the mean of its trainings, with its interval if there is one."""
    shares = nets.groupby("repeat")[f"{kind}_share"].mean().dropna().to_numpy(dtype=np.float64)
    if nets["repeat"].nunique() == 1:
        return f"{percent(float(shares[0]), 0)} of the images (mean of {len(nets)} trainings)"
    ((low, high),) = median_intervals([shares], SHARE)
    level = percent(coverage(len(shares)), 0)
    interval = f", {level} interval {_percent_interval(low, high)}" if low < high else ""
    median = percent(float(np.median(shares)), 0)
    return f"{median} of the images (median of {count(len(shares), 'repeat')}{interval})"


def _percent_interval(low: float, high: float) -> str:
    return bracketed(100 * low, 100 * high, ".0f")


def _of_untrained(nets: pd.DataFrame) -> str:
    """Return the same of freshly drawn weights, which need not predict anything."""
    checked = int(nets["untrained_images"].sum())
    if not checked:
        return ""
    if not nets["untrained_maps"].sum():
        return f"; with freshly drawn weights no image of {checked} has a map, as the prediction is empty"
    return f"; with freshly drawn weights on {_on_images(nets[nets['untrained_maps'] > 0], 'untrained')}"


def warnings(table: pd.DataFrame) -> Iterator[str]:
    """Yield which maps are not shown to be better than random, or rank pixels as untrained weights do.

    Of runs of equal weights the first one is named.
    """
    for score, rows in table.groupby("score", sort=False):
        nets = rows.drop_duplicates("weights_sha256")
        yield from filter(None, (_not_better(str(score), nets), _alike(str(score), nets)))


def _not_better(score: str, rows: pd.DataFrame) -> str:
    doubtful = rows[~(rows["deletion_share_low"] > CHANCE_SHARE)]
    if doubtful.empty:
        return ""
    runs = [f"{run} on {_of_images(row, 'deletion')}" for run, row in doubtful.groupby("run", sort=False)]
    named = first_of(runs, "run", _MOST_NAMED)
    return f"the maps of {score_title(score)} are not shown to be better than random order: in {named}"


def _alike(score: str, rows: pd.DataFrame) -> str:
    similar = rows[rows["untrained_correlation"] >= ALIKE]
    if similar.empty:
        return ""
    correlations = zip(similar["run"], similar["untrained_correlation"], strict=True)
    runs = [f"{run} ({correlation:.2f})" for run, correlation in correlations]
    return (
        f"the maps of {score_title(score)} rank the pixels much as those of freshly drawn weights do: which "
        "pixels come first says in part what hiding does to these images, whatever was learned (size of "
        f"Spearman's correlation in {first_of(runs, 'run', _MOST_NAMED)})"
    )


def images_without_maps(study: Study) -> Iterator[str]:
    """Yield how many images have no map, by the reason, over all runs."""
    reasons: dict[str, int] = {}
    images = 0
    for explained in study.explained.values():
        images += len(explained.manifest.images)
        for image in explained.manifest.images:
            if image.no_map:
                reasons[image.no_map] = reasons.get(image.no_map, 0) + 1
    for reason, number in reasons.items():
        runs = count(len(study.explained), "run")
        yield f"{number} of {count(images, 'image')} of {runs} have no map: {reason}"


def untimed_notes(runs: pd.DataFrame) -> Iterator[str]:
    """Yield which runs count for no speed, by the reason."""
    untimed = runs[runs["untimed"] != ""]
    for row in untimed.to_dict("records"):
        yield f"{row['run']} counts for no maps per second: {row['untimed']}"
