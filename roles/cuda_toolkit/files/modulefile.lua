-- written by gpu-provision; changes here are overwritten

local root = "/usr/local/cuda-@version@"

help("CUDA Toolkit @version@: PATH, LD_LIBRARY_PATH and CUDA_HOME lead to " .. root .. ".")
whatis("Name: cuda")
whatis("Version: @version@")
whatis("Description: CUDA Toolkit @version@: nvcc and the libraries of this version")

family("cuda")
prepend_path("PATH", root .. "/bin")
prepend_path("LD_LIBRARY_PATH", root .. "/lib64")
pushenv("CUDA_HOME", root)
