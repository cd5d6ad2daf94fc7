"""A task that a Python file defines, and the verification that it keeps its contract before anything trains.

Each mistake has a sentence that names the function, its line and the cure. What can be seen in one worker is
measured there; then the workers compare what each of them found.
"""

import math
import re
from collections import UserDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves
from torch.utils.data import default_collate

from unet_scaling.base.errors import EXIT_BAD_DATA, UserError
from unet_scaling.base.texts import WORDS_OF_LOSSES
from unet_scaling.data.batches import (
    Batch,
    SampleData,
    SampleSource,
    sample_digests,
    sample_sha256,
    samples_sha256,
)
from unet_scaling.data.images import Verification
from unet_scaling.data.order import Indices, Split, require_enough_images
from unet_scaling.format.record_lines import SCORE_NAME, Evaluated, Scores
from unet_scaling.group.group import Group
from unet_scaling.model import Norm
from unet_scaling.run import training_state
from unet_scaling.study.config import RunConfig
from unet_scaling.study.options import Scalar
from unet_scaling.task.functions import TaskFunctions
from unet_scaling.task.task import Task, require_finite

# Samples of each small batch that is tried: half a batch is still more than one sample.
BATCH_SAMPLES = 4
# That many of them, of samples from all over the set: those of one kind may stand together.
COMPARED_BATCHES = 4
# Sums in another order differ by rounding, or by so many roundings of the loss's own type; a sum instead of
# a mean is off by a factor of 2. Where dropout draws anew for each sample, or passes differ in what they
# use, only that factor is looked for.
LOSS_TOLERANCE = 1e-3
LOSS_ROUNDINGS = 8
RANDOM_LOSS_TOLERANCE = 0.5
# So many samples of each set are compared: where 30,000 training samples hold the test set, two agree.
SEARCHED_SAMPLES = 256
# A test set is refused of which about so much are training samples, unless so few values are possible that
# the training set repeats itself, too: by chance alone then half as often as the test set repeats it.
LEAKED_SHARE = 0.5
LEAKED_BEYOND_CHANCE = 4
APART = "split the samples, so that each is in one set only"
# This share of all counts may differ, as rounding may move a value that lies at a threshold.
COUNT_TOLERANCE = 1e-3


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
            if train is test:
                raise self.mistake("datasets", f"gives one data set as both; {APART}", EXIT_BAD_DATA)
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
        if name not in self.data:
            has = ", ".join(self.data) or "none"
            raise KeyError(f"task.options of the study has no {name}; it has {has}: write {name} there")
        return super().__getitem__(name)


class TaskFacts(BaseModel):
    """What one worker found; all workers must have found the same."""

    weights_sha256: str
    train_samples: int
    test_samples: int
    samples: dict[int, str]
    loss: float
    gradient_norm: float
    without_gradient: list[str]


def verify_task(task: TaskFunctions, model: nn.Module, data: SampleData) -> None:
    """Raise UserError on every worker alike, where one finds a mistake or two workers differ."""
    own = data.group.run_on_all(lambda: task_facts(task, model, data))
    require_alike(task, data.group.gather_models(own))


def task_facts(task: TaskFunctions, model: nn.Module, data: SampleData) -> TaskFacts:
    """Return what this worker finds; raises UserError for a mistake that one worker alone can see."""
    _require_same_samples(task, data, "is another one when it is read again")
    if data.group.rank == 0:  # hundreds of samples are read, once for all workers
        _require_unseen(task, data)
    was_training = model.training
    # Nothing of this changes a weight; buffers, gradients, mode and generators are restored.
    try:
        with training_state.leaving_no_trace(model), torch.compiler.set_stance("force_eager"):
            _require_mean_loss(task, model, data)
            _require_counts_that_add_up(task, model, data)
            loss, norm, without = _gradients(task, model, data)
    finally:
        model.zero_grad()
        model.train(was_training)
    found = {"loss": loss, "gradient_norm": norm, "without_gradient": without}
    found |= {"train_samples": data.train_images, "test_samples": data.test_images}
    return TaskFacts(weights_sha256=training_state.weights_sha256(model), samples=dict(data.digests), **found)


def require_alike(task: TaskFunctions, workers: Sequence[TaskFacts]) -> None:
    """Raise UserError where two workers differ, 65 in a sample, or a pass leaves out a parameter."""
    first = workers[0]
    for rank, other in enumerate(workers):
        differing = [index for index, digest in first.samples.items() if other.samples.get(index) != digest]
        if differing:
            found = f"sample {differing[0]} is not the same in workers 0 and {rank}"
            cure = "let it depend on its index alone, not on the rank or what was read before, "
            cure += "or seed the shuffle"
            raise task.mistake("datasets", f"{found}: {cure}", EXIT_BAD_DATA)
        if first.weights_sha256 != other.weights_sha256:
            found = f"gives workers 0 and {rank} different weights from the same seed"
            raise task.mistake("build_model", f"{found}: draw them from torch's generator alone")
        cure = "a branch depends on the worker, its rank or host: remove it"
        if first.without_gradient != other.without_gradient:
            unlike = sorted(set(first.without_gradient) ^ set(other.without_gradient))
            found = f"only one of workers 0 and {rank} has a gradient of {training_state.some_of(unlike)}"
            raise task.mistake("loss", f"{found}; {cure}")
        for what, one, two in (
            ("loss", first.loss, other.loss),
            ("gradient norm", first.gradient_norm, other.gradient_norm),
        ):
            if not math.isclose(one, two, rel_tol=LOSS_TOLERANCE):
                found = f"worker 0 has a {what} of {one:g}, worker {rank} of {two:g}"
                raise task.mistake("loss", f"of one batch {found}; {cure}")
    if first.without_gradient and not task.config.task.find_unused_parameters:
        raise without_gradient(task, first.without_gradient)


def without_gradient(task: TaskFunctions, names: Sequence[str]) -> UserError:
    """Return the error that names parameters without a gradient after a pass, and what to do."""
    cure = "use it, remove it, or set requires_grad_(False); where some passes are not to use it, set "
    found = f"no gradient after a pass for {training_state.some_of(names)}: {cure}"
    return task.mistake("loss", f"{found}task.find_unused_parameters = true")


def _require_same_samples(task: TaskFunctions, data: SampleData, fault: str) -> None:
    """Raise UserError (65) where a sample is not as it was first read, now in another order."""
    for index, digest in sorted(data.digests.items(), key=lambda item: item[1]):
        with task.inside("datasets"):
            again = sample_sha256(data.source.sample(index))
        if again != digest:
            cure = "make it a function of its index, and draw in transform(batch, seeds), from the seeds"
            raise task.mistake("datasets", f"sample {index} {fault}; {cure}", EXIT_BAD_DATA)


def _require_unseen(task: TaskFunctions, data: SampleData) -> None:
    """Raise UserError (65) where half of the test set are training samples, as some of both sets show."""
    with task.inside("datasets"):
        digests = sample_digests(data.source, data.split, most=SEARCHED_SAMPLES)
    of_train = {index: digest for index, digest in digests.items() if index < data.train_images}
    places = {digest: index for index, digest in of_train.items()}
    tested = [index for index in digests if index >= data.train_images]
    seen = [index for index in tested if digests[index] in places]
    expected = LEAKED_SHARE * len(tested) * len(of_train) / data.train_images
    by_chance = LEAKED_BEYOND_CHANCE * (len(of_train) - len(places))
    if len(seen) > by_chance and len(seen) >= max(expected, min(2, len(tested))):
        such = f"{seen[0] - data.train_images} is training sample {places[digests[seen[0]]]}"
        found = f"{len(seen)} of {len(tested)} test samples compared are training samples, too"
        raise task.mistake("datasets", f"{found} (test sample {such}): {APART}", EXIT_BAD_DATA)


def _batches(numbers: Indices, samples: int, batches: int = COMPARED_BATCHES) -> list[Indices]:
    """Return samples from all over a set, as many batches of as many of them; the same for every worker."""
    return [np.random.default_rng(number).permutation(numbers)[:samples] for number in range(batches)]


def _loss(task: TaskFunctions, model: nn.Module, data: SampleData, indices: Indices) -> Tensor:
    """Return the loss of training samples as a step has it, from the generator's state of the run's seed."""
    with task.inside("datasets"):
        batch = data.batch(indices, 0)
    torch.manual_seed(task.config.seed)
    autocast = torch.autocast(
        data.group.device.type, torch.bfloat16, enabled=task.config.training.precision == "bf16"
    )
    # Unless a backward pass follows, which needs them as they are.
    kept = nullcontext() if torch.is_grad_enabled() else training_state.unchanged_buffers(model)
    with autocast, kept:
        loss = task.called("loss", model, batch)
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        shape = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise task.mistake("loss", f"gives {shape}, not a scalar; return the mean over the samples")
    if not torch.isfinite(loss):
        mode = "training" if model.training else "evaluation"
        raise task.mistake("loss", f"is {loss.item()} with the first weights, in {mode} mode")
    return loss


def _require_mean_loss(task: TaskFunctions, model: nn.Module, data: SampleData) -> None:
    """Raise UserError unless the loss of a batch is the mean of its halves' losses, in both modes."""
    train = data.split.train
    batches = _batches(train, BATCH_SAMPLES)
    of_a_step = _batches(train, task.config.training.batch_per_worker, 1)
    for training in (False, True) if task.config.task.loss_is_mean else ():
        model.train(training)
        for module in model.modules():
            # In these layers a sample's loss depends on its neighbours and on its place in the batch.
            if isinstance(module, _BatchNorm | _DropoutNd):
                module.eval()
        for indices in batches + of_a_step * training:
            if len(indices) > 1:
                _require_mean(task, model, data, indices)


@torch.no_grad()
def _require_mean(task: TaskFunctions, model: nn.Module, data: SampleData, indices: Indices) -> None:
    half = len(indices) // 2
    whole = _loss(task, model, data, indices)
    drawn = sample_sha256(training_state.generators())
    torch.manual_seed(task.config.seed)
    # On a GPU dropout draws from the device's generator.
    is_random = sample_sha256(training_state.generators()) != drawn
    one, other = (_loss(task, model, data, part).item() for part in (indices[:half], indices[half:]))
    mean = (half * one + (len(indices) - half) * other) / len(indices)
    rounding = max(LOSS_TOLERANCE, LOSS_ROUNDINGS * torch.finfo(whole.dtype).eps)
    differs = is_random or (model.training and task.config.task.find_unused_parameters)
    tolerance = RANDOM_LOSS_TOLERANCE if differs else rounding
    if math.isclose(whole, mean, rel_tol=tolerance, abs_tol=tolerance * abs(one - other)):
        return
    mode = " in training mode" if model.training else ""
    found = f"{mode}: {len(indices)} samples give {whole:g}, their halves {one:g} and {other:g}"
    if any(math.isclose(whole, total, rel_tol=tolerance) for total in (one + other, 2 * mean)):
        raise task.mistake("loss", f"is no mean over the samples{found}; divide by the number of samples")
    why = "class weights, ignore_index or Dice of a batch divide by what a worker's own batch holds"
    cure = "return the .mean() of each sample's loss (reduction='none', times its weight)"
    kept = "or set task.loss_is_mean = false, which every report says"
    found += f" ({why}, so that N workers train another loss than 1); {cure}, {kept}"
    raise task.mistake("loss", f"is not the mean over the samples{found}")


@torch.no_grad()
def _require_counts_that_add_up(task: TaskFunctions, model: nn.Module, data: SampleData) -> None:
    model.eval()
    totals = []
    for indices in _batches(data.split.test, BATCH_SAMPLES):
        counts = []
        for part in (indices, *indices[:, None]):
            with task.inside("datasets"):
                batch = data.batch(part)
            counts.append(task.count(model, batch).cpu())
        require_finite(torch.stack(counts), 0, task.place("count"))
        whole = counts[0]
        total = torch.stack(counts[1:]).sum(dim=0)
        if (whole - total).abs().sum() > COUNT_TOLERANCE * total.abs().sum():
            found = f"{len(indices)} give {whole.tolist()}, one by one they sum to {total.tolist()}"
            cure = "count in integers sample by sample, and divide in score"
            raise task.mistake("count", f"does not add up over samples: {found}; {cure}")
        totals.append(total)
    _require_scores(task, torch.stack(totals).sum(dim=0))


def _require_scores(task: TaskFunctions, counts: Tensor) -> None:
    scores = task.score(counts)
    names = [name for name in scores if not re.fullmatch(SCORE_NAME, name)]
    if not scores or names:
        found = ", ".join(map(repr, names)) or "no score"
        cure = "names are of lower-case letters, digits and _, such as accuracy"
        raise task.mistake("score", f"gives {found}; {cure}")
    name, judged = next(iter(scores.items()))
    if judged is not None and not 0 <= judged <= 1:
        raise task.mistake("score", f"{name} is {judged:g}; the first score, which is judged, is from 0 to 1")
    if task.functions.get("HIGHER_IS_BETTER") not in (True, False) and WORDS_OF_LOSSES.search(name):
        cure = "add the line HIGHER_IS_BETTER = False to the file (or True, if more is better)"
        raise task.mistake("score", f"{name} is judged, and seems to be better when lower: {cure}")


def _gradients(task: TaskFunctions, model: nn.Module, data: SampleData) -> tuple[float, float, list[str]]:
    """Return the loss of one training pass, the norm of its gradients, and the parameters without one."""
    model.train()
    versions = {name: weight._version for name, weight in model.named_parameters()}
    (loss, norm, leaves), (again, _, leaves_again) = (_one_pass(task, model, data) for _ in range(2))
    _require_same_samples(task, data, "is changed by what loss or count does with it")
    changed = [name for name, weight in model.named_parameters() if weight._version != versions[name]]
    if changed:
        found = f"a pass changes {training_state.some_of(changed)} itself (max_norm of an embedding?)"
        raise task.mistake("loss", f"{found}: leave weights to the optimizer")
    if not math.isclose(loss, again, rel_tol=LOSS_TOLERANCE):
        found = f"of one batch is {loss:g}, then {again:g} from the same seed"
        raise task.mistake("loss", f"{found}: draw what is random from torch's generator alone")
    own = {id(weight) for weight in model.parameters()}
    # A tensor that a pass makes for itself is another one in the next pass.
    kept = {id(leaf) for leaf in leaves_again} - own
    for leaf in (leaf for leaf in leaves if id(leaf) in kept):
        found = f"{where_kept(model, leaf)} gets a gradient and is no parameter of the model: none trains it"
        cure = "register it as nn.Parameter, and layers in nn.ModuleList"
        raise task.mistake("build_model", f"{found}; {cure}")
    trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    return loss, norm, [name for name, weight in trained if weight.grad is None]


def _one_pass(task: TaskFunctions, model: nn.Module, data: SampleData) -> tuple[float, float, list[Tensor]]:
    """Return the loss of a training pass, the norm of its gradients, and all tensors that got one."""
    model.zero_grad()
    # A branch may depend on a buffer, such as a count of the passes: of one state it is the same.
    with training_state.unchanged_buffers(model):
        loss = _loss(task, model, data, data.split.train[:BATCH_SAMPLES])
        if not loss.requires_grad:
            raise task.mistake("loss", "depends on no parameter of the model; it cannot be trained")
        nodes = [*backward_nodes(loss)]
        if any("CheckpointFunction" in type(node).__name__ for node in nodes):
            raise task.mistake("loss", "calls a checkpoint of PyTorch's older kind; give use_reentrant=False")
        with task.inside("loss"):
            loss.backward()  # type: ignore[no-untyped-call]
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    sparse = [name for name, gradient in gradients.items() if gradient.layout != torch.strided]
    if sparse:
        raise task.mistake(
            "build_model", f"the gradient of {training_state.some_of(sparse)} is sparse; give sparse=False"
        )
    norms = torch.stack([torch.linalg.vector_norm(gradient).double() for gradient in gradients.values()])
    leaves = [node.variable for node in nodes if hasattr(node, "variable")]
    return loss.item(), torch.linalg.vector_norm(norms).item(), leaves


# Types that Horovod averages, and types that it can broadcast.
AVERAGED = (torch.float32, torch.float64, torch.float16)
SENT = (*AVERAGED, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
CURE_OF_TYPE = {
    torch.bool: "keep it as uint8, or register it with persistent=False",
    torch.bfloat16: "keep it as float32, and set training.precision = 'bf16'",
    torch.complex64: "keep real and imaginary part as float32",
    torch.complex128: "keep real and imaginary part as float64",
}


def require_usable(task: TaskFunctions, model: object) -> None:
    """Raise UserError for a model that has nothing to train, or what no framework gives to all workers."""
    if not isinstance(model, nn.Module):
        raise task.mistake("build_model", f"gives {type(model).__name__}; return an nn.Module")
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if not trained:
        raise task.mistake("build_model", "no parameter has requires_grad: there is nothing to train")
    for name, tensor in (trained | model.state_dict(keep_vars=True)).items():
        fault = _fault(tensor, AVERAGED if name in trained else SENT)
        if fault:
            raise task.mistake("build_model", f"{name} {fault}")


def _fault(tensor: object, allowed: Sequence[torch.dtype]) -> str:
    """Return why a tensor cannot be had by all workers, and the cure; empty where it can."""
    if not isinstance(tensor, Tensor):
        return f"is {type(tensor).__name__}, and no framework sends it: keep tensors alone in the state"
    if is_lazy(tensor):
        return "has no shape yet: pass a sample through the lazy modules in build_model"
    if tensor.device.type != "cpu":
        return f"is on the device {tensor.device}: build the model on the CPU; each worker moves it"
    if tensor.dtype not in allowed:
        cure = CURE_OF_TYPE.get(tensor.dtype, "keep it as float32")
        return f"is {str(tensor.dtype).removeprefix('torch.')}, which Horovod does not take: {cure}"
    if tensor.layout != torch.strided or not tensor.is_contiguous():
        return "is not contiguous, and Horovod takes no other: assign .contiguous() of it"
    return ""


def require_all_trained(task: TaskFunctions, function: str, model: nn.Module, groups: Iterable[Any]) -> None:
    """Raise UserError unless groups, as torch's optimizers take them, have each weight that is trained."""
    chosen = [group["params"] if isinstance(group, dict) else group for group in groups]
    given = {id(each) for one in chosen for each in ([one] if isinstance(one, Tensor) else one)}
    trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    lacking = [name for name, weight in trained if id(weight) not in given]
    if lacking:
        cure = "no optimizer would train it; return it, or set requires_grad_(False)"
        raise task.mistake(function, f"leaves out {training_state.some_of(lacking)}: {cure}")


def backward_nodes(loss: Tensor) -> Iterator[Any]:
    """Yield the nodes of the graph through which the backward pass of a loss goes."""
    seen = set()
    open_nodes: list[Any] = [loss.grad_fn]
    while open_nodes:
        node = open_nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            open_nodes += [following for following, _ in node.next_functions]
            yield node


def where_kept(model: nn.Module, tensor: Tensor) -> str:
    """Return the attribute of the model that holds a tensor which is no parameter; else its shape."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            leaves = [] if name in ("_parameters", "_buffers", "_modules") else tree_leaves(value)
            for place, leaf in enumerate(leaves):
                inner = dict(leaf.named_parameters()) if isinstance(leaf, nn.Module) else {"": leaf}
                found = [f"[{place}].{key}" if key else "" for key, held in inner.items() if held is tensor]
                if found:
                    return f"{path}.{name}{found[0]}".lstrip(".")
    return f"a tensor of shape {list(tensor.shape)}"
