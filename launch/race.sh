#!/bin/bash
# A race on a SLURM cluster: Ray on every node, the server on the first, workers spread over all.
#
#   sbatch --nodes=4 launch/race.sh --config=configs/quickstart.py --workdir=/shared/runs/race \
#       --config.method.name=asynchronous --config.method.groups=4 --config.cluster.nodes=4
#
# To be submitted from the repository's root, on a file system that all nodes share, as the workdir
# must be. PYTHON names the interpreter if it is not .venv/bin/python. Two minutes before the time
# limit the server gets SIGTERM and saves; the same line submitted again goes on.

#SBATCH --job-name=optdyn-race
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --output=slurm-%j.log
#SBATCH --open-mode=append

set -euo pipefail

python="${PYTHON:-.venv/bin/python}"
ray="$(dirname "$python")/ray"
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head="${nodes[0]}"
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"
export RAY_USAGE_STATS_ENABLED=0 PYTHONUNBUFFERED=1
# A secret of this job, and a folder that no other user can enter, for Ray opens its own to all:
# others of the cluster could run programs here without.
RAY_AUTH_TOKEN="$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
folder="$(mktemp -u /tmp/optdyn-XXXXXXXX)"
srun --ntasks="$SLURM_JOB_NUM_NODES" mkdir -m 700 "$folder"

srun --nodes=1 --ntasks=1 --nodelist="$head" \
    "$ray" start --head --port=6379 --temp-dir="$folder/ray" --include-dashboard=false --block &
sleep 10
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    srun --nodes="$((SLURM_JOB_NUM_NODES - 1))" --exclude="$head" \
        "$ray" start --address="$head:6379" --block &
    sleep 10
fi

"$python" -m launch.race --address="$head:6379" "$@" &  # the batch script runs on the first node
server=$!
trap 'kill -TERM "$server"' TERM
code=0
wait "$server" || code=$?
if kill -0 "$server" 2> /dev/null; then # the signal ended the wait, not the server
    code=0
    wait "$server" || code=$?
fi
kill $(jobs -p) 2> /dev/null || true
wait
srun --ntasks="$SLURM_JOB_NUM_NODES" rm -rf "$folder"
exit "$code"
