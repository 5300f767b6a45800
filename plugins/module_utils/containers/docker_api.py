# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Ask a docker daemon over its socket: no docker program, no context of anybody's, only reads.

Runs on hosts: standard library only, any Python from 3.8.
"""

from __future__ import annotations

import json
import socket

from ansible_collections.gpu.provision.plugins.module_utils.containers import daemon_flags, docker_proxy

_MOST_BYTES = 16 << 20


class DockerError(Exception):
    """The daemon did not answer, or not with what was asked for."""


class Client(object):
    """One daemon. path: its socket; timeout: seconds for each answer."""

    def __init__(self, path=daemon_flags.SOCKET, timeout=10.0):
        self.path, self.timeout = path, timeout

    def get(self, path):
        """What GET path answers, as JSON's data. Raises DockerError."""
        # Without a version in front the daemon takes its own: no version of ours that it may be too new for.
        # Imported only here: with ssl it takes longer than all else that reads a host.
        import http.client

        connection = http.client.HTTPConnection("docker", timeout=self.timeout)
        try:
            # HTTP over a Unix socket
            connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.sock.settimeout(self.timeout)
            connection.sock.connect(self.path)
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read(_MOST_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise DockerError("no answer from %s: %s" % (self.path, error)) from None
        finally:
            connection.close()
        if answer.status != 200:
            raise DockerError(
                "%s answers %d to %s: %s" % (self.path, answer.status, path, body[:200].decode("utf-8", "replace"))
            )
        try:
            return json.loads(body.decode("utf-8"))
        except (ValueError, RecursionError):
            raise DockerError("%s answers no JSON to %s" % (self.path, path)) from None

    def info(self):
        """What the daemon runs with: version, runtimes {name: path}, default_runtime, cgroup_driver, live_restore,
        rootless, data_root, cdi_spec_dirs, running (number of containers), proxy {http, https, no_proxy}."""
        answer = self.get("/info")
        return {
            "version": answer.get("ServerVersion") or "",
            "runtimes": {name: (row or {}).get("path", "") for name, row in (answer.get("Runtimes") or {}).items()},
            "default_runtime": answer.get("DefaultRuntime") or "",
            "cgroup_driver": answer.get("CgroupDriver") or "",
            "live_restore": bool(answer.get("LiveRestoreEnabled")),
            "rootless": any("rootless" in str(option) for option in answer.get("SecurityOptions") or ()),
            "data_root": answer.get("DockerRootDir") or "",
            "cdi_spec_dirs": answer.get("CDISpecDirs") or [],
            "running": answer.get("ContainersRunning") or 0,
            "proxy": docker_proxy.of_info(answer),
        }

    def running(self, gpu_pids=()):
        """The containers that run: [{id, name, image, gpu}]; gpu_pids: processes that have a GPU device open, as a
        function of a container's id to bool or a collection of container ids."""
        found = []
        for row in self.get("/containers/json"):
            ident = row.get("Id") or ""
            try:
                detail = self.get("/containers/%s/json" % ident)
            except DockerError:
                # it ended meanwhile
                continue
            found.append(
                {
                    "id": ident[:12],
                    "name": (row.get("Names") or [ident[:12]])[0].lstrip("/"),
                    "image": row.get("Image") or "",
                    "gpu": wants_gpu(detail) or ident in gpu_pids,
                }
            )
        return found


def wants_gpu(detail):
    """True when a container, as the daemon describes it, was given GPUs: by --gpus, CDI, runtime, device or privilege."""
    host = detail.get("HostConfig") or {}
    for request in host.get("DeviceRequests") or ():
        kinds = [kind for group in request.get("Capabilities") or () for kind in group]
        names = request.get("DeviceIDs") or ()
        if (
            request.get("Driver") == "nvidia"
            or "gpu" in kinds
            or any(str(n).startswith("nvidia.com/gpu") for n in names)
        ):
            return True
    if any(str(row.get("PathOnHost", "")).startswith("/dev/nvidia") for row in host.get("Devices") or ()):
        return True
    environment = (detail.get("Config") or {}).get("Env") or ()
    visible = dict(str(entry).partition("=")[::2] for entry in environment).get("NVIDIA_VISIBLE_DEVICES")
    return host.get("Runtime") == "nvidia" and visible not in (None, "", "void", "none")
