"""Folders of images with masks: checked, described, decoded, and made into the batches of a run."""

from unet_scaling import require_packages

require_packages()
