"""The commands of every day: init, scan, envs, plan, apply, verify, compat, catalog."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from provision.cli.base import (
    LOCK,
    NO_LOCK,
    Settings,
    command,
    finish,
    lock_variables,
    open_fleet,
    open_this_machine,
    refuse_json,
    with_lock,
    with_values,
)
from provision.errors import UsageError

_SCAN = "Find hosts and read them"


@command(
    "provision init gpu01 gpu02",
    "provision init 'gpu[01:40]' --user ubuntu -o fleet.yml",
    "provision init 'gpu[01:40]' --scan",
    "provision init --from-file hosts.txt",
    "provision init --from-ssh-config",
    "provision init -i old-inventory --from-inventory",
    "provision init localhost",
)
def init(
    settings: Settings,
    hosts: Annotated[
        list[str] | None, typer.Argument(metavar="[HOST]...", help="Names or addresses; ranges as gpu[01:40].")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="File to write (default: inventory/hosts.yml)."),
    ] = None,
    user: Annotated[str | None, typer.Option("-u", "--user", metavar="NAME", help="User to log in as.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    from_file: Annotated[
        Path | None,
        typer.Option("--from-file", metavar="FILE", rich_help_panel=_SCAN, help="Names in a file, one a line."),
    ] = None,
    from_ssh_config: Annotated[
        bool, typer.Option("--from-ssh-config", rich_help_panel=_SCAN, help="The hosts that ~/.ssh/config names.")
    ] = False,
    ssh_config: Annotated[
        Path | None,
        typer.Option(
            "--ssh-config", metavar="FILE", rich_help_panel=_SCAN, help="The same, from another configuration of ssh."
        ),
    ] = None,
    from_inventory: Annotated[
        bool,
        typer.Option(
            "--from-inventory",
            rich_help_panel=_SCAN,
            help="Groups for the hosts of an inventory that you have (-i): a file beside it, not a copy.",
        ),
    ] = False,
    scan: Annotated[
        bool | None,
        typer.Option(
            "--scan/--no-scan",
            rich_help_panel=_SCAN,
            help="Read every host, and group hosts by their cards. Default: yes, except for hosts given by name.",
        ),
    ] = None,
) -> int:
    """Write a commented inventory; for a fleet, read every host first and propose groups by hardware.

    Hosts that cannot be read are in a group of their own, with the reason (exit code 4).
    """
    from provision.cli import starting

    request = starting.Request(
        hosts=tuple(hosts or ()),
        output=output,
        user=user,
        force=force,
        file=from_file,
        inventory=from_inventory,
        ssh_config=ssh_config or (starting.SSH_CONFIG if from_ssh_config else None),
        scan=scan,
    )
    return starting.run(settings, request)


_PRUNE = "Remove apt's CUDA toolkits that are not listed."


@command("provision scan", "provision -i localhost, scan", "provision scan -l 'gpu*:!gpu03' --json")
def scan(settings: Settings) -> int:
    """Show the state of hosts: GPUs, the driver in its layers, holds, kernels, sources, CUDA. Changes nothing.

    A fleet is a table; one host (-l gpu01), or -v, is shown layer by layer.
    """
    fleet, renderer = open_fleet(settings, "scan", dial=True)
    from provision.commands import scan as command

    return finish(settings, command.run(fleet, renderer.progress()), renderer)


@command("provision envs", "provision envs -l gpu01 --no-size", "provision envs --json")
def envs(
    settings: Settings,
    no_size: Annotated[bool, typer.Option("--no-size", help="Do not measure: much faster on slow disks.")] = False,
) -> int:
    """Show every conda and its environments: Python, framework, CUDA, build for GPU or CPU, size. Changes nothing.

    Homes on network file systems are read only if the inventory names their users.
    """
    fleet, renderer = open_fleet(settings, "envs", dial=True)
    from provision.commands import envs as command

    return finish(settings, command.run(fleet, renderer.progress(), sizes=not no_size), renderer)


class Format(StrEnum):
    text = "text"
    markdown = "markdown"


@command(
    "provision plan",
    "provision plan -l gpu01 --why",
    "provision plan --diff",
    "provision plan --format markdown",
    "provision plan -e nvidia_driver_branch=580",
)
def plan(
    settings: Settings,
    why: Annotated[bool, typer.Option("--why", help="Show every reason and every package (as -v).")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show the contents of files that are written.")] = False,
    format_: Annotated[
        Format, typer.Option("--format", help="markdown: for a ticket or a merge request.")
    ] = Format.text,
    prune: Annotated[bool, typer.Option("--prune", help=_PRUNE)] = False,
    lock: LOCK = None,
    no_lock: NO_LOCK = False,
) -> int:
    """Show what apply would do: packages, download, restarts, reboots. Changes nothing.

    Each change is one line with the hosts that it is about: + added, ~ changed, - removed, ! interrupts work.
    """
    if format_ is Format.markdown and settings.json:
        raise UsageError("usage.format", "--format markdown and --json exclude each other", hint="give one of them")
    settings = replace(settings, verbose=max(settings.verbose, int(why)))
    settings = with_lock(settings, lock, no_lock)
    settings = with_values(settings, prune and {"cuda_toolkit_prune": True})
    fleet, renderer = open_fleet(settings, "plan", dial=True)
    from provision.commands import plan as command

    document = command.run(fleet, renderer.progress())
    if format_ is Format.markdown:
        renderer.markdown(document)
        renderer.errors(document.errors)
        return document.exit_code
    if diff:
        renderer.contents(document)
    return finish(settings, document, renderer)


_ROLLOUT = "A few hosts at a time"


@command(
    "provision apply",
    "provision apply -l gpu01 --yes",
    "provision apply --no-reboot",
    "provision apply --check",
    "provision apply --canary 2 --batch 25% --max-failures 1",
    "provision apply --batch 4 --wait 2h --yes",
    "provision apply --resume last",
    "provision apply --rollback last",
)
def apply(
    settings: Settings,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Ansible's check mode: say what would change, change nothing.")
    ] = False,
    no_reboot: Annotated[bool, typer.Option("--no-reboot", help="Leave needed reboots to you (exit code 6).")] = False,
    prune: Annotated[bool, typer.Option("--prune", help=_PRUNE)] = False,
    lock: LOCK = None,
    no_lock: NO_LOCK = False,
    canary: Annotated[
        int | None,
        typer.Option(
            "--canary",
            min=1,
            metavar="N",
            rich_help_panel=_ROLLOUT,
            help="Change N hosts first, as different as possible.",
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            "--batch",
            metavar="N|N%",
            rich_help_panel=_ROLLOUT,
            help="Hosts at a time; a percentage counts the hosts that change.",
        ),
    ] = None,
    max_failures: Annotated[
        str | None,
        typer.Option(
            "--max-failures",
            metavar="N|N%",
            rich_help_panel=_ROLLOUT,
            help="Stop when more hosts than this fail (default with --canary or --batch: 0).",
        ),
    ] = None,
    wait: Annotated[
        str | None,
        typer.Option(
            "--wait",
            metavar="TIME",
            rich_help_panel=_ROLLOUT,
            help="Wait this long for GPUs that are in use (15m, 2h). Without it such hosts are skipped.",
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="RUN",
            rich_help_panel=_ROLLOUT,
            help="Continue a run where it stopped: last, a part of its name, or its folder.",
        ),
    ] = None,
    rollback: Annotated[
        str | None,
        typer.Option(
            "--rollback",
            metavar="RUN",
            help="Back to the versions before a run, on its hosts: last, or a part of its name (provision history).",
        ),
    ] = None,
    break_lock: Annotated[
        bool, typer.Option("--break-lock", help="Take over the lock of another run on a host.")
    ] = False,
) -> int:
    """Plan, ask, change the hosts that need it, reboot if allowed, then read the hosts again and test the result.

    Hosts that already match the inventory are not changed. The next run, or --resume, completes an interrupted one.
    docs/rollout.md describes canaries, batches and hooks.
    """
    from provision.cli import applying
    from provision.rollout.options import parse

    refuse_json(settings, yes or check)
    values: dict[str, str | bool] = {**lock_variables(lock, no_lock)}
    if no_reboot:
        values["nvidia_driver_reboot"] = "never"
    if prune:
        values["cuda_toolkit_prune"] = True
    options = parse(canary, batch, max_failures, wait, values)
    how = applying.How(yes=yes, check=check, break_lock=break_lock)
    if resume:
        return applying.go_on(settings, resume, options, how, rollback=rollback)
    return applying.begin(settings, options, how, rollback=rollback)


class MonitorFormat(StrEnum):
    text = "text"
    slurm = "slurm"
    nagios = "nagios"


@command(
    "provision verify",
    "provision verify --local --format slurm",
    "provision verify -l gpu01 -v",
    "provision verify --check 'gpu.*' --deep",
    "provision verify -l gpu01 --check 'gpu.*' --soak 15m",
    "provision verify --junit results.xml",
)
def verify(
    settings: Settings,
    check: Annotated[
        list[str] | None,
        typer.Option("--check", metavar="PATTERN", help="Only these checks: cuda.nvcc, 'gpu.*'. Repeatable."),
    ] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Test most of each card's memory; measure longer.")] = False,
    soak: Annotated[
        str | None,
        typer.Option(
            "--soak", metavar="TIME", help="Load all cards that nobody uses for this long (15m), and watch them."
        ),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write the results as JUnit XML, for CI.")
    ] = None,
    local: Annotated[
        bool, typer.Option("--local", help="Check this machine in a second or two: checks that read, and the site's.")
    ] = False,
    format_: Annotated[
        MonitorFormat,
        typer.Option(
            "--format", help="slurm: the reason for a drain, or nothing; nagios: one line and its exit codes."
        ),
    ] = MonitorFormat.text,
) -> int:
    """Check every host and print pass, warn, fail or skip with the evidence. Changes nothing, leaves nothing behind.

    docs/checks.md and docs/prove.md say what each check means and what to do.
    """
    if format_ is not MonitorFormat.text and settings.json:
        raise UsageError("usage.format", f"--format {format_} and --json exclude each other", hint="give one of them")
    load = 0.0
    if soak:
        from provision.rollout.options import seconds

        load = seconds(soak, "--soak")
    fleet, renderer = open_this_machine(settings, "verify") if local else open_fleet(settings, "verify", dial=True)
    from provision.commands import verify as command
    from provision.planning.verification import QUICK, CheckSelection

    selection = CheckSelection(tuple(check or ()), deep, QUICK.skip if local else (), load)
    quiet = format_ is not MonitorFormat.text
    # What reads alone measures nothing, and a monitor's account has no past to keep.
    memory = None if local else command.memory_of(settings.run_dir)
    document = command.run(fleet, None if quiet else renderer.progress(), selection=selection, memory=memory)
    if junit:
        command.write_junit(document, junit)
    if quiet:
        lines, code = command.for_monitor(document, nagios=format_ is MonitorFormat.nagios)
        renderer.lines(lines)
        return code
    if local and not settings.inventory:
        settings = replace(settings, inventory=["localhost,"])
    return finish(settings, document, renderer)


@command(
    "provision compat --gpu 'RTX 3090' --cuda 12.4",
    "provision compat --gpu H100 --torch 2.6 --ubuntu 24.04",
    "provision compat --gpu V100 --gpu 'RTX 4090' --driver 580 --json",
    "provision compat --image-cuda 12.1 --driver 535",
)
def compat(
    settings: Settings,
    gpu: Annotated[
        list[str] | None, typer.Option("--gpu", metavar="NAME", help="GPU by name or PCI id; repeatable.")
    ] = None,
    driver: Annotated[str | None, typer.Option("--driver", metavar="580", help="Branch or version.")] = None,
    cuda: Annotated[str | None, typer.Option("--cuda", metavar="12.4", help="CUDA toolkit.")] = None,
    cudnn: Annotated[str | None, typer.Option("--cudnn", metavar="9", help="cuDNN.")] = None,
    torch: Annotated[str | None, typer.Option("--torch", metavar="2.6", help="PyTorch.")] = None,
    tensorflow: Annotated[str | None, typer.Option("--tensorflow", metavar="2.18", help="TensorFlow.")] = None,
    jax: Annotated[str | None, typer.Option("--jax", metavar="0.6", help="JAX.")] = None,
    nccl: Annotated[str | None, typer.Option("--nccl", metavar="2.21", help="NCCL.")] = None,
    ubuntu: Annotated[str | None, typer.Option("--ubuntu", metavar="24.04", help="Ubuntu release.")] = None,
    machine: Annotated[
        str | None, typer.Option("--machine", metavar="ARCH", help="Processor: x86_64 or aarch64.")
    ] = None,
    modules: Annotated[
        str | None, typer.Option("--modules", metavar="FLAVOUR", help="Kernel modules: open or proprietary.")
    ] = None,
    image_cuda: Annotated[
        str | None, typer.Option("--image-cuda", metavar="12.1", help="CUDA inside a container image.")
    ] = None,
    kernel: Annotated[str | None, typer.Option("--kernel", metavar="6.17", help="The host's kernel.")] = None,
    mig: Annotated[bool, typer.Option("--mig", help="The GPUs are divided (MIG).")] = False,
) -> int:
    """Answer from the catalog which GPUs, drivers, CUDA versions and frameworks work together, and why. Contacts no host."""
    from provision.commands import compat as command
    from provision.compat.answer import CompatRequest

    request = CompatRequest(
        gpu=tuple(gpu or ()),
        driver=driver,
        cuda=cuda,
        cudnn=cudnn,
        torch=torch,
        tensorflow=tensorflow,
        jax=jax,
        nccl=nccl,
        ubuntu=ubuntu,
        machine=machine,
        modules=modules,
        image_cuda=image_cuda,
        kernel=kernel,
        mig=mig,
    )
    return finish(settings, command.run(request))


class Review(StrEnum):
    check = "check"
    update = "update"


@command(
    "provision catalog check",
    "provision catalog check --catalog ./catalog --json",
    "provision catalog update --from python=https://INDEX/pypi",
    "provision catalog update --from nvidia=/srv/mirror/cuda/repos --from ubuntu=/srv/mirror/ubuntu --catalog ./catalog --yes",
)
def catalog_(
    settings: Settings,
    what: Annotated[Review, typer.Argument(metavar="check|update", help="What to do with the catalog.")],
    sources: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="KIND=PLACE",
            help="update: a source: python, nvidia, ubuntu, redistrib or gpus, and its folder or https address; may be repeated.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="update: write the difference into --catalog DIR.")] = False,
) -> int:
    """Review the catalog, or compare it with machine-readable sources. Contacts no host.

    check: contradictions, gaps, old sources and sources without a link. update: how sources differ from the catalog; with --yes
    write a copy of the catalog with the differences. docs/catalog.md describes the files.
    """
    from provision.commands import catalog as command

    if what is Review.update:
        return finish(settings, command.update_(settings.catalog, sources or (), yes=yes))
    if sources or yes:
        raise UsageError(
            "usage.arguments", "--from and --yes are of catalog update", hint="provision catalog update --help"
        )
    return finish(settings, command.check(settings.catalog))
