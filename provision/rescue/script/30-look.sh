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
    return 1
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
    LIBRARY=''
    for read_library in /usr/lib/*-linux-gnu/libnvidia-ml.so.1 /usr/lib64/libnvidia-ml.so.1; do
        if [ -e "$read_library" ]; then LIBRARY=$(readlink -f "$read_library" | sed 's/.*\.so\.//'); fi
    done
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
}
# Upstream versions of the driver's packages that must all be one; companions and modules of kernels have their own.
driver_versions() {
    driver_rows | awk -F '\t' -v companions=" $COMPANIONS " '
        $4 ~ / (not-installed|config-files)$/ || $1 ~ /^(linux-|nvidia-driver-pinning-|libnvidia-egl-)/ { next }
        index(companions, " " $1 " ") { next }
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
right_now() {
    right_on_disk && [ "$RUNNING" = "$NEXT" ] && [ "$LOADED" = "$LIBRARY" ] && nvidia-smi >/dev/null 2>&1
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
    if [ "$RUNFILE" = yes ]; then
        if [ -n "$VERSIONS" ]; then
            finding driver.two_installers "a .run file and packages have both installed a driver: --purge removes both"
        else
            say "  a .run file installed this driver; apt does not own it (--purge removes it by its own uninstaller)"
        fi
    fi
    case $VERSIONS in
    *' '*) finding driver.mixed_versions "packages of the driver have different versions: $VERSIONS" ;;
    esac
    if [ -z "$LIBRARY" ]; then
        finding driver.missing "no driver is installed"
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
