
say() { printf 'gputui: %s\n' "$*" >&2; }

# End the job, with the code of a cause and a sentence for its record and its output.
fail() { cause="$1 $2"; say "$2"; exit "${3:-125}"; }

# Run docker in the background: bash handles signals only between commands, and while it waits for children.
engine() {
  docker "$@" &
  await $!
}

# Memory that Slurm gave the job, as an option; nothing if it limits none.
allocated_memory() {
  if [[ ${SLURM_MEM_PER_NODE:-0} -gt 0 ]]; then
    echo "--memory=${SLURM_MEM_PER_NODE}m"
  elif [[ ${SLURM_MEM_PER_CPU:-0} -gt 0 ]]; then
    echo "--memory=$(( SLURM_MEM_PER_CPU * SLURM_CPUS_ON_NODE ))m"
  fi
}

# State of the container: `running`, `exited CODE`, …; `gone`; or nothing, if the engine does not answer.
state() {
  local answer
  if answer=$(docker inspect --type container --format '{{.State.Status}} {{.State.ExitCode}}' "$container" 2>&1); then
    echo "$answer"
  elif [[ $answer == *[Nn]'o such'* ]]; then
    echo gone
  fi
}

# Stop the container by its own signal; the engine kills it after the grace period.
stop_container() {
  ! is_alive "$stopper" || return
  docker stop "$container" >/dev/null 2>&1 &
  stopper=$!
}

on_stop() {
  stopping=yes
  if [[ -n $started ]]; then
    stop_container
  elif is_alive "$starter"; then
    kill "$starter"
  fi
}

on_signal() {
  [[ -n $started ]] || return
  docker kill --signal="$1" "$container" >/dev/null 2>&1 &
}

on_suspend() {
  [[ -n $started ]] || return
  trap on_continue WINCH
  docker pause "$container" >/dev/null 2>&1 &
}

on_continue() {
  trap 'on_signal WINCH' WINCH
  docker unpause "$container" >/dev/null 2>&1 &
}

on_exit() {
  [[ -z $record ]] || note end "$1${cause:+ $cause}"
  remove_container
}

# Remove the container and its files. An engine whose client was killed may still be making it.
remove_container() {
  local tries
  rm -f -- "${files[@]}"
  rmdir -- "$claim" 2>/dev/null
  [[ -z $unreached ]] || return
  for tries in {1..10}; do
    case $(state) in
      gone) [[ -n $uncertain ]] || return ;;
      '') ;;
      *)
        uncertain=''
        engine rm --force --volumes "$container" >/dev/null 2>&1
        continue
        ;;
    esac
    sleep 0.5
  done
}

# Make the container by `docker create`, or by `docker run --detach`, which starts it too.
make_container() {
  local code
  uncertain=yes
  (
    export_environment
    exec docker "$@" --name="$container" --env-file=<(printf '%s\n' "${environment[@]}") "${options[@]}" \
      -- "$image" "${command[@]}"
  ) >/dev/null &
  starter=$!
  await "$starter"
  code=$?
  (( code > 128 )) || [[ -n $stopping && $code != 0 ]] || uncertain=''
  return "$code"
}

# Make the container, in place of one that another job or run left under its name.
make_own_container() {
  local code
  make_container "$@"
  code=$?
  if (( code != 125 )) || [[ -n $stopping ]] || ! is_left "$(state)"; then return "$code"; fi
  say "an old container $container is removed"
  engine rm --force --volumes "$container" >/dev/null 2>&1
  make_container "$@"
}

# Tell by its state whether a container was made before this run: one that failed to start now has the exit code of that.
is_left() { [[ -n $1 && $1 != gone && ( $1 != created* || $1 == 'created 0' ) ]]; }

# Make and start the container.
run_container() {
  local code
  make_own_container run --detach
  code=$?
  started=yes
  (( code )) || return
  [[ -n $stopping ]] || (( code > 128 )) || fail_start "$code"
  case $(state) in gone | '' | created*) exit "$(( ${#stopping} ? 143 : 125 ))" ;; esac
}

# Start the container that was made.
start_container() {
  local code
  engine start "$container" >/dev/null
  code=$?
  started=yes
  (( code )) && [[ -z $stopping ]] || return
  fail_start 125
}

# Set `complaint` to what docker's client said last, as one line: it is at the end of the job's output.
read_complaint() {
  local line
  complaint=''
  [[ -f /dev/stderr ]] || return
  while IFS= read -r line; do
    case $line in
      '' | 'See '*docker* | 'Run '*docker* | 'Error: failed to start'*) ;;
      *docker:\ * | Error\ * | [Pp]ermission\ denied* | Cannot\ connect*) complaint=$line ;;
      *) complaint+=${complaint:+ $line} ;;
    esac
  done < <(tail -c 4096 /dev/stderr)
  complaint=${complaint##*docker: } complaint=${complaint#Error response from daemon: }
  complaint=${complaint#*runc create failed: }
}

# End a job whose container could not be made or started: by this exit code, or the one that `docker run` has for that.
fail_start() {
  local now code=$1 place=${SLURMD_NODENAME:-this node} complaint kind what
  now=$(state)
  [[ $now != created* ]] || (( ${now##* } < 126 || ${now##* } > 128 )) || code=${now##* }
  read_complaint
  what=${complaint//"$image"/}
  case ${what,,} in
    *'permission denied'*docker*) unreached=yes kind=NotAllowed what="this user may not use Docker on $place" ;;
    *'connect to the docker'*) unreached=yes kind=RuntimeUnavailable what="Docker does not run on $place" ;;
    'command not found' | 'not found') unreached=yes kind=RuntimeUnavailable what="$place has no Docker" ;;
    *'no space left'* | *'quota exceeded'*) kind=DiskFull what="Docker's disk on $place is full" ;;
    *'bind source'* | *'mount config'*) kind=BadSpec what="its mounts are not possible on $place" ;;
    *unknown*runtime*) kind=BadSpec what="Docker on $place has no such runtime" ;;
    *'too many requests'* | *toomanyrequests* | *'rate limit'*) kind=PullFailed what="$image could not be pulled" ;;
    *'no such image'* | *manifest* | *'pull access denied'* | *'resource is denied'* | *'name unknown'* | *unauthorized* \
      | *'repository does not exist'* | *'invalid reference'* | *'resolve reference'*'not found'*)
      kind=ImageNotFound what="there is no image $image for this user on $place" ;;
    *nvidia-c* | *'nvml error'* | *'device driver'* | *'cdi device'* | */dev/nvidia*)
      kind=GpuSetupFailed what="its GPUs could not be given to it on $place" ;;
    *'executable file not found'* | *exec:*'no such file'*) kind=CommandNotFound what="its image has no such command" ;;
    *exec:*'permission denied'* | *exec:*directory* | *'exec format'*)
      kind=CommandNotExecutable what="its command cannot be run" ;;
    *)
      kind=RuntimeError what="Docker on $place could not start its container"
      [[ -n $(docker image inspect --format . -- "$image" 2>/dev/null) ]] || kind=PullFailed what="$image could not be pulled" ;;
  esac
  [[ -z $unreached ]] || code=125
  fail "$kind" "$what${complaint:+: ${complaint:0:400}}" "$code"
}

# Start a container with a terminal or input: whoever attaches first does that, so that no output is lost, and this script
# if nobody comes. A claim that is not used within half a minute is void.
start_attached() {
  local now= tries
  for tries in {1..100}; do
    [[ -z $stopping ]] || exit 143
    [[ ! -d $claim ]] || break
    sleep 0.1 &
    wait $!
  done
  if ! mkdir "$claim" 2>/dev/null; then
    for tries in {1..150}; do
      [[ -z $stopping ]] || exit 143
      now=$(state)
      case $now in
        'created 0' | '') ;;
        created*) exit "${now##* }" ;;
        *) started=yes; return ;;
      esac
      sleep 0.2 &
      wait $!
    done
  fi
  start_container
}

# Copy the container's output until it ends. The engine's client may be killed: then the rest is copied by another one.
copy_output() {
  local copied=0 report tries
  trap '' HUP INT QUIT USR1 USR2 ALRM TERM
  exec 3>&1
  for tries in {1..20}; do
    if (( copied )); then
      report=$(set -o pipefail; docker logs --follow "$container" 2>&1 | tail -c "+$(( copied + 1 ))" | counted)
    else
      report=$(set -o pipefail; docker logs --follow "$container" 2>&1 | counted)
    fi && return
    report=${report##*$'\n'}
    copied=$(( copied + ${report%% *} ))
    sleep 0.5
  done
}

# Copy to the job's output, and print how many bytes.
counted() { LC_ALL=C dd bs=64K 2>&1 >&3; }

# Tell that the container has failed for want of memory, if it has.
tell_of_memory() {
  local said why='the memory of its node is used up'
  said=$(docker inspect --type container --format '{{.State.OOMKilled}} {{.HostConfig.Memory}}' "$container" 2>/dev/null)
  [[ $said == true* ]] || return
  (( ! ${said##* } )) || why="over its memory limit of $(( ${said##* } / 1048576 )) MiB"
  cause="OutOfMemory the kernel ended it: $why"
}

# Wait until the container has ended, and return its exit code.
wait_for_end() {
  local now
  while :; do
    now=$(state)
    case ${now%% *} in
      exited | dead)
        (( ! ${now##* } )) || tell_of_memory
        return "${now##* }"
        ;;
      gone | removing) fail ContainerLost "something else removed the container" 137 ;;
      created) [[ -z $stopping ]] || return 143 ;;
    esac
    [[ -z $stopping ]] || stop_container
    if [[ -z $now ]]; then
      sleep 1 &
      wait $!
      continue
    fi
    if ! is_alive "$waiter"; then
      docker wait "$container" >/dev/null 2>&1 &
      waiter=$!
    fi
    wait "$waiter"
  done
}

[[ -n $HOME ]] || export HOME=~
PATH=${PATH:+$PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
container=gputui-$SLURM_JOB_ID claim=/tmp/gputui-$SLURM_JOB_ID.start
cause='' files=() stopping='' started='' uncertain='' unreached='' starter='' stopper='' waiter=''

# Slurm signals this shell alone, or all processes of the job when it cancels the job or ends its time. So each docker
# command may be killed, and only the container's state counts.
trap on_stop TERM INT
for signal in HUP QUIT USR1 USR2 ALRM WINCH; do
  # shellcheck disable=SC2064
  trap "on_signal $signal" "$signal"
done
trap 'on_signal "${warning:-URG}"' URG
# A paused container continues on WINCH, not on CONT: Slurm sends CONT before TERM to a job that it cancels, and a bash that
# traps CONT mostly loses the signal after it.
trap on_suspend TSTP
trap 'on_exit "$?"' EXIT

uuids=''
if (( gpus )); then
  gpu_uuids && [[ -n $uuids ]] || fail GpuSetupFailed "nvidia-smi does not list the GPUs that Slurm chose: ${SLURM_JOB_GPUS:-none}"
fi
set_options
for profile in "${profiles[@]}"; do
  file=$(mktemp) && printf '%s' "$profile" >"$file" || fail DiskFull "no temporary file can be written"
  files+=("$file")
  options+=("--security-opt=seccomp=$file")
done

if (( ${SLURM_RESTART_COUNT:-0} )); then  # a run of this job before it was requeued may have left its container
  [[ $(state) == gone ]] || engine rm --force --volumes "$container" >/dev/null 2>&1
fi
[[ -z $stopping ]] || exit 143
if (( attached )); then
  rmdir -- "$claim" 2>/dev/null
  make_own_container create || { [[ -z $stopping ]] && fail_start 125; exit 143; }
  [[ -z $stopping ]] || exit 143
  start_attached
else
  run_container
fi
(( ! ${#files[@]} )) || rm -f -- "${files[@]}"
copy_output &
copier=$!
wait_for_end
code=$?
await "$copier"
[[ -z $cause ]] || say "${cause#* }"
exit "$code"
