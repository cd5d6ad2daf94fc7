"""From the records of a study to its report: read, computed, judged, said and drawn."""

from unet_scaling import require_packages

require_packages()
