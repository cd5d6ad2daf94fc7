"""What saliency maps show: how fast they are made, how faithful they are, which of them are equal.

An image counts as faithful where the area under its deletion curve is smaller by LEAST_GAIN than that under
the mean of random orders; for insertion, larger. Without a least difference, maps of freshly drawn weights
would count too: they are faithful to a network whose score hardly changes, by some 0.0001. Intervals of a
share of images are exact (Clopper and Pearson, 1934): the images are the sample of one trained network. What
other trainings give, only other runs can tell.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from scipy import special  # type: ignore[import-untyped]

from analysis.judge.answer import COST_TITLE, Answer
from analysis.judge.trust import Tile
from analysis.numbers.points import summarise
from analysis.numbers.stats import SHARE, launches_of, median_intervals, share_interval
from analysis.saliency.areas import AREAS, areas_of, areas_under, gain
from analysis.saliency.gallery import gallery_of
from analysis.study import CONFIDENCE, NAN, POINT, Array, Explained, Study, bounded
from analysis.text import bracketed, count, first_of, labelled, percent
from unet_scaling.base.texts import score_title
from unet_scaling.format.record_lines import Header, Saliency, SaliencyPhases
from unet_scaling.format.saliency import SaliencyScore

_PHASES = tuple(SaliencyPhases.model_fields)
_SHARES = tuple(f"{phase}_share" for phase in _PHASES)
_LINE = ("split", "masks", "images", "maps", "maps_made_here", "seconds", "check_seconds", "epochs")
_RUN_COLUMNS = (
    "run", *POINT, "repeat", "split", "method", "masks", "images", "maps", "maps_made_here", "seconds",
    "maps_per_second", *_SHARES, "peak_bytes", "check_seconds", "epochs", "weights_sha256", "untimed",
)  # fmt: skip
_POINT_COLUMNS = (
    *POINT, "repeats", "split", "method", "masks", "images", "maps",
    *bounded("maps_per_second", "speedup", "efficiency"), "peak_bytes", "unknown",
)  # fmt: skip
_KINDS = ("deletion", "insertion")
FAITHFUL_COLUMNS = (
    "run", *POINT, "repeat", "score", "images", *AREAS,
    *(f"{kind}_{name}" for kind in _KINDS for name in ("better", "share", "share_low", "share_high")),
    "untrained_images", "untrained_maps", "untrained_better", "untrained_share", "untrained_share_low",
    "untrained_share_high", "untrained_correlation", "weights_sha256",
)  # fmt: skip
SALIENCY_CURVE_COLUMNS = (
    "options", "score", "kind", "pixel_share", "images", "trainings",
    *bounded("own", "random"),
)  # fmt: skip
# Of an area; scores and areas are at most 1. A difference that is smaller cannot be seen in a curve.
LEAST_GAIN = 0.01
# An order that knows nothing of the network wins on half of the images.
CHANCE_SHARE = 0.5
# Spearman's correlation from which two maps rank the pixels more alike than not: midway from no relation, 0,
# to the same order, 1.
ALIKE = 0.5
# What no map depends on: how the work was shared out, and what is done with the maps afterwards.
NOT_OF_A_MAP = {"split", "curve_steps", "untrained_check"}
# Runs that a sentence names.
_MOST_NAMED = 3


@dataclass(frozen=True)
class SaliencyFindings:
    """The tables and sentences on saliency maps.

    `curves` has the deletion and insertion curves, the mean over images. The first of `sentences` is the most
    important one; `warnings` speak against trusting maps.
    """

    study: Study
    runs: pd.DataFrame
    points: pd.DataFrame
    faithful: pd.DataFrame
    curves: pd.DataFrame
    sentences: list[str]
    warnings: list[str]

    @property
    def is_empty(self) -> bool:
        """Return whether no run has made maps."""
        return self.runs.empty

    @property
    def gallery(self) -> dict[str, Any] | None:
        """Return the pictures of a run; None where no run has any."""
        return gallery_of(self.study)


def saliency_findings(study: Study) -> SaliencyFindings:
    """Return what a study shows of saliency maps. Pure: the manifests have been read."""
    study = study.with_maps
    runs = _run_table(study.runs, study.saliency, study.headers)
    faithful = faithful_table(study)
    sentences = [] if runs.empty else [*_faithful_sentences(faithful), *_sameness(study)]
    warnings = [*_warnings(faithful), *_missing_notes(study, runs)]
    points = _point_table(_maps_study(study, runs), runs)
    return SaliencyFindings(study, runs, points, faithful, curve_table(study), sentences, warnings)


def maps_answer(found: SaliencyFindings) -> Answer:
    """Return the answer of a study without any run that has a speed; `found` has a run with maps."""
    made = f"{count(int(found.runs['maps'].sum()), 'map')} of {count(len(found.runs), 'run')}"
    shown = found.sentences[0] if len(found.faithful) else f"{made}, none with deletion and insertion curves"
    no_epoch = "no epoch after the warm-up"
    tiles = (
        Tile("Speed", "not measured", no_epoch, "unknown"),
        Tile(found.study.score.heading, "not compared", no_epoch, "unknown"),
        Tile(COST_TITLE, "not measured", no_epoch, "unknown"),
        Tile("Trust", made, found.warnings[0], "caution")
        if found.warnings
        else Tile("Trust", made, "no warning", "unknown"),
    )
    train = "to compare speed and IoU, set training.epochs to 2 or more in a study of its own"
    return Answer("", "maps", f"saliency maps only: {shown}", (), tiles, (train,))


def _run_table(
    runs: pd.DataFrame, saliency: Mapping[str, Saliency], headers: Mapping[str, Header]
) -> pd.DataFrame:
    """Return one row per run with saliency maps; `untimed` says why `maps_per_second` is NaN."""
    rows = []
    for run in runs.to_dict("records"):
        line = saliency.get(run["run"])
        if line is None:
            continue
        untimed = "" if line.seconds else "the clock shows 0 s"
        if not line.maps:
            untimed = "no image has a map: every prediction is empty"
        elif line.maps_made_here < line.maps:
            untimed = f"resumed: {line.maps_made_here} of {line.maps} maps were made by the last attempt"
        whole = sum(line.worker_seconds)
        seconds = [sum(getattr(of_worker, phase) for of_worker in line.phases) for phase in _PHASES]
        rows.append({
            **{name: run[name] for name in (*POINT, "run", "repeat")},
            **{name: getattr(line, name) for name in (*_LINE, "weights_sha256")},
            **{name: each / whole if whole else NAN for name, each in zip(_SHARES, seconds, strict=True)},
            "method": headers[run["run"]].config.saliency.method,
            "maps_per_second": NAN if untimed else line.maps / line.seconds,
            "peak_bytes": max(line.peak_bytes),
            "untimed": untimed,
        })  # fmt: skip
    return pd.DataFrame(rows, columns=list(_RUN_COLUMNS))


def _maps_study(study: Study, runs: pd.DataFrame) -> Study:
    """Return a study whose throughput is maps per second, of the runs that have one.

    So speed-up and efficiency follow the rules of training. Nothing is known of parts of a launch.
    """
    speeds = runs.loc[runs["untimed"] == ""].set_index("run")["maps_per_second"]
    timed = study.runs[study.runs["run"].isin(speeds.index)]
    timed = timed.assign(images_per_second=timed["run"].map(speeds).astype(float), stalls="")
    return replace(
        study,
        runs=timed.reset_index(drop=True),
        epochs=study.epochs.iloc[:0],
        throughput="images_per_second",
        unit="maps / s",
    )


def _point_table(maps: Study, runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per point of a `_maps_study`, with medians over its runs and their intervals."""
    if maps.runs.empty:
        return pd.DataFrame(columns=list(_POINT_COLUMNS))
    points = summarise(maps).rename(columns=lambda name: str(name).replace("throughput", "maps_per_second"))
    timed = runs[runs["untimed"] == ""].reset_index(drop=True)
    launches = launches_of(timed, POINT)
    groups = timed.groupby(launches.point)
    details = groups[[*POINT, "method", "masks", "images"]].first()
    details["split"] = groups["split"].agg(lambda splits: " ".join(splits.drop_duplicates()))
    details[["maps", "peak_bytes"]] = groups.agg({"maps": "median", "peak_bytes": "max"})
    return points.merge(details, on=POINT, how="left")[list(_POINT_COLUMNS)]


def faithful_table(study: Study) -> pd.DataFrame:
    """Return one row per run and score whose manifest has curves: FAITHFUL_COLUMNS."""
    rows = [
        {name: run[name] for name in (*POINT, "run", "repeat")} | _faithful_columns(explained, score)
        for run in study.runs.to_dict("records")
        if (explained := study.explained.get(str(run["run"])))
        for score in explained.manifest.scores
        if areas_of(explained, score)
    ]
    return pd.DataFrame(rows, columns=list(FAITHFUL_COLUMNS))


def _faithful_columns(explained: Explained, score: SaliencyScore) -> dict[str, object]:
    """Return how faithful the maps of a run are, and those of the network with freshly drawn weights."""
    manifest = explained.manifest
    areas = list(areas_of(explained, score).values())
    untrained = [image.untrained for image in manifest.images if image.untrained]
    of_untrained = [
        areas_under(image.faithfulness[score], manifest.shares)
        for image in untrained
        if score in image.faithfulness
    ]
    correlations = [image.correlation.get(score) for image in untrained]
    known = [abs(each) for each in correlations if each is not None]
    return {
        "score": score,
        "weights_sha256": manifest.weights_sha256,
        "images": len(areas),
        **{name: float(np.mean([each[name] for each in areas])) for name in AREAS},
        **_better("deletion", [gain(each, "deletion") for each in areas]),
        **_better("insertion", [gain(each, "insertion") for each in areas]),
        **_better("untrained", [gain(each, "deletion") for each in of_untrained]),
        "untrained_images": len(untrained),
        "untrained_maps": sum(image.no_map is None for image in untrained),
        "untrained_correlation": float(np.median(known)) if known else NAN,
    }


def _better(kind: str, gains: Sequence[float]) -> Mapping[str, float]:
    """Return on how many images the map's order is better, their share, and its exact interval."""
    better = sum(gain >= LEAST_GAIN for gain in gains)
    share = better / len(gains) if gains else NAN
    values = (share, *share_interval(better, len(gains)))
    return {f"{kind}_better": better, **dict(zip(bounded(f"{kind}_share"), values, strict=True))}


def curve_table(study: Study) -> pd.DataFrame:
    """Return SALIENCY_CURVE_COLUMNS, a row per set of options, score, kind of curve and share of the pixels.

    The images are those that every training explains; runs of equal weights count once. Intervals are
    Student's over the images, unknown for a single one.
    """
    rows: list[tuple[object, ...]] = []
    for options, runs in study.runs.groupby("options", sort=False):
        explained = _trainings([study.explained[run] for run in runs["run"] if run in study.explained])
        if not explained:
            continue
        manifest = explained[0].manifest
        for score, kind in product(manifest.scores, _KINDS):
            own, random = (_mean_of_trainings(explained, score, name) for name in (kind, f"random_{kind}"))
            for place, share in enumerate(manifest.shares):
                numbers = (*_mean(own[:, place]), *_mean(random[:, place]))
                rows.append((options, score, kind, share, len(own), len(explained), *numbers))
    return pd.DataFrame(rows, columns=list(SALIENCY_CURVE_COLUMNS))


def _trainings(explained: Sequence[Explained]) -> list[Explained]:
    """Return the first run of each set of weights that has curves, as long as those of the first."""
    first: dict[str, Explained] = {}
    for each in explained:
        if any(image.faithfulness for image in each.manifest.images):
            first.setdefault(each.manifest.weights_sha256, each)
    trainings = list(first.values())
    return [each for each in trainings if each.manifest.shares == trainings[0].manifest.shares]


def _mean_of_trainings(explained: Sequence[Explained], score: SaliencyScore, name: str) -> Array:
    """Return the curve of each image that every training has one of, [images, shares]."""
    curves = [
        {
            image.image: np.array(getattr(image.faithfulness[score], name))
            for image in each.manifest.images
            if score in image.faithfulness
        }
        for each in explained
    ]
    common = [image for image in curves[0] if all(image in others for others in curves)]
    means = [np.mean([of_training[image] for of_training in curves], axis=0) for image in common]
    return np.array(means).reshape(len(common), len(explained[0].manifest.shares))


def _mean(scores: Array) -> tuple[float, float, float]:
    """Return the mean of scores, which lie from 0 to 1, with its interval."""
    mean = float(np.mean(scores)) if len(scores) else NAN
    reach = NAN
    if len(scores) > 1:
        error = np.std(scores, ddof=1) / np.sqrt(len(scores))
        reach = float(special.stdtrit(len(scores) - 1, (1 + CONFIDENCE) / 2) * error)
    low, high = np.clip([mean - reach, mean + reach], 0, 1)
    return mean, float(low), float(high)


def _faithful_sentences(table: pd.DataFrame) -> Iterator[str]:
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
    text = f"deleting in the map's order lowers the {score_title(score)} faster than random order on "
    text += _on_images(nets, "deletion")
    checked = int(nets["untrained_images"].sum())
    if checked and not nets["untrained_maps"].sum():
        text += f"; with freshly drawn weights no image of {checked} has a map, as the prediction is empty"
    elif checked:
        text += f"; with freshly drawn weights on {_on_images(nets[nets['untrained_maps'] > 0], 'untrained')}"
    return text + ("; of one repeat, others may differ" if nets["repeat"].nunique() == 1 else "")


def _on_images(nets: pd.DataFrame, kind: str) -> str:
    """Return on how many images: their number for one training, else the median of repeats' means."""
    if len(nets) == 1:
        return _share_text(nets, kind)
    shares = nets.groupby("repeat")[f"{kind}_share"].mean().dropna().to_numpy(dtype=np.float64)
    if nets["repeat"].nunique() == 1:
        return f"{percent(float(shares[0]), 0)} of the images (mean of {len(nets)} trainings)"
    ((low, high),) = median_intervals([shares], SHARE)
    level = percent(CONFIDENCE, 0)
    interval = f", {level} interval {bracketed(100 * low, 100 * high, '.0f')}" if low < high else ""
    median = percent(float(np.median(shares)), 0)
    return f"{median} of the images (median of {count(len(shares), 'repeat')}{interval})"


def _share_text(rows: pd.DataFrame, kind: str) -> str:
    """Return "47 of 48 images (98 % [89, 100])" of a single row."""
    row = rows.iloc[0]
    of = int(row["untrained_maps" if kind == "untrained" else "images"])
    share, low, high = (row[name] for name in bounded(f"{kind}_share"))
    interval = bracketed(100 * low, 100 * high, ".0f")
    return f"{int(row[f'{kind}_better'])} of {count(of, 'image')} ({percent(share, 0)} {interval})"


def _warnings(table: pd.DataFrame) -> Iterator[str]:
    """Yield which maps are not shown to be better than random, or rank pixels as untrained weights do.

    Of runs of equal weights the first one is named.
    """
    for score, rows in table.groupby("score", sort=False):
        nets = rows.drop_duplicates("weights_sha256")
        maps = f"the maps of {score_title(str(score))}"
        doubtful = nets[~(nets["deletion_share_low"] > CHANCE_SHARE)]
        runs = [
            f"{run} on {_share_text(row, 'deletion')}" for run, row in doubtful.groupby("run", sort=False)
        ]
        if runs:
            named = first_of(runs, "run", _MOST_NAMED)
            yield f"{maps} are not shown to be better than random order: in {named}"
        alike = nets[nets["untrained_correlation"] >= ALIKE].to_dict("records")
        runs = [f"{row['run']} ({row['untrained_correlation']:.2f})" for row in alike]
        if runs:
            yield (
                f"{maps} rank the pixels much as those of freshly drawn weights do: which pixels come first "
                "says in part what hiding does to these images, whatever was learned (size of Spearman's "
                f"correlation in {first_of(runs, 'run', _MOST_NAMED)})"
            )


def _missing_notes(study: Study, runs: pd.DataFrame) -> Iterator[str]:
    """Yield how many images have no map, by the reason, and which runs count for no speed."""
    manifests = [explained.manifest for explained in study.explained.values()]
    images = [image for manifest in manifests for image in manifest.images]
    reasons = pd.Series([image.no_map for image in images if image.no_map], dtype=object)
    for reason, number in reasons.value_counts(sort=False).items():
        of_runs = f"{count(len(images), 'image')} of {count(len(manifests), 'run')}"
        yield f"{number} of {of_runs} have no map: {reason}"
    for row in runs[runs["untimed"] != ""].to_dict("records"):
        yield f"{row['run']} counts for no maps per second: {row['untimed']}"


def _sameness(study: Study) -> Iterator[str]:
    """Yield in how many runs equal weights gave equal maps, what differs, and what is not compared."""
    of_weights: dict[Hashable, list[str]] = {}
    for run in study.runs["run"]:
        if run in study.explained:
            of_weights.setdefault(_what_decides(study.headers, study.explained, run), []).append(run)
    groups = [runs for runs in of_weights.values() if len(runs) > 1]
    if not groups:
        yield "no two runs have the same weights and settings: no maps are compared"
        return
    # Of each run the digest of each image's map, empty where it has none.
    digests = {
        run: {image.image: image.map.sha256 if image.map else "" for image in explained.manifest.images}
        for run, explained in study.explained.items()
    }
    same = 0
    differing = []
    for runs in groups:
        # Those that most others equal; of equally many, those with the run that comes first.
        alike = max(([each for each in runs if digests[each] == digests[run]] for run in runs), key=len)
        same += len(alike) if len(alike) > 1 else 0
        first = alike[0]
        others = [run for run in runs if run not in alike]
        differing += [_difference(first, digests[first], run, digests[run]) for run in others]
    yield (
        f"equal weights gave the same maps, to the byte, in {same} of {count(sum(map(len, groups)), 'run')} "
        f"({count(len(groups), 'set')} of weights)"
    )
    if differing:
        yield first_of(differing, "run", _MOST_NAMED, "; ")


def _what_decides(headers: Mapping[str, Header], explained: Mapping[str, Explained], run: str) -> Hashable:
    """Return weights, options, images and rounding: runs that are equal in them make equal maps."""
    header: Header = headers[run]
    config = header.config
    # Versions and processors are equal in runs compared. On CPUs, maps are always made with channels last.
    has_gpu = any(worker.device != "cpu" for worker in header.workers)
    return (
        explained[run].manifest.weights_sha256,
        config.saliency.model_dump_json(exclude=NOT_OF_A_MAP),
        config.data.model_dump_json(),
        config.model.model_dump_json(),
        header.manifest_sha256,
        has_gpu and config.training.channels_last,
        config.training.precision,
        frozenset((worker.device, worker.threads) for worker in header.workers),
    )


def _difference(first: str, expected: Mapping[str, str], run: str, found: Mapping[str, str]) -> str:
    others = [image for image in {**expected, **found} if expected.get(image) != found.get(image)]
    images = f"{len(others)} of {count(len(found), 'image')}"
    return f"{run} made other maps than {first} of the same weights on {images}, the first {others[0]!r}"
