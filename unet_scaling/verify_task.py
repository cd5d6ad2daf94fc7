"""Verify the task of a run in a process of its own.

python -m unet_scaling.verify_task FACTS < config.json   prints what it found as JSON

FACTS are those that worker 0 found, or empty for worker 0 itself.
"""

import sys

from torch import nn

from unet_scaling.base.errors import run_program
from unet_scaling.group.group import single_worker
from unet_scaling.study.config import RunConfig
from unet_scaling.task.file_task import FileTask, TaskFacts, require_alike, task_facts
from unet_scaling.training import build_model, build_optimizer


def task_facts_of(config: RunConfig, first: str) -> str:
    """Return as JSON what a worker finds; given what the `first` found, it is another one that must agree."""
    task = FileTask(config)
    group = single_worker()
    data = task.load_data(group, backwards=bool(first))
    model = build_model(task, group.device, nn.BatchNorm2d)
    build_optimizer(task, model)
    task.require_options_read()
    own = task_facts(task, model, data)
    require_alike(task, [TaskFacts.model_validate_json(first), own] if first else [own])
    return own.model_dump_json()


def main() -> None:
    print(task_facts_of(RunConfig.model_validate_json(sys.stdin.read()), sys.argv[1]))


if __name__ == "__main__":
    run_program(main)
