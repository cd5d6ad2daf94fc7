"""The built-in task: the reference U-Net, images with masks, binary cross-entropy, and IoU."""

import dataclasses

from torch import Tensor, nn
from torch.nn import functional

from unet_scaling.data.batches import ImageBatch, ImageData
from unet_scaling.data.loader import load_data
from unet_scaling.emulation import EmulatedUNet, parameter_bytes
from unet_scaling.group.group import Group
from unet_scaling.metrics import count_pixels, mean_image_iou, total_counts
from unet_scaling.model import Norm, UNet
from unet_scaling.study.compute_profile import profile_of, require_same_parameters
from unet_scaling.study.record_lines import Evaluated, Result
from unet_scaling.task.task import Task, finite_counts, require_finite


class UNetTask(Task):
    """Segmentation of the images of `[data]` by the network of `[model]`."""

    def load_data(self, group: Group) -> ImageData:
        return load_data(self.config, group)

    def build_model(self, synchronized_norm: Norm) -> UNet:
        """Return the U-Net, or what stands for it in an emulated worker.

        Raises UserError where the profile to wait by is of another network, and where batch norm over all
        workers is asked for on a CPU.
        """
        config = self.config
        network = EmulatedUNet if config.is_emulated else UNet
        norm = self._norm(synchronized_norm)
        model = network(config.data.channels, config.model.width, config.model.depth, norm=norm)
        if config.is_emulated:
            require_same_parameters(profile_of(config), parameter_bytes(model))
        return model

    def _norm(self, synchronized_norm: Norm) -> Norm:
        norms: dict[str, Norm] = {"local": nn.BatchNorm2d, "sync": synchronized_norm, "off": nn.Identity}
        return norms[self.config.model.batch_norm]

    def loss(self, model: nn.Module, batch: ImageBatch) -> Tensor:
        """Return the binary cross-entropy with logits, the mean over images and pixels."""
        return functional.binary_cross_entropy_with_logits(model(batch.images).float(), batch.masks)

    def count(self, model: nn.Module, batch: ImageBatch) -> Tensor:
        """Return int64 [4]: true positive, false positive, false negative, true negative pixels."""
        logits = batch.cropped(model(batch.images))
        return finite_counts(count_pixels(logits, batch.cropped(batch.masks)), [logits])

    def result(self, counts: Tensor, evaluated: Evaluated) -> Result:
        require_finite(counts, evaluated.epochs, "evaluation")
        total = total_counts(counts)
        return Result(
            **evaluated.model_dump(),
            **dataclasses.asdict(total),
            iou=total.iou,
            dice=total.dice,
            image_iou=mean_image_iou(counts),
        )
