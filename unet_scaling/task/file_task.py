"""A task that a Python file defines."""

from collections import UserDict
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, cast

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import default_collate

from unet_scaling.data.batches import Batch, SampleData, SampleSource, sample_digests, samples_sha256
from unet_scaling.data.images import Verification
from unet_scaling.data.order import Split, require_enough_images
from unet_scaling.group.group import Group
from unet_scaling.model import Norm
from unet_scaling.study.config import RunConfig
from unet_scaling.study.errors import EXIT_BAD_DATA, UserError
from unet_scaling.study.options import Scalar
from unet_scaling.study.record_lines import Evaluated, Scores
from unet_scaling.task.functions import TaskFunctions
from unet_scaling.task.task import Task, require_finite
from unet_scaling.task.verification import require_all_trained, require_usable, verify_task, without_gradient


class FileTask(TaskFunctions, Task):
    """The functions of a file, with the options of the study."""

    def __init__(self, config: RunConfig) -> None:
        """Import the file. Raises UserError as `TaskFunctions`."""
        super().__init__(config)
        self._options = _ReadOptions(cast(Mapping[str, Scalar], config.task.options))
        self._trained: dict[str, nn.Parameter] = {}

    def load_data(self, group: Group, backwards: bool | None = None) -> SampleData:
        """Open the data sets; UserError (65) where they are empty, or fewer samples than a step takes.

        Every second worker reads `backwards`: samples that depend on the order of reads then differ.
        """
        is_first = group.identity.local_rank == 0
        # On one worker of each host first, which may download or decode for the others.
        first = group.run_on_all(lambda: self.called("datasets", self._options) if is_first else None)
        return group.run_on_all(lambda: self._opened(first, group, backwards))

    def _opened(self, datasets: Any, group: Group, backwards: bool | None) -> SampleData:  # noqa: ANN401
        datasets = datasets or self.called("datasets", self._options)
        names = ("collate", "transform")
        optional = {name: partial(self.called, name) for name in names if name in self.functions}
        with self.inside("datasets"):
            train, test = datasets
            if not (len(train) and len(test)):
                found = f"{len(train)} training and {len(test)} test samples"
                raise self.mistake("datasets", f"gives {found}; neither may be empty", EXIT_BAD_DATA)
            require_enough_images(self.config, len(train))
            source = SampleSource(train, test, optional.get("collate", default_collate))
            numbers = np.arange(len(train) + len(test))
            split = Split(numbers[: len(train)], numbers[len(train) :])
            backwards = group.rank % 2 == 1 if backwards is None else backwards
            digests = sample_digests(source, split, backwards)
        facts = (Verification({}, ""), split, self.config, group, samples_sha256(split, digests))
        return SampleData(source, *facts, transform=optional.get("transform"), digests=digests)

    def build_model(self, synchronized_norm: Norm) -> nn.Module:  # noqa: ARG002
        """Return the model; UserError where the frameworks cannot train its weights alike."""
        model = self.called("build_model", self._options)
        require_usable(self, model)
        self._trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        model.register_forward_hook(self.note_outputs)
        return cast(nn.Module, model)

    def parameters(self, model: nn.Module) -> Iterable[Any]:
        if "parameters" not in self.functions:
            return model.parameters()
        with self.inside("parameters"):
            groups = list(self.functions["parameters"](model))
            require_all_trained(self, "parameters", model, groups)
        return groups

    def optimizer(self, model: nn.Module) -> Optimizer:
        if "optimizer" not in self.functions:
            return super().optimizer(model)
        with self.inside("optimizer"):
            optimizer = cast(Optimizer, self.functions["optimizer"](model))
            require_all_trained(self, "optimizer", model, optimizer.param_groups)
        if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
            found = "has hooks on its steps, such as for clipping, which Horovod does not pass on"
            raise self.mistake("optimizer", f"{found}; leave them out: averaged gradients cannot be clipped")
        return optimizer

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return cast(Tensor, self.functions["loss"](model, batch))

    def result(self, counts: Tensor, evaluated: Evaluated) -> Scores:
        require_finite(counts, evaluated.epochs, self.place("count"))
        total = counts.sum(dim=0)
        return Scores(**evaluated.model_dump(), counts=total.tolist(), scores=self.score(total))

    def verify(self, model: nn.Module, data: SampleData) -> None:  # type: ignore[override]
        """Raise UserError, on every worker alike: 65 for data, 2 for a function or an option."""
        self.require_options_read()
        verify_task(self, model, data)
        self.watches_generators = False

    def missing_gradients(self) -> UserError | None:
        """Return the error of a step that uses fewer parameters than the verified pass; None without any.

        DDP would end with an error of its own in the next step, and Horovod go on. A parameter that some
        passes of the step use, and others do not, is not among them: it has a gradient.
        """
        without = [name for name, weight in self._trained.items() if weight.grad is None]
        return without_gradient(self, without) if without else None

    def require_options_read(self) -> None:
        """Raise UserError for an option of which nothing depends; after data and model were made."""
        unread = sorted(f"task.options.{name}" for name in self._options.keys() - self._options.read)
        if unread:
            found = f"{', '.join(unread)}: neither build_model nor datasets of {self.path} reads it"
            raise UserError(f"{found}; correct its name, or remove it")


class _ReadOptions(UserDict[str, Scalar]):
    """Options that notice which of them are read: one with a wrong name would change nothing in silence."""

    def __init__(self, options: Mapping[str, Scalar]) -> None:
        self.read: set[str] = set()
        super().__init__(options)

    def __getitem__(self, name: str) -> Scalar:
        self.read.add(name)
        return super().__getitem__(name)
