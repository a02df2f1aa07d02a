# Lists the processes of a running job, on its node: `bash -c SCRIPT gputui PLACE COLUMNS`.
PATH=${PATH:+$PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
if [[ $1 == container ]] || { [[ $1 == either ]] && docker inspect "gputui-$SLURM_JOB_ID" >/dev/null 2>&1; }; then
  exec docker top "gputui-$SLURM_JOB_ID" -eo "$2"
fi
pids=$(scontrol listpids "$SLURM_JOB_ID" |
  awk -v own="$SLURM_STEP_ID" 'NR > 1 && $3 != own && $3 != "extern" {printf "%s%s", comma, $1; comma = ","}')
[[ -z $pids ]] || ps -o "$2" -p "$pids" | grep -v ' sleep 2147483647$'  # the batch script's own, which does nothing
