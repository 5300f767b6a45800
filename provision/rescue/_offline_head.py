# mypy: ignore-errors
# ruff: noqa: F821, UP031, UP036
# The readable part of the file that ``provision rescue --offline-script`` writes; offline.py puts a head of comments before
# it, and below it what it reads of itself. Runs on hosts: standard library only, Python 3.8 and later.

# A file that was interrupted before the last line of this block cannot be parsed: nothing of it runs.
try:
    import sys

    if sys.version_info < (3, 8):
        sys.stderr.write("Python 3.8 or later is needed, and this is %s\n" % sys.version.split()[0])
        sys.exit(64)
    import base64
    import hashlib
    import json
    import zlib

    with open(__file__, "rb") as file:
        WHOLE = file.read().replace(b"\r\n", b"\n")
    BODY, MARK, SUM = WHOLE.rpartition(b"# --- sha256 ")
    if hashlib.sha256(BODY).hexdigest().encode("ascii") != SUM.split(b" ")[0]:
        sys.stderr.write(
            "%s is damaged, or only a part of it is here: nothing was changed. Copy it again (its last line has the "
            "checksum of all lines above it)\n" % __file__
        )
        sys.exit(64)
except (OSError, NameError) as error:
    sys.stderr.write("this program reads its own file, so save it as one and run that: %s\n" % error)
    sys.exit(64)

# IMPORTER


def section(name):
    """Text of the comments below a line ``# --- NAME: ...``, without their signs."""
    text = BODY.decode("ascii").rpartition("\n# --- %s: " % name)[2].partition("\n# --- ")[0]
    return "\n".join(line[2:] for line in text.split("\n")[1:])


def main():
    SOURCES.update(json.loads(zlib.decompress(base64.b64decode(section("program"))).decode("utf-8")))
    sys.meta_path.insert(0, Finder())
    from ansible_collections.gpu.provision.plugins.module_utils.rescue import console

    return console.main(json.loads(section("decisions")), sys.argv[1:], sys.argv[0])


sys.exit(main())
