#!/bin/sh
# Run the Molecule scenario of every role that has one.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
for scenario in "$root"/roles/*/molecule/default/molecule.yml; do
  role=${scenario%/molecule/default/molecule.yml}
  echo "== molecule: ${role##*/}"
  (cd "$role" && "$root/tools/fresh-ansible-home.sh" molecule --base-config "$root/.config/molecule/config.yml" test)
done
