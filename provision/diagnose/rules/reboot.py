"""Reboots that are due, and what goes wrong with them."""

from __future__ import annotations

from collections.abc import Iterator

from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names
from provision.diagnose import queries
from provision.diagnose.rule import Case, Found, Rule


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
        evidence.append(f"it has its module: {queries.module_words(ready[0])}")
    if facts.gpu_users:
        evidence += [
            f"pid {user.pid}: {user.comm} ({user.user or 'unknown user'}) uses the GPUs" for user in facts.gpu_users[:4]
        ]
    what = f"kernel {kernels.next}" if newer else ", ".join(concerned[:3] or packages[:3]) or "something"
    yield Found(
        f"{what} waits for a reboot" + (", and the GPUs are in use" if facts.gpu_users else ""),
        queries.clip(evidence),
        (queries.reboot("reboot when nobody works on the machine; nothing else is to be done"),),
        reboot=True,
    )


def _nothing(case: Case) -> Iterator[Found]:
    """These happen to who reboots, not to a host: there is nothing to see on it."""
    return iter(())


RULES = (
    Rule(
        code="reboot.pending",
        level="note",
        title="a reboot is due",
        explain=(
            "An update left `/run/reboot-required`, or a newer kernel is installed than the one that runs. "
            "The GPUs work. A reboot belongs to "
            "those whose condition is true (the module or the kernel that runs is not the one on the disk), "
            "never to a playbook that was run: "
            "a second run of an unchanged host reboots nothing."
        ),
        breaks="nothing; what was updated is not in use yet",
        repair="a reboot, when it is allowed and nobody works on the machine",
        prevent="nvidia_driver_reboot: when_idle, which waits for running jobs",
        find=_pending,
        reboot=True,
        texts=(r"\*\*\* System restart required \*\*\*", r"/var/run/reboot-required"),
        after=(
            "kernel.no_module_for_next_boot",
            "kernel.headers_missing",
            "boot.initramfs_broken",
            "kernel.module_version",
        ),
        symptom_of=(
            "driver.stale_module",
            "nouveau.still_loaded",
            "kernel.headers_missing",
            "kernel.build_failed",
            "kernel.no_module_for_next_boot",
            "boot.initramfs_broken",
            "kernel.module_version",
        ),
    ),
    Rule(
        code="reboot.control_node",
        level="note",
        title="a playbook would have rebooted the machine that it runs on",
        explain=(
            "Ansible's reboot module refuses a local connection, and the play ends as failed although its "
            "work is done. `provision apply` never "
            "reboots the machine that it runs on: it ends with exit code 6, and goes on where it stopped when"
            " you have rebooted and run it again."
        ),
        breaks="nothing on the host",
        repair="reboot by hand, then run the same command again",
        prevent="run the command from another machine, or with nvidia_driver_reboot: never",
        find=_nothing,
        texts=(r"Running reboot with local connection would reboot the control node",),
        sources=("ansible.builtin.reboot",),
    ),
    Rule(
        code="reboot.not_back",
        level="note",
        title="a reboot module gave up, or believed too early that the host was back",
        explain=(
            "Large servers need ten minutes and more from the order to reboot until ssh answers; others are "
            "slow to go down, so that the first "
            "check finds the old boot still alive. Only another boot_id proves a reboot. `provision apply` "
            "compares it, waits for "
            "nvidia_driver_reboot_timeout, and on a timeout leaves that host where it is while the others go on."
        ),
        breaks="the rest of the play on that host",
        repair="wait, look at the console, run the command again",
        prevent="nvidia_driver_reboot_timeout: 1800 for large servers",
        find=_nothing,
        texts=(r"Timed out waiting for last boot time check", r"Timed out waiting for post-reboot test command"),
        sources=("ansible.builtin.reboot",),
    ),
)
