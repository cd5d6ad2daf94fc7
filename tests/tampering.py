"""Change records of a study on disk: of a framework, worker counts or repeats, always with true checksums.

A change takes the lines of a record and returns others; what follows from them (sums of seconds, digests of
configurations) is made true again, as one would who knows the format.
"""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.honest import Lines, evaluation
from tests.tasks import POINTS
from unet_scaling.base.files import write_json_with_checksum
from unet_scaling.format.record import RECORD_NAME, line_with_checksum, read_record
from unet_scaling.format.record_lines import (
    PHASE_COLUMNS,
    CpuFacts,
    Epoch,
    Evaluated,
    Evaluation,
    Header,
    Phase,
    Result,
    Scores,
    WorkerFacts,
)
from unet_scaling.study.config import Framework, RunConfig
from unet_scaling.study.options import TaskOptions
from unet_scaling.study.study_file import CONFIG_NAME, STUDY_NAME, task_sha256

Change = Callable[[Lines], Lines]


@dataclass(frozen=True)
class Runs:
    """The runs of a study that a hand reaches: of these frameworks, worker counts and repeats, or of all."""

    folder: Path
    framework: Framework | None = None
    workers: Sequence[int] | None = None
    repeats: Sequence[int] | None = None

    def of(self, framework: Framework | None = None, **which: Any) -> "Runs":
        """Return a part of them."""
        return replace(self, framework=framework or self.framework, **which)

    def records(self) -> Iterator[tuple[Path, Lines]]:
        """Yield the folder and the lines of each of these runs."""
        for path in sorted(self.folder.glob(f"*/{RECORD_NAME}")):
            record = read_record(path)
            assert record.header is not None
            config = record.header.config
            if (
                self.framework in (None, config.framework)
                and (self.workers is None or config.workers in self.workers)
                and (self.repeats is None or config.repeat in self.repeats)
            ):
                of_record = (record.header, record.startup, record.probe, list(record.epochs))
                yield path.parent, Lines(*of_record, record.results, record.end)

    def change(self, change: Change) -> None:
        """Write each record again as `change` returns it, with true checksums."""
        found = [*self.records()]
        assert found, "nothing to tamper with"
        for folder, lines in found:
            write_lines(folder, change(lines))


def write_lines(folder: Path, lines: Lines) -> None:
    """Write a record in place of that in this folder, and its configuration where that changed."""
    folder.mkdir(exist_ok=True)
    if not (folder / CONFIG_NAME).exists() or lines.config.digest() != _recorded_digest(folder):
        write_json_with_checksum(folder / CONFIG_NAME, lines.config.model_dump(mode="json"))
    (folder / RECORD_NAME).write_bytes(b"".join(map(line_with_checksum, lines.in_order())))


def _recorded_digest(folder: Path) -> str:
    content = json.loads((folder / CONFIG_NAME).read_text())
    content.pop("sha256", None)
    return RunConfig.model_validate(content).digest()


def header(**fields: object) -> Change:
    """Return a change of these fields of the header; a function is given the header."""

    def change(lines: Lines) -> Lines:
        new = {name: each(lines.header) if callable(each) else each for name, each in fields.items()}
        return replace(lines, header=lines.header.model_copy(update=new))

    return change


def workers(**fields: object) -> Change:
    """Return a change of these facts of every worker; a function is given the worker's facts."""

    def changed(worker: WorkerFacts) -> WorkerFacts:
        new = {name: each(worker) if callable(each) else each for name, each in fields.items()}
        return worker.model_copy(update=new)

    return header(workers=lambda found: [changed(worker) for worker in found.workers])


def config(**values: Any) -> Change:
    """Return a change of the configuration, of these keys or keys of these tables, with its digest."""

    def change(lines: Lines) -> Lines:
        content = lines.config.model_dump(mode="json")
        new = {
            key: content[key] | value if isinstance(value, dict) else value for key, value in values.items()
        }
        changed = RunConfig.model_validate(content | new)
        update = {"config": changed, "config_sha256": changed.digest()}
        return replace(lines, header=lines.header.model_copy(update=update))

    return change


def in_turn(*changes: Change) -> Change:
    """Return one change after the other."""

    def change(lines: Lines) -> Lines:
        for each in changes:
            lines = each(lines)
        return lines

    return change


def epochs(change_of: Callable[[Epoch], Mapping[str, object]]) -> Change:
    """Return a change of fields of each epoch; the evaluations name the new sum of their seconds."""

    def change(lines: Lines) -> Lines:
        return with_epochs(lines, [epoch.model_copy(update=change_of(epoch)) for epoch in lines.epochs])

    return change


def in_epochs(**fields: Any) -> Change:
    """Return a change of these fields of every epoch; a function is given the epoch."""

    def of(epoch: Epoch) -> dict[str, object]:
        return {name: each(epoch) if callable(each) else each for name, each in fields.items()}

    return epochs(of)


def with_epochs(lines: Lines, new: list[Epoch]) -> Lines:
    """Return the lines with these epochs, and evaluations that fit them."""
    results = [
        result.model_copy(update={"training_seconds": sum(epoch.seconds for epoch in new[: result.epochs])})
        for result in lines.results
    ]
    return replace(lines, epochs=new, results=results)


def slower(factor: float, *, processor: bool = True) -> Change:
    """Return a change of all seconds of epochs and their phases, and of the processor's where asked for."""

    def of_epoch(epoch: Epoch) -> dict[str, object]:
        seconds = [factor * each for each in epoch.worker_seconds]
        new: dict[str, object] = {"worker_seconds": seconds, "seconds": max(seconds)}
        if epoch.budget:
            phases = {name: [factor * x for x in getattr(epoch.budget, name)] for name in PHASE_COLUMNS}
            new["budget"] = epoch.budget.model_copy(
                update=phases | {"wire_seconds": factor * epoch.budget.wire_seconds, "longest_step": None}
            )
        if processor and epoch.cpu:
            new["cpu"] = [scaled_processor(each, factor) for each in epoch.cpu]
        return new

    return epochs(of_epoch)


def longer(phase: Phase, share: float, *, only: int | None = None) -> Change:
    """Return a change by which a phase takes this share of an epoch more, of all workers or of `only` one.

    The others wait for that one, in sync; what is longer, but for the wait for samples and sync, is computed.
    """

    def of_epoch(epoch: Epoch) -> dict[str, object]:
        assert epoch.budget
        assert epoch.cpu
        more = share * epoch.seconds
        late = [more if only in (None, worker) else 0.0 for worker in range(len(epoch.cpu))]
        phases = {name: [*getattr(epoch.budget, name)] for name in PHASE_COLUMNS}
        processors = []
        for worker, (own, facts) in enumerate(zip(late, epoch.cpu, strict=True)):
            phases[PHASE_COLUMNS[phase]][worker] += own
            phases[PHASE_COLUMNS[Phase.SYNC]][worker] += more - own
            work = 0.0 if phase in (Phase.SYNC, Phase.DATA_WAIT) else own
            threads = facts.thread_seconds | {"training": facts.thread_seconds["training"] + work}
            seconds = facts.process_seconds + work
            new = {"thread_seconds": threads, "process_seconds": seconds}
            processors.append(facts.model_copy(update=new))
        wire = epoch.budget.wire_seconds + (more if phase == Phase.SYNC else 0.0)
        return {
            "worker_seconds": [seconds + more for seconds in epoch.worker_seconds],
            "seconds": epoch.seconds + more,
            "budget": epoch.budget.model_copy(update=phases | {"wire_seconds": wire, "longest_step": None}),
            "cpu": processors,
        }

    return epochs(of_epoch)


def scaled_processor(facts: CpuFacts, factor: float) -> CpuFacts:
    """Return these processor seconds times a factor."""
    return facts.model_copy(
        update={
            "process_seconds": factor * facts.process_seconds,
            "thread_seconds": {name: factor * each for name, each in facts.thread_seconds.items()},
            "training_runqueue_seconds": factor * (facts.training_runqueue_seconds or 0.0),
            "other_seconds": factor * (facts.other_seconds or 0.0),
        }
    )


def processors(**fields: object) -> Change:
    """Return a change of these facts of every worker's processor; a function is given the facts."""

    def changed(facts: CpuFacts) -> CpuFacts:
        new = {name: each(facts) if callable(each) else each for name, each in fields.items()}
        return facts.model_copy(update=new)

    return epochs(lambda epoch: {"cpu": [changed(facts) for facts in epoch.cpu or ()]})


def gpus(**fields: object) -> Change:
    """Return a change of these facts of every worker's GPU."""
    return in_epochs(gpu=lambda epoch: [facts.model_copy(update=fields) for facts in epoch.gpu or ()])


def results(make: Callable[[Lines, Evaluation], Evaluation]) -> Change:
    """Return a change of every evaluation."""
    return lambda lines: replace(lines, results=[make(lines, result) for result in lines.results])


def scored(iou: float | Callable[[RunConfig], float]) -> Change:
    """Return a change of every evaluation to this IoU."""

    def of(lines: Lines, result: Evaluation) -> Evaluation:
        value = iou(lines.config) if callable(iou) else iou
        return evaluation(lines.config, lines.epochs[: result.epochs], value)

    return results(of)


def started(moment: Callable[[RunConfig, datetime], datetime]) -> Change:
    """Return a change of the start of a run, given the true one."""

    def of(found: Header) -> str:
        return moment(found.config, datetime.fromisoformat(found.started_utc)).isoformat(timespec="seconds")

    return header(started_utc=of)


SCORE = "top_accuracy"
OTHER_SCORE = "dice_score"


def as_own_task(
    study: Path, score: str = SCORE, switches: Mapping[str, bool] | None = None, **options: str | int
) -> Path:
    """Write the runs of a study again as those of a task of their own, whose options are these.

    The numbers stay. It has the judged score and another one, which is Dice.
    """
    file = study.parent / "my_task.py"
    file.write_text(POINTS)
    sha256 = task_sha256(file, "task.file")
    task = TaskOptions(file=str(file), sha256=sha256, options={**options}, **(switches or {}))

    def change(lines: Lines) -> Lines:
        known = lines.config.model_dump(exclude={"data", "model", "emulation", "saliency", "task"})
        data = {"passes_per_epoch": lines.config.data.passes_per_epoch}
        own = RunConfig.model_validate(known | {"data": data, "task": task})
        own_header = header(config=own, config_sha256=own.digest())(lines)
        scores = [_scores(result, score) for result in lines.results]
        return replace(own_header, startup=None, probe=None, results=scores)

    Runs(study).change(change)
    return study


def _scores(result: Evaluation, score: str) -> Scores:
    assert isinstance(result, Result)
    shared = {name: getattr(result, name) for name in Evaluated.model_fields}
    scores = {score: result.iou, OTHER_SCORE: result.dice}
    return Scores(**shared, counts=[result.true_positive], scores=scores)


def change_study(folder: Path, **fields: object) -> None:
    """Write study.json again with these fields."""
    path = folder / STUDY_NAME
    content = json.loads(path.read_text())
    content.pop("sha256")
    write_json_with_checksum(path, content | fields)


def rows_of(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
