"""The interface of a task: all that the twins, the evaluation and the record ask of what is trained."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unet_scaling.data.run_data import RunData
from unet_scaling.group.group import Group
from unet_scaling.model import Norm
from unet_scaling.study.config import RunConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.record_lines import Evaluated, Evaluation


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
