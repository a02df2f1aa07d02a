
# From here on the script is the same for all probe jobs. A line after $mark tells a fact; lines without it are the output
# of what was told before.

tell() { printf '%s %s\n' "$mark" "$(tr -s '[:space:][:cntrl:]' ' ' <<<"$*")"; }

# Start a container with these of the job's GPUs, by the way of all jobs, and tell what it sees.
look() {
  [[ -z $ended ]] || return
  tell container "$1"
  ( SLURM_JOB_GPUS=$1; run_job ) 2>&1
  tell code "$?"
}

# Leave a container behind, as a batch script does that was killed: the epilog has to remove it.
leave_container() {
  [[ -z $ended ]] || return
  docker run --detach --rm --network=none --env=NVIDIA_VISIBLE_DEVICES=void --entrypoint=sleep \
    "--label=gputui.job=$SLURM_JOB_ID" "--label=gputui.key=$key" "$image" 600 >/dev/null 2>&1 && tell left
}

PATH=${PATH:+$PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ended=''
trap 'ended=yes' TERM INT
tell user "$(id -u) $(id -un)"
read_minors
for number in ${SLURM_JOB_GPUS//,/ }; do
  find_uuid "$number" 2>/dev/null
  tell gpu "$number $uuid"
done
tell host
nvidia-smi -L 2>&1
if ! (( has_engine )); then
  look "$SLURM_JOB_GPUS"
elif said=$(docker version --format '{{.Server.Version}}' 2>&1); then
  tell engine "$said"
  look "$SLURM_JOB_GPUS"
  if [[ $SLURM_JOB_GPUS == *,* ]]; then
    for number in ${SLURM_JOB_GPUS//,/ }; do look "$number"; done
  fi
  leave_container
else
  tell refused "$said"
fi
tell end
