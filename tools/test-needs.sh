#!/bin/sh
# What the system tests use besides Python: an ssh server's program and sudo. In CI they are installed; on your own machine
# nothing is, since an ssh server would start there: the tests that need it are skipped and say so.
set -eu
[ "${CI:-}" = true ] || exit 0
need=
command -v /usr/sbin/sshd >/dev/null || need="$need openssh-server"
command -v ssh >/dev/null || need="$need openssh-client"
command -v sudo >/dev/null || need="$need sudo"
[ -n "$need" ] || exit 0
[ "$(id -u)" = 0 ] || { echo "not root: $need not installed, their tests are skipped" >&2; exit 0; }
echo "== installing with apt:$need" >&2
apt-get update -qq
# shellcheck disable=SC2086  # a list of package names
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $need
