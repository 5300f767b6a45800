# --- in the end -------------------------------------------------------------------------------------------------------

# A module that is on the disk, and nothing in its way: no reboot is needed.
load_module() {
    if [ -n "$LEAVE$LOADED" ] || [ "$NOUVEAU" = yes ] || [ "$RUNNING" != "$NEXT" ]; then return 0; fi
    ask "0. Load the module now (modprobe nvidia)." || return 0
    run modprobe nvidia
}
conclude() {
    read_host
    hold_again
    if right_on_disk && [ "$DRY" = no ] && [ "$GPUS" != 0 ]; then load_module; fi
    read_host
    mark
    say ""
    if [ "$DRY" = yes ]; then
        say "Nothing was changed."
        exit 0
    fi
    tell
    say ""
    if right_now; then
        finished
        say "The driver is right: $LIBRARY."
        say "Next: provision verify -l $HOST, from where the host can be reached; provision apply for all the rest."
        exit 0
    fi
    # Two drivers over each other are not right, whatever versions they happen to have.
    if right_on_disk && [ -z "${LEAVE:+${OUTSIDE:+$CORE}}" ]; then
        finished
        say "The driver is right from the next boot on: $LIBRARY with kernel $NEXT."
        say "Next: systemctl reboot, then provision verify -l $HOST."
        exit 0
    fi
    say "It is still broken."
    if [ -n "$LEAVE" ]; then
        say "The driver was left alone: $LEAVE"
        if [ "$MANAGED" = yes ]; then exit 5; fi
    elif [ "$PURGE" = no ]; then
        say "Next: sh $0 --purge removes every trace of the driver by exact names, then installs it."
    else
        say "Next: a branch that apt has, in the line SERIES= of this script; packages by --debs; or provision apply -l $HOST."
    fi
    if [ -n "$SNAPSHOT" ]; then say "What was there before: $SNAPSHOT (provision rescue $HOST --undo goes back to it)."; fi
    if [ "$DECLINED" = yes ]; then exit 5; fi
    if [ "$FAILED" = yes ]; then exit 1; fi
    exit 3
}
finished() {
    if [ -n "$SNAPSHOT" ]; then rm -f "$SNAPSHOT/unfinished"; fi
}

main() {
    while [ $# -gt 0 ]; do
        case $1 in
        -y | --yes) YES=yes ;;
        -n | --dry-run) DRY=yes ;;
        --look) LOOK=yes ;;
        --purge) PURGE=yes ;;
        --debs)
            if [ $# -lt 2 ] || [ ! -d "$2" ]; then die 64 "--debs needs a folder with .deb files"; fi
            DEBS=$(cd "$2" && pwd)
            shift
            ;;
        -h | --help)
            sed -n -e '2,/^set -u/p' "$0" | sed -e '/^set -u/d' -e 's/^# \{0,1\}//'
            exit 0
            ;;
        *) die 64 "unknown option $1; --help tells which there are" ;;
        esac
        shift
    done
    if [ "$(id -u)" -ne 0 ]; then die 64 "this must be run by root: sudo sh $0"; fi
    if [ ! -e /var/lib/dpkg/status ]; then die 64 "this is no system with dpkg"; fi
    WORK=$(mktemp -d /var/tmp/gpu-provision-offline.XXXXXX) || die 1 "no temporary folder can be made in /var/tmp: is the disk full?"
    trap 'rm -rf "$WORK"' EXIT
    trap 'exit 130' HUP INT TERM
    if [ "$DRY" = no ] && [ "$LOOK" = no ]; then mkdir -p "${LOG%/*}"; fi
    read_host
    HELD=$(held_before)
    SERIES_BEFORE=$(series_before)
    BEFORE=$(packages_before)
    if [ "$MANAGED" = no ]; then
        LEAVE="the inventory says nvidia_driver_manage: false, so this host's driver is not ours to install, move or remove"
    elif [ -n "$OUTSIDE" ] && [ "$PURGE" = no ]; then
        LEAVE="it came from outside apt ($OUTSIDE), and packages beside it would break both"
        if [ -z "$(elsewhere)" ]; then LEAVE="$LEAVE; --purge removes it, then installs one"; fi
    fi
    tell
    if [ -n "$LEAVE" ]; then say "The driver is left alone: $LEAVE"; fi
    if [ "$LOOK" = yes ]; then
        if right_now; then exit 0; fi
        exit 3
    fi
    if [ "$GPUS" = 0 ]; then die 3 "Nothing to repair here: there is no GPU that a driver could drive."; fi
    if [ "$PURGE" = no ] && [ -z "$UNFINISHED$ABSENT_HOLDS$SOURCES" ] && ! initramfs_missing && right_now; then
        say "The driver is right: nothing to do."
        exit 0
    fi
    if [ "$PURGE" = yes ]; then
        if [ -n "$LEAVE" ]; then die 5 "refused: $LEAVE"; fi
        main_elsewhere=$(elsewhere | words)
        if [ -n "$main_elsewhere" ]; then
            die 5 "refused: a driver from outside apt lies where --purge removes nothing ($main_elsewhere): take it away by what brought it"
        fi
    fi
    level_dpkg
    read_host
    level_holds
    level_sources
    read_host
    if [ -n "$LEAVE" ]; then
        level_initramfs
    elif [ "$PURGE" = yes ]; then
        if level_purge; then level_realign; fi
    else
        if ! right_on_disk; then
            level_module
            read_host
        fi
        if ! right_on_disk; then level_realign; fi
    fi
    read_host
    if [ -z "$LEAVE" ] && { [ "$PURGE" = no ] || [ -n "$LIBRARY" ]; }; then
        level_nouveau
        level_initramfs
    fi
    conclude
}

main "$@"
