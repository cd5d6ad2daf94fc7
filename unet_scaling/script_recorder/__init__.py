"""Records of scripts that are not the project's; `unet_scaling.record` is what such a script imports."""
