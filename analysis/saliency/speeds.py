"""How fast saliency maps are made: maps per second, speed-up and efficiency, and where the time goes."""

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from analysis.findings.speedup import summarise
from analysis.stats import NOT_NEGATIVE, median_intervals
from analysis.study import NAN, POINT, Study
from unet_scaling.study.saliency import Saliency, SaliencyPhases

_PHASES = tuple(SaliencyPhases.model_fields)
SHARE_COLUMNS = tuple(f"{phase}_share" for phase in _PHASES)
# Seconds of all workers together, for one map.
_PART_COLUMNS = tuple(f"{phase}_seconds" for phase in _PHASES)
_RUN_COLUMNS = (
    "run", *POINT, "repeat", "split", "method", "masks", "images", "maps", "maps_made_here", "seconds",
    "maps_per_second", *SHARE_COLUMNS, "peak_bytes", "check_seconds", "epochs", "weights_sha256", "untimed",
)  # fmt: skip
_POINT_COLUMNS = (
    *POINT, "repeats", "split", "method", "masks", "images", "maps", "maps_per_second", "maps_per_second_low",
    "maps_per_second_high", "speedup", "speedup_low", "speedup_high", "efficiency", "efficiency_low",
    "efficiency_high", "worker_seconds_per_map", "worker_seconds_per_map_low", "worker_seconds_per_map_high",
    *_PART_COLUMNS, *SHARE_COLUMNS, "peak_bytes", "unknown",
)  # fmt: skip


def saliency_runs(study: Study) -> pd.DataFrame:
    """Return one row per run with saliency maps, in the order of the runs.

    `untimed` says why it has no speed; then `maps_per_second` is NaN.
    """
    rows = [
        {**{name: run[name] for name in (*POINT, "run", "repeat")}, **_columns(study, str(run["run"]))}
        for run in study.runs.to_dict("records")
        if run["run"] in study.saliency
    ]
    return pd.DataFrame(rows, columns=list(_RUN_COLUMNS))


def _columns(study: Study, run: str) -> Mapping[str, object]:
    line = study.saliency[run]
    untimed = why_untimed(line)
    options = study.headers[run].config.saliency
    recorded = ("split", "masks", "images", "maps", "maps_made_here", "seconds", "check_seconds", "epochs")
    return {
        **{name: getattr(line, name) for name in (*recorded, "weights_sha256")},
        **_shares(line),
        "method": options.method,
        "maps_per_second": NAN if untimed else line.maps / line.seconds,
        "peak_bytes": max(line.peak_bytes),
        "untimed": untimed,
    }


def why_untimed(line: Saliency) -> str:
    """Return why the seconds of these maps give no speed; empty where they do."""
    if not line.maps:
        return "no image has a map: every prediction is empty"
    if line.maps_made_here < line.maps:
        return f"resumed: {line.maps_made_here} of {line.maps} maps were made by the last attempt"
    return "" if line.seconds else "the clock shows 0 s"


def _shares(line: Saliency) -> dict[str, float]:
    """Return what part of the time of all workers each phase took."""
    whole = sum(line.worker_seconds)
    sums = {phase: sum(getattr(of_worker, phase) for of_worker in line.phases) for phase in _PHASES}
    return {f"{phase}_share": seconds / whole if whole else NAN for phase, seconds in sums.items()}


def maps_study(study: Study, runs: pd.DataFrame) -> Study:
    """Return a study whose throughput is maps per second, of the runs of a `saliency_runs` that have one.

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


def saliency_points(maps: Study, runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per point of a `maps_study`, with medians over its runs and their intervals."""
    if maps.runs.empty:
        return pd.DataFrame(columns=list(_POINT_COLUMNS))
    points = summarise(maps).rename(columns=lambda name: str(name).replace("throughput", "maps_per_second"))
    timed = runs[runs["untimed"] == ""]
    details = pd.DataFrame([_of_point(rows) for _, rows in timed.groupby(POINT, sort=False)])
    return points.merge(details, on=POINT, how="left")[list(_POINT_COLUMNS)]


def _of_point(rows: pd.DataFrame) -> dict[str, object]:
    """Return what the runs of a point have in common, and the medians of the rest."""
    first = rows.iloc[0]
    shares = rows[list(SHARE_COLUMNS)].mean()
    seconds = rows["workers"] / rows["maps_per_second"]
    ((low, high),) = median_intervals([seconds.to_numpy(dtype=float)], NOT_NEGATIVE)
    per_map = float(seconds.median())
    return {
        **{name: first[name] for name in (*POINT, "method", "masks", "images")},
        "split": " ".join(rows["split"].drop_duplicates()),
        "maps": rows["maps"].median(),
        **{name: shares[name] for name in SHARE_COLUMNS},
        **{cost: per_map * share for cost, share in zip(_PART_COLUMNS, shares, strict=True)},
        "worker_seconds_per_map": per_map,
        "worker_seconds_per_map_low": low,
        "worker_seconds_per_map_high": high,
        "peak_bytes": rows["peak_bytes"].max(),
    }
