# --- snapshot ---------------------------------------------------------------------------------------------------------

json() {
    printf '%s' "$1" | sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/^/"/' -e 's/$/"/'
}
# What a path holds: sha256 of a file, link:TARGET, or - where nothing is. As plugins/module_utils/rescue/snapshot.py.
state_of() {
    if [ -L "$1" ]; then
        printf 'link:%s' "$(readlink "$1")"
    elif [ -f "$1" ]; then
        sha256sum <"$1" | cut -d ' ' -f 1 | tr -d '\n'
    else
        printf '%s' -
    fi
}
watched() {
    for watched_file in $SNAPSHOT_FILES; do
        if [ -e "$watched_file" ]; then printf '%s\n' "$watched_file"; fi
    done
    for watched_folder in $SNAPSHOT_FOLDERS /etc/systemd/system/nvidia-*.service.d; do
        if [ -d "$watched_folder" ]; then find "$watched_folder" -maxdepth 2 ! -type d; fi
    done
}
# Copy one file or link into the snapshot, with mode and owner; a line for the manifest. KIND as in the Python code.
keep() { # PATH KIND
    keep_target=$SNAPSHOT/files$1
    case $1 in
    /etc/apt/auth.conf | /etc/apt/auth.conf.d/*) return 0 ;; # passwords, and nothing here changes them
    esac
    if grep -qF "\"path\": $(json "$1")," "$SNAPSHOT/entries" 2>/dev/null; then return 0; fi
    if [ ! -e "$1" ] && [ ! -L "$1" ]; then
        printf '{"path": %s, "kind": "%s", "state": null}\n' "$(json "$1")" "$2" >>"$SNAPSHOT/entries"
        return 0
    fi
    if [ ! -L "$1" ] && [ "$(wc -c <"$1")" -gt 1048576 ]; then
        printf '{"path": %s, "size": %s, "why": "larger than what is copied"}\n' "$(json "$1")" "$(wc -c <"$1")" \
            >>"$SNAPSHOT/left"
        return 0
    fi
    (umask 077 && mkdir -p "${keep_target%/*}")
    cp -pP "$1" "$keep_target"
    keep_mode=$(stat -c %a "$1")
    keep_size=''
    if [ ! -L "$1" ]; then keep_size=", \"size\": $(($(wc -c <"$1")))"; fi
    printf '{"path": %s, "kind": "%s", "state": %s, "mode": %d, "uid": %d, "gid": %d%s}\n' "$(json "$1")" "$2" \
        "$(json "$(state_of "$1")")" "0$keep_mode" "$(stat -c %u "$1")" "$(stat -c %g "$1")" "$keep_size" >>"$SNAPSHOT/entries"
}
# The manifest is written last and in one step: without it the folder is a snapshot that was cut off.
manifest() {
    {
        printf '{\n "schema": "provision/snapshot/1", "id": "%s", "made": "%s", "by": "offline script",\n' \
            "${SNAPSHOT##*/}" "$SNAPSHOT_MADE"
        printf ' "reason": "offline rescue", "kernel": %s, "packages": %d, "undo_of": null,\n' "$(json "$RUNNING")" \
            "$(($(wc -l <"$SNAPSHOT/packages.tsv")))"
        printf ' "data": {"packages.tsv": "%s"},\n "files": [\n' "$(state_of "$SNAPSHOT/packages.tsv")"
        sed -e '$!s/$/,/' "$SNAPSHOT/entries"
        printf ' ],\n "left_out": [\n'
        if [ -e "$SNAPSHOT/left" ]; then sed -e '$!s/$/,/' "$SNAPSHOT/left"; fi
        printf ' ]\n}\n'
    } >"$SNAPSHOT/manifest.new"
    mv "$SNAPSHOT/manifest.new" "$SNAPSHOT/manifest.json"
}
# The newest snapshot of a run of the last day that was cut off, whoever made it; nothing where there is none.
cut_off_snapshot() {
    for cut_off in "$SNAPSHOTS"/2*Z-*; do :; done
    if [ -e "$cut_off/manifest.json" ] && [ -n "$(find "$cut_off/unfinished" -mtime -1 2>/dev/null)" ]; then
        printf '%s\n' "$cut_off"
    fi
}
# What is on hold now, and what was before a run that was cut off had lifted it.
held_before() {
    held_snapshot=$(cut_off_snapshot)
    {
        rows
        if [ -n "$held_snapshot" ]; then cat "$held_snapshot/packages.tsv"; fi
    } | awk -F '\t' '$4 ~ /^hold / && $4 !~ / (not-installed|config-files)$/ { print $1 }' | sort -u | words
}
take_snapshot() {
    if [ "$DRY" = yes ] || [ -n "$SNAPSHOT" ]; then return 0; fi
    # Undo leads back to the state before the first change. A snapshot of rescue itself is left to rescue.
    SNAPSHOT=$(cut_off_snapshot)
    if [ -n "$SNAPSHOT" ] && [ -e "$SNAPSHOT/entries" ]; then
        SNAPSHOT_MADE=$(sed -n 's/.*"made": "\([^"]*\)".*/\1/p' "$SNAPSHOT/manifest.json")
        say "Going on with the snapshot of a run that was cut off: $SNAPSHOT"
        return 0
    fi
    if ! mkdir -p "$SNAPSHOTS" || ! chmod 700 "$SNAPSHOTS"; then
        die 1 "the snapshot cannot be written: is the disk full or read-only?"
    fi
    snapshot_id=$(od -An -N3 -tx1 /dev/urandom | tr -d ' \n')
    SNAPSHOT=$SNAPSHOTS/$STAMP-$snapshot_id
    SNAPSHOT_MADE=$(date -u +%Y-%m-%dT%H:%M:%SZ)
    if ! (umask 077 && mkdir "$SNAPSHOT" && : >"$SNAPSHOT/unfinished" && : >"$SNAPSHOT/entries"); then
        die 1 "the snapshot cannot be written: is the disk full or read-only?"
    fi
    rows >"$SNAPSHOT/packages.tsv"
    if [ -e /var/lib/apt/extended_states ]; then cp /var/lib/apt/extended_states "$SNAPSHOT/extended_states"; fi
    {
        printf 'kernel %s\nboot_id %s\ncmdline %s\n' "$RUNNING" "$(cat /proc/sys/kernel/random/boot_id)" "$(cat /proc/cmdline)"
        for snapshot_file in /boot/vmlinuz* /boot/initrd.img*; do
            if [ -e "$snapshot_file" ]; then printf 'boot %s\n' "${snapshot_file##*/}"; fi
        done
        for snapshot_file in /var/lib/dkms/*/[0-9]*; do
            if [ -d "$snapshot_file" ]; then printf 'dkms %s\n' "${snapshot_file#/var/lib/dkms/}"; fi
        done
        if [ -n "$LOADED" ]; then printf 'loaded nvidia %s\n' "$LOADED"; fi
    } >"$SNAPSHOT/host.txt"
    watched | sort -u | while IFS= read -r snapshot_path; do keep "$snapshot_path" watched; done
    keep "$NOUVEAU_PATH" named
    manifest
    say "Snapshot of what is there: $SNAPSHOT"
}
# What is there now was made by this run: undo takes back this, and nothing that others change later.
mark() {
    if [ -z "$SNAPSHOT" ]; then return 0; fi
    (umask 077 && mkdir -p "$SNAPSHOT/after")
    rows >"$SNAPSHOT/after/packages.tsv"
    {
        watched
        sed -n 's/^{"path": "\([^"]*\)",.*/\1/p' "$SNAPSHOT/entries"
    } | sort -u | while IFS= read -r mark_path; do
        printf '%s\t%s\n' "$(state_of "$mark_path")" "$mark_path"
    done >"$SNAPSHOT/after/files.tsv"
    manifest
}
