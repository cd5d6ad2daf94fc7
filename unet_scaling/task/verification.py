"""Verify that a task keeps its contract, before anything is trained: each mistake has a sentence of its own.

What can be seen in one worker is measured there; then the workers compare what each of them found.
"""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from unet_scaling.data.image_source import Batch
from unet_scaling.data.sample_data import SampleData, sample_sha256
from unet_scaling.run.weights import weights_sha256
from unet_scaling.study.config import RunConfig
from unet_scaling.study.errors import EXIT_BAD_DATA, UserError
from unet_scaling.study.record_lines import SCORE_NAME

# Halved once: a mean over all samples is then the mean of two means.
BATCH_SAMPLES = 4
# Sums in another order differ by rounding; a sum instead of a mean is off by a factor of 2.
LOSS_TOLERANCE = 1e-3
# Of all counts: rounding may move a value that lies at a threshold.
COUNT_TOLERANCE = 1e-3
MOST_NAMED = 5


class VerifiedTask(Protocol):
    """The functions of a task that are tried, and the file that they are in."""

    path: Path
    config: RunConfig

    def loss(self, model: nn.Module, batch: Batch) -> Tensor: ...

    def count(self, model: nn.Module, batch: Batch) -> Tensor: ...

    def score(self, counts: Tensor) -> dict[str, float | None]: ...


class TaskFacts(BaseModel):
    """What one worker found; all workers must have found the same."""

    weights_sha256: str
    samples: dict[int, str]
    loss: float
    gradient_norm: float
    without_gradient: list[str]


def verify_task(task: VerifiedTask, model: nn.Module, data: SampleData) -> None:
    """Raise UserError on every worker alike, where one finds a mistake or two workers differ."""
    own = data.group.run_on_all(lambda: task_facts(task, model, data))
    texts = data.group.gather_strings(own.model_dump_json())
    workers = [TaskFacts.model_validate_json(text) for text in texts]
    require_alike(task.path, workers)
    require_all_used(task, workers[0])


def task_facts(task: VerifiedTask, model: nn.Module, data: SampleData) -> TaskFacts:
    """Return what this worker finds; raises UserError for a mistake that one worker alone can see."""
    samples = _sample_digests(task, data)
    with _unchanged(model), torch.compiler.set_stance("force_eager"):
        _require_mean_loss(task, model, data)
        _require_counts_that_add_up(task, model, data)
        loss, norm, without = _gradients(task, model, data)
    weights = weights_sha256(model)
    return TaskFacts(
        weights_sha256=weights, samples=samples, loss=loss, gradient_norm=norm, without_gradient=without
    )


def require_alike(path: Path, workers: Sequence[TaskFacts]) -> None:
    """Raise UserError where two workers differ, 65 in a sample, 2 in a pass."""
    first = workers[0]
    for rank, other in enumerate(workers):
        _require_same_samples(path, rank, first, other)
        _require_same_weights(path, rank, first, other)
        _require_same_pass(path, rank, first, other)


def require_all_used(task: VerifiedTask, found: TaskFacts) -> None:
    """Raise UserError where a parameter has no gradient after a pass, and the study does not allow it."""
    if found.without_gradient and not task.config.task.find_unused_parameters:
        raise without_gradient(task.path, found.without_gradient)


def without_gradient(path: Path, names: Sequence[str]) -> UserError:
    """Return the error that names parameters without a gradient after a pass, and what to do."""
    return UserError(
        f"{path}: no gradient after a pass for {_named(names)}: the workers would wait for it; use every "
        "parameter in every loss, remove it, or set requires_grad_(False); where some passes are not to use "
        "it, set task.find_unused_parameters = true"
    )


def _require_same_samples(path: Path, rank: int, first: TaskFacts, other: TaskFacts) -> None:
    differing = [index for index, digest in first.samples.items() if other.samples.get(index) != digest]
    if differing:
        raise UserError(
            f"{path}: datasets: sample {differing[0]} is not the same in workers 0 and {rank}; it may depend "
            "on nothing but its index: neither on the rank or the host, nor on random numbers",
            EXIT_BAD_DATA,
        )


def _require_same_weights(path: Path, rank: int, first: TaskFacts, other: TaskFacts) -> None:
    if first.weights_sha256 != other.weights_sha256:
        raise UserError(
            f"{path}: build_model gives workers 0 and {rank} different weights from the same seed: draw them "
            "from torch's generator, and let nothing depend on the worker"
        )


def _require_same_pass(path: Path, rank: int, first: TaskFacts, other: TaskFacts) -> None:
    if first.without_gradient != other.without_gradient:
        differing = sorted(set(first.without_gradient) ^ set(other.without_gradient))
        raise UserError(
            f"{path}: loss: workers 0 and {rank} do not have gradients of the same parameters "
            f"({_named(differing)}): a branch that depends on the worker would let the others wait for ever; "
            "remove it"
        )
    for name in ("loss", "gradient_norm"):
        one = getattr(first, name)
        two = getattr(other, name)
        if not math.isclose(one, two, rel_tol=LOSS_TOLERANCE):
            found = f"a {name.replace('_', ' ')} of {one:g}, worker {rank} of {two:g}"
            raise UserError(
                f"{path}: loss: of the same batch worker 0 has {found}: a branch depends on the worker, its "
                "rank or host; remove it"
            )


def _sample_digests(task: VerifiedTask, data: SampleData) -> dict[int, str]:
    found = {}
    for index in data.compared_samples():
        once, again = (sample_sha256(data.source.sample(index)) for _ in range(2))
        if once != again:
            raise UserError(
                f"{task.path}: datasets: sample {index} is another one when it is read again; make it a "
                "function of its index, and draw what is random in transform(batch, seeds), from the seeds",
                EXIT_BAD_DATA,
            )
        found[index] = once
    return found


def _loss(task: VerifiedTask, model: nn.Module, batch: Batch) -> Tensor:
    loss = task.loss(model, batch)
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        shape = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise UserError(f"{task.path}: loss gives {shape}, not a scalar; return the mean over the samples")
    if not torch.isfinite(loss):
        raise UserError(f"{task.path}: loss is {loss.item()} with the first weights and samples")
    return loss


def _require_mean_loss(task: VerifiedTask, model: nn.Module, data: SampleData) -> None:
    indices = data.split.train[:BATCH_SAMPLES]
    if len(indices) < BATCH_SAMPLES:
        return
    # As for evaluation: in training mode batch norm makes a sample's loss depend on its neighbours.
    model.eval()
    with torch.no_grad():
        parts = (indices, indices[: BATCH_SAMPLES // 2], indices[BATCH_SAMPLES // 2 :])
        whole, one, other = (_loss(task, model, data.batch(part, 0)).item() for part in parts)
    mean = (one + other) / 2
    if math.isclose(whole, mean, rel_tol=LOSS_TOLERANCE, abs_tol=LOSS_TOLERANCE * abs(one - other)):
        return
    is_sum = math.isclose(whole, one + other, rel_tol=LOSS_TOLERANCE)
    kind = "a sum over the samples, and no mean" if is_sum else "not the mean over the samples"
    raise UserError(
        f"{task.path}: loss is {kind}: {BATCH_SAMPLES} samples give {whole:g}, their halves {one:g} and "
        f"{other:g}; with several workers the gradients would be wrong; divide by the number of samples"
    )


def _require_counts_that_add_up(task: VerifiedTask, model: nn.Module, data: SampleData) -> None:
    model.eval()
    indices = data.split.test[:BATCH_SAMPLES]
    with torch.no_grad():
        whole = _counts(task, model, data.batch(indices))
        single = [
            _counts(task, model, data.batch(indices[place : place + 1])) for place in range(len(indices))
        ]
    _require_same_length(task, whole, single)
    total = torch.stack(single).sum(dim=0)
    if (whole - total).abs().sum() > COUNT_TOLERANCE * total.abs().sum():
        raise UserError(
            f"{task.path}: count does not add up over samples: {len(indices)} of them give {whole.tolist()}, "
            f"one by one they sum to {total.tolist()}; count in integers, and divide in score"
        )
    _require_scores(task, total)


def _require_same_length(task: VerifiedTask, whole: Tensor, single: Sequence[Tensor]) -> None:
    lengths = sorted({len(each) for each in single})
    if lengths != [len(whole)]:
        raise UserError(
            f"{task.path}: count gives {len(whole)} numbers of {len(single)} samples, and {lengths} of one; "
            "their number may not depend on the batch"
        )


def _counts(task: VerifiedTask, model: nn.Module, batch: Batch) -> Tensor:
    counts = task.count(model, batch)
    if not isinstance(counts, Tensor) or counts.dtype != torch.int64 or counts.dim() != 1:
        found = (
            f"{counts.dtype} {list(counts.shape)}" if isinstance(counts, Tensor) else type(counts).__name__
        )
        raise UserError(f"{task.path}: count gives {found}; a tensor of int64 [k] is needed")
    return counts.cpu()


def _require_scores(task: VerifiedTask, counts: Tensor) -> None:
    scores = task.score(counts)
    names = [name for name in scores if not re.fullmatch(SCORE_NAME, name)]
    if not scores or names:
        found = ", ".join(map(repr, names)) or "no score"
        raise UserError(
            f"{task.path}: score gives {found}; names of lower-case letters, digits and _ are needed, such "
            "as accuracy"
        )
    name, judged = next(iter(scores.items()))
    if judged is not None and not 0 <= judged <= 1:
        raise UserError(
            f"{task.path}: score: {name} is {judged:g}; the first score is the one that is judged, a share "
            "from 0 to 1 of which more is better"
        )


def _gradients(task: VerifiedTask, model: nn.Module, data: SampleData) -> tuple[float, float, list[str]]:
    """Return the loss of one training pass, the norm of its gradients, and the parameters without one."""
    model.train()
    indices = data.split.train[:BATCH_SAMPLES]
    passes = [_one_pass(task, model, data.batch(indices, 0)) for _ in range(2)]
    (loss, norm), (again, _) = passes
    if not math.isclose(loss, again, rel_tol=LOSS_TOLERANCE):
        raise UserError(
            f"{task.path}: loss of one batch is {loss:g}, then {again:g} from the same seed: something "
            "random does not come from torch's generator; draw it from there"
        )
    trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    return loss, norm, [name for name, weight in trained if weight.grad is None]


def _one_pass(task: VerifiedTask, model: nn.Module, batch: Batch) -> tuple[float, float]:
    model.zero_grad()
    torch.manual_seed(task.config.seed)
    # A branch may depend on a buffer, such as a count of the passes: of one state it is the same.
    with _unchanged_buffers(model):
        loss = _loss(task, model, batch)
        if not loss.requires_grad:
            raise UserError(f"{task.path}: loss depends on no parameter of the model; it cannot be trained")
        loss.backward()  # type: ignore[no-untyped-call]
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    norms = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients])
    return loss.item(), torch.linalg.vector_norm(norms).item()


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{more}"


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Restore buffers, gradients, mode and torch's generators at the end; nothing has changed a weight."""
    was_training = model.training
    try:
        with torch.random.fork_rng(), _unchanged_buffers(model):
            yield
    finally:
        model.zero_grad()
        model.train(was_training)


@contextmanager
def _unchanged_buffers(model: nn.Module) -> Iterator[None]:
    buffers = [buffer.clone() for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, before in zip(model.buffers(), buffers, strict=True):
                buffer.copy_(before)
