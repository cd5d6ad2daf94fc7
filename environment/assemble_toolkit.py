#!/usr/bin/env python3
"""Make a folder that is a CUDA toolkit from wheels of the package index; print where it is.

    assemble_toolkit.py SITE_PACKAGES FOLDER

The wheels of the compiler and those of torch share `nvidia/cu<release>`, which lacks what a linker looks
for: `lib64`, and libraries without a version in their names. Needs the standard library only.
"""

import os
import shutil
import sys
from pathlib import Path

# What a build needs, and the wheel that brings it.
TOOLKIT_PARTS = {
    "bin/nvcc": "nvidia-cuda-nvcc",
    "bin/ptxas": "nvidia-cuda-nvcc",
    "nvvm/bin/cicc": "nvidia-nvvm",
    "include/crt/host_config.h": "nvidia-cuda-crt",
    "include/nv/target": "nvidia-cuda-cccl",
    "include/cuda_runtime.h": "nvidia-cuda-runtime",
    "lib/libcudadevrt.a": "nvidia-cuda-runtime",
    "lib/libcudart_static.a": "nvidia-cuda-runtime",
}
# nvcc takes the folder above its own real path for the toolkit, so that links would lead it out of here.
OWN_FOLDERS = ("bin", "nvvm")


def main() -> str | None:
    """Return what is wrong, as `sys.exit` prints it; None where the folder is made."""
    site_packages, toolkit = (Path(argument) for argument in sys.argv[1:])
    wheels = newest_release(site_packages)
    if wheels is None:
        return (
            f"error: no nvidia/cu<release> in {site_packages}; the wheels of the compiler are not installed"
        )
    missing = [f"{part} ({wheel})" for part, wheel in TOOLKIT_PARTS.items() if not (wheels / part).exists()]
    if missing:
        return f"error: {wheels} lacks {', '.join(missing)}; install these wheels in one version"
    assemble(wheels, toolkit)
    print(toolkit)
    return None


def newest_release(site_packages: Path) -> Path | None:
    """Return the folder in which the wheels of the newest CUDA release are installed."""
    folders = [path for path in site_packages.glob("nvidia/cu*") if path.name[2:].isdecimal()]
    return max(folders, key=lambda path: int(path.name[2:]), default=None)


def assemble(wheels: Path, toolkit: Path) -> None:
    """Make the folder anew. The programs are hard links where the file system allows, else copies."""
    shutil.rmtree(toolkit, ignore_errors=True)
    toolkit.mkdir(parents=True)
    for name in OWN_FOLDERS:
        shutil.copytree(wheels / name, toolkit / name, copy_function=link_or_copy)
    (toolkit / "include").symlink_to(wheels / "include")
    libraries = toolkit / "lib64"
    (libraries / "stubs").mkdir(parents=True)
    for library in sorted((wheels / "lib").iterdir()):
        (libraries / library.name).symlink_to(library)
    for library in sorted(libraries.glob("lib*.so.*")):
        unversioned = libraries / f"{library.name.partition('.so.')[0]}.so"
        if not unversioned.exists():
            unversioned.symlink_to(library.name)


def link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


if __name__ == "__main__":
    sys.exit(main())
