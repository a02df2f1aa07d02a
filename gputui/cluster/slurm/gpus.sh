
# From here on the script is the same for all jobs with containers.

# UUID of the GPU that Slurm calls by this number: that of /dev/nvidiaNUMBER, which is not always nvidia-smi's index.
gpu_uuid() {
  local file uuid
  if [[ $1 == GPU-* || $1 == MIG-* ]]; then
    echo "$1"
    return
  fi
  for file in /proc/driver/nvidia/gpus/*/information; do
    [[ -r $file ]] || continue
    uuid=$(sed -n 's/^GPU UUID:[[:space:]]*//p' "$file")
    if grep -q "^Device Minor:[[:space:]]*$1\$" "$file" && [[ $uuid == GPU-* && $uuid != *'?'* ]]; then
      echo "$uuid"
      return
    fi
  done
  nvidia-smi --query-gpu=index,uuid --format=csv,noheader | sed -n "s/^ *$1, *//p"
}

# UUIDs of the job's GPUs, separated by commas. CUDA_VISIBLE_DEVICES counts only the GPUs that the job may open.
gpu_uuids() {
  local number uuid all=
  for number in ${SLURM_JOB_GPUS//,/ }; do
    uuid=$(gpu_uuid "$number")
    [[ $uuid == GPU-* || $uuid == MIG-* ]] || return 1
    all+=${all:+,}$uuid
  done
  echo "$all"
}
