"""Open the images of a run: decoded at every step, from a cache, on the device, or replayed."""

import socket
import time
from pathlib import Path

from unet_scaling.data.batches import ImageData, ImageSource
from unet_scaling.data.cache import (
    ResidentImages,
    build_cache,
    default_cache_root,
    open_cache,
    verification_of_cache,
)
from unet_scaling.data.decoding import DecodedImages
from unet_scaling.data.emulated_images import EmulatedData, ReplayedImages, emulated_profile
from unet_scaling.data.folder import Manifest, read_manifest
from unet_scaling.data.order import require_enough_images, split
from unet_scaling.data.verification import Verification, verification_of_files
from unet_scaling.group.group import Group
from unet_scaling.study.config import RunConfig

# A verification that takes longer is reported.
UNREPORTED_SECONDS = 2.0


def load_data(config: RunConfig, group: Group) -> ImageData:
    """Open the images of a run; the first worker of each host decodes them once for all.

    Raises UserError (65), before any training, for a folder that does not match its manifest and
    for more workers or larger batches than the images can serve. Of images that are only replayed, the
    manifest tells the number.
    """
    manifest = read_manifest(config.data.manifest_path)
    parts = split(len(manifest.pairs), config.data.test_share, config.data.split_seed)
    require_enough_images(config, len(parts.train))
    source, verification = _open_images(manifest, Path(config.data.folder), config, group)
    opened = (source, verification, parts, config, group, manifest.sha256)
    if config.is_emulated:
        return EmulatedData(*opened, profile=emulated_profile(config, group))
    return ImageData(*opened)


def _open_images(
    manifest: Manifest, folder: Path, config: RunConfig, group: Group
) -> tuple[ImageSource, Verification]:
    data = config.data
    if config.is_emulated and config.emulation.data == "replayed":
        return ReplayedImages(len(manifest.pairs), data), Verification({}, "")
    manifest.require_unchanged(folder)
    # This worker's number among those of its host, and how many there are: each verifies a part.
    hosts = group.gather_strings(socket.gethostname())
    own = hosts[group.rank]
    index, count = hosts[: group.rank].count(own), hosts.count(own)
    if data.loading == "decode":
        decoded = DecodedImages(manifest, folder, data)
        verification = verification_of_files(manifest, folder, index, count)
        _verify(verification, group)
        return decoded, verification
    root = default_cache_root()
    is_first = group.identity.local_rank == 0
    group.run_on_all(lambda: build_cache(manifest, folder, data, root) if is_first else None)
    cached = open_cache(manifest, folder, data, root)
    if data.loading == "device":
        return ResidentImages(cached, group.device), Verification({}, "")
    return cached, verification_of_cache(cached.folder, index, count)


def _verify(verification: Verification, group: Group) -> None:
    """Hash the files that training will read, each once on every host; UserError (65) on every worker."""
    begin = time.perf_counter()
    group.run_on_all(verification.verify_all)
    mebibytes = sum(group.gather_numbers(verification.bytes)) / 2**20
    seconds = time.perf_counter() - begin
    if group.rank == 0 and seconds > UNREPORTED_SECONDS:
        print(f"verified {mebibytes:.1f} MiB of images in {seconds:.2f} s", flush=True)
