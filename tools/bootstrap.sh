#!/bin/sh
# bootstrap.sh VENV: make the virtual environment with everything that tests and demo need.
# What is missing on the machine is installed through apt, with sudo where not root, and said first.
set -eu
venv=$1

pick_python() {
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "error: no Python 3.11 to 3.13 here" >&2
  echo "hint: install one (Debian 12 and Ubuntu 24.04 have it: apt-get install python3 python3-venv), or set PYTHON=/path/to/python3" >&2
  exit 1
}

install_packages() {
  sudo=
  [ "$(id -u)" = 0 ] || sudo=sudo
  echo "== installing with apt: $*" >&2
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

python=$(pick_python)
if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
  install_packages "python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
fi
echo "== $venv: $("$python" --version), ansible-core, molecule, pytest, linters" >&2
"$python" -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check --editable '.[dev]'
touch "$venv/.ready"
