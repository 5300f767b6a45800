# --- the steps, from the smallest on ----------------------------------------------------------------------------------

# Packages that dpkg can finish by configuring them, and that are none of the driver's.
others_to_configure() {
    rows | awk -F '\t' '$4 ~ / (unpacked|half-configured|triggers-awaited|triggers-pending)$/' >"$WORK/unfinished"
    while IFS='	' read -r others_name others_arch _; do
        if is_driver "$others_name"; then continue; fi
        case $others_arch in
        '' | all) printf '%s\n' "$others_name" ;;
        *) printf '%s:%s\n' "$others_name" "$others_arch" ;;
        esac
    done <"$WORK/unfinished"
}
# The driver is others': what of dpkg's is left half done is finished without it.
level_dpkg_around() {
    dpkg_names=$(others_to_configure | words)
    if [ -z "$dpkg_names" ]; then
        say "1. Left to whoever manages the driver: $UNFINISHED"
        return 0
    fi
    ask "1. Finish what dpkg left half done, without the driver ($dpkg_names)." || return 0
    take_snapshot
    wait_for_dpkg
    # shellcheck disable=SC2086 # a list of names
    run dpkg --force-confdef --force-confold --configure $dpkg_names
    if [ -n "$(others_to_configure)" ]; then
        refresh_lists
        apt_get -s --no-remove --no-install-recommends -f install >"$WORK/simulation" 2>&1 </dev/null
        if sed -n 's/^\(Inst\|Conf\) \([^ :]*\).*/\2/p' "$WORK/simulation" | only_driver >"$WORK/theirs"; then
            say "  refused: apt would touch the driver for that: $(words <"$WORK/theirs")"
        else
            run apt_get -y --no-remove --no-install-recommends -f install
        fi
    fi
    mark
}
level_dpkg() {
    if [ -z "$UNFINISHED" ]; then return 0; fi
    if [ -n "$LEAVE" ]; then
        level_dpkg_around
        return 0
    fi
    ask "1. Finish what dpkg left half done ($UNFINISHED). A driver's module is built again: that takes minutes." || return 0
    take_snapshot
    wait_for_dpkg
    run dpkg --force-confdef --force-confold --configure -a
    read_host
    # What has no dependency yet, or was unpacked half, needs packages; nothing may be removed for that.
    if [ -n "$UNFINISHED" ]; then
        refresh_lists
        run apt_get -y --no-remove --no-install-recommends -f install
    fi
    mark
}
level_holds() {
    if [ -z "$ABSENT_HOLDS" ]; then return 0; fi
    ask "2. Clear holds on packages that are not there ($ABSENT_HOLDS)." || return 0
    take_snapshot
    wait_for_dpkg
    say "+ dpkg --set-selections"
    if [ "$DRY" = yes ]; then return 0; fi
    for holds_name in $ABSENT_HOLDS; do
        holds_state=$(rows | awk -F '\t' -v wanted="$holds_name" '$1 == wanted { print $4 }')
        case $holds_state in
        *config-files) printf '%s deinstall\n' "$holds_name" ;;
        *) printf '%s purge\n' "$holds_name" ;;
        esac
    done | dpkg --set-selections
    mark
}
level_sources() {
    case $SOURCES in
    *'Conflicting values'*) ;;
    *) return 0 ;;
    esac
    # "Conflicting values set for option Signed-By regarding source URI SUITE: one != other"
    sources_uri=$(printf '%s\n' "$SOURCES" | sed -n 's/.*regarding source \([^ ]*\) .*/\1/p' | head -n 1)
    sources_uri=${sources_uri%/}
    sources_keep=''
    sources_all=''
    for sources_file in /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list /etc/apt/sources.list; do
        if [ -f "$sources_file" ] && grep -v '^[[:space:]]*#' "$sources_file" | grep -qF "$sources_uri"; then
            sources_all="$sources_all $sources_file"
            # The one whose key is there stays; our own goes before all.
            sources_key=$(grep -v '^[[:space:]]*#' "$sources_file" | grep -F -e "$sources_uri" -e Signed-By |
                sed -n -e 's/.*[Ss]igned-[Bb]y[=:][[:space:]]*\([^] ]*\).*/\1/p' | head -n 1)
            case $sources_file in
            */gpu-provision-*) sources_keep=$sources_file ;;
            *) if [ -z "$sources_keep" ] && [ -n "$sources_key" ] && [ -r "$sources_key" ]; then sources_keep=$sources_file; fi ;;
            esac
        fi
    done
    if [ -z "$sources_keep" ]; then
        say "2. $sources_uri stands in$sources_all, and none of them names a key that is there: correct them by hand"
        return 0
    fi
    ask "2. Keep $sources_uri in $sources_keep alone, and disable it elsewhere ($sources_all )." || return 0
    take_snapshot
    for sources_file in $sources_all; do
        if [ "$sources_file" = "$sources_keep" ]; then continue; fi
        case $sources_file in
        *.sources)
            say "+ mv $sources_file $sources_file.gpu-provision-disabled"
            if [ "$DRY" = no ]; then mv "$sources_file" "$sources_file.gpu-provision-disabled"; fi
            ;;
        *)
            say "+ comment out $sources_uri in $sources_file"
            if [ "$DRY" = no ]; then
                awk -v uri="$sources_uri" 'index($0, uri) && $0 !~ /^[ \t]*#/ { print "# disabled by gpu-provision: " $0; next } { print }' \
                    "$sources_file" >"$WORK/list" && cat "$WORK/list" >"$sources_file"
            fi
            ;;
        esac
    done
    mark
}
level_nouveau() {
    if [ "$NOUVEAU" = no ] || [ -z "$LIBRARY" ]; then return 0; fi
    if [ -e "$NOUVEAU_PATH" ] && [ "$(state_of "$NOUVEAU_PATH")" = "$(printf '%s\n' "$NOUVEAU_TEXT" | sha256sum | cut -d ' ' -f 1)" ]; then
        if [ "/boot/initrd.img-$NEXT" -nt "$NOUVEAU_PATH" ]; then return 0; fi
    fi
    ask "2. Keep nouveau away from the GPUs ($NOUVEAU_PATH), and rebuild the initramfs of every kernel." || return 0
    take_snapshot
    say "+ write $NOUVEAU_PATH"
    if [ "$DRY" = no ]; then printf '%s\n' "$NOUVEAU_TEXT" >"$NOUVEAU_PATH"; fi
    run update-initramfs -u -k all
    mark
}
level_module() {
    if [ -n "$MODULE" ] || [ -z "$LIBRARY" ] || [ -z "$CORE" ]; then return 0; fi
    if has_dkms; then
        if [ ! -e "/lib/modules/$NEXT/build" ]; then
            ask "3. Install linux-headers-$NEXT, so that DKMS can build the module for it." || return 0
            take_snapshot
            install "linux-headers-$NEXT" || return 0
        else
            ask "3. Build the module for kernel $NEXT with DKMS (minutes)." || return 0
            take_snapshot
        fi
        if module_of "$NEXT" >/dev/null; then return 0; fi
        run dkms autoinstall -k "$NEXT"
    else
        module_package=$(signed_modules "$NEXT")
        if [ -z "$module_package" ]; then return 0; fi
        ask "3. Install the signed module for kernel $NEXT ($module_package)." || return 0
        take_snapshot
        # shellcheck disable=SC2086 # a list of names
        install $module_package
    fi
    mark
}
# Name of the package with signed modules for a kernel: like those that are installed, else as the inventory wishes.
signed_modules() {
    signed_like=$(driver_packages | sed -n 's/^\(linux-modules-nvidia-[0-9]*\(-server\)\{0,1\}\(-open\)\{0,1\}\)-.*/\1/p' | head -n 1)
    signed_series=${SERIES:-$SERIES_BEFORE}
    if [ -z "$signed_like" ] && [ -n "$signed_series" ]; then
        signed_like=linux-modules-nvidia-$signed_series
        if [ "$(flavour_of "$signed_series")" = open ]; then signed_like=$signed_like-open; fi
    fi
    if [ -n "$signed_like" ]; then printf '%s-%s\n' "$signed_like" "$1"; fi
}
initramfs_missing() {
    [ ! -e "/boot/initrd.img-$NEXT" ] && [ -e "/boot/vmlinuz-$NEXT" ]
}
level_initramfs() {
    initramfs_missing || return 0
    ask "3. Make /boot/initrd.img-$NEXT, which is not there." || return 0
    take_snapshot
    run update-initramfs -c -k "$NEXT"
    mark
}
# open or proprietary modules: as wished, else as the cards allow. Device ids below 1e00 are older than Turing and know no
# open modules; the open ones are preferred from branch 560 on.
flavour_of() { # BRANCH
    if [ "$FLAVOUR" != auto ]; then
        printf '%s\n' "$FLAVOUR"
        return 0
    fi
    flavour_devices=''
    for flavour_device in /sys/bus/pci/devices/*; do
        if [ "$(cat "$flavour_device/vendor" 2>/dev/null)" != 0x10de ]; then continue; fi
        case $(cat "$flavour_device/class" 2>/dev/null) in
        0x03*) flavour_devices="$flavour_devices $(cat "$flavour_device/device")" ;;
        esac
    done
    # shellcheck disable=SC2086 # a list of words
    flavour_for "$1" $flavour_devices
}
# The first flavour of a branch that every card takes; the settings have both from the catalog.
flavour_for() { # BRANCH DEVICE...
    for_branch=${1%%-*}
    shift
    for_order='open proprietary'
    for for_row in $FLAVOUR_ORDERS; do
        if [ "${for_row%%:*}" = "$for_branch" ]; then for_order=$(printf '%s' "${for_row#*:}" | tr , ' '); fi
    done
    for_not=' '
    for for_device; do
        for for_range in $OPEN_ONLY; do
            if [ "$((for_device))" -ge "${for_range%-*}" ] && [ "$((for_device))" -le "${for_range#*-}" ]; then for_not="$for_not proprietary "; fi
        done
        for for_range in $PROPRIETARY_ONLY; do
            if [ "$((for_device))" -ge "${for_range%-*}" ] && [ "$((for_device))" -le "${for_range#*-}" ]; then for_not="$for_not open "; fi
        done
    done
    for for_flavour in $for_order; do
        case $for_not in
        *" $for_flavour "*) ;;
        *)
            printf '%s\n' "$for_flavour"
            return 0
            ;;
        esac
    done
    # No flavour of this branch drives these cards; apt or the proof says so.
    printf '%s\n' "${for_order%% *}"
}
# What apt is asked for, for a series (580, 580-server): as the inventory wishes, else by the Ubuntu archive's names. Signed
# modules come beside it.
top_packages() { # SERIES
    if [ "$1" = "$SERIES" ] && [ -n "$TOP_OPEN$TOP_PROPRIETARY" ]; then
        if [ "$(flavour_of "$1")" = open ]; then printf '%s\n' "$TOP_OPEN"; else printf '%s\n' "$TOP_PROPRIETARY"; fi
        return 0
    fi
    top_suffix=''
    if [ "$(flavour_of "$1")" = open ]; then top_suffix=-open; fi
    if [ "$BUILD" = dkms ]; then
        top_names="nvidia-headless-$1$top_suffix nvidia-utils-$1"
    else
        top_names="nvidia-headless-no-dkms-$1$top_suffix nvidia-utils-$1"
    fi
    if [ "$VARIANT" = desktop ]; then top_names="nvidia-driver-$1$top_suffix"; fi
    printf '%s\n' "$top_names"
}
# Names of the driver's packages as they are, or as they were before a purge that was cut off.
packages_of_before() {
    before_snapshot=$(cut_off_snapshot)
    {
        driver_packages
        if [ -n "$before_snapshot" ]; then
            awk -F '\t' '$4 !~ / (not-installed|config-files)$/ { print $1 }' "$before_snapshot/packages.tsv" | only_driver
        fi
    } | sort -u
}
# The newest series that is installed (580-server), else the branch of what a .run file left: what a purge is followed by.
series_before() {
    series_found=$(packages_of_before | sed -n 's/^nvidia-utils-\([0-9]*\(-server\)\{0,1\}\)$/\1/p' | sort -n | tail -n 1)
    series_branch=${MODULE_VERSION:-${LIBRARY:-$LOADED}}
    printf '%s\n' "${series_found:-${series_branch%%.*}}"
}
# Packages of that series, without those of single kernels.
packages_before() {
    if [ -n "$SERIES_BEFORE" ]; then
        packages_of_before | grep -v '^linux-' | grep -e "-$SERIES_BEFORE\$" -e "-$SERIES_BEFORE-open\$" | words
    fi
}
# Add to $realign_names what brings the module: signed packages of the kernels, or headers for DKMS.
realign_modules() {
    realign_build=$BUILD
    realign_module=$(signed_modules "$NEXT")
    if has_dkms; then realign_build=dkms; fi
    if [ "$realign_build" = auto ] && ! apt_knows "$realign_module"; then
        say "  apt has no signed modules of that series for $NEXT: DKMS builds them"
        realign_build=dkms
        realign_names=$(printf '%s\n' "$realign_names" | sed 's/nvidia-headless-no-dkms-/nvidia-headless-/g')
    fi
    if [ "$realign_build" != dkms ]; then
        realign_names="$realign_names $realign_module"
        # The running kernel's too, where apt has it: an older kernel may still be chosen at boot.
        realign_module=$(signed_modules "$RUNNING")
        if [ "$RUNNING" != "$NEXT" ] && apt_knows "$realign_module"; then realign_names="$realign_names $realign_module"; fi
    elif [ ! -e "/lib/modules/$NEXT/build" ]; then
        realign_names="$realign_names linux-headers-$NEXT"
    fi
}
# A name is not a branch: the archive turns ended branches into packages that bring the next one. Prints that one.
branch_jump() { # SERIES NAMES...
    jump_from=${1%%-*}
    shift
    ask_apt --no-install-recommends --allow-downgrades --allow-change-held-packages install "$@" 2>/dev/null </dev/null |
        sed -n 's/^Inst nvidia-utils-\([0-9]*\(-server\)\{0,1\}\) .*/\1/p' | grep -v "^$jump_from" | head -n 1
}
# Which packages the driver is to be ($realign_names), and why: the exact ones that are known to be right here, else the newest
# that apt has of each. After a purge nothing is there to move: what was there before, where the inventory names nothing.
realign_plan() {
    realign_names=$WANTED
    realign_words="the versions that are known to be right here"
    if [ -z "$realign_names" ] && [ -n "$(core_packages)" ]; then
        realign_names=$(version_packages | words)
        realign_words="the newest version that apt has of each"
    fi
    if [ -z "$realign_names" ] && [ -n "$SERIES" ]; then
        realign_names=$(top_packages "$SERIES")
        realign_words="what the inventory wishes"
    fi
    if [ -z "$realign_names" ]; then
        realign_names=$BEFORE
        realign_words="what was installed before"
    fi
    if [ -z "$realign_names" ] && [ -n "$SERIES_BEFORE" ]; then
        realign_names=$(top_packages "$SERIES_BEFORE")
        realign_words="the branch that was there before"
    fi
    if [ -z "$realign_names" ]; then
        say "4. Which driver this host should have is not known here: provision plan tells, from where the host can be reached"
        return 1
    fi
    realign_plain=$realign_names
    realign_modules
    # shellcheck disable=SC2086 # a list of names
    realign_jump=$(branch_jump "${SERIES:-$SERIES_BEFORE}" $realign_plain)
    if [ -n "$realign_jump" ] && [ -z "$WANTED" ]; then
        if [ -n "$SERIES" ]; then
            say "4. refused: branch $SERIES has ended, and apt would bring $realign_jump instead; that is for the inventory to say"
            return 1
        fi
        SERIES_BEFORE=$realign_jump
        realign_words="$realign_jump, because the branch of before has ended"
        realign_names=$(top_packages "$realign_jump")
        realign_modules
    fi
}
# Level 4: one version for the whole family.
level_realign() {
    read_host
    if right_on_disk; then return 0; fi
    realign_plan || return 0
    # What cannot be had is said before anything of the driver changes.
    # shellcheck disable=SC2086 # a list of names
    if [ "$PURGE$DRY" != yesyes ] && ! installable $realign_names; then
        say "4. Nothing of the driver was changed: $realign_words cannot be had ($realign_names)"
        return 0
    fi
    ask "4. Bring the driver to one version: $realign_words ($realign_names)." || return 0
    take_snapshot
    # shellcheck disable=SC2086 # a list of names
    install $realign_names || return 0
    mark
}
