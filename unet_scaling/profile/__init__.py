from unet_scaling import require_packages

require_packages()
