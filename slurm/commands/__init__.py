"""Subcommands on studies, clusters and runs, a file each; options.py is what they share."""

from unet_scaling import require_packages

require_packages()
