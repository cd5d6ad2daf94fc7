"""Maps of a network that was really trained beat random order; those of an untrained one do not."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.loading.load import load_study
from analysis.saliency.findings import saliency_findings
from analysis.saliency.sentences import CHANCE_SHARE
from tests.studies import make_point, single_config, train
from tests.trained import TrainedRuns
from unet_scaling.data.checking import check_folder
from unet_scaling.data.manifest import write_manifest
from unet_scaling.data.synthetic import make
from unet_scaling.study.config import PROJECT
from unet_scaling.study.study_file import read_study

pytestmark = pytest.mark.slow
# The acceptance of the maps: on so many of the test images deletion is faster than in random order.
LEAST_SHARE = 0.9
# Of `make demo`.
DEMO_IMAGES = 160
DEMO_PIXELS = 96


def judged(study: Path) -> pd.DataFrame:
    """The faithfulness of the only run of a study, a row for each score."""
    loaded = load_study(study)
    assert loaded.left_out.empty, loaded.left_out["reason"].to_list()
    table = saliency_findings(loaded).faithful
    assert len(table) == 2
    return table


def require_faithful(table: pd.DataFrame) -> None:
    """Assert that the trained network's maps beat random order, and that the untrained one's do not."""
    shown = table[["score", "images", "deletion_better", "untrained_maps", "untrained_better"]].to_string()
    assert (table["deletion_share"] >= LEAST_SHARE).all(), shown
    assert (table["deletion_share_low"] > CHANCE_SHARE).all(), shown
    assert (table["insertion_share"] >= LEAST_SHARE).all(), shown
    assert (table["untrained_maps"] > 0).all(), shown
    assert (table["untrained_share"] < CHANCE_SHARE).all(), shown


def test_maps_of_a_trained_network_are_faithful_and_those_of_an_untrained_one_are_not(
    images: Path, trained_run: TrainedRuns
) -> None:
    options: dict[str, Any] = {"method": "sliding_window", "window": 6, "stride": 3, "curve_steps": 16}
    run = trained_run(make_point(images, epochs=12, untrained_check=9, **options))
    assert run.record.results[-1].score is not None
    require_faithful(judged_alone(run.folder))


def judged_alone(folder: Path) -> pd.DataFrame:
    """The faithfulness of a run in a folder with other runs beside it."""
    study = folder.parent.with_name(f"study-{folder.name}")
    study.mkdir(exist_ok=True)
    if not (study / folder.name).exists():
        (study / folder.name).symlink_to(folder)
    return judged(study)


@pytest.mark.verify
def test_the_demo_gives_faithful_maps(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make(data, DEMO_IMAGES, DEMO_PIXELS, DEMO_PIXELS, seed=0)
    write_manifest(check_folder(data, "nonzero"), data / "manifest.json")
    config = read_study(PROJECT / "slurm" / "studies" / "demo.toml").configs()[0]
    tables = config.model_dump(include={"data", "model", "training"})
    tables["data"] |= {"folder": str(data)}
    tables["training"] |= {"shared_devices": True}
    # The indents are dark: hidden in black, what is hidden looks like one.
    saliency = {
        "method": "sliding_window",
        "window": 16,
        "stride": 8,
        "fill": "mean",
        "curve_steps": 16,
        "untrained_check": 8,
    }
    demo = single_config("pytorch_native", 1, **tables, saliency=saliency)
    train(tmp_path / "demo" / demo.run, demo)
    require_faithful(judged(tmp_path / "demo"))
