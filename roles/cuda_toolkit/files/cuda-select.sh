# written by gpu-provision; changes here are overwritten
# shellcheck shell=sh
# cuda-select for shells that are not sh-compatible: they evaluate what this prints.
# usage: /bin/sh cuda-select.sh csh|fish ARGUMENTS OF cuda-select

_cuda_for=$1
shift
# Started without a PATH, sh gives itself one, which it does not export.
case "
$(export -p)" in
*"
export PATH="* | *"
declare -x PATH="*) ;;
*) unset PATH ;;
esac
_cuda_select_only=true # functions, without what a login does
# shellcheck source=/dev/null
. /etc/profile.d/gpu-provision-cuda.sh

# Prints $1 in quotes of the shell that asks.
quoted() {
    rest=$1
    text=
    while [ -n "$rest" ]; do
        first=${rest%"${rest#?}"}
        rest=${rest#?}
        case $_cuda_for$first in
        "csh'" | "fish'") text="$text'\\''" ;;
        'csh!') text="$text'\\!'" ;;
        'fish\') text="$text\\\\" ;;
        *) text=$text$first ;;
        esac
    done
    printf "'%s'" "$text"
}

if [ "${1-}" = --list ] && lines=$(cuda_select --list); then
    while IFS= read -r line; do
        printf 'echo %s;' "$(quoted "$line")"
    done <<LINES
$lines
LINES
elif cuda_select "$@"; then
    for name in PATH LD_LIBRARY_PATH CUDA_HOME CUDA_PATH _CUDA_SELECT _CUDA_SELECT_P _CUDA_SELECT_L _CUDA_SELECT_HOME \
        _CUDA_SELECT_ALSO; do
        eval "is=\${$name+set} value=\${$name-}"
        case $_cuda_for$is in
        cshset) printf 'setenv %s %s;' "$name" "$(quoted "$value")" ;;
        csh) printf 'unsetenv %s;' "$name" ;;
        fishset) printf 'set -gx %s %s;' "$name" "$(quoted "$value")" ;;
        fish) printf 'set -eg %s;' "$name" ;;
        esac
    done
else
    code=$?
    # csh has no other way to get at the status; fish takes it from this program.
    if [ "$_cuda_for" = csh ]; then printf "/bin/sh -c 'exit %s'" "$code"; fi
    exit "$code"
fi
