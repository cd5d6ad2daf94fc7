#!/usr/bin/env bash
# Build Horovod's wheel against the torch and MPI of an environment, or take it from the cache; install it.
# Called by install.sh: build_horovod.sh VENV MPI WHEEL_CACHE LOG CUDA_TOOLKIT
# CUDA_TOOLKIT is the folder of a complete one; empty for CPU workers only.
set -euo pipefail

venv=$1 mpi=$2 cache=$3 log=$4 toolkit=$5
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PATH="$venv/bin:$PATH"
source "$root/environment/with_clock.sh"
if [ "$mpi" = intel ]; then export I_MPI_ROOT="$venv"; fi

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 2
}

# What decides the build must be in the wheel's key below: nothing else of Horovod's variables gets through.
for name in $(compgen -e HOROVOD_ || true); do
    case "$name" in
        HOROVOD_BUILD_CUDA_CC_LIST | HOROVOD_NCCL_*) [ -n "$toolkit" ] || unset "$name" ;;
        *) unset "$name" ;;
    esac
done

mpi_version() {
    if [ "$mpi" = site ]; then
        { mpicxx -show; mpiexec --version 2>&1 | head -n 2; } | sha256sum | cut -c1-12
    else
        python -c 'import sys; from importlib.metadata import version; print(version(sys.argv[1]))' \
            "$(case "$mpi" in intel) echo impi-rt ;; *) echo "$mpi" ;; esac)"
    fi
}

nvcc_version() { "$toolkit/bin/nvcc" --version | sed -n 's/.* V\([0-9.]*\)$/\1/p'; }
is_of_wheels() { [ "$toolkit" = "$venv/cuda_toolkit" ]; }

gpu_operations() {
    if [ -z "$toolkit" ]; then
        echo cpu
        return
    fi
    printf 'nccl-nvcc%s%s%s' "$(nvcc_version)" "$(is_of_wheels && echo -pip)" \
        "${HOROVOD_BUILD_CUDA_CC_LIST:+-cc$HOROVOD_BUILD_CUDA_CC_LIST}"
    for name in $(compgen -e HOROVOD_NCCL_ || true); do printf '%s=%s\n' "$name" "${!name}"; done |
        sha256sum | cut -c1-8 | sed 's/^/-/'
}

key=$(python -c 'import sys, platform, torch; print(
    f"{sys.implementation.cache_tag}-{platform.machine()}-torch{torch.__version__}")')
key="$key-$mpi$(mpi_version)-$(gpu_operations)"
key="$key-$(cat "$root"/environment/horovod-*.patch "$root/environment/horovod.txt" "${BASH_SOURCE[0]}" |
    sha256sum | cut -c1-8)"
kept=$cache/${key//,/_}
printf 'wheel: %s\n' "$kept" >>"$log"

install_wheel() {
    pip install --disable-pip-version-check --no-deps --force-reinstall "$kept"/horovod-*.whl >>"$log" 2>&1 ||
        fail "the Horovod wheel in $kept cannot be installed; see $log"
}

is_built() { compgen -G "$kept/horovod-*.whl" >/dev/null; }
take_built_wheel() {
    echo "==> Horovod: taking the wheel built before ($kept)"
    install_wheel
    exit 0
}
if is_built; then take_built_wheel; fi

# One builds, and others wait for its wheel: the lock goes with the process, however it ends.
mkdir -p "$cache"
exec 9>"$kept.lock"
locked=0
flock --nonblock 9 2>>"$log" || locked=$?
if [ "$locked" -eq 1 ]; then
    echo "==> Horovod: another installation builds this wheel; waiting for it"
    if with_clock "$log" flock 9; then locked=0; fi
    if is_built; then take_built_wheel; fi
fi
if [ "$locked" -eq 0 ]; then
    work=$kept.build
    rm -rf "$work" # of a build that was killed
    mkdir "$work"
else
    # No locks here: each builds for itself.
    work=$(mktemp -d "$kept.build.XXXXXX")
fi
trap 'stop_running; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

echo "==> Horovod: fetching the source and checking its hash"
pip download --disable-pip-version-check --quiet --no-deps --no-build-isolation --no-binary horovod \
    --require-hashes --requirement "$root/environment/horovod.txt" --dest "$work" >>"$log" 2>&1 ||
    fail "the source of Horovod could not be fetched, or its hash differs; see $log"
tar -xzf "$work"/horovod-*.tar.gz -C "$work"
source=$(echo "$work"/horovod-*/)
for change in "$root"/environment/horovod-*.patch; do
    patch --quiet -d "$source" -p1 <"$change" >>"$log" 2>&1 || fail "$change does not apply; see $log"
done

export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1
export HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1 CMAKE_POLICY_VERSION_MINIMUM=3.5
export MAKEFLAGS="${MAKEFLAGS:--j$(nproc)}"
if [ -z "$toolkit" ]; then
    # Without it, a CUDA build of torch and any CUDA folder on the machine make Horovod require a whole toolkit.
    export HOROVOD_WITHOUT_CUDA=1
    workers="CPU workers"
else
    export HOROVOD_GPU_OPERATIONS=NCCL
    # torch, CMake and Horovod each look for the toolkit by a name of their own.
    export CUDA_HOME=$toolkit CUDAToolkit_ROOT=$toolkit HOROVOD_CUDA_HOME=$toolkit CUDACXX=$toolkit/bin/nvcc
    export PATH="$venv/bin:$toolkit/bin:$PATH"
    workers="GPUs (toolkit: $toolkit)"
    # torch brings its own NCCL, under a name that a linker does not look for.
    nccl=$(python -c 'import importlib.util as u; s = u.find_spec("nvidia.nccl")
print(s.submodule_search_locations[0] if s else "")' 2>/dev/null || true)
    if [ -z "${HOROVOD_NCCL_HOME:-}" ] && [ -n "$nccl" ]; then
        mkdir -p "$work/nccl/lib"
        ln -s "$nccl/include" "$work/nccl/include"
        ln -s "$nccl/lib/libnccl.so.2" "$work/nccl/lib/libnccl.so"
        export HOROVOD_NCCL_HOME="$work/nccl"
    fi
fi

echo "==> Horovod: building against $mpi for $workers with $MAKEFLAGS (2 to 10 minutes; log: $log)"
begin=$SECONDS
if ! with_clock "$log" pip wheel --disable-pip-version-check --no-deps --no-build-isolation --verbose \
    --wheel-dir "$work/wheel" "$source"; then
    grep -E 'error:|CMake Error|fatal' "$log" | head -n 5 >&2 || true
    fail "Horovod did not build against $mpi; the whole output is in $log"
fi

echo "==> Horovod: built in $((SECONDS - begin)) s"
# The libraries of the same environment, wherever that is: the wheel outlives the clone it was built in.
python -m wheel unpack --dest "$work" "$work"/wheel/horovod-*.whl >>"$log" 2>&1
library=$(echo "$work"/horovod-*/horovod/torch/mpi_lib_v2*.so)
# shellcheck disable=SC2016  # $ORIGIN is for the loader
origin='$ORIGIN/../../../..:$ORIGIN/../../torch/lib'
if [ "$mpi" = site ]; then origin="$origin:$(patchelf --print-rpath "$library")"; fi
patchelf --set-rpath "$origin" "$library"
# For check.py.
{
    printf '%s' "$("${CXX:-g++}" --version | head -n 1)"
    if [ -n "$toolkit" ]; then
        printf ', nvcc %s of %s' "$(nvcc_version)" "$(is_of_wheels && echo "the package index" || echo "$toolkit")"
    fi
    printf '\n'
} >"$(dirname "$(dirname "$library")")/toolchain.txt"
# Horovod's setup packs its source and build folders, too: 81 MB, and a package named `build` in every environment.
unpacked=$(dirname "$(dirname "$(dirname "$library")")")
find "$unpacked" -mindepth 1 -maxdepth 1 ! -name horovod ! -name '*.dist-info' -exec rm -rf {} +
printf 'horovod\n' >"$(echo "$unpacked"/*.dist-info)/top_level.txt"
find "$unpacked/horovod" -name '*.so' -exec strip --strip-unneeded {} +
mkdir "$work/packed"
python -m wheel pack --dest-dir "$work/packed" "$unpacked" >>"$log" 2>&1
# Another installation may have finished the same build meanwhile; either wheel will do.
mv -T "$work/packed" "$kept" 2>/dev/null || compgen -G "$kept/horovod-*.whl" >/dev/null
install_wheel
