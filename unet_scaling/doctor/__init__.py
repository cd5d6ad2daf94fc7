"""A launch of half a minute that tells what keeps workers from training together (optional)."""

from unet_scaling import require_packages

require_packages()
