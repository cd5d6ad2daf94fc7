"""Subcommands on studies, clusters and runs, a file each; all are in unet_scaling/subcommands.py."""

from unet_scaling import require_packages

require_packages()
