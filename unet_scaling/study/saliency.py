"""Models of what a run says of its saliency maps: a line of the record, and the manifest of the files.

RUN/saliency/manifest.json               which images have a map, and what is known of each
RUN/saliency/maps/00003.npy              float32 [scores, height, width] of the fourth test image
RUN/saliency/overlays/00003_iou.png      the map of one score over the image
RUN/saliency/entries/00003.json          what is known of it, until the manifest says so
"""

from typing import Literal, Self

from pydantic import Field, FiniteFloat, JsonValue, NonNegativeInt, PositiveInt, model_validator

from unet_scaling.study.measurements import TOLERANCE, Duration, Share
from unet_scaling.study.validation import Digest, StrictModel

SALIENCY_FOLDER = "saliency"
SALIENCY_MANIFEST_NAME = "manifest.json"
# Of what the maps here are: another content, and they are made again.
SALIENCY_ORIGIN_NAME = "origin.json"
# In this order in every map; one forward pass gives both.
SaliencyScore = Literal["foreground_probability", "iou"]
SCORES: tuple[SaliencyScore, ...] = ("foreground_probability", "iou")


class SaliencyPhases(StrictModel):
    """Where the seconds of one worker went while maps were made."""

    masks: Duration = Field(description="until the masks are made, once for all images")
    forward: Duration = Field(description="loading images, masking them, forward passes and scores")
    weighting: Duration = Field(description="adding up masks by their scores")
    sum: Duration = Field(description="sums over the workers, with the wait for the slowest")
    files: Duration = Field(description="writing maps")
    other: Duration = Field(description="what is left")

    def total(self) -> float:
        """Return the seconds of all phases."""
        return self.masks + self.forward + self.weighting + self.sum + self.files + self.other


class Saliency(StrictModel):
    """The saliency maps of a run. The clock covers them, and neither their overlays nor what checks them."""

    kind: Literal["saliency"] = "saliency"
    epochs: NonNegativeInt = Field(description="trained before it")
    weights_sha256: Digest
    manifest_sha256: Digest = Field(description="of saliency/manifest.json")
    split: Literal["images", "masks"] = Field(description="what the workers shared out")
    configuration: dict[str, JsonValue] = Field(
        description="of xaitk's PerturbationOcclusion, as it names it: perturber and generator"
    )
    images: PositiveInt = Field(description="that were to be explained")
    maps: NonNegativeInt = Field(description="images that have one; the prediction for the others is empty")
    maps_made_here: NonNegativeInt = Field(description="by this attempt; fewer where it was resumed")
    masks: PositiveInt = Field(description="of each image")
    seconds: Duration = Field(description="of the slowest worker")
    worker_seconds: list[Duration]
    phases: list[SaliencyPhases] = Field(description="of each worker, by rank")
    peak_bytes: list[PositiveInt] = Field(description="of memory that each worker held at most until then")
    check_seconds: Duration = Field(description="for overlays, curves and untrained maps, after the clock")

    @model_validator(mode="after")
    def _counts_fit(self) -> Self:
        if not self.maps_made_here <= self.maps <= self.images:
            raise ValueError(
                f"{self.maps_made_here} maps made here, {self.maps} maps, {self.images} images: each may be "
                "at most the next"
            )
        return self

    @model_validator(mode="after")
    def _one_entry_per_worker(self) -> Self:
        counts = {len(self.worker_seconds), len(self.phases), len(self.peak_bytes)}
        if len(counts) != 1:
            raise ValueError(f"worker_seconds, phases and peak_bytes are of {sorted(counts)} workers")
        if self.seconds != max(self.worker_seconds):
            raise ValueError(f"seconds is {self.seconds}, the slowest worker took {max(self.worker_seconds)}")
        return self

    @model_validator(mode="after")
    def _phases_sum_to_the_seconds(self) -> Self:
        for worker, (phases, seconds) in enumerate(zip(self.phases, self.worker_seconds, strict=True)):
            if abs(phases.total() - seconds) > TOLERANCE * seconds:
                raise ValueError(
                    f"the phases of worker {worker} sum to {phases.total()} s, it took {seconds} s"
                )
        return self


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
