"""Conda of one host: which installations and environments it should have, how each is made, or why it cannot be.

Pure: config + facts + catalog + the driver's decision in, a decision out. Every environment is judged before anything
is touched; one that cannot work refuses the host by that environment's name. The facts are read with the config's
``prefix_paths`` as ``conda_prefixes``, so that "is not there" is known and not guessed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import redact
from provision.catalog import Catalog
from provision.catalog.frameworks import MACHINES
from provision.errors import UsageError
from provision.facts import CondaEnvironment, Facts
from provision.parts.conda.addresses import unverified, unverified_in_file
from provision.parts.conda.desired import ENVIRONMENTS_PREFIX, CondaConfig, EnvironmentConfig, Places, places
from provision.parts.conda.environment import EnvironmentJudge
from provision.parts.conda.prefix import CONDA_FORGE, PrefixJudge, PrefixTarget, needs_terms, terms_issue
from provision.parts.conda.state import differences, made_by_us
from provision.parts.conda.suggest import HAS_WAY_OUT, nearest
from provision.parts.conda.view import HostView, Recipe
from provision.parts.decision import BaseDecision, Decision, Refused
from provision.parts.driver.installed import is_passthrough, library_version

# Installers refuse it, and nobody wants it emptied (constructor's header; the rest is common sense).
_SYSTEM_FOLDER = re.compile(
    r"/|/(bin|boot|dev|etc|home|lib|lib64|media|mnt|opt|proc|root|run|sbin|srv|sys|usr|var)"
    r"|/usr/(bin|lib|local|local/bin|share)|/var/lib"
)
_NOT_A_DISK = ("/boot/", "/dev/", "/proc/", "/sys/")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}\$?")


@dataclass(frozen=True)
class EnvironmentTarget:
    """One environment of the decision. action: create, finish, rebuild, configure, or "" (as it should be)."""

    config: EnvironmentConfig
    prefix: str
    path: str
    owner: str
    group: str
    umask: str
    action: str
    recipe: Recipe
    because: str = ""


@dataclass
class CondaDecision(BaseDecision):
    """blockers: nothing of the host may be changed. prefixes and environments: what is wanted, done or not, as far as it
    is not refused."""

    # paths of all installations that are asked for
    wanted: list[str] = field(default_factory=list)
    prefixes: list[PrefixTarget] = field(default_factory=list)
    environments: list[EnvironmentTarget] = field(default_factory=list)


def resolve_conda(config: CondaConfig, facts: Facts, catalog: Catalog, driver: Decision) -> CondaDecision:
    """Decide conda for one host.

    driver: the decision of the same plan; its target, else the loaded driver, is what environments have to run on.
    """
    return _Resolver(config, facts, catalog, driver).run()


def host_view(facts: Facts, catalog: Catalog, driver: Decision) -> HostView:
    """What of the host decides about environments."""
    loaded = facts.module.loaded.version if facts.module.loaded else None
    version = driver.target.version if driver.target else loaded or library_version(facts)
    branch = catalog.find_branch(version) if version else None
    gpus = driver.gpus or [catalog.gpu_by_id(gpu.device) for gpu in facts.gpus if not is_passthrough(gpu.driver)]
    return HostView(
        gpus=tuple({gpu.name: gpu for gpu in gpus}.values()),
        driver=version,
        max_cuda=branch.max_cuda if branch else None,
        loaded=loaded,
        machine=MACHINES.get(facts.host.arch, facts.host.arch),
    )


class _Resolver:
    def __init__(self, config: CondaConfig, facts: Facts, catalog: Catalog, driver: Decision) -> None:
        self.config, self.facts, self.catalog = config, facts, catalog
        self.host = host_view(facts, catalog, driver)
        self.places: Places = places(config, facts)
        self.out = CondaDecision()

    def run(self) -> CondaDecision:
        if not self.config.wanted:
            return self.out
        self._check_values()
        if self.out.blockers:
            return self.out
        self._without_effect()
        by_path = {prefix.path: prefix for prefix in self.facts.conda.prefixes}
        for asked, (user, variable) in self.config.prefixes().items():
            path, machine = self.places[asked], self.host.machine
            if path in self.out.wanted:
                continue
            self.out.wanted.append(path)
            found, managed = by_path.get(path), variable != ENVIRONMENTS_PREFIX
            owner = user or (found and found.owner) or "root"
            judge = PrefixJudge(self.config, path, owner, found, self.catalog, machine, self.facts, self.out, managed)
            with suppress(Refused):
                self.out.prefixes.append(judge.decide())
        for env in self.config.environments:
            self._environment(env)
        # Two users' installations are decided for the same reason: it is reported once.
        reasons = self.out.reasons
        self.out.reasons = [reason for at, reason in enumerate(reasons) if reason not in reasons[:at]]
        return self.out

    # --- names and places ------------------------------------------------------------------------------------

    def _check_values(self) -> None:
        """Refuse names and paths that cannot be: nothing of them may reach a command."""
        config = self.config
        users = [*config.all_users, *config.shell_init, config.owner]
        users += [env.user for env in config.environments if env.user]
        for kind, file, names in (
            ("user", "passwd", users),
            ("group", "group", [config.group] if config.group else []),
        ):
            for name in names:
                if not _USER.fullmatch(name):
                    hint = f"write it as /etc/{file} has it"
                    self.out.block("conda.user_invalid", f"{name!r} is no name of a {kind}", hint=hint)
        for variable, url in (
            ("miniconda_installer_url", config.installer_url),
            ("miniconda_wheel_index_url", config.wheel_index_url),
            ("miniconda_pip_index_url", config.pip_index_url),
            ("miniconda_channel_alias", config.channel_alias),
            *(("miniconda_channels", channel) for channel in config.channels),
            *(
                (f"{key} of environment {env.name}", text)
                for env in config.environments
                for key in ("channels", "packages", "pip")
                for text in getattr(env, key)
            ),
        ):
            self._address(variable, redact.has_secret(url), variable != "miniconda_installer_url" and unverified(url))
        for env in config.environments:
            text = env.content or ""
            self._address(f"file {env.file}", redact.text(text) != text, unverified_in_file(text))
        for env in config.environments:
            if env.name in ("base", "root"):
                self.out.block(
                    "conda.name_invalid",
                    f"environment {env.name}: conda's own is called so",
                    hint="take another name; the base is left to conda itself",
                )
            elif env.name.lower() in ("true", "false"):
                self.out.block(
                    "conda.name_invalid",
                    f"an environment is called {env.name.lower()}",
                    ["no, off, yes and on without quotes are false or true in YAML"],
                    'write its name in quotes: name: "no"',
                )
            elif not _NAME.fullmatch(env.name):
                self.out.block(
                    "conda.name_invalid",
                    f"environment {env.name!r}: not a valid name for an environment",
                    ["letters, digits, and _ . + - inside"],
                    f"name it {_named(env.name)}",
                )
        listed = [(env.name, self.places[config.prefix_of(env)]) for env in config.environments]
        for (name, prefix), count in Counter(listed).items():
            if count > 1:
                self.out.block(
                    "conda.name_twice",
                    f"environment {name} is asked for {count} times in {prefix}",
                    hint="every environment of an installation has a name of its own",
                )
        if self.out.blockers:
            return
        for asked, (_, variable) in config.prefixes().items():
            self._path(asked, self.places[asked], variable)
        for variable, user in (
            ("miniconda_owner", config.owner),
            *(("miniconda_shell_init", u) for u in config.shell_init),
        ):
            if f"~{user}" in self.places.unknown:
                self.out.block(
                    "conda.user_unknown",
                    f"there is no user {user} on this host",
                    [f"named in {variable}"],
                    f"create the user first, or remove {user} from {variable}",
                )

    def _address(self, variable: str, secret: bool, unverified: str | Literal[False]) -> None:
        if secret:
            self.out.block(
                "conda.url_secret",
                f"{variable} holds a password or token",
                ["it would be in plans, logs and argv"],
                "remove it; a .netrc of the owner on the host is read by conda and pip, and git goes over ssh with a deploy key",
            )
        elif unverified and not self.config.allow_http:
            self.out.block(
                "conda.unverified",
                f"{variable}: nothing verifies what comes from {unverified}",
                ["an attacker on the network could insert code, which this host would run"],
                "https://; #sha256=… behind the URL of a file; miniconda_allow_http: true for a mirror in a network that you trust",
            )

    def _without_effect(self) -> None:
        """Say what is asked for beside an installation for the whole system where there is to be none."""
        config = self.config
        if config.system:
            return
        idle = [f"miniconda_shell_init: {user}" for user in config.shell_init if user not in config.all_users]
        idle += ["miniconda_profile"] if config.profile else []
        for variable in idle:
            self.out.warn(
                "conda.without_effect",
                f"{variable} has no effect",
                ["no conda for the whole system is asked for"],
                "miniconda_install: true asks for it",
            )

    def _path(self, asked: str, path: str, variable: str) -> None:
        other = {
            "miniconda_prefix": "miniconda_prefix: /opt/miniconda3",
            "miniconda_users_prefix": "miniconda_users_prefix: /opt/conda/{user}",
        }.get(variable, "remove the key prefix")
        if re.match(r"~(/|$)", path):
            self.out.block(
                "conda.prefix_invalid",
                f"{path!r} does not say whose home is meant",
                [f"it is the {variable}"],
                f"{other}; miniconda_users gives users one in their own home",
            )
        elif asked in self.places.unknown:
            user = asked[1:].partition("/")[0]
            self.out.block(
                "conda.user_unknown",
                f"there is no user {user} on this host",
                [f"{asked} is asked for"],
                f"create the user first, or remove {user} from miniconda_users and the environments",
            )
        elif not path.startswith(("/", "~")) or re.search(r"[\0\n\r]|(^|/)\.\.?(/|$)", path):
            self.out.block(
                "conda.prefix_invalid", f"{path!r} is not the whole path of a folder", [f"it is the {variable}"], other
            )
        elif " " in path:
            self.out.block(
                "conda.prefix_space",
                f"no conda can be installed in {path!r}",
                ["its installer refuses a path with a space"],
                other,
            )
        elif re.search(r"[^\w./+~@-]", path):
            self.out.block(
                "conda.prefix_invalid", f"{path!r} has signs that shells and installers trip over", hint=other
            )
        elif _SYSTEM_FOLDER.fullmatch(path) or path in self.facts.conda.homes.values() or path.startswith(_NOT_A_DISK):
            self.out.block(
                "conda.prefix_unsafe",
                f"{path} is a folder of the system or a home",
                ["conda fills a folder of its own"],
                other,
            )

    # --- environments ----------------------------------------------------------------------------------------

    def _environment(self, env: EnvironmentConfig) -> None:
        prefix = self.places[self.config.prefix_of(env)]
        installed = next((p for p in self.out.prefixes if p.path == prefix), None)
        channels = installed.channels if installed else (CONDA_FORGE,)
        judge = EnvironmentJudge(env, self.host, self.catalog, self.config, channels).run()
        self._add_suggestions(env, judge)
        self.out.blockers += judge.blockers
        self.out.warnings += judge.warnings
        recipe = judge.recipe
        if recipe is None or installed is None:
            return
        self._terms(env, recipe.channels)
        path = f"{prefix}/envs/{env.name}"
        found = next((e for e in self.facts.conda.environments if e.path == path), None)
        action, because = self._compare(env, recipe, found)
        if action in ("create", "finish", "rebuild"):
            self.out.reasons += judge.reasons
        self.out.environments.append(
            EnvironmentTarget(
                config=env,
                prefix=prefix,
                path=path,
                owner=installed.owner,
                group=installed.group,
                umask=installed.umask,
                action=action,
                recipe=recipe,
                because=because,
            )
        )

    def _add_suggestions(self, env: EnvironmentConfig, judge: EnvironmentJudge) -> None:
        open_ = [issue for issue in judge.blockers if issue.code in HAS_WAY_OUT and not issue.hint]
        if not open_:
            return
        asked = judge.read_as or env
        suggestions = list(_suggestions(asked, self.host, self.catalog))
        if env.file:
            suggestions = [f"in {env.file} {way}" for way in suggestions]
        for issue in open_:
            driver = self._other_driver(asked) if issue.code == "conda.driver_too_old" else []
            issue.hint = "; or ".join([*suggestions, *driver]) or "leave this environment out for this host"

    def _other_driver(self, env: EnvironmentConfig) -> list[str]:
        """The oldest driver branch offered for this host on which the environment would run, as a hint."""
        ubuntu = self.facts.host.os.version_id
        for number in sorted(self.catalog.branches_for(self.host.gpus)):
            branch = self.catalog.branch(number)
            try:
                available = self.catalog.known_series(number, ubuntu=ubuntu)
            except UsageError:
                return []
            if not available or branch.last_version is None or branch.last_version == self.host.driver:
                continue
            host = replace(self.host, driver=branch.last_version, max_cuda=branch.max_cuda)
            if _works(env, host, self.catalog):
                return [f'nvidia_driver_branch: "{available[0].series}"']
        return []

    def _terms(self, env: EnvironmentConfig, channels: Sequence[str]) -> None:
        named = needs_terms(channels, self.catalog)
        if named and not self.config.accept_tos:
            self.out.blockers.append(terms_issue(f"environment {env.name}", named))

    def _compare(self, env: EnvironmentConfig, recipe: Recipe, found: CondaEnvironment | None) -> tuple[str, str]:
        """What has to be done with an environment, and why; a blocker where that is not allowed."""
        if found is None:
            return "create", "it is not there"
        if found.unfinished:
            return "finish", "its creation was interrupted"
        if found.state == "foreign":
            self.out.block(
                "conda.environment_foreign",
                f"{found.path} holds something else than an environment",
                ["gpu-provision does not move or remove it"],
                f"another name than {env.name}, or move that folder away",
            )
            return "", ""
        other = differences(env, recipe, found, self.host, self.catalog)
        if not other:
            if self.config.lib64_link and not found.lib64 and made_by_us(found):
                return "configure", "lib64 is missing, which builds of CUDA extensions look for"
            if not made_by_us(found):
                because = "somebody made it, and it is as asked for"
                self.out.reason(f"environment {env.name}", "left as it is", because)
            return "", ""
        if self.config.rebuild:
            return "rebuild", "; ".join(other)
        who = "" if made_by_us(found) else ", and gpu-provision did not make it"
        self.out.block(
            "conda.environment_differs",
            f"environment {env.name} differs from the request{who}",
            other,
            "miniconda_rebuild: true rebuilds it and saves its export first; or request what exists, or use another name",
        )
        return "", ""


def _works(env: EnvironmentConfig, host: HostView, catalog: Catalog) -> bool:
    return not EnvironmentJudge(env, host, catalog, CondaConfig(), ()).run().blockers


@lru_cache(maxsize=512)
def _suggestions(env: EnvironmentConfig, host: HostView, catalog: Catalog) -> tuple[str, ...]:
    """Ways out for an environment: the same for every host of a fleet with the same GPUs and driver."""
    return tuple(nearest(env, catalog, lambda trial: _works(trial, host, catalog)))


def _named(text: str) -> str:
    """A name that works, made from one that does not."""
    plain = re.sub(r"[^A-Za-z0-9_.+-]+", "_", text).lstrip(".+-")[:100]
    return plain or "gpu"
