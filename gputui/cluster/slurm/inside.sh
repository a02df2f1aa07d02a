# Runs a command in a running job, on its node: `bash -c SCRIPT gputui MARK PLACE TERM INPUT KEYS COMMAND...`.
# PLACE is `container` or `node`; TERM is empty without a terminal, INPUT without standard input.
mark=$1 place=$2 term=$3 input=$4 keys=$5
shift 5
end=
if [[ -n $term ]]; then exec 3>&1; else exec 3>&2; end=$'\n'; fi

report() { printf '\033_gputui:%s:%s\033\\%s' "$mark" "$1" "$end" >&3; }

fail() { printf '%s\n' "$1" >&2; exit 1; }

in_container() {
  local container=gputui-$SLURM_JOB_ID options=() state
  state=$(docker inspect --type container --format '{{.State.Status}}' "$container" 2>&1)
  case $state in
    running) ;;
    created | *[Nn]'o such'*) fail "its container does not run yet" ;;
    exited | dead | removing) fail "its container has ended" ;;
    paused) fail "its container is paused" ;;
    *) fail "${state##*$'\n'}" ;;
  esac
  [[ -z $term ]] || options=(--tty "--env=TERM=$term")
  [[ -z $input ]] || options+=(--interactive)
  [[ -z $keys ]] || options+=("--detach-keys=$keys")
  report begin
  docker exec "${options[@]}" "$container" "$@" 3>&-
}

# Environment and directory are those of the batch script; a job without one has those of the step.
on_node() {
  local environment=() pid
  unset LC_ALL TZ SLURM_TIME_FORMAT SLURM_BITSTR_LEN
  pid=$(scontrol listpids "$SLURM_JOB_ID" 2>/dev/null | awk '$3 == "batch" && $4 == 0 {print $1; exit}')
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
if [[ $place == container ]]; then in_container "$@"; else on_node "$@"; fi
report "$?"
exit 0
