"""Frameworks of one environment: which build of PyTorch, TensorFlow and JAX runs on a host, and where it comes from."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.conda.environment import cuda_of_tag
from provision.catalog import UNSURE, Catalog, TorchRelease
from provision.catalog.builds import (
    Build,
    Driver,
    choose_torch,
    of_jax,
    of_tensorflow,
    of_toolkit,
    of_torch,
    torch_tags,
)
from provision.catalog.frameworks import code_held, pythons, tensorflow_pin
from provision.catalog.models.frameworks import CodeList
from provision.catalog.versions import key, minor, same
from provision.errors import UsageError
from provision.parts.conda.desired import CondaConfig, EnvironmentConfig
from provision.parts.conda.view import HostView, Recipe
from provision.parts.decision import BaseDecision

T = TypeVar("T")
NONE = ("none", "cpu")
# MKL 2024.1 took a symbol away that the channel's builds need (source: pytorch/pytorch#123097).
_MKL = "mkl<2024.1"


class Frameworks(BaseDecision):
    """Collects what an environment is made of; each method takes one framework, or refuses it (Refused)."""

    def __init__(
        self, env: EnvironmentConfig, host: HostView, catalog: Catalog, config: CondaConfig, channels: Sequence[str]
    ):
        super().__init__()
        self.env, self.host, self.catalog, self.config = env, host, catalog, config
        self.channels = tuple(env.channels or channels)
        self.driver = Driver(host.driver or "", host.max_cuda or None)
        # Nobody knows what a card that is not in the catalog runs: nothing is refused for it.
        self.known_gpus = [gpu for gpu in host.gpus if gpu.cc]
        self.recipe: Recipe | None = None
        # (framework, Pythons it has wheels for)
        self._pythons: list[tuple[str, list[str]]] = []
        # packages of conda beside Python: cuDNN before CUDA before frameworks
        self._conda: list[str] = []
        # steps of pip with an index of their own
        self._wheels: list[dict[str, Any]] = []
        self._pip: list[str] = []
        self._frameworks: dict[str, str] = {}
        self._cudas: list[str] = []
        # framework -> (CUDA major, cuDNN of its wheels)
        self._cudnns: dict[str, tuple[str, str]] = {}
        self._extra_channels: list[str] = []
        self._library_path = False

    # --- texts -----------------------------------------------------------------------------------------------

    def block(self, code: str, message: str, because: Sequence[str] = (), hint: str | None = None) -> None:
        super().block(code, f"environment {self.env.name}: {message}", because, hint)

    def warn(self, code: str, message: str, because: Sequence[str] = (), hint: str | None = None) -> None:
        super().warn(code, f"environment {self.env.name}: {message}", because, hint)

    def chose(self, value: str, because: str) -> None:
        self.reason(f"environment {self.env.name}", value, because)

    def known(self, find: Callable[[str], T], code: str, title: str, text: str) -> T:
        """What the catalog has of a version; refused where it has none."""
        try:
            return find(text)
        except UsageError as error:
            issue = error.issue
            because = [*issue.because, *filter(None, [issue.hint])]
            self.refuse(code, f"there is no {title} {text} in the catalog", because)

    # --- PyTorch -----------------------------------------------------------------------------------------------

    def torch(self) -> None:
        match = re.fullmatch(r"v?([0-9]+(?:\.[0-9]+){0,2})(?:\+(cu[0-9]{2,4}|cpu))?", self.env.torch)
        if match is None:
            self.refuse("conda.torch_unknown", f"'{self.env.torch}' is not a version of PyTorch", ['written "2.6.0"'])
        text, local = match[1], match[2]
        release = self.known(self.catalog.torch, "conda.torch_unknown", "PyTorch", text)
        version = text if text.count(".") == 2 else release.version
        tag = self._asked_tag(local)
        channel = self.env.torch_from == "pytorch"
        if channel and key(minor(version)) > key(self.catalog.conda.pytorch_channel.last):
            self.refuse(
                "conda.channel_ended",
                f"the channel pytorch has no PyTorch {version}",
                [
                    f"it ended with {self.catalog.conda.pytorch_channel.last}; what it still gives is older, or a build for the CPU"
                ],
                "leave torch_from out: wheels have it",
            )
        if channel and self.host.machine != "x86_64":
            self.refuse(
                "conda.no_build_for_machine",
                f"the channel pytorch has no builds with CUDA for {self.host.machine}",
                hint="leave torch_from out: wheels may have it",
            )
        if tag != "cpu":
            tag = self._torch_tag(release, version, tag)
        if release.python is None:
            self.warn("conda.uncertain", f"for which Pythons there are wheels of PyTorch {version} is not known")
        else:
            self._pythons.append((f"PyTorch {version}", list(release.python)))
        self._take_torch(release, version, tag, channel)

    def _asked_tag(self, local: str | None) -> str | None:
        """The tag that is asked for: cu124, cpu, "cu12" for any of CUDA 12, None for none in particular."""
        cuda = self.env.cuda
        asked = None if not cuda else "cpu" if cuda in NONE else "cu" + "".join(cuda.split(".")[:2])
        if local and asked and local != asked and not (cuda.isdigit() and local[2:-1] == cuda):
            self.refuse(
                "conda.contradiction",
                f"torch {self.env.torch} and cuda {cuda} contradict each other",
                [f"+{local} is the build for CUDA {cuda_of_tag(local) or local}"],
                "leave cuda out, or remove it from the version of torch",
            )
        return local or asked

    def _torch_tag(self, release: TorchRelease, version: str, asked: str | None) -> str:
        """The tag whose wheels run here."""
        tags = self.catalog.frameworks.torch.tags
        available = torch_tags(self.catalog, release, self.host.machine)
        exact = asked is not None and not (self.env.cuda.isdigit() and asked == f"cu{self.env.cuda}")
        fit = [tag for tag in available if asked is None or tag == asked or (not exact and tag[2:-1] == self.env.cuda)]
        if not fit:
            have = ", ".join(f"{tags[tag].cuda} ({tag})" for tag in available)
            asked_cuda = (cuda_of_tag(asked or "") or asked) if exact else self.env.cuda
            self.refuse(
                "conda.torch_not_built",
                f"there is no build of PyTorch {version} {f'for CUDA {asked_cuda}' if asked and available else 'with CUDA'}"
                f"{'' if available else f' for {self.host.machine}'}",
                [f"it is built for CUDA {have}"] if have else [],
            )
        refusals = {tag: self._why_not(version, tag) for tag in fit}
        works = [tag for tag in fit if refusals[tag] is None]
        if not works:
            found = [refusal for refusal in refusals.values() if refusal]
            # The GPU is the harder fact: a driver can be changed.
            code = next((c for c, _ in found if c == "conda.no_code_for_gpu"), found[0][0])
            cuda = f" for CUDA {tags[fit[0]].cuda}" if len(fit) == 1 else ""
            ending = {"conda.no_code_for_gpu": "does not run on every GPU of this host"}.get(
                code, f"does not run on driver {self.host.driver}"
            )
            lists = [self.catalog.torch_arch_list(version, tag, self.host.machine) for tag in fit]
            doubts = [line for codes in lists for line in _doubt(codes)] if code == "conda.no_code_for_gpu" else []
            because = [*(because for _, because in found), *dict.fromkeys(doubts)]
            self.refuse(code, f"PyTorch {version}{cuda} {ending}", because)
        builds = {tag: of_torch(self.catalog, version, tag, self.host.machine) for tag in works}
        chosen = choose_torch(release, builds, self.known_gpus)
        if len(fit) > 1 and chosen != release.default:
            skipped = refusals.get(release.default)
            self.chose(
                f"CUDA {tags[chosen].cuda}",
                skipped[1] if skipped else f"the newest build of PyTorch {version} that is asked for and runs here",
            )
        return chosen

    def _why_not(self, version: str, tag: str) -> tuple[str, str] | None:
        """Why the wheels of a tag do not run on this host, as (code, sentence); None when they do."""
        host, build = self.host, of_torch(self.catalog, version, tag, self.host.machine)
        why = build.why_not(self.known_gpus, self.driver)
        if why is None:
            return None
        if why.gpu is None:
            return "conda.driver_too_old", f"{tag} needs driver {why.least} or newer; this host has {host.driver}"
        if why.kind == "no_code":
            codes = self.catalog.torch_arch_list(version, tag, host.machine)
            held = ", ".join(codes.cc) if codes else "unknown"
            return "conda.no_code_for_gpu", (
                f"{tag}: code for compute capability {held}; {why.gpu.name} has {why.gpu.cc}"
            )
        return "conda.driver_too_old", (
            f"{tag} runs on {why.gpu.name} only through PTX, and driver {host.driver} knows CUDA up to {host.max_cuda}"
        )

    def _take_torch(self, release: TorchRelease, version: str, tag: str, channel: bool) -> None:
        cuda = "" if tag == "cpu" else self.catalog.frameworks.torch.tags[tag].cuda
        self._frameworks["torch"] = f"{version}+{tag}"
        if cuda:
            self._cudas.append(cuda)
        if channel:
            self._torch_of_channel(release, version, cuda)
            return
        base = (self.config.wheel_index_url or self.catalog.frameworks.torch.index_url.removesuffix("/{tag}")).rstrip(
            "/"
        )
        self._wheels.append(
            {"packages": [f"torch=={version}+{tag}"], "index_url": f"{base}/{tag}", "extra_index_urls": []}
        )
        if cuda and release.cudnn and tag == release.default:
            self._cudnns["PyTorch"] = (cuda.split(".")[0], release.cudnn)
        self.chose(
            f"PyTorch {version} for {f'CUDA {cuda}' if cuda else 'the CPU'}",
            f"wheels of {base}/{tag}, pinned with their local version, so that no other build can come",
        )

    def _torch_of_channel(self, release: TorchRelease, version: str, cuda: str) -> None:
        """PyTorch of its former channel, the build pinned. PYTHON is put in when it is known."""
        if not cuda:
            self._conda += [f"pytorch={version}=pyPYTHON_cpu_0", "cpuonly", _MKL]
        else:
            default = self.catalog.frameworks.torch.tags[release.default].cuda
            # Only of the default build is the cuDNN known to the third part; for the others CUDA pins the build.
            build = f"cudnn{'.'.join(release.cudnn.split('.')[:3])}_0" if release.cudnn and cuda == default else "*"
            beside = "pytorch-cuda" if key(version) >= (1, 13) else "cudatoolkit"
            self._conda += [f"pytorch={version}=pyPYTHON_cuda{cuda}_{build}", f"{beside}={cuda}", _MKL]
        self._extra_channels += ["pytorch", "nvidia"]
        self.chose(
            f"PyTorch {version} for {f'CUDA {cuda}' if cuda else 'the CPU'}",
            "of the channel pytorch, the build string pinned, so that none for the CPU can come",
        )

    # --- TensorFlow, JAX ---------------------------------------------------------------------------------------

    def tensorflow(self) -> None:
        text = self.env.tensorflow
        release = self.known(self.catalog.tensorflow, "conda.tensorflow_unknown", "TensorFlow", text)
        pin = tensorflow_pin(self.catalog, text, release.version)
        self._pythons.append((f"TensorFlow {release.version}", pythons(*release.python)))
        if self.env.cuda in NONE:
            self._frameworks["tensorflow"] = pin.strip("=")
            self._pip.append(f"tensorflow-cpu{pin}")
            return
        major = release.cuda.split(".")[0]
        if self.env.cuda and not same(self.env.cuda, release.cuda) and not self.env.torch:
            self.refuse(
                "conda.tensorflow_other_cuda",
                f"TensorFlow {release.version} is not built for CUDA {self.env.cuda}",
                [f"it is built and tested with CUDA {release.cuda}, cuDNN {release.cudnn}"],
            )
        if self.host.machine not in self.catalog.frameworks.tensorflow.machines:
            self.refuse(
                "conda.no_build_for_machine",
                f"TensorFlow {release.version} has no build with CUDA for {self.host.machine}",
            )
        build = of_tensorflow(self.catalog, release)
        if not self.driver.is_at_least(build.min_driver):
            self.block(
                "conda.driver_too_old",
                f"TensorFlow {release.version} does not run on driver {self.host.driver}",
                [f"CUDA {release.cuda} needs driver {build.min_driver} or newer"],
            )
        for gpu in self.host.gpus:
            degree = build.support(gpu) if gpu.cc else "jit"
            if degree == "none" or (degree == "jit" and not self.driver.knows(build.cuda)):
                codes = self.catalog.tensorflow_codes(release.version)
                because = [f"its wheels hold {code_held(codes, gpu.cc)}; {gpu.name} has {gpu.cc}", *_doubt(codes)]
                self.block("conda.no_code_for_gpu", f"TensorFlow {release.version} does not run on {gpu.name}", because)
            elif degree == "jit":
                self.warn(
                    "conda.jit",
                    f"TensorFlow {release.version} has no compiled code for {gpu.name}",
                    [f"built with CUDA {release.cuda}; its PTX is compiled at the first start, which takes minutes"],
                )
        self._frameworks["tensorflow"] = pin.strip("=")
        self._cudas.append(release.cuda)
        if release.extra:
            self._pip.append(f"tensorflow[and-cuda]{pin}")
            if re.fullmatch(r"[0-9.]+", release.extra.cudnn):
                self._cudnns["TensorFlow"] = (major, release.extra.cudnn)
            self.chose(f"TensorFlow {pin.strip('=')} for CUDA {release.cuda}", "its wheels bring their CUDA (and-cuda)")
            return
        # One solve, cuDNN named first: asked for later it would move CUDA to another version.
        self._conda += [f"cudnn={release.cudnn}", f"cudatoolkit={release.cuda}"]
        self._pip.append(f"tensorflow{pin}")
        self._library_path = True
        self.chose(
            f"TensorFlow {pin.strip('=')} with CUDA {release.cuda} of conda",
            "its wheels bring none; the libraries are found by a script of this environment alone (M4)",
        )

    def jax(self) -> None:
        env = self.env
        if not re.fullmatch(r"[0-9]+(\.[0-9]+){1,2}", env.jax):
            self.refuse("conda.jax_unknown", f"'{env.jax}' is not a version of JAX", hint='written jax: "0.4.35"')
        pin = f"=={env.jax}" if env.jax.count(".") == 2 else f"=={env.jax}.*"
        self._frameworks["jax"] = env.jax
        release = None
        try:
            release = self.catalog.jax(env.jax)
            self._pythons.append((f"JAX {release.version}", pythons(*release.python)))
        except UsageError:
            self.warn(
                "conda.uncertain",
                f"JAX {env.jax} is not in the catalog",
                ["whether it exists, and its Pythons, only pip will say; its CUDA is checked"],
            )
        if env.cuda in NONE:
            self._pip.append(f"jax{pin}")
            return
        asked = env.cuda.split(".")[0] if env.cuda else self._cudas[0].split(".")[0] if self._cudas else "12"
        if asked not in ("12", "13"):
            self.refuse(
                "conda.jax_other_cuda",
                f"there is no JAX for CUDA {asked}",
                ["its wheels are for CUDA 12 and 13"],
                'cuda: "12" goes with JAX',
            )
        codes = next((build for build in release.builds if build.extra == f"cuda{asked}"), None) if release else None
        if release and codes is None:
            majors = [key(build.cuda)[0] for build in release.builds]
            self.refuse(
                "conda.jax_other_cuda",
                f"JAX {release.version} has no build for CUDA {asked}",
                [f"it is built for CUDA {' and '.join(map(str, majors))}"],
                f'cuda: "{majors[-1]}" goes with JAX {release.version}',
            )
        if release and self.host.machine == "aarch64" and not release.aarch64:
            known = [v for v, row in self.catalog.frameworks.jax.releases.items() if row.aarch64]
            self.refuse(
                "conda.no_build_for_machine",
                f"JAX {release.version} has no build with CUDA for {self.host.machine}",
                hint=f'jax: "{known[-1]}" has one',
            )
        title = f"JAX {env.jax}" if codes else f"CUDA {asked}.0"
        build = of_jax(self.catalog, codes) if codes else of_toolkit(self.catalog, f"{asked}.0")
        self.must_run(build, title, f"JAX for CUDA {asked}")
        self._cudas.append(asked)
        self._pip.append(f"jax[cuda{asked}]{pin}")
        self.chose(f"JAX {env.jax} for CUDA {asked}", f"its wheels bring their CUDA (cuda{asked})")

    def must_run(self, build: Build, title: str, what: str) -> None:
        """Refuse programs of a build that do not run on this host."""
        # PTX is enough here: what an environment is for is not known.
        why = build.why_not(self.known_gpus, Driver(self.host.driver or ""))
        if why is None:
            return
        code = "conda.no_code_for_gpu" if why.gpu else "conda.driver_too_old"
        reason = f"needs driver {why.least} or newer; this host has {self.host.driver}"
        if why.gpu:
            reason = f"has no code for {why.gpu.name} ({why.gpu.cc})"
        self.refuse(code, f"{what} does not run here", [f"{title} {reason}"])


def _doubt(codes: CodeList | None) -> list[str]:
    """That a refusal rests on a list of code that is not sure; nothing where it is."""
    if codes is None or codes.certainty not in UNSURE:
        return []
    return [f"not sure ({codes.certainty}): what these wheels hold" + (f"; {codes.note}" if codes.note else "")]
