
# Slurm signals this shell alone (`scancel --batch`, `--signal=B:`), or all processes of the job at once. The command gets each
# signal once all the same: one that has not ended the witness too was for this shell alone, and is passed on.
on_signal() {
  sleep 0.1
  if ! is_alive "$command_pid"; then  # a bash that loses its end to this signal would wait for the witness
    kill -s KILL "$witness"
  elif is_alive "$witness"; then
    kill -s "$1" "$command_pid" 2>/dev/null
  else
    start_witness
  fi
}

# Start a process that does nothing, and that each signal ends.
start_witness() {
  ( trap - INT QUIT; exec sleep 2147483647 ) </dev/null >/dev/null 2>&1 &
  witness=$!
  disown
}

start_witness
( trap - INT QUIT; set_up; exec -- "${command[@]}" ) <&0 &
command_pid=$!
exec 2>/dev/null  # bash tells of a child that a signal has ended
for number in {1..3} 5 6 10 {12..16} {24..27} {29..31} {34..64}; do
  # shellcheck disable=SC2064
  trap "on_signal $number" "$number"
done
trap 'kill -s "${warning:-URG}" "$command_pid"' URG  # ends no process; the warning before the time limit may be sent by it
trap 'kill -s WINCH "$command_pid"' WINCH
await "$command_pid"
code=$?
kill -s KILL "$witness"
if (( code == 127 )) && ! ( set_up; type -P -- "${command[0]}" ) >/dev/null; then
  cause="CommandNotFound ${SLURMD_NODENAME:-its node} has no program ${command[0]}"
fi
exit "$code"
