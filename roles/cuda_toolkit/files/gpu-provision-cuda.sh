# written by gpu-provision; changes here are overwritten
# shellcheck shell=sh
# CUDA on the PATH of every login shell, and cuda-select for one shell. Starts no program and prints nothing at login.
# What each kind of session sees: docs/environment.md of gpu-provision.

cuda_select() {
    if [ -n "${ZSH_VERSION-}" ]; then emulate -L sh; fi
    case "$#:${1-}" in
    1:--list) _cuda_select_list ;;
    1:none) _cuda_select_undo ;;
    1: | 1:-* | 0:* | [2-9]:* | [1-9][0-9]*:*)
        echo "usage: cuda-select VERSION | --list | none" >&2
        return 2
        ;;
    *)
        if _cuda_select_has "$1"; then
            _cuda_select_undo
            _cuda_select_do "/usr/local/cuda-$1"
        else
            echo "cuda-select: there is no CUDA $1 in /usr/local; there is: $(_cuda_select_versions)" >&2
            return 1
        fi
        ;;
    esac
}

# No local variables below: ksh93 has none for functions of this form. What needs some runs in a subshell.

_cuda_select_has() {
    case $1 in
    *[!0-9.]* | *.*.* | .* | *.) return 1 ;;
    *.*) [ -d "/usr/local/cuda-$1/bin" ] || [ -d "/usr/local/cuda-$1/lib64" ] ;;
    *) return 1 ;;
    esac
}

# The exported _CUDA_SELECT* say what was put in and what was there before, so that a shell started from this one can
# undo it. Lists keep no copy: what others add after a select stays, only our own elements are taken out again.
_cuda_select_do() {
    _CUDA_SELECT=$1
    _CUDA_SELECT_P=${PATH+set} # as it was: set, empty, or nothing for unset
    if [ -n "${PATH-}" ]; then PATH=$1/bin:$PATH; else _CUDA_SELECT_P=${PATH+empty} PATH=$1/bin; fi
    _CUDA_SELECT_L=${LD_LIBRARY_PATH+set}
    if [ -n "${LD_LIBRARY_PATH-}" ]; then
        LD_LIBRARY_PATH=$1/lib64:$LD_LIBRARY_PATH
    else
        _CUDA_SELECT_L=${LD_LIBRARY_PATH+empty} LD_LIBRARY_PATH=$1/lib64
    fi
    _CUDA_SELECT_HOME=${CUDA_HOME+"=$CUDA_HOME"}
    CUDA_HOME=$1
    export PATH LD_LIBRARY_PATH CUDA_HOME _CUDA_SELECT _CUDA_SELECT_P _CUDA_SELECT_L _CUDA_SELECT_HOME
    if [ -n "${CUDA_PATH+set}" ]; then
        _CUDA_SELECT_ALSO="=$CUDA_PATH"
        CUDA_PATH=$1
        export CUDA_PATH _CUDA_SELECT_ALSO
    fi
}

_cuda_select_undo() {
    if [ -z "${_CUDA_SELECT-}" ]; then return 0; fi
    if [ "${PATH-}" = "$_CUDA_SELECT/bin" ]; then
        if [ -n "${_CUDA_SELECT_P-}" ]; then PATH=; else unset PATH; fi
    elif [ -n "${PATH-}" ]; then
        _cuda_select_without "$PATH" "$_CUDA_SELECT/bin"
        PATH=$_cuda_list
    fi
    if [ "${LD_LIBRARY_PATH-}" = "$_CUDA_SELECT/lib64" ]; then
        if [ -n "${_CUDA_SELECT_L-}" ]; then LD_LIBRARY_PATH=; else unset LD_LIBRARY_PATH; fi
    elif [ -n "${LD_LIBRARY_PATH-}" ]; then
        _cuda_select_without "$LD_LIBRARY_PATH" "$_CUDA_SELECT/lib64"
        LD_LIBRARY_PATH=$_cuda_list
    fi
    if [ "${CUDA_HOME-}" = "$_CUDA_SELECT" ]; then
        case ${_CUDA_SELECT_HOME-} in
        =*) CUDA_HOME=${_CUDA_SELECT_HOME#=} ;;
        *) unset CUDA_HOME ;;
        esac
    fi
    if [ "${CUDA_PATH-}" = "$_CUDA_SELECT" ]; then
        case ${_CUDA_SELECT_ALSO-} in
        =*) CUDA_PATH=${_CUDA_SELECT_ALSO#=} ;;
        esac
    fi
    unset _CUDA_SELECT _CUDA_SELECT_P _CUDA_SELECT_L _CUDA_SELECT_HOME _CUDA_SELECT_ALSO _cuda_list
}

# Sets _cuda_list to the list $1 without the first element that is $2; other elements stay as they are, empty ones too.
_cuda_select_without() {
    _cuda_list=:$1:
    case $_cuda_list in
    *":$2:"*) _cuda_list=${_cuda_list%%":$2:"*}:${_cuda_list#*":$2:"} ;;
    esac
    _cuda_list=${_cuda_list#:}
    _cuda_list=${_cuda_list%:}
}

# Prints the versions that are there, oldest first, in one line.
_cuda_select_versions() (
    set +f
    found=
    for folder in /usr/local/cuda-[0-9].[0-9]* /usr/local/cuda-[0-9][0-9].[0-9] /usr/local/cuda-[0-9][0-9].[0-9][0-9]; do
        if _cuda_select_has "${folder#/usr/local/cuda-}"; then found="$found ${folder#/usr/local/cuda-}"; fi
    done
    if [ -n "$found" ]; then echo "${found# }"; else echo none; fi
)

_cuda_select_list() (
    IFS=' '
    for version in $(_cuda_select_versions); do
        if [ "$version" = none ]; then
            echo "cuda-select: there is no CUDA in /usr/local" >&2
            exit 1
        fi
        marks=
        if [ /usr/local/cuda -ef "/usr/local/cuda-$version" ]; then marks="  default"; fi
        if [ "${_CUDA_SELECT-}" = "/usr/local/cuda-$version" ]; then marks="$marks  selected"; fi
        release=$(_cuda_select_release "/usr/local/cuda-$version")
        echo "$version${release:+  release $release}$marks"
    done
)

# Prints the release of a toolkit, from its version.json; nothing where there is none: the smaller sets come without it.
_cuda_select_release() (
    release=
    part=
    if [ -r "$1/version.json" ]; then
        while IFS= read -r line || [ -n "$line" ]; do
            case $line in
            *'"cuda"'*)
                part=cuda
                line=${line#*'"cuda"'}
                ;;
            esac
            case $part$line in
            cuda*'"version"'*)
                line=${line#*'"version"'}
                line=${line#*'"'}
                release=${line%%'"'*}
                break
                ;;
            esac
        done <"$1/version.json"
    fi
    echo "$release"
)

_cuda_select_login() {
    if [ -n "${_CUDA_SELECT-}" ]; then
        # A shell below one that has selected: the selection stays in front.
        case ":${PATH-}:" in
        *":$_CUDA_SELECT/bin:"*) return 0 ;;
        esac
    fi
    if [ -d /usr/local/cuda/bin ]; then
        if [ -n "${PATH-}" ]; then
            # Behind /usr/bin it would lose to the nvcc of the distribution.
            _cuda_list=:$PATH:
            case ${_cuda_list%%:/usr/local/cuda/bin:*}: in
            *:/usr/bin:* | *:/bin:* | "$_cuda_list":)
                _cuda_select_without "$PATH" /usr/local/cuda/bin
                PATH=/usr/local/cuda/bin:$_cuda_list
                ;;
            esac
            export PATH
            unset _cuda_list
        fi
        if [ -z "${CUDA_HOME-}" ]; then
            CUDA_HOME=/usr/local/cuda
            export CUDA_HOME
        fi
    fi
    if [ -n "${_CUDA_SELECT-}" ] && [ -n "${PATH-}" ]; then PATH=$_CUDA_SELECT/bin:$PATH; fi
}

_cuda_select_login_libraries() {
    # cuda_toolkit_ld_library_path; behind what is there, and without empty elements: those mean the current folder.
    if [ ! -d /usr/local/cuda/lib64 ]; then return 0; fi
    case ":${LD_LIBRARY_PATH-}:" in
    *:/usr/local/cuda/lib64:*) return 0 ;;
    esac
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH-}:/usr/local/cuda/lib64
    while :; do
        case $LD_LIBRARY_PATH in
        :*) LD_LIBRARY_PATH=${LD_LIBRARY_PATH#:} ;;
        *::*) LD_LIBRARY_PATH=${LD_LIBRARY_PATH%%::*}:${LD_LIBRARY_PATH#*::} ;;
        *) break ;;
        esac
    done
    export LD_LIBRARY_PATH
}

if [ -z "${_cuda_select_only-}" ]; then
    _cuda_select_login
    if [ @ld_library_path@ = true ]; then _cuda_select_login_libraries; fi
fi
unset -f _cuda_select_login _cuda_select_login_libraries

# The name with a dash: bash and zsh allow it for functions, the others for aliases; bash in POSIX mode is one of those.
case "${BASH_VERSION+bash}${ZSH_VERSION+zsh}:${SHELLOPTS-}:" in
bash*:posix:* | :*) alias cuda-select=cuda_select ;;
*) eval 'cuda-select() { cuda_select "$@"; }' ;;
esac
