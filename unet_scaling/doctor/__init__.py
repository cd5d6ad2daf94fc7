from unet_scaling.interpreter import require_packages

require_packages()
