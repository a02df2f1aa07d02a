# Runs a command in a running job, on its node: `bash -c SCRIPT gputui MARK PLACE TERM INPUT KEYS COMMAND...`.
# PLACE is `container`, `node` or `either`, or `attach` for the streams of the container itself, without a command. TERM is empty
# without a terminal, INPUT without standard input.
mark=$1 place=$2 term=$3 input=$4 keys=$5
shift 5
end=
if [[ -n $term ]]; then exec 3>&1; else exec 3>&2; end=$'\n'; fi

report() { printf '\033_gputui:%s:%s\033\\%s' "$mark" "$1" "$end" >&3; }

fail() { printf '%s\n' "$1" >&2; exit 1; }

look() { state=$(docker inspect --type container --format '{{.State.Status}}' "$container" 2>&1); }

refuse() {
  case $state in
    created | *[Nn]'o such'*) fail "its container does not run yet" ;;
    exited | dead | removing) fail "its container has ended" ;;
    paused) fail "its container is paused" ;;
    *) fail "${state##*$'\n'}" ;;
  esac
}

in_container() {
  local options=()
  look
  [[ $state == running ]] || refuse
  [[ -z $term ]] || options=(--tty "--env=TERM=$term")
  [[ -z $input ]] || options+=(--interactive)
  [[ -z $keys ]] || options+=("--detach-keys=$keys")
  report begin
  docker exec "${options[@]}" "$container" "$@" 3>&-
}

# The batch script has made the container, or still pulls its image. Who claims its start attaches before it runs.
to_container() {
  local verb
  while :; do
    look
    case $state in
      running) verb=attach; break ;;
      created) if mkdir "$claim" 2>/dev/null; then verb=start; break; fi ;;
      *[Nn]'o such'*) ;;
      *) refuse ;;
    esac
    sleep 0.2
  done
  report begin
  if [[ -n $term ]]; then to_terminal "$verb"; else to_streams "$verb"; fi
}

to_terminal() {
  local options=()
  [[ -z $keys ]] || options=("--detach-keys=$keys")
  if [[ $1 == start ]]; then
    docker start --attach ${input:+--interactive} "${options[@]}" "$container" 3>&-
  else
    [[ -n $input ]] || options+=(--no-stdin)
    docker attach "${options[@]}" "$container" 3>&-
  fi
}

# All output so far, and what follows. Docker's own `start --attach` would pass the end of this step on to the container.
to_streams() {
  local code
  if [[ $1 == start ]]; then
    docker start "$container" >/dev/null 3>&- || return
  fi
  exec 4<&0 5< <(docker wait "$container" 2>/dev/null 3>&-)
  [[ -z $input ]] || docker attach --sig-proxy=false "$container" <&4 >/dev/null 2>&1 3>&- &
  docker logs --follow "$container" 3>&- 4<&- 5<&-
  read -r code <&5
  return "${code:-0}"
}

# Environment and directory are those of the batch script, or of the command that a script of gputui runs; a job without one
# has those of the step.
on_node() {
  local environment=() pid child
  unset LC_ALL TZ SLURM_TIME_FORMAT SLURM_BITSTR_LEN
  pid=$(scontrol listpids "$SLURM_JOB_ID" 2>/dev/null | awk '$3 == "batch" && $4 == 0 {print $1; exit}')
  for child in $(cat "/proc/${pid:-0}/task/${pid:-0}/children" 2>/dev/null); do
    ! tr '\0' '\n' <"/proc/$child/environ" 2>/dev/null | grep -q '^\(APPTAINERENV_\)\?GPUTUI_JOB_ID=' || { pid=$child; break; }
  done
  if [[ -n $pid ]] && mapfile -d '' -t environment 2>/dev/null <"/proc/$pid/environ" && (( ${#environment[@]} )); then
    environment=(-i "${environment[@]}")
    cd -P "/proc/$pid/cwd" 2>/dev/null
  fi
  [[ -z $term ]] || environment+=("TERM=$term")
  report begin
  env "${environment[@]}" sh -c 'exec "$@"' gputui "$@" 3>&-
}

trap : INT QUIT
[[ -n $HOME ]] || export HOME=~
PATH=${PATH:+$PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
container=gputui-$SLURM_JOB_ID claim=/tmp/gputui-$SLURM_JOB_ID.start
case $place in
  container) in_container "$@" ;;
  either)
    look
    if [[ $state == *[Nn]'o such'* ]]; then on_node "$@"; else in_container "$@"; fi
    ;;
  attach) to_container ;;
  *) on_node "$@" ;;
esac
report "$?"
# Slurm loses the last output of a step that ends with unread input; gputui ends the input when it sees the report.
[[ -z $input || -n $term ]] || cat >/dev/null
exit 0
