"""A task that a Python file defines."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import default_collate

from unet_scaling.data.batches import Split
from unet_scaling.data.enough_images import require_enough_images
from unet_scaling.data.image_source import Batch
from unet_scaling.data.sample_data import MapStyleData, SampleData, SampleSource, samples_sha256
from unet_scaling.data.verification import Verification
from unet_scaling.group.group import Group
from unet_scaling.model import Norm
from unet_scaling.study.config import RunConfig
from unet_scaling.study.errors import EXIT_BAD_DATA, UserError
from unet_scaling.study.options import Scalar
from unet_scaling.study.record_lines import Evaluated, Scores
from unet_scaling.task.contract import TaskFile
from unet_scaling.task.importing import import_task_file
from unet_scaling.task.task import Task
from unet_scaling.task.verification import verify_task, without_gradient


class FileTask(Task):
    """The functions of a file, with the options of the study."""

    def __init__(self, config: RunConfig) -> None:
        """Import the file; UserError where that is not the one of the configuration, or lacks a function."""
        super().__init__(config)
        assert config.task.file is not None
        self.path = Path(config.task.file)
        module = import_task_file(self.path, config.task.sha256)
        self._functions = cast(TaskFile, module)
        self._optional: dict[str, Any] = vars(module)
        self._options = _ReadOptions(cast(Mapping[str, Scalar], config.task.options))
        self._trained: dict[str, nn.Parameter] = {}

    def load_data(self, group: Group) -> SampleData:
        """Open the data sets; UserError (65) where they are empty, or fewer samples than a step takes."""
        train, test = self._datasets(group)
        for name, samples in (("training", train), ("test", test)):
            if len(samples) == 0:
                raise UserError(f"{self.path}: datasets gives an empty {name} set", EXIT_BAD_DATA)
        require_enough_images(self.config, len(train))
        source = SampleSource(train, test, self._optional.get("collate", default_collate))
        numbers = np.arange(len(train) + len(test))
        split = Split(numbers[: len(train)], numbers[len(train) :])
        return SampleData(
            source,
            Verification({}, ""),
            split,
            self.config,
            group,
            samples_sha256(source, split),
            transform=self._optional.get("transform"),
        )

    def _datasets(self, group: Group) -> tuple[MapStyleData, MapStyleData]:
        """Call `datasets` on one worker of each host first, which may download or decode for the others."""
        is_first = group.identity.local_rank == 0
        datasets = self._functions.datasets(self._options) if is_first else None
        group.wait_for_all()
        return datasets or self._functions.datasets(self._options)

    def build_model(self, synchronized_norm: Norm) -> nn.Module:  # noqa: ARG002
        model = self._functions.build_model(self._options)
        self._trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        return model

    def parameters(self, model: nn.Module) -> Iterable[Any]:
        parameters = self._optional.get("parameters", nn.Module.parameters)
        chosen: Iterable[Any] = parameters(model)
        return chosen

    def optimizer(self, model: nn.Module) -> Optimizer:
        make: Callable[[nn.Module], Optimizer] = self._optional.get("optimizer", super().optimizer)
        return make(model)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return self._functions.loss(model, batch)

    def count(self, model: nn.Module, batch: Batch) -> Tensor:
        return self._functions.count(model, batch)

    def score(self, counts: Tensor) -> dict[str, float | None]:
        """Return the scores that follow from int64 counts [k] of the whole test set."""
        scores = self._functions.score(counts.tolist())
        return {name: None if value is None else float(value) for name, value in scores.items()}

    def result(self, counts: Tensor, evaluated: Evaluated) -> Scores:
        total = counts.sum(dim=0)
        return Scores(**evaluated.model_dump(), counts=total.tolist(), scores=self.score(total))

    def verify(self, model: nn.Module, data: SampleData) -> None:  # type: ignore[override]
        """Raise UserError, on every worker alike: 65 for data, 2 for a function or an option."""
        self.require_options_read()
        verify_task(self, model, data)

    def missing_gradients(self) -> UserError | None:
        """Return the error of a step that uses fewer parameters than the verified pass; None without any.

        DDP would end with an error of its own in the next step, and Horovod go on. A parameter that some
        passes of the step use, and others do not, is not among them: it has a gradient.
        """
        without = [name for name, weight in self._trained.items() if weight.grad is None]
        return without_gradient(self.path, without) if without else None

    def require_options_read(self) -> None:
        """Raise UserError for an option of which nothing depends; after data and model were made."""
        unread = ", ".join(f"task.options.{name}" for name in self._options.unread())
        if unread:
            raise UserError(
                f"{unread}: neither build_model nor datasets of {self.path} reads it; correct its name, or "
                "remove it"
            )


class _ReadOptions(Mapping[str, Scalar]):
    """Options that notice which of them are read: one with a wrong name would change nothing in silence."""

    def __init__(self, options: Mapping[str, Scalar]) -> None:
        self._options = options
        self._read: set[str] = set()

    def __getitem__(self, name: str) -> Scalar:
        self._read.add(name)
        return self._options[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._options)

    def __len__(self) -> int:
        return len(self._options)

    def unread(self) -> list[str]:
        return sorted(self._options.keys() - self._read)
