"""Speed-up with the node as the unit: throughput on M full nodes over that on 1 full node.

Where a node holds several workers, those on one node share memory and no network, so efficiency against 1
worker mixes what is lost inside a node with what is lost between nodes. Against 1 full node it is the latter.
"""

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

from analysis.arrays import Array, Integers
from analysis.statistics.intervals import bounds
from analysis.statistics.timed import timed
from analysis.study import NAN, POINT, SERIES, Study
from unet_scaling.study.record_lines import Header

# Of a point without a baseline: no row has this number.
_NONE = -1
_BOUNDS = ("", "_low", "_high")
# Replicates of the logarithms of points minus those of their baselines.
Differences = Callable[[Integers, Integers], Array]


def add_node_scaling(points: pd.DataFrame, study: Study, differences: Differences) -> None:
    """Add `node_speedup` and `node_efficiency` with their intervals to the points of a study.

    A node is full where it holds as many workers as any node of the study. Both are unknown where nodes
    hold one worker each, where a run had nodes that are not full, and in series that have no point on 1 full
    node or none on several.
    """
    nodes = _full_nodes(study)
    speedup = _speedup(points, _one_node(points, nodes), differences)
    for end, values in zip(_BOUNDS, speedup, strict=True):
        points[f"node_speedup{end}"] = np.where(np.isfinite(nodes), values, NAN)
        points[f"node_efficiency{end}"] = values / nodes


def _speedup(points: pd.DataFrame, baseline: Integers, differences: Differences) -> Array:
    """Return speed-up and its bounds against the rows of `baseline`, (3, points)."""
    known = np.flatnonzero(baseline != _NONE)
    throughput = points["throughput"].to_numpy(dtype=np.float64)
    speedup = np.full((3, len(points)), NAN)
    speedup[0, known] = throughput[known] / throughput[baseline[known]]
    speedup[1:, known] = np.exp(bounds(differences(known, baseline[known])))
    return speedup


def _full_nodes(study: Study) -> Array:
    """Return on how many full nodes the runs of each point ran; NaN where a node was not full."""
    runs = timed(study).runs
    full = _full_nodes_of_runs(study.headers)
    groups = runs["run"].map(full).groupby([runs[name] for name in POINT], sort=False, dropna=False)
    equal = (groups.count() == groups.size()) & (groups.min() == groups.max())
    nodes: Array = np.asarray(groups.min().where(equal), dtype=np.float64)
    return nodes


def _full_nodes_of_runs(headers: Mapping[str, Header]) -> dict[str, float]:
    """Return on how many nodes each run ran that had only full ones, where nodes hold several workers."""
    workers = {run: _workers_of_nodes(header) for run, header in headers.items()}
    most = max((max(each) for each in workers.values()), default=1)
    return {run: float(len(each)) for run, each in workers.items() if most > 1 and {*each} == {most}}


def _workers_of_nodes(header: Header) -> list[int]:
    return [*Counter(worker.host for worker in header.workers).values()]


def _one_node(points: pd.DataFrame, nodes: Array) -> Integers:
    """Return for each point the row of its series on 1 full node, or _NONE where the series has no larger."""
    series = [points[name] for name in SERIES]
    rows = pd.Series(np.arange(len(points)), index=points.index).where(nodes == 1)
    alone = rows.groupby(series, sort=False).transform("max")
    most = pd.Series(nodes, index=points.index).groupby(series, sort=False).transform("max")
    return alone.where(most > 1).fillna(_NONE).to_numpy(dtype=np.int64)
