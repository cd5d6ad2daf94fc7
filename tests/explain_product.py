"""Explain the images of one run in every way, in one group.

python tests/explain_product.py TRAIN_PY RUN_FOLDER

The twin's own functions join the group and wrap the network. Maps go to RUN_FOLDER/METHOD-SPLIT.
"""

import runpy
import sys
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import cast

from torch import nn

from unet_scaling.data.batches import ImageData
from unet_scaling.explain.run import explain_run
from unet_scaling.group.group import Group
from unet_scaling.run.recorder import Recorder
from unet_scaling.run.run_folder import open_run
from unet_scaling.study.errors import run_worker
from unet_scaling.study.record_lines import Epoch, Saliency
from unet_scaling.training import build_model, build_optimizer, load_task

METHODS = ("rise", "sliding_window")
SPLITS = ("images", "masks")
LINE_NAME = "line.json"


@dataclass
class OneOfMany:
    """What the recorder is to one of the explanations, which all belong to one run."""

    folder: Path
    group: Group
    epochs: list[Epoch] = field(default_factory=list)

    def begin_explaining(self) -> None:
        pass

    def visit_safe_point(self, explained: int) -> None:
        self.group.wait_for_all()

    def explained(self, line: Saliency) -> None:
        if self.group.rank == 0:
            (self.folder / LINE_NAME).write_text(line.model_dump_json())


def main() -> None:
    train, folder = sys.argv[1:]
    twin = runpy.run_path(train)
    sys.argv = [train, folder]
    with open_run("") as run:
        group = twin["join_group"](run.config)
        task = load_task(run.config)
        data = task.load_data(group)
        assert isinstance(data, ImageData)
        model = build_model(task, group.device, nn.SyncBatchNorm)
        twin["distribute"](model, build_optimizer(task, model), run.config)
        for method, split in product(METHODS, SPLITS):
            options = run.config.saliency.model_copy(update={"method": method, "split": split})
            config = run.config.model_copy(update={"saliency": options})
            record = OneOfMany(run.path / f"{method}-{split}", group)
            explain_run(config, model, data, group, cast(Recorder, record))
        twin["leave_group"]()


if __name__ == "__main__":
    run_worker(main)
