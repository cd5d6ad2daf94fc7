"""The header of a record: all that a run starts from, also where it goes on from a checkpoint."""

from datetime import UTC, datetime

from torch import nn

from unet_scaling.data.batches import RunData
from unet_scaling.group import provenance
from unet_scaling.group.group import Group
from unet_scaling.run.checkpoint import Progress
from unet_scaling.run.run_folder import RunFolder
from unet_scaling.run.weights import weights_sha256
from unet_scaling.study import code_version
from unet_scaling.study.config import RunConfig
from unet_scaling.study.dilation import dilation, is_dilated, link_rate
from unet_scaling.study.errors import UserError
from unet_scaling.study.record_lines import Header, Resumed, WorkerFacts

# With which gradients travel under training.gradient_compression = "fp16".
FP16_BYTES = 2


def first_header(
    run: RunFolder, group: Group, workers: list[WorkerFacts], data: RunData, model: nn.Module
) -> Header:
    """Return the header of an attempt that begins at the start, the same on every worker but for its time.

    Raises UserError on every worker alike where they start from different weights.
    """
    initial_weights = _common_weights_sha256(model, group)
    commit, dirty = code_version.commit()
    return Header(
        config=run.config,
        config_sha256=run.config.digest(),
        attempt=run.attempt,
        started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=commit,
        dirty=dirty,
        versions=provenance.versions(),
        transport=group.transport,
        job=provenance.job(),
        dilation=dilation() if is_dilated() else None,
        link_rate=link_rate(),
        manifest_sha256=data.manifest_sha256,
        train_images=data.train_images,
        test_images=data.test_images,
        initial_weights_sha256=initial_weights,
        gradient_bytes=sent_bytes(model, run.config),
        compute=data.compute,
        workers=workers,
    )


def resumed_header(header: Header, progress: Progress) -> Header:
    """Return this header for an attempt that goes on from a checkpoint, with the attempts before it."""
    resumed = Resumed(epoch=progress.epoch, step=progress.step)
    return header.model_copy(update={"resumed": resumed, "earlier": progress.attempts})


def sent_bytes(model: nn.Module, config: RunConfig) -> int:
    """Return the bytes of all gradients of one step as one worker sends them."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    half = config.training.gradient_compression == "fp16"
    return sum(weight.numel() * (FP16_BYTES if half else weight.element_size()) for weight in weights)


def _common_weights_sha256(model: nn.Module, group: Group) -> str:
    digests = group.gather_strings(weights_sha256(model))
    if len(set(digests)) > 1:
        raise UserError(f"the workers start from different weights: {', '.join(sorted(set(digests)))}")
    return digests[0]
