"""What the memory of a training step is made of, as one process measures it for another."""

from pydantic import Field, NonNegativeInt, PositiveInt

from unet_scaling.base.validation import StrictModel
from unet_scaling.format.record_lines import AboveZero


class StepTrial(StrictModel):
    """A step that fitted: its batch, the most bytes that the worker held so far, and its seconds."""

    batch: PositiveInt
    peak_bytes: PositiveInt
    seconds: AboveZero


class StepMemory(StrictModel):
    """Bytes of a worker: what lasts, what one sample adds for the backward pass, and peaks of whole steps."""

    device: str = Field(description="'cpu' or the name of the GPU")
    room_bytes: PositiveInt = Field(description="that the device has for a worker")
    weight_bytes: NonNegativeInt
    gradient_bytes: NonNegativeInt
    optimizer_bytes: NonNegativeInt
    exchange_bytes: NonNegativeInt = Field(description="of DDP's buckets or Horovod's buffer, the larger")
    activation_bytes: NonNegativeInt = Field(description="that a forward pass of one sample keeps")
    trials: list[StepTrial] = Field(min_length=1)
    largest_batch: PositiveInt = Field(description="above that of the last trial: foretold, not tried")
