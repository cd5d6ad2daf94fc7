"""Time a study's input and its training steps, and say what limits it (optional)."""

from unet_scaling import require_packages

require_packages()
