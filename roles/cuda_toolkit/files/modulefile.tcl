#%Module1.0
# written by gpu-provision; changes here are overwritten

set root /usr/local/cuda-@version@

proc ModulesHelp { } {
    puts stderr "CUDA Toolkit @version@: PATH, LD_LIBRARY_PATH and CUDA_HOME lead to /usr/local/cuda-@version@."
}
module-whatis "CUDA Toolkit @version@: nvcc and the libraries of this version"

conflict cuda
prepend-path PATH $root/bin
prepend-path LD_LIBRARY_PATH $root/lib64
if {[info commands pushenv] ne ""} {
    pushenv CUDA_HOME $root
} else {
    # Environment Modules before 5.1 (Ubuntu up to 22.04): CUDA_HOME is unset after an unload.
    setenv CUDA_HOME $root
}
