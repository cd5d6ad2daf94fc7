"""Folders of images with masks, checked and decoded; and the batches of a run, of any task."""

from unet_scaling import require_packages

require_packages()
