"""What a host's containers need for GPUs: the toolkit, which runtimes, what has to change in them, or why it cannot be.

Pure: config + facts + catalog + candidates of apt + the driver's decision in, a decision out. Where apt has to be asked
first, the decision says so (``asks``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import trusted_keys
from ansible_collections.gpu.provision.plugins.module_utils.containers import daemon_flags, daemon_json, docker_proxy
from ansible_collections.gpu.provision.plugins.module_utils.containers import docker as containers_docker
from ansible_collections.gpu.provision.plugins.module_utils.containers import files as containers_files
from ansible_collections.gpu.provision.plugins.module_utils.containers import probe as containers_probe
from provision.catalog import Catalog
from provision.catalog.versions import key
from provision.errors import UsageError
from provision.facts import Facts
from provision.inventory.proxy import HostProxy
from provision.parts.candidates import Candidates
from provision.parts.containers import packages, preconditions
from provision.parts.containers.desired import ARCHIVE, TOOLKIT, ContainersConfig, ContainersDecision, ContainersTarget
from provision.parts.decision import Decision, join_and
from provision.parts.driver.installed import library_version

_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}\$?")
_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+([~.+A-Za-z0-9]*)(-[0-9A-Za-z.+~]+)?")


def resolve_containers(
    config: ContainersConfig,
    facts: Facts,
    catalog: Catalog,
    candidates: dict[str, Candidates],
    driver: Decision,
    proxy: HostProxy = HostProxy(),  # noqa: B008 - frozen
) -> ContainersDecision:
    """Decide containers for one host.

    candidates: what apt has there, by channel; the toolkit's repository is "container_toolkit", the archive "ubuntu".
    driver: the driver's decision; while it still asks, the driver is not judged. proxy: the host's, docker's too.
    """
    return _Resolver(config, facts, catalog, candidates, driver, proxy).run()


class _Resolver:
    def __init__(
        self,
        config: ContainersConfig,
        facts: Facts,
        catalog: Catalog,
        candidates: dict[str, Candidates],
        driver: Decision,
        proxy: HostProxy,
    ) -> None:
        self.proxy = proxy
        self.config, self.facts, self.catalog, self.candidates, self.driver = config, facts, catalog, candidates, driver
        self.containers, self.out = facts.containers, ContainersDecision()
        # runtimes that come with this plan
        self.fresh: list[str] = []
        self.todo: list[str] = []
        # keys that wait for a restart
        self.late: list[str] = []
        self.keys: list[str] = []

    def run(self) -> ContainersDecision:
        out = self.out
        if not self.config.wanted:
            return out
        self._check_values()
        if out.blockers:
            return out
        self._system()
        self._driver()
        versions = self._runtimes()
        if out.blockers:
            return out
        coming = self._from_archive(versions)
        if out.blockers:
            return out
        bounds = packages.limits(self.facts, self.catalog, self._consumers(versions))
        toolkit = packages.ToolkitChoice(self.config, self.facts, self.catalog, bounds, out)
        chosen = toolkit.choose(self.candidates.get(TOOLKIT))
        if out.blockers:
            return out
        asks = [] if chosen else [TOOLKIT]
        asks += [ARCHIVE] if self.fresh and ARCHIVE not in self.candidates else []
        if asks or chosen is None:
            out.asks = tuple(asks)
            # it is decided again, with the answer
            out.reasons, out.warnings = [], []
            return out
        version, change = chosen[0], {**chosen[1], **coming}
        preconditions.check_versions(self.config, self.facts, self.catalog, versions, out)
        self._warn_of_limits(version, versions)
        spec = self._spec(version, versions)
        if out.blockers:
            return out
        self._target(version, change, versions, spec)
        return out

    # --- what is asked for, and where -------------------------------------------------------------------------

    def _check_values(self) -> None:
        """Refuse values that cannot be: nothing of them may reach a command."""
        config, out = self.config, self.out
        if config.version and not _VERSION.fullmatch(config.version):
            out.block(
                "containers.version_invalid",
                f"container_toolkit_version: {config.version!r} is no version of the toolkit",
                ["it is three numbers, with the package's revision behind them if you like"],
                f'container_toolkit_version: "{self.catalog.container_toolkit.versions.newest}", or "" for the newest that is good',
            )
        if config.shm_size and daemon_json.size_of(config.shm_size) is None:
            out.block(
                "containers.size_invalid",
                f"container_toolkit_shm_size: {config.shm_size!r} is no size",
                ["docker writes sizes as 64m, 8G or a number of bytes"],
                "container_toolkit_shm_size: 8G",
            )
        for variable, users in (("docker_users", config.docker_users), ("rootless_users", config.rootless_users)):
            for user in users:
                if not _USER.fullmatch(user):
                    out.block(
                        "containers.user_invalid",
                        f"{user!r} is no name of a user",
                        [f"container_toolkit_{variable} lists it"],
                        "write it as /etc/passwd has it",
                    )
        if config.docker_users and not config.docker:
            out.warn(
                "containers.users_without_docker",
                "container_toolkit_docker_users has no effect without docker",
                ["container_toolkit_runtimes does not list docker"],
                "container_toolkit_runtimes: [docker]",
            )

    def _system(self) -> None:
        host, out = self.facts.host, self.out
        if host.os.id != "ubuntu":
            out.block(
                "containers.not_ubuntu",
                f"{host.os.pretty or host.os.id} is not Ubuntu",
                ["this tool provisions Ubuntu hosts"],
                preconditions.LEAVE,
            )
            return
        try:
            self.catalog.repository(TOOLKIT, ubuntu=host.os.version_id, arch=host.arch)
        except UsageError as error:
            rows = self.catalog.repositories.repositories[TOOLKIT]
            out.block(
                "containers.no_repository",
                f"{packages.REPOSITORY} has nothing for Ubuntu {host.os.version_id} on {host.arch}",
                [
                    error.issue.message,
                    f"there is some for Ubuntu {', '.join(rows.ubuntu)} on {', '.join(rows.machines)}",
                ],
                preconditions.LEAVE,
            )

    def _driver(self) -> None:
        """Without a driver on the host the toolkit has nothing to hand to containers: the driver is never in an image."""
        if self.driver.target or self.driver.ask or self.driver.blockers:
            return
        if self.facts.module.loaded or library_version(self.facts):
            return
        if not self.facts.gpus:
            self.out.warn(
                "containers.no_gpu",
                "this host has no NVIDIA GPU: the toolkit is there for nothing",
                [],
                preconditions.LEAVE,
            )
            return
        self.out.block(
            "containers.no_driver",
            "there is no driver on this host, and none is asked for",
            ["containers use the host's driver; images bring everything but that"],
            f"nvidia_driver_manage: true installs one; or {preconditions.LEAVE}",
        )

    # --- the runtimes -----------------------------------------------------------------------------------------

    def _runtimes(self) -> dict[str, str]:
        """Find each runtime; returns versions ("" where not known) of those that are there. Notes what has to come."""
        found: dict[str, str] = {}
        docker, containerd, podman = (self.containers.docker, self.containers.containerd, self.containers.podman)
        if self.config.docker:
            if preconditions.check_docker(self.config, self.facts, self.out):
                self.fresh.append("docker")
            elif docker.engine:
                found["docker"] = docker.version or ""
            if docker.engine or self.fresh:
                preconditions.check_file(docker.file, "docker", self.out)
        for user in self.config.rootless_users:
            self._rootless(user)
        self._users()
        if "containerd" in self.config.runtimes:
            if containerd.path or "docker" in self.fresh:
                found["containerd"] = containerd.version or ""
            else:
                self.out.block(
                    "containers.no_containerd",
                    "containerd is not installed",
                    ["container_toolkit_runtimes lists it"],
                    "apt install containerd, or remove it from container_toolkit_runtimes",
                )
        if "podman" in self.config.runtimes:
            if podman.path or podman.package:
                found["podman"] = podman.version or ""
            elif self.config.install_podman:
                self.fresh.append("podman")
            else:
                self.out.block(
                    "containers.no_podman",
                    "podman is not installed",
                    ["container_toolkit_runtimes lists it"],
                    "container_toolkit_install_podman: true installs the archive's",
                )
        if not self.out.blockers:
            preconditions.check_versions(self.config, self.facts, self.catalog, found, self.out)
        return found

    def _rootless(self, user: str) -> None:
        row = next((row for row in self.containers.docker.rootless if row.user == user), None)
        if user not in self.containers.users:
            self._no_user(user, "container_toolkit_rootless_users")
        elif row is None:
            self.out.block(
                "containers.no_rootless",
                f"{user} has no rootless docker",
                ["container_toolkit_rootless_users lists it"],
                f"as {user}: dockerd-rootless-setuptool.sh install, then plan again; or leave {user} out",
            )
        else:
            preconditions.check_file(row.file, f"docker of {user}", self.out)

    def _no_user(self, user: str, variable: str) -> None:
        message = f"there is no user {user} on this host"
        self.out.block(
            "containers.no_user", message, [f"{variable} lists it"], "create the user first, or leave it out"
        )

    def _users(self) -> None:
        if not self.config.docker:
            return
        for user in self.config.docker_users:
            if user not in self.containers.users and user not in (self.containers.docker.group or ()):
                self._no_user(user, "container_toolkit_docker_users")

    def _consumers(self, versions: dict[str, str]) -> dict[str, str]:
        """Runtimes that read CDI specifications themselves; docker with NVIDIA's runtime has that read them."""
        found = {"podman": versions["podman"]} if "podman" in versions else {}
        if "docker" in versions and (
            self.config.docker_cdi == "always" or preconditions.has_docker_cdi(self.facts, self.catalog)
        ):
            found["docker"] = versions["docker"]
        return found

    def _from_archive(self, versions: dict[str, str]) -> dict[str, str]:
        """{package: Debian version} of the runtimes that come, as far as apt was asked; adds their versions."""
        coming: dict[str, str] = {}
        available = self.candidates.get(ARCHIVE)
        if available is None:
            return coming
        for runtime in self.fresh:
            package = {"docker": "docker.io"}.get(runtime, runtime)
            candidate = next(iter(available.versions(package)), None)
            if candidate is None:
                self._not_in_archive(runtime, package, available.errors)
                continue
            coming[package] = candidate.version
            versions[runtime] = containers_probe.upstream(candidate.version)
            self.out.reason(
                runtime, versions[runtime], f"container_toolkit_install_{runtime} is true, and there is none"
            )
        return coming

    def _not_in_archive(self, runtime: str, package: str, errors: Sequence[str]) -> None:
        """Say why a runtime cannot come: lists that were not read, a component that is off, or an archive without it."""
        archive = [
            source
            for source in self.facts.apt.sources
            if source.enabled and "deb" in source.types and any(self.catalog.is_archive(uri) for uri in source.uris)
        ]
        # apt's errors about other repositories have nothing to do with it.
        places = [uri.split("://")[-1].rstrip("/") for source in archive for uri in source.uris]
        own = [
            error
            for error in errors
            if "://" not in error or (any(place in error for place in places) if places else "nvidia" not in error)
        ]
        code = f"containers.no_{runtime}"
        if own:
            message = f"{package} is not found: the host's lists of the Ubuntu archive could not be refreshed"
            self.out.block(
                code, message, own[:4], "fix the source or the connection to it (network, proxy), then plan again"
            )
            return
        message = f"the Ubuntu archive of this host has no {package}"
        hint, because = f"install {runtime} by hand", "apt finds no such package there"
        if not any("universe" in source.components for source in archive):
            because += ", and its component universe is not enabled" if archive else ""
            hint = f"enable the component universe of the archive, or {hint}"
        self.out.block(code, message, [because], hint)

    def _warn_of_limits(self, version: str, versions: dict[str, str]) -> None:
        """Warn of what works only in part."""
        if "containerd" in versions:
            for bad in self.catalog.known_bad(TOOLKIT, version, care=True):
                if bad.severity == "care" and "containerd" in (bad.runtimes or ()):
                    self.out.warn(
                        "containers.known_bad",
                        f"container toolkit {version} with containerd: {bad.symptom}",
                        [],
                        bad.fix,
                    )
            if self.containers.containerd.cri_disabled:
                self.out.warn(
                    "containers.cri_disabled",
                    "containerd's CRI is switched off (disabled_plugins)",
                    ["only Kubernetes uses a runtime that is registered there"],
                )
        legacy = packages.legacy_packages(self.facts, self.catalog)
        if legacy and not self.config.remove_legacy:
            self.out.warn(
                "containers.legacy",
                f"{join_and(legacy)} (obsolete) stay",
                ["the toolkit replaced them"],
                "container_toolkit_remove_legacy: true removes them",
            )
        self._old_keys()

    def _old_keys(self) -> None:
        """Say of keys that stay trusted for every repository why they do, and how they go."""
        going = packages.old_keys_that_go(self.config, self.facts)
        left = [path for path in sorted(self.containers.old_keys) if path not in going]
        if not left:
            return
        entries = packages.entries_by_old_key(self.config, self.facts)
        if not self.config.remove_legacy:
            why, hint = [], "container_toolkit_remove_legacy: true removes it, with a backup"
        elif entries:
            why = [f"{entry.file} ({' '.join(entry.uris)}) names no key and may need it" for entry in entries[:3]]
            hint = "give that entry a signed-by, then plan again: the plan removes the key"
        elif trusted_keys.RING in left:
            why = ["it is a keybox, which only gpg writes"]
            hint = (
                f"gpg --no-default-keyring --keyring {trusted_keys.RING} --batch --yes --delete-keys "
                f"{trusted_keys.CONTAINER_TOOLKIT}"
            )
        else:
            why = ["there are other keys in it, which gpu-provision does not judge"]
            hint = f"write these to files of their own, then rm {left[0]}"
        self.out.warn(
            "containers.old_key",
            f"{join_and(left)} trusts NVIDIA's container key for every repository",
            ["apt-key add of the old instructions left it; our own source names its key", *why],
            hint,
        )

    # --- what the module will do ------------------------------------------------------------------------------

    def _spec(self, version: str, versions: dict[str, str]) -> dict[str, Any]:
        config, out = self.config, self.out
        docker = self._docker(versions) if config.docker else None
        for user in config.rootless_users:
            self._user_docker(user, docker)
        cdi, because = self._wants_cdi(version)
        if cdi is not None:
            self._cdi(version, cdi)
        links = self._links()
        containerd = {"default_runtime": config.default_runtime} if "containerd" in config.runtimes else None
        if containerd is not None:
            self._containerd(containerd)
        if cdi is not None and not out.blockers:
            out.reason("CDI", "kept current" if cdi else "not kept", because)
        return {
            "docker": docker,
            "rootless": list(config.rootless_users),
            "containerd": containerd,
            "cdi": cdi,
            "device_links": links,
            "restart": config.restart,
        }

    def _docker(self, versions: dict[str, str]) -> dict[str, Any]:
        config, docker = self.config, self.containers.docker
        fresh = "docker" in self.fresh
        feature = preconditions.needs_feature(config, self.catalog, versions.get("docker", ""), fresh, self.out)
        spec: dict[str, Any] = {
            "runtime": True,
            "default_runtime": config.default_runtime,
            "cdi": feature,
            "shm_size": config.shm_size,
            "cgroup_driver": config.cgroup_driver,
            "users": list(config.docker_users),
        }
        effective = daemon_flags.ungranted(spec, docker.flags, docker.file.value)
        if spec["runtime"] and not effective["runtime"]:
            place = next(flag.place for flag in docker.flags if flag.key == "runtimes")
            self.out.reason("docker", "registered by a flag", f"{place} has --add-runtime; daemon.json is not changed")
        self.keys = preconditions.changes(effective, docker.file)
        preconditions.check_places(self.keys, docker.file, self.out)
        if not fresh:
            preconditions.check_flags(self.keys, self.facts, self.out)
        info = None if fresh else docker.info
        untold = containers_docker.differs(effective, info.model_dump()) if info else []
        spec["proxy"], changes = self._docker_proxy()
        if "docker" in self.containers.pending:
            self.todo.append("have docker load its changed configuration")
        if self.keys:
            self.todo.append(f"{docker.file.path}: {', '.join(self.keys)}")
        elif untold:
            self.todo.append(f"docker does not have what is in {docker.file.path} ({', '.join(untold)})")
        if docker.pid and not fresh:
            changed = dict.fromkeys([*self.keys, *untold, *self.containers.pending.get("docker", []), *changes])
            at_start = [name for name in changed if name.startswith(containers_docker.AT_START)]
            self.late = [*(name for name in at_start if name != containers_docker.GPUS), *self._waiting_gpus()]
        missing = [user for user in config.docker_users if user not in (docker.group or ())]
        if missing:
            self.todo.append(f"put {join_and(missing)} into the group docker, which makes them as good as root")
        return spec

    def _docker_proxy(self) -> tuple[dict[str, str] | None, list[str]]:
        """(the module's argument for the proxy, its key where docker has to take that up)."""
        docker, environment = self.containers.docker, self.proxy.environment
        config = {name: environment.get(name + "_proxy", "") for name in ("http", "https")}
        config["no_proxy"] = environment.get("no_proxy", "")
        text = docker_proxy.render(config)
        if not text and docker_proxy.PATH not in self.facts.own_files:
            return None, []
        if text and docker.proxy_elsewhere:
            self.out.warn(
                "containers.other_proxy",
                "docker has a proxy of its own, and the inventory's is not given to it",
                [f"{docker.proxy_elsewhere} overrides gpu-provision's drop-in"],
                "remove it there, and docker gets that of gpu_proxy_http; or keep it",
            )
            return None, []
        if not text:
            self.todo.append(f"remove {docker_proxy.PATH}: the inventory names no proxy")
        elif not preconditions.own_file_is(self.facts, docker_proxy.PATH, text):
            self.todo.append(f"write {docker_proxy.PATH}: docker pulls images through {self.proxy.address}")
        elif docker.info and docker_proxy.differs(config, docker.info.model_dump()):
            self.todo.append(f"docker does not have the proxy of {docker_proxy.PATH}")
        else:
            return config, []
        return config, [docker_proxy.KEY]

    def _waiting_gpus(self) -> list[str]:
        """dockerd looks for the toolkit at its start: one that is older than the toolkit does not know --gpus."""
        row = self.facts.packages.get("nvidia-container-toolkit")
        if row is not None and row.status[1] not in "nc" and not self.containers.docker.hook_is_newer:
            return []
        self.todo.append(
            f"{containers_docker.GPUS} works only after a restart: docker {'is' if row else 'will be'} older than the toolkit"
        )
        return [containers_docker.GPUS]

    def _user_docker(self, user: str, docker: dict[str, Any] | None) -> None:
        file = next(row.file for row in self.containers.docker.rootless if row.user == user)
        names = ("runtime", "default_runtime", "cdi", "shm_size")
        config = {name: value for name, value in (docker or {"runtime": True}).items() if name in names}
        keys = preconditions.changes(config, file)
        preconditions.check_places(keys, file, self.out)
        if keys:
            self.todo.append(f"{file.path}: {', '.join(keys)}")
        if f"docker of {user}" in self.containers.pending:
            self.todo.append(f"have docker of {user} load its changed configuration")
        if docker is None and not self.containers.toolkit.no_cgroups:
            message = "no-cgroups in the toolkit's configuration, since a rootless daemon may not write device cgroups"
            if message not in self.todo:
                self.todo.append(message)

    def _containerd(self, spec: dict[str, Any]) -> None:
        have = self.containers.containerd
        if not have.runtime:
            self.todo.append("register NVIDIA's runtime with containerd")
        elif spec["default_runtime"] and have.default_runtime != spec["default_runtime"]:
            self.todo.append(f"make {spec['default_runtime']} containerd's default runtime")
        if "containerd" in self.containers.pending:
            self.todo.append("have containerd load its changed configuration")

    def _has_units(self, version: str) -> bool:
        """The toolkit of this version brings units that keep the specification current."""
        since = self.catalog.container_toolkit.cdi.refresh.since
        return key(version) >= key(str(since))

    def _wants_cdi(self, version: str) -> tuple[bool | None, str]:
        """(whether the CDI specification is to be kept current, why); None: nothing is done about it."""
        if self.config.cdi != "auto":
            return self.config.cdi == "always", f"container_toolkit_cdi is {self.config.cdi}"
        if "podman" in self.config.runtimes:
            return True, "podman takes GPUs by it"
        if self.config.rootless_users:
            return True, "a rootless docker takes GPUs by it"
        return (True, f"container toolkit {version} has units for it") if self._has_units(version) else (None, "")

    def _cdi(self, version: str, wanted: bool) -> None:
        have = self.containers
        texts = containers_files.CDI_UNITS
        ours = [path for path in texts if path in self.facts.own_files]
        if not wanted:
            if ours:
                self.todo.append("remove gpu-provision's units for the CDI specification")
            return
        units = have.cdi_units or ("toolkit" if self._has_units(version) else None)
        if units == "masked":
            self.out.warn(
                "containers.cdi_masked",
                "the toolkit's units that keep the CDI specification current are masked",
                ["somebody forbade them on this host"],
                "systemctl unmask nvidia-cdi-refresh.service nvidia-cdi-refresh.path",
            )
        is_ours = all(preconditions.own_file_is(self.facts, path, text) for path, text in texts.items())
        if units is None or (units == "ours" and not is_ours):
            self.todo.append("write units that keep the CDI specification current")
        elif units == "toolkit" and ours:
            self.todo.append("remove gpu-provision's units: the toolkit has its own")
        stale = [spec.stale for spec in have.cdi if spec.stale]
        if stale:
            self.todo.append(f"regenerate the CDI specification: {stale[0]}")
        elif not have.cdi and self.facts.module.loaded:
            self.todo.append("make the CDI specification")

    def _links(self) -> bool:
        if not self.config.device_links:
            if containers_files.UDEV_RULE in self.facts.own_files:
                self.todo.append("remove gpu-provision's rule for links in /dev/char")
            return False
        if not preconditions.own_file_is(self.facts, containers_files.UDEV_RULE, containers_files.UDEV_TEXT):
            self.todo.append("write the rule that links NVIDIA's devices in /dev/char")
        elif self.containers.device_links_missing:
            self.todo.append(f"link {join_and(self.containers.device_links_missing[:4])} in /dev/char")
        return True

    # --- the target -------------------------------------------------------------------------------------------

    def _target(self, version: str, change: dict[str, str], versions: dict[str, str], spec: dict[str, Any]) -> None:
        remove = packages.legacy_packages(self.facts, self.catalog) if self.config.remove_legacy else []
        info = self.containers.docker.info
        live = info.live_restore if info else self.containers.docker.file.value.get("live-restore") is True
        running = [row for row in self.containers.running if row.runtime == "docker"]
        restart = f"docker applies {', '.join(self.late)} only when it starts" if self.late else ""
        disturbed = [row.title for row in running] if restart and not live else []
        if disturbed and self.config.restart != "always":
            reload = "systemctl daemon-reload && " if docker_proxy.KEY in self.late else ""
            self.out.warn(
                "containers.restart_waits",
                "docker has to be restarted, and that is left to you",
                [
                    restart,
                    f"it would end {join_and(disturbed[:6])}",
                    f"container_toolkit_restart is {self.config.restart}",
                ],
                f"{reload}systemctl restart docker when they are done; container_toolkit_restart: always does it at once",
            )
        if remove:
            self.out.reason(
                "removed",
                join_and(remove),
                "the toolkit replaced them; daemon.json stays, and is saved before it changes. They are not purged: that "
                "would take daemon.json along",
            )
        self.out.target = ContainersTarget(
            version=version,
            packages=dict(sorted(change.items())),
            names=tuple(sorted(self.catalog.container_toolkit.packages.set)),
            remove=tuple(remove),
            runtimes=versions,
            installs=tuple(self.fresh),
            spec=spec,
            keys=tuple(self.keys),
            todo=tuple(self.todo),
            restart=restart,
            disturbed=tuple(disturbed),
        )
