"""Tasks that files define: the examples of docs/tasks, one that is as small as can be."""

from pathlib import Path
from typing import Any

from tests.studies import single_config
from unet_scaling.base.files import write_atomically
from unet_scaling.study.config import PROJECT, RunConfig
from unet_scaling.study.options import TaskOptions
from unet_scaling.study.study_file import task_sha256

EXAMPLES: dict[str, dict[str, Any]] = {
    "residual_classifier": {"width": 4, "blocks": 1, "samples": 60},
    "text_transformer": {"width": 16, "layers": 1, "samples": 60},
    "volume_unet": {"width": 2, "samples": 60},
}
POINTS = """
import os
import torch
from torch import nn
from torch.nn import functional


class Points:
    def __init__(self, first, count):
        self.first, self.count = first, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        place = torch.randn(8, generator=torch.Generator().manual_seed(self.first + index))
        return place, (place.sum() > 0).long()


class Network(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.hidden = nn.Linear(8, width)
        self.spare = nn.Linear(8, width)
        self.head = nn.Linear(width, 2)

    def forward(self, places):
        return self.head(functional.relu(self.hidden(places) + self.spare(places)))


def build_model(options):
    return Network(options["width"])


def datasets(options):
    return Points(0, 48), Points(1000, 13)


def loss(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1])


def count(model, batch):
    right = model(batch[0]).argmax(dim=1) == batch[1]
    return torch.stack([right.sum(), torch.tensor(len(right))])


def score(counts):
    return {"accuracy": counts[0] / counts[1]}
"""
# One layer is used in every second pass, another one where the first sample of the batch is on one side:
# so two workers may differ in one step.
SOMETIMES_UNUSED = POINTS.replace(
    "        self.head = nn.Linear(width, 2)\n",
    "        self.head = nn.Linear(width, 2)\n"
    "        self.of_some = nn.Linear(8, width)\n"
    '        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))\n',
).replace(
    "        return self.head(functional.relu(self.hidden(places) + self.spare(places)))",
    "        self.passes += self.training\n"
    "        hidden = self.hidden(places)\n"
    "        if self.passes % 2:\n"
    "            hidden = hidden + self.spare(places)\n"
    "        if self.training and places[0, 0] > 0:\n"
    "            hidden = hidden + self.of_some(places)\n"
    "        return self.head(functional.relu(hidden))",
)


def task_config(
    file: Path,
    options: dict[str, Any],
    framework: str = "pytorch_native",
    workers: int = 1,
    find_unused_parameters: bool = False,
    **training: Any,
) -> RunConfig:
    """A run of the task in a file; `training` are options of that table."""
    table = {"epochs": 2, "batch_per_worker": 4 // workers, "rate_scaling": "none", "shared_devices": True}
    sha256 = task_sha256(file, "task.file")
    task = TaskOptions(
        file=str(file), sha256=sha256, options=options, find_unused_parameters=find_unused_parameters
    )
    return single_config(framework, workers, task=task, training=table | training)


def points_config(folder: Path, source: str = POINTS, **rest: Any) -> RunConfig:
    """A run of the small task, whose file is written into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "my_task.py"
    write_atomically(file, source)  # other test processes may read it
    return task_config(file, {"width": 4}, **rest)


def example(name: str) -> Path:
    return PROJECT / "docs" / "tasks" / f"{name}.py"
