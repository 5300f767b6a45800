# Stand-in for conda's shell function: activate works where this file was read, and only there.
conda() {
    case "$1" in
        activate)
            case "$2" in
                ""|base) CONDA_PREFIX="/opt/lab_placeholder" ;;
                /*) CONDA_PREFIX="$2" ;;
                *) CONDA_PREFIX="/opt/lab_placeholder/envs/$2" ;;
            esac
            if [ ! -d "$CONDA_PREFIX/conda-meta" ]; then
                echo "EnvironmentNameNotFound: Could not find conda environment: $2" >&2
                unset CONDA_PREFIX
                return 1
            fi
            export CONDA_PREFIX PATH="$CONDA_PREFIX/bin:$PATH"
            for script in "$CONDA_PREFIX"/etc/conda/activate.d/*.sh; do
                [ ! -r "$script" ] || . "$script"
            done
            ;;
        deactivate)
            PATH="${PATH#"$CONDA_PREFIX/bin:"}"
            unset CONDA_PREFIX
            ;;
        *) "/opt/lab_placeholder/bin/conda" "$@" ;;
    esac
}
case ":$PATH:" in
    *":/opt/lab_placeholder/condabin:"*) ;;
    *) PATH="/opt/lab_placeholder/condabin:$PATH" ;;
esac
