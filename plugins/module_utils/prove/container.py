# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Prove that containers get the GPUs: start one with nothing but nvidia-smi in it, by --gpus and by CDI.

The image is the one that is asked for, else one that is made of the host's C library (nothing is fetched). An image that
cannot be had is a skip with its reason, not a broken GPU. Every program is bounded in time; the container goes, and so
does an image that was not there before. Docker is asked over its own socket, whatever context somebody has chosen.

Standard library only, Python 3.8 and later.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import time

from ansible_collections.gpu.provision.plugins.module_utils.lib import host_tree, outputs

SOCKET = "/var/run/docker.sock"
NAME = "gpu-provision-verify"
GPU = "nvidia.com/gpu=all"
# glibc's parts that nvidia-smi is linked with (source: readelf -d nvidia-smi of 580), by dpkg's architecture: loader, folder.
LOADERS = {
    "x86_64": ("/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu"),
    "aarch64": ("/lib/ld-linux-aarch64.so.1", "/lib/aarch64-linux-gnu"),
}
LIBRARIES = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")


class Attempt(object):
    """What a program said: rc (None where it was ended for its time), text of both outputs."""

    def __init__(self, rc, text):
        self.rc, self.text = rc, text

    @property
    def ok(self):
        return self.rc == 0

    def lines(self, most=6):
        return [line.rstrip() for line in self.text.splitlines() if line.strip()][-most:]


def plan(args):
    """[(id, function(timeout_s) -> what was measured)] for what is asked for.

    args: {docker, docker_cdi, podman: bool, image: text, gpus: number}; None: nobody asks for this check.
    """
    found = []
    if args is None:
        return found
    if args.get("docker"):
        found.append(("container.run[docker]", lambda timeout: prove_docker(args, False, timeout)))
        found.append(("container.run[docker-cdi]", lambda timeout: prove_docker(args, True, timeout)))
    if args.get("podman"):
        found.append(("container.run[podman]", lambda timeout: prove_podman(args, timeout)))
    return found or [("container.run", lambda timeout: skip("no container runtime is asked for", status="skip"))]


def skip(message, evidence=(), status="not_run"):
    """See proofs.skipped: what is asked for and could not be tried is reported as not run."""
    return {"skip": message, "evidence": list(evidence), "status": status}


def prove_docker(args, cdi, timeout):
    """Docker gives all GPUs to a container: by --gpus, or by CDI."""
    program = _which("docker")
    if program is None:
        return skip("there is no program docker")
    if not os.access(SOCKET, os.R_OK | os.W_OK):
        return skip("docker does not run here, or denies access (%s)" % SOCKET)
    if cdi and not args.get("docker_cdi"):
        return skip(
            "this docker takes no CDI devices (from 25.0 with features.cdi, from 28.3 by default)", status="skip"
        )
    # --host stands above whatever context somebody has chosen.
    docker = _Runtime(program, ["--host", "unix://" + SOCKET], dict(os.environ), timeout)
    device = ["--device", GPU] if cdi else ["--gpus", "all"]
    return docker.prove(args, device)


def prove_podman(args, timeout):
    """Podman gives all GPUs to a container, by CDI."""
    program = _which("podman")
    if program is None:
        return skip("there is no program podman")
    return _Runtime(program, [], dict(os.environ), timeout).prove(args, ["--device", GPU])


class _Runtime(object):
    """docker or podman: the commands are the same. timeout: seconds for the whole proof."""

    def __init__(self, program, options, env, timeout):
        self.program, self.options, self.env = program, options, dict(env, LC_ALL="C.UTF-8")
        self.deadline = time.monotonic() + timeout
        self.name = "%s-%d" % (NAME, os.getpid())

    def call(self, arguments, data=None, least=0.0):
        """Run one command of it; least: seconds that it gets in any case (cleaning up)."""
        left = max(least, self.deadline - time.monotonic(), 0.1)
        return run([self.program] + self.options + arguments, left, self.env, data)

    def prove(self, args, device):
        image, made, why, evidence = self.image(args.get("image") or "")
        if image is None:
            return skip(why, evidence)
        try:
            started = time.monotonic()
            command = ["run", "--rm", "--name", self.name, "--network", "none"]
            command += ["--env", "NVIDIA_DRIVER_CAPABILITIES=utility"]
            attempt = self.call(command + device + ["--entrypoint", "nvidia-smi", image, "-L"])
            seconds = time.monotonic() - started
        finally:
            self.call(["rm", "--force", self.name], least=10.0)
            if made:
                self.call(["rmi", "--force", image], least=10.0)
        where = "%s run %s" % (os.path.basename(self.program), " ".join(device))
        found = {"rc": attempt.rc, "text": attempt.text, "where": where, "seconds": seconds, "evidence": evidence}
        return {"found": dict(found, gpus=args.get("gpus") or 0)}

    def image(self, wanted):
        """(name or None, whether it goes afterwards, why there is none, evidence)."""
        if wanted:
            if self.call(["image", "inspect", "--format", "{{.Id}}", wanted]).ok:
                return wanted, False, None, ["image %s" % wanted]
            pulled = self.call(["pull", "--quiet", wanted])
            if not pulled.ok:
                said = pulled.lines(2) or ["it did not end in time"]
                return (
                    None,
                    False,
                    "image %s is not here and cannot be pulled: %s" % (wanted, said[-1]),
                    pulled.lines(),
                )
            return wanted, True, None, ["image %s, pulled and removed again" % wanted]
        data = scratch()
        if data is None:
            return (
                None,
                False,
                "no image can be made of this host's C library; container_toolkit_test_image names one",
                [],
            )
        name = "%s:%d" % (NAME, os.getpid())
        made = self.call(["import", "-", name], data)
        if not made.ok:
            return (
                None,
                False,
                "no image can be made here: %s" % (made.lines(1) or ["no answer in time"])[-1],
                made.lines(),
            )
        return name, True, None, ["image of the host's own C library"]


def scratch(root="/", machine=None):
    """A root file system for nvidia-smi as a tar (bytes): the host's C library; None where it is not found.

    etc/debian_version tells the toolkit where libraries belong (source: libnvidia-container, nvc_container.c).
    """
    loader, folder = LOADERS.get(machine or os.uname().machine, (None, None))
    if loader is None:
        return None
    paths = [loader] + ["%s/%s" % (folder, name) for name in LIBRARIES]
    found = [path for path in paths if os.path.exists(root.rstrip("/") + path)]
    # Since glibc 2.34 all but the first two may be empty or gone.
    if found[:2] != paths[:2]:
        return None
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in ("tmp", "etc", "usr", "usr/bin", "usr/lib", "usr/lib/" + os.path.basename(folder), "sbin"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        _add(archive, "etc/debian_version", b"scratch\n")
        for path in found:
            _add(archive, path.lstrip("/"), host_tree.read_file(os.path.realpath(root.rstrip("/") + path)), 0o755)
    return out.getvalue()


def _add(archive, name, data, mode=0o644):
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))


def run(argv, timeout, env, data=None):
    """Start a program with nothing of ours open, and end its whole group when its time is over. Returns an Attempt."""
    try:
        child = subprocess.Popen(  # noqa: S603 - a list, no shell
            argv,
            stdin=subprocess.PIPE if data is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
            cwd="/",
        )
    except OSError as error:
        return Attempt(127, "%s: %s" % (argv[0], error.strerror))
    output = outputs.Output(child, data)
    try:
        out, _ = output.wait(timeout)
        return Attempt(child.returncode, out.decode("utf-8", "replace"))
    except subprocess.TimeoutExpired:
        out, _ = output.kill()
        return Attempt(None, out.decode("utf-8", "replace"))
    except BaseException:
        output.kill()
        raise


def _which(name):
    for folder in ("/usr/bin", "/usr/local/bin", "/bin"):
        path = "%s/%s" % (folder, name)
        if os.access(path, os.X_OK):
            return path
    return None
