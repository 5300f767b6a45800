# --- look -------------------------------------------------------------------------------------------------------------

# Which kernel GRUB starts next: grubenv's one-time entry, the saved one, else the first entry of the menu.
next_kernel() {
    next_entry=$(sed -n -e 's/^next_entry=//p' /boot/grub/grubenv 2>/dev/null)
    if [ -z "$next_entry" ] && grep -qs '^GRUB_DEFAULT=.*saved' /etc/default/grub; then
        next_entry=$(sed -n -e 's/^saved_entry=//p' /boot/grub/grubenv 2>/dev/null)
    fi
    next_release=''
    case $next_entry in
    *"with Linux "*) next_release=$(printf '%s\n' "$next_entry" | sed -e 's/.*with Linux //' -e 's/ .*//') ;;
    esac
    if [ -z "$next_release" ] || [ ! -e "/boot/vmlinuz-$next_release" ]; then
        next_release=$(sed -n -e 's,^[[:space:]]*linux[[:space:]]*[^[:space:]]*/vmlinuz-\([^[:space:]]*\).*,\1,p' \
            /boot/grub/grub.cfg 2>/dev/null | head -n 1)
    fi
    if [ -z "$next_release" ]; then
        for next_image in /boot/vmlinuz-*; do
            if [ -e "$next_image" ]; then printf '%s\n' "${next_image#/boot/vmlinuz-}"; fi
        done | sort -V | tail -n 1
        return 0
    fi
    printf '%s\n' "$next_release"
}
# The nvidia.ko that modprobe would take for a kernel, updates first.
module_of() {
    for module_file in "/lib/modules/$1"/updates/dkms/nvidia.ko* "/lib/modules/$1"/updates/nvidia.ko* \
        "/lib/modules/$1"/extra/nvidia.ko* "/lib/modules/$1"/kernel/nvidia-*/nvidia.ko* \
        "/lib/modules/$1"/kernel/drivers/video/nvidia.ko* "/lib/modules/$1"/kernel/drivers/video/nvidia/nvidia.ko*; do
        if [ -e "$module_file" ]; then
            printf '%s\n' "$module_file"
            return 0
        fi
    done
    module_file=$(find "/lib/modules/$1" -name 'nvidia.ko*' ! -type d 2>/dev/null | head -n 1)
    if [ -n "$module_file" ]; then printf '%s\n' "$module_file"; else return 1; fi
}
# The library that programs get: the loader's cache, its folders, then where drivers from outside apt lie. CUDA's forward
# compatibility and the stubs for linking are no driver.
library_of() { # SONAME
    {
        printf '%s\n' "${LD_LIBRARY_PATH:-}" | tr ':' '\n' | sed -n "s,^/.*,&/$1,p"
        ldconfig -p 2>/dev/null | sed -n -e "s/^[[:space:]]*$1 (.*x86-64.*) => //p" -e "s/^[[:space:]]*$1 (.*AArch64.*) => //p"
        for library_folder in /usr/lib/x86_64-linux-gnu /usr/lib/aarch64-linux-gnu /usr/lib64 /usr/lib /usr/local/nvidia/lib64 \
            /usr/local/nvidia/lib /usr/local/lib /opt/lib64 /opt/*/lib64 /opt/*/lib /run/nvidia/driver/usr/lib/*-linux-gnu; do
            printf '%s\n' "$library_folder/$1"
        done
    } | grep -Ev '/compat[^/]*/|/stubs/' | while IFS= read -r library_path; do
        if [ -e "$library_path" ]; then
            printf '%s\n' "$library_path"
            break
        fi
    done
}
smi_of() {
    for smi_path in $(command -v nvidia-smi) /usr/local/nvidia/bin/nvidia-smi /opt/bin/nvidia-smi /opt/*/bin/nvidia-smi \
        /run/nvidia/driver/usr/bin/nvidia-smi; do
        if [ -x "$smi_path" ]; then
            printf '%s\n' "$smi_path"
            return 0
        fi
    done
}
# Is the library in a folder where packages and .run files put it?
in_usual_folder() {
    # The loader's cache may say /lib for /usr/lib.
    case " $LIBRARY_FOLDERS " in *" $(readlink -f "${LIBRARY_PATH%/*}") "*) return 0 ;; esac
    return 1
}
of_no_package() {
    ! owned "$(readlink -f "$1")"
}
# The driver works: the loaded module is of the version of the libraries that the loader finds, and nvidia-smi answers.
works() {
    [ -n "$LOADED" ] && [ "$LOADED" = "$LIBRARY" ] && [ -n "$SMI" ] || return 1
    works_path=${LD_LIBRARY_PATH:-}
    if ! in_usual_folder; then works_path=${LIBRARY_PATH%/*}${works_path:+:$works_path}; fi
    LD_LIBRARY_PATH=$works_path timeout 120 "$SMI" >/dev/null 2>&1
}
# Did apt remove a driver here? Then a loaded module is what it left in memory.
was_removed() {
    [ -n "$(cut_off_snapshot)" ] || driver_rows | grep -q ' config-files$' ||
        grep -Eqs '^(Remove|Purge): .*(nvidia-|cuda-drivers)' /var/log/apt/history.log
}
# What shows that the driver here is not apt's, one a line; nothing where it is, or where there is none.
outside() {
    if [ "$RUNFILE" = yes ]; then echo "/usr/bin/nvidia-uninstall of a .run file"; fi
    if [ -n "$LIBRARY_PATH" ]; then
        if of_no_package "$LIBRARY_PATH"; then
            # Beside apt's driver, a library in apt's own folder may be a leftover; where the whole works, it is the driver.
            if [ -z "$CORE" ] || ! in_usual_folder || works; then echo "$LIBRARY_PATH of no package"; fi
        elif [ -z "$CORE" ]; then
            echo "$LIBRARY_PATH of a package that is none of the driver's"
        fi
    fi
    if [ -z "$CORE" ] && [ -n "$LOADED" ]; then
        if [ -n "$SMI" ] && of_no_package "$SMI"; then echo "$SMI of no package"; fi
        if [ -z "$MODULE" ] && ! was_removed; then echo "module $LOADED, loaded from nowhere on this disk"; fi
    fi
}
# Parts of it that a purge does not reach: it removes packages, and files in the places of packages and .run files.
elsewhere() {
    if [ -n "$LIBRARY_PATH" ] && ! in_usual_folder && of_no_package "$LIBRARY_PATH"; then echo "$LIBRARY_PATH"; fi
    case $SMI in
    '' | /usr/bin/* | /bin/*) ;;
    *) if of_no_package "$SMI"; then echo "$SMI"; fi ;;
    esac
    if [ -d /run/nvidia/driver/usr ]; then echo /run/nvidia/driver; fi
}
secure_boot() {
    for secure_file in /sys/firmware/efi/efivars/SecureBoot-*; do
        if [ -e "$secure_file" ]; then
            od -An -tu1 "$secure_file" | awk '{ last = $NF } END { exit last != 1 }'
            return $?
        fi
    done
    return 1
}
count_gpus() {
    count=0
    for count_device in /sys/bus/pci/devices/*; do
        if [ "$(cat "$count_device/vendor" 2>/dev/null)" = 0x10de ]; then
            case $(cat "$count_device/class" 2>/dev/null) in
            0x03*) count=$((count + 1)) ;;
            esac
        fi
    done
    printf '%s\n' "$count"
}
# Read everything anew into variables; change nothing.
read_host() {
    RUNNING=$(uname -r)
    NEXT=$(next_kernel)
    NEXT=${NEXT:-$RUNNING}
    GPUS=$(count_gpus)
    MODULE=$(module_of "$NEXT") || MODULE=''
    MODULE_VERSION=''
    if [ -n "$MODULE" ]; then MODULE_VERSION=$(modinfo -F version "$MODULE" 2>/dev/null); fi
    LOADED=$(cat /sys/module/nvidia/version 2>/dev/null)
    LIBRARY_PATH=$(library_of libnvidia-ml.so.1)
    LIBRARY_PATH=${LIBRARY_PATH:-$(library_of libcuda.so.1)}
    LIBRARY=''
    if [ -n "$LIBRARY_PATH" ]; then LIBRARY=$(readlink -f "$LIBRARY_PATH" | sed 's/.*\.so\.//'); fi
    SMI=$(smi_of)
    CORE=$(core_packages | words)
    UNFINISHED=$(rows | awk -F '\t' '
        $4 !~ / (installed|config-files|not-installed)$/ || ($4 !~ / ok / && $4 !~ / not-installed$/) { print $1 }' | words)
    ABSENT_HOLDS=$(driver_rows | awk -F '\t' '$4 ~ /^hold .* (not-installed|config-files)$/ { print $1 }' | words)
    VERSIONS=$(driver_versions | sort -u | words)
    # apt reads its sources without any network; as the root of a private cache nothing of the host's is written.
    SOURCES=$(apt-get -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= indextargets 2>&1 >/dev/null | grep '^E: ')
    NOUVEAU=no
    for read_device in /sys/bus/pci/drivers/nouveau/0*; do
        if [ -e "$read_device" ]; then NOUVEAU=yes; fi
    done
    RUNFILE=no
    if [ -x /usr/bin/nvidia-uninstall ] && ! owned /usr/bin/nvidia-uninstall; then RUNFILE=yes; fi
    OUTSIDE=$(outside | sed -e '$!s/$/,/' | words)
}
# Upstream versions of the driver's packages that must all be one; companions and modules of kernels have their own.
driver_versions() {
    version_packages >"$WORK/versions"
    driver_rows | awk -F '\t' -v names="$WORK/versions" 'BEGIN { while ((getline name <names) > 0) counts[name] = 1 }
        $4 ~ / (not-installed|config-files)$/ || !($1 in counts) { next }
        { version = $3; sub(/^[0-9]*:/, "", version); sub(/-[^-]*$/, "", version); print version }'
}
# Right on the disk: the kernel that boots next has a module of the libraries' version, and dpkg is done with the driver.
right_on_disk() {
    [ -n "$MODULE" ] && [ -n "$LIBRARY" ] && [ "$MODULE_VERSION" = "$LIBRARY" ] || return 1
    for right_name in $UNFINISHED; do
        if is_driver "$right_name"; then return 1; fi
    done
    if secure_boot && [ -z "$(modinfo -F signer "$MODULE" 2>/dev/null)" ]; then return 1; fi
    return 0
}
# What brings a driver from outside apt need not lie on this disk: there, that it works is all that can be asked.
right_now() {
    if [ -z "$OUTSIDE" ]; then right_on_disk && [ "$RUNNING" = "$NEXT" ] || return 1; fi
    works
}
# Say what is wrong, in the words and codes of diagnose.
tell() {
    FOUND=''
    say "Host:    ${HOST:-unknown} ($(hostname 2>/dev/null)), $GPUS NVIDIA GPUs"
    say "Kernel:  $RUNNING runs, $NEXT boots next"
    say "Driver:  libraries ${LIBRARY:-none}, module for $NEXT ${MODULE_VERSION:-none}, loaded ${LOADED:-none}"
    say "Found:"
    if [ "$GPUS" = 0 ]; then finding gpus.missing "no NVIDIA GPU is on the PCI bus: look at the card, its power and the firmware"; fi
    if [ -n "$UNFINISHED" ]; then finding dpkg.unfinished "dpkg was cut off or failed at: $UNFINISHED"; fi
    if [ -n "$ABSENT_HOLDS" ]; then finding holds.not_installed "holds on packages that are not there make installations fail: $ABSENT_HOLDS"; fi
    case $SOURCES in
    *'Conflicting values'*) finding apt.signed_by_conflict "apt reads nothing: $SOURCES" ;;
    ?*) finding apt.malformed_source "apt cannot read its sources: $SOURCES" ;;
    esac
    if [ -n "$OUTSIDE" ]; then
        if [ -n "$CORE" ]; then
            finding driver.two_installers "a driver from outside apt ($OUTSIDE) and apt's packages lie over each other"
        else
            say "  this driver came from outside apt: $OUTSIDE"
        fi
        if works; then say "  it works: module and libraries are $LIBRARY, nvidia-smi answers"; fi
    fi
    case $VERSIONS in
    *' '*) finding driver.mixed_versions "packages of the driver have different versions: $VERSIONS" ;;
    esac
    if [ -z "$LIBRARY" ]; then
        if [ -n "$OUTSIDE" ]; then
            finding driver.library_missing "no library of the driver is in the loader's folders"
        else
            finding driver.missing "no driver is installed"
        fi
    elif [ -z "$MODULE" ] && [ -n "$OUTSIDE" ] && [ "$RUNNING" = "$NEXT" ] && [ -n "$LOADED" ]; then
        : # it is loaded: what brings it at boot is known to whoever installed it
    elif [ -z "$MODULE" ]; then
        finding kernel.no_module_for_next_boot "kernel $NEXT has no nvidia module: after a reboot there is no GPU"
        if [ ! -e "/lib/modules/$NEXT/build" ] && has_dkms; then
            finding kernel.headers_missing "linux-headers-$NEXT is not there, so DKMS cannot build the module"
        fi
    elif [ "$MODULE_VERSION" != "$LIBRARY" ]; then
        finding kernel.module_version "the module for $NEXT is $MODULE_VERSION, the libraries are $LIBRARY"
    elif secure_boot && [ -z "$(modinfo -F signer "$MODULE" 2>/dev/null)" ]; then
        finding secureboot.unsigned_module "Secure Boot is on and $MODULE is not signed"
    fi
    if [ -n "$LOADED" ] && [ -n "$LIBRARY" ] && [ "$LOADED" != "$LIBRARY" ]; then
        finding driver.stale_module "module $LOADED is loaded, the libraries are $LIBRARY: a reboot mends that"
    elif [ -z "$LOADED" ] && [ -n "$LIBRARY" ]; then
        finding driver.not_loaded "the nvidia module is not loaded"
    fi
    if [ "$NOUVEAU" = yes ]; then finding nouveau.still_loaded "nouveau has the GPUs"; fi
    if [ -e /boot ] && [ "$(df -Pk /boot | awk 'NR == 2 { print ($4 < 65536) }')" = 1 ]; then
        finding disk.boot_full "less than 64 MiB are free for /boot: remove a kernel that is not $RUNNING or $NEXT by its exact name"
    fi
    if [ ! -e "/boot/initrd.img-$NEXT" ] && [ -e "/boot/vmlinuz-$NEXT" ]; then
        finding boot.initramfs_broken "/boot/initrd.img-$NEXT is not there: kernel $NEXT would not find its disks"
    fi
    if [ -z "$FOUND" ]; then say "  nothing that needs mending"; fi
}
has_dkms() {
    driver_packages | grep -q '^nvidia-dkms'
}
