#!/usr/bin/env bash
# The README's test line as on a bare Debian: python3, python3-venv and the required packages, for a user who is not root.
# Arguments are added to the line. Needs root and Debian; changes nothing outside its namespaces and a directory in /tmp.
#
#   ACCOUNT=root      as root                    UMASK=077          with that umask
#   PLACE='my gpütui' in a directory so named    PYTHON=/opt/3.13   with the Python below that directory
set -euo pipefail

if [[ ${1-} != --inside ]]; then
    ((EUID == 0)) || { echo "$0 needs root, to hide programs and to become another user" >&2; exit 2; }
    work=$(mktemp -d /tmp/gputui-bare-XXXXXX)
    trap '[[ ! -e /proc/$child ]] || kill -KILL "$child"; rm -rf "$work"' EXIT
    unshare --mount --pid --fork --kill-child --mount-proc --propagation private "$0" --inside "$work" "$@" &
    child=$! # which ignores the signals that end this script
    wait "$child"
    exit
fi
work=$2
shift 2
top=$(cd "$(dirname "$0")/../.." && pwd)
readme=$(sed -n '/^python3 -m venv .*pytest/p' "$top/README.md")
[[ $readme ]] || { echo "the README has no test line" >&2; exit 1; }

# The programs of the packages that every Debian has, and Python: all others are hidden below.
mapfile -t packages < <(dpkg-query -W -f '${Priority} ${Package}\n' | sed -n 's/^required //p')
packages+=(python3 python3-minimal "$(readlink /usr/bin/python3)"{,-minimal})
mkdir "$work"/{bin,sbin,none}
for folder in bin sbin; do
    dpkg -L "${packages[@]}" 2>/dev/null | sed -nE "s#^(/usr)?/$folder/([^/]+)\$#/usr/$folder/\2#p" |
        sort -u | xargs cp -a -t "$work/$folder" 2>/dev/null || true
done
cp -a /usr/bin/awk "$work/bin" # of no package: an alternative

# An ordinary user, with a home. The line is run in a copy of the files that git tracks.
account=${ACCOUNT:-ordinary}
home=$([[ $account == root ]] && echo "$work/root" || echo "$work/home")
place=$home/${PLACE:-gputui}
mkdir -p "$place"
git -C "$top" -c safe.directory="$top" ls-files -z | tar -C "$top" --ignore-failed-read --null -cf - -T - 2>/dev/null | tar -xf - -C "$place" --no-same-owner
# All of /etc, since a useradd outside replaces files, and the kernel then takes mounts off them.
cp -a /etc "$work/etc"
for file in passwd group; do
    sed '/^root:/d;/:47123:/d' "/etc/$file" > "$work/etc/$file"
done
printf 'root:x:0:0:root:%s:/bin/bash\nordinary:x:47123:47123::%s:/bin/bash\n' "$home" "$home" >> "$work/etc/passwd"
printf 'root:x:0:\nordinary:x:47123:\n' >> "$work/etc/group"
chmod 711 "$work"
[[ $account == root ]] || chown -R 47123:47123 "$home"

mount --bind "$work/etc" /etc
for folder in local/bin local/sbin; do mount --bind "$work/none" "/usr/$folder"; done
for folder in bin sbin; do mount --bind "$work/$folder" "/usr/$folder"; done

cd "$place"
umask "${UMASK:-022}"
(($# == 0)) || readme+=$(printf ' %q' "$@")
mapfile -t kept < <(env | grep -E '^(PIP_|SSL_CERT_|GPUTUI_TEST_LANE=|(https?|all|no)_proxy=|(HTTPS?|ALL|NO)_PROXY=)')
kept+=("HOME=$home" "USER=$account" "LOGNAME=$account" LANG=C.UTF-8)
kept+=("PATH=${PYTHON:+$PYTHON/bin:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
become=(setpriv --reuid "$account" --regid "$account" --init-groups --inh-caps=-all)
exec "${become[@]}" env -i "${kept[@]}" bash -c "$readme"
