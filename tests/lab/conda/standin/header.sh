#!/bin/sh
#
# Made by tests/lab/conda: a stand-in for an installer, for simulated hosts. It takes the options, gives the messages and
# exit codes, and leaves the traces of an installer that constructor 3.13 makes; what it installs is a stand-in too.
#
# NAME:  @NAME@
# VER:   @VERSION@
# PLAT:  linux-64
# MD5:   @MD5@

set -eu
unset LD_LIBRARY_PATH LD_PRELOAD LD_AUDIT

case "$0" in
    *.sh) ;;
    *) printf 'Please run using "bash"/"dash"/"sh"/"zsh", but not "." or "source".\n' >&2; exit 1 ;;
esac
min_glibc_version="@GLIBC@"
system_glibc_version="${CONDA_OVERRIDE_GLIBC:-$(ldd --version | awk 'NR==1{print $NF}')}"
if [ "$(printf '%s\n%s\n' "$min_glibc_version" "$system_glibc_version" | sort -V | head -n 1)" != "$min_glibc_version" ]; then
    echo "Installer requires GLIBC >=${min_glibc_version}, but system has ${system_glibc_version}."
    exit 1
fi

PREFIX="${HOME:-/opt}/@FOLDER@"
BATCH=0 FORCE=0 SKIP_SCRIPTS=0 TEST=0 INIT=0
USAGE="
usage: $0 [options]

Installs @NAME@ @VERSION@
-b           run install in batch mode (without manual intervention),
             it is expected the license terms (if any) are agreed upon
-f           no error if install prefix already exists
-h           print this help message and exit
-p PREFIX    install prefix, defaults to $PREFIX, must not contain spaces.
-s           skip running pre/post-link/install scripts
-m           disable the creation of menu items / shortcuts
-u           update an existing installation
-t           run package tests after installation (may install conda-build)
-c           run 'conda init' after installation (only applies to batch mode)
"
while getopts "bifhkp:smutc" x; do
    case "$x" in
        h) printf "%s\n" "$USAGE"; exit 2 ;;
        b) BATCH=1 ;;
        i) BATCH=0 ;;
        f|u) FORCE=1 ;;
        p) PREFIX="$OPTARG" ;;
        s) SKIP_SCRIPTS=1 ;;
        t) TEST=1 ;;
        c) INIT=1 ;;
        k|m) ;;
        *) printf "ERROR: did not recognize option '%s', please try -h\n" "$x"; exit 1 ;;
    esac
done

if [ "$BATCH" = 0 ]; then
    printf "Do you accept the license terms? [yes|no]\n>>> "
    read -r ans || ans=no
    case "$ans" in
        [Yy][Ee][Ss]) ;;
        *) printf "The license agreement wasn't approved, aborting installation.\n"; exit 2 ;;
    esac
fi
case "$PREFIX" in
    *\ *) printf "ERROR: Cannot install into directories with spaces\n" >&2; exit 1 ;;
esac
if [ "$FORCE" = 0 ] && [ -e "$PREFIX" ]; then
    printf "ERROR: File or directory already exists: '%s'\n" "$PREFIX" >&2
    printf "If you want to update an existing installation, use the -u option.\n" >&2
    exit 1
fi

total_installation_size_kb="@KIB@"
total_installation_size_mb="$(( total_installation_size_kb / 1024 ))"
if ! mkdir -p "$PREFIX"; then
    printf "ERROR: Could not create directory: '%s'.\n" "$PREFIX" >&2
    printf "Check permissions and available disk space (%s MB needed).\n" "$total_installation_size_mb" >&2
    exit 1
fi
free_disk_space_kb="$(df -Pk "$PREFIX" | tail -n 1 | awk '{print $4}')"
free_disk_space_kb_with_buffer="$((free_disk_space_kb - 50 * 1024))"
if [ "@CHECKS_SPACE@" = 1 ] && [ "$free_disk_space_kb_with_buffer" -lt "$total_installation_size_kb" ]; then
    printf "ERROR: Not enough free disk space. Only %s MB are available, but %s MB are required (leaving a 50 MB buffer).\n" \
        "$((free_disk_space_kb_with_buffer / 1024))" "$total_installation_size_mb" >&2
    exit 1
fi
PREFIX=$(cd "$PREFIX"; pwd | sed 's@//@/@')
export PREFIX
printf "PREFIX=%s\n" "$PREFIX"

# What a test wants to happen: "die=STEP" or "pause=STEP:SECONDS" in ~/.lab-conda or in LAB_CONDA.
wish="${LAB_CONDA:-} $(cat "${HOME:-/nonexistent}/.lab-conda" 2>/dev/null || printf '')"
step() {
    case " $wish " in
        *" pause=$1:"*)
            seconds="${wish##*pause="$1":}"
            touch "$PREFIX/.lab-paused"
            sleep "${seconds%% *}"
            rm -f "$PREFIX/.lab-paused" ;;
    esac
    case " $wish " in
        *" die=$1 "*) kill -KILL $$ ;;
    esac
}

last_line=$(grep -anm 1 '^@@END_HEADER@@' "$0" | sed 's/:.*//')
if ! tail -n +$((last_line + 1)) "$0" | md5sum - | grep -q "@MD5@"; then
    printf "WARNING: md5sum mismatch of tar archive\n" >&2
fi
cd "$PREFIX"
printf "Unpacking bootstrapper...\n"
printf '#!/bin/sh\nexit 0\n' > "$PREFIX/_conda"
chmod +x "$PREFIX/_conda"
"$PREFIX/_conda" || exit 1
mkdir -p "$PREFIX/install_tmp"
[ "$(id -u)" -eq 0 ] || touch "$PREFIX/.nonadmin"
step bootstrap

printf "Unpacking payload...\n"
: > "$PREFIX/preconda.tar.bz2"
tail -n +$((last_line + 1)) "$0" | tar xzf - -C "$PREFIX/install_tmp" || exit 1
rm -f "$PREFIX/preconda.tar.bz2"
touch "$PREFIX/.messages.txt"
step unpack
test -d ~/.conda || mkdir -p ~/.conda

printf "\nInstalling base environment...\n\n"
python3=$(readlink -f "$(command -v python3)")
"$python3" "$PREFIX/install_tmp/link.py" "$PREFIX" "$PREFIX/install_tmp" first
step link
"$python3" "$PREFIX/install_tmp/link.py" "$PREFIX" "$PREFIX/install_tmp" rest || exit 1
mkdir -p "$PREFIX/envs"
printf 'channels:\n  - @CHANNEL@\n\n' > "$PREFIX/.condarc"
step post
rm -rf "$PREFIX/install_tmp" "$PREFIX/.messages.txt"
printf "installation finished.\n"
if [ "$INIT" = 1 ]; then
    "$PREFIX/bin/conda" init
fi
if [ "$TEST" = 1 ]; then
    printf "ERROR: Testing not possible without keep_pkgs\n"
    exit 1
fi
exit 0
@@END_HEADER@@
