# --- helpers ----------------------------------------------------------------------------------------------------------

SNAPSHOTS=/var/lib/provision/snapshots
STAMP=$(date -u +%Y%m%dT%H%M%SZ)
LOG=/var/log/gpu-provision/offline-$STAMP.log
YES=no DRY=no LOOK=no PURGE=no DEBS='' SNAPSHOT='' WORK='' FAILED=no UPDATED=no DECLINED=no LOCAL_APT=no PURGED=no LEAVE=''

# Every Ubuntu has an awk; where only the link to it broke, or in an initramfs, its programs are called by their own names.
if ! command -v awk >/dev/null 2>&1; then
    AWK=''
    for awk_program in mawk gawk busybox; do
        if [ -z "$AWK" ] && command -v "$awk_program" >/dev/null 2>&1; then AWK=$awk_program; fi
    done
    awk() {
        case $AWK in
        busybox) busybox awk "$@" ;;
        '') echo "awk is not there: nothing can be read without it" >&2 && exit 64 ;;
        *) "$AWK" "$@" ;;
        esac
    }
fi
log() {
    if [ -w "${LOG%/*}" ] && [ "$DRY" = no ] && [ "$LOOK" = no ]; then printf '%s\n' "$*" >>"$LOG"; fi
}
say() {
    printf '%s\n' "$*"
    log "$*"
}
finding() { # CODE MESSAGE: the codes are those of `provision diagnose --explain CODE`
    say "  $1: $2"
    FOUND="$FOUND $1"
}
die() { # EXIT-CODE MESSAGE
    say "$2" >&2
    exit "$1"
}
# Run a command, or say that it would be run. What it prints goes to the screen and to the log.
run() {
    case $1 in
    apt_get) say "+ apt-get $(printf '%s\n' "$*" | cut -c 9-)" ;;
    *) say "+ $*" ;;
    esac
    if [ "$DRY" = yes ]; then return 0; fi
    "$@" >"$WORK/out" 2>&1 </dev/null
    run_rc=$?
    cat "$WORK/out"
    cat "$WORK/out" >>"$LOG"
    if [ "$run_rc" -ne 0 ]; then
        say "  this ended with exit code $run_rc"
        FAILED=yes
    fi
    return "$run_rc"
}
# Ask before a step. A step that is declined is not done; the next one is asked for all the same.
ask() {
    say ""
    say "$1"
    if [ "$YES" = yes ] || [ "$DRY" = yes ]; then return 0; fi
    printf 'Do this? [y/N] '
    IFS= read -r ask_answer || ask_answer=''
    case $ask_answer in
    y | Y | yes | Yes) return 0 ;;
    esac
    say "  left out"
    DECLINED=yes
    return 1
}
apt_get() {
    if [ "$LOCAL_APT" = yes ]; then
        set -- -o "Dir::Etc::sourcelist=$WORK/sources.list" -o "Dir::Etc::sourceparts=-" -o "Dir::State::lists=$WORK/lists" \
            -o "Dir::Cache::pkgcache=" -o "Dir::Cache::srcpkgcache=" -o APT::Sandbox::User=root "$@"
    fi
    apt-get @APT_OPTIONS@ -o DPkg::Lock::Timeout=600 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 "$@"
}
# Names from stdin that belong to the driver: never a kernel, the container toolkit, CUDA or the desktop.
only_driver() {
    grep -E "$DRIVER_RE" | grep -Ev "$FOREIGN_RE"
}
is_driver() {
    printf '%s\n' "$1" | only_driver >/dev/null
}
# dpkg's own record, a row a line: name, architecture, version, status. Also rows of packages that are not there.
rows() {
    awk -F ': ' '
        /^Package: / { name = $2 } /^Status: / { status = $2 } /^Architecture: / { arch = $2 } /^Version: / { version = $2 }
        /^$/ { if (name != "") printf "%s\t%s\t%s\t%s\n", name, arch, version, status; name = status = arch = version = "" }
        END { if (name != "") printf "%s\t%s\t%s\t%s\n", name, arch, version, status }
    ' /var/lib/dpkg/status
}
# The driver's rows among them: one pass, whatever the number of packages.
driver_rows() {
    rows >"$WORK/rows"
    cut -f 1 "$WORK/rows" | only_driver | sort -u >"$WORK/names"
    awk -F '\t' -v names="$WORK/names" 'BEGIN { while ((getline name <names) > 0) ours[name] = 1 } $1 in ours' "$WORK/rows"
}
# Names of the driver's packages of which something is on the disk.
driver_packages() {
    if [ "$PURGED" = yes ]; then return 0; fi # a question about the time after a purge
    driver_rows | awk -F '\t' '$4 !~ / (not-installed|config-files)$/ { print $1 }' | sort -u
}
# Those of them that must be of one version: no companions, no firmware of the version before, no modules of kernels.
version_packages() {
    driver_packages | grep -Ev "$LOOSE_RE" | grep -v '^linux-'
}
# Those that make a driver. Companions (libxnvctrl0, nvidia-settings) and the fabric's programs alone are none.
core_packages() {
    driver_packages | grep -Ev "$LOOSE_RE" | grep -Ev "$FABRIC_RE"
}
words() { # lines to words
    tr '\n' ' ' | sed 's/ *$//'
}
# A lock of dpkg is waited for, never removed. /proc/locks names files by their inode.
wait_for_dpkg() {
    wait_left=120
    while [ "$wait_left" -gt 0 ]; do
        wait_busy=no
        for wait_file in /var/lib/dpkg/lock-frontend /var/lib/dpkg/lock; do
            if [ -e "$wait_file" ] && grep -q ":$(stat -c %i "$wait_file") " /proc/locks 2>/dev/null; then wait_busy=yes; fi
        done
        if [ "$wait_busy" = no ]; then return 0; fi
        if [ "$wait_left" -eq 120 ]; then say "  another program holds dpkg's lock: waiting for it (10 minutes at most)"; fi
        sleep 5
        wait_left=$((wait_left - 1))
    done
    die 5 "apt.locked: dpkg's lock is still held; let that program end, then run this again. Nothing was changed by this step"
}
