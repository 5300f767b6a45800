# --- packages: from the network, or from a folder ---------------------------------------------------------------------

# Make a repository of the folder's .deb files for apt alone, so that apt itself finds what belongs together.
use_debs() {
    if [ -z "$DEBS" ] || [ "$LOCAL_APT" = yes ]; then return 0; fi
    say "Reading the packages in $DEBS"
    mkdir -p "$WORK/debs" "$WORK/lists/partial"
    find "$DEBS" -name '*.deb' -type f >"$WORK/found"
    debs_number=0
    while IFS= read -r debs_file; do
        debs_number=$((debs_number + 1))
        if ! dpkg-deb -f "$debs_file" >"$WORK/control" 2>/dev/null; then
            say "  $debs_file is no package that dpkg can read: passed over"
            continue
        fi
        ln -s "$debs_file" "$WORK/debs/$debs_number.deb"
        cat "$WORK/control"
        printf 'Filename: ./%s.deb\nSize: %d\nSHA256: %s\n\n' "$debs_number" "$(($(wc -c <"$debs_file")))" "$(state_of "$debs_file")"
    done <"$WORK/found" >"$WORK/debs/Packages"
    printf 'deb [trusted=yes] file:%s ./\n' "$WORK/debs" >"$WORK/sources.list"
    LOCAL_APT=yes
    apt_get -qq update >"$WORK/out" 2>&1 || die 1 "apt cannot read the packages of $DEBS: $(head -n 3 "$WORK/out")"
}
refresh_lists() {
    use_debs
    if [ "$LOCAL_APT" = yes ] || [ "$UPDATED" = yes ] || [ "$DRY" = yes ]; then return 0; fi
    UPDATED=yes
    say "+ apt-get update"
    if ! apt_get -qq update >"$WORK/out" 2>&1 </dev/null; then
        say "  no network, or a repository does not answer: going on with the lists that are there"
        cat "$WORK/out" >>"$LOG"
    fi
}
# Ask apt, changing nothing; with PURGED=yes as if the purge had been.
ask_apt() {
    if [ "$PURGED" = no ]; then
        apt_get -s "$@"
    else
        apt_get -o "Dir::State::status=$WORK/purged" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -s "$@"
    fi
}
# Ask apt what an installation or a removal would do, and refuse what takes anything else along. ARGS: as of apt-get.
# What would change stands in $WORK/changes afterwards.
simulate() {
    # Holds of the driver are lifted for a change and set again after it, so they do not count in the question either.
    simulate_status=/var/lib/dpkg/status
    if [ "$PURGED" = yes ]; then simulate_status=$WORK/purged; fi
    driver_packages >"$WORK/free"
    awk -v names="$WORK/free" 'BEGIN { while ((getline name <names) > 0) free[name] = 1 }
        /^Package: / { ours = $2 in free } ours && /^Status: hold / { sub("hold", "install") } { print }' \
        "$simulate_status" >"$WORK/status"
    if ! apt_get -o "Dir::State::status=$WORK/status" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -s "$@" \
        >"$WORK/simulation" 2>&1 </dev/null; then
        grep -E '^(E:| )' "$WORK/simulation" | head -n 8
        return 1
    fi
    sed -n -e 's/^\(Inst\|Remv\|Purg\) \([^ ]*\) \(\[[^]]*\]\)\{0,1\}.*/\1 \2 \3/p' "$WORK/simulation" >"$WORK/changes"
    while read -r simulate_what simulate_name simulate_old; do
        simulate_bare=${simulate_name%%:*}
        if is_driver "$simulate_bare"; then continue; fi
        case " $* " in
        *" $simulate_bare "* | *" $simulate_bare="*) continue ;;
        esac
        case $simulate_what in
        Remv | Purg)
            say "  refused: apt would remove $simulate_name too, which depends on the driver"
            return 1
            ;;
        esac
        if [ -n "$simulate_old" ]; then
            say "  refused: apt would change $simulate_name too"
            return 1
        fi
        case $simulate_bare in
        linux-image-* | linux-modules-* | linux-generic* | linux-nvidia*)
            say "  refused: apt would install the kernel package $simulate_name"
            return 1
            ;;
        esac
    done <"$WORK/changes"
    return 0
}
apt_knows() { # NAME
    [ -n "$1" ] || return 1
    refresh_lists
    ask_apt --no-install-recommends install "$1" 2>&1 </dev/null | grep -q "^E: Unable to locate package $1\$" && return 1
    return 0
}
# Does apt find a way to these that takes nothing else along? Else what is needed is said.
installable() {
    refresh_lists
    if simulate --no-install-recommends --allow-downgrades --allow-change-held-packages install "$@"; then return 0; fi
    say "  apt finds no way to install: $*"
    if [ -z "$DEBS" ]; then say "  without network: put these and what they depend on into a folder, and give it by --debs DIR"; fi
    return 1
}
# Install packages where apt finds a way that takes nothing else along. NAMES may be NAME=VERSION.
install() {
    installable "$@" || return 1
    # A branch that is on hold as a whole cannot be left otherwise (field report G1).
    lift_holds
    # What is named counts as asked for; what came by itself must stay so.
    apt-mark showauto >"$WORK/auto"
    for install_name in "$@"; do printf '%s\n' "${install_name%%=*}"; done | grep -Fx -f "$WORK/auto" >"$WORK/marks"
    run apt_get -y --no-install-recommends --allow-downgrades --allow-change-held-packages install "$@"
    install_rc=$?
    # shellcheck disable=SC2046 # a list of names
    if [ "$DRY" = no ] && [ -s "$WORK/marks" ]; then apt-mark auto $(words <"$WORK/marks") >/dev/null; fi
    hold_again
    return "$install_rc"
}
lift_holds() {
    if [ "$DRY" = yes ]; then return 0; fi
    wait_for_dpkg
    driver_rows | awk -F '\t' '$4 ~ /^hold / && $4 !~ / (not-installed|config-files)$/ { print $1 " install" }' | dpkg --set-selections
}
# What was on hold and is still there; with HOLD=yes every package of the driver that is there, by exact names.
hold_again() {
    if [ "$DRY" = yes ] || [ -z "$SNAPSHOT" ]; then return 0; fi
    hold_names=$HELD
    if [ "$HOLD" = yes ] && [ -z "$LEAVE" ]; then hold_names="$hold_names $(driver_packages | words)"; fi
    for hold_name in $hold_names; do printf '%s\n' "$hold_name"; done | sort -u >"$WORK/holds"
    rows | awk -F '\t' -v names="$WORK/holds" 'BEGIN { while ((getline name <names) > 0) hold[name] = 1 }
        $1 in hold && $4 !~ /^hold / && $4 !~ / (not-installed|config-files)$/ { print $1 " hold" }' >"$WORK/selections"
    if [ -s "$WORK/selections" ]; then
        say "+ hold $(($(wc -l <"$WORK/selections"))) packages by their exact names"
        wait_for_dpkg
        dpkg --set-selections <"$WORK/selections"
    fi
}
