#!/bin/sh
# fresh-ansible-home.sh COMMAND...: run it with an ANSIBLE_HOME of its own, emptied first.
# ansible-lint and molecule install this collection there once and look at that copy ever after: it must not be an old one.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
export ANSIBLE_HOME="$root/.cache/ansible"
rm -rf "$ANSIBLE_HOME"
mkdir -p "$ANSIBLE_HOME"
exec "$@"
