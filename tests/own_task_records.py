"""Records of a task that a file defines, written again from those of the built-in task: the same numbers."""

from collections.abc import Mapping
from pathlib import Path

from tests.records import write_all
from tests.tasks import POINTS
from unet_scaling.study.config import RunConfig
from unet_scaling.study.options import TaskOptions
from unet_scaling.study.record import RECORD_NAME, read_record
from unet_scaling.study.record_lines import Epoch, Evaluated, Result, Scores
from unet_scaling.study.study_file import task_sha256

SCORE = "top_accuracy"
OTHER_SCORE = "dice_score"


def as_own_task(
    study: Path, score: str = SCORE, switches: Mapping[str, bool] | None = None, **options: str | int
) -> Path:
    """Write the runs of a study again as those of a task of their own, whose options are these.

    It has the judged score and another one, which is Dice.
    """
    task = study.parent / "my_task.py"
    task.write_text(POINTS)
    sha256 = task_sha256(task, "task.file")
    table = TaskOptions(file=str(task), sha256=sha256, options={**options}, **(switches or {}))
    for path in sorted(study.glob(f"*/{RECORD_NAME}")):
        _write_again(path, table, score)
    return study


def _write_again(path: Path, task: TaskOptions, score: str) -> None:
    record = read_record(path)
    assert record.header is not None
    assert record.end is not None
    config = _of_task(record.header.config, task)
    (path.parent / "config.json").write_text(config.model_dump_json())
    header = record.header.model_copy(update={"config": config, "config_sha256": config.digest()})
    path.unlink()
    write_all(path, (header, *_by_epoch(record.epochs, record.results, score), record.end))


def _of_task(config: RunConfig, task: TaskOptions) -> RunConfig:
    known = config.model_dump(exclude={"data", "model", "emulation", "saliency", "task"})
    data = {"passes_per_epoch": config.data.passes_per_epoch}
    return RunConfig.model_validate(known | {"data": data, "task": task})


def _by_epoch(epochs: tuple[Epoch, ...], results: tuple[Evaluated, ...], score: str) -> list[Epoch | Scores]:
    lines: list[Epoch | Scores] = []
    for number, epoch in enumerate(epochs, start=1):
        lines += [epoch, *(_scores(result, score) for result in results if result.epochs == number)]
    return lines


def _scores(result: Evaluated, score: str) -> Scores:
    assert isinstance(result, Result)
    shared = {name: getattr(result, name) for name in Evaluated.model_fields}
    scores = {score: result.iou, OTHER_SCORE: result.dice}
    return Scores(**shared, counts=[result.true_positive], scores=scores)
