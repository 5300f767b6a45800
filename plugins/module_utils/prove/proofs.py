# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Have the GPUs of a host work: compute, compile, talk to each other, serve frameworks; and say what was measured.

``main(args) -> {"measured": [row, ..]}``: one row a check, {"id", "seconds"} with "skip", "status" and "evidence" (why nothing
could be measured, see skipped) or "found" (data for the check's judge on the controller, provision/parts/*/proofs.py).
Everything that touches a card runs in a child (job), bounded in time and memory; nothing is left behind. Standard library
only, Python 3.8 and later.
Everything in args is optional:

    only, skip   patterns of check ids ("gpu.compute", "cuda.*"): all, none when empty
    deep         true: nearly all memory of every card is written and read, all-reduce up to the largest size, DCGM's level 2
    busy         "skip" (a card that somebody uses is not loaded) or "run"
    users        [facts.GpuUser]: who has a card open; NVML's own list is always added
    toolkits     [{"version": "12.4", "path": "/usr/local/cuda-12.4"}]: nvcc of each is tried
    python       paths of interpreters to judge
    containers   {"docker", "docker_cdi", "podman": bool, "image": text, "gpus": number}: runtimes to try, see container
    soak_s       seconds of load on every card at once, for gpu.soak; not run without them
    timeout_s    bound for one check with all its steps (default 90; deep 300), for gpu.soak in addition to soak_s
    library_path LD_LIBRARY_PATH of a login; environment: other variables that a login exports
"""

from __future__ import annotations

import os
import sys
import time

from ansible_collections.gpu.provision.plugins.module_utils.lib import run_as

# The jobs of compile, p2p, soak and xid run in children by their names alone: imported, so that their sources are here.
from ansible_collections.gpu.provision.plugins.module_utils.prove import compile as prove_compile  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.prove import container as prove_container
from ansible_collections.gpu.provision.plugins.module_utils.prove import count as prove_count
from ansible_collections.gpu.provision.plugins.module_utils.prove import cudnn as prove_cudnn
from ansible_collections.gpu.provision.plugins.module_utils.prove import dcgm as prove_dcgm
from ansible_collections.gpu.provision.plugins.module_utils.prove import framework as prove_framework
from ansible_collections.gpu.provision.plugins.module_utils.prove import job as prove_job
from ansible_collections.gpu.provision.plugins.module_utils.prove import nccl as prove_nccl
from ansible_collections.gpu.provision.plugins.module_utils.prove import p2p as prove_p2p  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.prove import site as prove_site
from ansible_collections.gpu.provision.plugins.module_utils.prove import soak as prove_soak  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.prove import topology as prove_topology
from ansible_collections.gpu.provision.plugins.module_utils.prove import xid as prove_xid  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.prove.names import wanted

TIMEOUT_S, DEEP_TIMEOUT_S = 90.0, 300.0
LOAD_S = 1.5
FRAMEWORK_MEMORY = 24 * prove_job.GIB


def main(args):
    """Run the checks that args asks for. See the module's docstring for what args may hold."""
    with prove_job.signals_end_cleanly():
        return {"measured": Proof(args or {}).run()}


def longest(args):
    """Seconds that main(args) can take at most: what a caller has to wait for before it gives up."""
    proof = Proof(args)
    # A check may end a second late in each of its steps, and then waits for what hangs in the driver.
    return proof.soak_s + sum(proof.timeout + 15.0 for _ in proof.plan())


def skipped(message, evidence=(), status="skip"):
    """Why nothing could be measured.

    status: "skip" (there is nothing to prove), "not_run" (its cards are left alone: in use, or hidden by somebody) or
    "no_card" (no card can be used; where the host should have one, the controller makes that a failure).
    """
    return {"skip": message, "evidence": list(evidence), "status": status}


def left_alone(why):
    """Every card that would do is left alone. why: a sentence a card."""
    return skipped(why[0] + (" and %d more" % (len(why) - 1) if len(why) > 1 else ""), why, "not_run")


def measured(**found):
    """What a check's judge gets, Outcomes as data."""
    return {"found": _plain(found)}


def _plain(value):
    if isinstance(value, prove_job.Outcome):
        return value.plain()
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def units(cards):
    """What a CUDA program can use: [{"label", "uuid", "index", "cc", "name", "card_uuid"}], MIG instances apart.

    cards: of prove.nvml.survey. A card in MIG mode computes through its instances only.
    """
    found = []
    for card in cards:
        base = {"index": card["index"], "cc": card["cc"], "card_uuid": card["uuid"]}
        if not (card["mig"] or {}).get("current"):
            found.append(dict(base, label=str(card["index"]), uuid=card["uuid"], name=card["name"], mig=False))
        for number, instance in enumerate(card["mig_instances"]):
            label = "%d:%d" % (card["index"], number)
            found.append(dict(base, label=label, uuid=instance["uuid"], name=instance["name"], mig=True))
    return found


def occupied(cards, users, own=()):
    """Return {index of card: who uses it} from the probe's list of users and NVML's.

    users: [facts.GpuUser]; own: pids that do not count.
    """
    found = {}
    for card in cards:
        node = "/dev/nvidia%s" % card["minor"]
        named = {
            user["pid"]: "%s (pid %d%s)" % (user["comm"], user["pid"], ", " + user["user"] if user.get("user") else "")
            for user in users
            if node in user["devices"]
        }
        for pid in card["users"]:
            named.setdefault(pid, "pid %d" % pid)
        who = [words for pid, words in sorted(named.items()) if pid not in own]
        if who:
            found[card["index"]] = ", ".join(who[:4]) + (" and %d more" % (len(who) - 4) if len(who) > 4 else "")
    return found


class Proof(object):
    """One run of the checks: what several of them need is asked once, when the first one needs it."""

    def __init__(self, args):
        self.args, self.kept = args, {}
        self.deep = bool(args.get("deep"))
        self.soak_s = float(args.get("soak_s") or 0.0)
        self.timeout = float(args.get("timeout_s") or (DEEP_TIMEOUT_S if self.deep else TIMEOUT_S))
        self.deadline = time.monotonic() + self.timeout
        self.library_path = args.get("library_path") or ""
        self.folders = [folder for folder in self.library_path.split(":") if folder.startswith("/")]
        exported = dict(args.get("environment") or {})
        exported.pop("LD_LIBRARY_PATH", None)
        self.hidden_by = exported.pop("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES"))
        self.exported = {name: value for name, value in exported.items() if name.startswith(("NCCL_", "CUDA_"))}

    # --- what checks share ---

    def once(self, name, make):
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]

    def environment(self, more=None, library_path=None):
        return prove_job.clean_environment(library_path, dict(self.exported, **(more or {})))

    def job(self, module, function, args=None, env=None, **more):
        left = max(1.0, self.deadline - time.monotonic())
        more["timeout_s"] = min(more.get("timeout_s", left), left)
        return prove_job.Job(module, function, args, self.environment() if env is None else env, **more)

    @property
    def survey(self):
        return self.once("survey", lambda: prove_job.run(self.job("prove.nvml", "survey", timeout_s=60.0)))

    @property
    def cards(self):
        return self.survey.result["cards"] if self.survey.ok else []

    @property
    def no_card(self):
        """Why nothing can run on a card, or None."""
        return self.once("no_card", lambda: prove_count.no_card(self.survey, prove_count.bus_cards(), self.seen))

    @property
    def seen(self):
        """Outcome of what a CUDA program of a login sees, with its CUDA_VISIBLE_DEVICES."""

        def look():
            more = {} if self.hidden_by is None else {"CUDA_VISIBLE_DEVICES": self.hidden_by}
            return prove_job.run(self.job("prove.cuda", "visible", env=self.environment(more)))

        return self.once("seen", look)

    @property
    def busy(self):
        return self.once("busy", lambda: occupied(self.cards, self.args.get("users") or []))

    @property
    def usable(self):
        """(units to load, [why others are not]): visible to a login, and used by nobody unless busy is "run"."""
        loaded, why = [], []
        uuids = {card["uuid"].lower() for card in self.seen.result["cards"]} if self.seen.ok else set()
        for unit in units(self.cards):
            bare = unit["uuid"].lower().split("-", 1)[-1]
            if self.hidden_by is not None and bare not in uuids:
                why.append("card %s is hidden by CUDA_VISIBLE_DEVICES=%r" % (unit["label"], self.hidden_by))
            elif unit["index"] in self.busy and self.args.get("busy") != "run":
                why.append("card %s is not loaded: %s uses it" % (unit["label"], self.busy[unit["index"]]))
            else:
                loaded.append(unit)
        return loaded, why

    # --- the checks ---

    def run(self):
        """Return what was measured for every check that is asked for."""
        found = []
        for name, make in self.plan():
            if not wanted(name, self.args.get("only")) or self.args.get("skip") and wanted(name, self.args["skip"]):
                continue
            started = time.monotonic()
            self.deadline = started + self.timeout
            found.append(dict(make(), id=name, seconds=round(time.monotonic() - started, 2)))
        return found

    def plan(self):
        """Yield (id, function without arguments that returns what was measured)."""
        yield "gpu.count", self.count
        yield "gpu.compute", self.compute
        if self.soak_s:
            yield "gpu.soak", self.soak
        yield "gpu.health", self.health
        yield "gpu.xid", self.xid
        yield "gpu.p2p", self.p2p
        yield "gpu.nccl", self.nccl
        yield "gpu.cudnn", self.cudnn
        yield "gpu.dcgm", self.dcgm
        toolkits = self.args.get("toolkits") or []
        for toolkit in toolkits:
            name = "cuda.compile[%s]" % toolkit["version"]
            yield name, lambda toolkit=toolkit: self.compile(toolkit)
        if not toolkits:
            yield "cuda.compile", lambda: skipped("no toolkit with nvcc is known here")
        for path in self.args.get("python") or []:
            name = "python.framework[%s]" % path
            yield name, lambda path=path: self.answered(path)
        for row in self.args.get("site") or []:
            yield "site.check[%s]" % row["name"], lambda row=row: measured(**prove_site.run(row, self.args["about"]))
        for name, make in prove_container.plan(self.args.get("containers")):
            yield name, lambda make=make: make(self.timeout)

    def count(self):
        found = {"survey": self.survey, "bus": prove_count.bus_cards(), "seen": self.seen, "hidden_by": self.hidden_by}
        if self.library_path and not self.no_card:
            found["login"] = [self.library([name])[0] for name in ("libcuda.so.1", "libnvidia-ml.so.1")]
        return measured(**found)

    def computed(self):
        """[(unit, Outcome)] of the job compute on every usable card, side by side."""

        def work():
            jobs = []
            with prove_job.Folder() as folder:
                for unit in self.usable[0]:
                    args = {
                        "uuid": unit["card_uuid"],
                        "load_s": LOAD_S,
                        "deep": self.deep,
                        "deep_s": self.timeout / 2,
                        "lock": os.path.join(folder, "bus"),
                    }
                    env = self.environment({"CUDA_VISIBLE_DEVICES": unit["uuid"]})
                    jobs.append(self.job("prove.cuda", "compute", args, env))
                return list(zip(self.usable[0], prove_job.run_all(jobs)))  # noqa: B905 -- Python 3.8

        return self.once("computed", work)

    def compute(self):
        if self.no_card:
            return measured(no_card=self.no_card, survey=self.survey, seen=self.seen, bus=prove_count.bus_cards())
        return self.nothing_to_load() or measured(computed=self.computed(), why=self.usable[1], cards=self.cards)

    def nothing_to_load(self):
        """Why no card may be loaded, as what was measured; None where one may."""
        loaded, why = self.usable
        if loaded:
            return None
        return left_alone(why) if why else skipped("MIG is on and there is no instance", status="no_card")

    def soak(self):
        if self.no_card:
            return skipped(self.no_card, status="no_card")
        nothing = self.nothing_to_load()
        if nothing:
            return nothing
        loaded, why = self.usable
        self.deadline += self.soak_s
        jobs = [
            self.job(
                "prove.soak",
                "soak",
                {"uuid": unit["card_uuid"], "seconds": self.soak_s},
                self.environment({"CUDA_VISIBLE_DEVICES": unit["uuid"]}),
            )
            for unit in loaded
        ]
        soaked = list(zip(loaded, prove_job.run_all(jobs)))  # noqa: B905 -- Python 3.8
        after = prove_job.run(self.job("prove.nvml", "survey", timeout_s=60.0))
        return measured(soaked=soaked, why=why, cards=self.cards, after=after, seconds=self.soak_s)

    def health(self):
        lost = self.survey.result["lost"] if self.survey.ok else []
        if not self.cards and not lost:
            return skipped(self.no_card or "no card", status="no_card")
        samples = {}
        for unit, outcome in [] if self.no_card else self.computed():
            if outcome.ok:
                samples.setdefault(unit["index"], []).extend(outcome.result["load"])
        return measured(cards=self.cards, lost=lost, samples=list(samples.items()))

    def xid(self):
        if not prove_count.bus_cards():
            return skipped("no NVIDIA GPU on the PCI bus")
        return measured(outcome=prove_job.run(self.job("prove.xid", "read", timeout_s=30.0)))

    @property
    def whole(self):
        """(usable cards that are not MIG instances, in the order of the survey, [why not others])."""
        loaded, why = self.usable
        return [unit for unit in loaded if not unit["mig"]], why

    def on_whole_cards(self, loaded, more=None, library_path=None):
        """Environment in which a CUDA program sees these units and no others, in this order."""
        uuids = ",".join(unit["uuid"] for unit in loaded)
        return self.environment(dict({"CUDA_VISIBLE_DEVICES": uuids}, **(more or {})), library_path)

    def p2p(self):
        if self.no_card and len(prove_count.bus_cards()) != 1:
            return skipped(self.no_card, status="no_card")
        loaded, why = ([], []) if self.no_card else self.whole
        if len(loaded) < 2:
            return left_alone(why) if len(self.cards) > 1 and why else skipped("fewer than two cards to use", why)
        return measured(
            outcome=prove_job.run(
                self.job(
                    "prove.p2p",
                    "matrix",
                    {"uuids": [unit["card_uuid"] for unit in loaded]},
                    self.on_whole_cards(loaded),
                )
            ),
            labels=[unit["index"] for unit in loaded],
            cards=self.cards,
            pairs=self.survey.result["pairs"],
            hints=prove_topology.host_hints(),
            why=why,
        )

    def library(self, names):
        """(Outcome with the login's library path, Outcome without or None) of loading the first of names."""

        def look(library_path):
            env = self.environment(None, library_path)
            user = run_as.account(sys.executable, *(self.folders if library_path else ()))
            job = self.job("prove.library", "which", {"names": list(names)}, env, timeout_s=30.0, user=user)
            return prove_job.run(job)

        return look(self.library_path), look("") if self.library_path else None

    def nccl(self):
        if self.no_card and not prove_count.bus_cards():
            return skipped(self.no_card, status="no_card")
        login, plain = self.library(["libnccl.so.2"])
        found = {"login": login, "plain": plain, "library_path": self.library_path}
        if not login.ok:
            return measured(**found)
        if self.no_card:
            return skipped(self.no_card, status="no_card")
        loaded, why = self.whole
        if not loaded:
            return left_alone(why) if why else skipped("NCCL does not join MIG instances")
        args = {
            "most": prove_nccl.GIB if self.deep or len(loaded) > 1 else prove_nccl.MIB,
            "budget_s": self.timeout / 3,
        }
        more = {key: value for key, value in prove_nccl.ENVIRONMENT.items() if key not in os.environ}
        env = self.on_whole_cards(loaded, more, self.library_path)
        user, segments = run_as.account(sys.executable, *self.folders), prove_nccl.segments()
        found["outcome"] = prove_job.run(self.job("prove.nccl", "allreduce", args, env, user=user))
        prove_nccl.remove_left_behind(segments, user[0] if user else os.geteuid())
        indexes = {unit["index"] for unit in loaded}
        return measured(
            cards=[card for card in self.cards if card["index"] in indexes],
            pairs=[row for row in self.survey.result["pairs"] if row["a"] in indexes and row["b"] in indexes],
            exported={key: value for key, value in self.exported.items() if key.startswith("NCCL_")},
            hints=prove_topology.host_hints(),
            why=why,
            **found,
        )

    def cudnn(self):
        if self.no_card and not prove_count.bus_cards():
            return skipped(self.no_card, status="no_card")
        login, plain = self.library(prove_cudnn.NAMES)
        found = {"login": login, "plain": plain, "library_path": self.library_path}
        if not login.ok:
            return measured(**found)
        if self.no_card:
            return skipped(self.no_card, status="no_card")
        loaded, why = self.usable
        if not loaded:
            return left_alone(why) if why else skipped("MIG is on and there is no instance", status="no_card")
        env = self.environment({"CUDA_VISIBLE_DEVICES": loaded[0]["uuid"]}, self.library_path)
        user = run_as.account(sys.executable, *self.folders)
        found["outcome"] = prove_job.run(self.job("prove.cudnn", "convolve", {}, env, user=user))
        return measured(**found)

    def dcgm(self):
        missing = prove_dcgm.missing()
        if missing:
            return skipped(missing)
        if self.no_card:
            return skipped(self.no_card, status="no_card")
        if self.busy and self.args.get("busy") != "run":
            # the host engine tests every card
            return left_alone(["card %s is in use: %s" % row for row in sorted(self.busy.items())])
        uuids = {str(card["index"]): card["uuid"] for card in self.cards}
        return measured(uuids=uuids, **prove_dcgm.run(2 if self.deep else 1, self.timeout))

    def compile(self, toolkit):
        nvcc = os.path.join(toolkit["path"], "bin", "nvcc")
        if not os.access(nvcc, os.X_OK):
            return skipped("%s is not there: a runtime without a compiler" % nvcc)
        loaded, why = ([], []) if self.no_card else self.usable
        if self.no_card and prove_count.unloadable(self.survey) and prove_count.bus_cards():
            loaded = self.cards_by_smi
        no_card = None if loaded or why else self.no_card or "MIG is on and there is no instance"
        user = run_as.account(sys.executable, nvcc)
        with prove_job.Folder(user[0] if user else None) as folder:
            args = {
                "nvcc": nvcc,
                "version": toolkit["version"],
                "folder": folder,
                "cards": [{"label": unit["label"], "uuid": unit["uuid"], "cc": unit["cc"]} for unit in loaded],
            }
            env = self.environment({"TMPDIR": folder})
            outcome = prove_job.run(self.job("prove.compile", "build", args, env, cwd=folder, user=user))
        return measured(version=toolkit["version"], outcome=outcome, no_card=no_card, why=why)

    @property
    def cards_by_smi(self):
        def ask():
            outcome = prove_job.run(self.job("prove.compile", "cards_by_smi", timeout_s=30.0))
            return outcome.result["cards"] if outcome.ok else []

        return self.once("cards_by_smi", ask)

    def answered(self, path):
        """What was measured with an interpreter. Its answers come from what somebody else may have written: they may be
        anything."""
        try:
            return self.framework(path)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            return measured(path=path, odd="%s: %s" % (type(error).__name__, error))

    def framework(self, path):
        if not os.access(path, os.X_OK):
            return measured(path=path, missing=True)
        user = run_as.account(path, *self.folders)
        as_root = user is None and os.geteuid() == 0
        # What activating the environment would put in front (TensorFlow before 2.14 with CUDA of conda).
        activated = os.path.dirname(os.path.dirname(path))
        own = activated + "/lib" if os.path.exists(activated + ACTIVATION) else ""
        with prove_job.Folder(user[0] if user else None) as folder:

            def job(function, args, library_path):
                library_path = ":".join(filter(None, (own, library_path)))
                more = dict(
                    prove_framework.ENVIRONMENT, TMPDIR=folder, XDG_CACHE_HOME=folder, TORCHINDUCTOR_CACHE_DIR=folder
                )
                if self.hidden_by is not None:
                    more["CUDA_VISIBLE_DEVICES"] = self.hidden_by
                env = self.environment(more, library_path)
                return prove_job.run(
                    self.job(
                        "prove.framework",
                        function,
                        args,
                        env,
                        python=path,
                        user=user,
                        isolated=as_root,
                        memory=FRAMEWORK_MEMORY,
                        cwd=folder,
                    )
                )

            found = job("find", {}, "")
            if not found.ok:
                return measured(path=path, find=found)
            names = found.result["frameworks"]
            if not names:
                return skipped("Python %s has no torch, tensorflow or jax" % found.result["python"])
            compute_on, expected, why = self.for_frameworks()
            rows = []
            for framework in names:
                args = {"framework": framework, "compute_on": compute_on}
                seen = job("look", args, self.library_path)
                plain = job("look", dict(args, compute_on=[]), "") if self.library_path else None
                culprit = None
                if not seen.ok and plain is not None and plain.ok:
                    libraries = plain.result["libraries"]
                    culprit = prove_framework.culprit(seen.message, self.library_path, libraries, os.path.exists)
                rows.append({"framework": framework, "seen": seen, "plain": plain, "culprit": culprit})
        return measured(path=path, rows=rows, library_path=self.library_path, expected=expected, why=why)

    def for_frameworks(self):
        """(indexes to compute on, {"count", "ccs"} that CUDA shows, "no_card": why none, [why not all])."""
        if self.no_card:
            return [], {"count": 0, "ccs": [], "no_card": self.no_card}, []
        cards = self.seen.result["cards"]
        free = {unit["uuid"].lower().split("-", 1)[-1] for unit in self.usable[0]}
        indexes = [index for index, card in enumerate(cards) if card["uuid"].lower() in free]
        ccs = sorted({card["cc"] for card in cards})
        return indexes, {"count": len(cards), "ccs": ccs}, self.usable[1]


# The script of an environment of ours that sets LD_LIBRARY_PATH (conda.marker.library_path_scripts).
ACTIVATION = "/etc/conda/activate.d/gpu-provision.sh"
