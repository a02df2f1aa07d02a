#!/bin/sh
# gputui: removes the containers of an ended Slurm job from this node.
#
# Slurm runs it as root on each node after a job: Epilog=/etc/slurm/epilog.d/* in slurm.conf. A container is no process
# of its job, so it would stay where the batch script was killed before it could stop it: after a cancelled job that
# did not end in time, and on a node that was cut off and came back. Containers of jobs that have no process of Slurm's
# here any more are removed too, whatever became of these jobs.
#
# It always succeeds, since Slurm drains a node whose epilog fails. It asks nothing but the node's own engine.

PATH=${PATH:+$PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
unset DOCKER_HOST DOCKER_CONTEXT
ended=$SLURM_JOB_ID

say() { logger -t gputui-epilog -- "$*" 2>/dev/null || echo "gputui-epilog: $*"; }

engine() { timeout -k 5 60 docker "$@" </dev/null; }

# Containers that a batch script of gputui made, as lines `ID JOB`. Those of other queues on this node lack the key.
containers() {
  engine ps --all --no-trunc --filter label=gputui.key --filter label=gputui.job --format '{{.ID}} {{.Label "gputui.job"}}'
}

# Whether Slurm has a process for this job here. Where that cannot be told, it is assumed.
runs_here() {
  [ "$1" != "$ended" ] || return 1
  command -v pgrep >/dev/null || return 0
  pgrep -f "^slurmstepd: \[(StepId=)?$1[.+]" >/dev/null
}

remove() {
  if said=$(engine rm --force --volumes "$1" 2>&1); then
    say "removed container $1 of job $2"
  else
    case $said in
      *'No such container'* | *'already in progress'*) ;;
      *) say "container $1 of job $2 cannot be removed: $said" ;;
    esac
  fi
}

command -v docker >/dev/null || exit 0
if found=$(containers 2>&1); then
  printf '%s\n' "$found" | while read -r id job; do
    case $job in
      '' | *[!0-9]*) ;;
      *) runs_here "$job" || remove "$id" "$job" ;;
    esac
  done
else
  say "Docker does not answer: $found"
fi
exit 0
