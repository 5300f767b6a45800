"""Pull: a host keeps itself as the inventory says, without a controller. The role gpu_pull installs it, systemd runs it.

``source`` fetches the inventory, ``run`` applies it to this host, ``report`` writes what Prometheus' node_exporter reads.
"""
