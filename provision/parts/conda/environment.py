"""One conda environment: what it is made of on this host, or why it cannot work here. Pure.

The rules: a framework's build must hold code for every GPU of the host and run on its driver (the one that this plan
installs, else the loaded one); the Python must be one that the framework has wheels for; a build for the CPU cannot
slip in, since the wheel's local version or the conda build string is pinned (scenario M2).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress

from provision.catalog.builds import of_toolkit
from provision.catalog.versions import key, minor, same
from provision.parts.conda.desired import EnvironmentConfig
from provision.parts.conda.file import CondaFile, read_file
from provision.parts.conda.frameworks import NONE, Frameworks
from provision.parts.conda.view import Recipe
from provision.parts.decision import Refused

# Wheels of torch before 2.3 are built against numpy 1, and say so nowhere (source: PyTorch's release notes of 2.3).
_NUMPY_2_FROM = (2, 3)
# Signs of conda's own language of specs (conda, models/match_spec.py) and of URLs.
_SPEC = re.compile(r"[A-Za-z0-9_*/.][\w.*+:/@=<>!~,|\[\]'\"#%?&^ -]*")
# What pip takes beside requirements: a file on the host, an archive by its URL, a repository.
_SOURCE = re.compile(r"(?:/|(?:git\+)?(?:https?|file|ssh)://)[^\s`$\\]+")
_CHANNEL = re.compile(r"[A-Za-z0-9_/.][\w.+:/@=%~-]*")
_FRAMEWORK_PACKAGE = re.compile(r"pytorch|torch|tensorflow(-gpu)?|jax|jaxlib|cudatoolkit|cuda-version")


class EnvironmentJudge(Frameworks):
    """Judges one environment. After ``run``: recipe (None where refused), blockers, warnings, reasons.

    read_as: what a file asks for, as if it were written in keys; None without a file.
    """

    read_as: EnvironmentConfig | None = None

    def run(self) -> EnvironmentJudge:
        env = self.env
        if env.file:
            with suppress(Refused):
                self._file()
            return self
        self._keys()
        if self.blockers:
            return self
        frameworks = [(env.torch, self.torch), (env.tensorflow, self.tensorflow), (env.jax, self.jax)]
        takes = [take for asked, take in frameworks if asked]
        if not takes and env.cuda not in ("", *NONE):
            takes = [self._toolkit]
        for take in takes:
            with suppress(Refused):
                take()
        if not self.blockers:
            with suppress(Refused):
                self._cudnn()
                self._build(self._python())
        return self

    # --- what the values say by themselves ---------------------------------------------------------------------

    def _keys(self) -> None:
        env = self.env
        if env.python and not re.fullmatch(r"[23]\.[0-9]{1,2}(\.[0-9]{1,2})?", env.python):
            self.block("conda.python_invalid", f"'{env.python}' is not a version of Python", ['written "3.11"'])
        elif env.python in ("3.1", "3.2"):
            self.block(
                "conda.python_invalid",
                f"Python {env.python} is not meant, is it?",
                ["3.10 without quotes is the number 3.1 in YAML"],
                f'python: "{env.python}0", in quotes',
            )
        if env.cuda and env.cuda not in NONE and not re.fullmatch(r"[0-9]{1,2}(\.[0-9]{1,2}){0,2}", env.cuda):
            self.block(
                "conda.cuda_invalid",
                f"'{env.cuda}' is not a version of CUDA",
                hint='written cuda: "12.4", or cuda: none',
            )
        for key_, items, is_one in (
            ("packages", env.packages, _SPEC.fullmatch),
            ("pip", env.pip, _is_requirement),
            ("channels", env.channels, _CHANNEL.fullmatch),
        ):
            bad = [item for item in items if not is_one(item.strip())]
            if bad:
                self.block(
                    "conda.package_invalid",
                    f"{key_}: {bad[0]!r} is not one",
                    ["options and other commands are not taken, only what is to be there"],
                    f"remove {bad[0]!r} from {key_}",
                )
        for item in env.packages + env.pip:
            name = re.split(r"[^a-z0-9-]", item.strip().lower().rpartition("::")[2])[0]
            if _FRAMEWORK_PACKAGE.fullmatch(name):
                self.warn(
                    "conda.unchecked_package",
                    f"{item} is not checked against the driver and the GPUs",
                    [
                        "what is named in packages or pip is given to conda or pip as it is; a build for the CPU may come"
                    ],
                    "name it by its own key: torch, tensorflow, jax, cuda",
                )

    # --- CUDA and cuDNN of conda -----------------------------------------------------------------------------------

    def _toolkit(self) -> None:
        text, conda = self.env.cuda, self.catalog.conda.cuda
        found = self.known(self.catalog.cuda, "conda.cuda_unknown", "CUDA", text)
        if text.isdigit():
            fit = [
                m
                for m in self.catalog.cuda_minors
                if m.major == int(text)
                and key(m.version) <= key(conda.version_pin.newest)
                and (self.host.max_cuda is None or key(m.version) <= key(self.host.max_cuda))
            ]
            found = fit[-1] if fit else found
        cuda = found.version
        if key(cuda) > key(conda.version_pin.newest):
            self.refuse(
                "conda.cuda_not_packaged",
                f"conda-forge is not known to have CUDA {cuda}",
                [f"the newest that the catalog knows there is {conda.version_pin.newest}"],
            )
        self.must_run(of_toolkit(self.catalog, cuda), f"CUDA {cuda}", f"CUDA {cuda}")
        self._cudas.append(cuda)
        exact = text if text.count(".") == 2 else cuda
        if key(cuda) <= key(conda.legacy.last):
            self._conda.append(f"{conda.legacy.package}={exact}")
            self.chose(f"CUDA {exact} of conda", f"the package {conda.legacy.package}: libraries without nvcc")
        else:
            self._conda += [f"{conda.version_pin.package}={cuda}", f"cuda-toolkit={exact}"]
            self.chose(f"CUDA {exact} of conda", "compiler and libraries of conda-forge, all at one version")

    def _cudnn(self) -> None:
        text = self.env.cudnn
        if not text:
            return
        if not re.fullmatch(r"[0-9]+(\.[0-9]+){0,3}", text):
            self.refuse("conda.cudnn_invalid", f"'{text}' is not a version of cuDNN", hint='written cudnn: "9"')
        elif self._frameworks:
            brought = sorted({version for _, version in self._cudnns.values()})
            if brought and all(same(text, version) for version in brought):
                return
            self.refuse(
                "conda.cudnn_of_framework",
                f"cuDNN {text} cannot be chosen beside a framework",
                [
                    f"the framework brings its own{' (' + ', '.join(brought) + ')' if brought else ''}",
                    "a second one would be found by chance, or not at all (I1)",
                ],
                "leave cudnn out; the framework's own is used",
            )
        elif not self._cudas:
            self.refuse(
                "conda.cudnn_without_cuda",
                f"cuDNN {text} without CUDA",
                ["cuDNN is built for one CUDA"],
                "say cuda as well, or leave cudnn out",
            )
        else:
            pair = self.catalog.cudnn_for(self._cudas[0], self.host.gpus, version=text)
            if pair is None:
                self.refuse(
                    "conda.cudnn_other_cuda",
                    f"there is no cuDNN {text} for CUDA {self._cudas[0]} on these GPUs",
                    hint=f"leave cudnn out, or take {self._other_cudnn()}",
                )
            self._conda.insert(0, f"cudnn={text}")

    def _other_cudnn(self) -> str:
        pair = self.catalog.cudnn_for(self._cudas[0], self.host.gpus)
        return f'cudnn: "{pair.version}"' if pair else "another cuda"

    # --- Python ------------------------------------------------------------------------------------------------

    def _python(self) -> str:
        """The Python of the environment, "" for any; refused where the frameworks have none in common, or not this one."""
        common: list[str] | None = None
        for _, listed in self._pythons:
            common = listed if common is None else [python for python in common if python in listed]
        because = [f"{name} has wheels for Python {_span(listed)}" for name, listed in self._pythons]
        if common is not None and not common:
            self.refuse(
                "conda.no_common_python",
                "its frameworks have no Python in common",
                because,
                "put them into environments of their own",
            )
        if self.env.python:
            if common is not None and minor(self.env.python) not in common:
                names = " and ".join(name for name, _ in self._pythons)
                self.refuse(
                    "conda.no_wheel_for_python", f"there are no wheels of {names} for Python {self.env.python}", because
                )
            self._unheard_of_python()
            return self.env.python
        if common is None:
            return ""
        chosen = common[-2] if len(common) > 1 else common[-1]
        self.chose(
            f"Python {chosen}",
            "the newest but one that it has wheels for: other packages are often late for the newest",
        )
        return chosen

    def _unheard_of_python(self) -> None:
        known = max((p for r in self.catalog.frameworks.torch.releases.values() for p in r.python or ()), key=key)
        if not self._pythons and key(minor(self.env.python)) > key(known):
            self.warn(
                "conda.uncertain",
                f"whether there is a Python {self.env.python} is not known",
                [f"the newest that the catalog has heard of is {known}"],
                f'python: "{known}"',
            )

    # --- together ----------------------------------------------------------------------------------------------

    def _build(self, python: str) -> None:
        env, host = self.env, self.host
        self._two_frameworks()
        if self.blockers:
            return
        if self._extra_channels and not python:
            self.refuse(
                "conda.python_needed",
                "which Python it is for must be said",
                ["builds of the channel pytorch are named by it, and the catalog does not know which there are"],
                'python: "3.10"',
            )
        conda = [item.replace("PYTHON", minor(python)) for item in self._conda]
        pip = [*self._pip, *env.pip]
        steps = list(self._wheels)
        if pip:
            torch = [item for step in self._wheels for item in step["packages"]]
            # Named again, so that nothing that comes later moves it to another build.
            guards = torch + (["numpy<2"] if self._needs_old_numpy() else [])
            steps.append({"packages": guards + pip, "index_url": self.config.pip_index_url, "extra_index_urls": []})
        packages = [*([f"python={python}"] if python else []), *(["pip"] if steps else []), *conda, *env.packages]
        channels = dict.fromkeys([*self._extra_channels, *self.channels])
        if any(item.startswith(("cudatoolkit=", "cuda-version=", "cudnn=")) for item in conda):
            # nobody else has all of them
            channels = dict.fromkeys([*channels, "conda-forge"])
        gpu = bool(self._cudas)
        if gpu and not host.gpus:
            self.warn(
                "conda.no_gpu",
                "it is made for CUDA, and this host has no GPU for it",
                hint="cuda: none asks for builds without",
            )
        override = (host.max_cuda or self._cudas[0]) if gpu and conda and not host.solves_by_itself else ""
        if override:
            self.chose(
                f"CONDA_OVERRIDE_CUDA={override}",
                "the driver does not run yet when conda solves"
                if not host.loaded
                else "another driver runs when conda solves",
            )
        self.recipe = Recipe(
            python=python,
            cuda=max(self._cudas, key=key, default=""),
            build="cuda" if gpu else "cpu" if self._frameworks else "",
            frameworks=self._frameworks,
            channels=tuple(channels),
            packages=tuple(packages),
            pip=tuple(steps),
            override_cuda=override,
            library_path=self._library_path,
        )

    def _needs_old_numpy(self) -> bool:
        version = self._frameworks.get("torch", "")
        named = any(re.match(r"^numpy\b", item.strip().lower()) for item in self.env.packages + self.env.pip)
        return bool(version) and key(version.split("+")[0])[:2] < _NUMPY_2_FROM and not named

    def _two_frameworks(self) -> None:
        """Two frameworks whose wheels ask for two versions of the same cuDNN cannot be installed together."""
        majors: dict[str, dict[str, str]] = {}
        for name, (major, version) in self._cudnns.items():
            majors.setdefault(major, {})[name] = version
        for major, brought in majors.items():
            if len(set(brought.values())) > 1:
                self.block(
                    "conda.two_frameworks",
                    f"{' and '.join(brought)} do not go into one environment",
                    [f"{name} asks for cuDNN {version} for CUDA {major}" for name, version in brought.items()],
                    "put them into environments of their own",
                )

    # --- a file ------------------------------------------------------------------------------------------------

    def _file(self) -> None:
        env = self.env
        others = [k for k in env.asked() if k not in ("name", "file_sha256", "torch_from")]
        if others:
            self.refuse(
                "conda.file_and_keys",
                f"file describes the whole environment, {others[0]} would have no effect",
                hint=f"take {', '.join(others)} out, or file",
            )
        if env.content is None:
            self.refuse(
                "conda.file_unreadable",
                f"{env.file} cannot be read",
                [env.unreadable or "it was not read"],
                "paths are those of the controller, relative ones begin at the inventory's folder",
            )
        found = read_file(env.content)
        if found.error:
            self.refuse(
                "conda.file_unreadable",
                f"{env.file} is no file of an environment",
                [found.error],
                "conda env export and conda list --explicit write such files",
            )
        self._check_file(found)
        if self.blockers:
            return
        gpu = bool(found.cuda) and not found.cpu
        self.channels = found.channels or self.channels
        self.recipe = Recipe(
            python=found.python,
            cuda=found.cuda if gpu else "",
            build="cpu" if found.cpu else "cuda" if gpu else "",
            frameworks={n: v for n, v in (("torch", found.torch), ("tensorflow", found.tensorflow)) if v},
            channels=tuple(self.channels),
            file_kind=found.kind,
            file_content=env.content,
            override_cuda=(self.host.max_cuda or found.cuda) if gpu and not self.host.solves_by_itself else "",
        )

    def _check_file(self, found: CondaFile) -> None:
        """Judge what the file names as the same were written in keys."""
        if found.cpu and self.host.gpus:
            self.warn(
                "conda.cpu_build", f"{self.env.file} asks for a build without CUDA", hint="the GPUs will not be used"
            )
        if not (found.torch or found.tensorflow):
            return
        asked = EnvironmentConfig(
            name=self.env.name,
            torch=found.torch,
            tensorflow="" if found.torch else found.tensorflow,
            cuda="none" if found.cpu else found.cuda if found.torch else "",
            python=found.python,
        )
        self.read_as = asked
        judge = EnvironmentJudge(asked, self.host, self.catalog, self.config, ()).run()
        unknown = ("conda.torch_unknown", "conda.tensorflow_unknown", "conda.torch_not_built")
        for issue in judge.blockers:
            if issue.code in unknown:
                # conda-forge builds for more CUDAs than PyTorch itself; what the catalog does not know is no fault.
                self.warn("conda.uncertain", f"{self.env.file} was not checked", [issue.message, *issue.because])
            else:
                self.blockers.append(
                    issue.model_copy(update={"because": [*issue.because, f"asked for by {self.env.file}"]})
                )


def _is_requirement(text: str) -> bool:
    """pip takes it: a requirement (PEP 508), a file of the host, a URL."""
    if _SOURCE.fullmatch(text):
        return True
    # Few plans need it, and it takes long to load.
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        Requirement(text)
    except InvalidRequirement:
        return False
    return True


def _span(listed: Sequence[str]) -> str:
    return f"{listed[0]} to {listed[-1]}" if len(listed) > 1 else listed[0]
