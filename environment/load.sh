# The modules of one site, sourced by its jobs before the launch (prologue in slurm/clusters/*.toml) and by
# people before environment/install.sh. An example: replace it with your site's. Nothing else here knows a site.
# shellcheck shell=bash

# module load GCC/13 CUDA/12 impi/2021
# export MPIEXEC=mpiexec
: "${MPIEXEC:=mpiexec}"
export MPIEXEC
