"""Which options exclude emulated workers, and the recording of the profile by which they wait.

Imported on login nodes: needs pydantic, but neither torch nor pandas.
"""

from collections.abc import Iterator

from unet_scaling.study.options import Data, Emulation, Model, Training

# The first epoch of an attempt is its warm-up.
FEWEST_PROFILED_EPOCHS = 2


def compute_profile_fault(training: Training, workers: int) -> str:
    """Return why a run with these options cannot record its computing; empty where it can, or is not to."""
    if training.compute_profile == "off":
        return ""
    asked = "training.compute_profile = 'on'"
    if workers != 1:
        return f"{asked} needs workers = 1, found workers = {workers}: others would be part of each step"
    if training.epochs < FEWEST_PROFILED_EPOCHS:
        return f"{asked} needs training.epochs of at least 2, found {training.epochs}: the first warms up"
    if training.plays is not None or training.accumulate > 1:
        passes = f"training.plays = {training.plays}, training.accumulate = {training.accumulate}"
        return f"{asked} needs one pass per step, found {passes}; leave both out"
    return ""


def emulation_fault(data: Data, model: Model, training: Training, emulation: Emulation) -> str:
    """Return which option makes no sense for workers that wait instead of computing, and what to do."""
    found = next(_excluded(data, model, training, emulation), None)
    if found is None:
        return ""
    option, reason = found
    return f"emulation.compute = {emulation.compute!r}: found {option}, but {reason}"


def _excluded(
    data: Data, model: Model, training: Training, emulation: Emulation
) -> Iterator[tuple[str, str]]:
    """Yield option and reason."""
    if training.plays is not None:
        yield f"training.plays = {training.plays}", "emulated workers learn nothing; leave one of the two out"
    if training.initial_weights is not None:
        yield f"training.initial_weights = {training.initial_weights!r}", "no weight is used; leave it out"
    if training.compute_profile == "on":
        yield "training.compute_profile = 'on'", "nothing is computed; record it with workers that compute"
    if training.compile:
        yield "training.compile = True", "nothing is computed; compile in the run that records the profile"
    if training.epochs == 0:
        yield "training.epochs = 0", "emulated runs are not evaluated; use 2 or more"
    if training.evaluate_every:
        yield f"training.evaluate_every = {training.evaluate_every}", "nothing is learned; use 0"
    if model.batch_norm == "sync":
        yield "model.batch_norm = 'sync'", "communication in the forward pass is not emulated; use 'local'"
    if data.loader_workers and emulation.data == "replayed":
        yield (
            f"data.loader_workers = {data.loader_workers}",
            "loader processes are not replayed; use emulation.data = 'real', or 0",
        )
