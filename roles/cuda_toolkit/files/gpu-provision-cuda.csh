# written by gpu-provision; changes here are overwritten
# CUDA on the PATH of every csh and tcsh that reads /etc/csh.cshrc, and cuda-select for one of them. Starts no program
# and prints nothing by itself. What each kind of session sees: docs/environment.md of gpu-provision.

# A shell below one that has selected keeps what it got: the selection stays in front.
if ( $?PATH && ! $?_CUDA_SELECT && -d /usr/local/cuda/bin ) then
    # Behind /usr/bin it would lose to the nvcc of the distribution.
    set _cuda_front = ""
    foreach _cuda_folder ( $path:q )
        if ( "$_cuda_front" == "" ) then
            if ( "$_cuda_folder" == /usr/local/cuda/bin ) set _cuda_front = ours
            if ( "$_cuda_folder" == /usr/bin || "$_cuda_folder" == /bin ) set _cuda_front = system
        endif
    end
    if ( "$_cuda_front" != ours ) setenv PATH "/usr/local/cuda/bin:${PATH}"
    unset _cuda_front _cuda_folder
    if ( ! $?CUDA_HOME ) setenv CUDA_HOME /usr/local/cuda
endif
# cuda_toolkit_ld_library_path; behind what is there, and without adding an empty element: that means the current folder.
if ( @ld_library_path@ == true && -d /usr/local/cuda/lib64 ) then
    if ( ! $?LD_LIBRARY_PATH ) setenv LD_LIBRARY_PATH ""
    if ( "${LD_LIBRARY_PATH}" == "" ) then
        setenv LD_LIBRARY_PATH /usr/local/cuda/lib64
    else if ( ":${LD_LIBRARY_PATH}:" =~ *:/usr/local/cuda/lib64:* ) then
        # already there
    else if ( "${LD_LIBRARY_PATH}" =~ *: ) then
        setenv LD_LIBRARY_PATH "${LD_LIBRARY_PATH}/usr/local/cuda/lib64"
    else
        setenv LD_LIBRARY_PATH "${LD_LIBRARY_PATH}:/usr/local/cuda/lib64"
    endif
endif
# csh has no functions and no way to take an element out of a list: sh does it and csh evaluates the answer.
alias cuda-select 'eval "`/bin/sh /etc/gpu-provision/cuda-select.sh csh \!*`"'
