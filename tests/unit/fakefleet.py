"""A fleet whose hosts answer from facts: sessions without a network, which note what they were asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision import remote
from provision.errors import ProvisionError
from provision.facts import Facts
from provision.inventory import Host, Inventory, variables
from provision.runs.fleet import Fleet


class FakeSession:
    """Answers ``probe`` with a host's facts, and ``aptquery`` through ``apt`` where there is one."""

    def __init__(self, host: Host, answer: Any, apt: Any, asked: list[tuple[str, str]]) -> None:
        self.host, self.answer, self.apt, self.asked = host, answer, apt, asked

    def call(self, module: str, args: dict[str, Any], *, timeout: float = 60) -> Any:
        self.asked.append((self.host.name, module))
        if module in ("probe.facts", "probe.diagnostics"):
            return self.answer.model_dump()
        return self.apt(module, args)

    def close(self) -> None:
        return


def fake_fleet(
    monkeypatch: Any, folder: Any, facts: Mapping[str, Facts | ProvisionError], apt: Any = None, **values: Any
) -> tuple[Fleet, list[tuple[str, str]]]:
    """Return a fleet of hosts with these facts (an error: it cannot be reached), and the list of what they were asked."""
    asked: list[tuple[str, str]] = []

    def open_session(host: Host) -> FakeSession:
        answer = facts[host.name]
        if isinstance(answer, ProvisionError):
            raise answer
        return FakeSession(host, answer, apt, asked)

    monkeypatch.setattr(remote, "open_session", open_session)
    hosts = [Host(name, vars=dict(values)) for name in facts]
    found = variables.effective_all(hosts)
    beside = {"inventory_dir": str(folder), "inventory_source": f"{folder}/hosts.yml"}
    of_hosts = {name: {**own, **beside} for name, own in found.items()}
    return Fleet(Inventory(hosts=hosts, sources=[]), of_hosts), asked
