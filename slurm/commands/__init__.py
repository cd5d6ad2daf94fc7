"""The subcommands of unet-scaling that launch studies or look at them, a file each."""

from unet_scaling import require_packages

require_packages()
