"""Reboots that are due, and what goes wrong with them."""

from __future__ import annotations

from collections.abc import Iterator

from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names
from provision.diagnose import queries
from provision.diagnose.rule import Case, Found, rule


@rule("reboot.pending")
def _pending(case: Case) -> Iterator[Found]:
    facts = case.facts
    kernels = facts.kernels
    newer = bool(kernels.next and kernels.next != kernels.running and not queries.in_container(case))
    if not facts.reboot_required.required and not newer:
        return
    packages = facts.reboot_required.packages
    concerned = [name for name in packages if driver_names.is_driver_package(name) or name.startswith("linux-")]
    evidence = []
    if facts.reboot_required.required:
        evidence.append("/run/reboot-required: " + (", ".join(packages) or "no package named"))
    if newer:
        evidence.append(
            f"kernel {kernels.running} runs, {kernels.next} boots next ({kernels.next_because or 'by the boot loader'})"
        )
    ready = queries.modules_of(case, kernels.next or kernels.running)
    if ready and queries.own_gpus(case):
        evidence.append(f"it has its module: {queries.module_text(ready[0])}")
    if facts.gpu_users:
        evidence += [f"{queries.user_text(user)} uses the GPUs" for user in facts.gpu_users[:4]]
    what = f"kernel {kernels.next}" if newer else ", ".join(concerned[:3] or packages[:3]) or "something"
    yield Found(
        f"{what} waits for a reboot" + (", and the GPUs are in use" if facts.gpu_users else ""),
        evidence,
        queries.reboot("reboot when nobody uses the machine; nothing else is needed"),
        reboot=True,
    )
