
# From here on the script is the same for all jobs with containers.

# UUIDs by N of /dev/nvidiaN, from the driver's files; it writes question marks for a GPU that it has not initialised.
read_minors() {
  local file name value minor uuid
  declare -gA by_minor=()
  listed=''
  for file in /proc/driver/nvidia/gpus/*/information; do
    [[ -r $file ]] || continue
    minor='' uuid=''
    while IFS=: read -r name value; do
      case $name in
        'GPU UUID') uuid=${value##*[[:space:]]} ;;
        'Device Minor') minor=${value##*[[:space:]]} ;;
      esac
    done <"$file"
    [[ -z $minor || $uuid != GPU-* || $uuid == *'?'* ]] || by_minor[$minor]=$uuid
  done
}

# Set `uuid` to that of the GPU that Slurm calls by this number: of /dev/nvidiaNUMBER, which is not always nvidia-smi's
# index.
find_uuid() {
  local index
  uuid=$1
  [[ $1 != GPU-* && $1 != MIG-* ]] || return 0
  uuid=${by_minor[$1]-}
  [[ -z $uuid ]] || return 0
  [[ -n $listed ]] || listed=$(nvidia-smi --query-gpu=index,uuid --format=csv,noheader)
  while IFS=', ' read -r index uuid; do
    [[ $index != "$1" ]] || return 0
  done <<<"$listed"
}

# Set `uuids` to those of the job's GPUs, separated by commas. CUDA_VISIBLE_DEVICES counts only the GPUs that the job may
# open.
gpu_uuids() {
  local number uuid
  uuids=''
  read_minors
  for number in ${SLURM_JOB_GPUS//,/ }; do
    find_uuid "$number"
    [[ $uuid == GPU-* || $uuid == MIG-* ]] || return 1
    uuids+=${uuids:+,}$uuid
  done
}
