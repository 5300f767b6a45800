#!/bin/sh
# Unit tests on every supported controller Python that this machine has.
set -eu
ran=
for version in 3.11 3.12 3.13; do
  python=$(command -v "python$version" || true)
  if [ -z "$python" ] && command -v pyenv >/dev/null; then
    # pyenv keeps its versions off PATH unless one is chosen.
    for candidate in "$(pyenv root)"/versions/"$version".*/bin/python3; do
      [ -x "$candidate" ] && python=$candidate
    done
  fi
  if [ -z "$python" ]; then
    echo "== Python $version: not installed here, not tested"
    continue
  fi
  [ -e ".venv-$version/.ready" ] || PYTHON=$python tools/bootstrap.sh ".venv-$version"
  echo "== Python $version, $(".venv-$version/bin/ansible" --version | head -1)"
  HYPOTHESIS_PROFILE=quick ".venv-$version/bin/python" -m pytest tests/unit
  ran="$ran $version"
done
[ -n "$ran" ] || { echo "error: no supported Python found" >&2; exit 1; }
echo "== passed on:$ran"
