"""The recording of one run of a script: its epochs are measured, and worker 0 writes them down.

No framework is imported here: one that the script does not use may not be installed.
"""

import hashlib
import json
import math
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unet_scaling.base.errors import UserError, or_user_error
from unet_scaling.base.files import read_regular
from unet_scaling.base.validation import validated
from unet_scaling.format.record import RECORD_NAME, RecordWriter
from unet_scaling.format.record_lines import STEPS_NAME, End, RecordLine, ScriptHeader, WorkerFacts
from unet_scaling.group.group import Group, single_worker
from unet_scaling.group.identity import Identity, identify
from unet_scaling.group.rendezvous import horovod_transport
from unet_scaling.group.worker import own_facts, provenance, speed_variables
from unet_scaling.script_recorder.meter import LoopHooks, Marks, ScriptMeter
from unet_scaling.study.config import PLAIN_NAME, PLAIN_NAME_WORDS
from unet_scaling.study.frameworks import FRAMEWORK_ROWS
from unet_scaling.study.study_file import STUDY_NAME, list_run_folders

RunOptions = Mapping[str, str | bool | int | float]
Item = TypeVar("Item")
# Folders that a submission makes have names without this prefix.
FOLDER_PREFIX = "script"
SOURCE = "record.begin"
# The sums begun last. A thread of Gloo may still refer to one when wait() has returned. With the last
# reference it would free the tensors, for which it needs the GIL: a script that exits meanwhile aborts.
_LAST_SUMS: deque[object] = deque(maxlen=8)


def begin(
    *,
    study: str,
    framework: str,
    model: nn.Module | None = None,
    optimizer: Optimizer | None = None,
    options: RunOptions | None = None,
    logs: str | Path = "logs",
) -> "Recording":
    """Begin to record this run, on every worker, once they have their group.

    Each launch gets a folder of its own in LOGS/STUDY. `framework` names the arm, as study files do
    (docs/study.md). With `model` (the wrapped one) and `optimizer`, where the time goes is recorded too.
    `options` are what tells launches apart, such as {"batch": 16}.

    Raises UserError on every worker alike where an argument is wrong, the workers do not agree in them, or
    the record cannot be written.
    """
    marks = LoopHooks(model, optimizer) if model is not None and optimizer is not None else None
    recording = Recording(group_of_script(framework, model), model, marks)
    recording.open(Path(logs), study, framework, options or {})
    return recording


def group_of_script(framework: str, model: nn.Module | None) -> Group:
    """Return the group that the script has made in this process; without any, a group of one worker.

    Raises UserError where the framework is none of those known, and where a launcher started several
    workers, which have no group yet.
    """
    makes_group: dict[str, str] = {name: row.makes_group for name, row in FRAMEWORK_ROWS.items()}
    if framework not in makes_group:
        allowed = ", ".join(makes_group)
        raise UserError(f"{SOURCE}: framework: found {framework!r}; allowed: {allowed}")
    device = torch.device("cpu")
    weight = next(model.parameters(), None) if model is not None else None
    if weight is not None:
        device = weight.device
    elif torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        device = torch.device("cuda", torch.cuda.current_device())

    library: Any = sys.modules.get("horovod.torch" if framework == "horovod" else "torch.distributed")
    built = library is not None and (framework == "horovod" or library.is_available())
    joined = built and library.is_initialized()
    # The rank on its host, 0 for all, serves no purpose here: each worker has its device already.
    if joined and framework == "horovod":
        identity = Identity(library.rank(), library.size(), 0, "script")

        def start_sum(tensor: Tensor) -> Callable[[], object]:
            return partial(library.synchronize, library.allreduce_async_(tensor, op=library.Sum))

        return Group(identity, device, start_sum, horovod_transport(library, identity))
    if joined:
        identity = Identity(library.get_rank(), library.get_world_size(), 0, "script")
        backend = library.get_backend()
        sums_on_cpu = any(name in backend for name in ("gloo", "mpi"))

        def start_kept_sum(tensor: Tensor) -> Callable[[], object]:
            work = library.all_reduce(tensor, async_op=True)
            _LAST_SUMS.append(work)
            return lambda: work.wait()

        return Group(
            identity,
            device,
            start_kept_sum,
            {"backend": backend},
            torch.device("cpu") if sums_on_cpu else device,
        )
    launched = identify(os.environ)
    # A batch script of Slurm has the variables of its job, without being one of its tasks.
    if launched.size > 1 and launched.launcher != "Slurm":
        found = f"{launched.launcher} started {launched.size} workers, which have no group yet"
        raise UserError(f"{SOURCE}: {found}; call it after {makes_group[framework]}")
    return single_worker(device, "script")


class Recording:
    """A run that is recorded: `epoch` around the batches of every epoch, then `finish`."""

    def __init__(self, group: Group, model: nn.Module | None, marks: Marks | None) -> None:
        self._group = group
        self.meter = ScriptMeter(group, model, marks)
        self._writer: RecordWriter | None = None
        self._folder = Path()
        self._has_ended = False
        self.is_in_epoch = False
        self._remarked: set[str] = set()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let the clock of this worker stand within an epoch, as for an evaluation or a checkpoint."""
        if not self.is_in_epoch:
            yield
            return
        self.meter.pause()
        yield
        self.meter.resume()

    def epoch(
        self,
        batches: Iterable[Item],
        steps: int | None = None,
        samples: Callable[[Item], int] | None = None,
    ) -> "RecordedBatches[Item]":
        """Return the batches of one epoch, to be iterated over instead of the loader, on every worker.

        `steps` ends it after so many batches, and tells their number where the loader has no length.
        `samples` counts those of a batch; by default they are the first dimension of its first tensor.
        """
        return RecordedBatches(self, batches, steps, samples or count_samples)

    def finish(self, **scores: float) -> None:
        """Complete the record, with scores by their names; a record without this is of a run that failed."""
        self._leave_epoch()
        if self._writer is None:
            return
        if self.meter.sample:
            self.meter.sample.write(self._folder / STEPS_NAME)
        finite = {}
        for name, score in scores.items():
            try:
                number = float(score)
            except (TypeError, ValueError, RuntimeError):
                self._warn(f"{name}: found {score!r}, which is no number; it is left out")
                continue
            if math.isfinite(number):
                finite[name] = number
        self._write(End(status="complete", scores=finite or None))
        self._has_ended = True

    def open(self, logs: Path, study: str, framework: str, options: RunOptions) -> None:
        """Begin the record in a folder of its own below `logs`; raises what the function `begin` does."""
        workers = self._introduce_workers(study, framework, options)

        def begin_record() -> None:
            if self._group.rank != 0:
                return
            header = script_header(study, framework, options, self._group, workers)
            self._folder, header = make_run_folder(logs / study, header)
            with or_user_error(f"{SOURCE}: {self._folder / RECORD_NAME} cannot be written"):
                self._writer = RecordWriter(self._folder / RECORD_NAME)
                self._writer.write(header)
            print(f"recording into {self._folder}", flush=True)

        self._group.run_on_all(begin_record)

    def _introduce_workers(self, study: str, framework: str, options: RunOptions) -> list[WorkerFacts]:
        """Return the facts of all workers, by rank; UserError on all where they record different runs."""
        common = {
            "study": study,
            "framework": framework,
            "options": json.dumps(dict(options), sort_keys=True, default=str),
            "script": own_program()[1] or "",
        }
        told = self._group.gather_strings(json.dumps(common))
        for worker, other in enumerate(map(json.loads, told)):
            for name, value in json.loads(told[0]).items():
                if other[name] != value:
                    found = f"{value!r} on worker 0, {other[name]!r} on worker {worker}"
                    raise UserError(f"{SOURCE}: {name}: found {found}; call it alike on every worker")
        facts = own_facts(self._group.identity, self._group.device, speed_variables())
        return self._group.gather_models(facts)

    def begin_epoch(self, batches: int | None, samples: int = 0) -> None:
        """Start the clocks of all workers together, for so many batches; None: not known.

        `samples` are those of the data set, where the epoch is one pass over all of it.
        """
        self._leave_epoch()
        self.is_in_epoch = True
        self.meter.begin(batches, samples)

    def end_epoch(self) -> None:
        """Gather what all workers measured, outside their clocks, and write it down."""
        self.is_in_epoch = False
        epoch = self.meter.end()
        if epoch is None:
            self._warn("an epoch without a sample is not recorded")
        else:
            self._write(epoch)
        for remark in self.meter.remarks:
            # Print each kind of remark once, whatever its numbers are.
            kind = re.sub(r"[0-9.e+-]+", "", remark)
            if kind not in self._remarked:
                self._remarked.add(kind)
                self._warn(remark)

    def _leave_epoch(self) -> None:
        """Give up an epoch whose loop was left: when its last step ended is not known."""
        if self.is_in_epoch:
            self.is_in_epoch = False
            self.meter.close()
            self._warn("an epoch that was left early is not recorded; end it by run.epoch(loader, steps=...)")

    def _write(self, line: RecordLine) -> None:
        """Append a line on worker 0; a training goes on where it cannot be recorded."""
        if self._has_ended:
            self._warn("the record has ended already; nothing is added")
        if self._writer is None or self._has_ended:
            return
        try:
            self._writer.write(line)
        except OSError as problem:
            self._writer = None
            self._warn(f"nothing more is recorded: {problem}")

    def _warn(self, text: str) -> None:
        if self._group.rank == 0:
            print(f"warning: {self._folder}: {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class RecordedBatches(Generic[Item]):
    """The batches of a loader, at most `steps` of them; iterating over them is an epoch."""

    recording: Recording
    batches: Iterable[Item]
    steps: int | None
    samples: Callable[[Item], int]

    def __len__(self) -> int:
        """Return the number of batches; raises TypeError where the loader does not tell it."""
        if self.steps is None:
            return len(self.batches)  # type: ignore[arg-type]
        with suppress(TypeError):
            return min(self.steps, len(self.batches))  # type: ignore[arg-type]
        return self.steps

    def __iter__(self) -> Iterator[Item]:
        length = None
        with suppress(TypeError):
            length = len(self)
        # A script that counts by itself counts other things, and may end before the loader does.
        is_whole_pass = self.steps is None and self.samples is count_samples
        self.recording.begin_epoch(length, samples_of_data(self.batches) if is_whole_pass else 0)
        for batch in islice(self.batches, self.steps):
            self.recording.meter.arrived(self.samples(batch))
            yield batch
            self.recording.meter.done()
        # Not in a finally clause: a worker that leaves its loop early must not wait here for the others.
        self.recording.end_epoch()


def samples_of_data(loader: object) -> int:
    """Return how many samples the data set of a loader has; 0 where it does not tell."""
    try:
        return len(loader.dataset)  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        return 0


def count_samples(batch: object) -> int:
    """Return the first dimension of the first tensor of a batch; raises UserError where it has none."""
    for tensor in _tensors(batch):
        if tensor.ndim:
            return tensor.shape[0]
    found = f"the batch is of type {type(batch).__name__}, in which no tensor tells the samples"
    raise UserError(f"run.epoch: {found}; give samples=, a function that counts them")


def _tensors(batch: Any) -> Iterator[Tensor]:  # noqa: ANN401, whatever a loader gives
    if isinstance(batch, Tensor):
        yield batch
        return
    parts = batch.values() if isinstance(batch, Mapping) else batch
    if isinstance(parts, Sequence | Iterable) and not isinstance(parts, str | bytes):
        for part in parts:
            yield from _tensors(part)


def script_header(
    study: str, framework: str, options: RunOptions, group: Group, workers: list[WorkerFacts]
) -> ScriptHeader:
    """Return the header of the first repeat; UserError where an argument is wrong."""
    if not re.fullmatch(PLAIN_NAME, study):
        raise UserError(f"{SOURCE}: study: found {study!r}; allowed: {PLAIN_NAME_WORDS}")
    script, sha256 = own_program()
    content = {
        "framework": framework,
        "repeat": 1,
        "script": Path(script).name,
        "script_sha256": sha256,
        "options": dict(options),
    }
    # The script may lie anywhere in its repository; that of another user may hold programs for git to run.
    code = next((folder for folder in Path(script).parents if (folder / ".git").exists()), None)
    if code and code.stat().st_uid not in (os.getuid(), 0):
        code = None
    content |= provenance(group, workers, code)
    return validated(ScriptHeader, content, SOURCE)


def make_run_folder(study: Path, first: ScriptHeader) -> tuple[Path, ScriptHeader]:
    """Make the folder of the first repeat that has none below that of the study; return it with its header.

    Raises UserError where the study is one of the project's own runs, and where no folder can be made.
    """
    options = [f"{key}={value}" for key, value in first.options.items()]
    parts = [FOLDER_PREFIX, first.framework, f"w{len(first.workers):02d}", *options]
    name = re.sub(r"[^A-Za-z0-9.+=_-]+", "_", "-".join(parts))
    with or_user_error(f"{SOURCE}: no run folder can be made in {study}"):
        study.mkdir(parents=True, exist_ok=True)
        if (study / STUDY_NAME).exists() or list_run_folders(study):
            found = f"found {study.name!r}, but {study} holds runs that were submitted"
            raise UserError(f"{SOURCE}: study: {found}; give another name")
        for repeat in count(1):
            folder = study / f"{name}-r{repeat}"
            with suppress(FileExistsError):
                folder.mkdir()
                return folder, first.model_copy(update={"repeat": repeat})
    raise AssertionError("numbers of repeats do not end")


def own_program() -> tuple[str, str | None]:
    """Return path and SHA-256 of the program that runs; empty and None where it was typed."""
    path = getattr(sys.modules["__main__"], "__file__", None)
    if path is None or not Path(path).is_file():
        return "", None
    return str(Path(path).resolve()), hashlib.sha256(read_regular(Path(path))).hexdigest()
