#!/bin/sh
# What the system tests use besides Python: an ssh server's program, sudo, and shells, a module system and a compiler for
# the environment of CUDA, a browser. In CI they are installed; on your own machine nothing is, since an ssh server would start there:
# the tests that need it are skipped and say so.
set -eu
[ "${CI:-}" = true ] || exit 0
need=
command -v /usr/sbin/sshd >/dev/null || need="$need openssh-server"
command -v ssh >/dev/null || need="$need openssh-client"
command -v sudo >/dev/null || need="$need sudo"
for shell in dash bash zsh fish tcsh mksh yash busybox; do
    command -v "$shell" >/dev/null || need="$need $shell"
done
# What we read ourselves is held against these.
command -v gpg >/dev/null || need="$need gnupg"
command -v modinfo >/dev/null || need="$need kmod"
command -v zstd >/dev/null || need="$need zstd"
command -v gcc >/dev/null || need="$need gcc libc6-dev"
command -v ksh93 >/dev/null || need="$need ksh"
command -v bsd-csh >/dev/null || need="$need csh"
# The page of report is shown to it; Ubuntu has Chromium as a snap alone, and there the tests are skipped.
command -v chromium >/dev/null || command -v google-chrome >/dev/null || ! grep -q '^ID=debian' /etc/os-release || need="$need chromium"
# Environment Modules cannot be installed beside Lmod; the test unpacks its package, and uses Lmod's Tcl.
[ -e /usr/share/lmod/lmod/init/bash ] || need="$need lmod"
[ -n "$need" ] || exit 0
[ "$(id -u)" = 0 ] || { echo "not root: $need not installed, their tests are skipped" >&2; exit 0; }
echo "== installing with apt:$need" >&2
apt-get update -qq
# shellcheck disable=SC2086  # a list of package names
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $need
