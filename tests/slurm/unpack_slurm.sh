#!/bin/bash
# unpack_slurm.sh DIR [SUITE]: unpacks the Slurm of a Debian suite (trixie: 24.11) into DIR, with slurmdbd and MariaDB beside.
# Needs network and 300 MB; takes about half a minute. Installs nothing. DIR must stay where it is. Then:
#   GPUTUI_TEST_SLURM=DIR .venv/bin/pytest -q tests/slurm
# Its programs run with the libraries of their own suite, and their plugins are in DIR/plugins.
set -euo pipefail
suite=${2:-trixie} with=
[[ $suite == bookworm ]] || with=bookworm
target=$(mkdir -p "$1" && cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat > debian.sources <<SOURCES
Types: deb
URIs: http://deb.debian.org/debian
Suites: $suite $with
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
SOURCES
mkdir -p lists/partial archives/partial && touch status
# no status file: the libraries that this host has are fetched too
apt=(-q -o "Dir::Etc::sourcelist=$work/debian.sources" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=$work/lists"
  -o "Dir::State::status=$work/status" -o "Dir::Cache::archives=$work/archives" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=
  -o APT::Sandbox::User=root)
apt-get "${apt[@]}" update
apt-get "${apt[@]}" install --yes --download-only --no-install-recommends \
  slurmctld slurmd slurm-client slurmdbd mariadb-server-core patchelf
for package in archives/*.deb; do dpkg -x "$package" root; done
if [[ -n $with ]]; then  # slurmdbd gets no answers through version 3.4.10 of this library
  apt-get "${apt[@]}" download "libmariadb3/$with"
  dpkg -x libmariadb3_*.deb root
fi

rm -rf "${target:?}"/{bin,sbin,lib,plugins,share}
mkdir -p "$target"/{bin,sbin,lib,plugins}
for program in sacct sacctmgr salloc sattach sbatch sbcast scancel scontrol sdiag sinfo sprio squeue sreport srun sshare sstat; do
  cp "root/usr/bin/$program" "$target/bin/"
done
for program in slurmctld slurmd slurmstepd slurmdbd; do
  from=root/usr/sbin/$program
  [[ ! -e $from-wlm ]] || from+=-wlm  # else a link by the name is broken outside of root
  cp "$from" "$target/sbin/$program"
done
cp root/usr/sbin/mariadbd "$target/sbin/"
share=root/usr/share/mariadb
[[ -e $share ]] || share=root/usr/share/mysql
cp -r "$share" "$target/share"
find root -regex 'root/\(usr/\)?lib/x86_64-linux-gnu/[^/]*\.so[^/]*' -exec cp -a -t "$target/lib" {} +
cp -a root/usr/lib/x86_64-linux-gnu/slurm-wlm/*.so "$target/plugins/"

loader=$target/lib/ld-linux-x86-64.so.2
patch=("$loader" --library-path "$target/lib" root/usr/bin/patchelf)
for program in "$target"/bin/* "$target"/sbin/*; do
  "${patch[@]}" --set-interpreter "$loader" "$program"
  "${patch[@]}" --force-rpath --set-rpath "$target/plugins:$target/lib" "$program"
done
for library in "$target"/plugins/*.so; do
  "${patch[@]}" --force-rpath --set-rpath "$target/plugins:$target/lib" "$library"
done
ls "$target"/{bin,sbin}; "$target/sbin/slurmctld" -V
