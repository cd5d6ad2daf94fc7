#!/usr/bin/env bash
# Print the folder of a CUDA toolkit that Horovod can be built with; else print why there is none, and exit with 1.
# Called by install.sh, with cmake on the PATH: cuda_toolkit.sh CUDA_VERSION_OF_TORCH [USUAL_FOLDER]
#
# An nvcc alone proves nothing: package indexes and images carry it without headers or without cudart. So a
# small program is compiled and linked, and CMake is asked for what Horovod's own FindCUDAToolkit asks for.
set -euo pipefail

wanted=$1 usual=${2:-/usr/local/cuda}

refuse() {
    printf '%s\n' "$1"
    exit 1
}

find_nvcc() {
    local folder
    for folder in "${HOROVOD_CUDA_HOME:-}" "${CUDA_HOME:-}" "${CUDA_PATH:-}"; do
        if [ -n "$folder" ] && [ -x "$folder/bin/nvcc" ]; then
            printf '%s\n' "$folder/bin/nvcc"
            return
        fi
    done
    command -v nvcc || { [ -x "$usual/bin/nvcc" ] && printf '%s\n' "$usual/bin/nvcc"; }
}

# The nvcc on the PATH may be a script or a link to another folder; the compiler itself knows where it lives.
root_of() {
    local root
    root=$("$1" --dryrun -x cu /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p' | head -n 1) || true
    if [ ! -x "$root/bin/nvcc" ]; then root=$(dirname "$(dirname "$(readlink -f "$1")")"); fi
    (cd "$root" && pwd -P)
}

nvcc=$(find_nvcc) || refuse "there is no nvcc on the PATH, in CUDA_HOME or in $usual"
root=$(root_of "$nvcc")
nvcc=$root/bin/nvcc
[ -x "$nvcc" ] || refuse "$root, the toolkit that nvcc belongs to, has no bin/nvcc"

release=$("$nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p') || true
[ -n "$release" ] || refuse "$nvcc does not run"
[ "${release%%.*}" = "${wanted%%.*}" ] || refuse "the CUDA toolkit in $root is of another release, $release"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/probe.cu" <<'CUDA'
#include <cuda_runtime.h>
__global__ void set_one(int *number) { *number = 1; }
int main() {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}
CUDA
"$nvcc" ${CXX:+-ccbin "$CXX"} "$work/probe.cu" -o "$work/probe" >"$work/log" 2>&1 ||
    refuse "the CUDA toolkit in $root is incomplete: its nvcc cannot build a small program ($(
        grep -m 1 -iE 'error|cannot find|no such file' "$work/log" || tail -n 1 "$work/log"
    ))"

cat >"$work/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.18)
project(probe CXX)
list(APPEND CMAKE_PREFIX_PATH "${ROOT}")
find_path(header NAMES cuda_runtime.h)
find_library(library NAMES cudart PATH_SUFFIXES lib64 lib64/stubs)
if(NOT header OR NOT library)
    message(FATAL_ERROR "missing")
endif()
CMAKE
cmake -S "$work" -B "$work/build" -DROOT="$root" >"$work/log" 2>&1 ||
    refuse "the CUDA toolkit in $root is incomplete: CMake finds no cuda_runtime.h or no libcudart.so in it"
printf '%s\n' "$root"
