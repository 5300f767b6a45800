"""Containers on simulated hosts: the toolkit's packages as stand-ins, and Debian's real dockerd and containerd."""
