#!/bin/bash
# One run on a SLURM cluster, one process for each GPU:
#
#   sbatch --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 launch/slurm.sh \
#       --config=configs/quickstart.py --workdir=/shared/runs/first
#
# or without GPUs, one process for each node:
#
#   sbatch --nodes=4 --ntasks-per-node=1 --cpus-per-task=32 launch/slurm.sh --config=... --workdir=...
#
# To be submitted from the repository's root, on a file system that all nodes share, as the workdir
# must be. Ask for GPUs by node: JAX gives each of a node's tasks its own, and has to see them all.
# PYTHON names the interpreter if it is not .venv/bin/python.
#
# Two minutes before the time limit every process gets SIGTERM, and the run saves its state; the
# same line submitted again resumes it. If one process fails, SLURM ends the others.

#SBATCH --job-name=optdyn
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --output=slurm-%j.log
#SBATCH --open-mode=append

set -euo pipefail

# Since release 22.05 srun does not take this over from sbatch.
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"
export PYTHONUNBUFFERED=1

exec srun --label --kill-on-bad-exit=1 \
    "${PYTHON:-.venv/bin/python}" -m launch.train "$@"
