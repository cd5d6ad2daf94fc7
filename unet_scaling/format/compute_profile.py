"""How long one worker computes in each part of a step: the file that emulated workers wait by.

A run with `training.compute_profile = "on"` and 1 worker writes `compute.json` into its folder, with its
SHA-256 beside it. A profile of a device that is not at hand is written as TOML, and names its `assumption`.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from unet_scaling.base.errors import EXIT_BAD_DATA, UserError
from unet_scaling.base.files import checksum_path, parse_json, read_regular, read_verified
from unet_scaling.base.validation import StrictModel, read_toml, validated
from unet_scaling.format.record_lines import Duration
from unet_scaling.study.config import RunConfig

COMPUTE_NAME = "compute.json"
RECORD_A_PROFILE = "train 1 worker with training.compute_profile = 'on'"


class ComputeStep(StrictModel):
    """One step of one worker, in seconds; `_cpu_` are those that its threads kept a core busy."""

    data_seconds: Duration = Field(description="until the batch was on the device")
    data_cpu_seconds: Duration
    forward_seconds: Duration
    forward_cpu_seconds: Duration
    ready_seconds: list[Duration] = Field(
        description="when the gradient of each parameter was ready, since the backward pass began;"
        " in the order of model.parameters()"
    )
    backward_cpu_seconds: Duration
    optimizer_seconds: Duration
    optimizer_cpu_seconds: Duration

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
            needed = f"one entry for each of {len(self.parameters)} parameters"
            raise ValueError(f"parameter_bytes and ready_seconds need {needed}")
        return self


@dataclass(frozen=True)
class ProfileFile:
    """A profile as it was read: its file, and the SHA-256 of its bytes."""

    path: Path
    profile: ComputeProfile
    sha256: str

    @property
    def name(self) -> str:
        """Return STUDY/RUN of a recorded profile, and the file's name of one written by hand."""
        if self.path.name != COMPUTE_NAME:
            return self.path.name
        run = self.path.resolve().parent
        return f"{run.parent.name}/{run.name}"


def read_compute_profile(place: Path) -> ProfileFile:
    """Read the profile that `place` is, or the one in the run folder that it is.

    Raises UserError that names the file: where there is none (2), and where it is damaged (65) or invalid.
    """
    path = place / COMPUTE_NAME if place.is_dir() else place
    if path.suffix == ".toml":
        profile = validated(ComputeProfile, read_toml(path), str(path))
        if profile.assumption is None:
            raise UserError(f"{path}: assumption: it is missing; say where the figures come from")
        return ProfileFile(path, profile, hashlib.sha256(read_regular(path)).hexdigest())
    try:
        raw = read_verified(path) if checksum_path(path).exists() else read_regular(path)
        content = parse_json(raw)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; {RECORD_A_PROFILE}") from None
    except (OSError, ValueError) as error:
        problem = f"{path} is no compute profile: {error}; {RECORD_A_PROFILE} again"
        raise UserError(problem, EXIT_BAD_DATA) from None
    return ProfileFile(path, validated(ComputeProfile, content, str(path)), hashlib.sha256(raw).hexdigest())


def profile_of(config: RunConfig) -> ProfileFile:
    """Return the profile by which emulated workers wait; UserError where it is of other work."""
    assert config.emulation.compute is not None
    file = read_compute_profile(Path(config.emulation.compute))
    asked = {
        "batch_per_worker": config.training.batch_per_worker,
        "image_height": config.data.image_height,
        "image_width": config.data.image_width,
    }
    for key, value in asked.items():
        found = getattr(file.profile, key)
        if found != value:
            table = "training" if key in type(config.training).model_fields else "data"
            raise UserError(
                f"{file.path}: {key}: found {found}, but the study has {table}.{key} = {value}; "
                f"use {table}.{key} = {found}, or a profile of {value}"
            )
    return file
