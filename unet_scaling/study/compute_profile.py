"""How long one worker computes in each part of a step: the file that emulated workers wait by.

A run with `training.compute_profile = "on"` and 1 worker writes `compute.json` into its folder.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, FiniteFloat, NonNegativeInt, PositiveInt, model_validator

from unet_scaling.study.errors import EXIT_BAD_DATA, UserError
from unet_scaling.study.files import checksum_path, read_regular, read_verified
from unet_scaling.study.validation import StrictModel, validated

COMPUTE_NAME = "compute.json"
RECORD_A_PROFILE = "train 1 worker with training.compute_profile = 'on'"

Seconds = Annotated[FiniteFloat, Field(ge=0)]


class ComputeStep(StrictModel):
    """One step of one worker, in seconds; `_cpu_` are those that its threads kept a core busy."""

    data_seconds: Seconds = Field(description="until the batch was on the device")
    data_cpu_seconds: Seconds
    forward_seconds: Seconds
    forward_cpu_seconds: Seconds
    ready_seconds: list[Seconds] = Field(
        description="when the gradient of each parameter was ready, since the backward pass began;"
        " in the order of model.parameters()"
    )
    backward_cpu_seconds: Seconds
    optimizer_seconds: Seconds
    optimizer_cpu_seconds: Seconds

    @property
    def backward_seconds(self) -> float:
        return max(self.ready_seconds)


class ComputeProfile(StrictModel):
    """The steps of one worker on one device, and what it computed."""

    format: Literal[1] = 1
    device: str
    assumption: str | None = Field(None, description="where the figures come from, if they were not measured")
    batch_per_worker: PositiveInt
    image_height: PositiveInt
    image_width: PositiveInt
    parameters: list[str] = Field(min_length=1, description="names, in the order of model.parameters()")
    parameter_bytes: list[NonNegativeInt]
    steps: list[ComputeStep] = Field(min_length=1)

    @model_validator(mode="after")
    def _one_stamp_per_parameter(self) -> Self:
        lengths = {len(self.parameter_bytes), *(len(step.ready_seconds) for step in self.steps)}
        if lengths != {len(self.parameters)}:
            raise ValueError(
                "parameter_bytes and ready_seconds need one entry for each of "
                f"{len(self.parameters)} parameters"
            )
        return self


@dataclass(frozen=True)
class ProfileFile:
    """A profile as it was read: its file, and the SHA-256 of its bytes."""

    path: Path
    profile: ComputeProfile
    sha256: str


def read_compute_profile(path: Path) -> ProfileFile:
    """Read a profile. Raises UserError that names the file where it is damaged or invalid (65)."""
    try:
        raw = read_verified(path) if checksum_path(path).exists() else read_regular(path)
        content = json.loads(raw)
    except (OSError, ValueError) as error:
        problem = f"{path} is no compute profile: {error}; {RECORD_A_PROFILE} again"
        raise UserError(problem, EXIT_BAD_DATA) from None
    return ProfileFile(path, validated(ComputeProfile, content, str(path)), hashlib.sha256(raw).hexdigest())
