#!/bin/sh
# Run the Molecule scenario of every role that has one.
set -eu
for scenario in roles/*/molecule/default/molecule.yml; do
  role=${scenario%/molecule/default/molecule.yml}
  echo "== molecule: $role"
  (cd "$role" && molecule --base-config ../../.config/molecule/config.yml test)
done
