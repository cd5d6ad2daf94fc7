"""The node as the unit of speed-up, where nodes hold several workers."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.findings.speedup import summarise
from analysis.loading.load import load_study
from tests.records import make_workers, write_run
from unet_scaling.study.record_lines import WorkerFacts

SPREAD = (1.0, 1.01, 0.99)


def layout(*nodes: int) -> list[WorkerFacts]:
    """Workers on so many nodes, each with so many of them."""
    found = [
        worker for number, count in enumerate(nodes) for worker in make_workers(count, host=f"n{number}")
    ]
    return [worker.model_copy(update={"worker": rank}) for rank, worker in enumerate(found)]


def points_of(folder: Path, layouts: Mapping[tuple[int, ...], float]) -> pd.DataFrame:
    """The points of a study with these nodes, by workers; three launches of each at this throughput."""
    for nodes, speed in layouts.items():
        for repeat, factor in enumerate(SPREAD, start=1):
            write_run(
                folder,
                workers=sum(nodes),
                repeat=repeat,
                images_per_second=speed * factor,
                header={"workers": layout(*nodes)},
            )
    return summarise(load_study(folder)).set_index("workers")


def test_full_nodes_are_compared_with_one_full_node(tmp_path: Path) -> None:
    points = points_of(tmp_path / "s", {(1,): 100.0, (4,): 300.0, (4, 4): 540.0, (4, 4, 4): 750.0})
    assert points["node_speedup"].tolist() == pytest.approx([np.nan, 1.0, 1.8, 2.5], nan_ok=True)
    assert points["node_efficiency"].tolist() == pytest.approx([np.nan, 1.0, 0.9, 2.5 / 3], nan_ok=True)
    assert points["efficiency"].tolist() == pytest.approx([1.0, 0.75, 0.675, 0.625])


def test_the_interval_pairs_launches_of_a_repeat(tmp_path: Path) -> None:
    """Both points vary by 1 % from repeat to repeat, in the same way: their ratio does not."""
    points = points_of(tmp_path / "s", {(4,): 300.0, (4, 4): 540.0})
    row = points.loc[8]
    assert [row["node_speedup_low"], row["node_speedup_high"]] == pytest.approx([1.8, 1.8])
    assert [row["node_efficiency_low"], row["node_efficiency_high"]] == pytest.approx([0.9, 0.9])


@pytest.mark.parametrize(
    "layouts",
    [
        {(1,): 100.0, (1, 1): 190.0},
        {(1,): 100.0, (4,): 300.0},
        {(1,): 100.0, (4, 4): 540.0},
        {(4,): 300.0, (4, 2): 400.0},
    ],
    ids=["one worker each", "one node only", "no point on one node", "a node that is not full"],
)
def test_it_is_empty_where_it_says_nothing(tmp_path: Path, layouts: dict[tuple[int, ...], float]) -> None:
    points = points_of(tmp_path / "s", layouts)
    assert points[["node_speedup", "node_efficiency", "node_efficiency_low"]].isna().all(axis=None)
