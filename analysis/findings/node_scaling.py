"""Speed-up with the node as the unit: throughput on M full nodes over that on 1 full node.

Where a node holds several workers, those on one node share memory and no network, so efficiency against 1
worker mixes what is lost inside a node with what is lost between nodes. Against 1 full node it is the latter.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pandas as pd

from analysis.arrays import Array, Integers
from analysis.stats import timed
from analysis.study import POINT, SERIES, Study
from unet_scaling.study.record_lines import Header

# Of a point without a baseline: no row has this number.
NONE = -1


def full_nodes(study: Study) -> Array:
    """Return on how many full nodes the runs of each point ran; NaN where a node was not full.

    A node is full where it holds as many workers as any node of the study; none is where all hold one.
    """
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


def one_node(points: pd.DataFrame, nodes: Array) -> Integers:
    """Return for each point the row of its series on 1 full node, or NONE where the series has no larger."""
    series = [points[name] for name in SERIES]
    rows = pd.Series(np.arange(len(points)), index=points.index).where(nodes == 1)
    alone = rows.groupby(series, sort=False).transform("max")
    most = pd.Series(nodes, index=points.index).groupby(series, sort=False).transform("max")
    return alone.where(most > 1).fillna(NONE).to_numpy(dtype=np.int64)
