#!/bin/sh
# Brings back the NVIDIA driver of @HOST@, run at its console: no ssh, no network and no Python are needed.
# Made by gpu-provision on @MADE@ from the inventory's wish for this host.
#
#   sh FILE                looks, says what it found, then asks before each step, from the smallest on
#   sh FILE --look         looks only
#   sh FILE --dry-run      says what it would do, changes nothing
#   sh FILE -y             asks nothing (it never reboots by itself)
#   sh FILE --debs DIR     takes packages from a folder with .deb files (a USB stick, a mirror) instead of the network
#   sh FILE --purge        removes every trace of the driver by exact names first, then installs it
#
# A driver that the inventory leaves to others (MANAGED=no), or that works and came from outside apt, is left alone: then only
# dpkg, holds, apt's sources and the initramfs are mended.
# It stops as soon as the driver is right. What was there before is kept in /var/lib/provision/snapshots; once the host can
# be reached again, `provision rescue @HOST@ --undo` goes back to it. Its log is /var/log/gpu-provision/offline-*.log.
# Exit codes: 0 right, or right from the next boot on; 1 a step failed; 3 still broken; 5 refused or declined; 64 wrong usage.
set -u
umask 022
export LC_ALL=C LANGUAGE=C PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Nothing may stop and ask, or restart services by itself.
export DEBIAN_FRONTEND=noninteractive DEBIAN_PRIORITY=critical NEEDRESTART_SUSPEND=1 NEEDRESTART_MODE=l UCF_FORCE_CONFFOLD=1
