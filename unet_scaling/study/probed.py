"""Model of what a probe of some training steps prints: for the estimate of a study's time."""

from typing import Annotated

from pydantic import Field, FiniteFloat, PositiveInt

from unet_scaling.study.validation import StrictModel


class Probed(StrictModel):
    """Steps of one worker on the machine of the probe, after one that warmed up."""

    device: str = Field(description="'cpu' or the name of the GPU")
    cores: PositiveInt = Field(description="that the worker had")
    images_per_step: PositiveInt
    step_seconds: list[Annotated[FiniteFloat, Field(gt=0)]] = Field(min_length=1)
