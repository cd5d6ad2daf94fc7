"""Models of the manifest of a run's saliency maps; the line of its record is in record_lines.py.

RUN/saliency/manifest.json               which images have a map, and what is known of each
RUN/saliency/maps/00003.npy              float32 [scores, height, width] of the fourth test image
RUN/saliency/overlays/00003_iou.png      the map of one score over the image
RUN/saliency/entries/00003.json          what is known of it, until the manifest says so
"""

from typing import Literal, Self

from pydantic import Field, FiniteFloat, NonNegativeInt, PositiveInt, model_validator

from unet_scaling.base.validation import Digest, StrictModel
from unet_scaling.format.record_lines import Share

SALIENCY_MANIFEST_NAME = "manifest.json"
# Every map has them in this order; one forward pass gives both.
SaliencyScore = Literal["foreground_probability", "iou"]
SCORES: tuple[SaliencyScore, ...] = ("foreground_probability", "iou")


class SaliencyFile(StrictModel):
    """A file of the folder, by its path within it."""

    file: str
    sha256: Digest


class Faithfulness(StrictModel):
    """Scores of an image as more of its pixels are deleted or inserted, at each of the manifest's shares."""

    deletion: list[FiniteFloat] = Field(description="in the order of the map, most salient first")
    insertion: list[FiniteFloat]
    random_deletion: list[FiniteFloat] = Field(description="mean of a few random orders")
    random_insertion: list[FiniteFloat]


class UntrainedMap(StrictModel):
    """What a network of the same shape with freshly drawn weights makes of an image."""

    no_map: str | None = Field(None, description="why there is none")
    correlation: dict[SaliencyScore, FiniteFloat | None] = Field(
        {},
        description="Spearman's, of its map and the trained network's; none where one of them is constant",
    )
    faithfulness: dict[SaliencyScore, Faithfulness] = Field({}, description="of its map, on its own scores")


class ExplainedImage(StrictModel):
    """One test image: its map, or why it has none."""

    image: str = Field(description="name of the file, without its ending")
    position: NonNegativeInt = Field(description="in the test set")
    height: PositiveInt = Field(description="of the map, pixels")
    width: PositiveInt
    box: tuple[NonNegativeInt, NonNegativeInt, PositiveInt, PositiveInt] = Field(
        description="top, left, height and width of the image within the padding that resizing added"
    )
    foreground: Share = Field(description="share of the image that is predicted as foreground")
    map: SaliencyFile | None
    no_map: str | None = Field(None, description="why there is none")
    pictures: dict[Literal["image", "truth"], SaliencyFile] = Field(
        {}, description="the image, brighter where it is dark, and its mask, both cropped to the box"
    )
    overlays: dict[SaliencyScore, SaliencyFile] = Field({})
    faithfulness: dict[SaliencyScore, Faithfulness] = Field({})
    untrained: UntrainedMap | None = Field(None, description="of the first saliency.untrained_check images")

    @model_validator(mode="after")
    def _has_a_map_or_a_reason(self) -> Self:
        if (self.map is None) == (self.no_map is None):
            raise ValueError(f"image {self.image} needs either a map or a reason why it has none")
        return self


class SaliencyManifest(StrictModel):
    """The content of saliency/manifest.json."""

    format: Literal[1] = 1
    method: str
    weights_sha256: Digest
    scores: list[SaliencyScore] = Field(description="in the order of a map's first dimension")
    shares: list[Share] = Field(description="of the pixels, at which the curves have their scores")
    images: list[ExplainedImage]

    @model_validator(mode="after")
    def _each_image_once(self) -> Self:
        positions = [image.position for image in self.images]
        if positions != list(range(len(positions))):
            raise ValueError(f"images have the positions {positions}, not 0, 1, 2, ...")
        return self
