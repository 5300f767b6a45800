# mypy: ignore-errors
# ruff: noqa: F821, UP031, UP004, UP032, UP036
# Runs on the host: answers calls that arrive on stdin. Standard library only, Python 3.8 and later.
# Sent as text by session.py, after _importer.py; see there for the frames. TOKEN is set in the namespace before this is
# executed. What is imported only after a failure is not imported here: forty hosts in one machine pay for it forty times.
import gc
import importlib
import json
import marshal
import os
import signal
import sys
import zlib


def answer(request):
    """Return {"ok": true, "result"} or {"ok": false, "error": {code, message, because, hint}} for one call.

    No password or token of the host is in it.
    """
    SOURCES.update(request["sources"])
    if sys.version_info < (3, 8):
        return {
            "ok": False,
            "error": {
                "code": "host.no_python",
                "message": "Python %s is too old: 3.8 or later is needed" % sys.version.split()[0],
                "because": [sys.executable],
                "hint": "name a newer one with ansible_python_interpreter",
            },
        }
    redact = importlib.import_module(PACKAGE + ".lib.redact")
    try:
        module = importlib.import_module(PACKAGE + "." + request["module"])
        return {"ok": True, "result": redact.data(module.main(request["args"]))}
    except Exception as error:
        import traceback

        frames = traceback.extract_tb(error.__traceback__)[-3:]
        places = ["%s:%s in %s" % (f.filename.strip("<>"), f.lineno, f.name) for f in frames]
        because = getattr(error, "because", None)
        expected = isinstance(getattr(error, "code", None), str)
        return {
            "ok": False,
            "error": redact.data(
                {
                    "code": error.code if expected else "host.probe_failed",
                    "message": str(error) if expected else "%s: %s" % (type(error).__name__, error),
                    "because": list(because) if because is not None else ([] if expected else places),
                    "hint": getattr(error, "hint", None),
                }
            ),
        }


def give_up(signum, frame):
    """The caller stopped waiting: end, and what was started with it."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def serve():
    requests = sys.stdin.buffer
    out = os.fdopen(os.dup(1), "wb")
    # What a child prints must not get between the frames, and nobody types at it.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.environ["LC_ALL"] = "C.UTF-8"
    os.environ.pop("LANGUAGE", None)
    # sudo's secure_path and a bare ssh PATH may lack where dpkg, modinfo and nvidia-smi live.
    have = os.environ.get("PATH", "").split(":")
    more = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    os.environ["PATH"] = ":".join([p for p in have if p] + [p for p in more if p not in have])
    sys.meta_path.insert(0, Finder())
    signal.signal(signal.SIGALRM, give_up)
    # An answer is given before there is garbage in circles that is worth a search.
    gc.disable()
    while True:
        head = requests.readline()
        if not head:
            # Python searches all that is there for garbage before it ends, unless it is told not to.
            gc.freeze()
            return
        request = json.loads(zlib.decompress(requests.read(int(head))).decode("utf-8"))
        if request["code"]:
            # Ours, as the sources; this Python has said that it takes it.
            CODE.update(marshal.loads(zlib.decompress(requests.read(int(requests.readline())))))  # noqa: S302
        signal.alarm(int(request["timeout"]) + 5)
        body = zlib.compress(json.dumps(answer(request)).encode("utf-8"), 1)
        signal.alarm(0)
        out.write(("\n%s %d\n" % (TOKEN, len(body))).encode("ascii"))
        out.write(body)
        out.flush()


serve()
