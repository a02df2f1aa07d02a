
# Slurm forgets the job minutes after its end. So lines `start TIME RESTARTS NODE GPUS KEY` and `end TIME CODE [CAUSE SENTENCE]`
# stay beside its output: of each run one after the other, with seconds since 1970 and the numbers of the GPUs.
note() {
  [[ -z $record ]] || { printf '%s %(%s)T %s\n' "$1" -1 "${2//$'\n'/ }" >>"$record"; } 2>/dev/null
}

# A signal that nothing below handles ends this script with its usual exit code, not with that of the command before it.
for number in 1 2 3 10 12 13 14 15 24 25 26 27 29 30; do
  # shellcheck disable=SC2064
  trap "exit $(( 128 + number ))" "$number"
done
trap 'note end "$?${cause:+ $cause}"' EXIT
note start "${SLURM_RESTART_COUNT:-0} ${SLURMD_NODENAME:--} ${SLURM_JOB_GPUS:--} $key"
