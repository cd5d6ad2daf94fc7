"""GPU facts of the epochs in use: from the records to gpu.csv and the page, and nothing where none were."""

from pathlib import Path

import pandas as pd
import pytest

from analysis.findings.gpu import gpu_table
from analysis.loading.load import load_study
from analysis.report.assemble import make_report
from analysis.report.table import as_csv
from analysis.report.tables import TABLES, grids
from tests.records import Measured, make_epochs, make_point, make_workers, write_run
from unet_scaling.study.measurements import GpuFacts

IMAGES = 48


def facts(joules: float | None, *, utilization: float = 0.9, memory: int = 2**30) -> GpuFacts:
    return GpuFacts(utilization=utilization, memory_bytes=memory, power_watts=300.0, energy_joules=joules)


def write_gpu_run(folder: Path, repeat: int, gpus: list[GpuFacts]) -> None:
    """Two workers, whose GPUs report `gpus` in each epoch after the warm-up, with a warm-up of no use."""
    point = make_point(workers=2, repeat=repeat)
    warmup, *used = make_epochs(point, 100.0, IMAGES)
    idle = [facts(1e6, utilization=0.0), facts(1e6, utilization=0.0)]
    epochs = [warmup.model_copy(update={"gpu": idle})]
    epochs += [epoch.model_copy(update={"gpu": gpus}) for epoch in used]
    header = {"workers": make_workers(2, device="H200")}
    write_run(folder, workers=2, repeat=repeat, header=header, measured=Measured(epochs))


def test_energy_is_summed_over_workers_and_epochs_and_divided_by_the_images(tmp_path: Path) -> None:
    for repeat, joules in enumerate((960.0, 1920.0, 2880.0), start=1):
        write_gpu_run(tmp_path, repeat, [facts(joules), facts(2 * joules, memory=2**31)])
    (row,) = gpu_table(load_study(tmp_path)).to_dict("records")
    assert (row["framework"], row["workers"], row["repeats"]) == ("pytorch_native", 2, 3)
    assert row["joules_per_image"] == pytest.approx(3 * 1920 / IMAGES)
    assert row["memory_bytes"] == 2**31
    assert row["power_watts"] == pytest.approx(300)
    assert row["utilization"] == pytest.approx(0.9)


def test_a_counter_that_one_gpu_lacks_is_unknown_and_the_rest_stays(tmp_path: Path) -> None:
    write_gpu_run(tmp_path, 1, [facts(None), facts(10.0)])
    (row,) = gpu_table(load_study(tmp_path)).to_dict("records")
    assert pd.isna(row["joules_per_image"])
    assert row["power_watts"] == pytest.approx(300)


def test_the_page_shows_the_gpus_where_they_were_recorded_only(tmp_path: Path) -> None:
    write_gpu_run(tmp_path / "gpu", 1, [facts(960.0), facts(960.0)])
    write_run(tmp_path / "cpu")
    with_gpu, without = (make_report(load_study(tmp_path / name)) for name in ("gpu", "cpu"))
    (table,) = [table for table in TABLES if table.file == "gpu.csv"]
    assert as_csv(table.make(without)).count(b"\n") == 1
    assert [grid.rows for grid in grids(without, "cost") if grid.name == "gpu"] == [()]
    (grid,) = [grid for grid in grids(with_gpu, "cost") if grid.name == "gpu"]
    shown = dict(zip((heading.text for heading in grid.headings), map(str, grid.rows[0]), strict=True))
    assert shown["energy, J / image"] == "40.0"
    assert shown["GPU load"] == "90 %"
