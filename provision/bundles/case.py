"""A host as a file for others: the folder that the probe reads, what no folder can hold, and nobody's name.

``case.json`` has the keys of a case of tests/cases (tests/unit/brokenhosts.py): ``smi``, ``programs``, ``values`` and ``facts``,
which are laid over what the probe reads of the folder ``root``. ``KEY=`` there takes the place of the whole KEY.
"""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from xml.sax.saxutils import escape

from ansible_collections.gpu.provision.plugins.module_utils.lib import host_tree, kernel_errors, redact
from provision.bundles.folder import HostFolder, refused
from provision.bundles.mask import Mask
from provision.facts import Facts
from provision.facts.diagnostics import Diagnosed
from provision.lib import scratch

NAME = "case.json"
MOST_ENTRIES = 200_000
_MOST_JSON = 32 << 20
# What depends on who replays a case, and when.
_OF_THE_MOMENT = (
    ("host", "is_root"),
    ("host", "arch"),
    ("disks",),
    ("apt", "lists_age_s"),
    ("apt", "lock_holder"),
    ("trouble", "apt", "disks"),
    ("trouble", "apt", "clock"),
    ("trouble", "apt", "locks"),
)


def make(exported: Mapping[str, Any], values: Mapping[str, Any], names: Mapping[str, list[str]]) -> bytes:
    """Return the tar of a host: exported is what the program probe.export returned, names what its inventory calls it.

    values: role variables that are no defaults.
    """
    facts = Diagnosed.of_host(exported["facts"])
    own = {
        kind: [*exported["own"].get(kind, ()), *names.get(kind, ())]
        for kind in ("hosts", "users", "addresses", "serials")
    }
    own["hosts"].append(facts.host.hostname)
    own["users"] += [user.user for user in facts.gpu_users if user.user]
    if facts.trouble:
        own["users"] += facts.trouble.user.conda_guarded
        # "alice (1000)": people of a directory stand in no file of the host's
        own["users"] += [row.by.split(" (")[0] for row in facts.trouble.apt.transactions if row.by]
        for proxy in facts.trouble.user.proxies:
            own["hosts"].append(proxy.value.rpartition(":")[0])
    # also where a log or a file names them
    own["containers"] = [row.name for row in facts.containers.running if row.name]
    own["images"] = [row.image for row in facts.containers.running if row.image]
    mask = Mask(own, facts.packages)
    wanted = mask.data(facts.model_dump(mode="json"))
    wanted["host"]["hostname"] = "host"
    for number, row in enumerate(wanted["containers"]["running"], 1):
        row["id"] = f"{number:012d}"
        row |= {key: f"{key}{number}" for key in ("name", "image") if row[key]}
    # It names who runs a change and from where, and no rule reads it.
    wanted["run_lock"] = None
    case: dict[str, Any] = {
        "name": "an exported host",
        **_answers(wanted),
        "values": mask.data(redact.data(dict(values))),
    }
    with tempfile.TemporaryDirectory(dir=scratch.folder()) as path:
        host = HostFolder(Path(path))
        _lay_out(exported, mask, wanted, host)
        host.answers = _answered(case)
        read = Diagnosed.of_host(host.collect()).model_dump(mode="json")
        case["facts"] = _difference(read, wanted)
        for keys in _OF_THE_MOMENT:
            _set(case["facts"], wanted, keys)
        return _packed(case, Path(path))


def replay(archive: tarfile.TarFile, host: HostFolder) -> tuple[Facts, dict[str, Any]]:
    """Lay a case out in a folder and return (its facts, its role variables). Raises UsageError."""
    case: dict[str, Any] = {}
    links: list[tuple[str, str]] = []
    times: list[tuple[str, float]] = []
    for count, entry in enumerate(archive):
        if count > MOST_ENTRIES:
            raise refused(f"it has more than {MOST_ENTRIES} entries")
        parts = PurePosixPath(entry.name).parts
        if entry.name == NAME and entry.isfile() and entry.size <= _MOST_JSON:
            content = archive.extractfile(entry)
            case = json.loads(content.read()) if content else {}
        elif parts[:1] == ("root",) and ".." not in parts:
            path = "/".join(parts[1:])
            if entry.isdir():
                host.folder_of(path)
            elif entry.issym():
                links.append((path, entry.linkname))
            elif entry.isfile() and not entry.issparse() and entry.size <= host_tree.MOST_BYTES:
                content = archive.extractfile(entry)
                host.write(path, content.read() if content else b"")
                times.append((path, entry.mtime))
                if entry.mode & 0o100:
                    host.runnable(path)
    if (
        not isinstance(case, dict)
        or not isinstance(case.get("facts"), dict)
        or not isinstance(case.get("values", {}), dict)
    ):
        raise refused("it is no exported case: case.json is missing or has another shape")
    for path, target in links:
        host.link(path, target)
    for path, seconds in times:
        host.date(path, seconds)
    host.answers = _answered(case)
    found = host.collect()
    return Diagnosed.of_host(laid_over(found, case["facts"])), case.get("values", {})


def laid_over(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return base with what over says; ``KEY=`` takes the place of the whole KEY."""
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            laid_over(base[key], value)
        else:
            base[key.removesuffix("=")] = value
    return base


def _difference(base: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for key, value in wanted.items():
        if key in base and base[key] == value:
            continue
        mapped = isinstance(value, dict) and isinstance(base.get(key), dict)
        if mapped and not set(base[key]) - set(value):
            rows[key] = _difference(base[key], value)
        else:
            rows[f"{key}=" if mapped else key] = value
    return rows


def _set(rows: dict[str, Any], wanted: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    """Say a field in rows too, where it is not said yet."""
    for key in keys[:-1]:
        if f"{key}=" in rows or not isinstance(wanted.get(key), dict):
            return
        rows, wanted = rows.setdefault(key, {}), wanted[key]
    if f"{keys[-1]}=" not in rows:
        rows[keys[-1]] = wanted[keys[-1]]


# --- the folder ----------------------------------------------------------------------------------------------


def _lay_out(exported: Mapping[str, Any], mask: Mask, wanted: Mapping[str, Any], host: HostFolder) -> None:
    for path in exported["folders"]:
        host.folder_of(mask.text(path))
    host.text("/var/lib/dpkg/status", "".join(_stanza(name, row) for name, row in wanted["packages"].items()))
    if wanted["smi"]["path"]:
        host.text(wanted["smi"]["path"], "")
        host.runnable(wanted["smi"]["path"])
    for path, row in exported["files"].items():
        place = mask.text(path)
        host.text(place, mask.text(row["text"]))
        host.date(place, row["mtime"])
    for path, target in exported["links"].items():
        host.folder_of(str(PurePosixPath(mask.text(path)).parent))
        host.link(mask.text(path).lstrip("/"), mask.text(target))


def _stanza(name: str, row: Mapping[str, Any]) -> str:
    want = {"i": "install", "h": "hold", "r": "deinstall", "p": "purge", "u": "unknown"}
    states = (
        "not-installed config-files half-installed unpacked half-configured triggers-awaited triggers-pending installed"
    )
    state = dict(zip("ncHUFWti", states.split(), strict=True))
    status = row["status"] + " "
    words = (
        f"{want.get(status[0], 'unknown')} {'reinstreq' if 'R' in status else 'ok'} {state.get(status[1], 'installed')}"
    )
    fields = {"Package": name.split(":")[0], "Status": words, "Architecture": row["arch"], "Source": row["source"]}
    fields |= {"Version": row["version"], "Depends": row["depends"]}
    return "".join(f"{field}: {value}\n" for field, value in fields.items() if value) + "\n"


def _answers(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """{"smi", "programs"}: what programs printed, as far as the facts have it."""
    smi, boot = wanted["smi"], (wanted["trouble"] or {}).get("boot", {})
    rows = [f"<{tag}>{escape(smi[tag])}</{tag}>" for tag in ("driver_version", "cuda_version") if smi[tag]]
    for gpu in smi["gpus"]:
        persistence = {True: "Enabled", False: "Disabled"}.get(gpu["persistence"])
        tags = {"product_name": gpu["name"], "uuid": gpu["uuid"], "persistence_mode": persistence}
        tags |= {"current_mig": gpu["mig"], "pending_mig": gpu["mig_pending"], "current_ecc": gpu["ecc"]}
        tags |= {"virtualization_mode": gpu["virtualization"], "license_status": gpu["license"]}
        tags |= {"gpu_recovery_action": gpu["recovery"], **dict.fromkeys(gpu["flags"], "Yes")}
        body = "".join(f"<{tag}>{escape(value)}</{tag}>" for tag, value in tags.items() if value)
        memory = gpu["memory_mib"]
        body += f"<fb_memory_usage><total>{memory} MiB</total></fb_memory_usage>" if memory is not None else ""
        rows.append(f'<gpu id="{gpu["bus_id"] or ""}">{body}</gpu>')
    out = f"<nvidia_smi_log>{''.join(rows)}</nvidia_smi_log>" if rows else ""
    # Errors of the cards keep their order and their boots; the log has each line once.
    errors = (boot.get("errors") or {}).get("lines", [])
    lines = [row["text"] for row in errors if row["boot"] < 0]
    lines += ["Linux version 0"] if lines else []
    lines += [line for line in boot.get("log", []) if not kernel_errors.wanted(line)]
    lines += [row["text"] for row in errors if row["boot"] == 0]
    programs = {"dmesg": "\n".join(lines) + "\n"} if lines else {}
    return {"smi": {"rc": smi["rc"] or 0, "out": out, "err": smi["error"] or ""}, "programs": programs}


def _answered(case: Mapping[str, Any]) -> dict[str, tuple[int, str] | tuple[int, str, str]]:
    """What HostFolder answers. Raises UsageError for a case of another shape."""
    try:
        smi = case["smi"]
        programs = {str(name): (0, str(text), "") for name, text in case["programs"].items()}
        return {"nvidia-smi": (int(smi["rc"]), str(smi["out"]), str(smi["err"])), **programs}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise refused("it is no exported case: case.json has another shape") from error


def _packed(case: Mapping[str, Any], folder: Path) -> bytes:
    out = io.BytesIO()

    def add(entry: tarfile.TarInfo, data: bytes = b"") -> None:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        archive.addfile(entry, io.BytesIO(data))

    with tarfile.open(fileobj=out, mode="w") as archive:
        text = json.dumps(case, indent=1, ensure_ascii=False).encode()
        entry = tarfile.TarInfo(NAME)
        entry.size = len(text)
        add(entry, text)
        for path in sorted(folder.rglob("*")):
            entry = archive.gettarinfo(path, f"root/{path.relative_to(folder)}")
            add(entry, path.read_bytes() if entry.isreg() else b"")
    return out.getvalue()
