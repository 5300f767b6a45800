"""The machine around the cards, as the kernel's log of this boot tells it: disks, memory, processors, tasks, the clock."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from provision.diagnose import queries
from provision.diagnose.rule import Case, Found, rule

_BAD_DISK = (
    r"nvme.*(?:timeout|controller is down|Device not ready|reset failure|probe failure)|error, dev |Disk failure on "
    r"|EXT4-fs error|XFS \("
)
# No disk of the host: drives and images whose medium may be missing.
_NO_DISK = re.compile(r"\bdev (?:sr|fd|loop|ram|zram|nbd)[0-9]")
_DISK = re.compile(r"\b(nvme[0-9]+|(?:[shv]|xv)d[a-z]+|md[0-9]+|dm-[0-9]+)")


def _lines(case: Case, pattern: str) -> list[str]:
    """Lines that match. In a container they are the machine's, and nothing can be done about them there."""
    wanted = re.compile(pattern)
    return [] if case.facts.host.container else [line for line in queries.boot(case).machine_log if wanted.search(line)]


@rule("disk.failing")
def _failing(case: Case) -> Iterator[Found]:
    lines = [line for line in _lines(case, _BAD_DISK) if not _NO_DISK.search(line)]
    if not lines:
        return
    disks = sorted({match[1] for line in lines for match in _DISK.finditer(line)})
    yield Found(
        f"a disk reports errors: {', '.join(disks) or 'the log names none'}",
        lines[-8:],
        queries.hardware(
            case, "save what is on it; smartctl -a and nvme smart-log say more; cable, slot, firmware, or a new disk"
        ),
    )


@rule("host.hardware_errors")
def _hardware(case: Case) -> Iterator[Found]:
    found = _lines(case, r"Machine [Cc]heck|EDAC|event severity: ")
    lines = [line for line in found if not re.search(r"\bCE\b|events logged|severity: (?:corrected|info)", line)]
    if lines:
        yield Found(
            "processor or memory report errors that were not corrected",
            lines[-8:],
            queries.hardware(case, "check the BMC's event log (ipmitool sel list): it names the module; replace it"),
        )
    elif found:
        yield Found("processor or memory report errors that were corrected", found[-8:], level="note")


@rule("host.hung_tasks")
def _hung(case: Case) -> Iterator[Found]:
    lines = _lines(case, r"blocked for more than|soft lockup|hard LOCKUP")
    if lines:
        named = re.findall(r"task (\S+?):[0-9]+ blocked|\[([^\]:]+):[0-9]+\]", " ".join(lines))
        names = dict.fromkeys(name for pair in named for name in pair if name)
        yield Found(
            f"tasks of the kernel hang: {', '.join(list(names)[:5]) or 'the log names none'}",
            lines[-8:],
            queries.manual("see what it waits for (disk, network file system, driver): cat /proc/PID/stack as root"),
        )


@rule("host.out_of_memory")
def _memory(case: Case) -> Iterator[Found]:
    lines = _lines(case, r"[Oo]ut of memory")
    if lines:
        names: Mapping[str, None] = dict.fromkeys(re.findall(r"\(([^)]{1,40})\)", " ".join(lines)))
        yield Found(
            f"the kernel ended programs because memory ran out: {', '.join(list(names)[:5]) or 'the log names none'}",
            lines[-8:],
        )


@rule("nccl.crashes")
def _nccl(case: Case) -> Iterator[Found]:
    lines = _lines(case, r"segfault at .* in libnccl")
    if lines:
        yield Found(f"{queries.counted(lines, 'program')} ended by a fault in NCCL", lines[-8:])


@rule("host.clock_unsynchronised")
def _clock(case: Case) -> Iterator[Found]:
    if queries.boot(case).clock_synchronised is False and not case.facts.host.container and not case.facts.host.world:
        yield Found(
            "nothing keeps the clock of this host synchronised",
            ["adjtimex: the clock is not synchronised"],
            queries.manual(
                "timedatectl set-ntp true, or chrony; timedatectl timesync-status says whether servers answer"
            ),
        )
