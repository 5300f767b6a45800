"""One installation of conda: whether to install, update, repair or leave it, from which installer, with which channels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.conda import common as conda_common
from provision.catalog import Catalog
from provision.catalog.frameworks import CondaInstaller, conda_installers, moving_installer, version_key
from provision.catalog.versions import key, same
from provision.errors import Issue, UsageError
from provision.facts import CondaPrefix, Facts
from provision.parts.conda.addresses import unverified
from provision.parts.conda.desired import CondaConfig
from provision.parts.decision import Refused

if TYPE_CHECKING:
    from provision.parts.conda.resolve import CondaDecision

CONDA_FORGE = "conda-forge"


@dataclass(frozen=True)
class PrefixTarget:
    """One installation of the decision. action: install, update, repair, configure, or "" (as it should be).

    condarc: keys of PREFIX/.condarc that are ours, None where the file is left to whoever made the installation.
    """

    path: str
    owner: str
    group: str = ""
    umask: str = "022"
    action: str = ""
    distribution: str = "miniconda"
    installer: CondaInstaller | None = None
    url: str = ""
    file: str = ""
    channels: tuple[str, ...] = (CONDA_FORGE,)
    condarc: dict[str, object] | None = None
    accept_tos: tuple[str, ...] = ()
    profile: bool = False
    shell_init: tuple[str, ...] = ()
    because: tuple[str, ...] = ()
    details: tuple[str, ...] = ()


@dataclass
class PrefixJudge:
    """Decides one installation; blockers, warnings and reasons go to ``out``.

    managed: it is asked for itself, not only named by an environment as the place to be made in.
    """

    config: CondaConfig
    path: str
    owner: str
    found: CondaPrefix | None
    catalog: Catalog
    machine: str
    facts: Facts
    out: CondaDecision
    managed: bool
    because: list[str] = field(default_factory=list)
    details: list[str] = field(default_factory=list)

    def decide(self) -> PrefixTarget:
        """The installation as it is to be. Raises Refused."""
        config, found = self.config, self.found
        system = self.managed and self.owner == config.owner and self.path == (config.prefix.rstrip("/") or "/")
        state = found.state if found else "absent"
        if not self.managed and state != "whole":
            self.out.refuse(
                "conda.prefix_missing",
                f"there is no conda in {self.path}",
                [f"an environment names it as its prefix; it is {state}"],
                "remove the key prefix, and the environment is made in miniconda_prefix",
            )
        action = self._action(state)
        existing = found if found and state == "whole" else None
        distribution = existing.distribution if existing else config.distribution
        channels = self._channels(distribution)
        installer, url = None, ""
        if action in ("install", "repair", "update"):
            try:
                installer, url = choose_installer(config, self.catalog, self.machine)
            except UsageError as error:
                self.out.blockers.append(error.issue)
                raise Refused from error
            if action == "update" and existing and not _older(existing.version, installer, self.catalog):
                action, installer, url = "", None, ""
                self.because.clear()
            elif not installer.sha256 and unverified(url):
                self.out.refuse(
                    "conda.unverified",
                    f"the installer comes over http, and nothing verifies it: {url}",
                    ["it is executed, so an attacker on the network could run code on this host"],
                    "miniconda_installer_sha256, an exact miniconda_version, or an address with https://",
                )
            elif installer.version == "latest":
                self.out.warn(
                    "conda.unpinned",
                    f"{self.path}: the installer of the day is not pinned",
                    ["its content changes under its name, so no checksum can be held against it"],
                    "an exact miniconda_version is checked by its sha256",
                )
        if installer:
            self._compare_checksum(installer)
        ours = existing is None or existing.record is not None
        condarc = self._condarc(channels) if self.managed and (ours or config.channels) else None
        terms = self.catalog.conda.terms_of_service.channels
        # Older ones have no plugin that asks, and nothing to accept with.
        can_accept = distribution == "miniconda" if existing is None else existing.asks_terms or action == "update"
        accept = terms if config.accept_tos and self.managed and can_accept else ()
        profile = system and config.profile
        init = self._shell_init(system) if self.managed else ()
        if existing:
            self._compare_version(existing)
            around = self._around(existing, condarc, accept, profile, init)
            if around and not action:
                action = "configure"
            self.details += around
        return PrefixTarget(
            path=self.path,
            owner=self.owner,
            group=config.group if system else "",
            umask=config.umask if system else "022",
            action=action,
            distribution=distribution,
            installer=installer,
            url=url,
            file=config.installer_file if installer else "",
            channels=channels,
            condarc=condarc,
            accept_tos=tuple(accept),
            profile=profile,
            shell_init=init,
            because=tuple(self.because),
            details=tuple(self.details),
        )

    def _action(self, state: str) -> str:
        """What has to be done with what is there; refused where that is not allowed."""
        found = self.found
        if state in ("absent", "empty"):
            self.because.append("it is not there")
            return "install"
        if state == "foreign":
            self.out.refuse(
                "conda.prefix_foreign",
                f"{self.path} holds something else than conda",
                ["gpu-provision does not move or remove it"],
                "another miniconda_prefix, or move that folder away",
            )
        if state == "partial" and found and found.unfinished:
            self.because.append("an installation by gpu-provision was interrupted")
            return "install"
        if state == "partial":
            missing = found.missing if found else []
            if self.config.repair:
                self.because.append(f"only part of it is there: {', '.join(missing)}")
                return "repair"
            self.out.refuse(
                "conda.prefix_partial",
                f"{self.path} is only part of a conda",
                missing,
                "miniconda_repair: true installs over it, environments in it stay; or another miniconda_prefix",
            )
        return "update" if self.config.update and self.managed else ""

    def _channels(self, distribution: str) -> tuple[str, ...]:
        config = self.config
        if config.channels:
            named = needs_terms(config.channels, self.catalog)
            if named and not config.accept_tos and self.managed:
                self.out.blockers.append(terms_issue(self.path, named))
                raise Refused
            return config.channels
        if distribution in ("miniconda", "anaconda") and not config.accept_tos:
            self.out.reason(
                "conda channels",
                f"{CONDA_FORGE} only",
                "Anaconda's terms of service are not accepted (miniconda_accept_tos: false), so its channels are not used",
            )
            return (CONDA_FORGE,)
        return ("defaults",) if distribution in ("miniconda", "anaconda") else (CONDA_FORGE,)

    def _condarc(self, channels: Sequence[str]) -> dict[str, object]:
        found: dict[str, object] = {"channels": list(channels)}
        if self.config.channel_alias:
            found["channel_alias"] = self.config.channel_alias
        return found

    def _shell_init(self, system: bool) -> tuple[str, ...]:
        """Users whose .bashrc gets this installation: their own before that of the whole system."""
        config = self.config
        mine = [
            user
            for user in config.shell_init
            if (user == self.owner and user in config.all_users and not system)
            or (system and user not in config.all_users)
        ]
        for user in mine:
            other = self.facts.conda.shell_init.get(user)
            if other is not None and other != self.path:
                self.out.block(
                    "conda.shell_init_other",
                    f"{user}'s .bashrc starts another conda: {other or 'unknown'}",
                    ["a shell can use only one of them"],
                    f"remove {user} from miniconda_shell_init, or let {user} run conda init --reverse first",
                )
        return tuple(mine)

    def _compare_checksum(self, installer: CondaInstaller) -> None:
        """The owner's own checksum counts; that its maker's installer of that name has another one is said."""
        known = known_installer(installer.file, self.catalog, self.machine)
        if known and installer.sha256 and known.sha256 != installer.sha256:
            self.out.warn(
                "conda.installer_other",
                f"{installer.file} is not its maker's, by miniconda_installer_sha256",
                [f"the catalog knows it by sha256 {known.sha256}"],
                "leave miniconda_installer_sha256 out to take only what the catalog knows",
            )

    def _compare_version(self, existing: CondaPrefix) -> None:
        config = self.config
        if (
            not self.managed
            or config.update
            or not config.version
            or config.version == "latest"
            or not existing.version
        ):
            return
        if not same(existing.version, config.version.split("-")[0]):
            self.out.warn(
                "conda.version_other",
                f"{self.path} has conda {existing.version}, {config.version} is asked for",
                ["what is whole is left as it is"],
                "miniconda_update: true updates what is older; newer is never replaced by older",
            )

    def _around(
        self,
        existing: CondaPrefix,
        condarc: dict[str, object] | None,
        accept: Sequence[str],
        profile: bool,
        init: Sequence[str],
    ) -> list[str]:
        """What around a whole installation differs from the request, as details of a step."""
        found = []
        record = existing.record or {}
        file = f"{self.path}/.condarc"
        if condarc is not None and (
            existing.condarcs.get(file) != condarc["channels"]
            or ("channel_alias" in condarc and existing.settings.get("channel_alias") != condarc["channel_alias"])
        ):
            found.append(f"write {file}")
        accepted = {*existing.tos_accepted, *_texts(record.get("accept_tos"))}
        found += [f"accept the terms of {url}" for url in accept if url not in accepted]
        if profile:
            text = conda_common.render_profile(self.path, self.owner, self.config.umask)
            if self.facts.own_files.get(conda_common.PROFILE) != apt_files.sha256(text):
                found.append(f"write {conda_common.PROFILE}")
        done = {user for user, path in self.facts.conda.shell_init.items() if path == self.path}
        found += [f"conda init for {user}" for user in init if user not in done]
        return found


def _texts(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def _older(version: str | None, installer: CondaInstaller, catalog: Catalog) -> bool:
    """The installed conda is older than the installer's; of the moving one: older than the newest of the catalog."""
    wanted = installer.version
    if wanted == "latest":
        wanted = getattr(catalog.conda, installer.distribution).newest
    return version is None or key(version)[:3] < version_key(wanted)[:3]


def choose_installer(config: CondaConfig, catalog: Catalog, machine: str) -> tuple[CondaInstaller, str]:
    """The installer that is asked for, and the URL to fetch it from ("" when it is a file). Raises UsageError."""
    if config.installer_url and config.installer_file:
        raise UsageError(
            "conda.installer_twice",
            "miniconda_installer_url and miniconda_installer_file are both given",
            hint="one of them is enough",
        )
    if config.installer_sha256 and not re.fullmatch(r"[0-9a-f]{64}", config.installer_sha256):
        raise UsageError(
            "conda.installer_checksum_invalid",
            "miniconda_installer_sha256 is no sha256",
            because=["it has 64 digits, 0 to 9 and a to f"],
            hint="sha256sum FILE prints it",
        )
    source = config.installer_file or config.installer_url
    if config.installer_file and not config.installer_file.startswith("/"):
        raise UsageError(
            "conda.installer_invalid",
            f"{config.installer_file!r} is no absolute path of the host",
            hint="miniconda_installer_file is a path on the host; miniconda_installer_url fetches it",
        )
    if config.installer_url and not re.match(r"^(https?|file)://", config.installer_url):
        raise UsageError(
            "conda.installer_invalid",
            f"{config.installer_url!r} is no URL",
            hint="it begins with https://, http:// or file://",
        )
    if source and not source.endswith("/"):
        return _own_installer(config, catalog, machine, source)
    chosen = _of_catalog(config, catalog, machine)
    if config.installer_sha256:
        chosen = chosen.model_copy(update={"sha256": config.installer_sha256})
    return chosen, source + chosen.file if source else chosen.url


def _of_catalog(config: CondaConfig, catalog: Catalog, machine: str) -> CondaInstaller:
    name = config.distribution.capitalize()
    if config.version == "latest":
        moving = moving_installer(catalog, config.distribution, machine)
        newest = getattr(catalog.conda, config.distribution).newest
        if moving is None:
            raise UsageError(
                "conda.no_moving_installer",
                f"the address of {name}'s latest installer is not known",
                hint=f'miniconda_version: "{newest}", or its URL in miniconda_installer_url',
            )
        return moving
    every = conda_installers(catalog, config.distribution, machine)
    if not every:
        raise UsageError(
            "conda.no_installer_for_machine",
            f"there is no installer of {name} for {machine} in the catalog",
            hint="miniconda_installer_url and miniconda_installer_sha256 name your own",
        )
    fit = [i for i in every if not config.version or i.version == config.version]
    if not fit:
        fit = [i for i in every if i.version.split("-")[0] == config.version]
    if not fit:
        known = list(dict.fromkeys(i.version for i in every))
        wanted = version_key(config.version)
        within = [v for v in known if v.startswith(config.version + ".")]
        older = [v for v in known if wanted and version_key(v)[:3] <= wanted]
        nearest = next(iter(within or older), known[-1] if wanted else known[0])
        raise UsageError(
            "conda.version_unknown",
            f"there is no {name} {config.version} in the catalog",
            because=[f"known: {', '.join(known)}"],
            hint=f'miniconda_version: "{nearest}"; or miniconda_installer_url with miniconda_installer_sha256',
        )
    if config.python:
        with_python = [i for i in fit if i.python == config.python]
        if not with_python:
            known = [i.python or "" for i in fit]
            raise UsageError(
                "conda.installer_python",
                f"{name} {fit[0].version} has no base with Python {config.python}",
                because=[
                    f"it has them with Python {', '.join(dict.fromkeys(known))}",
                    "environments have their own Python",
                ],
                hint=f'miniconda_python: "{known[0]}", in quotes, or leave it out',
            )
        fit = with_python
    return fit[0]


def _own_installer(config: CondaConfig, catalog: Catalog, machine: str, source: str) -> tuple[CondaInstaller, str]:
    """An installer by its whole URL or path; one that the catalog knows by its name has its checksum from there."""
    file = source.rpartition("/")[2]
    url = "" if config.installer_file else source
    known = known_installer(file, catalog, machine)
    if known:
        return known.model_copy(update={"sha256": config.installer_sha256 or known.sha256}), url
    if not config.installer_sha256 and config.version != "latest":
        raise UsageError(
            "conda.installer_checksum_missing",
            f"the catalog does not know {file}",
            because=["an installer runs as the owner, so it is checked by its sha256 first"],
            hint="miniconda_installer_sha256: what sha256sum prints of it",
        )
    match = re.search(r"[_-]([0-9]+\.[0-9]+\.[0-9]+-[0-9]+)-", file)
    return CondaInstaller(
        distribution=config.distribution,
        version=match[1] if match else config.version or "unknown",
        python=None,
        file=file,
        url=url,
        sha256=config.installer_sha256,
    ), url


def known_installer(file: str, catalog: Catalog, machine: str) -> CondaInstaller | None:
    """The catalog's installer of that file name."""
    every = [i for name in ("miniconda", "miniforge") for i in conda_installers(catalog, name, machine)]
    return next((installer for installer in every if installer.file == file), None)


def needs_terms(channels: Sequence[str], catalog: Catalog) -> list[str]:
    """Those channels whose use needs Anaconda's terms accepted: ``defaults`` and what it stands for."""
    urls = catalog.conda.terms_of_service.channels
    short = {"defaults", "main", "r", "msys2", *(url.split("//")[1].split("/", 1)[1] for url in urls)}
    return [c for c in channels if c in short or any(c.startswith(url) for url in urls) or "repo.anaconda.com" in c]


def terms_issue(what: str, channels: Sequence[str]) -> Issue:
    """The refusal to use channels whose terms nobody accepted (scenario M1)."""
    return Issue(
        code="conda.terms_not_accepted",
        message=f"{what} takes packages from {' and '.join(channels)}",
        because=[
            "Anaconda's terms of service are not accepted for this host, and gpu-provision never accepts them automatically"
        ],
        hint="conda-forge in its place; or miniconda_accept_tos: true, when you do accept them",
    )
