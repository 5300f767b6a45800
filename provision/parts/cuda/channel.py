"""Where the toolkits of a host come from: NVIDIA's repository or the Ubuntu archive, never both. Pure.

From Ubuntu 26.04 on the archive carries CUDA under the names of NVIDIA's packages; the version tells the two apart
(13.1.1-0ubuntu1 beside 13.1.1-1). Sources: cuda.yml, archive_ranges; apt_preferences(5).
"""

from __future__ import annotations

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names
from provision.catalog import Catalog
from provision.facts import Facts
from provision.parts.cuda.desired import CudaConfig, CudaDecision
from provision.parts.cuda.packages import installed_channels, of_channels, purge
from provision.parts.cuda.variables import Wanted
from provision.parts.decision import CHANNELS, join_and
from provision.parts.driver.installed import nvidia_sources

_ORIGINS = {"ubuntu": "release o=NVIDIA", "cuda": "release o=Ubuntu"}
PIN_BECAUSE = "the Ubuntu archive and NVIDIA's repository carry CUDA under the same names: one of them must win"


def choose(config: CudaConfig, facts: Facts, catalog: Catalog, wanted: list[Wanted]) -> tuple[str, str]:
    """Return (channel, reason): what is asked for, else what is installed, else NVIDIA's, else whoever has all toolkits."""
    ubuntu = facts.host.os.version_id
    if config.channel != "auto":
        return config.channel, "asked for"
    if config.repo_url:
        return "cuda", "cuda_toolkit_repo_url names a repository"
    here = installed_channels(facts.packages)
    mine = {here[item.minor] for item in wanted if item.minor in here}
    if len(mine) == 1 and (only := mine.pop()) in CHANNELS:
        return only, "the installed toolkits come from there"
    for channel in ("cuda", "ubuntu") if ubuntu in catalog.ubuntu_data.releases else ():
        if all(
            catalog.cuda_in_repository(item.release or item.minor, ubuntu=ubuntu, channel=channel) for item in wanted
        ):
            return channel, "it has every listed toolkit"
    return "cuda", "the default"


def check_one_origin(config: CudaConfig, facts: Facts, wanted: list[str], out: CudaDecision) -> None:
    """Refuse toolkits of one origin beside those of the other: they share packages, which would come from the newer one."""
    others = {
        version: channel
        for version, channel in installed_channels(facts.packages).items()
        if channel != out.channel and (version in wanted or not config.prune)
    }
    if not others:
        return
    shown = [f"CUDA {version} is installed from {of_channels(channel)}" for version, channel in others.items()]
    listed = [version for version in others if version in wanted]
    mixed = any("," in channel for channel in others.values())
    if listed or mixed:
        hint = f"{purge(others)}, then apply installs it from {CHANNELS[out.channel]}"
    else:
        hint = f"cuda_toolkit_prune: true removes CUDA {join_and(list(others))}"
    if not mixed and set(wanted) <= set(others):
        hint = f"cuda_toolkit_channel: {next(iter(others.values()))} keeps what is installed; or {hint}"
    out.block(
        "cuda.two_origins",
        f"toolkits of this host would come from both {CHANNELS['ubuntu']} and {CHANNELS['cuda']}",
        [*shown, f"the listed toolkits come from {CHANNELS[out.channel]}", "their shared packages have the same names"],
        hint,
    )


def pin(facts: Facts, catalog: Catalog, channel: str, nvidia_source: bool) -> str | None:
    """The stanza of our preferences that refuses CUDA of the other origin; None where only one origin is there.

    nvidia_source: this plan brings NVIDIA's repository to the host.
    """
    if facts.host.os.version_id not in catalog.cuda_data.archive_ranges:
        return None
    if channel == "ubuntu" and not nvidia_source and not nvidia_sources(facts):
        return None
    return _stanza(channel)


def kept_pin(facts: Facts) -> str | None:
    """The stanza that our preferences have from an earlier run, for a plan that is not about CUDA: it stays so."""
    for channel, origin in _ORIGINS.items():
        for row in facts.apt.preferences:
            if (
                row.file == apt_files.PREFERENCES
                and row.pin == origin
                and row.package == " ".join(cuda_names.PIN_PATTERNS)
            ):
                return _stanza(channel)
    return None


def _stanza(channel: str) -> str:
    because = f"the CUDA toolkits of this host come from {CHANNELS[channel]}"
    return str(apt_files.render_preferences(cuda_names.PIN_PATTERNS, _ORIGINS[channel], because))
