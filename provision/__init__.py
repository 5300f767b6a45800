"""gpu-provision: from bare Ubuntu GPU hosts to working ones, proven and kept."""

__version__ = "0.1.0"
