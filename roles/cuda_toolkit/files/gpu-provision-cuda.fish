# written by gpu-provision; changes here are overwritten
# CUDA on the PATH of every fish, and cuda-select for one of them. Starts no program and prints nothing by itself.
# What each kind of session sees: docs/environment.md of gpu-provision.

function __cuda_select_login
    # A shell below one that has selected: the selection stays in front.
    if set -q _CUDA_SELECT; and contains -- $_CUDA_SELECT/bin $PATH
        return
    end
    if test -d /usr/local/cuda/bin
        # Behind /usr/bin it would lose to the nvcc of the distribution.
        set -l front
        set -l others
        for folder in $PATH
            switch $folder
                case /usr/local/cuda/bin
                    test -n "$front"; or set front ours
                case '*'
                    set others $others $folder
                    contains -- $folder /usr/bin /bin; and test -z "$front"; and set front system
            end
        end
        test "$front" = ours; or set -gx PATH /usr/local/cuda/bin $others
        test -n "$CUDA_HOME"; or set -gx CUDA_HOME /usr/local/cuda
    end
    set -q _CUDA_SELECT; and set -gx PATH $_CUDA_SELECT/bin $PATH
end

function __cuda_select_login_libraries
    # cuda_toolkit_ld_library_path; behind what is there, and without empty elements: those mean the current folder.
    if test -d /usr/local/cuda/lib64; and not contains -- /usr/local/cuda/lib64 $LD_LIBRARY_PATH
        set -l folders
        for folder in $LD_LIBRARY_PATH
            test -n "$folder"; and set folders $folders $folder
        end
        set -gx LD_LIBRARY_PATH $folders /usr/local/cuda/lib64
    end
end

__cuda_select_login
test @ld_library_path@ = true; and __cuda_select_login_libraries
functions -e __cuda_select_login __cuda_select_login_libraries

function cuda-select --description 'Use another CUDA toolkit in this shell: VERSION, --list or none'
    set -l commands (/bin/sh /etc/gpu-provision/cuda-select.sh fish $argv)
    or return $status
    eval $commands
    return 0 # set -e of a variable that is not there says 4
end
