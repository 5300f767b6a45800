# --- purge ------------------------------------------------------------------------------------------------------------

owned() { # dpkg may know a path from before /usr was merged
    dpkg-query -S "$1" >/dev/null 2>&1 && return 0
    case $1 in
    /usr/*) dpkg-query -S "${1#/usr}" >/dev/null 2>&1 ;;
    *) dpkg-query -S "/usr$1" >/dev/null 2>&1 ;;
    esac
}
# Those of the paths on stdin that are there, are no mounts, and that no package owns: dpkg's lists in one pass.
unowned() {
    while IFS= read -r unowned_path; do
        if [ -e "$unowned_path" ] || [ -L "$unowned_path" ]; then
            if ! grep -qF " $unowned_path " /proc/self/mountinfo; then printf '%s\n' "$unowned_path"; fi
        fi
    done >"$WORK/paths"
    # dpkg may know a path from before /usr was merged, or after.
    sed -e 'p' -e 's,^/usr/,/,' -e 't' -e 's,^/,/usr/,' "$WORK/paths" >"$WORK/spellings"
    grep -hFx -f "$WORK/spellings" /var/lib/dpkg/info/*.list | sed 's,^/usr/,/,' | sort -u >"$WORK/owned"
    awk -v owned="$WORK/owned" 'BEGIN { while ((getline path <owned) > 0) theirs[path] = 1 }
        { path = $0; sub("^/usr/", "/", path); if (!(path in theirs)) print }' "$WORK/paths"
}
# Files that a driver leaves and no package owns: exact names in known places, as plugins/module_utils/rescue/traces.py.
strays() {
    {
        for strays_folder in $LIBRARY_FOLDERS; do
            if [ -d "$strays_folder" ] && [ ! -L "$strays_folder" ]; then
                find "$strays_folder" -maxdepth 1 ! -type d | grep -E "/($LIBRARY_RE)\$" | grep -v '/libnvidia-container'
                find "$strays_folder" -mindepth 2 -maxdepth 4 ! -type d | grep -E "$INNER_RE"
            fi
        done
        for strays_name in $BINARIES; do printf '%s\n' "/usr/bin/$strays_name"; done
        for strays_name in $UNITS; do printf '%s\n' "/usr/lib/systemd/system/$strays_name"; done
        for strays_name in $TRACE_FILES; do printf '%s\n' "$strays_name"; done
        find /lib/modules/ -name 'nvidia*.ko*' ! -type d | grep -E "$MODULE_RE"
    } | unowned
}
stray_folders() {
    for stray_folder in $TRACE_TREES /usr/lib/firmware/nvidia/[0-9][0-9][0-9].* /usr/src/nvidia-[0-9][0-9][0-9].* \
        /usr/src/nvidia-srv-[0-9][0-9][0-9].*; do
        if [ -d "$stray_folder" ] && [ ! -L "$stray_folder" ] && ! owned "$stray_folder"; then printf '%s\n' "$stray_folder"; fi
    done
}
stray_settings() {
    for stray_file in /etc/modprobe.d/nvidia-installer*.conf /usr/lib/modprobe.d/nvidia-installer*.conf \
        /etc/modprobe.d/nvidia-graphics-drivers*.conf /usr/lib/modprobe.d/nvidia-graphics-drivers*.conf; do
        if [ -f "$stray_file" ] && ! owned "$stray_file"; then printf '%s\n' "$stray_file"; fi
    done
    if grep -Eqs '^#.*(nvidia-xconfig|nvidia-settings|nvidia-installer):' /etc/X11/xorg.conf; then echo /etc/X11/xorg.conf; fi
}
# What follows a purge is fetched before it: a host without network would be left with no driver at all.
fetch_next() {
    driver_rows | cut -f 1 | sort -u >"$WORK/gone"
    awk -v names="$WORK/gone" 'BEGIN { while ((getline name <names) > 0) gone[name] = 1; RS = ""; ORS = "\n\n" }
        { split($0, line, "\n"); if (!(substr(line[1], 10) in gone)) print }' /var/lib/dpkg/status >"$WORK/purged"
    fetch_before=$SERIES_BEFORE
    PURGED=yes
    fetch_rc=1
    # shellcheck disable=SC2086 # a list of names
    if realign_plan && installable $realign_names; then
        run apt_get -o "Dir::State::status=$WORK/purged" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -y -d \
            --no-install-recommends install $realign_names && fetch_rc=0
    fi
    PURGED=no
    SERIES_BEFORE=$fetch_before
    return "$fetch_rc"
}
# Every trace of the driver, by exact names. Nothing is auto-removed, no kernel goes.
level_purge() {
    purge_names=$(driver_rows | awk -F '\t' '$4 !~ / not-installed$/ { print $1 ($2 == "all" || $2 == "" ? "" : ":" $2) }' | words)
    if [ "$RUNFILE" = no ] && [ -z "$purge_names" ] && [ -z "$(strays)" ]; then return 0; fi
    ask "5. Remove every trace of the driver: $purge_names
   and, where a .run file put it there, by NVIDIA's own uninstaller; then files that no package owns." || return 1
    if [ -n "$purge_names" ]; then
        purge_present=$(driver_packages | words)
        # shellcheck disable=SC2086 # a list of names
        if [ -n "$purge_present" ] && ! simulate purge $purge_present; then
            # What apt wants to unpack again first has no archive; dpkg says itself whether anything depends on it.
            # shellcheck disable=SC2086 # a list of names
            if ! grep -q 'be reinstalled' "$WORK/simulation" ||
                ! dpkg --no-act --force-hold --force-remove-reinstreq --purge $purge_names >/dev/null; then
                die 5 "refused before anything was removed: a purge takes the driver alone; remove what depends on it first, if it may go"
            fi
        fi
        if grep -q '^Inst ' "$WORK/changes" 2>/dev/null; then
            die 5 "refused before anything was removed: apt would install $(sed -n 's/^Inst //p' "$WORK/changes" | words)"
        fi
    fi
    fetch_next || die 5 "refused before anything was removed: the driver that is to follow cannot be had"
    take_snapshot
    if [ "$DRY" = no ]; then
        strays | while IFS= read -r purge_path; do keep "$purge_path" deleted; done
        stray_settings | while IFS= read -r purge_path; do keep "$purge_path" aside; done
        manifest
    fi
    if [ "$RUNFILE" = yes ]; then run timeout 600 /usr/bin/nvidia-uninstall -s; fi
    wait_for_dpkg
    if [ -n "$purge_names" ]; then
        # dpkg itself takes exactly these names, whatever apt's sources say, and nothing that depends on them.
        # shellcheck disable=SC2086 # a list of names
        run dpkg --force-hold --force-remove-reinstreq --purge $purge_names || say "  what is left of them is named by: dpkg --audit; this script can be run again"
    fi
    for purge_tree in /var/lib/dkms/nvidia/[0-9]* /var/lib/dkms/nvidia-srv/[0-9]*; do
        if [ -d "$purge_tree" ] && [ ! -L "$purge_tree" ]; then
            purge_module=${purge_tree#/var/lib/dkms/}
            if command -v dkms >/dev/null 2>&1; then run dkms remove "$purge_module" --all; fi
            run rm -rf "$purge_tree"
        fi
    done
    # A list first: what is removed must not be read at the same time.
    strays >"$WORK/strays"
    while IFS= read -r purge_path; do run rm -f "$purge_path"; done <"$WORK/strays"
    stray_settings >"$WORK/strays"
    while IFS= read -r purge_path; do run rm -f "$purge_path"; done <"$WORK/strays"
    stray_folders >"$WORK/strays"
    while IFS= read -r purge_path; do run rm -rf "$purge_path"; done <"$WORK/strays"
    run ldconfig
    for purge_modules in /lib/modules/*/kernel; do
        purge_kernel=${purge_modules#/lib/modules/}
        if [ -d "$purge_modules" ]; then run depmod "${purge_kernel%/kernel}"; fi
    done
    run update-initramfs -u -k all
    if [ -d /run/systemd/system ]; then run systemctl daemon-reload; fi
    mark
    return 0
}
