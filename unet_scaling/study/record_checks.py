"""Verify that the lines of a record, each of them valid by itself, do not contradict each other."""

from collections.abc import Iterator, Sequence

from unet_scaling.study.measurements import Probe, Startup
from unet_scaling.study.record_lines import (
    End,
    Epoch,
    Evaluated,
    Evaluation,
    Header,
    RecordLine,
    Scores,
    ScriptHeader,
    WorkerFacts,
)
from unet_scaling.study.saliency import Saliency

HEADERS = (Header, ScriptHeader)
# Lines that may stand between the header and what was trained.
OPENINGS: tuple[list[type], ...] = ([], [Startup], [Probe], [Startup, Probe])


def record_contradictions(lines: Sequence[RecordLine]) -> Iterator[str]:
    """Yield what is wrong with the order of the lines, or else with what they say of each other."""
    order = list(_faults_of_order(lines))
    yield from order
    header = lines[0]
    if not order and isinstance(header, ScriptHeader):
        yield from _faults_of_script(lines)
    elif not order and isinstance(header, Header):
        yield from _faults_of_header(header)
        yield from _faults_of_training(header, lines)


def _faults_of_order(lines: Sequence[RecordLine]) -> Iterator[str]:
    kinds = [type(line) for line in lines]
    if kinds[0] not in HEADERS or sum(kind in HEADERS for kind in kinds) != 1:
        yield "a record starts with its one header"
    if End in kinds[:-1]:
        yield "there is a line after the end"
    if not _is_opening_in_order(kinds):
        yield "a startup and a probe come once, in this order, right after the header"
    if Saliency in kinds and kinds[kinds.index(Saliency) + 1 :] not in ([], [End]):
        yield "a line saliency comes once, after all epochs and evaluations"
    numbers = [line.epoch for line in lines if type(line) is Epoch]
    if numbers != list(range(len(numbers))):
        yield f"epochs are not 0, 1, 2, ...: {numbers}"


def _is_opening_in_order(kinds: Sequence[type]) -> bool:
    optional = [kind for kind in kinds if kind in (Startup, Probe)]
    return optional in OPENINGS and kinds[1 : 1 + len(optional)] == optional


def _faults_of_header(header: Header) -> Iterator[str]:
    if header.config.digest() != header.config_sha256:
        yield "the configuration was changed after the run: its SHA-256 differs"
    if header.is_emulated != header.config.is_emulated:
        named = header.compute.name if header.compute else "no profile"
        yield f"emulation.compute is {header.config.emulation.compute!r}, the header names {named}"
    if len(header.workers) != header.config.workers:
        yield f"{header.config.workers} workers were asked for, {len(header.workers)} are described"


def _faults_of_script(lines: Sequence[RecordLine]) -> Iterator[str]:
    foreign = sorted(
        {line.kind for line in lines if isinstance(line, Startup | Probe | Evaluated | Saliency)}
    )
    if foreign:
        yield f"the record of a script has no line {', '.join(foreign)}"


def _faults_of_training(header: Header, lines: Sequence[RecordLine]) -> Iterator[str]:
    epochs = [line for line in lines if type(line) is Epoch]
    others = [line for line in lines if type(line) is not Epoch]
    results = [line for line in others if isinstance(line, Evaluated)]
    maps = [line for line in others if isinstance(line, Saliency)]
    yield from _faults_of_epochs(header, epochs)
    yield from _faults_of_results(header, results)
    for line in maps:
        yield from _faults_of_saliency(header, line, results)
    end = lines[-1]
    if isinstance(end, End) and end.status == "complete":
        if header.config.is_explained and not maps:
            yield f"complete without maps, though saliency.method is {header.config.saliency.method!r}"
        yield from _faults_of_completion(header, len(epochs), results)


def _faults_of_epochs(header: Header, epochs: Sequence[Epoch]) -> Iterator[str]:
    for epoch in epochs:
        if (epoch.loss is None) != header.is_emulated:
            found = "no loss" if epoch.loss is None else "a loss, but its workers waited and computed none"
            yield f"epoch {epoch.epoch} has {found}"
        if epoch.learning_rate is None:
            yield f"epoch {epoch.epoch} has no learning rate"


def _faults_of_results(header: Header, results: Sequence[Evaluation]) -> Iterator[str]:
    if any(isinstance(result, Scores) != header.config.has_own_task for result in results):
        yield f"task.file is {header.config.task.file!r}, the evaluations are of another task"
    if header.is_emulated and results:
        yield "an evaluation of an emulated run, which learns nothing"
    for result in results:
        if result.images != header.test_images:
            yield f"{result.images} {header.config.sample}s evaluated, the test set has {header.test_images}"


def _faults_of_saliency(header: Header, line: Saliency, results: Sequence[Evaluation]) -> Iterator[str]:
    if not header.config.is_explained:
        yield "saliency maps are recorded, but saliency.method is 'off'"
    if not results or results[-1].weights_sha256 != line.weights_sha256:
        yield "the saliency maps are of other weights than the last evaluation"
    if results and results[-1].epochs != line.epochs:
        yield f"saliency maps after {line.epochs} epochs, the last evaluation came after {results[-1].epochs}"
    if line.images > header.test_images:
        yield f"{line.images} images explained, the test set has {header.test_images}"
    if len(line.worker_seconds) != header.config.workers:
        yield f"{header.config.workers} workers were asked for, {len(line.worker_seconds)} made maps"


def _faults_of_completion(header: Header, trained: int, results: Sequence[Evaluation]) -> Iterator[str]:
    asked = header.config.training.epochs
    if trained != asked:
        yield f"complete with {trained} epochs, {asked} were asked for"
    if not header.is_emulated and (not results or results[-1].epochs != asked):
        yield "complete without an evaluation after the last epoch"


def owned_devices(worker: WorkerFacts) -> list[tuple[str, str]]:
    """Return what a worker has for itself: its GPU, or on a CPU its cores."""
    if worker.device_uuid:
        return [("device", worker.device_uuid)]
    return [(f"core {core} of", f"host {worker.host}") for core in worker.cores]


def shared_devices(workers: Sequence[WorkerFacts]) -> list[str]:
    """Return a sentence for each GPU or core that two workers both have."""
    first_owner: dict[tuple[str, str], int] = {}
    sentences = []
    for rank, worker in enumerate(workers):
        for device in owned_devices(worker):
            first = first_owner.setdefault(device, rank)
            if first != rank:
                sentences.append(f"workers {first} and {rank} share {' '.join(device)}")
    return sentences


def different_versions(workers: list[WorkerFacts], versions_by_rank: list[dict[str, str]]) -> list[str]:
    """Return a sentence for each version that differs from worker 0's, naming the first worker that does."""
    sentences = []
    for name in sorted(set().union(*versions_by_rank)):
        by_rank = [versions_of_worker.get(name, "none") for versions_of_worker in versions_by_rank]
        differing = [rank for rank, version in enumerate(by_rank) if version != by_rank[0]]
        if differing:
            compared = (0, differing[0])
            named = [f"{by_rank[rank]} on worker {rank} ({workers[rank].host})" for rank in compared]
            sentences.append(f"{name} is {' and '.join(named)}")
    return sentences
