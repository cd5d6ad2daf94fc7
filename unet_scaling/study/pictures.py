"""Small pictures of what a network predicts on the first test images, beside the record of its run.

Written by a complete run, read by the report. Needs pydantic, but neither torch nor pandas.
"""

from typing import Annotated

from pydantic import Field, NonNegativeInt

from unet_scaling.study.measurements import Share
from unet_scaling.study.validation import Digest, StrictModel

PICTURES_NAME = "pictures.json"
# The first test images: the same for all runs of one split.
MOST_PICTURES = 6


class SamplePicture(StrictModel):
    """One test image with the outlines of its true mask and of the predicted one, as a PNG in base64."""

    position: NonNegativeInt = Field(description="in the test set, from 0")
    iou: Share | None = Field(description="of this image alone; none where neither mask has foreground")
    png: Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]+=*$")]


class Pictures(StrictModel):
    """All pictures of a run."""

    weights_sha256: Digest = Field(description="of the last evaluation")
    images: list[SamplePicture]
