#!/bin/sh
# molecule.sh [ROLE…]: run the Molecule scenarios of these roles, or of every role that has one.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
if [ $# = 0 ]; then
  for scenario in "$root"/roles/*/molecule/default/molecule.yml; do
    role=${scenario%/molecule/default/molecule.yml}
    set -- "$@" "${role##*/}"
  done
fi
for role; do
  echo "== molecule: $role"
  (cd "$root/roles/$role" && "$root/tools/fresh-ansible-home.sh" molecule --base-config "$root/.config/molecule/config.yml" test)
done
