"""cuda_environment: real update-alternatives in folders of its own, real files, no host touched."""

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import provision.collection as collection
from ansible_collections.gpu.provision.plugins.module_utils.cuda import environment as cuda_environment
from ansible_collections.gpu.provision.plugins.module_utils.lib import own_files

HEADER = "# written by gpu-provision\n"

needs_alternatives = pytest.mark.skipif(
    shutil.which("update-alternatives") is None, reason="update-alternatives (dpkg) is not installed"
)


class World:
    """Folders of a host below one of pytest's: /usr/local, dpkg's alternatives, ld.so.conf.d; real programs."""

    def __init__(self, root: Path):
        self.root, self.started = root, []
        for name in ("local", "admin", "alt", "ld.so.conf.d", "etc"):
            (root / name).mkdir()
        self.cache = root / "ld.so.cache"
        self.cache.write_text("")

    def toolkit(self, *versions):
        for version in versions:
            (self.root / "local" / f"cuda-{version}").mkdir()

    def path(self, name):
        return str(self.root / "local" / name)

    @property
    def link(self):
        return self.path("cuda")

    def start(self, argv):
        self.started.append(argv)
        if argv[0] == "ldconfig":
            # what ldconfig does as far as anybody here can see: the cache is new
            os.utime(self.cache)
            return 0, "", ""
        argv = [*argv[:1], "--log", str(self.root / "log"), *argv[1:]]
        done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
        return done.returncode, done.stdout, done.stderr

    def alternatives(self, *arguments):
        """What a package's postinst does."""
        argv = ["update-alternatives", "--altdir", str(self.root / "alt"), "--admindir", str(self.root / "admin")]
        rc, _, err = self.start([*argv, *arguments])
        assert rc == 0, err
        self.started.clear()

    def register(self, version):
        priority = version.replace(".", "")
        self.alternatives("--install", self.link, "cuda", self.path(f"cuda-{version}"), priority)

    def choice(self, version):
        return {
            "name": "cuda",
            "link": self.link,
            "path": self.path(f"cuda-{version}"),
            "priority": int(version.replace(".", "")),
        }

    def environment(self, check=False):
        return cuda_environment.Environment(
            self.start,
            check,
            str(self.root / "admin"),
            str(self.root / "alt"),
            str(self.cache),
            str(self.root / "ld.so.conf.d"),
        )

    def apply(self, check=False, **params):
        self.started.clear()
        return self.environment(check).apply(**params)

    def refused(self, **params):
        self.started.clear()
        with pytest.raises(cuda_environment.CudaEnvError) as caught:
            self.environment().apply(**params)
        return caught.value

    def tree(self):
        """Every path below the world with what it is, for 'nothing changed'."""
        found = {}
        for path in sorted(self.root.rglob("*")):
            if path.is_symlink():
                found[str(path)] = str(path.readlink())
            else:
                found[str(path)] = (path.stat().st_mode, path.read_bytes() if path.is_file() else b"")
        found.pop(str(self.root / "log"), None)
        return found


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


# ---- alternatives


@needs_alternatives
def test_the_default_is_registered_set_and_left_alone_the_second_time(world):
    world.toolkit("12.4")
    result = world.apply(alternatives=[world.choice("12.4")])
    assert os.path.realpath(world.link) == world.path("cuda-12.4")
    assert result["done"] == [f"{world.link} leads to {world.path('cuda-12.4')}, and stays there"]
    assert result["diff"][0]["after"] == f"manual {world.path('cuda-12.4')}\n"
    before = world.tree()
    again = world.apply(alternatives=[world.choice("12.4")])
    assert again == {"changed": False, "done": [], "diff": [], "replaced": {}, "left": []}
    assert world.started == [], "nothing is started where nothing changes"
    assert world.tree() == before


@needs_alternatives
def test_h3_a_toolkit_added_later_does_not_move_the_default(world):
    world.toolkit("11.8", "12.4", "13.0")
    world.register("11.8")
    world.register("12.4")
    world.apply(alternatives=[world.choice("11.8")])
    world.register("13.0")
    assert os.path.realpath(world.link) == world.path("cuda-11.8")
    assert not world.apply(alternatives=[world.choice("11.8")])["changed"]


@needs_alternatives
def test_in_automatic_mode_the_right_path_is_still_set(world):
    world.toolkit("12.4", "13.0")
    world.register("12.4")
    result = world.apply(alternatives=[world.choice("12.4")])
    assert result["diff"][0]["before"] == f"auto {world.path('cuda-12.4')}\n"
    world.register("13.0")
    assert os.path.realpath(world.link) == world.path("cuda-12.4")


@needs_alternatives
@pytest.mark.parametrize("registered", [False, True], ids=["no group yet", "group registered"])
@pytest.mark.parametrize("target", ["cuda-11.2", "/nowhere"], ids=["runfile", "dangling"])
def test_h3_a_plain_link_is_replaced_and_where_it_led_is_said(world, registered, target):
    world.toolkit("11.2", "12.4")
    if registered:
        world.register("12.4")
        Path(world.link).unlink()
    Path(world.link).symlink_to(target)
    result = world.apply(alternatives=[world.choice("12.4")])
    assert result["replaced"] == {world.link: target}
    assert os.path.realpath(world.link) == world.path("cuda-12.4")
    assert Path(world.link).readlink() == world.root / "alt/cuda"
    assert not world.apply(alternatives=[world.choice("12.4")])["changed"]


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_h3_what_is_no_link_is_refused_and_stays(world, kind):
    world.toolkit("12.4")
    if kind == "directory":
        Path(world.link).mkdir()
        Path(world.link, "keep").write_text("mine")
    else:
        Path(world.link).write_text("mine")
    before = world.tree()
    own = world.root / "etc/gpu-provision-cuda.sh"
    error = world.refused(
        alternatives=[world.choice("12.4")], files=[{"path": str(own), "content": HEADER}], absent=[str(own)]
    )
    assert error.code == "cuda.link_is_directory"
    assert kind in error.message and world.link in error.message
    assert world.tree() == before and world.started == []
    # The hint works when it is followed.
    subprocess.run(["mv", world.link, world.link + ".own"], check=True)
    assert f"mv {world.link} {world.link}.own" in error.hint
    if shutil.which("update-alternatives"):
        assert world.apply(alternatives=[world.choice("12.4")])["changed"]


def test_a_toolkit_that_is_not_there_is_refused_before_anything_changes(world):
    before = world.tree()
    error = world.refused(alternatives=[world.choice("12.4")])
    assert error.code == "cuda.no_toolkit"
    assert world.tree() == before and world.started == []


@needs_alternatives
def test_a_link_moved_by_hand_is_set_again(world):
    world.toolkit("12.4", "13.0")
    world.register("13.0")
    world.apply(alternatives=[world.choice("12.4")])
    (world.root / "alt/cuda").unlink()
    (world.root / "alt/cuda").symlink_to(world.path("cuda-13.0"))
    result = world.apply(alternatives=[world.choice("12.4")])
    assert result["changed"] and not result["replaced"]
    assert os.path.realpath(world.link) == world.path("cuda-12.4")


@needs_alternatives
def test_a_choice_whose_folder_is_gone_goes_and_others_stay(world):
    world.toolkit("11.8", "12.4")
    world.register("11.8")
    world.register("12.4")
    world.apply(alternatives=[world.choice("12.4")])
    gone = [{"name": "cuda", "path": world.path("cuda-11.8")}]
    assert not world.apply(alternatives_gone=gone)["changed"], "the folder is still there"
    Path(world.path("cuda-11.8")).rmdir()
    result = world.apply(alternatives_gone=gone)
    assert result["done"] == [f"removed {world.path('cuda-11.8')} as a choice for cuda"]
    assert list(world.environment().group("cuda").choices) == [world.path("cuda-12.4")]
    assert not world.apply(alternatives_gone=gone)["changed"]
    assert world.started == []


@needs_alternatives
def test_the_old_default_gone_and_a_new_one_in_one_run(world):
    world.toolkit("11.8", "12.4", "13.0")
    for version in ("11.8", "12.4", "13.0"):
        world.register(version)
    world.apply(alternatives=[world.choice("11.8")])
    Path(world.path("cuda-11.8")).rmdir()
    world.apply(
        alternatives_gone=[{"name": "cuda", "path": world.path("cuda-11.8")}], alternatives=[world.choice("12.4")]
    )
    group = world.environment().group("cuda")
    assert group.manual and group.current == world.path("cuda-12.4")


@needs_alternatives
def test_slaves_of_a_group_are_read_over(world):
    world.toolkit("12.4", "13.0")
    for version in ("12.4", "13.0"):
        world.alternatives(
            "--install",
            world.link,
            "cuda",
            world.path(f"cuda-{version}"),
            version.replace(".", ""),
            "--slave",
            str(world.root / "local/nvcc"),
            "nvcc",
            world.path(f"cuda-{version}"),
        )
    group = world.environment().group("cuda")
    assert group.choices == {world.path("cuda-12.4"): 124, world.path("cuda-13.0"): 130}
    world.apply(alternatives=[world.choice("12.4")])
    assert os.path.realpath(world.root / "local/nvcc") == world.path("cuda-12.4")


@needs_alternatives
def test_update_alternatives_words_reach_the_person(world):
    world.toolkit("12.4")
    (world.root / "alt").rmdir()
    (world.root / "alt").write_text("a file where a folder must be")
    error = world.refused(alternatives=[world.choice("12.4")])
    assert error.code == "cuda.alternatives_failed"
    assert "update-alternatives" in error.message and error.because
    assert error.done == []


# ---- files


def file(world, name="etc/gpu-provision-cuda.sh", content=HEADER + "one\n", **more):
    return {"path": str(world.root / name), "content": content, **more}


def test_files_are_written_once_with_their_folders(world):
    old = os.umask(0o077)
    try:
        result = world.apply(files=[file(world, "etc/new/cuda/12.4")])
    finally:
        os.umask(old)
    path = world.root / "etc/new/cuda/12.4"
    assert path.read_text() == HEADER + "one\n"
    assert path.stat().st_mode & 0o7777 == 0o644
    assert path.parent.stat().st_mode & 0o7777 == 0o755
    assert result["done"] == [f"wrote {path}"]
    assert result["diff"][0]["after"] == HEADER + "one\n"
    assert [name.name for name in path.parent.iterdir()] == ["12.4"], "nothing half-written is left"
    assert not world.apply(files=[file(world, "etc/new/cuda/12.4")])["changed"]


def test_content_and_mode_are_put_right(world):
    path = Path(file(world)["path"])
    path.write_text(HEADER + "old\n")
    assert world.apply(files=[file(world)])["changed"]
    path.chmod(0o600)
    result = world.apply(files=[file(world)])
    assert result["changed"] and path.stat().st_mode & 0o777 == 0o644
    # what a power cut leaves on some file systems
    path.write_text("")
    assert world.apply(files=[file(world)])["changed"]
    assert world.apply(files=[file(world, mode=0o755)])["changed"]
    assert path.stat().st_mode & 0o777 == 0o755


def test_what_a_cut_off_run_left_is_overwritten_and_gone(world):
    path = Path(file(world)["path"])
    path.with_name(f".{path.name}~").write_text("half a fi")
    world.apply(files=[file(world)])
    assert [name.name for name in path.parent.iterdir()] == [path.name]


def test_a_link_is_replaced_and_what_it_led_to_is_not_written(world):
    path, other = Path(file(world)["path"]), world.root / "etc/other"
    other.write_text("mine")
    path.symlink_to(other)
    world.apply(files=[file(world)])
    assert other.read_text() == "mine" and not path.is_symlink()


def test_a_file_of_somebody_else_is_refused_before_anything_changes(world):
    theirs = world.root / "etc/modules/cuda/12.4"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("#%Module1.0\nsetenv CUDA_HOME /opt/cuda\n")
    before = world.tree()
    error = world.refused(files=[file(world), file(world, "etc/modules/cuda/12.4")])
    assert error.code == "cuda.foreign_file" and str(theirs) in error.message
    assert world.tree() == before
    subprocess.run(["mv", theirs, f"{theirs}.own"], check=True)
    assert f"mv {theirs} {theirs}.own" in error.hint
    assert world.apply(files=[file(world), file(world, "etc/modules/cuda/12.4")])["changed"]


def test_content_that_could_not_be_told_from_others_later_is_refused(world):
    before = world.tree()
    assert world.refused(files=[file(world, content="export PATH\n")]).code == "cuda.usage"
    assert world.tree() == before


def test_a_full_disk_leaves_the_old_file_and_names_it(world):
    path = Path(file(world)["path"])
    path.write_text(HEADER + "old\n")
    before = world.tree()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # a real failure of write(2), EFBIG instead of ENOSPC
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        error = world.refused(files=[file(world, content=HEADER + "x" * 10000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert error.code == "cuda.file"
    assert error.message == f"cannot write {path}: {os.strerror(errno.EFBIG)}"
    assert error.done == [] and world.tree() == before


def test_what_was_done_before_a_failure_is_said(world):
    blocked = world.root / "etc/gpu-provision-2"
    blocked.mkdir()
    error = world.refused(files=[file(world)], absent=[str(blocked)])
    assert error.code == "cuda.file" and str(blocked) in error.message
    assert error.done == [f"wrote {file(world)['path']}"]


def test_only_files_that_say_so_are_removed(world):
    ours, theirs = world.root / "etc/cuda.sh", world.root / "etc/gpu-provision-cuda.fish"
    ours.write_text("#%Module1.0\n" + HEADER)
    theirs.write_text("# mine now\n")
    result = world.apply(absent=[str(ours), str(theirs), str(world.root / "etc/never")])
    assert result["done"] == [f"removed {ours}"] and result["left"] == [str(theirs)]
    assert not ours.exists() and theirs.exists()
    assert not world.apply(absent=[str(ours), str(theirs)])["changed"]


def test_a_header_further_down_is_no_header(world):
    path = world.root / "etc/x"
    path.write_text("1\n2\n3\n" + HEADER)
    assert world.apply(absent=[str(path)])["left"] == [str(path)]


@pytest.mark.parametrize(("folder", "goes"), [("cuda", True), ("gpu-provision", True), ("conf.d", False)])
def test_folders_made_for_us_go_with_the_last_file(world, folder, goes):
    paths = [world.root / "etc" / folder / name for name in ("12.4", "13.0")]
    world.apply(files=[{"path": str(path), "content": HEADER} for path in paths])
    world.apply(absent=[str(paths[0])])
    assert paths[1].exists()
    world.apply(absent=[str(paths[1])])
    assert paths[0].parent.exists() is not goes


# ---- the loader


def conf(world, content=HEADER + "/usr/local/cuda-12.4/lib64\n"):
    return file(world, "ld.so.conf.d/001_gpu-provision-cuda.conf", content)


def test_ldconfig_runs_when_its_configuration_changed_and_only_then(world):
    result = world.apply(files=[conf(world), file(world)])
    assert world.started == [["ldconfig"]]
    assert result["done"][-1] == "rebuilt the loader's cache (ldconfig)"
    assert not world.apply(files=[conf(world), file(world)])["changed"] and world.started == []
    world.apply(files=[conf(world), file(world, content=HEADER + "two\n")])
    assert world.started == [], "a profile is nothing to the loader"
    world.apply(absent=[conf(world)["path"]])
    assert world.started == [["ldconfig"]]
    world.apply(ldconfig=True)
    assert world.started == [["ldconfig"]]


def test_a_run_cut_off_before_ldconfig_is_finished_by_the_next(world):
    world.apply(files=[conf(world)])
    os.utime(world.cache, (1, 1))
    assert world.apply(files=[conf(world)])["done"] == ["rebuilt the loader's cache (ldconfig)"]
    world.cache.unlink()
    assert world.apply(check=True, files=[conf(world)])["changed"]


def test_ldconfigs_words_reach_the_person(world):
    world.start = lambda argv: (1, "", "/sbin/ldconfig: Can't create temporary cache file\n")
    error = world.refused(files=[conf(world)])
    assert error.code == "cuda.ldconfig_failed"
    assert error.message == "ldconfig failed: /sbin/ldconfig: Can't create temporary cache file"
    assert error.done == [f"wrote {conf(world)['path']}"]


# ---- check mode, the module itself


@needs_alternatives
def test_check_mode_says_the_same_and_changes_nothing(world):
    world.toolkit("11.8", "12.4", "13.0")
    world.register("11.8")
    world.register("13.0")
    Path(world.path("cuda-11.8")).rmdir()
    old = file(world, "etc/old", HEADER)
    world.apply(files=[old])
    params = {
        "files": [conf(world), file(world)],
        "absent": [old["path"]],
        "alternatives": [world.choice("12.4")],
        "alternatives_gone": [{"name": "cuda", "path": world.path("cuda-11.8")}],
    }
    before = world.tree()
    said = world.apply(check=True, **params)
    assert world.tree() == before and world.started == []
    did = world.apply(**params)
    assert said["done"] == did["done"] and len(did["done"]) == 6
    assert said["diff"][-3:] == did["diff"][-3:]
    assert not world.apply(check=True, **params)["changed"]


def test_check_mode_before_the_toolkit_is_installed(world):
    assert world.apply(check=True, alternatives=[world.choice("12.4")])["changed"]


def run_module(**arguments):
    done = subprocess.run(
        [sys.executable, "-m", "ansible_collections.gpu.provision.plugins.modules.cuda_environment"],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": arguments}),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(collection.COLLECTIONS_PATH)},
    )
    return json.loads(done.stdout)


def test_the_module_takes_its_arguments(world):
    item = file(world, mode="0640")
    assert run_module(files=[item], _ansible_check_mode=True)["done"] == [f"wrote {item['path']}"]
    assert not Path(item["path"]).exists()
    result = run_module(files=[item], _ansible_diff=True)
    assert result["changed"] and result["diff"][0]["after"] == item["content"]
    assert Path(item["path"]).stat().st_mode & 0o777 == 0o640
    assert not run_module(files=[item])["changed"]
    failed = run_module(files=[file(world, content="nobody's\n")])
    assert failed["failed"] and failed["code"] == "cuda.usage" and failed["hint"]
    assert run_module(files=[file(world, mode="rw")])["code"] == "cuda.usage"


def test_the_helper_reads_nothing_where_nothing_is(world):
    assert own_files.read(str(world.root / "never")) is None
    with pytest.raises(own_files.FileError, match="cannot read .*: Is a directory"):
        own_files.read(str(world.root))
