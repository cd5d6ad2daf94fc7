"""Print the peak memory, in bytes, of a process that makes one map of 1024 x 768 pixels.

python -m tests.peak_memory_of_maps METHOD MASKS FOLDER_OF_IMAGES
"""

import sys
import tempfile
from pathlib import Path

import torch

from tests.studies import make_point
from tests.xaitk_maps import initial_network, map_maker
from unet_scaling.group.allocator import keep_memory
from unet_scaling.measure.cpu_counters import peak_memory_bytes

HEIGHT, WIDTH = 768, 1024


def main() -> None:
    method, masks, folder = sys.argv[1:]
    # Windows of so many pixels from one to the next give about so many masks.
    stride = max(1, round((HEIGHT * WIDTH / int(masks)) ** 0.5))
    options = {"method": method, "masks": int(masks), "window": 50, "stride": stride, "batch": 4}
    config = make_point(Path(folder), image_height=HEIGHT, image_width=WIDTH, width=1, depth=1, **options)
    with tempfile.TemporaryDirectory() as run:
        model = initial_network(config)
        with torch.no_grad():
            assert model.head.bias is not None
            model.head.bias += 10
        maker = map_maker(config, Path(run), model)
        keep_memory()
        clean = maker.clean(0)
        assert not clean.is_empty
        maker.saliency(clean)
        print(maker.masks.count, peak_memory_bytes())


if __name__ == "__main__":
    main()
