"""The interface of a task: all that the twins, the evaluation and the record ask of what is trained."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unet_scaling.data.batches import RunData
from unet_scaling.group.group import Group
from unet_scaling.model import Norm
from unet_scaling.study.config import RunConfig
from unet_scaling.study.errors import EXIT_DIVERGED, UserError
from unet_scaling.study.record_lines import Evaluated, Evaluation

# Stands in the place of each count of a sample whose outputs were not finite: no count reaches it.
NOT_FINITE = torch.iinfo(torch.int64).min


def finite_counts(counts: Tensor, outputs: Iterable[Tensor]) -> Tensor:
    """Return the counts of a sample, or `NOT_FINITE` where an output is NaN or infinite.

    It does not wait for the device. Minus infinity is what a model may mean, of what it rules out.
    """
    for output in outputs:
        counts = torch.where((output < torch.inf).all().to(counts.device), counts, NOT_FINITE)
    return counts


def require_finite(counts: Tensor, epochs: int, place: str) -> None:
    """Raise UserError (70) where outputs behind counts [samples, k] are not finite, on all workers alike."""
    found = (counts == NOT_FINITE).any(dim=1).nonzero()
    if len(found):
        samples = f"{len(found)} of {len(counts)} test samples, first number {found[0].item()}"
        cause = "the training diverged, or in evaluation mode the model divides by zero"
        problem = f"{place}: after {epochs} epochs outputs are NaN or infinite for {samples}: {cause}"
        raise UserError(problem, EXIT_DIVERGED)


class Task(ABC):
    """Model, data, loss and score of one run."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    @abstractmethod
    def load_data(self, group: Group) -> RunData:
        """Open the data of the run, on every worker; UserError (65) where they cannot be trained on."""

    @abstractmethod
    def build_model(self, synchronized_norm: Norm) -> nn.Module:
        """Return the model on the CPU, its weights drawn from torch's generator.

        `synchronized_norm` is the framework's batch norm over all workers.
        """

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Tensor:  # noqa: ANN401
        """Return the loss of a batch, the mean over its samples."""

    @abstractmethod
    def count(self, model: nn.Module, batch: Any) -> Tensor:  # noqa: ANN401
        """Return int64 counts [k] of a batch of the test set, which add up over its samples."""

    @abstractmethod
    def result(self, counts: Tensor, evaluated: Evaluated) -> Evaluation:
        """Return the record's line of an evaluation from the counts [test samples, k] of all workers."""

    def picture(self, model: nn.Module, batch: Any) -> tuple[bytes, float | None] | None:  # noqa: ANN401, ARG002
        """Return a small PNG of a test sample and its prediction, and its score; None: not drawn."""
        return None

    def verify(self, model: nn.Module, data: RunData) -> None:  # noqa: B027
        """Raise UserError, on every worker alike, where the task breaks its contract; before anything trains.

        The built-in task keeps it by the tests of this project.
        """

    def missing_gradients(self) -> UserError | None:
        """Return the error that names parameters without a gradient after the passes of a step.

        Called before the average of gradients, in which Horovod fills them in. None where all have one:
        every pass of the built-in task uses all of its parameters.
        """
        return None

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Return the optimizer, fused; its rates count by their ratio to that of the first group."""
        return torch.optim.Adam(self.parameters(model), lr=self.config.training.learning_rate, fused=True)

    def parameters(self, model: nn.Module) -> Iterable[Any]:
        """Return the parameters to train, or groups of them as torch's optimizers take them."""
        return model.parameters()
